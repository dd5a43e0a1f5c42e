//! A command-line agent in place of the built-in one: a small program that does what real ones do, and some things that they
//! should not.

use std::time::{Duration, Instant};

use agentrun_crds::agent_run_status::{ApprovalState, ResolvedHarness};
use agentrun_crds::conditions::Reason;
use agentrun_protocol::{
    event::EventType,
    job::JobApprovals,
    result::{Outcome, SandboxResult},
};
use agentrun_runner::deadline::unix_now;
use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;

use crate::{
    fake_gateway::{Setup, Turn},
    sandbox::{eventually, mark, marked},
    whole_run::{Started, finished, setup},
};

/// `call(path, body)` asks the port, `say(type, …)` prints a line, `ask(tool, arguments)` puts a question.
const AGENT: &str = r#"
import json, os, sys, time, signal, subprocess, urllib.request, urllib.error
def post(url, body, headers={}):
    request = urllib.request.Request(url, data=body.encode(), headers={"content-type": "application/json", **headers})
    try:
        with urllib.request.urlopen(request) as answer:
            return answer.status, answer.read().decode(), dict(answer.headers)
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode(), dict(error.headers)
def call(path="/v1/chat/completions", text="x"):
    body = json.dumps({"model": os.environ["MODEL"], "messages": [{"role": "user", "content": text}]})
    return post(os.environ["MODEL_URL"] + path, body, {"authorization": "Bearer " + os.environ["KEY"]})
def ask(tool, arguments):
    return json.loads(post(os.environ["HOOK_URL"], json.dumps({"tool": tool, "arguments": arguments}))[1])
def say(kind, **rest):
    print(json.dumps({"type": kind, **rest}), flush=True)
def fix():
    open("app.txt", "w").write("fixed\n")
"#;

/// A job whose harness is AGENT and this.
fn harness(script: &str, turns: Vec<Turn>) -> Setup {
    let template = json!({
        "dialect": "OpenAIChat",
        "command": ["sh", "-c", "exec python3 -B \"$HOME/lib/agent.py\" \"$@\"", "agent", "$(prompt)"],
        "environment": [
            {"name": "MODEL_URL", "value": "$(modelURL)"}, {"name": "HOOK_URL", "value": "$(hookURL)"},
            {"name": "MODEL", "value": "$(model)"}, {"name": "KEY", "value": "$(key)"},
        ],
        "files": [{"path": "lib/agent.py", "content": format!("{AGENT}{script}")}],
        "output": {"format": "JSONLines", "rules": [
            {"when": [{"path": "type", "equals": "said"}], "event": "Message", "text": "text"},
            {"when": [{"path": "type", "equals": "tool"}], "event": "ToolCall", "tool": "name", "arguments": "arguments"},
            {"when": [{"path": "type", "equals": "failed"}], "event": "Failure", "text": "why"},
        ]},
        "permissions": {
            "bridge": "Hook",
            "hook": {"tool": "tool", "arguments": "arguments", "allow": "{\"ok\": true}", "deny": "{\"ok\": false, \"why\": \"$(reason)\"}"},
            "tools": [{"name": "Bash", "knownAs": "run_command", "command": "command"}, {"name": "Write", "knownAs": "write_file", "path": "file"}],
        },
    });
    let mut setup = setup(turns);
    setup.job.harness = Some(ResolvedHarness { name: "fake".into(), template: serde_json::from_value(template).unwrap() });
    setup
}

fn notes(started: &Started) -> Vec<String> {
    started.gateway().events_of(EventType::Note).iter().map(|data| data["text"].as_str().unwrap().to_owned()).collect()
}

#[tokio::test]
async fn a_harness_works_through_the_port_and_sees_no_token() {
    let script = r#"
assert sys.argv[1].startswith("Task:\nFix it."), sys.argv
status, body, headers = call()
assert status == 200, (status, body)
others = [call("/v1/responses")[0], call("/sandbox/v1/events")[0], call("/v1/chat/completions/../../sandbox/v1/job")[0]]
say("said", text=json.loads(body)["choices"][0]["message"]["content"])
say("tool", name="edit", arguments={"path": "app.txt"})
fix()
seen = json.dumps([dict(os.environ), body, headers])
say("said", text="Done: %s, %s" % (others, "canary" in seen))
print("not json", file=sys.stderr)
"#;
    let (started, result) = finished(harness(script, vec![Turn::Say("Change app.txt.")])).await;
    let gateway = started.gateway();
    assert_eq!(
        (result.outcome, result.steps, result.message.as_str()),
        (Outcome::Done, 1, "Done: [404, 404, 404], False"),
        "{:?}",
        notes(&started)
    );
    assert_eq!(result.changes.iter().map(|change| change.path.as_str()).collect::<Vec<_>>(), ["app.txt"]);
    assert_eq!(result.checks[0].exit_code, Some(0));
    let seen: Vec<Value> = gateway.seen.lock().unwrap().requests.clone();
    assert_eq!((seen.len(), &seen[0]["messages"][0]["content"], gateway.seen.lock().unwrap().unauthorised), (1, &json!("x"), 0));
    assert_eq!(gateway.events_of(EventType::Step), [json!({"step": 1, "maxSteps": 8})]);
    assert_eq!(gateway.events_of(EventType::Message).len(), 2);
    assert_eq!(gateway.events_of(EventType::ToolCall), [json!({"step": 1, "tool": "edit", "arguments": {"path": "app.txt"}})]);
    assert!(gateway.events_of(EventType::Output).iter().any(|data| data["stream"] == "stderr" && data["text"] == "not json\n"));
    assert!(gateway.artifact("harness.log").contains("not json"));
    assert!(started.place.home().join("lib/agent.py").exists());
}

