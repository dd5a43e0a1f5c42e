//! What `kubectl get ar` shows: asked for as kubectl asks, as a table.

use agentrun_e2e::api_server::ApiServer;
use serde_json::{Value, json};

use super::raw::Raw;

async fn table(raw: &Raw, selector: &str) -> Value {
    let uri = format!("{}?fieldSelector={selector}", raw.path);
    let request = http::Request::get(uri).header("accept", "application/json;as=Table;v=v1;g=meta.k8s.io").body(Vec::new());
    raw.client.request(request.expect("a request")).await.expect("a table")
}

#[tokio::test]
async fn a_run_is_one_readable_line() {
    let server = ApiServer::shared().await;
    let raw = Raw::new(server.client(), &server.namespace("columns").await, "agentruns");
    let mut run = raw
        .create(&json!({
            "apiVersion": "agentrun.dev/v1alpha1", "kind": "AgentRun", "metadata": {"name": "one"},
            "spec": {"instruction": "x", "model": "small", "source": {"inline": {"files": [{"path": "a", "content": ""}]}}},
        }))
        .await
        .expect("a run");
    run["status"] = json!({
        "phase": "Failed", "finishedAt": "2026-01-01T00:00:00Z", "attempt": 1, "podRef": {"name": "run-1", "uid": "u"},
        "requestsText": "2/10", "costText": "0.0123", "pendingApprovals": 1,
        "conditions": [
            {"type": "Accepted", "status": "True", "reason": "Accepted", "message": "", "lastTransitionTime": "2026-01-01T00:00:00Z"},
            {"type": "Complete", "status": "True", "reason": "SandboxLost", "message": "", "lastTransitionTime": "2026-01-01T00:00:00Z"},
        ],
    });
    raw.replace("one", &run, true).await.expect("a status");

    let shown = table(&raw, "").await;
    let narrow = |definition: &&Value| definition["priority"] == 0;
    let columns: Vec<_> = shown["columnDefinitions"].as_array().expect("columns").iter().collect();
    let names: Vec<_> = columns.iter().copied().filter(narrow).map(|column| column["name"].as_str().unwrap_or_default()).collect();
    assert_eq!(names, ["Name", "Phase", "Model", "Requests", "Approvals", "Age"]);
    let wide: Vec<_> = columns.iter().filter(|column| !narrow(column)).map(|column| column["name"].as_str().unwrap_or_default()).collect();
    assert_eq!(wide, ["Pod", "Reason", "Cost"]);
    let cells = shown["rows"][0]["cells"].as_array().expect("cells");
    assert_eq!(cells[..5], [json!("one"), json!("Failed"), json!("small"), json!("2/10"), json!(1)]);
    assert_eq!(cells[6..], [json!("run-1"), json!("SandboxLost"), json!("0.0123")]);

    // Runs can be selected by phase and model.
    assert_eq!(table(&raw, "status.phase%3DFailed,spec.model%3Dsmall").await["rows"].as_array().map(Vec::len), Some(1));
    assert_eq!(table(&raw, "status.phase%3DRunning").await["rows"].as_array().map(Vec::len), Some(0));
}
