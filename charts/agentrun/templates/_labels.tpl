{{/* What selects a component's Pods; never changes: `include "agentrun.selector" (list . "gateway")`. */}}
{{- define "agentrun.selector" -}}
app.kubernetes.io/name: agentrun
app.kubernetes.io/component: {{ index . 1 }}
{{- end -}}

{{/* Labels of everything in the chart: `include "agentrun.labels" (list . "gateway")`. */}}
{{- define "agentrun.labels" -}}
{{- $root := index . 0 -}}
{{ include "agentrun.selector" . }}
app.kubernetes.io/instance: {{ $root.Release.Name }}
app.kubernetes.io/version: {{ $root.Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ $root.Release.Service }}
helm.sh/chart: {{ $root.Chart.Name }}-{{ $root.Chart.Version | replace "+" "_" }}
{{- end -}}