#[tokio::test]
async fn an_exit_status_decides_only_where_nothing_else_does() {
    let refused = || Turn::Refuse(502, "provider_unavailable", None);
    for (script, turns, with_checks, outcome, message) in [
        ("call(); fix(); sys.exit(3)", vec![Turn::Say("")], true, Outcome::Done, ""),
        ("call(); fix(); sys.exit(3)", vec![Turn::Say("")], false, Outcome::AgentError, "exit status 3"),
        ("call(); sys.exit(3)", vec![Turn::Say("")], true, Outcome::AgentError, "exit status 3"),
        ("call(); say('failed', why='no idea')", vec![Turn::Say("")], true, Outcome::AgentError, "no idea"),
        ("call()", vec![Turn::Say("")], true, Outcome::Done, ""),
        ("pass", vec![], true, Outcome::AgentError, "without having called its model"),
        ("call(); call()", vec![Turn::Say(""), refused()], true, Outcome::ProviderUnavailable, "refused with 502"),
        ("call(); call()", vec![refused(), Turn::Say("")], true, Outcome::Done, ""),
        ("os.kill(os.getpid(), 9)", vec![], true, Outcome::AgentError, "exit status 137"),
    ] {
        let mut setup = harness(script, turns);
        if !with_checks {
            setup.job.checks.clear();
        }
        let (started, result) = finished(setup).await;
        assert_eq!(result.outcome, outcome, "{script}: {} {:?}", result.message, notes(&started));
        assert!(result.message.contains(message), "{script}: {}", result.message);
    }
}

#[tokio::test]
async fn a_harness_that_is_no_program_is_an_agent_error() {
    let mut setup = harness("", vec![]);
    setup.job.harness.as_mut().unwrap().template.command[0] = "no-such-program".into();
    let (_, result) = finished(setup).await;
    assert_eq!(result.outcome, Outcome::AgentError);
    assert!(result.message.contains("no-such-program could not be started"), "{}", result.message);
}

#[tokio::test]
async fn a_spent_budget_ends_it_with_all_it_started() {
    let mark = mark();
    let polite = format!(
        "def end(*_):\n    open('told', 'w').write('x'); sys.exit(0)\nsignal.signal(signal.SIGTERM, end)\n\
         subprocess.Popen(['setsid', 'sh', '-c', 'trap \"\" TERM; sleep {mark}; true'])\nstatus = call()[0]\nsay('said', text=str(status))\n\
         while True: time.sleep(1)\n"
    );
    let exhausted = || Turn::Refuse(403, "model_request_budget_exhausted", Some(("x-should-retry", "false")));
    let (started, result) = finished(harness(&polite, vec![exhausted()])).await;
    assert_eq!(result.outcome, Outcome::BudgetExhausted, "{}", result.message);
    assert_eq!(result.changes.iter().map(|change| change.path.as_str()).collect::<Vec<_>>(), ["told"], "it had time to end by itself");
    assert_eq!((result.checks.len(), marked(&mark)), (0, Vec::<String>::new()));
    assert_eq!(started.gateway().events_of(EventType::Message), [json!({"text": "403"})], "the agent was told");

    let stubborn = format!("signal.signal(signal.SIGTERM, signal.SIG_IGN)\ncall()\nsubprocess.run(['sleep', '{mark}'])\n");
    let (_, result) = finished(harness(&stubborn, vec![exhausted()])).await;
    assert_eq!((result.outcome, marked(&mark)), (Outcome::BudgetExhausted, Vec::<String>::new()));
}

