//! Objects as the operator leaves them, for every phase and every reason: `gitops/objects.json`, by which the tests in `gitops/`
//! judge what Argo CD, Flux and kstatus make of them. `AGENTRUN_REGENERATE=1` writes the file.

use std::fmt::Write;
use std::path::Path;

use agentrun_crds::conditions::Reason;
use serde_json::{Value, json};

use crate::world::{NS, World, context};

/// The run as it stands, without what differs from time to time.
fn object(world: &World) -> Value {
    let mut run = world.fake.get(&world.run).unwrap();
    run["metadata"].as_object_mut().unwrap().remove("resourceVersion");
    if run["status"]["ticketSha256"].is_string() {
        run["status"]["ticketSha256"] = json!("0".repeat(64));
    }
    run
}

/// A run whose spec was changed has another generation.
fn change(world: &World, change: impl FnOnce(&mut Value)) {
    world.fake.change(&world.run, |run| {
        change(run);
        run["metadata"]["generation"] = json!(run["metadata"]["generation"].as_i64().unwrap() + 1);
    });
}

async fn running() -> World {
    let world = World::new();
    world.settle().await;
    world.kubelet();
    world.settle().await;
    world.exchange();
    world.settle().await;
    world
}

async fn ended(world: &World) -> Value {
    world.settle().await;
    world.kubelet();
    world.settle().await;
    object(world)
}

fn approval(state: &str) -> Value {
    let mut approval = json!({"id": 1, "digest": "0".repeat(64), "kind": "run_command", "summary": "make install", "state": state,
        "requestedAt": "2026-01-01T00:00:00Z", "expiresAt": "2026-01-01T00:30:00Z"});
    if state != "pending" {
        approval["decidedBy"] = json!("anna");
        approval["decidedAt"] = json!("2026-01-01T00:01:00Z");
    }
    approval
}

async fn all() -> Vec<(String, Value)> {
    let mut objects = Vec::new();
    let mut keep = |name: &str, object: Value| objects.push((name.to_owned(), object));
    let world = World::new();
    keep("created", object(&world));
    world.settle().await;
    keep("Starting/Pod created", object(&world));
    world.kubelet();
    world.settle().await;
    keep("Starting/runner starts", object(&world));
    world.exchange();
    world.settle().await;
    keep("Running", object(&world));
    for (name, state) in [("AwaitingApproval", "pending"), ("Running/decided", "allowed")] {
        world.fake.change(&world.run, |run| run["status"]["approvals"] = json!([approval(state)]));
        world.settle().await;
        keep(name, object(&world));
    }
    change(&world, |run| run["spec"]["cancel"] = json!(true));
    world.settle().await;
    keep("Cancelling", object(&world));
    keep("Cancelled/while it worked", ended(&world).await);

    let world = World::new();
    world.fake.remove("/apis/agentrun.dev/v1alpha1/namespaces/team-a/agentpolicies/default");
    world.settle().await;
    keep("Pending/no policy", object(&world));
    world.fake.advance(10);
    keep("Failed/no policy", ended(&world).await);

    let world = World::new();
    world.fake.change(&world.run, |run| run["spec"]["source"] = json!({"archive": {"digest": format!("sha256:{}", "0".repeat(64))}}));
    world.settle().await;
    keep("Pending/no source", object(&world));
    change(&world, |run| run["spec"]["cancel"] = json!(true));
    keep("Cancelled/before it started", ended(&world).await);

    let world = World::new();
    for other in ["one", "two"] {
        world.submit(other, &format!("uid-of-{other}"), |_| ());
        agentrun_operator::agent_run::converge(&context(&world.fake, &world.client), NS, other).await.unwrap();
    }
    world.settle().await;
    keep("Queued", object(&world));
    change(&world, |run| run["spec"]["ttlSecondsAfterFinished"] = json!(60));
    world.settle().await;
    keep("Queued/changed", object(&world));

    for reason in Reason::ALL.iter().filter(|reason| **reason != Reason::AlreadyRan) {
        let world = running().await;
        world.result(reason.as_str());
        if *reason == Reason::SandboxLost {
            world.fake.remove(&world.pod());
        }
        keep(&format!("ended/{}", reason.as_str()), ended(&world).await);
        if [Reason::Succeeded, Reason::ChecksFailed].contains(reason) {
            change(&world, |run| run["spec"]["ttlSecondsAfterFinished"] = json!(3600));
            world.settle().await;
            keep(&format!("ended/{}, changed", reason.as_str()), object(&world));
            world.fake.remove(&world.run);
            world.submit("fix", "second-uid", |_| ());
            world.settle().await;
            keep(&format!("ended/AlreadyRan after {}", reason.as_str()), object(&world));
        }
    }
    let world = World::new();
    world.fake.change(&world.run, |run| run["spec"]["instruction"] = json!(""));
    keep("Failed/refused", ended(&world).await);
    objects
}

#[tokio::test]
async fn the_objects_by_which_gitops_tools_are_tested_are_ours() {
    let mut text = String::from("[\n");
    let objects = all().await;
    let last = objects.len() - 1;
    for (at, (name, object)) in objects.iter().enumerate() {
        let observed = &object["status"]["observedGeneration"];
        assert!(name == "created" || *observed == object["metadata"]["generation"], "{name}: the last change was not seen");
        writeln!(text, "{}{}", json!({"name": name, "object": object}), if at == last { "" } else { "," }).unwrap();
    }
    text.push_str("]\n");
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../gitops/objects.json");
    if std::env::var_os("AGENTRUN_REGENERATE").is_some() {
        std::fs::write(&path, &text).unwrap();
    }
    let committed = std::fs::read_to_string(&path).unwrap_or_default();
    for (line, (now, then)) in text.lines().zip(committed.lines()).enumerate() {
        assert_eq!(now, then, "{} line {}: AGENTRUN_REGENERATE=1 writes it anew; then look at gitops/", path.display(), line + 1);
    }
    assert_eq!(text.lines().count(), committed.lines().count(), "AGENTRUN_REGENERATE=1 writes it anew");
}
