//! Whole attempts: from the exchange to the accepted result, and every way in which one can end early.

use std::time::Duration;

use agentrun_crds::{
    conditions::Reason,
    network_probe::{NetworkProbe, NetworkTarget, ProbeOutcome},
};
use agentrun_protocol::{
    event::EventType,
    exchange::Wall,
    job::{Job, JobCheck, JobFile},
    result::{Outcome, ResultResponse, SandboxResult},
};
use agentrun_runner::{Failed, confinement::ProcFacts, deadline::unix_now, network::Place as NetworkPlace, run, staging::digest};
use serde_json::{Value, json};
use tokio::process::Child;
use tokio_util::sync::CancellationToken;

use crate::{
    fake_gateway::{Gateway, Running, Setup, TICKET, Turn, confined},
    sandbox::{Place, eventually, mark, marked, spawn_executor},
};

const TEST: &str = "grep -q fixed app.txt && echo green || { echo red >&2; exit 1; }\n";

fn file(path: &str, content: &str, executable: bool) -> JobFile {
    JobFile { path: path.into(), content: content.into(), executable }
}

pub fn job() -> Job {
    Job {
        run_uid: "11111111-2222-3333-4444-555555555555".into(),
        namespace: "team".into(),
        name: "fix".into(),
        attempt: 1,
        instruction: "Fix it.".into(),
        files: vec![file("app.txt", "broken\n", false), file("test.sh", TEST, true), file("old/gone.txt", "x", false)],
        archive: None,
        tree: None,
        approvals: None,
        allowed_paths: vec!["**".into()],
        checks: vec![JobCheck { name: "unit".into(), argv: vec!["sh".into(), "test.sh".into()] }],
        model: "small".into(),
        max_steps: 8,
        harness: None,
        deadline: unix_now() + 120,
    }
}

pub fn setup(script: Vec<Turn>) -> Setup {
    Setup { job: job(), script, exchange_faults: vec![], exchange_fault_code: "fault", lifetime: 900 }
}

pub fn tool(name: &'static str, arguments: Value) -> Turn {
    Turn::Use(vec![(name, arguments.to_string())])
}

pub fn sh(script: &str) -> Turn {
    tool("run_command", json!({"argv": ["sh", "-c", script]}))
}

/// A run in progress.
pub struct Started {
    pub place: Place,
    running: Running,
    executor: Child,
}

impl Started {
    pub async fn new(setup: Setup) -> Self {
        let place = Place::new();
        let running = setup.start(&place).await;
        let executor = spawn_executor(&place.socket(), &place.root());
        Started { place, running, executor }
    }

    pub async fn run(&self) -> Result<ResultResponse, Failed> {
        self.run_until(CancellationToken::new()).await
    }

    /// The same, as long as nobody asks it to end.
    pub async fn run_until(&self, stop: CancellationToken) -> Result<ResultResponse, Failed> {
        run(self.running.config.clone(), &confined(), stop).await
    }

    pub fn gateway(&self) -> &Gateway {
        &self.running.gateway
    }

    pub fn result(&self) -> SandboxResult {
        self.gateway().seen.lock().unwrap().result.clone().expect("a result must have been posted")
    }
}

pub async fn finished(setup: Setup) -> (Started, SandboxResult) {
    let started = Started::new(setup).await;
    started.run().await.unwrap();
    let result = started.result();
    (started, result)
}

/// A tar archive of these files, and its digest.
fn archive(files: &[(&str, &str, u32)]) -> (Vec<u8>, String) {
    let mut builder = tar::Builder::new(Vec::new());
    for (path, content, mode) in files {
        let mut header = tar::Header::new_gnu();
        header.set_mode(*mode);
        header.set_size(content.len() as u64);
        builder.append_data(&mut header, path, content.as_bytes()).unwrap();
    }
    let bytes = builder.into_inner().unwrap();
    let digest = digest(&bytes);
    (bytes, digest)
}

