//! What changed: the executor's manifest says where to look, and the bytes received say what is there.

use agentrun_crds::paths::RelativePath;
use agentrun_protocol::{
    executor::ManifestEntry,
    result::{Change, FileState, MAX_BLOB_BYTES, MAX_CHANGES},
};
use bytes::Bytes;

use crate::{
    clip::printable,
    executor::{Executor, ExecutorError, Manifest},
    staging::{Base, digest},
};

const MAX_ENTRIES: u32 = 200_000;
const MAX_BYTES: u64 = 2 * 1024 * 1024 * 1024;
/// All changed files together.
const MAX_CHANGED_BYTES: usize = 64 * 1024 * 1024;

/// Directories that tools make beside the sources. They are left out, unless the source itself has one of that name.
const CACHES: &[&str] = &["__pycache__", ".pytest_cache", ".mypy_cache", ".ruff_cache", "node_modules"];

/// Changes in the order of their paths; what could not be part of them is in `problems`.
#[derive(Default)]
pub struct Changes {
    pub changes: Vec<Change>,
    pub problems: Vec<String>,
}

impl Changes {
    pub fn complete(&self) -> bool {
        self.problems.is_empty()
    }
}

/// Compare the workspace with the base. Each changed file's bytes go to `keep` as they come.
pub async fn collect(
    executor: &Executor,
    base: &Base,
    mut keep: impl AsyncFnMut(String, Bytes) -> Result<(), String>,
) -> Result<Changes, ExecutorError> {
    // A command that the deadline cut short must be gone before the files are looked at.
    executor.quiet().await?;
    let manifest = executor.manifest(MAX_ENTRIES, MAX_BYTES, exclude(base)).await?;
    let mut result = Changes { problems: problems(&manifest), ..Changes::default() };
    let mut bytes_left = MAX_CHANGED_BYTES;
    for path in changed(base, &manifest) {
        if result.changes.len() >= MAX_CHANGES {
            result.problems.push(format!("more than {MAX_CHANGES} files changed"));
            break;
        }
        let before = base.get(path).cloned();
        // The gateway refuses the whole result for one such path, and nobody would learn why.
        if let Err(why) = RelativePath::parse(path) {
            result.problems.push(format!("{}: a path of a patch cannot be like this: it {why}", printable(path)));
            continue;
        }
        let Some(entry) = manifest.entries.get(path) else {
            result.changes.push(Change { path: path.to_owned(), before, after: None });
            continue;
        };
        let limit = bytes_left.min(MAX_BLOB_BYTES);
        let content = match executor.read(path, limit as u64).await {
            Ok((_, done)) if done.truncated => {
                result.problems.push(format!("{path}: is larger than a patch may hold ({} bytes)", done.size));
                continue;
            }
            Ok((content, _)) => content,
            Err(ExecutorError::Refused(error)) => {
                result.problems.push(format!("the file changed while it was collected: {}", error.message));
                continue;
            }
            Err(lost) => return Err(lost),
        };
        bytes_left -= content.len();
        let after = FileState { digest: digest(&content), mode: entry.mode };
        // The manifest may have lied, or the file may have been put back.
        if before.as_ref() == Some(&after) {
            continue;
        }
        if before.as_ref().is_none_or(|before| before.digest != after.digest)
            && let Err(why) = keep(after.digest.clone(), content.into()).await
        {
            result.problems.push(format!("{path}: could not be uploaded: {why}"));
            continue;
        }
        result.changes.push(Change { path: path.to_owned(), before, after: Some(after) });
    }
    Ok(result)
}

/// What the manifest itself says cannot be in a patch.
fn problems(manifest: &Manifest) -> Vec<String> {
    let shown = manifest.refused.iter().take(5).map(|entry| printable(&format!("{}: {}", entry.path, entry.why)));
    let mut problems: Vec<String> = shown.collect();
    if manifest.refused.len() > 5 {
        problems.push(format!("and {} more such files", manifest.refused.len() - 5));
    }
    if manifest.truncated {
        problems.push(format!("the workspace holds more than {MAX_ENTRIES} files or {MAX_BYTES} bytes"));
    }
    let odd = manifest.entries.values().find(|entry| !matches!(entry.mode, 644 | 755));
    problems.extend(odd.map(|entry| format!("{}: has mode {}", entry.path, entry.mode)));
    problems
}

