//! What outlives a run, and what keeps the same manifest from running twice; and runs that wait for their source.

use agentrun_operator::agent_run::expired_records;
use agentrun_operator::agent_run::plan::Again;
use serde_json::{Value, json};

use crate::stories::happy;
use crate::world::{World, context};

const RECORD: &str = "/apis/agentrun.dev/v1alpha1/namespaces/team-a/agentrunrecords/fix";

#[tokio::test]
async fn a_run_that_comes_back_does_not_run_again() {
    let world = World::new();
    world.fake.change(&world.run, |run| run["spec"]["ttlSecondsAfterFinished"] = json!(60));
    happy(&world).await;
    let record = world.fake.get(RECORD).expect("kept before the run is let go");
    assert_eq!((&record["spec"]["runUid"], &record["spec"]["phase"]), (&json!("run-uid"), &json!("Succeeded")));
    assert_eq!(record["spec"]["spent"]["requests"], 1);
    world.fake.advance(61);
    world.settle().await;
    assert_eq!(world.fake.get(&world.run), None, "gone by its time to live");

    // Whoever keeps the cluster as a repository says creates it again.
    world.submit("fix", "second-uid", |run| run["spec"]["ttlSecondsAfterFinished"] = json!(60));
    assert_eq!(world.settle().await, Again::Never);
    assert_eq!(world.status()["phase"], "Succeeded", "as the first did");
    assert_eq!(world.condition("Complete"), "True AlreadyRan");
    assert_eq!(world.condition("Ready"), "True AlreadyRan");
    assert!(world.status().to_string().contains("run-uid"), "{}", world.status());
    let writes = world.fake.asked();
    world.fake.advance(3600);
    world.settle().await;
    assert_eq!(world.fake.asked(), writes, "it stays, or it would be created again for ever");
    assert_eq!(world.fake.get(RECORD), Some(record), "the first run's record stands");
    assert_eq!(world.created_pods(), 1);

    world.fake.remove(&world.run);
    world.submit("fix", "third-uid", |run| run["spec"]["rerunKey"] = json!("again"));
    world.settle().await;
    assert_eq!(world.status()["phase"], "Starting", "a changed key runs");
    assert_eq!(world.created_pods(), 2);
    world.fake.change(&world.run, |run| run["spec"]["cancel"] = json!(true));
    world.settle().await;
    let pods: Vec<String> = world.fake.paths("/pods/");
    pods.iter().for_each(|pod| world.fake.remove(pod));
    world.settle().await;
    let record = world.fake.get(RECORD).expect("replaced");
    assert_eq!((&record["spec"]["runUid"], &record["spec"]["phase"]), (&json!("third-uid"), &json!("Cancelled")));
    world.assert_clean();
}

#[tokio::test]
async fn what_never_started_may_be_tried_again() {
    let world = World::new();
    world.fake.change(&world.run, |run| run["spec"]["model"] = json!("huge"));
    world.settle().await;
    assert_eq!(world.condition("Complete"), "True PolicyDenied");
    assert_eq!(world.fake.get(RECORD), None);
}

#[tokio::test]
async fn a_namespace_that_is_being_deleted_is_not_held_up() {
    let world = World::new();
    world.settle().await;
    let now = world.fake.now().to_string();
    world.fake.change(&world.run, |run| run["metadata"]["deletionTimestamp"] = json!(now));
    let message = "unable to create new content in namespace team-a because it is being terminated".to_owned();
    world.fake.with(|state| state.refuse = Some(("/agentrunrecords".into(), 403, message)));
    world.settle().await;
    world.kubelet();
    world.settle().await;
    assert_eq!(world.fake.get(&world.run), None, "let go at once, without a record");
    assert_eq!(world.fake.get(RECORD), None);
}