#[tokio::test]
async fn a_source_archive_is_staged_and_is_the_base_of_changes() {
    let deep = format!("{}app.txt", "deep/".repeat(30));
    let (bytes, named) = archive(&[(&deep, "broken\n", 0o644), ("test.sh", "exit 0\n", 0o755)]);
    let script =
        vec![tool("edit_file", json!({"path": deep, "old_text": "broken", "new_text": "fixed"})), Turn::Say("Done: it said broken.")];
    let mut setup = setup(script);
    setup.job = Job { files: vec![], archive: Some(named.clone()), ..setup.job };
    let started = Started::new(setup).await;
    started.gateway().seen.lock().unwrap().blobs.insert(named, bytes.into());
    // The gateway may not have it just then.
    started.gateway().faults.lock().unwrap().push_back(503);
    started.run().await.unwrap();
    let result = started.result();
    assert_eq!((result.outcome, result.manifest_complete), (Outcome::Done, true), "{}", result.message);
    let state = |content: &str| json!({"digest": digest(content.as_bytes()), "mode": 644});
    let changes = serde_json::to_value(&result.changes).unwrap();
    assert_eq!(changes, json!([{"path": deep, "before": state("broken\n"), "after": state("fixed\n")}]));
    let told = started.gateway().seen.lock().unwrap().requests[0]["messages"][1]["content"].to_string();
    assert!(told.contains(&deep) && told.contains("- test.sh"), "{told}");
}

#[tokio::test]
async fn a_source_archive_that_is_another_is_not_staged() {
    let (bytes, named) = archive(&[("a.txt", "a", 0o644)]);
    let (others, _) = archive(&[("b.txt", "b", 0o644)]);
    for (served, part) in [(Some(others), "its digest is"), (None, "could not be fetched"), (Some(bytes[..600].to_vec()), "its digest is")]
    {
        let mut setup = setup(vec![]);
        setup.job = Job { files: vec![], archive: Some(named.clone()), ..setup.job };
        let started = Started::new(setup).await;
        if let Some(served) = served {
            started.gateway().seen.lock().unwrap().blobs.insert(named.clone(), served.into());
        }
        started.run().await.unwrap();
        let result = started.result();
        assert_eq!((result.outcome, result.changes.len()), (Outcome::SourceUnavailable, 0));
        assert!(result.message.contains(part), "{}", result.message);
    }
}

#[tokio::test]
async fn the_tree_of_a_commit_is_staged_only_if_it_is_the_one_that_was_fetched() {
    let (bytes, named) = archive(&[("a/b.txt", "b", 0o644), ("run", "r", 0o755)]);
    // git: the same two files, added, and `git write-tree`.
    for (tree, outcome) in [
        ("81772842745a421bd3cea897260d5abed705f26f", Outcome::Done),
        ("4b825dc642cb6eb9a060e54bf8d69288fbee4904", Outcome::SourceUnavailable),
    ] {
        let mut setup = setup(vec![Turn::Say("Done.")]);
        setup.job = Job { files: vec![], checks: vec![], archive: Some(named.clone()), tree: Some(tree.into()), ..setup.job };
        let started = Started::new(setup).await;
        started.gateway().seen.lock().unwrap().blobs.insert(named.clone(), bytes.clone().into());
        started.run().await.unwrap();
        let result = started.result();
        assert_eq!(result.outcome, outcome, "{}", result.message);
        assert_eq!(result.message.contains("its files make the tree"), outcome != Outcome::Done, "{}", result.message);
    }
}

