package gitops

import (
	"testing"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/cli-utils/pkg/kstatus/status"
)

// Nothing of ours is shipped for kstatus: the conditions speak for themselves. Helm, kpt and others wait by it.
func TestKstatus(t *testing.T) {
	each(t, func(t *testing.T, object *unstructured.Unstructured) string {
		result, err := status.Compute(object)
		if err != nil {
			t.Fatal(err)
		}
		return result.Status.String()
	}, func(health Health) string { return health.Kstatus })
}

// A policy has no conditions, and what gateways write into its status must not make anybody wait.
func TestKstatusOfPolicies(t *testing.T) {
	spent := map[string]any{"budgets": []any{map[string]any{"period": "Day", "usedPercent": int64(100), "warned": int64(100)}}, "spentText": "Day 100%"}
	for name, objectStatus := range map[string]map[string]any{"as it was applied": nil, "with spending": spent} {
		policy := &unstructured.Unstructured{Object: map[string]any{
			"apiVersion": "agentrun.dev/v1alpha1", "kind": "AgentPolicy",
			"metadata": map[string]any{"name": "default", "namespace": "team-a", "generation": int64(3)},
		}}
		if objectStatus != nil {
			policy.Object["status"] = objectStatus
		}
		result, err := status.Compute(policy)
		if err != nil || result.Status != status.CurrentStatus {
			t.Errorf("%s: %v, %v", name, result, err)
		}
	}
}
