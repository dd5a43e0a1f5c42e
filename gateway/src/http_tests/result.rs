//! The result: posted by the runner, validated, written to status, its patch served to people.

use http::StatusCode;
use serde_json::{Value, json};

use super::{ALICE, OTHER_UID, World};
use crate::fixtures::RUN_UID;
use crate::store::Digest;

const RESULT: &str = "/sandbox/v1/result";
const PATCH: &str = "/v1/namespaces/team/runs/fix-it/patch";
const EVENTS: &str = "/v1/namespaces/team/runs/fix-it/events";

fn state(content: &[u8], mode: u32) -> Value {
    json!({"digest": Digest::of(content).to_string(), "mode": mode})
}

/// The fixture's `a.py` changed, and a new file.
fn result() -> Value {
    json!({
        "runUid": RUN_UID, "attempt": 1, "outcome": "done", "message": "fixed", "steps": 4, "manifestComplete": true,
        "checks": [{"name": "unit", "argv": ["python3", "-m", "pytest"], "exitCode": 0}],
        "changes": [
            {"path": "a.py", "before": state(b"x = 1\n", 755), "after": state(b"x = 2\n", 755)},
            {"path": "new", "after": state(b"n", 644)},
        ],
    })
}

async fn post(world: &World, result: &Value) -> super::Answer {
    world.runner(RUN_UID, "POST", RESULT, result.to_string()).await
}