#[tokio::test]
async fn a_cancellation_ends_it_with_all_it_started_also_what_does_not_listen() {
    for (name, script) in [
        ("at work", "call()\nsubprocess.run(['sleep', '{mark}'])\n"),
        ("deaf", "signal.signal(signal.SIGTERM, signal.SIG_IGN)\ncall()\nsubprocess.run(['sleep', '{mark}'])\n"),
        ("gone into the background", "call()\nsubprocess.Popen(['setsid', 'sh', '-c', 'trap \"\" TERM; sleep {mark}; true']).wait()\n"),
        ("waiting for a person", "call()\nsubprocess.Popen(['sleep', '{mark}'])\nask('Bash', {'command': 'touch x'})\n"),
    ] {
        let mark = mark();
        let mut setup = harness(&script.replace("{mark}", &mark), vec![Turn::Say("")]);
        let rules = json!([{"tools": ["run_command"], "decision": "Ask"}]);
        setup.job.approvals = Some(JobApprovals { policy_rules: serde_json::from_value(rules).unwrap(), run_rules: Vec::new() });
        let started = Started::new(setup).await;
        let stop = CancellationToken::new();
        let stopping = async {
            eventually("its command's start", || marked(&mark).iter().any(|line| line.starts_with("sleep"))).await;
            if name == "waiting for a person" {
                started.gateway().asked(1).await;
            }
            stop.cancel();
            Instant::now()
        };
        let (outcome, stopped) = tokio::join!(started.run_until(stop.clone()), stopping);
        assert!(stopped.elapsed() < Duration::from_secs(10), "{name}: {:?}", stopped.elapsed());
        assert_eq!(outcome.unwrap_err().reason, Reason::Cancelled, "{name}");
        assert!(started.gateway().seen.lock().unwrap().result.is_none(), "{name}: no result of a run that was cancelled");
        eventually("the end of all it started", || marked(&mark).is_empty()).await;
    }
}

#[tokio::test]
async fn steps_and_time_end_it() {
    let mut setup = harness("while True: call()", vec![Turn::Say(""), Turn::Say("")]);
    setup.job.max_steps = 2;
    let (started, result) = finished(setup).await;
    assert_eq!((result.outcome, result.steps), (Outcome::StepLimit, 2), "{}", result.message);
    assert_eq!(started.gateway().seen.lock().unwrap().requests.len(), 2);

    let mut setup = harness("time.sleep(1000)", vec![]);
    setup.job.deadline = unix_now() + 5;
    let (_, result) = finished(setup).await;
    assert_eq!((result.outcome, result.steps), (Outcome::Deadline, 0), "{}", result.message);
}

#[tokio::test]
async fn its_questions_are_decided_like_the_built_in_agents() {
    let script = r#"
call()
for command in ["rm -rf old", "touch one && touch two", "touch three"]:
    answer = ask("Bash", {"command": command, "description": "d"})
    say("said", text=json.dumps(answer))
    if answer["ok"]: subprocess.run(["sh", "-c", command])
say("said", text=json.dumps([ask("Read", {"file": "app.txt"}), ask("Write", {"file": "/etc/passwd"}), ask("", {})]))
say("said", text=post(os.environ["HOOK_URL"], "{")[1])
"#;
    let mut setup = harness(script, vec![Turn::Say("")]);
    let rules = json!([{"tools": ["run_command", "write_file"], "decision": "Ask"}, {"argv": ["rm", "*"], "decision": "Deny"}]);
    setup.job.approvals = Some(JobApprovals { policy_rules: serde_json::from_value(rules).unwrap(), run_rules: Vec::new() });
    let started = Started::new(setup).await;
    let gateway = started.gateway();
    let (outcome, ()) = tokio::join!(started.run(), async {
        let asked = gateway.asked(1).await;
        assert_eq!((asked.tool.as_str(), asked.argv), ("run_command", vec!["sh".to_owned(), "-c".into(), "touch one && touch two".into()]));
        assert_eq!(asked.texts[0].inline.as_deref(), Some(r#"{"command":"touch one && touch two","description":"d"}"#));
        gateway.decide(1, ApprovalState::Allowed, None);
        let asked = gateway.asked(2).await;
        assert_eq!(asked.argv, ["touch", "three"]);
        gateway.decide(2, ApprovalState::Denied, Some("no \"third\""));
    });
    outcome.unwrap();
    let result: SandboxResult = started.result();
    let said: Vec<String> = gateway.events_of(EventType::Message).iter().map(|data| data["text"].as_str().unwrap().to_owned()).collect();
    for (said, part) in said.iter().zip([
        "the rules of this run deny it",
        "{\"ok\": true}",
        "a person denied it (approval 2): no \\\"third\\\"",
        "[{\"ok\": true}, {\"ok\": false, \"why\": \"not done: /etc/passwd is no file of the workspace",
        "the question is not JSON",
    ]) {
        assert!(said.contains(part), "{said} has no {part}");
    }
    assert_eq!((said.len(), result.outcome), (5, Outcome::Done));
    assert_eq!(result.changes.iter().map(|change| change.path.as_str()).collect::<Vec<_>>(), ["one", "two"]);
    let used: Vec<Value> = gateway.events_of(EventType::ToolResult).iter().map(|data| data["approvalId"].clone()).collect();
    assert_eq!(used, [json!(1)]);
}
