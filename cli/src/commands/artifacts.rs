//! `artifacts`: what a run has stored, and one of it into a file. Its name is the run's word, so it is judged before it
//! becomes a path, and what arrives must have the digest that was listed.

use std::fs::OpenOptions;
use std::io::Write;
use std::path::Path;

use agentrun_crds::paths::RelativePath;
use serde_json::json;
use sha2::{Digest, Sha256};

use crate::arguments::Artifacts;
use crate::cluster::{Cluster, MAX_ANSWER};
use crate::door::{Artifact, Door};
use crate::exit::Exit;
use crate::failure::Failure;
use crate::output::{Output, Table};
use crate::{run_name, visible};

pub async fn run(cluster: &Cluster, arguments: &Artifacts, output: &Output) -> Result<Exit, Failure> {
    let name = run_name::resolve(cluster, &arguments.run.run).await?;
    let door = Door { cluster, run: &name };
    let all = door.artifacts().await.map_err(|fault| door.failure(fault, &format!("listing the artifacts of {name}")))?;
    if let Some(wanted) = &arguments.get {
        return fetch(&door, &all, wanted, arguments, output).await;
    }
    if arguments.output.is_some() {
        let all: Vec<_> = all.iter().map(|a| json!({ "name": a.name, "digest": a.digest, "bytes": a.bytes })).collect();
        output.json(&json!({ "artifacts": all }))?;
        return Ok(Exit::Succeeded);
    }
    let mut table = Table::new(&["NAME", "BYTES", "DIGEST"]);
    for artifact in &all {
        table.row(vec![artifact.name.clone(), artifact.bytes.to_string(), artifact.digest.clone()]);
    }
    if table.is_empty() {
        output.remark(&format!("{name} has no artifacts"));
        return Ok(Exit::Succeeded);
    }
    for line in table.lines() {
        output.line(&line)?;
    }
    Ok(Exit::Succeeded)
}

async fn fetch(door: &Door<'_>, all: &[Artifact], wanted: &str, arguments: &Artifacts, output: &Output) -> Result<Exit, Failure> {
    // A run refers to blobs that have no name, such as the texts of an approval.
    let unnamed = wanted.strip_prefix("sha256:").map(|hex| Artifact { name: hex.to_owned(), digest: wanted.to_owned(), bytes: 0 });
    let named = all.iter().find(|artifact| artifact.name == wanted || artifact.digest == wanted).cloned();
    let artifact = named.or(unnamed).ok_or_else(|| {
        Failure::new(Exit::NotSubmitted, format!("{} has no artifact {wanted:?}", door.run))
            .advice(format!("kubectl agentrun artifacts {} lists what it has.", door.run))
    })?;
    let what = format!("fetching {wanted}");
    let response = door.artifact(&artifact.digest).await.map_err(|fault| door.failure(fault, &what))?;
    let bytes = door.cluster.body(response, MAX_ANSWER).await.map_err(|fault| door.failure(fault, &what))?;
    let hex: String = Sha256::digest(&bytes).iter().map(|byte| format!("{byte:02x}")).collect();
    if artifact.digest != format!("sha256:{hex}") {
        return Err(Failure::new(Exit::Failed, format!("{wanted}: what arrived is not what was listed: sha256:{hex}")));
    }
    if arguments.output_dir == Path::new("-") {
        if output.terminal {
            output.raw(visible::block(&String::from_utf8_lossy(&bytes)).as_bytes())?;
        } else {
            output.raw(&bytes)?;
        }
        return Ok(Exit::Succeeded);
    }
    let path = write(&arguments.output_dir, &artifact.name, &bytes, arguments.force)?;
    output.line(&visible::line(&path.display().to_string()))?;
    Ok(Exit::Succeeded)
}

/// Beneath the folder, never over a file that is there unless forced, and never through a link that the name leads to.
fn write(folder: &Path, name: &str, bytes: &[u8], force: bool) -> Result<std::path::PathBuf, Failure> {
    let name = RelativePath::parse(name).map_err(|error| {
        Failure::new(Exit::Failed, format!("the artifact's name {name:?} {error}")).advice("Write it yourself: -O - > FILE")
    })?;
    // Folders of the name are not made: a link among them could lead anywhere.
    let path = folder.join(name.as_str().replace('/', "_"));
    let local = |error: &std::io::Error| {
        let failure = Failure::local(path.display(), error);
        if error.kind() == std::io::ErrorKind::AlreadyExists { failure.advice("--force replaces it.") } else { failure }
    };
    std::fs::create_dir_all(folder).map_err(|error| local(&error))?;
    if force {
        match std::fs::remove_file(&path) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => return Err(local(&error)),
            _ => {}
        }
    }
    let mut file = OpenOptions::new().write(true).create_new(true).open(&path).map_err(|error| local(&error))?;
    file.write_all(bytes).map_err(|error| local(&error))?;
    Ok(path)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_stays_within_the_folder_and_replaces_nothing() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = write(folder.path(), "logs/a.txt", b"1", false).expect("written");
        assert_eq!(path, folder.path().join("logs_a.txt"));
        let failure = write(folder.path(), "logs/a.txt", b"2", false).expect_err("refused");
        assert_eq!(failure.advice.as_deref(), Some("--force replaces it."));
        let outside = folder.path().join("outside");
        std::fs::write(&outside, "untouched").expect("written");
        std::fs::remove_file(&path).expect("removed");
        std::os::unix::fs::symlink(&outside, &path).expect("linked");
        assert!(write(folder.path(), "logs/a.txt", b"2", false).is_err());
        write(folder.path(), "logs/a.txt", b"2", true).expect("replaced");
        assert_eq!(std::fs::read_to_string(&outside).expect("read"), "untouched");
        assert_eq!(std::fs::read(&path).expect("read"), b"2");
        for bad in ["../x", "/etc/x", "a\nb", ""] {
            assert!(write(folder.path(), bad, b"", false).is_err(), "{bad:?}");
        }
    }
}
