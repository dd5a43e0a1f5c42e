//! The project of `examples/shop`, whose discount is wrong: as a run's source, and as a tree on disk to try a patch on.

use std::path::Path;
use std::process::Command;

use agentrun_crds::agent_run::InlineFile;
use agentrun_scripted_model::Turn;
use anyhow::{Context, Result, ensure};
use serde_json::json;

const FILES: &[(&str, &str)] = &[
    ("shop/__init__.py", include_str!("../../../examples/shop/shop/__init__.py")),
    ("shop/discount.py", include_str!("../../../examples/shop/shop/discount.py")),
    ("tests/__init__.py", include_str!("../../../examples/shop/tests/__init__.py")),
    ("tests/test_discount.py", include_str!("../../../examples/shop/tests/test_discount.py")),
];

/// The files of the project.
pub fn shop_files() -> Vec<InlineFile> {
    FILES.iter().map(|(path, content)| InlineFile { path: (*path).into(), content: (*content).into(), executable: false }).collect()
}

/// The project on disk, with a repository of its own so that `git apply` takes paths as they stand.
pub fn original_tree() -> Result<tempfile::TempDir> {
    let tree = tempfile::tempdir()?;
    for (path, content) in FILES {
        let path = tree.path().join(path);
        std::fs::create_dir_all(path.parent().context("every file is in a directory")?)?;
        std::fs::write(path, content)?;
    }
    ensure!(Command::new("git").args(["init", "-q", "."]).current_dir(tree.path()).status()?.success(), "git init failed");
    Ok(tree)
}

/// Whether the project's tests pass in a tree, and what they said.
pub fn tests_pass(tree: &Path) -> Result<(bool, String)> {
    let output = Command::new("python3").args(["-B", "-m", "unittest", "discover"]).current_dir(tree).output()?;
    Ok((output.status.success(), String::from_utf8_lossy(&output.stderr).into_owned()))
}

/// Turns of an agent that fixes the discount at once and says so: two model calls.
pub fn fixing_turns() -> Vec<Turn> {
    let edit = json!({
        "path": "shop/discount.py",
        "old_text": "    return price - percent\n",
        "new_text": "    return price * (100 - percent) // 100\n",
    });
    vec![Turn::call("edit_file", edit), Turn::say("The discount is a share of the price now.")]
}
