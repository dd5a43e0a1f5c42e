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
