//! Who submitted a run cannot be chosen, and the same manifest applied again and again writes nothing: the chart's admission
//! policies as helm renders them, on a real API server.

use std::time::{Duration, Instant};

use agentrun_crds::AgentRun;
use agentrun_e2e::api_server::ApiServer;
use agentrun_e2e::chart::{output, render};
use kube::Api;
use kube::api::{Patch, PatchParams};
use serde_json::{Value, json};

use super::raw::Raw;

const GATEWAY: &str = "system:serviceaccount:agentrun-system:agentrun-gateway";
const APPLIED: usize = 100;

fn manifest(name: &str, submitted_by: Option<&str>) -> Value {
    let mut run = json!({
        "apiVersion": "agentrun.dev/v1alpha1", "kind": "AgentRun", "metadata": {"name": name},
        "spec": {"instruction": "x", "model": "small", "source": {"inline": {"files": [{"path": "a", "content": ""}]}}},
    });
    if let Some(submitter) = submitted_by {
        run["spec"]["submittedBy"] = json!(submitter);
    }
    run
}

fn kubectl(server: &ApiServer, arguments: &[&str], input: &Value) -> Result<String, String> {
    let kubeconfig = server.kubeconfig_path();
    let all = [&["--kubeconfig", kubeconfig.to_str().expect("a path in UTF-8")], arguments].concat();
    output("kubectl", &all, input.to_string().as_bytes()).map_err(|error| error.to_string())
}

/// Install the chart's policy, for one namespace of the shared server only.
async fn install(server: &ApiServer, namespace: &str, arguments: &[&str]) {
    let objects = render(server, "submitter.yaml", arguments).expect("helm renders what kubectl knows");
    assert_eq!(objects.len(), 2, "a policy and its binding");
    for mut object in objects {
        object["metadata"]["name"] = json!(namespace);
        if object["spec"]["policyName"].is_string() {
            object["spec"]["policyName"] = json!(namespace);
        } else {
            object["spec"]["matchConstraints"]["namespaceSelector"] = json!({"matchLabels": {"kubernetes.io/metadata.name": namespace}});
        }
        kubectl(server, &["create", "-f", "-"], &object).expect("the API server takes it");
    }
}

fn raw(server: &ApiServer, namespace: &str, user: &str) -> Raw {
    Raw::new(server.client_as(user, &["system:masters"]), namespace, "agentruns")
}

/// A new policy takes a moment to be asked.
async fn until_asked(raw: &Raw, asked: impl Fn(&Result<Value, String>) -> bool) {
    let begun = Instant::now();
    loop {
        let answer = raw.try_create(&manifest("probe", Some("somebody-else"))).await;
        if asked(&answer) {
            return;
        }
        assert!(begun.elapsed() < Duration::from_secs(60), "the policy is never asked: {answer:?}");
        tokio::time::sleep(Duration::from_millis(100)).await; // only asking tells
    }
}

#[tokio::test]
async fn the_submitter_is_stamped() {
    let server = ApiServer::shared().await;
    let namespace = server.namespace("submitter").await;
    install(server, &namespace, &["--api-versions", "admissionregistration.k8s.io/v1/MutatingAdmissionPolicy"]).await;
    let anna = raw(server, &namespace, "anna");
    until_asked(&anna, |answer| answer.as_ref().is_ok_and(|run| run["spec"]["submittedBy"] == "anna")).await;

    let gateway = raw(server, &namespace, GATEWAY);
    // who, what the manifest says, what is stored
    for (row, (raw, said, stored)) in
        [(&anna, None, "anna"), (&anna, Some("bert"), "anna"), (&gateway, Some("bert"), "bert"), (&gateway, None, GATEWAY)]
            .into_iter()
            .enumerate()
    {
        let run = raw.create(&manifest(&format!("run-{row}"), said)).await.expect("a run");
        assert_eq!(run["spec"]["submittedBy"], stored, "row {row}");
    }

    // By the tool that people use, and by another's hand later.
    let applied = manifest("applied", Some("bert"));
    let apply = ["apply", "-n", &namespace, "--as=anna", "--as-group=system:masters", "-f", "-"];
    kubectl(server, &apply, &applied).expect("applied");
    assert_eq!(anna.get("applied").await.expect("a run")["spec"]["submittedBy"], "anna");
    let refused = kubectl(server, &apply, &manifest("applied", Some("carla"))).expect_err("it never changes");
    assert!(refused.contains("spec.submittedBy") && refused.contains("immutable"), "{refused}");
    let mut whole = anna.get("run-0").await.expect("a run");
    whole["spec"].as_object_mut().expect("a spec").remove("submittedBy");
    whole["spec"]["cancel"] = json!(true);
    let replaced = raw(server, &namespace, "bert").replace("run-0", &whole, false).await.expect("a manifest need not repeat it");
    assert_eq!(replaced["spec"]["submittedBy"], "anna");
}

