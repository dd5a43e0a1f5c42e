//! A developer with nothing but a kubeconfig: submits a tree that is too large for the object, follows the run to its end,
//! and applies the patch.

use agentrun_e2e::node::{Colleague, Offer, Story, fixing_turns, original_tree, story, tests_pass};
use anyhow::{Context, Result, ensure};

/// More files than a manifest may carry.
const FILES: usize = 60;

#[tokio::test]
async fn a_developer_needs_a_kubeconfig_and_nothing_else() {
    story("developer", body).await;
}

async fn body(story: &Story) -> Result<()> {
    story.offer(Offer::new(fixing_turns())).await?;
    let developer = Colleague::new(story, "dev", "edit").await?;
    let tree = original_tree()?;
    for number in 0..FILES {
        std::fs::write(tree.path().join(format!("shop/data_{number}.txt")), format!("{number}\n"))?;
    }
    std::fs::write(tree.path().join(".gitignore"), "secret.txt\n")?;
    std::fs::write(tree.path().join("secret.txt"), "not for the agent")?;
    let dir = tree.path().to_str().context("a path")?;
    let submit = ["submit", "--dir", dir, "--instruction", "Make the tests pass.", "--check", "python3 -m unittest discover"];
    let followed = developer.ok(&[&submit[..], &["--name", "fix", "--follow"]].concat()).await?;
    ensure!(followed.lines().count() > 5 && followed.contains("Succeeded"), "{followed}");

    let run = story.runs.get("fix").await?;
    let source = run.status.as_ref().and_then(|status| status.source.clone()).context("the tree was sent as an archive")?;
    ensure!(source.files == FILES as i64 + 5, "{source:?}: the ignored file was sent, or one is missing");
    ensure!(run.spec.submitted_by.as_deref() == Some(developer.username.as_str()), "{:?}", run.spec.submitted_by);

    let patch = developer.ok(&["patch", "@latest"]).await?;
    let file = tree.path().join("fix.patch");
    std::fs::write(&file, &patch)?;
    let applied = std::process::Command::new("git").args(["apply", "fix.patch"]).current_dir(tree.path()).output()?;
    ensure!(applied.status.success(), "git apply: {}\n{patch}", String::from_utf8_lossy(&applied.stderr));
    let (passed, said) = tests_pass(tree.path())?;
    ensure!(passed, "the tests fail after the fix:\n{said}");

    let list = developer.ok(&["list"]).await?;
    ensure!(list.contains("fix") && list.contains("Succeeded"), "{list}");
    ensure!(developer.ok(&["why", "fix"]).await?.contains("Succeeded"), "why does not say how it ended");
    Ok(())
}
