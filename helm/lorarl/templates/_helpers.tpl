{{- define "lorarl.name" -}}
{{- .Values.fullnameOverride | default (contains "lorarl" .Release.Name | ternary .Release.Name (printf "%s-lorarl" .Release.Name)) | trunc 52 | trimSuffix "-" -}}
{{- end -}}

{{/* Name of cluster-wide objects. Two releases must not share one: neither a namespace nor a name contains a colon. */}}
{{- define "lorarl.clusterName" -}}
{{- printf "%s:%s" .Release.Namespace (include "lorarl.name" .) -}}
{{- end -}}

{{/*
Name of ServiceAccount, roles and ConfigMaps. Those of a job are named lorarl-<job>, and users choose the names of jobs.
So the operator's must start differently, or a job would take them over.
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
{{- with .Values.commonLabels }}
{{ toYaml . }}
{{- end }}
{{- end -}}

{{/* The chart's labels and the user's labels, which win. Each key occurs once. */}}
{{- define "lorarl.labelsAnd" -}}
{{- mergeOverwrite (include "lorarl.labels" (index . 0) | fromYaml) (index . 1 | default dict) | toYaml -}}
{{- end -}}

{{/* An image from values {repository, tag, digest} and the chart's appVersion. */}}
{{- define "lorarl.image" -}}
{{- $image := index . 0 -}}
{{- if $image.digest -}}
{{ $image.repository }}@{{ $image.digest }}
{{- else -}}
{{ $image.repository }}:{{ $image.tag | default (index . 1) }}
{{- end -}}
{{- end -}}

{{/*
Whether there is a real API server. `helm template` and `helm lint` know only client-go's APIs; each API server has this one.
So the checks need no permission, and never fail without a cluster.
*/}}
{{- define "lorarl.onCluster" -}}
{{- if .Capabilities.APIVersions.Has "apiregistration.k8s.io/v1" }}true{{ end -}}
{{- end -}}

{{- define "lorarl.testSelector" -}}
app.kubernetes.io/name: lorarl
app.kubernetes.io/instance: {{ .Release.Name | quote }}
app.kubernetes.io/component: test
{{- end -}}

{{/* Name of the dashboard's ServiceAccount, roles and NetworkPolicy, which must not start like those of a job either. */}}
{{- define "lorarl.dashboardName" -}}
{{- printf "dashboard-%s" (include "lorarl.name" .) -}}
{{- end -}}

{{- define "lorarl.dashboardSelector" -}}
app.kubernetes.io/name: lorarl
app.kubernetes.io/instance: {{ .Release.Name | quote }}
app.kubernetes.io/component: dashboard
{{- end -}}

{{- define "lorarl.dashboardLabels" -}}
{{- include "lorarl.labelsAnd" (list . (include "lorarl.dashboardSelector" . | fromYaml)) -}}
{{- end -}}

{{/* Command for the logs of all replicas. With a label selector kubectl shows only ten lines by default. */}}
{{- define "lorarl.logs" -}}
kubectl logs -n {{ .Release.Namespace }} -l app.kubernetes.io/instance={{ .Release.Name }},app.kubernetes.io/component=operator --prefix --tail=-1
{{- end -}}
