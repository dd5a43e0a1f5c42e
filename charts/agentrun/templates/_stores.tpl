{{/*
"shared" where gateway.stores names PostgreSQL and S3, else "": `include "agentrun.stores" .`. Fails where values say half of it, or
more gateways than one store is for.
*/}}
{{- define "agentrun.stores" -}}
{{- $postgresql := .Values.gateway.stores.postgresql -}}
{{- $s3 := .Values.gateway.stores.s3 -}}
{{- if or $s3.endpoint $s3.bucket $s3.secretName -}}
  {{- range $key := list "endpoint" "bucket" "secretName" -}}
    {{- if not (index $s3 $key) -}}
      {{- fail (printf "gateway.stores.s3.%s is empty: endpoint, bucket and secretName are needed together." $key) -}}
    {{- end -}}
  {{- end -}}
  {{- if not $postgresql.secretName -}}
    {{- fail "gateway.stores.s3 is set, gateway.stores.postgresql.secretName is not: contents in S3 need PostgreSQL to know them. Set both or neither." -}}
  {{- end -}}
  {{- if and (hasPrefix "http://" $s3.endpoint) (not $s3.allowHttp) -}}
    {{- fail "gateway.stores.s3.endpoint is http://: set gateway.stores.s3.allowHttp=true if what is stored may cross the network unprotected." -}}
  {{- end -}}
  {{- include "agentrun.s3PortIsOpen" . -}}
shared
{{- else if $postgresql.secretName -}}
  {{- fail "gateway.stores.postgresql is set, gateway.stores.s3 is not: artifacts would stay on the volume of one gateway. Set both or neither." -}}
{{- else if gt (int .Values.gateway.replicas) 1 -}}
  {{- fail (printf "gateway.replicas is %d: the embedded store is of one process. Set gateway.stores.postgresql and gateway.stores.s3, or gateway.replicas=1." (int .Values.gateway.replicas)) -}}
{{- end -}}
{{- end -}}

{{/*
Fails where the NetworkPolicy does not let the gateway out to the endpoint's port. A Service's Pods may have another port, so of a
Service only the port that nobody has set is doubted.
*/}}
{{- define "agentrun.s3PortIsOpen" -}}
{{- $endpoint := urlParse .Values.gateway.stores.s3.endpoint -}}
{{- $open := toStrings .Values.networkPolicy.s3.ports -}}
{{- $port := trimPrefix ":" (regexFind ":[0-9]+$" $endpoint.host) | default (ternary "80" "443" (eq $endpoint.scheme "http")) -}}
{{- $service := regexMatch "^[^.:]+(:|$)|[.]svc([.:]|$)" $endpoint.host -}}
{{- if and .Values.networkPolicy.enabled (not (has $port $open)) (or (not $service) (eq (join "," $open) "443")) -}}
  {{- fail (printf "gateway.stores.s3.endpoint has port %s, to which the gateway's NetworkPolicy does not let it out: put it into networkPolicy.s3.ports (of a Service: the port of its Pods)." $port) -}}
{{- end -}}
{{- end -}}

{{/* Where the gateway finds its stores: arguments. */}}
{{- define "agentrun.storeArguments" -}}
{{- $s3 := .Values.gateway.stores.s3 -}}
- --database-url-file=/etc/agentrun/postgresql/url
{{- if .Values.gateway.stores.postgresql.caSecretName }}
- --database-ca-file=/etc/agentrun/postgresql/ca.crt
{{- end }}
- --s3-endpoint={{ $s3.endpoint }}
- --s3-bucket={{ $s3.bucket }}
- --s3-region={{ $s3.region }}
{{- if $s3.virtualHost }}
- --s3-virtual-host
{{- end }}
{{- with $s3.prefix }}
- --s3-prefix={{ . }}
{{- end }}
{{- if $s3.allowHttp }}
- --s3-allow-http
{{- end }}
{{- if $s3.caSecretName }}
- --s3-ca-file=/etc/agentrun/s3/ca.crt
{{- end }}
{{- end -}}

{{/* Their credentials and authorities: files, but for the names that S3's own tools read from the environment. */}}
{{- define "agentrun.storeEnvironment" -}}
{{- $secret := .Values.gateway.stores.s3.secretName -}}
- name: AWS_ACCESS_KEY_ID
  valueFrom: {secretKeyRef: {name: {{ $secret }}, key: AWS_ACCESS_KEY_ID}}
- name: AWS_SECRET_ACCESS_KEY
  valueFrom: {secretKeyRef: {name: {{ $secret }}, key: AWS_SECRET_ACCESS_KEY}}
{{- end -}}

{{- define "agentrun.storeMounts" -}}
- {name: postgresql, mountPath: /etc/agentrun/postgresql, readOnly: true}
{{- if .Values.gateway.stores.s3.caSecretName }}
- {name: s3, mountPath: /etc/agentrun/s3, readOnly: true}
{{- end }}
{{- end -}}

{{- define "agentrun.storeVolumes" -}}
{{- $postgresql := .Values.gateway.stores.postgresql -}}
{{- $s3 := .Values.gateway.stores.s3 -}}
- name: postgresql
  projected:
    defaultMode: 0440
    sources:
      - secret: {name: {{ $postgresql.secretName }}, items: [{key: {{ $postgresql.key }}, path: url}]}
      {{- with $postgresql.caSecretName }}
      - secret: {name: {{ . }}, items: [{key: {{ $postgresql.caKey }}, path: ca.crt}]}
      {{- end }}
{{- with $s3.caSecretName }}
- name: s3
  secret: {secretName: {{ . }}, defaultMode: 0440, items: [{key: {{ $s3.caKey }}, path: ca.crt}]}
{{- end }}
{{- end -}}
