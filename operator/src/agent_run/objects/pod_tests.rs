//! The Pod's walls, asserted one by one on what is sent to the API server.

use serde_json::{Value, json};

use super::*;

pub fn resolved() -> Resolved {
    serde_json::from_value(json!({
        "policySha256": "00", "image": "tools:1", "maxSteps": 12, "wallTimeSeconds": 180, "startupDeadlineSeconds": 300,
        "model": {"name": "small", "provider": "p", "model": "m", "maxOutputTokens": 4096}, "budget": {"requests": 14},
        "allowedPaths": ["**"], "checks": [], "hostUsers": "Isolated", "cpu": "2", "memory": "3Gi", "workspace": "4Gi",
    }))
    .unwrap()
}

fn built(change: impl FnOnce(&mut Resolved)) -> Value {
    let mut resolved = resolved();
    change(&mut resolved);
    let owner = Owner { namespace: "team-a".into(), name: "fix".into(), uid: "u-1".into() };
    let gateway = Gateway {
        namespace: "agentrun-system".into(),
        service: "agentrun-gateway".into(),
        address: "10.0.0.1".into(),
        selector: BTreeMap::new(),
    };
    let image = RunnerImage { name: "runner:1".into(), pull_policy: "IfNotPresent".into() };
    let probed = Probed { api_server: "10.96.0.1:443".parse().unwrap(), name_server: None, internet: None };
    serde_json::to_value(pod(&owner, 1, &resolved, &gateway, &image, &probed)).unwrap()
}

fn containers(pod: &Value) -> Vec<&Value> {
    let list = |field: &str| pod["spec"][field].as_array().unwrap().iter();
    list("initContainers").chain(list("containers")).collect()
}

fn mounts(container: &Value) -> Vec<(&str, &str, bool)> {
    let text = |value: &'_ Value| value.as_str().unwrap().to_owned();
    let list = container["volumeMounts"].as_array().unwrap().iter();
    list.map(|m| {
        let (name, path): (&'static str, &'static str) = (text(&m["name"]).leak(), text(&m["mountPath"]).leak());
        (name, path, m["readOnly"].as_bool().unwrap())
    })
    .collect()
}

#[test]
fn every_container_is_confined() {
    let pod = built(|_| ());
    let found = containers(&pod);
    let names: Vec<&str> = found.iter().map(|c| c["name"].as_str().unwrap()).collect();
    assert_eq!(names, ["install", "executor", "runner"]);
    for (container, id) in found.iter().zip([65532, 65533, 65532]) {
        assert_eq!(
            container["securityContext"],
            json!({
                "runAsUser": id, "runAsGroup": id, "runAsNonRoot": true, "privileged": false, "allowPrivilegeEscalation": false,
                "readOnlyRootFilesystem": true, "capabilities": {"drop": ["ALL"]}, "seccompProfile": {"type": "RuntimeDefault"},
            })
        );
        for resource in ["cpu", "memory", "ephemeral-storage"] {
            assert!(container["resources"]["limits"][resource].is_string(), "{resource} of {}", container["name"]);
            assert!(container["resources"]["requests"][resource].is_string(), "{resource} of {}", container["name"]);
        }
        for absent in ["envFrom", "ports", "lifecycle", "volumeDevices", "stdin", "tty"] {
            assert!(container.get(absent).is_none(), "{absent} of {}", container["name"]);
        }
    }
    assert_eq!(found[1]["restartPolicy"], "Always");
    assert_eq!(found[1]["resources"]["limits"], json!({"cpu": "2", "memory": "3Gi", "ephemeral-storage": "4Gi"}));
    let asked = json!({"cpu": "100m", "memory": (3u64 << 27).to_string(), "ephemeral-storage": (1u64 << 29).to_string()});
    assert_eq!(found[1]["resources"]["requests"], asked);
}

