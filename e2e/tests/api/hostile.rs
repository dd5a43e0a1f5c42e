//! Bodies that try to exhaust whoever reads them: refused, and the next request is answered as if nothing had been.

use agentrun_e2e::api_server::ApiServer;
use serde_json::json;

use super::raw::Raw;

fn run(name: &str) -> serde_json::Value {
    json!({
        "apiVersion": "agentrun.dev/v1alpha1", "kind": "AgentRun", "metadata": {"name": name},
        "spec": {"instruction": "x", "model": "small", "source": {"inline": {"files": [{"path": "a", "content": ""}]}}},
    })
}

#[tokio::test]
async fn bodies_that_are_deep_large_or_broken_change_nothing() {
    let server = ApiServer::shared().await;
    let raw = Raw::new(server.client(), &server.namespace("hostile").await, "agentruns");
    let text = serde_json::to_string(&run("hostile")).expect("JSON");
    let with = |instruction: &str| text.replace(r#""instruction":"x""#, &format!(r#""instruction":{instruction}"#)).into_bytes();
    let files =
        |count: usize| format!("[{}]", (0..count).map(|n| format!(r#"{{"path":"{n}","content":""}}"#)).collect::<Vec<_>>().join(","));
    let deep = |depth: usize| format!("{}{}", "[".repeat(depth), "]".repeat(depth));
    for (what, body) in [
        ("a list 9,000 levels deep", with(&deep(9_000))),
        ("a list 100,000 levels deep", with(&deep(100_000))),
        ("4 MiB", with(&format!("\"{}\"", "a".repeat(4 << 20)))),
        ("3,000 files", text.replace(r#"[{"content":"","path":"a"}]"#, &files(3_000)).into_bytes()),
        ("cut short", text.as_bytes()[..text.len() - 5].to_vec()),
        ("no UTF-8 in a field's name", text.replace("\"model\"", "\"mod\u{0}el\"").into_bytes()),
        ("a field twice", text.replace(r#""model":"small""#, r#""model":"small","model":"large""#).into_bytes()),
        ("nothing", Vec::new()),
    ] {
        assert_ne!(body, text.as_bytes(), "{what}: the body is the good one");
        let answer = raw.bytes("POST", format!("{}?fieldValidation=Strict", raw.path), body).await;
        let message = answer.expect_err(what);
        assert!(message.len() < 64 * 1024, "{what}: a refusal of {} bytes", message.len());
    }
    raw.get("hostile").await.expect_err("nothing was stored");
    raw.create(&run("hostile")).await.expect("the next request is answered");
}

/// A run created with a status has none: only our processes write it, through its own resource.
#[tokio::test]
async fn a_status_cannot_be_brought_along() {
    let server = ApiServer::shared().await;
    let raw = Raw::new(server.client(), &server.namespace("status").await, "agentruns");
    let mut object = run("brought");
    object["status"] = json!({"phase": "Succeeded", "finishedAt": "2026-01-01T00:00:00Z"});
    let created = raw.create(&object).await.expect("the run is accepted");
    // What the schema says of a run that nobody has looked at.
    let none = Some(&json!({"observedGeneration": -1}));
    assert_eq!(created.get("status"), none);
    let mut changed = created.clone();
    changed["status"] = object["status"].clone();
    let replaced = raw.replace("brought", &changed, false).await.expect("the status is ignored");
    assert_eq!(replaced.get("status"), none);
}
