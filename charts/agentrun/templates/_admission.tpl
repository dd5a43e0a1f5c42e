{{/* The version in which the cluster serves MutatingAdmissionPolicy, or nothing. Rendering without a cluster: --api-versions. */}}
{{- define "agentrun.mutatingAdmission" -}}
{{- if .Capabilities.APIVersions.Has "admissionregistration.k8s.io/v1/MutatingAdmissionPolicy" -}}
v1
{{- else if .Capabilities.APIVersions.Has "admissionregistration.k8s.io/v1beta1/MutatingAdmissionPolicy" -}}
v1beta1
{{- end -}}
{{- end -}}