#[test]
fn the_pod_has_no_other_door() {
    let pod = built(|_| ());
    let spec = &pod["spec"];
    assert_eq!(spec["securityContext"]["fsGroup"], 65532);
    assert_eq!(spec["securityContext"]["runAsNonRoot"], true);
    assert_eq!(spec["securityContext"]["seccompProfile"]["type"], "RuntimeDefault");
    for (field, value) in [
        ("restartPolicy", json!("Never")),
        ("automountServiceAccountToken", json!(false)),
        ("enableServiceLinks", json!(false)),
        ("shareProcessNamespace", json!(false)),
        ("hostUsers", json!(false)),
        ("serviceAccountName", json!("agentrun-sandbox")),
        ("dnsPolicy", json!("None")),
        ("dnsConfig", json!({"nameservers": ["127.0.0.1"]})),
        ("hostAliases", json!([{"ip": "10.0.0.1", "hostnames": ["agentrun-gateway.agentrun-system.svc"]}])),
        ("activeDeadlineSeconds", json!(300 + 180 + 600)),
        ("terminationGracePeriodSeconds", json!(5)),
    ] {
        assert_eq!(spec[field], value, "{field}");
    }
    for absent in ["hostNetwork", "hostPID", "hostIPC", "nodeName", "tolerations", "priorityClassName", "imagePullSecrets", "affinity"] {
        assert!(spec.get(absent).is_none(), "{absent}");
    }
    assert!(spec.get("runtimeClassName").is_none());
    let labels = json!({"agentrun.dev/component": "sandbox", "agentrun.dev/run-uid": "u-1"});
    assert_eq!(pod["metadata"]["labels"], labels);
    assert_eq!(pod["metadata"]["name"], names::child_name("u-1", 1));
    assert_eq!(pod["metadata"]["ownerReferences"][0]["controller"], true);
}

#[test]
fn the_policy_decides_user_namespace_and_runtime() {
    let shared = built(|r| {
        r.host_users = HostUsers::Shared;
        r.runtime_class_name = Some("gvisor".into());
    });
    assert!(shared["spec"].get("hostUsers").is_none());
    assert_eq!(shared["spec"]["runtimeClassName"], "gvisor");
}

#[test]
fn secrets_are_mounted_in_the_runner_only() {
    let pod = built(|_| ());
    let found = containers(&pod);
    assert_eq!(mounts(found[0]), [("bin", "/agentrun/bin", false)]);
    assert_eq!(
        mounts(found[1]),
        [
            ("bin", "/agentrun/bin", true),
            ("socket", "/agentrun/socket", true),
            ("workspace", "/workspace", false),
            ("executor-tmp", "/tmp", false)
        ]
    );
    assert_eq!(
        mounts(found[2]),
        [
            ("socket", "/agentrun/socket", false),
            ("ticket", "/agentrun/ticket", true),
            ("token", "/agentrun/token", true),
            ("runner-tmp", "/tmp", false)
        ]
    );
    let volumes = pod["spec"]["volumes"].as_array().unwrap();
    for volume in volumes {
        let limited = volume["emptyDir"]["sizeLimit"].is_string();
        let ours = ["ticket", "token"].contains(&volume["name"].as_str().unwrap());
        assert!(limited != ours, "{volume}");
    }
    let ticket = volumes.iter().find(|v| v["name"] == "ticket").unwrap();
    assert_eq!(ticket["secret"]["secretName"], names::child_name("u-1", 1));
    assert_eq!(ticket["secret"]["defaultMode"], 0o440);
    let token = volumes.iter().find(|v| v["name"] == "token").unwrap();
    let projection = &token["projected"]["sources"][0]["serviceAccountToken"];
    assert_eq!((&projection["audience"], &projection["path"]), (&json!("agentrun-gateway-exchange"), &json!("token")));
    assert_eq!(token["projected"]["defaultMode"], 0o440);
}

#[test]
fn commands_are_ours() {
    let pod = built(|_| ());
    let found = containers(&pod);
    assert_eq!(found[0]["command"], json!(["/executor", "install", "/agentrun/bin/executor"]));
    assert_eq!(
        found[1]["command"],
        json!(["/agentrun/bin/executor", "serve", "--socket", "/agentrun/socket/executor.sock", "--root", "/workspace"])
    );
    assert_eq!(
        found[2]["command"],
        json!([
            "/runner",
            "--gateway",
            "https://agentrun-gateway.agentrun-system.svc:8443",
            "--ticket-dir",
            "/agentrun/ticket",
            "--pod-token",
            "/agentrun/token/token",
            "--socket",
            "/agentrun/socket/executor.sock",
            "--fenced=apiServer=tcp/443/10.96.0.1",
            "--fenced=node=tcp/10250/$(NODE_ADDRESS)",
            "--fenced=pod=tcp/7443/10.0.0.1",
            "--fenced=metadata=tcp/80/169.254.169.254"
        ])
    );
    assert_eq!((&found[0]["image"], &found[1]["image"], &found[2]["image"]), (&json!("runner:1"), &json!("tools:1"), &json!("runner:1")));
    assert!(found.iter().all(|c| c.get("args").is_none()));
    assert_eq!(found[2]["env"], json!([{"name": "NODE_ADDRESS", "valueFrom": {"fieldRef": {"fieldPath": "status.hostIP"}}}]));
    assert!(found[..2].iter().all(|c| c.get("env").is_none()));
}
