//! The gateway's own events follow the committed status, also over a restart.

use std::time::Duration;

use agentrun_protocol::event::EventType;
use serde_json::{Value, json};

use super::{ALICE, World};
use crate::app::Recorder;
use crate::fixtures::RUN_UID;

async fn log(world: &World) -> Vec<(String, Value)> {
    let text = world.person(ALICE, "/v1/namespaces/team/runs/fix-it/events", &[]).await;
    let lines = text.text().lines().map(|line| serde_json::from_str::<Value>(line).expect("JSON"));
    lines.map(|line| (line["type"].as_str().expect("text").to_owned(), line["data"].clone())).collect()
}

/// Let a recorder run until the log has so many events, or for a moment if it has.
async fn record_until(world: &World, count: usize) {
    let task = tokio::spawn(world.recorder.clone().run(world.state.runs.clone()));
    let mut grown = world.state.stores.events.subscribe(RUN_UID);
    let wait = async {
        while log(world).await.len() < count {
            let _ = tokio::time::timeout(Duration::from_millis(200), grown.changed()).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(20), wait).await.expect("recorded");
    task.abort();
    let _ = task.await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_happened_while_we_were_away_is_derived_at_start() {
    let world = World::new();
    world.edit("fix-it", |run| run["status"]["phase"] = "Running".into());
    record_until(&world, 1).await;
    let run = world.state.runs.get(RUN_UID).expect("known");
    world.recorder.record(run, "model/1".into(), EventType::ModelCall, json!({"model": "demo"})).await;
    // The run ends while no gateway is there to see it.
    world.edit("fix-it", |run| {
        run["status"]["phase"] = "Succeeded".into();
        run["status"]["result"] = json!({"attempt": 1, "verdict": "Succeeded", "message": "m", "changedFiles": 0, "steps": 1});
    });
    record_until(&world, 5).await;
    let expected = [
        ("phase".to_owned(), json!({"phase": "Running"})),
        ("model_call".to_owned(), json!({"model": "demo"})),
        ("result".to_owned(), json!({"verdict": "Succeeded", "message": "m"})),
        ("phase".to_owned(), json!({"phase": "Succeeded"})),
        ("end".to_owned(), json!({"phase": "Succeeded", "reason": ""})),
    ];
    assert_eq!(log(&world).await, expected);
    record_until(&world, 5).await;
    assert_eq!(log(&world).await, expected, "deriving again writes nothing");
}

#[tokio::test(flavor = "multi_thread")]
async fn the_log_of_a_deleted_run_ends() {
    let world = World::new();
    let gone = crate::store::RunRef { uid: "gone".into(), namespace: "team".into(), name: "gone".into() };
    let record = crate::store::NewRecord::new("phase/1/Running", EventType::Phase, &json!({"phase": "Running"}));
    let events = &world.state.stores.events;
    events.append(&gone, 1, crate::store::Origin::Gateway, vec![record]).await.expect("appended");
    // Another gateway has seen this one; our watch has not brought it yet.
    let mut unseen = crate::fixtures::run_json();
    (unseen["metadata"]["name"], unseen["metadata"]["uid"]) = ("unseen".into(), "unseen".into());
    let path = "/apis/agentrun.dev/v1alpha1/namespaces/team/agentruns/unseen";
    world.cluster.lock().expect("not poisoned").objects.insert(path.into(), unseen);
    let run = crate::store::RunRef { uid: "unseen".into(), namespace: "team".into(), name: "unseen".into() };
    let record = crate::store::NewRecord::new("phase/1/Running", EventType::Phase, &json!({"phase": "Running"}));
    events.append(&run, 1, crate::store::Origin::Gateway, vec![record]).await.expect("appended");
    let mut grown = events.subscribe("gone");
    let task = tokio::spawn(world.recorder.clone().run(world.state.runs.clone()));
    tokio::time::timeout(Duration::from_secs(20), grown.changed()).await.expect("closed in time").expect("open");
    let state = events.state("gone").await.expect("state").expect("known");
    assert_eq!((state.last, state.closed), (2, true));
    for uid in [RUN_UID, "unseen"] {
        assert!(!events.state(uid).await.expect("state").is_some_and(|state| state.closed), "{uid} is there and goes on");
    }
    task.abort();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_phase_told_in_other_words_does_not_hold_up_the_end() {
    let world = World::new();
    let run = crate::store::RunRef { uid: RUN_UID.into(), namespace: "team".into(), name: "fix-it".into() };
    let record = crate::store::NewRecord::new("phase/1/Failed", EventType::Phase, &json!({"phase": "Failed", "reason": "earlier words"}));
    world.state.stores.events.append(&run, 1, crate::store::Origin::Gateway, vec![record]).await.expect("appended");
    world.edit("fix-it", |run| run["status"]["phase"] = "Failed".into());
    record_until(&world, 2).await;
    assert_eq!(log(&world).await.last().map(|(kind, _)| kind.clone()), Some("end".to_owned()));
}

#[tokio::test(flavor = "multi_thread")]
async fn approvals_are_told_once_and_a_lost_outcome_as_unknown() {
    let world = World::new();
    let approval = |id: i64, state: &str| {
        let decided = state == "consumed" || state == "allowed";
        json!({
            "id": id, "digest": "d", "kind": "run_command", "summary": format!("command {id}"), "state": state,
            "requestedAt": "2027-01-15T08:00:00Z", "expiresAt": "2027-01-15T09:00:00Z", "decidedBy": decided.then_some("alice"),
            "scope": decided.then_some("once"), "executionId": (state == "consumed").then_some("x"),
        })
    };
    let list = json!([approval(1, "consumed"), approval(2, "consumed"), approval(3, "pending"), approval(4, "allowed")]);
    world.edit("fix-it", |run| (run["status"]["phase"], run["status"]["approvals"]) = ("Running".into(), list.clone()));
    record_until(&world, 3 + 3 + 1 + 2 + 1).await;
    let result = json!({"events": [{"key": "r", "type": "tool_result", "data": {"tool": "run_command", "ok": true, "approvalId": 1}}]});
    world.runner(RUN_UID, "POST", "/sandbox/v1/events", result.to_string()).await;
    // The Pod is lost while the second is performed.
    world.edit("fix-it", |run| run["status"]["phase"] = "Failed".into());
    record_until(&world, 16).await;
    let told = log(&world).await;
    let approvals: Vec<String> = told
        .iter()
        .filter(|(kind, _)| kind == "approval")
        .map(|(_, data)| {
            format!("{} {}{}", data["id"], data["state"].as_str().expect("a word"), data["outcome"].as_str().unwrap_or_default())
        })
        .collect();
    let expected = [
        "1 pending",
        "1 allowed",
        "1 consumed",
        "2 pending",
        "2 allowed",
        "2 consumed",
        "3 pending",
        "4 pending",
        "4 allowed",
        "3 expired",
        "4 expired",
        "2 consumedunknown",
    ];
    assert_eq!(approvals, expected);
    assert_eq!(told.last().map(|(kind, _)| kind.as_str()), Some("end"));
    // What the sweep writes down afterwards has been told already.
    let list = json!([approval(1, "consumed"), approval(2, "consumed"), approval(3, "expired"), approval(4, "expired")]);
    world.edit("fix-it", |run| run["status"]["approvals"] = list);
    record_until(&world, 16).await;
    assert_eq!(log(&world).await.len(), told.len());
}
