//! A change outside `allowedPaths` fails the run, however good the work is and though the check passes.

use agentrun_crds::agent_run_status::Phase;
use agentrun_e2e::node::{Offer, Story, fixing_turns, story};
use agentrun_scripted_model::Turn;
use anyhow::{Context, Result, ensure};
use serde_json::json;

#[tokio::test]
async fn a_change_outside_the_allowed_paths_fails_the_run() {
    story("paths", body).await;
}

async fn body(story: &Story) -> Result<()> {
    let outside = |tool: &str, arguments| [vec![Turn::call(tool, arguments)], fixing_turns()].concat();
    let tests = json!({"path": "tests/test_discount.py", "content": "# who needs tests\n"});
    let sneaky = json!({"argv": ["python3", "-c", "open('shop.pth', 'w').write('x')"]});
    story.offer(Offer::new(outside("write_file", tests)).and("sneaky", outside("run_command", sneaky))).await?;
    story.create("tests", story.spec()).await?;
    let mut spec = story.spec();
    spec.model = "sneaky".into();
    story.create("command", spec).await?;
    for (run, path) in [("tests", "tests/test_discount.py"), ("command", "shop.pth")] {
        let ended = story.until_ended(run, Phase::Failed, "PathNotAllowed").await?;
        let result = ended.status.and_then(|status| status.result).context("a result")?;
        ensure!(result.message.contains(path), "the message of {run} does not name {path}: {}", result.message);
    }
    Ok(())
}
