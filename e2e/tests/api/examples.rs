//! Every manifest of ours in `examples/` is accepted as it stands; only its namespace is another.

use std::path::Path;

use agentrun_e2e::api_server::ApiServer;
use serde::Deserialize;
use serde_json::Value;

use super::raw::Raw;

#[tokio::test]
async fn examples_are_accepted() {
    let server = ApiServer::shared().await;
    let namespace = server.namespace("examples").await;
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../examples");
    let mut judged = 0;
    for entry in std::fs::read_dir(folder).expect("a folder").map(|entry| entry.expect("an entry").path()) {
        if entry.extension().is_none_or(|extension| extension != "yaml") {
            continue;
        }
        let text = std::fs::read_to_string(&entry).expect("text");
        for document in serde_yaml::Deserializer::from_str(&text) {
            let mut object = Value::deserialize(document).expect("YAML");
            let plural = match (object["apiVersion"].as_str(), object["kind"].as_str()) {
                (Some("agentrun.dev/v1alpha1"), Some("AgentRun")) => "agentruns",
                (Some("agentrun.dev/v1alpha1"), Some("AgentPolicy")) => "agentpolicies",
                (Some("agentrun.dev/v1alpha1"), Some("ModelProvider")) => "modelproviders",
                _ => continue,
            };
            object["metadata"]["namespace"] = namespace.clone().into();
            let answer = Raw::new(server.client(), &namespace, plural).try_create(&object).await;
            assert!(answer.is_ok(), "{}: {answer:?}", entry.display());
            judged += 1;
        }
    }
    assert!(judged >= 5, "only {judged} manifests were judged");
}