/// What GitOps tools do all day. In between the operator has written what it writes.
#[tokio::test]
async fn the_same_manifest_applied_again_writes_nothing() {
    let server = ApiServer::shared().await;
    let namespace = server.namespace("applied").await;
    install(server, &namespace, &["--api-versions", "admissionregistration.k8s.io/v1/MutatingAdmissionPolicy"]).await;
    let tool = "system:serviceaccount:gitops:tool";
    let admin = raw(server, &namespace, tool);
    until_asked(&admin, |answer| answer.as_ref().is_ok_and(|run| run["spec"]["submittedBy"] == tool)).await;

    let runs: Api<AgentRun> = Api::namespaced(server.client_as(tool, &["system:masters"]), &namespace);
    let apply = ["apply", "-n", &namespace, "--as", tool, "--as-group=system:masters", "-f", "-"];
    for name in ["server-side", "client-side"] {
        let manifest = manifest(name, None);
        let once = async || match name {
            "server-side" => {
                runs.patch(name, &PatchParams::apply("tool").force(), &Patch::Apply(&manifest)).await.expect("applied");
            }
            _ => {
                kubectl(server, &apply, &manifest).expect("applied");
            }
        };
        once().await;
        let hold = json!({"metadata": {"finalizers": ["agentrun.dev/cleanup"]}});
        runs.patch(name, &PatchParams::default(), &Patch::Merge(hold)).await.expect("held");
        let status = json!({"status": {"phase": "Pending", "observedGeneration": 1}});
        runs.patch_status(name, &PatchParams::default(), &Patch::Merge(status)).await.expect("a status");
        let before = admin.get(name).await.expect("a run");
        // kubectl takes a process each time.
        for _ in 0..if name == "server-side" { APPLIED } else { APPLIED / 10 } {
            once().await;
        }
        let after = admin.get(name).await.expect("a run");
        assert_eq!(after["metadata"]["resourceVersion"], before["metadata"]["resourceVersion"], "{name}");
        assert_eq!(after["spec"]["submittedBy"], tool, "{name}");
    }
}

#[tokio::test]
async fn where_nothing_can_be_stamped_a_wrong_submitter_is_refused() {
    let server = ApiServer::shared().await;
    let namespace = server.namespace("unstamped").await;
    install(server, &namespace, &[]).await;
    let anna = raw(server, &namespace, "anna");
    until_asked(&anna, Result::is_err).await;
    let refused = anna.create(&manifest("wrong", Some("bert"))).await.expect_err("it is another's name");
    assert!(refused.contains("spec.submittedBy") && refused.contains("anna"), "{refused}");
    for (name, said) in [("own", Some("anna")), ("none", None)] {
        anna.create(&manifest(name, said)).await.expect("it says nothing wrong");
    }
    raw(server, &namespace, GATEWAY).create(&manifest("for-bert", Some("bert"))).await.expect("the gateway has asked who it is");
}
