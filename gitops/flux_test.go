package gitops

import (
	"os"
	"testing"

	"github.com/google/cel-go/cel"
	"github.com/google/cel-go/ext"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/yaml"
)

type check struct {
	APIVersion string `json:"apiVersion"`
	Kind       string `json:"kind"`
	InProgress string `json:"inProgress"`
	Failed     string `json:"failed"`
	Current    string `json:"current"`
}

// holds evaluates an expression in the environment that Flux makes (github.com/fluxcd/pkg/runtime/cel): the object's own fields
// are the variables, so a field that is not there is an error.
func holds(t *testing.T, expression string, object *unstructured.Unstructured) (bool, error) {
	t.Helper()
	env, err := cel.NewEnv(cel.HomogeneousAggregateLiterals(), cel.EagerlyValidateDeclarations(true), cel.DefaultUTCTimeZone(true),
		cel.CrossTypeNumericComparisons(true), cel.OptionalTypes(), ext.Strings(), ext.Sets(), ext.Encoders())
	if err != nil {
		t.Fatal(err)
	}
	parsed, issues := env.Parse(expression)
	if issues.Err() != nil {
		t.Fatal(issues.Err())
	}
	program, err := env.Program(parsed)
	if err != nil {
		t.Fatal(err)
	}
	value, _, err := program.ContextEval(t.Context(), object.Object)
	if err != nil {
		return false, err
	}
	return value.Value().(bool), nil
}

// The expressions of flux/kustomization.yaml, in the order of Flux' RFC 0009: a change that was not observed, in progress,
// failed, current; nothing of these is in progress.
func TestFlux(t *testing.T) {
	text, err := os.ReadFile("flux/kustomization.yaml")
	if err != nil {
		t.Fatal(err)
	}
	var kustomization struct {
		Spec struct {
			HealthCheckExprs []check `json:"healthCheckExprs"`
		} `json:"spec"`
	}
	if err := yaml.Unmarshal(text, &kustomization); err != nil {
		t.Fatal(err)
	}
	checks := kustomization.Spec.HealthCheckExprs
	if len(checks) != 1 || checks[0].APIVersion != "agentrun.dev/v1alpha1" || checks[0].Kind != "AgentRun" {
		t.Fatalf("not the one check of AgentRuns: %+v", checks)
	}
	each(t, func(t *testing.T, object *unstructured.Unstructured) string {
		observed, found, _ := unstructured.NestedInt64(object.Object, "status", "observedGeneration")
		if found && observed != object.GetGeneration() {
			return "InProgress"
		}
		for _, step := range []struct{ expression, health string }{
			{checks[0].InProgress, "InProgress"}, {checks[0].Failed, "Failed"}, {checks[0].Current, "Current"},
		} {
			yes, err := holds(t, step.expression, object)
			if err != nil {
				t.Log(err)
				return "Unknown"
			}
			if yes {
				return step.health
			}
		}
		return "InProgress"
	}, func(health Health) string { return health.Flux })
}
