//! Who we are on the wire: what the kubeconfig and the flags say.

use std::os::unix::fs::PermissionsExt;

use serde_json::json;

use crate::fake::{Answer, Fake};

#[tokio::test]
async fn an_exec_plugin_gives_the_token() {
    let fake = Fake::new(|_, _| Answer::json(200, &json!({ "items": [] }))).await;
    let plugin = fake.path("login");
    let credential =
        json!({ "apiVersion": "client.authentication.k8s.io/v1", "kind": "ExecCredential", "status": { "token": "from-the-plugin" } });
    std::fs::write(&plugin, format!("#!/bin/sh\necho '{credential}'\n")).expect("written");
    std::fs::set_permissions(&plugin, std::fs::Permissions::from_mode(0o755)).expect("set");
    let exec = |command: &str| {
        json!({ "exec": {
            "apiVersion": "client.authentication.k8s.io/v1", "command": command, "interactiveMode": "Never",
        } })
    };
    fake.user(&exec(plugin.to_str().expect("UTF-8")));
    fake.run(&["list"]).await.with(0);
    assert_eq!(fake.asked()[0].headers["authorization"], "Bearer from-the-plugin");
    fake.user(&exec("/no/such/plugin"));
    fake.run(&["list"]).await.with(3);
    assert_eq!(fake.asked().len(), 1);
}

#[tokio::test]
async fn somebody_else_can_be_acted_as() {
    let fake = Fake::new(|_, _| Answer::json(200, &json!({ "items": [] }))).await;
    fake.run(&["list", "--as", "alice", "--as-group", "a", "--as-group", "b"]).await.with(0);
    let headers = &fake.asked()[0].headers;
    assert_eq!(headers["impersonate-user"], "alice");
    assert_eq!(headers.get_all("impersonate-group").iter().collect::<Vec<_>>(), ["a", "b"]);
}

#[tokio::test]
async fn a_kubeconfig_that_cannot_be_used_is_told() {
    let fake = Fake::new(|_, _| Answer::json(401, &json!({ "kind": "Status", "reason": "Unauthorized", "message": "Unauthorized" }))).await;
    fake.run(&["list"]).await.with(3).says("does not know these credentials");
    fake.run(&["list", "--kubeconfig", "/none"]).await.with(3).says("/none").says("--kubeconfig");
    fake.run(&["list", "--context", "none"]).await.with(3).says("none");
    std::fs::write(fake.path("bad"), "a: [").expect("written");
    fake.run(&["list", "--kubeconfig", "bad"]).await.with(3).says("kubeconfig");
    let closed = Fake::new(|_, _| Answer::text(200, "")).await;
    let config = std::fs::read_to_string(closed.path("kubeconfig")).expect("read").replace(&closed.port.to_string(), "1");
    std::fs::write(closed.path("kubeconfig"), config).expect("written");
    closed.run(&["list"]).await.with(3).says("the cluster does not answer");
    let silent = Fake::new(|_, _| Answer::pieces(vec![crate::fake::Piece::Silence])).await;
    silent.run(&["list", "--request-timeout", "1"]).await.with(3).says("the cluster does not answer");
}

#[tokio::test]
async fn version_and_completion_need_no_cluster() {
    let fake = Fake::new(|_, _| Answer::text(500, "")).await;
    std::fs::remove_file(fake.path("kubeconfig")).expect("removed");
    assert!(fake.run(&["version"]).await.with(0).stdout.starts_with("kubectl-agentrun "));
    for shell in ["bash", "zsh", "fish"] {
        assert!(fake.run(&["completion", shell]).await.with(0).stdout.contains("agentrun"), "{shell}");
    }
    assert!(fake.run(&["--help"]).await.with(0).stdout.contains("Exit status:"));
    assert!(fake.asked().is_empty());
}