/// Paths that differ by the manifest's word, sorted. A truncated manifest proves no deletion.
fn changed<'m>(base: &'m Base, manifest: &'m Manifest) -> Vec<&'m str> {
    let differs = |entry: &ManifestEntry| base.get(&entry.path).is_none_or(|b| b.digest != entry.sha256 || b.mode != entry.mode);
    let present = manifest.entries.values().filter(|entry| matches!(entry.mode, 644 | 755) && differs(entry)).map(|entry| &entry.path);
    let deleted = base.keys().filter(|path| {
        let refused = || manifest.refused.iter().any(|entry| path_within(path, &entry.path));
        !manifest.truncated && !manifest.entries.contains_key(*path) && !refused()
    });
    let mut paths: Vec<&str> = present.chain(deleted).map(String::as_str).collect();
    paths.sort_unstable();
    paths
}

fn path_within(path: &str, directory: &str) -> bool {
    path.strip_prefix(directory).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
}

fn exclude(base: &Base) -> Vec<String> {
    let in_source = |name: &str| base.keys().any(|path| path.split('/').rev().skip(1).any(|component| component == name));
    let caches = CACHES.iter().filter(|name| !in_source(name)).map(|name| format!("**/{name}"));
    std::iter::once(".git".to_owned()).chain(caches).collect()
}

#[cfg(test)]
mod tests {
    use agentrun_protocol::executor::RefusedEntry;

    use super::*;

    fn manifest(entries: &[(&str, &str, u32)], refused: &[&str], truncated: bool) -> Manifest {
        let entry = |(path, content, mode): &(&str, &str, u32)| {
            let entry = ManifestEntry { path: path.to_string(), mode: *mode, sha256: digest(content.as_bytes()), size: 0 };
            (path.to_string(), entry)
        };
        let refused = refused.iter().map(|path| RefusedEntry { path: path.to_string(), why: "link".into() });
        Manifest { entries: entries.iter().map(entry).collect(), refused: refused.collect(), truncated }
    }

    fn base(entries: &[(&str, &str, u32)]) -> Base {
        entries
            .iter()
            .map(|(path, content, mode)| (path.to_string(), FileState { digest: digest(content.as_bytes()), mode: *mode }))
            .collect()
    }

    #[test]
    fn differences_are_found_and_only_proven_deletions_count() {
        let base = base(&[("a", "1", 644), ("b", "1", 644), ("c", "1", 644), ("d/e", "1", 644)]);
        let same = [("a", "1", 644), ("b", "1", 644), ("c", "1", 644), ("d/e", "1", 644)];
        for (entries, refused, truncated, expected) in [
            (&same[..], &[][..], false, &[][..]),
            (&[("a", "2", 644), ("b", "1", 755), ("f", "", 644), ("d/e", "1", 644)], &[], false, &["a", "b", "c", "f"]),
            (&same[..1], &[], true, &[]),
            (&same[..1], &["d", "b"], false, &["c"]),
            (&[("a", "2", 600), same[1], same[2], same[3]], &[], false, &[]),
        ] {
            assert_eq!(changed(&base, &manifest(entries, refused, truncated)), expected);
        }
        assert!(problems(&manifest(&same, &[], false)).is_empty());
        assert_eq!(problems(&manifest(&[("a", "", 600)], &["x"], true)).len(), 3);
        assert_eq!(problems(&manifest(&[], &["x"; 9], false)).len(), 6);
    }

    #[test]
    fn caches_are_left_out_unless_the_source_has_them() {
        assert!(exclude(&base(&[("a/b.py", "", 644)])).contains(&"**/__pycache__".to_owned()));
        let excluded = exclude(&base(&[("x/__pycache__/a", "", 644), ("node_modules", "", 644)]));
        assert!(!excluded.contains(&"**/__pycache__".to_owned()) && excluded.contains(&"**/node_modules".to_owned()));
        assert_eq!(excluded[0], ".git");
    }
}
