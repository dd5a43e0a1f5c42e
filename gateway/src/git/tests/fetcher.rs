//! From a run that waits to what its status says, once.

use agentrun_crds::AgentRun;
use agentrun_scripted_model::git_host::GitHost;
use serde_json::{Value, json};

use super::super::Fetcher;
use super::{AUTHORIZATION, KEY, Server, shop};
use crate::fixtures::{self, RUN_UID};
use crate::leader::Leader;
use crate::store::Digest;

fn waiting(server: &Server, path: &str, secret: &str) -> Value {
    let mut run = fixtures::run_json();
    run["metadata"]["namespace"] = "team".into();
    run["spec"]["source"] = json!({"git": {"url": format!("{}{path}", server.url), "ref": "main"}});
    for gone in ["exchange", "podRef", "budget", "attempt", "ticketSha256"] {
        run["status"].as_object_mut().unwrap().remove(gone);
    }
    run["status"]["resolved"]["git"] = json!({
        "secret": secret, "addresses": "Private", "maxBytes": 1 << 20, "timeoutSeconds": 60, "symlinks": "Refuse", "submodules": "Refuse",
    });
    run
}

#[tokio::test(flavor = "multi_thread")]
async fn a_waiting_run_gets_its_source_or_a_reason() {
    let root = tempfile::tempdir().unwrap();
    let (_, second) = shop(root.path());
    let server = Server::start(GitHost::new(root.path(), AUTHORIZATION).router()).await;
    for (path, secret, fetched) in [("/private/shop.git", "private", true), ("/private/shop.git", "wrong", false)] {
        server.api.lock().run = waiting(&server, path, secret);
        let run = server.api.run();
        server.api.edit("/status/phase", json!("Pending"));
        let gateway = fixtures::gateway(&server.api, "gateway-0");
        let state = &gateway.state;
        let folder = tempfile::tempdir().unwrap();
        let (_leads, leader) = tokio::sync::watch::channel(true);
        let fetcher = Fetcher::new(state, Leader::for_test(leader), folder.path().to_owned());
        // Twice at once is once.
        assert!(fetcher.begin(run.clone().into()));
        assert!(!fetcher.begin(run.clone().into()));
        let decided = |run: &AgentRun| run.status.as_ref().is_some_and(|status| status.source.is_some() || status.source_failure.is_some());
        server.api.until("fetched", decided).await;
        // The watch has brought what was written, and tells of an older state once more.
        state.runs.insert_for_test(server.api.run());
        assert!(!fetcher.begin(run.into()), "it is fetched again");
        let status = server.api.run().status.unwrap();
        if fetched {
            let source = status.source.expect("a source");
            assert_eq!(source.git.as_ref().map(|git| git.commit.as_str()), Some(second.as_str()));
            let blob = state.stores.artifacts.open(RUN_UID, Digest::parse(&source.digest).unwrap()).await.unwrap().expect("stored");
            assert_eq!((blob.bytes, source.files), (source.bytes, 3));
        } else {
            let message = status.source_failure.expect("a failure").message;
            assert!(message.contains("/private/shop.git at main: the git server refused the credential of Secret team/wrong"), "{message}");
            assert!(!message.contains(KEY) && !message.contains("Basic"), "{message}");
            assert!(status.source.is_none());
        }
    }
}
