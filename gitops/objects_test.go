// Package gitops tests what we ship for GitOps tools, with the tools' own code where it can be had, on objects as the operator
// writes them: objects.json comes from operator/tests/reconcile/gitops.rs.
package gitops

import (
	"encoding/json"
	"os"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
)

// Health is what each tool should say.
type Health struct{ Argo, Flux, Kstatus string }

var (
	underWay = Health{"Progressing", "InProgress", "InProgress"}
	asked    = Health{"Suspended", "InProgress", "InProgress"}
	done     = Health{"Healthy", "Current", "Current"}
	failed   = Health{"Degraded", "Failed", "Failed"}
)

// By phase; "" is a run that the operator has not looked at yet: the schema's default says that nobody has observed it.
var expected = map[string]Health{
	"":                 underWay,
	"Pending":          underWay,
	"Queued":           underWay,
	"Starting":         underWay,
	"Running":          underWay,
	"AwaitingApproval": asked,
	"Cancelling":       underWay,
	"Succeeded":        done,
	"Cancelled":        done,
	"Failed":           failed,
}

// One object, as the API server would give it.
type row struct {
	name   string
	object *unstructured.Unstructured
	want   Health
}

func rows(t *testing.T) []row {
	t.Helper()
	text, err := os.ReadFile("objects.json")
	if err != nil {
		t.Fatal(err)
	}
	var list []struct {
		Name   string          `json:"name"`
		Object json.RawMessage `json:"object"`
	}
	if err := json.Unmarshal(text, &list); err != nil {
		t.Fatal(err)
	}
	seen := map[string]bool{}
	var rows []row
	for _, entry := range list {
		object := &unstructured.Unstructured{}
		// Numbers become int64, as in a client.
		if err := object.UnmarshalJSON(entry.Object); err != nil {
			t.Fatalf("%s: %v", entry.Name, err)
		}
		phase, _, _ := unstructured.NestedString(object.Object, "status", "phase")
		want, known := expected[phase]
		if !known {
			t.Fatalf("%s: phase %q has no row here", entry.Name, phase)
		}
		seen[phase] = true
		rows = append(rows, row{entry.Name, object, want})
		// The same before the operator has looked at a change of its spec, such as another time to live.
		changed := object.DeepCopy()
		changed.SetGeneration(object.GetGeneration() + 1)
		if phase != "" {
			rows = append(rows, row{entry.Name + ", changed since", changed, Health{want.Argo, "InProgress", "InProgress"}})
		}
	}
	for phase := range expected {
		if !seen[phase] {
			t.Errorf("objects.json has no object in phase %q", phase)
		}
	}
	return rows
}

// each runs a test for every object.
func each(t *testing.T, judge func(t *testing.T, object *unstructured.Unstructured) string, want func(Health) string) {
	for _, row := range rows(t) {
		t.Run(strings.ReplaceAll(row.name, "/", " "), func(t *testing.T) {
			if got := judge(t, row.object); got != want(row.want) {
				t.Errorf("%s instead of %s", got, want(row.want))
			}
		})
	}
}
