//! `fs.Manifest`: path, mode, digest and size of every file, in parts, within bounds. What cannot be in a patch is named.

use std::{io::Read, ops::ControlFlow};

use agentrun_protocol::executor::{FsManifest, FsManifestDone, ManifestEntry, ManifestPart, RefusedEntry};
use prost::Message;
use rustix::fs::FileType;
use sha2::{Digest, Sha256};

use crate::{
    failure::{Failure, INVALID},
    fs_read::{digest_text, fill},
    request::Request,
    walk::{Met, Skip, walk},
    workspace::{Workspace, digits},
};

/// A part is sent when it has grown to about so many bytes.
const PART_BYTES: usize = 64 * 1024;
const MAX_EXCLUDES: usize = 64;

/// Blocking. Every file, directory and refused entry counts towards `max_entries`; every byte hashed towards `max_bytes`.
pub fn manifest(workspace: &Workspace, request: &Request, asked: &FsManifest) -> Result<FsManifestDone, Failure> {
    if asked.exclude.len() > MAX_EXCLUDES {
        return Err(Failure::new(INVALID, format!("exclude: has {} entries; at most {MAX_EXCLUDES} are allowed", asked.exclude.len())));
    }
    let root = workspace.directory("")?;
    let mut state = State { request, part: ManifestPart::default(), part_bytes: 0, left: asked.max_bytes, buffer: vec![0; 128 * 1024] };
    let mut entries = 0u64;
    let mut truncated = false;
    let skip = |path: &str, name: &str, kind: FileType| skip(&asked.exclude, path, name, kind);
    walk(&root, "", skip, |met| {
        request.check()?;
        if entries >= u64::from(asked.max_entries) {
            truncated = true;
            return Ok(ControlFlow::Break(()));
        }
        entries += 1;
        match met {
            Met::Directory => {}
            Met::Refused(path, why) => state.add(Err(RefusedEntry { path, why }))?,
            Met::File(path, opened) => {
                let (mut file, stat) = *opened;
                match state.hash(&mut file)? {
                    Hashed::Whole(sha256, size) => state.add(Ok(ManifestEntry { path, mode: digits(&stat), sha256, size }))?,
                    Hashed::Failed(error) => {
                        state.add(Err(RefusedEntry { path, why: format!("it cannot be read: {error}") }))?;
                    }
                    Hashed::OutOfBytes => {
                        let why = format!("with it the files would be more than the {} bytes that are read in all", asked.max_bytes);
                        state.add(Err(RefusedEntry { path, why }))?;
                        truncated = true;
                        return Ok(ControlFlow::Break(()));
                    }
                }
            }
        }
        Ok(ControlFlow::Continue(()))
    })?;
    state.flush()?;
    Ok(FsManifestDone { truncated, entries })
}

fn skip(exclude: &[String], path: &str, name: &str, kind: FileType) -> Option<Skip> {
    let excluded = exclude.iter().any(|pattern| match pattern.strip_prefix("**/") {
        Some(wanted) => kind == FileType::Directory && wanted == name,
        None => pattern == path,
    });
    let folded = name.trim_end_matches(['.', ' ']);
    if excluded {
        Some(Skip::Silently)
    } else if folded.eq_ignore_ascii_case(".git") || folded.eq_ignore_ascii_case("git~1") {
        Some(Skip::Refused("git's own directories cannot be part of a patch"))
    } else {
        None
    }
}

enum Hashed {
    Whole(String, u64),
    Failed(std::io::Error),
    OutOfBytes,
}

struct State<'r> {
    request: &'r Request,
    part: ManifestPart,
    part_bytes: usize,
    /// Bytes that may still be hashed.
    left: u64,
    buffer: Vec<u8>,
}

impl State<'_> {
    /// A file that grows while it is read ends with the budget, at the latest.
    fn hash(&mut self, file: &mut impl Read) -> Result<Hashed, Failure> {
        let mut hash = Sha256::new();
        let mut size = 0u64;
        loop {
            self.request.check()?;
            let count = match fill(file, &mut self.buffer) {
                Ok(count) => count,
                Err(error) => return Ok(Hashed::Failed(error)),
            };
            let Some(left) = self.left.checked_sub(count as u64) else { return Ok(Hashed::OutOfBytes) };
            self.left = left;
            size += count as u64;
            hash.update(&self.buffer[..count]);
            if count < self.buffer.len() {
                return Ok(Hashed::Whole(digest_text(hash), size));
            }
        }
    }

    fn add(&mut self, entry: Result<ManifestEntry, RefusedEntry>) -> Result<(), Failure> {
        match entry {
            Ok(entry) => {
                self.part_bytes += entry.encoded_len() + 8;
                self.part.entries.push(entry);
            }
            Err(refused) => {
                self.part_bytes += refused.encoded_len() + 8;
                self.part.refused.push(refused);
            }
        }
        if self.part_bytes >= PART_BYTES { self.flush() } else { Ok(()) }
    }

    fn flush(&mut self) -> Result<(), Failure> {
        let part = std::mem::take(&mut self.part);
        self.part_bytes = 0;
        if part.entries.is_empty() && part.refused.is_empty() { Ok(()) } else { self.request.emit_blocking(part.encode_to_vec()) }
    }
}
