//! Following a run over broken connections, and what the process ends with.

use std::time::Duration;

use serde_json::json;
use tokio::io::AsyncReadExt;

use crate::fake::{Answer, Fake, Piece, ended, event, run};

const LOG: &str = "/apis/run.agentrun.dev/v1alpha1/namespaces/team-a/agentruns/r/log";
const RUN: &str = "/apis/agentrun.dev/v1alpha1/namespaces/team-a/agentruns/r";

fn step(seq: i64) -> String {
    event(seq, "step", &json!({ "step": seq, "maxSteps": 20 }))
}

fn end(seq: i64) -> String {
    event(seq, "end", &json!({ "phase": "Succeeded", "reason": "Succeeded" }))
}

#[tokio::test]
async fn each_event_comes_once_and_in_order_over_every_kind_of_break() {
    // What each connection of the follower meets.
    let fake = Fake::new(|asked, before| {
        if asked.path.starts_with(RUN) {
            return Answer::json(200, &run("r", json!({ "phase": "Running" })));
        }
        let bytes = |text: String| Piece::Bytes(text.into());
        match before {
            // The gateway does not know the run yet.
            0 => Answer::refusal(404, "not_found", "there is no AgentRun r in namespace team-a"),
            1 => Answer::text(503, "service unavailable"),
            // Cut in the middle of a line.
            2 => Answer::pieces(vec![bytes(step(1) + &step(2)), bytes(step(3)[..20].to_owned()), Piece::Cut]),
            // Heartbeats, a repeat of what was seen, and an end of the connection without a word.
            3 => Answer::pieces(vec![bytes("\n\n".to_owned() + &step(2) + &step(3))]),
            // The gateway says where to resume.
            4 => Answer::pieces(vec![bytes(step(4) + "{\"error\":{\"code\":\"stream_too_long\",\"message\":\"resume with ?after=4\"}}\n")]),
            // The APIService was withdrawn while the gateway starts again.
            5 => Answer::text(404, "404 page not found"),
            6 => Answer::status(500, "InternalError", "restarting"),
            _ => Answer::pieces(vec![bytes(step(5)), Piece::Pause(Duration::from_millis(50)), bytes(end(6)), Piece::Silence]),
        }
    })
    .await;
    let ended = fake.run(&["events", "r", "-f", "-o", "json"]).await.with(0);
    let expected: String = (1..=5).map(step).chain([end(6)]).collect();
    assert_eq!(ended.stdout, expected);
    let asked: Vec<String> = fake.asked().iter().filter(|asked| asked.path.starts_with(LOG)).map(|asked| asked.path.clone()).collect();
    let after: Vec<&str> = asked.iter().filter_map(|path| path.split("after=").nth(1)).collect();
    assert_eq!(after, ["0", "0", "0", "2", "3", "4", "4", "4"]);
    assert!(asked.iter().all(|path| path.contains("follow=true")));
}

#[tokio::test]
async fn without_following_what_is_there_is_read_and_no_more() {
    let fake = Fake::new(|_, _| Answer::text(200, step(5) + &step(6))).await;
    let ended = fake.run(&["events", "r", "--after", "4"]).await.with(0);
    assert_eq!(ended.stdout.lines().count(), 2);
    assert!(
        ended.stdout.starts_with("    5  2026-01-01T00:00:00.000Z  step            {\"maxSteps\":20,\"step\":5}\n"),
        "{}",
        ended.stdout
    );
    assert_eq!(fake.asked()[0].path, "/apis/run.agentrun.dev/v1alpha1/namespaces/team-a/agentruns/r/events?after=4");
    assert_eq!(fake.asked().len(), 1);
    assert_eq!(fake.asked()[0].headers["authorization"], "Bearer secret");
}

#[tokio::test]
async fn the_status_is_the_run_s() {
    for (phase, reason, code) in [
        ("Succeeded", "Succeeded", 0),
        ("Failed", "AgentError", 1),
        ("Failed", "PolicyDenied", 3),
        ("Failed", "ChecksFailed", 4),
        ("Failed", "Denied", 5),
        ("Failed", "BudgetExhausted", 6),
        ("Cancelled", "Cancelled", 7),
        ("Failed", "DeadlineExceeded", 8),
        ("Failed", "ProviderUnavailable", 10),
        ("Failed", "OfTheFuture", 1),
    ] {
        let fake = Fake::new(move |asked, _| {
            if asked.path.starts_with(RUN) {
                Answer::json(200, &run("r", ended(phase, reason)))
            } else {
                Answer::text(200, event(1, "end", &json!({ "phase": phase, "reason": reason })))
            }
        })
        .await;
        fake.run(&["watch", "r"]).await.with(code).says(&format!("it ended with {reason}"));
        fake.run(&["wait", "r"]).await.with(code);
        // What was said is not how it ended.
        fake.run(&["logs", "r", "-f"]).await.with(0);
    }
}

#[tokio::test]
async fn the_last_event_counts_where_the_object_is_gone() {
    let fake = Fake::new(|asked, _| {
        if asked.path.starts_with(RUN) {
            Answer::status(404, "NotFound", "agentruns.agentrun.dev \"r\" not found")
        } else {
            Answer::text(200, event(1, "end", &json!({ "phase": "Failed", "reason": "ChecksFailed" })))
        }
    })
    .await;
    fake.run(&["watch", "r"]).await.with(4);
}

