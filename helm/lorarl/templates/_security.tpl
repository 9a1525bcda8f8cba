{{/* Pod security level `restricted`, for all pods of the chart. */}}
{{- define "lorarl.podSecurity" -}}
runAsNonRoot: true
{{- with .Values.runAsUser }}
runAsUser: {{ . }}
runAsGroup: {{ . }}
{{- end }}
seccompProfile: {type: RuntimeDefault}
{{- end -}}

{{- define "lorarl.containerSecurity" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities: {drop: [ALL]}
{{- end -}}