async fn upload_all(world: &World) {
    world.upload(RUN_UID, b"x = 2\n").await;
    world.upload(RUN_UID, b"n").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_result_is_recorded_once_and_its_patch_served() {
    let world = World::new();
    assert_eq!(world.person(ALICE, PATCH, &[]).await.refusal(), (404, "no_patch".into(), None));
    upload_all(&world).await;
    let answer = post(&world, &result()).await;
    let expected = json!({"verdict": "Succeeded", "message": "1 check passed, 2 files changed."});
    assert_eq!((answer.status, answer.json()), (StatusCode::OK, expected.clone()));

    let status = world.live("fix-it")["status"].clone();
    let recorded = &status["result"];
    assert_eq!(recorded["checks"], json!([{"name": "unit", "exitCode": 0, "trust": "sandbox"}]));
    assert_eq!((&recorded["changedFiles"], &recorded["changedPaths"], &recorded["steps"]), (&json!(2), &json!(["a.py", "new"]), &json!(4)));
    assert_eq!(status["artifacts"], json!({"count": 1, "bytes": recorded["patch"]["bytes"]}));
    assert_eq!(status["budget"]["limit"]["requests"], 10, "the rest of the status stands");

    let patch = world.person(ALICE, PATCH, &[]).await;
    assert_eq!(patch.headers["content-type"], "text/x-diff; charset=utf-8");
    assert_eq!(patch.headers["content-disposition"], "attachment; filename=\"fix-it.patch\"");
    assert!(patch.text().starts_with("diff --git a/a.py b/a.py\n") && patch.text().contains("-x = 1\n+x = 2\n"), "{}", patch.text());
    assert_eq!(Digest::of(&patch.body).to_string(), recorded["patch"]["digest"].as_str().expect("text"));
    let list = world.person(ALICE, "/v1/namespaces/team/runs/fix-it/artifacts", &[]).await.json();
    assert_eq!((&list["artifacts"][0]["name"], &list["artifacts"][0]["digest"]), (&json!("changes.patch"), &recorded["patch"]["digest"]));
    let events = world.person(ALICE, EVENTS, &[]).await;
    let event: Value = serde_json::from_str(events.text().lines().next().expect("a line")).expect("JSON");
    assert_eq!(
        (&event["type"], &event["data"]["verdict"], &event["data"]["patch"]),
        (&json!("result"), &json!("Succeeded"), &recorded["patch"])
    );

    let writes = world.cluster.lock().expect("not poisoned").status_writes;
    assert_eq!(post(&world, &result()).await.json(), expected, "the same again");
    let mut other = result();
    other["message"] = "another".into();
    other["outcome"] = "agentError".into();
    assert_eq!(post(&world, &other).await.refusal(), (409, "result_already_recorded".into(), None));
    assert_eq!(world.cluster.lock().expect("not poisoned").status_writes, writes, "neither wrote");
    assert_eq!(world.person(ALICE, EVENTS, &[]).await.text().lines().count(), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_malformed_result_leaves_no_trace_and_may_be_repeated() {
    let world = World::new();
    upload_all(&world).await;
    let mut wrong_run = result();
    wrong_run["runUid"] = OTHER_UID.into();
    let mut unsorted = result();
    unsorted["changes"].as_array_mut().expect("a list").reverse();
    let mut missing = result();
    missing["changes"][1]["after"] = state(b"never uploaded", 644);
    let mut log = result();
    log["checks"][0]["log"] = Digest::of(b"never uploaded").to_string().into();
    for (body, field) in [
        (json!(7), "checks"),
        (wrong_run, "runUid"),
        (unsorted, "changes[1].path"),
        (missing.clone(), "changes[1].after.digest"),
        (log, "checks[0].log"),
    ] {
        let (status, _, named) = post(&world, &body).await.refusal();
        assert_eq!((status, named.as_deref()), (422, Some(field)));
    }
    // Another run has that blob, which does not help.
    world.upload(OTHER_UID, b"never uploaded").await;
    assert_eq!(post(&world, &missing).await.refusal().0, 422);
    assert_eq!(world.live("fix-it")["status"]["result"], Value::Null);
    assert_eq!(world.person(ALICE, EVENTS, &[]).await.text(), "");
    assert_eq!(post(&world, &result()).await.json()["verdict"], "Succeeded");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_untrue_result_is_recorded_as_invalid_without_a_patch() {
    let world = World::new();
    upload_all(&world).await;
    let mut lie = result();
    lie["checks"][0]["argv"] = json!(["true"]);
    let answer = post(&world, &lie).await;
    assert_eq!((answer.status, &answer.json()["verdict"]), (StatusCode::OK, &json!("ResultInvalid")));
    let status = world.live("fix-it")["status"].clone();
    assert_eq!(
        (&status["result"]["verdict"], &status["result"]["patch"], &status["result"]["checks"]),
        (&json!("ResultInvalid"), &Value::Null, &Value::Null)
    );
    assert_eq!(world.person(ALICE, PATCH, &[]).await.refusal(), (404, "no_patch".into(), None));
    assert_eq!(post(&world, &result()).await.refusal().0, 409, "a second thought is too late");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_race_is_decided_on_the_live_object() {
    let world = World::new();
    upload_all(&world).await;
    // Somebody settles a budget between our read and our write: decide again, keep theirs.
    world.cluster.lock().expect("not poisoned").meanwhile = Some(|run| run["status"]["budget"]["spent"]["requests"] = 3.into());
    assert_eq!(post(&world, &result()).await.json()["verdict"], "Succeeded");
    let status = world.live("fix-it")["status"].clone();
    assert_eq!((&status["budget"]["spent"]["requests"], &status["result"]["verdict"]), (&json!(3), &json!("Succeeded")));

    // The run ends, moves to another attempt, or is cancelled between: nothing is written.
    let changes: [fn(&mut Value); 4] = [
        |run| run["status"]["phase"] = "Failed".into(),
        |run| run["status"]["attempt"] = 2.into(),
        |run| run["spec"]["cancel"] = true.into(),
        |run| run["metadata"]["uid"] = OTHER_UID.into(),
    ];
    for change in changes {
        let world = World::new();
        upload_all(&world).await;
        world.cluster.lock().expect("not poisoned").meanwhile = Some(change);
        assert_eq!(post(&world, &result()).await.refusal().1, "inactive_run_token");
        assert_eq!(world.cluster.lock().expect("not poisoned").status_writes, 0);
    }

    // Another result of the same attempt stands meanwhile.
    let world = World::new();
    upload_all(&world).await;
    world.cluster.lock().expect("not poisoned").meanwhile = Some(|run| {
        run["status"]["result"] = json!({"attempt": 1, "verdict": "AgentError", "message": "", "changedFiles": 0, "steps": 0});
    });
    assert_eq!(post(&world, &result()).await.refusal().1, "result_already_recorded");
    assert_eq!(world.live("fix-it")["status"]["result"]["verdict"], "AgentError");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lost_reply_is_repeated_although_the_budget_has_moved() {
    let world = World::new();
    let mut spent = result();
    (spent["outcome"], spent["changes"]) = ("budgetExhausted".into(), json!([]));
    let first = post(&world, &spent).await.json();
    assert!(first["message"].as_str().is_some_and(|message| message.contains("0 of 10 requests")), "{first}");
    // A call that was in flight is settled meanwhile.
    world.edit("fix-it", |run| run["status"]["budget"]["spent"]["requests"] = 10.into());
    assert_eq!(post(&world, &spent).await.json(), first);
}

#[tokio::test(flavor = "multi_thread")]
async fn of_two_results_at_once_one_stands() {
    let world = World::new();
    upload_all(&world).await;
    let mut other = result();
    other["changes"] = json!([result()["changes"][0]]);
    let (one, two) = (result(), other);
    let (one, two) = tokio::join!(post(&world, &one), post(&world, &two));
    let statuses = [one.status.as_u16(), two.status.as_u16()];
    assert!(statuses.contains(&200), "{statuses:?}");
    assert!(statuses.contains(&409) || statuses.contains(&429), "{statuses:?}");
    assert_eq!(world.cluster.lock().expect("not poisoned").status_writes, 1);
}
