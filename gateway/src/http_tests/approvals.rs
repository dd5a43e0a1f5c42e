//! Approvals: asked for by the runner, decided by people, consumed by the runner.

use std::sync::atomic::Ordering;
use std::time::Duration;

use agentrun_protocol::token::Audience;
use http::StatusCode;
use serde_json::{Value, json};

use super::{ALICE, Answer, BOB, CAROL, MALLORY, OTHER_UID, World};
use crate::approvals::Expiry;
use crate::fixtures::{NOW, RUN_UID};
use crate::store::Digest;

const ASK: &str = "/sandbox/v1/approvals";
const PEOPLE: &str = "/v1/namespaces/team/runs/fix-it/approvals";

/// Commands are asked for, `git push` is denied, and reading is free.
fn world() -> World {
    world_with(&json!({}))
}

fn world_with(more: &Value) -> World {
    let world = World::new();
    for name in ["fix-it", "other"] {
        world.edit(name, |run| {
            let rules = json!([
                {"tools": ["run_command", "write_file"], "decision": "Ask"},
                {"argv": ["git", "push", "*"], "decision": "Deny"},
            ]);
            let mut approvals = json!({"policyRules": rules, "timeoutSeconds": 600, "maxPauseSeconds": 0, "submitterMayApprove": true});
            approvals.as_object_mut().expect("an object").extend(more.as_object().expect("an object").clone());
            run["status"]["resolved"]["approvals"] = approvals;
            run["status"]["phase"] = "Running".into();
        });
    }
    world
}

fn command(argv: &[&str]) -> Value {
    json!({"tool": "run_command", "argv": argv})
}

async fn runner(world: &World, method: &str, path: &str, body: &Value) -> Answer {
    let body = if body.is_null() { String::new() } else { body.to_string() };
    let answer = world.runner_as(Audience::Approvals, RUN_UID, method, path, body).await;
    world.live("fix-it"); // the watch brings what was written
    answer
}

async fn ask(world: &World, action: &Value) -> Answer {
    runner(world, "POST", ASK, &json!({ "action": action })).await
}

async fn consume(world: &World, id: i64, action: &Value, execution: &str) -> Answer {
    runner(world, "POST", &format!("{ASK}/{id}/consume"), &json!({"action": action, "executionId": execution})).await
}

async fn say(world: &World, who: &str, id: i64, decision: Value) -> Answer {
    let answer = world.person_sends(who, "POST", &format!("{PEOPLE}/{id}"), &decision).await;
    world.live("fix-it");
    answer
}

