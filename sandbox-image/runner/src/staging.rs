//! Puts the source into the workspace, from the job itself or from its archive, and keeps what it put there as the base that changes are told from.

use std::collections::BTreeMap;

use agentrun_protocol::{
    archive::{self, ArchiveError, ArchiveFile},
    git_object::{Kind, ObjectId, tree_id},
    job::Job,
    people::MAX_SOURCE_BYTES,
    result::{FileState, Outcome},
    routes,
};
use bytes::Bytes;
use sha2::{Digest, Sha256};
use tokio::time::Instant;

use crate::{
    executor::{Executor, ExecutorError},
    gateway::Gateway,
};

/// The source as sent: path to content digest and mode.
pub type Base = BTreeMap<String, FileState>;

/// Fetch the job's archive, if its source is one, and make sure that it is the one that was named. On failure: how the run ends.
pub async fn fetch(gateway: &Gateway, job: &Job, until: Instant) -> Result<Option<Bytes>, (Outcome, String)> {
    let Some(wanted) = &job.archive else { return Ok(None) };
    let unavailable = |why: String| (Outcome::SourceUnavailable, format!("the source archive could not be fetched: {why}"));
    let archive = gateway.fetch(routes::SOURCE, MAX_SOURCE_BYTES, until).await.map_err(|error| unavailable(error.to_string()))?;
    let got = digest(&archive);
    if got != *wanted {
        return Err(unavailable(format!("its digest is {got}, not {wanted}")));
    }
    Ok(Some(archive))
}

/// Write every file, of the job itself and of its archive. On failure: how the run ends.
pub async fn stage(executor: &Executor, job: &Job, archive: Option<Bytes>) -> Result<Base, (Outcome, String)> {
    let mut base = Base::new();
    for file in &job.files {
        write(executor, &mut base, &file.path, file.content.as_bytes(), file.executable).await?;
    }
    if let Some(archive) = archive {
        let unusable = |why: String| (Outcome::SourceUnavailable, format!("the source archive: {why}"));
        let files = files(&archive).map_err(|why| unusable(why.to_string()))?;
        if let Some(wanted) = &job.tree {
            let made = tree(&archive, &files);
            if made != *wanted {
                return Err(unusable(format!("its files make the tree {made}, not {wanted}, which the commit has")));
            }
        }
        for file in files {
            // Within bounds: the reader has seen all of the content.
            let content = archive.slice(file.at as usize..(file.at + file.bytes) as usize);
            write(executor, &mut base, file.path.as_str(), &content, file.executable).await?;
        }
    }
    Ok(base)
}

fn files(archive: &[u8]) -> Result<Vec<ArchiveFile>, ArchiveError> {
    let mut files = Vec::new();
    archive::read(archive, |file, _| {
        files.push(file.clone());
        Ok(())
    })?;
    Ok(files)
}

/// The name that git gives the tree of these files; 40 hex digits.
fn tree(archive: &Bytes, files: &[ArchiveFile]) -> String {
    let named = files.iter().map(|file| {
        // Within bounds, as above.
        let content = archive.slice(file.at as usize..(file.at + file.bytes) as usize);
        (&file.path, file.executable, ObjectId::of(Kind::Blob, &content))
    });
    tree_id(named).to_string()
}

async fn write(executor: &Executor, base: &mut Base, path: &str, content: &[u8], executable: bool) -> Result<(), (Outcome, String)> {
    let mode = if executable { 755 } else { 644 };
    executor.write(path, content, mode).await.map_err(|error| {
        let outcome = match &error {
            ExecutorError::Lost(_) => Outcome::ExecutorLost,
            refused if refused.is("no_space") => Outcome::WorkspaceFull,
            ExecutorError::Refused(_) => Outcome::SourceUnavailable,
        };
        (outcome, format!("the source could not be put into the workspace: {path}: {error}"))
    })?;
    base.insert(path.to_owned(), FileState { digest: digest(content), mode });
    Ok(())
}

/// `sha256:` and 64 hex digits.
pub fn digest(bytes: &[u8]) -> String {
    let mut text = String::from("sha256:");
    for byte in Sha256::digest(bytes) {
        text.push_str(&format!("{byte:02x}"));
    }
    text
}
