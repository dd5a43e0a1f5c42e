//! From the objects of a commit to the archive that its run starts from: the same kind that people upload, in one order and with
//! one form of header, so that the same commit always gives the same bytes.

use std::collections::{BTreeMap, VecDeque};
use std::fs::File;
use std::io::{self, BufWriter, Seek, Write};
use std::path::Path;

use agentrun_crds::agent_policy::LeftOut;
use agentrun_crds::agent_run_status::{FetchedCommit, MAX_OMITTED};
use agentrun_crds::paths::RelativePath;
use agentrun_protocol::archive::{self, ArchiveError, MAX_FOLDERS, Summary};
use agentrun_protocol::git_object::{Kind, ObjectId, tree_id};
use agentrun_protocol::people::{MAX_SOURCE_BYTES, MAX_SOURCE_FILES};

use super::objects::{Objects, ObjectsError, Place, Reading};
use super::tree::{self, EntryKind};
use crate::store::{Digest, Hasher};

const MAX_COMMIT_BYTES: u64 = 1 << 20;
const MAX_TREE_BYTES: u64 = 4 << 20;
/// All paths that are left out, which stand in status.
const MAX_OMITTED_BYTES: usize = 4_096;

/// What is taken, and what becomes of the rest.
pub(super) struct Wanted<'a> {
    pub commit: ObjectId,
    pub sub_path: Option<&'a RelativePath>,
    pub symlinks: LeftOut,
    pub submodules: LeftOut,
}

/// A tree that is ready to be stored.
pub(super) struct Exported {
    /// At its beginning.
    pub archive: File,
    pub digest: Digest,
    pub summary: Summary,
    pub git: FetchedCommit,
}

struct Found {
    path: RelativePath,
    executable: bool,
    id: ObjectId,
    place: Place,
}

/// Make the archive in a file of `folder` that has no name.
pub(super) fn export(objects: &mut Objects, wanted: &Wanted<'_>, folder: &Path) -> Result<Exported, ObjectsError> {
    let commit = objects.read(wanted.commit, Kind::Commit, MAX_COMMIT_BYTES)?;
    let root = tree::of_commit(&commit).ok_or_else(|| ObjectsError::bad("has a commit that names no tree"))?;
    let tree = match wanted.sub_path {
        Some(path) => beneath(objects, root, path)?,
        None => root,
    };
    let (files, omitted) = walk(objects, tree, wanted)?;
    let staged_tree = tree_id(files.values().map(|file| (&file.path, file.executable, file.id)));
    let mut archive = tempfile::tempfile_in(folder)?;
    let digest = write(objects, files.values(), &mut archive)?;
    // Read as everybody will read it: what it refuses is no source, wherever it comes from.
    archive.rewind()?;
    let summary = archive::read(io::BufReader::new(&archive), |_, _| Ok(())).map_err(|error| match error {
        ArchiveError::Entry { entry, why } => ObjectsError::bad(format!("has a tree in which {entry:?} {why}")),
        ArchiveError::Whole(why) => ObjectsError::bad(format!("has a tree that cannot be a source: its archive {why}")),
    })?;
    archive.rewind()?;
    let git = FetchedCommit { commit: wanted.commit.to_string(), tree: tree.to_string(), staged_tree: staged_tree.to_string(), omitted };
    Ok(Exported { archive, digest, summary, git })
}

fn entries(objects: &mut Objects, id: ObjectId, at: &str) -> Result<Vec<tree::Entry>, ObjectsError> {
    let content = objects.read(id, Kind::Tree, MAX_TREE_BYTES)?;
    tree::entries(&content).map_err(|why| ObjectsError::bad(format!("has a tree ({:?}) that {why}", if at.is_empty() { "/" } else { at })))
}

/// The tree of a folder.
fn beneath(objects: &mut Objects, root: ObjectId, path: &RelativePath) -> Result<ObjectId, ObjectsError> {
    let mut here = root;
    for name in path.as_str().split('/') {
        let found = entries(objects, here, path.as_str())?.into_iter().find(|entry| entry.name == name && entry.kind == EntryKind::Folder);
        here = found.ok_or_else(|| ObjectsError::bad(format!("has no folder {path} (subPath) in this commit")))?.id;
    }
    Ok(here)
}

