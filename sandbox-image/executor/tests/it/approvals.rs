//! Tool calls that need a person: asked for as they will be performed, and performed only after their approval was consumed.

use agentrun_crds::{agent_run_status::ApprovalState, approval_rules::ApprovalRule};
use agentrun_protocol::{
    approval::MAX_INLINE_BYTES,
    event::EventType,
    job::JobApprovals,
    result::{Outcome, SandboxResult},
};
use agentrun_runner::{deadline::unix_now, staging::digest};
use serde_json::{Value, json};

use crate::{
    fake_gateway::{Gateway, Setup, Turn},
    whole_run::{Started, job, setup, sh, tool},
};

/// Commands and writes are asked for, `rm` is denied.
fn asking(script: Vec<Turn>) -> Setup {
    let rules = |value: Value| serde_json::from_value::<Vec<ApprovalRule>>(value).unwrap();
    let policy_rules = rules(json!([
        {"tools": ["run_command", "write_file", "edit_file"], "decision": "Ask"},
        {"argv": ["rm", "*"], "decision": "Deny"},
    ]));
    let mut setup = setup(script);
    setup.job.approvals = Some(JobApprovals { policy_rules, run_rules: Vec::new() });
    setup
}

fn run(argv: &[&str]) -> Turn {
    tool("run_command", json!({ "argv": argv }))
}

/// Run to the end, while people do what they do.
async fn with_people(setup: Setup, people: impl AsyncFnOnce(&Started)) -> (Started, SandboxResult) {
    let started = Started::new(setup).await;
    let (outcome, ()) = tokio::join!(started.run(), people(&started));
    outcome.unwrap();
    let result = started.result();
    (started, result)
}

/// What the model was told of its last call before this request.
fn told(gateway: &Gateway, request: usize) -> String {
    let seen = gateway.seen.lock().unwrap();
    seen.requests[request]["messages"].as_array().unwrap().last().unwrap()["content"].as_str().unwrap().to_owned()
}

fn consumed(gateway: &Gateway) -> Vec<bool> {
    gateway.seen.lock().unwrap().approvals.iter().map(|asked| asked.state == ApprovalState::Consumed).collect()
}

#[tokio::test]
async fn what_is_allowed_is_performed_as_it_was_asked() {
    let long = "x".repeat(MAX_INLINE_BYTES + 1);
    let script = vec![
        Turn::Use(vec![("read_file", json!({"path": "app.txt"}).to_string())]),
        run(&["sh", "./test.sh", "--config=old/gone.txt"]),
        tool("write_file", json!({"path": "new.txt", "content": long})),
        tool("edit_file", json!({"path": "app.txt", "old_text": "broken", "new_text": "fixed"})),
        Turn::Say("done"),
    ];
    let (started, result) = with_people(asking(script), async |started| {
        let gateway = started.gateway();
        for number in 1..=3 {
            gateway.asked(number).await;
            gateway.decide(number, ApprovalState::Allowed, Some("fine"));
        }
    })
    .await;
    let gateway = started.gateway();
    assert_eq!((result.outcome, result.changes.len()), (Outcome::Done, 2));
    assert!(told(gateway, 2).starts_with("exit code 1"), "{}", told(gateway, 2));
    assert_eq!(told(gateway, 4), "replaced the text in app.txt");
    let test = job().files[1].content.clone();
    let actions: Vec<Value> = {
        let seen = gateway.seen.lock().unwrap();
        assert_eq!(seen.blobs[&digest(long.as_bytes())], long, "uploaded before it was asked for");
        seen.approvals.iter().map(|asked| serde_json::to_value(&asked.action).unwrap()).collect()
    };
    let files = json!([{"path": "old/gone.txt", "digest": digest(b"x")}, {"path": "test.sh", "digest": digest(test.as_bytes())}]);
    assert_eq!(actions[0], json!({"tool": "run_command", "argv": ["sh", "./test.sh", "--config=old/gone.txt"], "files": files}));
    let text = json!({"name": "content", "digest": digest(long.as_bytes()), "bytes": long.len()});
    assert_eq!(actions[1], json!({"tool": "write_file", "path": "new.txt", "texts": [text], "files": [{"path": "new.txt"}]}));
    assert_eq!(actions[2]["files"], json!([{"path": "app.txt", "digest": digest(b"broken\n")}]));
    assert_eq!(consumed(gateway), [true, true, true]);
    let ids: Vec<Value> = gateway.events_of(EventType::ToolResult).iter().map(|data| data["approvalId"].clone()).collect();
    assert_eq!(ids, [Value::Null, json!(1), json!(2), json!(3)], "reading was free");
    let notes: Vec<String> = gateway.events_of(EventType::Note).iter().map(|data| data["text"].as_str().unwrap().to_owned()).collect();
    assert!(notes.contains(&"waits for approval 1: run_command sh ./test.sh --config=old/gone.txt".into()), "{notes:?}");
}