#[tokio::test]
async fn a_run_waits_for_its_archive() {
    let archive = |run: &mut Value| run["spec"]["source"] = json!({"archive": {"digest": format!("sha256:{}", "0a".repeat(32))}});
    let uploaded = |run: &mut Value| {
        run["status"]["source"] = json!({"digest": format!("sha256:{}", "0a".repeat(32)), "bytes": 1, "files": 1});
    };
    let world = World::new();
    world.fake.change(&world.run, archive);
    assert!(matches!(world.settle().await, Again::In(pause) if pause.as_secs() <= 300));
    assert_eq!(world.status()["phase"], "Pending");
    assert_eq!(world.condition("Accepted"), "True Accepted");
    assert!(world.status().to_string().contains("/namespaces/team-a/agentruns/fix/source"), "{}", world.status());
    world.fake.advance(299);
    let writes = world.fake.asked();
    world.settle().await;
    assert_eq!(world.fake.asked(), writes, "waiting writes nothing");
    world.fake.change(&world.run, uploaded);
    world.settle().await;
    assert_eq!(world.status()["phase"], "Starting");

    let world = World::new();
    world.fake.change(&world.run, archive);
    world.settle().await;
    world.fake.advance(300);
    world.settle().await;
    assert_eq!(world.condition("Complete"), "True SourceUnavailable");
    assert_eq!(world.created_pods(), 0);
}

#[tokio::test]
async fn records_of_runs_that_are_long_gone_are_deleted() {
    let world = World::new();
    happy(&world).await;
    let other = RECORD.replace("/fix", "/other").replace("team-a", "team-b");
    let record = world.fake.get(RECORD).expect("a record");
    world.fake.put(&other, json!({"apiVersion": record["apiVersion"], "kind": record["kind"], "spec": record["spec"]}));
    let day = 24 * 3600;
    for (days, gone) in [(364, 0), (2, 1)] {
        world.fake.advance(days * day);
        let ctx = context(&world.fake, &world.client);
        assert_eq!(expired_records::once(&ctx).await.expect("a pass"), gone, "after {days} days more");
    }
    assert_eq!(world.fake.get(&other), None);
    assert!(world.fake.get(RECORD).is_some(), "its AgentRun is there");
    world.fake.remove(&world.run);
    let ctx = context(&world.fake, &world.client);
    assert_eq!(expired_records::once(&ctx).await.expect("a pass"), 1);
    assert_eq!(world.fake.get(RECORD), None);
}

#[tokio::test]
async fn a_run_waits_for_its_commit_or_the_reason_why_there_is_none() {
    let world = || {
        let world = World::new();
        let policy = "/apis/agentrun.dev/v1alpha1/namespaces/team-a/agentpolicies/default";
        world.fake.change(policy, |policy| policy["spec"]["git"] = json!({"allow": [{"host": "git.test", "secretRef": {"name": "key"}}]}));
        world.fake.change(&world.run, |run| run["spec"]["source"] = json!({"git": {"url": "https://git.test/org/shop", "ref": "main"}}));
        world
    };
    let fetched = world();
    assert!(matches!(fetched.settle().await, Again::In(pause) if pause.as_secs() <= 300));
    assert_eq!(fetched.status()["phase"], "Pending");
    assert_eq!(fetched.status()["resolved"]["git"]["secret"], "key");
    assert!(fetched.status().to_string().contains("the gateway fetches https://git.test/org/shop at main"), "{}", fetched.status());
    fetched.fake.change(&fetched.run, |run| {
        run["status"]["source"] = json!({"digest": format!("sha256:{}", "0a".repeat(32)), "bytes": 1, "files": 1});
    });
    fetched.settle().await;
    assert_eq!(fetched.status()["phase"], "Starting");

    let failed = world();
    failed.settle().await;
    failed.fake.change(&failed.run, |run| run["status"]["sourceFailure"] = json!({"message": "no such branch"}));
    failed.settle().await;
    assert_eq!(failed.condition("Complete"), "True SourceUnavailable");
    assert!(failed.status().to_string().contains("no such branch"));

    let forgotten = world();
    forgotten.settle().await;
    forgotten.fake.advance(300);
    forgotten.settle().await;
    assert_eq!(forgotten.condition("Complete"), "True SourceUnavailable");
    assert!(forgotten.status().to_string().contains("the gateway did not fetch"));

    let denied = World::new();
    denied.fake.change(&denied.run, |run| run["spec"]["source"] = json!({"git": {"url": "https://git.test/org/shop"}}));
    denied.settle().await;
    assert_eq!(denied.condition("Complete"), "True PolicyDenied");
    for world in [failed, forgotten, denied] {
        assert_eq!(world.created_pods(), 0);
    }
}
