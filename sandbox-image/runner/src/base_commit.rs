//! Where the image has git, the source becomes one commit, so that `git diff` shows what the agent changed. Nothing is
//! decided by it: the patch comes from bytes, not from git.

use std::time::Duration;

use agentrun_protocol::executor::{ExecStart, exec_output::Stream};

use crate::{
    clip::HeadAndTail,
    executor::{Executor, ExecutorError, Output},
};

const TIMEOUT: Duration = Duration::from_secs(60);
const MAX_OUTPUT_BYTES: u64 = 64 * 1024;

/// True if there is a commit now; false if the image has no git. `Refused` errors say what git said.
pub async fn commit(executor: &Executor) -> Result<bool, String> {
    const IDENTITY: &[&str] = &["-c", "user.name=agentrun", "-c", "user.email=agentrun@localhost"];
    const SAFE: &[&str] = &["-c", "core.hooksPath=/dev/null", "-c", "commit.gpgSign=false", "-c", "core.autocrlf=false"];
    let steps: &[&[&str]] = &[
        &["-c", "init.defaultBranch=main", "init", "--quiet", "--template="],
        &["add", "--all", "--force"],
        &["commit", "--quiet", "--no-verify", "--allow-empty", "--message=base"],
    ];
    for step in steps {
        let argv: Vec<String> = ["git"].iter().chain(IDENTITY).chain(SAFE).chain(*step).map(|word| (*word).to_owned()).collect();
        let start = ExecStart {
            argv,
            timeout_ms: TIMEOUT.as_millis() as u64,
            max_output_bytes: MAX_OUTPUT_BYTES,
            // Nothing of the image's own configuration; the dates are fixed so that the commit's id is a function of the source.
            env: [
                ("GIT_CONFIG_GLOBAL", "/dev/null"),
                ("GIT_CONFIG_NOSYSTEM", "1"),
                ("GIT_AUTHOR_DATE", "2000-01-01T00:00:00Z"),
                ("GIT_COMMITTER_DATE", "2000-01-01T00:00:00Z"),
            ]
            .map(|(name, value)| (name.to_owned(), value.to_owned()))
            .into(),
            ..ExecStart::default()
        };
        let mut said = Said(HeadAndTail::new(512));
        match executor.exec(start, &mut said).await {
            Ok(exit) if exit.exit_code == 0 => {}
            Ok(exit) => return Err(format!("git {} ended with {}: {}", step[step.len() - 1], exit.exit_code, said.0.text(0).0.trim())),
            Err(error) if error.is("not_started") => return Ok(false),
            Err(ExecutorError::Refused(error)) => return Err(error.message),
            Err(lost) => return Err(lost.to_string()),
        }
    }
    Ok(true)
}

struct Said(HeadAndTail);

impl Output for Said {
    fn data(&mut self, _stream: Stream, data: &[u8]) {
        self.0.push(data);
    }
}
