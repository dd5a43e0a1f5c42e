//! Command-line agents, unmodified, in place of the built-in one: each does the demo's task, is stopped by a spent budget, and
//! obeys a person who denies. One test an agent; those whose image is not built are skipped, loudly (`make test-harnesses` has all).

use agentrun_crds::agent_policy::ApprovalPolicy;
use agentrun_crds::agent_run::BudgetSpec;
use agentrun_crds::agent_run_status::{ApprovalState, Phase};
use agentrun_crds::approval_rules::{ApprovalRule, RuleDecision};
use agentrun_crds::budget::Gate;
use agentrun_e2e::node::{Colleague, Offer, Story, Within, story, until};
use agentrun_protocol::event::EventType;
use agentrun_scripted_model::Turn;
use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};

/// What the scripted model has to say to an agent: its tools' names and arguments.
struct Agent {
    name: &'static str,
    look: Value,
    edit: Value,
    run: fn(&str) -> Value,
}

fn turn(call: &Value) -> Turn {
    Turn::call(call[0].as_str().unwrap_or_default(), call[1].clone())
}

const OLD: &str = "    return price - percent\n";
const NEW: &str = "    return price * (100 - percent) // 100\n";

#[tokio::test]
async fn pi() {
    let agent = Agent {
        name: "pi",
        look: json!(["read", {"path": "shop/discount.py"}]),
        edit: json!(["edit", {"path": "shop/discount.py", "edits": [{"oldText": OLD, "newText": NEW}]}]),
        run: |command| json!(["bash", {"command": command}]),
    };
    tell(agent).await;
}

#[tokio::test]
async fn qwen_code() {
    let agent = Agent {
        name: "qwen-code",
        look: json!(["read_file", {"file_path": "/workspace/shop/discount.py"}]),
        edit: json!(["edit", {"file_path": "/workspace/shop/discount.py", "old_string": OLD, "new_string": NEW}]),
        run: |command| json!(["run_shell_command", {"command": command, "is_background": false, "description": "a command"}]),
    };
    tell(agent).await;
}

#[tokio::test]
async fn opencode() {
    let agent = Agent {
        name: "opencode",
        look: json!(["read", {"filePath": "/workspace/shop/discount.py"}]),
        edit: json!(["edit", {"filePath": "/workspace/shop/discount.py", "oldString": OLD, "newString": NEW}]),
        run: |command| json!(["bash", {"command": command, "description": "a command"}]),
    };
    tell(agent).await;
}

#[tokio::test]
async fn claude_code() {
    let agent = Agent {
        name: "claude-code",
        look: json!(["Read", {"file_path": "/workspace/shop/discount.py"}]),
        edit: json!(["Edit", {"file_path": "/workspace/shop/discount.py", "old_string": OLD, "new_string": NEW}]),
        run: |command| json!(["Bash", {"command": command, "description": "a command"}]),
    };
    tell(agent).await;
}

#[tokio::test]
async fn codex() {
    let agent = Agent {
        name: "codex",
        look: json!(["exec_command", {"cmd": "cat shop/discount.py"}]),
        edit: json!(["exec_command", {"cmd": "sed -i 's|price - percent|price * (100 - percent) // 100|' shop/discount.py"}]),
        run: |command| json!(["exec_command", {"cmd": command}]),
    };
    tell(agent).await;
}

#[tokio::test]
async fn gemini_cli() {
    let agent = Agent {
        name: "gemini-cli",
        look: json!(["read_file", {"file_path": "shop/discount.py"}]),
        edit: json!(["replace", {"file_path": "shop/discount.py", "instruction": "fix", "old_string": OLD, "new_string": NEW}]),
        run: |command| json!(["run_shell_command", {"command": command, "description": "a command"}]),
    };
    tell(agent).await;
}

async fn tell(agent: Agent) {
    story(agent.name, async |story| Box::pin(body(story, &agent)).await).await;
}

