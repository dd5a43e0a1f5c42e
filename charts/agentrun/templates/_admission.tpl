{{/* The version in which the cluster serves MutatingAdmissionPolicy, or nothing. Rendering without a cluster: --api-versions. */}}
{{- define "agentrun.mutatingAdmission" -}}
{{- if .Capabilities.APIVersions.Has "admissionregistration.k8s.io/v1/MutatingAdmissionPolicy" -}}
v1
{{- else if .Capabilities.APIVersions.Has "admissionregistration.k8s.io/v1beta1/MutatingAdmissionPolicy" -}}
v1beta1
{{- end -}}
{{- end -}}

{{/* The name under which one of our ServiceAccounts is known: `include "agentrun.username" (list . "gateway")`, quoted for CEL. */}}
{{- define "agentrun.username" -}}
{{- printf "system:serviceaccount:%s:agentrun-%s" (index . 0).Release.Namespace (index . 1) | squote -}}
{{- end -}}

{{/* Head of a ValidatingAdmissionPolicy: `include "agentrun.wall" (list . "agentrun-sandbox-pod")`. */}}
{{- define "agentrun.wall" -}}
apiVersion: admissionregistration.k8s.io/v1
kind: ValidatingAdmissionPolicy
metadata:
  name: {{ index . 1 }}
  labels:
    {{- include "agentrun.labels" (list (index . 0) "admission") | nindent 4 }}
{{- end -}}

{{/* Its binding, which refuses: `include "agentrun.wallBinding" (list . "agentrun-sandbox-pod")`. */}}
{{- define "agentrun.wallBinding" -}}
apiVersion: admissionregistration.k8s.io/v1
kind: ValidatingAdmissionPolicyBinding
metadata:
  name: {{ index . 1 }}
  labels:
    {{- include "agentrun.labels" (list (index . 0) "admission") | nindent 4 }}
spec:
  policyName: {{ index . 1 }}
  validationActions: [Deny]
{{- end -}}

{{/* The matchConstraints of rules about sandboxes as they are made. Other Pods never meet these rules. */}}
{{- define "agentrun.newSandboxes" -}}
objectSelector:
  matchExpressions:
    - {key: agentrun.dev/component, operator: Exists}
resourceRules:
  - {apiGroups: [""], apiVersions: [v1], operations: [CREATE], resources: [pods], scope: Namespaced}
{{- end -}}

{{/* What the operator calls a sandbox, quoted for CEL. Where the API server shows no labels, a sandbox is known by it. */}}
{{- define "agentrun.sandboxName" -}}
'^run-[0-9a-f]{16}-[1-9][0-9]*(-[a-z]+)?$'
{{- end -}}

{{/* Whether a securityContext, which may be absent, has a seccomp profile: `include "agentrun.seccomp" "c.?securityContext"`. */}}
{{- define "agentrun.seccomp" -}}
({{ . }}.?seccompProfile.?type.orValue('') == 'RuntimeDefault' || ({{ . }}.?seccompProfile.?type.orValue('') == 'Localhost' &&
{{ . }}.?seccompProfile.?localhostProfile.orValue('').startsWith('agentrun/')))
{{- end -}}

{{/* The labels that make a Pod a sandbox, as a list for CEL. */}}
{{- define "agentrun.sandboxLabels" -}}
['agentrun.dev/component', 'agentrun.dev/run-uid']
{{- end -}}

{{/* The fields of an AgentRun's status that only one of the two writes: `include "agentrun.statusOf" "operator"`, a list in JSON. Both
write budget (run-budget.yaml says what) and the texts that show it. */}}
{{- define "agentrun.statusOf" -}}
{{- get (dict
  "operator" (list "conditions" "observedGeneration" "phase" "resolved" "attempt" "podRef" "ticketSha256" "startedAt" "finishedAt" "earlier")
  "gateway" (list "exchange" "approvals" "nextApprovalId" "approvalTotals" "waitedSeconds" "awaitingSince" "source" "sourceFailure" "artifacts" "result" "pendingApprovals")
  ) . | toJson -}}
{{- end -}}
