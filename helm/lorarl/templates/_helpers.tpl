{{- define "lorarl.name" -}}
{{- .Values.fullnameOverride | default (contains "lorarl" .Release.Name | ternary .Release.Name (printf "%s-lorarl" .Release.Name)) | trunc 52 | trimSuffix "-" -}}
{{- end -}}

{{/* Objects without a namespace: no two releases may meet there, and neither a namespace nor a name has a colon. */}}
{{- define "lorarl.clusterName" -}}
{{- printf "%s:%s" .Release.Namespace (include "lorarl.name" .) -}}
{{- end -}}

{{/*
ServiceAccount, roles and ConfigMaps. A job's own are named lorarl-<job>, whatever people call their jobs: these must begin otherwise, or a
job would take them over.
*/}}
{{- define "lorarl.operatorName" -}}
{{- printf "operator-%s" (include "lorarl.name" .) -}}
{{- end -}}

{{- define "lorarl.serviceAccount" -}}
{{- .Values.serviceAccount.name | default (include "lorarl.operatorName" .) -}}
{{- end -}}

{{- define "lorarl.selector" -}}
app.kubernetes.io/name: lorarl
app.kubernetes.io/instance: {{ .Release.Name | quote }}
app.kubernetes.io/component: operator
{{- end -}}

{{- define "lorarl.labels" -}}
{{ include "lorarl.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ .Chart.Name }}-{{ .Chart.Version }}
{{- end -}}

{{/* The chart's labels and a user's, which win: each key once. */}}
{{- define "lorarl.labelsAnd" -}}
{{- mergeOverwrite (include "lorarl.labels" (index . 0) | fromYaml) (index . 1 | default dict) | toYaml -}}
{{- end -}}

{{/* An image of the values: {repository, tag, digest}, and the chart's appVersion. */}}
{{- define "lorarl.image" -}}
{{- $image := index . 0 -}}
{{- if $image.digest -}}
{{ $image.repository }}@{{ $image.digest }}
{{- else -}}
{{ $image.repository }}:{{ $image.tag | default (index . 1) }}
{{- end -}}
{{- end -}}

{{/*
Whether a real API server is asked: `helm template` and `helm lint` know client-go's APIs and no more, and every API server has this one.
So the checks need no right, and never raise a false alarm where there is no cluster to look at.
*/}}
{{- define "lorarl.onCluster" -}}
{{- if .Capabilities.APIVersions.Has "apiregistration.k8s.io/v1" }}true{{ end -}}
{{- end -}}

{{- define "lorarl.testSelector" -}}
app.kubernetes.io/name: lorarl
app.kubernetes.io/instance: {{ .Release.Name | quote }}
app.kubernetes.io/component: test
{{- end -}}

{{/* How to see what the operator says: every replica's log, of which kubectl shows ten lines where it goes by labels. */}}
{{- define "lorarl.logs" -}}
kubectl logs -n {{ .Release.Namespace }} -l app.kubernetes.io/instance={{ .Release.Name }},app.kubernetes.io/component=operator --prefix --tail=-1
{{- end -}}