async fn body(story: &Story, agent: &Agent) -> Result<()> {
    if !story.has_harness(agent.name) {
        let wanted = std::env::var("AGENTRUN_HARNESSES").unwrap_or_default();
        ensure!(!wanted.split(' ').any(|name| name == agent.name), "AGENTRUN_HARNESSES wants {}, but it has no image", agent.name);
        eprintln!("SKIPPED: no image harness-{0} was built; AGENTRUN_HARNESSES={0} make images builds it", agent.name);
        return Ok(());
    }
    let look = || turn(&agent.look);
    let run = |command: &str| turn(&(agent.run)(command));
    let fixing =
        [look(), run("python3 -m unittest discover || true"), turn(&agent.edit), Turn::say("The discount is a share of the price now.")];
    let calls = fixing.len() as i64;
    let looking = std::iter::repeat_with(look).take(20);
    let removing = [run("rm -rf shop"), Turn::say("I was not allowed to.")];
    let mut offer = Offer::new(fixing).and("looks", looking).and("removes", removing);
    let rule = ApprovalRule { tools: vec![], argv: Some(vec!["rm".into(), "*".into()]), paths: vec![], decision: RuleDecision::Ask };
    offer.approvals = ApprovalPolicy { rules: vec![rule], ..ApprovalPolicy::default() };
    story.offer_harness(offer, agent.name).await?;
    let spec = |model: &str| {
        let mut spec = story.spec();
        spec.agent.harness = Some(story.namespace.clone());
        // Some take seconds to start where there is work besides.
        spec.limits.wall_time = Some("10m".into());
        spec.model = model.into();
        spec
    };
    story.create("fix", spec("small")).await?;
    let mut spending = spec("looks");
    spending.limits.budget = Some(BudgetSpec { requests: Some(2), ..BudgetSpec::default() });
    story.create("spend", spending).await?;
    story.create("remove", spec("removes")).await?;

    Box::pin(fixed(story, agent, calls)).await?;
    spent(story).await?;
    denied(story).await
}

/// The task is done, by what the agent was told through the port, and what it did is in the events.
async fn fixed(story: &Story, agent: &Agent, calls: i64) -> Result<()> {
    let run = story.until_ended("fix", Phase::Succeeded, "Succeeded").await?;
    let status = run.status.clone().context("a status")?;
    let budget = status.budget.context("a budget")?;
    let bill = story.model.bill(&story.upstream("small")).await?;
    ensure!(budget.spent.requests >= calls && budget.spent.requests == bill.requests as i64, "{budget:?} {bill:?}");
    ensure!((bill.prompt_tokens, bill.completion_tokens) == (budget.spent.input_tokens, budget.spent.output_tokens), "{budget:?} {bill:?}");
    let result = status.result.context("a result")?;
    assert_eq!(result.changed_paths, ["shop/discount.py"]);
    ensure!(result.checks[0].exit_code == 0, "{result:?}");
    for seen in story.model.seen(&story.upstream("small")).await? {
        ensure!(!seen.headers.iter().any(|(_, value)| value.contains("ar1.")), "a run token reached the provider");
    }
    let events = story.people.all_events(&story.namespace, "fix").await?;
    let of = |kind| events.iter().filter(move |event| event.kind == kind);
    ensure!(of(EventType::Message).any(|event| event.data["text"].to_string().contains("share of the price")), "no message: {events:?}");
    ensure!(of(EventType::ToolCall).count() >= 3, "too few tool calls of {}: {events:?}", agent.name);
    story.until_children_gone(&run).await
}

/// No call goes out beyond the budget, and the agent is ended at once.
async fn spent(story: &Story) -> Result<()> {
    let run = story.until_ended("spend", Phase::Failed, "BudgetExhausted").await?;
    let budget = run.status.and_then(|status| status.budget).context("a budget")?;
    assert_eq!((budget.spent.requests, budget.gate), (2, Gate::Closed));
    assert_eq!(story.model.bill(&story.upstream("looks")).await?.requests, 2);
    Ok(())
}

/// A person denies; the agent is told, does it not, and the run says why it failed.
async fn denied(story: &Story) -> Result<()> {
    let approver = Colleague::new(story, "lead", "agentrun-approver").await?;
    until(&story.runs, "remove", Within::Medium, "approval 1 is pending", |run| {
        run.status.iter().flat_map(|status| &status.approvals).any(|approval| approval.id == 1 && approval.state == ApprovalState::Pending)
    })
    .await?;
    let shown = approver.ok(&["approvals"]).await?;
    ensure!(shown.contains("rm -rf shop"), "{shown}");
    approver.ok(&["deny", "remove", "1", "--reason", "not that folder"]).await?;
    let ended = story.until_ended("remove", Phase::Failed, "Denied").await?;
    let status = ended.status.context("a status")?;
    assert_eq!(status.result.context("a result")?.changed_paths, Vec::<String>::new());
    assert_eq!(status.approvals[0].state, ApprovalState::Denied);
    let events = story.people.all_events(&story.namespace, "remove").await?;
    let told = |kind| kind == EventType::ToolResult || kind == EventType::Message;
    ensure!(
        events.iter().any(|event| told(event.kind) && event.data.to_string().contains("not that folder")),
        "the agent does not say that it was told why: {events:?}"
    );
    Ok(())
}