#[tokio::test]
async fn a_refusal_is_told_and_the_agent_goes_on() {
    let script = vec![run(&["rm", "-r", "old"]), sh("echo 1 > one"), sh("echo 2 > two"), run(&["sh", "link"]), Turn::Say("done")];
    let (started, result) = with_people(asking(script), async |started| {
        let gateway = started.gateway();
        gateway.asked(1).await;
        std::os::unix::fs::symlink("test.sh", started.place.root().join("link")).unwrap();
        gateway.decide(1, ApprovalState::Denied, Some("not now"));
        gateway.asked(2).await;
        gateway.decide(2, ApprovalState::Expired, None);
    })
    .await;
    let gateway = started.gateway();
    assert_eq!(result.outcome, Outcome::Done);
    for (request, part) in [
        (1, "not done: the rules of this run deny it"),
        (2, "not done: a person denied it (approval 1): not now"),
        (3, "not done: nobody approved it in time (approval 2)"),
        (4, "not done: link: is or leads through a symbolic link"),
    ] {
        assert!(told(gateway, request).contains(part), "{}", told(gateway, request));
    }
    assert!(!started.place.root().join("one").exists() && !started.place.root().join("two").exists());
    assert_eq!(consumed(gateway), [false, false]);
    assert!(gateway.events_of(EventType::ToolResult).iter().all(|data| data["ok"] == false && data["approvalId"].is_null()));
}

#[tokio::test]
async fn one_changed_byte_after_the_approval_is_refused() {
    let script = vec![run(&["sh", "test.sh"]), run(&["sh", "test.sh"]), Turn::Say("done")];
    let (started, _) = with_people(asking(script), async |started| {
        let gateway = started.gateway();
        let script = started.place.root().join("test.sh");
        let before = gateway.asked(1).await;
        // What was looked at: it writes nothing. What lies there now: one byte more, and it would.
        let changed = std::fs::read_to_string(&script).unwrap() + "\n";
        std::fs::write(&script, format!("{changed}echo hijacked > hijacked\n")).unwrap();
        gateway.decide(1, ApprovalState::Allowed, None);
        let after = gateway.asked(2).await;
        assert_ne!(before.files, after.files, "asked again, for what is there now");
        gateway.decide(2, ApprovalState::Allowed, None);
    })
    .await;
    let gateway = started.gateway();
    assert!(told(gateway, 1).contains("not done: what approval 1 was given for has changed since"), "{}", told(gateway, 1));
    assert!(told(gateway, 2).starts_with("exit code"), "{}", told(gateway, 2));
    assert_eq!(consumed(gateway), [false, true]);
    let ids: Vec<Value> = gateway.events_of(EventType::ToolResult).iter().map(|data| data["approvalId"].clone()).collect();
    assert_eq!(ids, [Value::Null, json!(2)]);
}

#[tokio::test]
async fn lost_answers_neither_ask_nor_perform_twice() {
    let script = vec![sh("echo once >> log"), Turn::Say("done")];
    let (started, _) = with_people(asking(script), async |started| {
        let gateway = started.gateway();
        // The answers to asking, to waiting, and then to consuming are lost.
        *gateway.approval_faults.lock().unwrap() = [503, 502, 500, 503].into();
        gateway.asked(1).await;
        crate::sandbox::eventually("the faults are over", || gateway.approval_faults.lock().unwrap().is_empty()).await;
        *gateway.approval_faults.lock().unwrap() = [503, 500].into();
        gateway.decide(1, ApprovalState::Allowed, None);
    })
    .await;
    let gateway = started.gateway();
    assert_eq!(std::fs::read_to_string(started.place.root().join("log")).unwrap(), "once\n");
    assert_eq!((consumed(gateway), gateway.seen.lock().unwrap().unauthorised), (vec![true], 0));
}

#[tokio::test]
async fn the_deadline_stands_still_while_the_gateway_says_so() {
    let mut setup = asking(vec![sh("echo late > late"), Turn::Say("done")]);
    setup.job.deadline = unix_now() + 8;
    let (started, result) = with_people(setup, async |started| {
        let gateway = started.gateway();
        gateway.asked(1).await;
        // Longer than all of the time that was left.
        tokio::time::sleep(std::time::Duration::from_secs(9)).await;
        gateway.decide(1, ApprovalState::Allowed, None);
    })
    .await;
    assert_eq!((result.outcome, result.changes.len()), (Outcome::Done, 1), "{}", result.message);
    assert!(started.place.root().join("late").exists());
}
