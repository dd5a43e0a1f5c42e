package gitops

import (
	"context"
	"encoding/json"
	"os"
	"strings"
	"testing"
	"time"

	lua "github.com/yuin/gopher-lua"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	luajson "layeh.com/gopher-json"
	"sigs.k8s.io/yaml"
)

const customization = "argocd/resource_customizations/agentrun.dev/AgentRun/"

func read(t *testing.T, path string) string {
	t.Helper()
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// run runs a script as Argo CD does: in the same interpreter, with the object as `obj`, few libraries, and a second of time.
func run(t *testing.T, script string, object *unstructured.Unstructured, into any) {
	t.Helper()
	state := lua.NewState(lua.Options{SkipOpenLibs: true})
	defer state.Close()
	for name, open := range map[string]lua.LGFunction{lua.BaseLibName: lua.OpenBase, lua.TabLibName: lua.OpenTable} {
		if err := state.CallByParam(lua.P{Fn: state.NewFunction(open), NRet: 0, Protect: true}, lua.LString(name)); err != nil {
			t.Fatal(err)
		}
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Second)
	defer cancel()
	state.SetContext(ctx)
	text, err := object.MarshalJSON()
	if err != nil {
		t.Fatal(err)
	}
	value, err := luajson.Decode(state, text)
	if err != nil {
		t.Fatal(err)
	}
	state.SetGlobal("obj", value)
	if err := state.DoString(script); err != nil {
		t.Fatal(err)
	}
	answer, err := luajson.Encode(state.Get(-1))
	if err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(answer, into); err != nil {
		t.Fatalf("%s: %v", answer, err)
	}
}

func TestArgoHealth(t *testing.T) {
	script := read(t, customization+"health.lua")
	each(t, func(t *testing.T, object *unstructured.Unstructured) string {
		var health struct{ Status, Message string }
		run(t, script, object, &health)
		if health.Message == "" {
			t.Error("no message")
		}
		return health.Status
	}, func(health Health) string { return health.Argo })
}

func TestArgoActions(t *testing.T) {
	discovery, cancel := read(t, customization+"actions/discovery.lua"), read(t, customization+"actions/cancel/action.lua")
	for _, row := range rows(t) {
		t.Run(strings.ReplaceAll(row.name, "/", " "), func(t *testing.T) {
			var offered map[string]struct{ Disabled bool }
			run(t, discovery, row.object, &offered)
			asked, _, _ := unstructured.NestedBool(row.object.Object, "spec", "cancel")
			over := row.want.Argo == "Healthy" || row.want.Argo == "Degraded"
			if len(offered) != 1 || offered["cancel"].Disabled != (over || asked) {
				t.Errorf("offered: %+v", offered)
			}
			changed := &unstructured.Unstructured{}
			run(t, cancel, row.object, &changed.Object)
			want := row.object.DeepCopy()
			if err := unstructured.SetNestedField(want.Object, true, "spec", "cancel"); err != nil {
				t.Fatal(err)
			}
			got, _ := json.Marshal(changed.Object["spec"])
			expected, _ := json.Marshal(want.Object["spec"])
			if string(got) != string(expected) {
				t.Errorf("cancel makes %s", got)
			}
		})
	}
}

// The ConfigMap that people apply has the same scripts.
func TestArgoConfigMap(t *testing.T) {
	var config struct{ Data map[string]string }
	if err := yaml.Unmarshal([]byte(read(t, "argocd/argocd-cm.yaml")), &config); err != nil {
		t.Fatal(err)
	}
	if got := config.Data["resource.customizations.health.agentrun.dev_AgentRun"]; got != read(t, customization+"health.lua") {
		t.Errorf("another health.lua: %s", got)
	}
	var actions struct {
		Discovery   string `json:"discovery.lua"`
		Definitions []struct {
			Name   string `json:"name"`
			Action string `json:"action.lua"`
		} `json:"definitions"`
	}
	if err := yaml.Unmarshal([]byte(config.Data["resource.customizations.actions.agentrun.dev_AgentRun"]), &actions); err != nil {
		t.Fatal(err)
	}
	if actions.Discovery != read(t, customization+"actions/discovery.lua") {
		t.Errorf("another discovery.lua: %s", actions.Discovery)
	}
	if len(actions.Definitions) != 1 || actions.Definitions[0].Name != "cancel" ||
		actions.Definitions[0].Action != read(t, customization+"actions/cancel/action.lua") {
		t.Errorf("other actions: %+v", actions.Definitions)
	}
}