#[tokio::test]
async fn a_run_ends_with_a_checked_change() {
    let (started, result) = finished(setup(vec![
        Turn::Use(vec![("list", "{}".into()), ("read_file", json!({"path": "./app.txt"}).to_string())]),
        sh("sh test.sh; git status --short; git log --format=%s"),
        tool("edit_file", json!({"path": "app.txt", "old_text": "broken", "new_text": "fixed"})),
        tool("write_file", json!({"path": "new/deep/file.txt", "content": "n"})),
        sh("rm -r old; chmod +x app.txt; mkdir -p a/__pycache__ node_modules/x && touch a/__pycache__/b.pyc node_modules/x/y; sh test.sh"),
        Turn::Say("Done: it said broken."),
    ]))
    .await;
    let gateway = started.gateway();
    assert_eq!((result.outcome, result.steps, result.manifest_complete), (Outcome::Done, 6, true));
    assert_eq!(result.message, "Done: it said broken.");
    let changes: Vec<Value> = result.changes.iter().map(|change| serde_json::to_value(change).unwrap()).collect();
    let state = |content: &str, mode: u32| json!({"digest": digest(content.as_bytes()), "mode": mode});
    assert_eq!(
        changes,
        [
            json!({"path": "app.txt", "before": state("broken\n", 644), "after": state("fixed\n", 755)}),
            json!({"path": "new/deep/file.txt", "after": state("n", 644)}),
            json!({"path": "old/gone.txt", "before": state("x", 644)}),
        ]
    );
    {
        let seen = gateway.seen.lock().unwrap();
        assert_eq!(seen.blobs[&digest(b"fixed\n")], "fixed\n");
        assert_eq!(seen.exchanges.len(), 1);
        assert_eq!(seen.exchanges[0].walls.len(), Wall::REQUIRED.len() + 1);
        assert_eq!(seen.unauthorised, 0);
    }
    let check = &result.checks[0];
    assert_eq!((check.name.as_str(), check.exit_code, result.checks.len()), ("unit", Some(0), 1));
    assert_eq!(check.log, Some(digest(b"green\n")));
    assert_eq!(gateway.artifact("check-unit.log"), "green\n");

    // What the model was told.
    let requests = gateway.seen.lock().unwrap().requests.clone();
    let said = |number: usize| requests[number]["messages"].as_array().unwrap().last().unwrap()["content"].as_str().unwrap().to_owned();
    let task = requests[0]["messages"][1]["content"].as_str().unwrap();
    assert!(task.starts_with("Fix it.") && task.contains("- app.txt\n") && task.contains(r#"unit: ["sh","test.sh"]"#), "{task}");
    assert_eq!(requests[0]["model"], "small");
    assert_eq!(requests[0]["tools"].as_array().unwrap().len(), 6);
    assert_eq!(said(1), "broken\n");
    // Two pipes, which are read as they come.
    let either = ["exit code 0\nred\nbase\n", "exit code 0\nbase\nred\n"];
    assert!(either.contains(&said(2).as_str()), "{:?}: the base commit is there, and nothing differs from it", said(2));
    assert_eq!(said(3), "replaced the text in app.txt");
    assert_eq!(said(5), "exit code 0\ngreen\n");

    // What was seen from outside, in order.
    let kinds: Vec<EventType> = gateway.seen.lock().unwrap().events.iter().map(|event| event.kind).collect();
    let first_and_last = (kinds[0], &kinds[kinds.len() - 4..]);
    use EventType::*;
    assert_eq!(first_and_last, (Step, &[Message, CheckStarted, Output, CheckFinished][..]));
    assert_eq!(gateway.events_of(Step).len(), 6);
    assert_eq!(
        gateway.events_of(ToolCall)[2],
        json!({"step": 2, "tool": "run_command", "arguments": {"argv": ["sh", "-c", "sh test.sh; git status --short; git log --format=%s"]}})
    );
    assert!(gateway.events_of(Output).contains(&json!({"stream": "stderr", "text": "red\n"})));
    let finished = &gateway.events_of(CheckFinished)[0];
    assert_eq!((&finished["exitCode"], &finished["output"]), (&json!(0), &json!("green\n")));

    // Artifacts, and no secret in anything that was sent.
    let names: Vec<String> = gateway.seen.lock().unwrap().artifacts.keys().cloned().collect();
    assert_eq!(names, ["check-unit.log", "checkpoint.json", "request.json", "result.json", "transcript.ndjson"]);
    assert_eq!(gateway.artifact("transcript.ndjson").lines().count(), 2 + 6 + 6);
    let checkpoint: Value = serde_json::from_str(&gateway.artifact("checkpoint.json")).unwrap();
    assert_eq!((&checkpoint["step"], &checkpoint["inputTokens"]), (&json!(6), &json!(60)));
    let seen = gateway.seen.lock().unwrap();
    let mut sent = serde_json::to_string(&seen.events).unwrap() + &serde_json::to_string(&seen.requests).unwrap();
    seen.blobs.values().for_each(|blob| sent.push_str(&String::from_utf8_lossy(blob)));
    assert!(sent.contains("broken"), "the search must be able to find something");
    assert!(!sent.contains("canary") && !sent.contains(std::str::from_utf8(&TICKET).unwrap()));
}

#[tokio::test]
async fn the_models_mistakes_are_told_to_it() {
    let many: Vec<_> = (0..20).map(|_| ("list", "{}".to_owned())).collect();
    let (started, result) = finished(setup(vec![
        Turn::Use(vec![
            ("rm", "{}".into()),
            ("read_file", "{\"path\":".into()),
            ("run_command", json!({"argv": "ls -l"}).to_string()),
            ("read_file", json!({"path": "../../etc/passwd"}).to_string()),
            ("edit_file", json!({"path": "app.txt", "old_text": "absent", "new_text": "x"}).to_string()),
            ("run_command", json!({"argv": ["no-such-program"]}).to_string()),
            ("write_file", json!({"path": "old", "content": ""}).to_string()),
        ]),
        Turn::Use(many),
        Turn::Body(r#"{"choices": [{"message": {"content": "half of an ans"}, "finish_reason": "length"}]}"#),
        Turn::Say(""),
        Turn::Say("There is nothing to do."),
    ]))
    .await;
    assert_eq!((result.outcome, result.changes.len(), result.checks[0].exit_code), (Outcome::Done, 0, Some(1)));
    let requests = started.gateway().seen.lock().unwrap().requests.clone();
    let told: Vec<&str> = requests[1]["messages"].as_array().unwrap()[3..].iter().map(|m| m["content"].as_str().unwrap()).collect();
    for (text, part) in told.iter().zip([
        "there is no tool \"rm\"",
        "not JSON",
        "expected a sequence",
        "'..'",
        "does not occur",
        "could not be started",
        "is a directory",
    ]) {
        assert!(text.contains(part), "{text}");
    }
    assert_eq!(told.len(), 7);
    let last = |number: usize| requests[number]["messages"].as_array().unwrap().last().unwrap().clone();
    assert!(last(2)["content"].as_str().unwrap().contains("at most 16 tool calls"));
    assert!(last(3)["content"].as_str().unwrap().contains("cut off"));
    assert!(last(4)["content"].as_str().unwrap().contains("neither text nor a tool call"));
    let results = started.gateway().events_of(EventType::ToolResult);
    assert_eq!((results.len(), results.iter().filter(|result| result["ok"] == true).count()), (7 + 16, 16));
}

#[tokio::test]
async fn refusals_end_the_run_as_what_they_are() {
    let spent = || Turn::Refuse(403, "model_request_budget_exhausted", Some(("x-should-retry", "false")));
    let soon = || Turn::Refuse(429, "rate_limit_exceeded", Some(("retry-after", "0")));
    let down = || Turn::Refuse(500, "provider_error", Some(("retry-after", "0")));
    let say = || Turn::Say("done");
    for (script, outcome, steps, checks) in [
        (vec![sh("echo x > y"), spent()], Outcome::BudgetExhausted, 1, 0),
        (vec![soon(), down(), say()], Outcome::Done, 1, 1),
        (vec![down(), down(), down(), down(), down(), down()], Outcome::ProviderUnavailable, 0, 0),
        (vec![Turn::Refuse(503, "storage_unavailable", Some(("x-should-retry", "false")))], Outcome::GatewayUnavailable, 0, 0),
        (vec![Turn::Refuse(502, "provider_misconfigured", Some(("x-should-retry", "false")))], Outcome::ProviderMisconfigured, 0, 0),
        (vec![Turn::Refuse(429, "provider_rate_limited", Some(("retry-after", "3000")))], Outcome::ProviderUnavailable, 0, 0),
        (vec![Turn::Refuse(502, "provider_auth_failed", None)], Outcome::ProviderAuthFailed, 0, 0),
        (vec![Turn::Refuse(401, "inactive_run_token", None)], Outcome::AgentError, 0, 0),
        (vec![Turn::Refuse(400, "context_length_exceeded", None)], Outcome::AgentError, 0, 0),
        (vec![Turn::Refuse(422, "bad", None)], Outcome::AgentError, 0, 0),
        (vec![Turn::Say(""), Turn::Say(" \n")], Outcome::AgentError, 2, 0),
    ] {
        let mut setup = setup(script);
        // So that a wait that is too long is seen to be.
        setup.job.deadline = unix_now() + 60;
        let (started, result) = finished(setup).await;
        let reached = (result.outcome, result.steps, result.checks.len());
        assert_eq!(reached, (outcome, steps, checks), "{}", result.message);
        assert_eq!(result.changes.len(), usize::from(outcome == Outcome::BudgetExhausted), "what was done is kept");
        assert!(started.gateway().script_is_done(), "{}", result.message);
    }
}

#[tokio::test]
async fn the_last_step_is_still_performed_and_checked() {
    let mut setup = setup(vec![sh("true"), tool("edit_file", json!({"path": "app.txt", "old_text": "broken", "new_text": "fixed"}))]);
    setup.job.max_steps = 2;
    setup.job.checks.push(JobCheck { name: "missing".into(), argv: vec!["no-such-program".into()] });
    let (started, result) = finished(setup).await;
    assert_eq!((result.outcome, result.steps, result.changes.len()), (Outcome::StepLimit, 2, 1));
    assert_eq!((result.checks[0].exit_code, result.checks[1].exit_code), (Some(0), None));
    assert!(started.gateway().artifact("check-missing.log").contains("could not be started"));
}

#[tokio::test]
async fn the_deadline_cuts_a_command_short_and_the_result_still_arrives() {
    let mark = mark();
    let mut setup = setup(vec![
        sh("echo kept > kept.txt"),
        tool("run_command", json!({"argv": ["sh", "-c", format!("setsid sleep {mark} & sleep {mark}")], "timeout_seconds": 3000})),
        Turn::Say("never"),
    ]);
    setup.job.deadline = unix_now() + 10;
    let (_started, result) = finished(setup).await;
    assert_eq!((result.outcome, result.checks.len()), (Outcome::Deadline, 0));
    assert_eq!(result.changes.iter().map(|change| change.path.as_str()).collect::<Vec<_>>(), ["kept.txt"]);
    assert_eq!(marked(&mark), [""; 0]);
}

#[tokio::test]
async fn a_lost_executor_is_reported() {
    let mark = mark();
    let mut started = Started::new(setup(vec![sh(&format!("sleep {mark}")), Turn::Say("never")])).await;
    let mut executor = std::mem::replace(&mut started.executor, spawn_executor(&started.place.file("none"), &started.place.root()));
    let kill = async {
        eventually("the command's start", || marked(&mark).iter().any(|line| line.starts_with("sleep"))).await;
        executor.kill().await.unwrap();
    };
    let (outcome, ()) = tokio::join!(started.run(), kill);
    outcome.unwrap();
    let result = started.result();
    assert_eq!((result.outcome, result.changes.len()), (Outcome::ExecutorLost, 0));
    eventually("the command's end", || marked(&mark).is_empty()).await;
}

#[tokio::test]
async fn what_cannot_be_in_a_patch_makes_the_manifest_incomplete() {
    let (_started, result) = finished(setup(vec![
        sh("ln -s /etc/passwd link; echo 1 > fine; echo 2 > \"$(printf 'a\\nb')\"; mkdir sub; cd sub; git init -q"),
        Turn::Say("done"),
    ]))
    .await;
    assert!(!result.manifest_complete && result.message.contains("link: it is a symbolic link"), "{}", result.message);
    assert!(result.message.contains("a\\u{a}b: a path of a patch cannot"), "{}", result.message);
    assert!(result.message.contains("sub/.git") && result.message.ends_with("done"), "{}", result.message);
    assert_eq!(result.changes.iter().map(|change| change.path.as_str()).collect::<Vec<_>>(), ["fine"]);
}

#[tokio::test]
async fn a_source_that_cannot_be_staged_ends_the_run() {
    let mut setup = setup(vec![]);
    setup.job.files.push(file("app.txt/below", "", false));
    let (_started, result) = finished(setup).await;
    assert_eq!(result.outcome, Outcome::SourceUnavailable);
    assert!(result.message.contains("app.txt/below"), "{}", result.message);
}

#[tokio::test]
async fn a_lost_reply_of_the_exchange_is_asked_for_again_with_the_same_key() {
    let mut faulty = setup(vec![Turn::Say("done")]);
    faulty.exchange_faults = vec![503, 502];
    let (started, _) = finished(faulty).await;
    let seen = started.gateway().seen.lock().unwrap();
    assert_eq!(seen.exchanges.len(), 3);
    let same = |request: &agentrun_protocol::exchange::ExchangeRequest| {
        (request.public_key.clone(), request.nonce.clone(), request.signature.clone())
    };
    assert!(seen.exchanges.iter().all(|request| same(request) == same(&seen.exchanges[0])));
}

#[tokio::test]
async fn a_refused_exchange_is_final() {
    for status in [401, 403] {
        let mut refused = setup(vec![]);
        refused.exchange_faults = vec![status];
        let started = Started::new(refused).await;
        let failed = started.run().await.unwrap_err();
        assert_eq!(failed.reason, Reason::SandboxLost);
        assert!(failed.message.contains(&status.to_string()) && !failed.message.contains("canary"), "{}", failed.message);
        assert_eq!(started.gateway().seen.lock().unwrap().exchanges.len(), 1);
    }
}

#[tokio::test]
async fn without_walls_nothing_is_asked_for() {
    let started = Started::new(setup(vec![])).await;
    let facts = ProcFacts { root_read_only: false, ..confined() };
    let failed = run(started.running.config.clone(), &facts, CancellationToken::new()).await.unwrap_err();
    assert_eq!(failed.reason, Reason::ConfinementFailed);
    assert!(failed.message.contains("readOnlyRoot"));
    assert!(!started.place.socket().exists());
    assert!(started.gateway().seen.lock().unwrap().exchanges.is_empty());
}

/// Somebody whom a sandbox must not reach, and who answers.
async fn fenced_listener() -> (tokio::net::TcpListener, NetworkPlace) {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let place = format!("apiServer=tcp/{}/127.0.0.1", listener.local_addr().unwrap().port());
    (listener, place.parse().unwrap())
}

#[tokio::test]
async fn an_open_network_is_reported_and_the_refusal_ends_the_run() {
    let mut refused = setup(vec![]);
    refused.exchange_faults = vec![403];
    refused.exchange_fault_code = "network_not_enforced";
    let mut started = Started::new(refused).await;
    let (_listener, place) = fenced_listener().await;
    started.running.config.network.fenced = vec![place];
    let failed = started.run().await.unwrap_err();
    assert_eq!(failed.reason, Reason::NetworkNotEnforced);
    let seen = started.gateway().seen.lock().unwrap();
    let probe = NetworkProbe { target: NetworkTarget::ApiServer, outcome: ProbeOutcome::Reached };
    assert_eq!((seen.exchanges.len(), seen.exchanges[0].network.as_slice()), (1, &[probe][..]));
    assert!(seen.requests.is_empty(), "no model call without tokens");
}

#[tokio::test]
async fn a_network_that_opens_later_ends_the_run() {
    // A model that never answers: nothing else ends this run.
    let mut started = Started::new(setup(vec![Turn::AwaitRenewal])).await;
    let (_listener, place) = fenced_listener().await;
    started.running.config.network.fenced = vec![place];
    let failed = started.run().await.unwrap_err();
    assert_eq!(failed.reason, Reason::NetworkNotEnforced);
    assert!(failed.message.contains("reached the API server (127.0.0.1:"), "{}", failed.message);
    let seen = started.gateway().seen.lock().unwrap();
    assert!(seen.events.iter().any(|event| event.kind == EventType::Note && event.data.to_string().contains("the API server")));
    assert!(seen.result.is_none());
}

#[tokio::test]
async fn another_certificate_is_not_trusted() {
    let started = Started::new(setup(vec![])).await;
    let other = rcgen::generate_simple_self_signed(["gateway.test".to_owned()]).unwrap();
    std::fs::write(started.place.file("ca.crt"), other.cert.pem()).unwrap();
    let facts = confined();
    let running = run(started.running.config.clone(), &facts, CancellationToken::new());
    // It goes on trying for a minute, which is not waited for.
    assert!(tokio::time::timeout(Duration::from_secs(2), running).await.is_err());
    assert!(started.gateway().seen.lock().unwrap().exchanges.is_empty());
}

#[tokio::test]
async fn lost_replies_to_events_and_result_are_harmless() {
    let started = Started::new(setup(vec![sh("seq 1 2000"), Turn::Say("done")])).await;
    *started.gateway().faults.lock().unwrap() = [503, 500, 502, 503].into();
    let response = started.run().await.unwrap();
    assert_eq!(response.verdict, "Succeeded");
    let gateway = started.gateway();
    assert!(gateway.faults.lock().unwrap().is_empty());
    let output: String = gateway.events_of(EventType::Output).iter().map(|data| data["text"].as_str().unwrap().to_owned()).collect();
    assert_eq!(output, (1..=2000).map(|n| format!("{n}\n")).collect::<String>() + "red\n");
}

#[tokio::test]
async fn a_result_that_is_not_taken_is_a_failure() {
    let mut bare = setup(vec![Turn::Say("done")]);
    // No checks, whose events would take the faults meant for the result.
    bare.job.checks.clear();
    let place = Place::new();
    let running = bare.start(&place).await;
    let _executor = spawn_executor(&place.socket(), &place.root());
    let gateway = running.gateway.clone();
    let spoil = async {
        loop {
            let changed = gateway.changed.notified();
            if !gateway.events_of(EventType::Message).is_empty() {
                *gateway.faults.lock().unwrap() = [422; 50].into();
                return;
            }
            changed.await;
        }
    };
    let facts = confined();
    let (outcome, ()) = tokio::join!(run(running.config.clone(), &facts, CancellationToken::new()), spoil);
    assert_eq!(outcome.unwrap_err().reason, Reason::ResultInvalid);
}

#[tokio::test]
async fn tokens_are_renewed_while_the_run_goes_on() {
    let mut short = setup(vec![Turn::AwaitRenewal, Turn::Say("unused")]);
    short.lifetime = 2;
    let (started, result) = finished(short).await;
    assert_eq!((result.outcome, result.message.as_str()), (Outcome::Done, "renewed"));
    let seen = started.gateway().seen.lock().unwrap();
    assert_eq!((seen.renewals, seen.unauthorised), (3, 0));
}

#[tokio::test]
async fn a_stop_ends_it_at_once_with_its_events_sent() {
    let mark = mark();
    let started = Started::new(setup(vec![sh(&format!("setsid sleep {mark} & sleep {mark}"))])).await;
    let stop = CancellationToken::new();
    let stopping = async {
        eventually("the command's start", || marked(&mark).iter().filter(|line| line.starts_with("sleep")).count() == 2).await;
        stop.cancel();
        std::time::Instant::now()
    };
    let (outcome, stopped) = tokio::join!(started.run_until(stop.clone()), stopping);
    assert!(stopped.elapsed() < Duration::from_secs(10), "{:?}", stopped.elapsed());
    assert_eq!((outcome.as_ref().unwrap_err().reason, outcome.unwrap_err().exit_code()), (Reason::Cancelled, 143));
    assert_eq!(started.gateway().events_of(EventType::Note).last().unwrap()["text"], "the Pod was asked to end");
    assert!(started.gateway().seen.lock().unwrap().result.is_none());
    eventually("the command's end", || marked(&mark).is_empty()).await;
}
