//! Puts the source into the workspace, and keeps what it put there as the base that changes are told from.

use std::collections::BTreeMap;

use agentrun_protocol::{
    job::Job,
    result::{FileState, Outcome},
};
use sha2::{Digest, Sha256};

use crate::executor::{Executor, ExecutorError};

/// The source as sent: path to content digest and mode.
pub type Base = BTreeMap<String, FileState>;

/// Write every file. On failure: how the run ends.
pub async fn stage(executor: &Executor, job: &Job) -> Result<Base, (Outcome, String)> {
    let mut base = Base::new();
    for file in &job.files {
        let mode = if file.executable { 755 } else { 644 };
        executor.write(&file.path, file.content.as_bytes(), mode).await.map_err(|error| {
            let outcome = match &error {
                ExecutorError::Lost(_) => Outcome::ExecutorLost,
                refused if refused.is("no_space") => Outcome::WorkspaceFull,
                ExecutorError::Refused(_) => Outcome::SourceUnavailable,
            };
            (outcome, format!("the source could not be put into the workspace: {error}"))
        })?;
        base.insert(file.path.clone(), FileState { digest: digest(file.content.as_bytes()), mode });
    }
    Ok(base)
}

/// `sha256:` and 64 hex digits.
pub fn digest(bytes: &[u8]) -> String {
    let mut text = String::from("sha256:");
    for byte in Sha256::digest(bytes) {
        text.push_str(&format!("{byte:02x}"));
    }
    text
}
