//! Whole lives of a run, with a failing write at every place in turn and a new process after it. The end must be the same, and
//! the server's rules must hold all the way.

use crate::fake_api::Failure;
use serde_json::json;

use crate::world::World;

pub async fn happy(world: &World) {
    world.settle().await;
    world.kubelet();
    world.settle().await;
    world.exchange();
    world.settle().await;
    assert_eq!(world.status()["phase"], "Running");
    assert_eq!(world.fake.paths("/secrets/run-"), Vec::<String>::new(), "the ticket goes once it was used");
    world.result("Succeeded");
    world.settle().await;
    world.kubelet();
    world.settle().await;
    let status = world.status();
    assert_eq!(status["phase"], "Succeeded");
    assert_eq!(world.condition("Complete"), "True Succeeded");
    assert_eq!(world.condition("Ready"), "True Succeeded");
    assert_eq!(world.condition("SandboxGone"), "True Removed");
    assert_eq!((&status["budget"]["gate"], &status["budget"]["spent"]["requests"]), (&json!("Closed"), &json!(1)));
    assert_eq!(status["requestsText"], "1/100");
    assert_eq!(world.fake.get(&world.run).unwrap()["metadata"]["finalizers"], json!([]));
    assert_eq!(world.created_pods(), 1);
    world.assert_clean();
}

async fn cancelled(world: &World) {
    world.settle().await;
    world.kubelet();
    world.exchange();
    world.settle().await;
    world.fake.change(&world.run, |run| run["spec"]["cancel"] = json!(true));
    world.settle().await;
    assert_eq!(world.status()["budget"]["gate"], "Closed", "authority goes first");
    assert_eq!(world.status()["phase"], "Cancelling");
    world.kubelet();
    world.settle().await;
    assert_eq!(world.status()["phase"], "Cancelled");
    assert_eq!(world.created_pods(), 1);
    world.assert_clean();
}

async fn deleted(world: &World) {
    world.settle().await;
    world.kubelet();
    world.exchange();
    world.settle().await;
    let now = world.fake.now().to_string();
    world.fake.change(&world.run, |run| run["metadata"]["deletionTimestamp"] = json!(now));
    world.settle().await;
    assert_eq!(world.status()["budget"]["gate"], "Closed");
    assert_eq!(world.fake.paths("/networkpolicies/run-").len(), 1, "the wall stands while the Pod does");
    world.kubelet();
    world.settle().await;
    assert_eq!(world.fake.get(&world.run), None, "the run is let go");
    world.assert_clean();
}

async fn lost(world: &World) {
    world.settle().await;
    world.kubelet();
    world.exchange();
    world.settle().await;
    world.fake.remove(&world.pod());
    world.settle().await;
    assert_eq!(world.condition("Complete"), "True SandboxLost");
    assert_eq!(world.condition("Stalled"), "True SandboxLost");
    assert_eq!(world.created_pods(), 1, "nothing is repeated");
    world.assert_clean();
}

async fn silent_node(world: &World) {
    world.settle().await;
    world.kubelet();
    world.exchange();
    world.fake.change(&world.run, |run| run["spec"]["cancel"] = json!(true));
    world.settle().await;
    world.fake.advance(30);
    world.settle().await;
    assert_eq!(world.status()["phase"], "Cancelled");
    assert_eq!(world.condition("SandboxGone"), "Unknown NodeSilent");
    assert_eq!(world.fake.get(&world.run).unwrap()["metadata"]["finalizers"], json!([]));
    world.assert_clean();
}

async fn refused(world: &World) {
    world.fake.change(&world.run, |run| run["spec"]["instruction"] = json!(""));
    world.settle().await;
    assert_eq!(world.condition("Complete"), "True InvalidSpec");
    assert_eq!(world.condition("Accepted"), "False InvalidSpec");
    assert_eq!(world.created_pods(), 0);
    world.assert_clean();
}

/// Run a story once unharmed, then with each write failing in each way.
async fn with_every_failure(story: impl AsyncFn(&World)) {
    let world = World::new();
    story(&world).await;
    let writes = world.fake.asked();
    assert!(writes > 0);
    for failure in [Failure::Before, Failure::After, Failure::Conflict] {
        for at in 1..=writes {
            let world = World::new();
            world.fake.with(|state| state.fail = Some((at, failure)));
            eprintln!("write {at} of {writes} fails: {failure:?}");
            story(&world).await;
        }
    }
}

#[tokio::test]
async fn a_run_succeeds_whatever_write_fails() {
    with_every_failure(happy).await;
}

#[tokio::test]
async fn a_run_is_cancelled_whatever_write_fails() {
    with_every_failure(cancelled).await;
}

#[tokio::test]
async fn a_deleted_run_leaves_nothing_whatever_write_fails() {
    with_every_failure(deleted).await;
}

#[tokio::test]
async fn a_lost_sandbox_is_not_repeated_whatever_write_fails() {
    with_every_failure(lost).await;
}

#[tokio::test]
async fn a_silent_node_does_not_hold_a_run_whatever_write_fails() {
    with_every_failure(silent_node).await;
}

#[tokio::test]
async fn a_bad_run_makes_no_pod_whatever_write_fails() {
    with_every_failure(refused).await;
}
