{{/* The image of a component: `include "agentrun.image" (list . "gateway")`. */}}
{{- define "agentrun.image" -}}
{{- $root := index . 0 -}}
{{- $component := index . 1 -}}
{{- $image := index $root.Values.images $component -}}
{{- $repository := $image.repository | default (printf "%s/%s" $root.Values.images.registry $component) -}}
{{- if $image.digest -}}
{{ $repository }}@{{ $image.digest }}
{{- else -}}
{{ $repository }}:{{ $image.tag | default $root.Chart.AppVersion }}
{{- end -}}
{{- end -}}