/// Every file by its path, and what was left out. Level by level, so that one tree is in memory at a time.
fn walk(objects: &mut Objects, root: ObjectId, wanted: &Wanted<'_>) -> Result<(BTreeMap<String, Found>, Vec<String>), ObjectsError> {
    let mut files = BTreeMap::new();
    let mut omitted: Vec<String> = Vec::new();
    let mut bytes = 0u64;
    let mut folders = VecDeque::from([(String::new(), root)]);
    let mut seen = 0;
    while let Some((folder, id)) = folders.pop_front() {
        seen += 1;
        if seen > MAX_FOLDERS {
            return Err(ObjectsError::bad(format!("has a tree of more than {MAX_FOLDERS} folders; a subPath may hold fewer")));
        }
        for entry in entries(objects, id, &folder)? {
            let text = if folder.is_empty() { entry.name.clone() } else { format!("{folder}/{}", entry.name) };
            let path = RelativePath::parse(&text).map_err(|why| {
                ObjectsError::bad(format!("has a tree with a path that {why}: {:?}", text.chars().take(200).collect::<String>()))
            })?;
            let executable = match entry.kind {
                EntryKind::File { executable } => executable,
                EntryKind::Folder => {
                    if folders.len() > MAX_FOLDERS {
                        return Err(ObjectsError::bad(format!("has a tree of more than {MAX_FOLDERS} folders; a subPath may hold fewer")));
                    }
                    folders.push_back((text, entry.id));
                    continue;
                }
                EntryKind::Symlink | EntryKind::Submodule => {
                    let (what, field, left_out) = match entry.kind {
                        EntryKind::Symlink => ("symbolic link", "git.symlinks", wanted.symlinks),
                        _ => ("submodule", "git.submodules", wanted.submodules),
                    };
                    if left_out == LeftOut::Refuse {
                        return Err(ObjectsError::bad(format!(
                            "has a {what} {text:?}, which cannot be staged; a policy with {field}: Omit would leave it out"
                        )));
                    }
                    omitted.push(text);
                    if omitted.len() > MAX_OMITTED || omitted.iter().map(String::len).sum::<usize>() > MAX_OMITTED_BYTES {
                        return Err(ObjectsError::bad(format!(
                            "has more symbolic links and submodules than can be left out (at most {MAX_OMITTED}, with {MAX_OMITTED_BYTES} bytes of paths)"
                        )));
                    }
                    continue;
                }
            };
            let place = match objects.find(entry.id) {
                Some((Kind::Blob, place)) => place,
                _ => return Err(ObjectsError::bad(format!("does not have the content of {text:?}"))),
            };
            bytes = bytes.saturating_add(place.bytes.next_multiple_of(512) + 512);
            if bytes > MAX_SOURCE_BYTES as u64 {
                return Err(ObjectsError::bad(format!(
                    "has a tree of more than {MAX_SOURCE_BYTES} bytes, the most that a source may have; a subPath may hold less"
                )));
            }
            if files.len() >= MAX_SOURCE_FILES {
                return Err(ObjectsError::bad(format!(
                    "has a tree of more than {MAX_SOURCE_FILES} files, the most that a source may have; a subPath may hold fewer"
                )));
            }
            files.insert(text, Found { path, executable, id: entry.id, place });
        }
    }
    omitted.sort();
    Ok((files, omitted))
}

fn write<'f>(objects: &mut Objects, files: impl Iterator<Item = &'f Found>, into: &mut File) -> Result<Digest, ObjectsError> {
    let mut builder =
        tar::Builder::new(Hashing { inner: BufWriter::with_capacity(1 << 20, into), hasher: Hasher::default(), left: MAX_SOURCE_BYTES });
    for file in files {
        let mut header = tar::Header::new_gnu();
        header.set_size(file.place.bytes);
        header.set_mode(if file.executable { 0o755 } else { 0o644 });
        header.set_mtime(0);
        builder.append_data(&mut header, file.path.as_str(), Reading::of(objects, file.place)).map_err(too_large)?;
    }
    let Hashing { mut inner, hasher, .. } = builder.into_inner().map_err(too_large)?;
    inner.flush()?;
    Ok(hasher.finish())
}

fn too_large(error: io::Error) -> ObjectsError {
    match error.kind() {
        io::ErrorKind::FileTooLarge => {
            ObjectsError::bad(format!("has a tree whose archive has more than {MAX_SOURCE_BYTES} bytes; a subPath may hold less"))
        }
        _ => ObjectsError::Io(error),
    }
}

struct Hashing<W> {
    inner: W,
    hasher: Hasher,
    left: usize,
}

impl<W: Write> Write for Hashing<W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.left = self.left.checked_sub(bytes.len()).ok_or(io::ErrorKind::FileTooLarge)?;
        self.inner.write_all(bytes)?;
        self.hasher.update(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.inner.flush()
    }
}
