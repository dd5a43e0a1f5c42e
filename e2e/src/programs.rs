//! Our own programs, for tests that run them as processes.

use std::path::PathBuf;
use std::process::Command;

use anyhow::{Context, Result};

/// The folder of what is built or fetched once a machine.
pub fn cache() -> Result<PathBuf> {
    let home = || std::env::home_dir().map(|home| home.join(".cache/agentrun"));
    std::env::var_os("AGENTRUN_CACHE").map(PathBuf::from).or_else(home).context("neither AGENTRUN_CACHE nor a home directory")
}

/// One of them: in the folder that `AGENTRUN_PROGRAMS` names, else beside this test's own, built if it is not up to date.
pub fn program(name: &str) -> Result<PathBuf> {
    if let Some(folder) = std::env::var_os("AGENTRUN_PROGRAMS") {
        return Ok(PathBuf::from(folder).join(name));
    }
    static BUILT: std::sync::OnceLock<Result<PathBuf, String>> = std::sync::OnceLock::new();
    let built = BUILT.get_or_init(|| {
        let target = std::env::current_exe().map_err(|error| error.to_string())?;
        let target = target.ancestors().nth(2).ok_or("a test lies in target/<triple>/<profile>/deps")?.to_owned();
        // The same selection as everywhere, since another one gives dependencies other features and builds them anew.
        let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
        let profile = match target.file_name().and_then(|name| name.to_str()) {
            Some("debug") | None => "dev",
            Some(other) => other,
        };
        let built = Command::new(cargo)
            .args(["build", "--quiet", "--workspace", "--bins", "--profile", profile])
            .current_dir(env!("CARGO_MANIFEST_DIR"))
            .status();
        match built {
            Ok(status) if status.success() => Ok(target),
            other => Err(format!("building our programs: {other:?}")),
        }
    });
    built.clone().map(|folder| folder.join(name)).map_err(anyhow::Error::msg)
}
