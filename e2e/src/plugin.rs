//! `kubectl-agentrun` as a process, as somebody with a kubeconfig runs it.

use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use tokio::process::Command;

use crate::programs::program;

/// No command takes longer; one that follows may take as long as its run.
pub const LONGEST: Duration = Duration::from_secs(180);

/// The program, a kubeconfig, and a home with nothing in it.
pub struct Plugin {
    program: PathBuf,
    kubeconfig: PathBuf,
    namespace: String,
    pub home: tempfile::TempDir,
}

/// How a command ended.
#[derive(Debug)]
struct Ended {
    code: Option<i32>,
    stdout: String,
    stderr: String,
}

impl Plugin {
    pub fn new(kubeconfig: &Path, namespace: &str) -> Result<Plugin> {
        Ok(Plugin {
            program: program("kubectl-agentrun")?,
            kubeconfig: kubeconfig.to_owned(),
            namespace: namespace.to_owned(),
            home: tempfile::tempdir()?,
        })
    }

    /// A command that ends with us.
    pub fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(&self.program);
        command
            .args(arguments)
            .args(["-n", &self.namespace])
            .env_clear()
            .env("KUBECONFIG", &self.kubeconfig)
            .env("HOME", self.home.path())
            .current_dir(self.home.path())
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .kill_on_drop(true);
        command
    }

    /// Run a command that must end with this status and say this on standard error; its standard output.
    pub async fn expect(&self, arguments: &[&str], code: i32, part: &str) -> Result<String> {
        let output = tokio::time::timeout(LONGEST, self.command(arguments).output()).await;
        let output = output.with_context(|| format!("{arguments:?} does not end"))??;
        let text = |bytes: Vec<u8>| String::from_utf8_lossy(&bytes).into_owned();
        let ended = Ended { code: output.status.code(), stdout: text(output.stdout), stderr: text(output.stderr) };
        ensure!(ended.code == Some(code) && ended.stderr.contains(part), "{arguments:?}: not {code} with {part:?}: {ended:#?}");
        Ok(ended.stdout)
    }
}
