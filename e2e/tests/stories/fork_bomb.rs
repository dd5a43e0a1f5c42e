//! A command that forks as often as it can is bounded, dies with its request, and the agent works on.

use agentrun_crds::agent_run_status::Phase;
use agentrun_e2e::node::{Offer, Story, fixing_turns, story};
use agentrun_protocol::event::EventType;
use agentrun_scripted_model::Turn;
use anyhow::{Context, Result, ensure};
use serde_json::json;

/// Forks 4,000 children that stay, in sessions of their own, and prints how many it got. They are still there when it exits.
const FORKS: &str = r#"
import os, time
count = 0
for _ in range(4000):
    try:
        if os.fork() == 0:
            os.setsid()
            time.sleep(600)
            os._exit(0)
        count += 1
    except OSError:
        break
print("forked", count)
"#;
/// Counts the processes of the container.
const COUNT: &str = "import os; print('left', sum(p.isdigit() for p in os.listdir('/proc')))";

#[tokio::test]
async fn a_fork_bomb_stays_small_and_ends_with_its_command() {
    story("forks", body).await;
}

async fn body(story: &Story) -> Result<()> {
    let python = |code: &str| Turn::call("run_command", json!({"argv": ["python3", "-c", code]}));
    story.offer(Offer::new([vec![python(FORKS), python(COUNT)], fixing_turns()].concat())).await?;
    story.create("forks", story.spec()).await?;
    story.until_ended("forks", Phase::Succeeded, "Succeeded").await?;
    let events = story.people.all_events(&story.namespace, "forks").await?;
    let printed = |word: &str| -> Result<u64> {
        let outputs = events.iter().filter(|event| event.kind == EventType::ToolResult).filter_map(|event| event.data["output"].as_str());
        let line = outputs.flat_map(str::lines).find_map(|line| line.strip_prefix(word)).with_context(|| format!("no {word:?}"))?;
        Ok(line.trim().parse()?)
    };
    let forked = printed("forked ")?;
    ensure!((100..1100).contains(&forked), "{forked} processes were had; the bound is 1,024");
    let left = printed("left ")?;
    ensure!(left < 10, "{left} processes are left of a command that ended");
    Ok(())
}