#[tokio::test]
async fn a_run_that_is_not_there_is_told_at_once() {
    let fake = Fake::new(|asked, _| {
        if asked.path.starts_with(RUN) {
            Answer::status(404, "NotFound", "agentruns.agentrun.dev \"r\" not found")
        } else {
            Answer::refusal(404, "not_found", "there is no AgentRun r in namespace team-a")
        }
    })
    .await;
    for verb in [vec!["watch", "r"], vec!["logs", "-f", "r"], vec!["events", "r"], vec!["wait", "r"], vec!["cancel", "r"], vec!["why", "r"]]
    {
        fake.run(&verb).await.with(3).says("there is no AgentRun r in namespace team-a");
    }
}

#[tokio::test]
async fn a_deleted_run_ends_its_followers() {
    let fake = Fake::new(|asked, before| match asked.path.starts_with(RUN) {
        true => Answer::status(404, "NotFound", "agentruns.agentrun.dev \"r\" not found"),
        false if before == 0 => Answer::pieces(vec![Piece::Bytes(step(1).into()), Piece::Cut]),
        false => Answer::refusal(404, "not_found", "no run"),
    })
    .await;
    let ended = fake.run(&["logs", "-f", "r"]).await.with(3).says("AgentRun r was deleted");
    assert_eq!(ended.stdout.lines().count(), 1);
}

#[tokio::test]
async fn the_time_of_timeout_is_a_status_of_its_own() {
    let fake = Fake::new(|asked, _| match asked.path.starts_with("/apis/agentrun.dev") {
        true => Answer::json(200, &run("r", json!({ "phase": "Running" }))),
        false => Answer::pieces(vec![Piece::Bytes(step(1).into()), Piece::Silence]),
    })
    .await;
    fake.run(&["watch", "r", "--timeout", "1s"]).await.with(9).says("r is still running");
    fake.run(&["wait", "r", "--timeout", "1s"]).await.with(9);
}

#[tokio::test]
async fn waiting_sees_the_change_by_a_watch() {
    let fake = Fake::new(|asked, _| {
        let running = run("r", json!({ "phase": "Running" }));
        if asked.path.contains("watch=true") {
            let change = json!({ "type": "MODIFIED", "object": run("r", ended("Failed", "ChecksFailed")) });
            Answer::pieces(vec![Piece::Bytes(format!("{change}\n").into()), Piece::Silence])
        } else if asked.path.contains("fieldSelector") {
            Answer::json(200, &json!({ "apiVersion": "agentrun.dev/v1alpha1", "kind": "AgentRunList", "metadata": { "resourceVersion": "7" }, "items": [running] }))
        } else {
            Answer::json(200, &running)
        }
    })
    .await;
    fake.run(&["wait", "r", "--timeout", "50s"]).await.with(4);
    assert!(fake.asked().iter().any(|asked| asked.path.contains("watch=true")));
}

#[tokio::test]
async fn a_gateway_that_was_never_there_is_told_at_once_with_what_to_do() {
    for answer in [
        (404, "404 page not found"),
        (404, r#"{"kind":"Status","reason":"NotFound","message":"the server could not find the requested resource"}"#),
    ] {
        let fake = Fake::new(move |_, _| Answer::text(answer.0, answer.1)).await;
        for verb in [
            vec!["logs", "r"],
            vec!["watch", "r"],
            vec!["patch", "r"],
            vec!["approve", "r", "1"],
            vec!["artifacts", "r"],
            vec!["approvals", "r"],
        ] {
            fake.run(&verb).await.with(3).says("the gateway is not reachable through the cluster").says("kubectl agentrun doctor");
        }
    }
}

#[tokio::test]
async fn a_reader_that_goes_ends_us_quietly() {
    let fake = Fake::new(|_, _| {
        let all: String = (1..=20_000).map(step).collect();
        Answer::text(200, all)
    })
    .await;
    let mut child = fake.command(&["logs", "r"]).spawn().expect("it starts");
    let mut some = [0; 100];
    let mut stdout = child.stdout.take().expect("a pipe");
    stdout.read_exact(&mut some).await.expect("some of it");
    drop(stdout);
    let output = tokio::time::timeout(Duration::from_secs(60), child.wait_with_output()).await.expect("it ends").expect("it ran");
    assert_eq!((output.status.code(), String::from_utf8_lossy(&output.stderr).as_ref()), (Some(141), ""));
}

#[tokio::test]
async fn the_keyboard_ends_us_and_not_the_run() {
    let fake = Fake::new(|asked, _| match asked.path.starts_with("/apis/agentrun.dev") {
        true => Answer::json(200, &run("r", json!({ "phase": "Running" }))),
        false => Answer::pieces(vec![Piece::Bytes(step(1).into()), Piece::Silence]),
    })
    .await;
    let mut child = fake.command(&["watch", "r"]).spawn().expect("it starts");
    let mut first = [0; 10];
    child.stdout.as_mut().expect("a pipe").read_exact(&mut first).await.expect("the first event");
    let pid = rustix::process::Pid::from_raw(i32::try_from(child.id().expect("it runs")).expect("a process id")).expect("not 0");
    rustix::process::kill_process(pid, rustix::process::Signal::INT).expect("signalled");
    let output = tokio::time::timeout(Duration::from_secs(60), child.wait_with_output()).await.expect("it ends").expect("it ran");
    assert_eq!(output.status.code(), Some(130), "{output:?}");
    assert!(fake.asked().iter().all(|asked| asked.method == "GET"));
}