fn allow() -> Value {
    json!({"decision": "allow_once"})
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_allowed_is_shown_and_used_once() {
    let world = world();
    let action = command(&["sh", "-c", "rm -rf 'a b'"]);
    let asked = ask(&world, &action).await.json();
    assert_eq!((&asked["id"], &asked["state"], &asked["expiresAt"]), (&json!(1), &json!("pending"), &json!(NOW + 600)));
    assert_eq!(ask(&world, &action).await.json(), asked, "asking again gives the same record");

    let list = world.person(CAROL, PEOPLE, &[]).await.json();
    let view = &list["approvals"][0];
    assert_eq!((&view["summary"], &view["action"]), (&json!(r"sh -c 'rm -rf '\''a b'\'''"), &action));
    assert!(view["shown"].as_str().expect("shown").contains("argv[2]: \"rm -rf 'a b'\"\n"), "{view}");
    assert_eq!((&view["digest"], &view["shownTruncated"]), (&asked["digest"], &json!(false)));
    assert_eq!(world.person(CAROL, &format!("{PEOPLE}/1"), &[]).await.json(), *view);

    assert_eq!(consume(&world, 1, &action, "x1").await.refusal(), (409, "approval_pending".into(), None));
    let mut by_digest = allow();
    by_digest["digest"] = "0".repeat(64).into();
    assert_eq!(say(&world, ALICE, 1, by_digest.clone()).await.refusal().1, "digest_mismatch");
    (by_digest["digest"], by_digest["reason"]) = (asked["digest"].clone(), "looks fine".into());
    let decided = say(&world, ALICE, 1, by_digest.clone()).await;
    assert_eq!(
        (decided.status, &decided.json()["state"], &decided.json()["decidedBy"]),
        (StatusCode::OK, &json!("allowed"), &json!("alice"))
    );
    assert_eq!(say(&world, ALICE, 1, by_digest).await.status, StatusCode::OK, "the same again");
    let (status, code, _) = say(&world, BOB, 1, json!({"decision": "deny"})).await.refusal();
    assert_eq!((status, code.as_str()), (409, "already_decided"));
    let waited = runner(&world, "GET", &format!("{ASK}/1?wait=25"), &Value::Null).await.json();
    assert_eq!((&waited["state"], &waited["reason"], &waited["deadline"]), (&json!("allowed"), &json!("looks fine"), &json!(NOW + 180)));

    let changed = command(&["sh", "-c", "rm -rf 'a  b'"]);
    assert_eq!(consume(&world, 1, &changed, "x1").await.refusal().1, "digest_mismatch");
    assert_eq!(world.live("fix-it")["status"]["approvals"][0]["state"], "allowed", "nothing was consumed");
    assert_eq!(consume(&world, 1, &action, "x1").await.json()["state"], "consumed");
    assert_eq!(consume(&world, 1, &action, "x1").await.status, StatusCode::OK, "a lost answer is asked for again");
    assert_eq!(consume(&world, 1, &action, "x2").await.refusal().1, "already_consumed");
    assert_eq!(ask(&world, &action).await.json()["id"], 2, "once is once");
    let status = world.live("fix-it")["status"].clone();
    assert_eq!(status["approvalTotals"], json!({"asked": 2, "allowed": 1, "denied": 0, "expired": 0}));
    assert_eq!((&status["pendingApprovals"], &status["nextApprovalId"]), (&json!(1), &json!(3)));
    assert_eq!(status["budget"]["limit"]["requests"], 10, "the rest of the status stands");
}

#[tokio::test(flavor = "multi_thread")]
async fn the_rules_are_judged_again_and_bad_questions_leave_no_trace() {
    let world = world();
    let text = |inline: &str| json!([{"name": "content", "digest": Digest::of(b"x").to_string(), "bytes": 1, "inline": inline}]);
    let write = |texts: Value| json!({"tool": "write_file", "path": "a", "texts": texts});
    let uploaded = json!([{"name": "content", "digest": Digest::of(b"never uploaded").to_string(), "bytes": 14}]);
    // Another run has it, which does not help.
    world.upload(OTHER_UID, b"never uploaded").await;
    for (name, body, refusal) in [
        ("denied", json!({"action": command(&["git", "push", "-f"])}), (403, "action_denied", None)),
        ("free", json!({"action": {"tool": "read_file", "path": "a"}}), (409, "no_approval_needed", None)),
        ("no action", json!({}), (422, "invalid_field", Some("body"))),
        ("more", json!({"action": command(&["ls"]), "scope": "session"}), (422, "invalid_field", Some("body"))),
        ("a NUL", json!({"action": command(&["a\0"])}), (422, "invalid_field", Some("action.argv"))),
        ("another text", json!({"action": write(text("y"))}), (422, "invalid_field", Some("action.texts[0].digest"))),
        ("not uploaded", json!({"action": write(uploaded)}), (422, "invalid_field", Some("action.texts[0].digest"))),
        ("too large", json!({"action": command(&["x".repeat(300_000).as_str()])}), (413, "too_large", Some("body"))),
    ] {
        let (status, code, field) = runner(&world, "POST", ASK, &body).await.refusal();
        assert_eq!((status, code.as_str(), field.as_deref()), refusal, "{name}");
    }
    for (path, refusal) in [("/1", 404), ("/x", 404), ("/1?wait=26", 422), ("/1?wait=x", 400), ("/1?until=1", 400)] {
        assert_eq!(runner(&world, "GET", &format!("{ASK}{path}"), &Value::Null).await.refusal().0, refusal, "{path}");
    }
    assert_eq!(consume(&world, 1, &command(&["ls"]), "x").await.refusal().0, 404);
    assert_eq!(consume(&world, 1, &command(&["ls"]), "a b").await.refusal().2.as_deref(), Some("executionId"));
    assert_eq!(world.live("fix-it")["status"]["approvals"], Value::Null);
    assert_eq!(world.cluster.lock().expect("not poisoned").status_writes, 0);
    let totals = world.state.stores.artifacts.totals(RUN_UID).await.expect("totals");
    assert_eq!(totals.blobs, 0, "nothing was stored");
    // Without rules nothing needs a person.
    world.edit("fix-it", |run| drop(run["status"]["resolved"].as_object_mut().expect("resolved").remove("approvals")));
    tokio::time::sleep(crate::runs::CONFIRMATION_TTL).await; // the rules that were confirmed may be used so long
    assert_eq!(ask(&world, &command(&["ls"])).await.refusal().1, "no_approval_needed");
}

#[tokio::test(flavor = "multi_thread")]
async fn long_texts_are_uploaded_and_shown_from_the_store() {
    let world = world();
    let content = "line\n".repeat(10_000);
    let digest = world.upload(RUN_UID, content.as_bytes()).await;
    let action = json!({
        "tool": "write_file", "path": "big.txt", "files": [{"path": "big.txt"}],
        "texts": [{"name": "content", "digest": digest, "bytes": content.len()}],
    });
    assert_eq!(ask(&world, &action).await.json()["id"], 1);
    let listed = world.person(ALICE, PEOPLE, &[]).await.json()["approvals"][0].clone();
    assert_eq!((&listed["summary"], &listed["shownTruncated"]), (&json!("write_file big.txt (50000 bytes)"), &json!(true)));
    assert!(listed["shown"].as_str().expect("text").len() <= 16 * 1024);
    let one = world.person(ALICE, &format!("{PEOPLE}/1"), &[]).await.json();
    assert_eq!(one["shownTruncated"], false);
    assert_eq!(one["shown"].as_str().expect("text").matches("\n+line").count(), 10_000);
    let blob = world.person(ALICE, &format!("/v1/namespaces/team/runs/fix-it/artifacts/{digest}"), &[]).await;
    assert_eq!(blob.body, content, "the rest is among the artifacts");
}

#[tokio::test(flavor = "multi_thread")]
async fn who_may_decide_what() {
    let world = world_with(&json!({"submitterMayApprove": false}));
    ask(&world, &command(&["ls"])).await;
    let path = format!("{PEOPLE}/1");
    for (who, refusal) in [("nobody", 401), (MALLORY, 403), (CAROL, 403)] {
        assert_eq!(say(&world, who, 1, allow()).await.refusal().0, refusal, "{who}");
    }
    assert_eq!(world.person(MALLORY, &path, &[]).await.refusal().0, 403);
    assert_eq!(say(&world, ALICE, 1, allow()).await.refusal(), (403, "own_run".into(), None), "nobody knows who submitted it");
    world.edit("fix-it", |run| {
        (run["spec"]["submittedBy"], run["spec"]["submittedFor"]) = ("system:serviceaccount:ci:bot".into(), ALICE.into())
    });
    assert_eq!(say(&world, ALICE, 1, allow()).await.refusal(), (403, "own_run".into(), None));
    world.edit("fix-it", |run| run["spec"]["submittedFor"] = "dora".into());
    for (body, field) in [
        (json!({}), "body"),
        (json!({"decision": "allow"}), "body"),
        (json!({"decision": "deny", "force": true}), "body"),
        (json!({"decision": "deny", "reason": "x".repeat(257)}), "reason"),
        (json!({"decision": "deny", "reason": "\u{202e}"}), "reason"),
    ] {
        let (status, _, named) = say(&world, ALICE, 1, body).await.refusal();
        assert_eq!((status, named.as_deref()), (422, Some(field)));
    }
    for id in ["2", "0", "-1", "x", "99999999999999999999"] {
        assert_eq!(world.person(ALICE, &format!("{PEOPLE}/{id}"), &[]).await.refusal().0, 404, "{id}");
        assert_eq!(world.person_sends(ALICE, "POST", &format!("{PEOPLE}/{id}"), &allow()).await.refusal().0, 404, "{id}");
    }
    assert_eq!(say(&world, ALICE, 1, allow()).await.status, StatusCode::OK);
}

#[tokio::test(flavor = "multi_thread")]
async fn what_nobody_decides_expires_whoever_finds_out() {
    for finder in ["reader", "lister", "decider", "consumer", "sweep"] {
        let world = world();
        let action = command(&["ls"]);
        ask(&world, &action).await;
        if finder == "consumer" {
            say(&world, ALICE, 1, allow()).await;
        }
        world.now.store(NOW + 600, Ordering::SeqCst);
        match finder {
            "reader" => {
                let answer = runner(&world, "GET", &format!("{ASK}/1?wait=25"), &Value::Null).await.json();
                assert_eq!(answer["state"], "expired", "at once");
            }
            "lister" => assert_eq!(world.person(CAROL, PEOPLE, &[]).await.json()["approvals"][0]["state"], "expired"),
            "decider" => assert_eq!(say(&world, ALICE, 1, allow()).await.refusal(), (409, "approval_expired".into(), None)),
            "consumer" => assert_eq!(consume(&world, 1, &action, "x").await.refusal(), (409, "approval_expired".into(), None)),
            _ => sweep(&world).await,
        }
        let status = world.live("fix-it")["status"].clone();
        assert_eq!((&status["approvals"][0]["state"], &status["pendingApprovals"]), (&json!("expired"), &json!(0)), "{finder}");
        let waited = if finder == "consumer" { 0 } else { 600 };
        assert_eq!((&status["awaitingSince"], &status["waitedSeconds"]), (&Value::Null, &json!(waited)), "{finder}");
    }
}

async fn sweep(world: &World) {
    let expiry = Expiry { status: world.state.status.clone(), directory: world.state.runs.clone(), clock: world.state.clock.clone() };
    expiry.sweep().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_run_that_ends_takes_its_open_approvals_with_it() {
    let world = world();
    ask(&world, &command(&["ls"])).await;
    ask(&world, &command(&["pwd"])).await;
    say(&world, ALICE, 1, allow()).await;
    world.edit("fix-it", |run| run["status"]["phase"] = "Failed".into());
    assert_eq!(say(&world, BOB, 2, allow()).await.refusal(), (409, "already_completed".into(), None));
    sweep(&world).await;
    let states: Vec<Value> =
        world.live("fix-it")["status"]["approvals"].as_array().expect("a list").iter().map(|a| a["state"].clone()).collect();
    assert_eq!(states, ["expired", "expired"]);
    assert_eq!(say(&world, BOB, 2, allow()).await.refusal(), (409, "already_completed".into(), None));
    let writes = world.cluster.lock().expect("not poisoned").status_writes;
    sweep(&world).await;
    assert_eq!(world.cluster.lock().expect("not poisoned").status_writes, writes);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_session_decision_is_not_asked_again_and_each_use_is_its_own_record() {
    let world = world();
    let action = command(&["make"]);
    ask(&world, &action).await;
    say(&world, ALICE, 1, json!({"decision": "allow_session"})).await;
    assert_eq!(consume(&world, 1, &action, "x1").await.json()["state"], "consumed");
    let writes = world.cluster.lock().expect("not poisoned").status_writes;
    let again = ask(&world, &action).await.json();
    assert_eq!((&again["id"], &again["state"]), (&json!(2), &json!("allowed")));
    assert_eq!(world.cluster.lock().expect("not poisoned").status_writes, writes + 2, "born pending, then allowed");
    let record = world.live("fix-it")["status"]["approvals"][1].clone();
    assert_eq!((&record["decidedBy"], &record["scope"]), (&json!("alice"), &json!("session")));
    assert_eq!(consume(&world, 2, &action, "x1").await.json()["state"], "consumed");
    assert_eq!(ask(&world, &command(&["make", "all"])).await.json()["state"], "pending", "another command is another question");
}

#[tokio::test(flavor = "multi_thread")]
async fn cancelling_denies_and_asks_the_run_to_end() {
    let world = world();
    ask(&world, &command(&["ls"])).await;
    let cancel = json!({"decision": "cancel", "reason": "stop this"});
    assert_eq!(say(&world, ALICE, 1, cancel.clone()).await.json()["state"], "denied");
    assert_eq!(world.live("fix-it")["spec"]["cancel"], true);
    assert_eq!(say(&world, ALICE, 1, cancel).await.status, StatusCode::OK, "the same again");
    assert_eq!(runner(&world, "GET", &format!("{ASK}/1?wait=25"), &Value::Null).await.refusal().1, "inactive_run_token");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_wait_ends_with_the_decision() {
    let world = world();
    ask(&world, &command(&["ls"])).await;
    let path = format!("{ASK}/1?wait=25");
    let waiting = world.runner_as(Audience::Approvals, RUN_UID, "GET", &path, "");
    let deciding = async {
        tokio::time::sleep(Duration::from_millis(50)).await; // so that it waits; an earlier decision passes the test as well
        let allowed = world.person_sends(ALICE, "POST", &format!("{PEOPLE}/1"), &allow()).await;
        assert_eq!(allowed.status, StatusCode::OK);
        world.state.runs.changed_for_test(serde_json::from_value(world.live("fix-it")).expect("a run"));
    };
    let begun = std::time::Instant::now();
    let (answer, ()) = tokio::join!(waiting, deciding);
    assert_eq!(answer.json()["state"], "allowed");
    assert!(begun.elapsed() < Duration::from_secs(10), "woken by the watch: {:?}", begun.elapsed());
    ask(&world, &command(&["pwd"])).await;
    let answer = runner(&world, "GET", &format!("{ASK}/2?wait=1"), &Value::Null).await.json();
    assert_eq!(answer["state"], "pending", "the wait is over");
}

#[tokio::test(flavor = "multi_thread")]
async fn approvals_work_when_the_budget_is_spent_and_move_the_deadline() {
    let world = world_with(&json!({"maxPauseSeconds": 1000}));
    world.edit("fix-it", |run| run["status"]["budget"]["spent"]["requests"] = 10.into());
    let action = command(&["ls"]);
    ask(&world, &action).await;
    world.now.store(NOW + 100, Ordering::SeqCst);
    let answer = runner(&world, "GET", &format!("{ASK}/1"), &Value::Null).await.json();
    assert_eq!(answer["deadline"], NOW + 180 + 100);
    say(&world, ALICE, 1, allow()).await;
    world.now.store(NOW + 150, Ordering::SeqCst);
    assert_eq!(consume(&world, 1, &action, "x").await.json()["deadline"], NOW + 180 + 100);
    assert_eq!(world.live("fix-it")["status"]["waitedSeconds"], 100);
}

#[tokio::test(flavor = "multi_thread")]
async fn of_many_decisions_at_once_one_stands() {
    let world = world();
    ask(&world, &command(&["ls"])).await;
    // Somebody else is faster than the first, who then reads live.
    world.cluster.lock().expect("not poisoned").meanwhile = Some(|run| run["status"]["budget"]["spent"]["requests"] = 3.into());
    let path = format!("{PEOPLE}/1");
    let sayings = [(ALICE, "allow_once"), (BOB, "allow_once"), (BOB, "deny"), (ALICE, "allow_session"), (ALICE, "deny")];
    let answers = futures::future::join_all(sayings.map(|(who, decision)| {
        let (world, path) = (&world, path.as_str());
        async move { world.person_sends(who, "POST", path, &json!({ "decision": decision })).await.status.as_u16() }
    }))
    .await;
    assert_eq!(answers.iter().filter(|status| **status == 200).count(), 1, "{answers:?}");
    assert_eq!(answers.iter().filter(|status| **status == 409).count(), 4, "{answers:?}");
    let status = world.live("fix-it")["status"].clone();
    let totals = &status["approvalTotals"];
    assert_eq!(totals["allowed"].as_i64().zip(totals["denied"].as_i64()).map(|(a, d)| a + d), Some(1));
    assert_eq!(status["budget"]["spent"]["requests"], 3, "and nobody else's write was lost");
}

#[tokio::test(flavor = "multi_thread")]
async fn the_list_stays_short_and_what_leaves_it_is_in_the_log() {
    let world = world();
    for number in 1..=40i64 {
        let action = command(&["echo", &number.to_string()]);
        let asked = ask(&world, &action).await.json();
        assert_eq!(asked["id"], number);
        say(&world, ALICE, number, json!({"decision": "deny"})).await;
    }
    let status = world.live("fix-it")["status"].clone();
    let ids: Vec<i64> = status["approvals"].as_array().expect("a list").iter().filter_map(|a| a["id"].as_i64()).collect();
    assert_eq!(ids, (9..=40).collect::<Vec<i64>>());
    assert_eq!(status["approvalTotals"], json!({"asked": 40, "allowed": 0, "denied": 40, "expired": 0}));
    let events = world.person(ALICE, "/v1/namespaces/team/runs/fix-it/events", &[]).await;
    for id in 1..=8 {
        let line = format!(r#"{{"decidedBy":"alice","id":{id},"kind":"run_command","state":"denied","summary":"echo {id}"}}"#);
        assert!(events.text().contains(&line), "no denial of {id} in the log");
    }
    for number in 0..16 {
        assert_eq!(ask(&world, &command(&["open", &number.to_string()])).await.status, StatusCode::OK);
    }
    assert_eq!(ask(&world, &command(&["open", "one more"])).await.refusal(), (409, "too_many_approvals".into(), None));
}
