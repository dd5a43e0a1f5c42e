//! Names of git's objects (SHA-1), and the name of the tree that a set of files makes. Gateway and runner compute them with this
//! one implementation.

use std::collections::BTreeMap;

use agentrun_crds::paths::RelativePath;
use sha1::{Digest, Sha1};

/// The name of an object.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ObjectId([u8; 20]);

/// What an object is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Kind {
    Commit,
    Tree,
    Blob,
    Tag,
}

impl Kind {
    fn word(self) -> &'static str {
        match self {
            Kind::Commit => "commit",
            Kind::Tree => "tree",
            Kind::Blob => "blob",
            Kind::Tag => "tag",
        }
    }
}

impl ObjectId {
    pub const LENGTH: usize = 20;

    /// 40 lower-case hex digits.
    pub fn parse(text: &str) -> Option<Self> {
        let digits = text.as_bytes();
        let digit = |byte: u8| match byte {
            b'0'..=b'9' => Some(byte - b'0'),
            b'a'..=b'f' => Some(byte - b'a' + 10),
            _ => None,
        };
        let mut id = [0; Self::LENGTH];
        if digits.len() != 2 * Self::LENGTH {
            return None;
        }
        for (byte, pair) in id.iter_mut().zip(digits.chunks_exact(2)) {
            *byte = digit(pair[0])? << 4 | digit(pair[1])?;
        }
        Some(ObjectId(id))
    }

    /// As it stands in trees and packs.
    pub fn from_bytes(bytes: [u8; Self::LENGTH]) -> Self {
        ObjectId(bytes)
    }

    /// Of an object with this content.
    pub fn of(kind: Kind, content: &[u8]) -> Self {
        let mut hasher = ObjectHasher::new(kind, content.len() as u64);
        hasher.update(content);
        hasher.finish()
    }
}

impl std::fmt::Display for ObjectId {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl std::fmt::Debug for ObjectId {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        std::fmt::Display::fmt(self, f)
    }
}

/// Hashes an object that streams by.
#[derive(Clone)]
pub struct ObjectHasher(Sha1);

impl ObjectHasher {
    /// `bytes` is the length of the content that follows.
    pub fn new(kind: Kind, bytes: u64) -> Self {
        let mut hasher = Sha1::new();
        hasher.update(format!("{} {bytes}\0", kind.word()));
        ObjectHasher(hasher)
    }

    pub fn update(&mut self, content: &[u8]) {
        self.0.update(content);
    }

    pub fn finish(self) -> ObjectId {
        ObjectId(self.0.finalize().into())
    }
}

/// The name of the tree that these files make: path, whether it is executable, name of its content. Paths are those of one tree:
/// no file is also a folder of others.
pub fn tree_id<'a>(files: impl IntoIterator<Item = (&'a RelativePath, bool, ObjectId)>) -> ObjectId {
    let mut root = Folder::default();
    for (path, executable, id) in files {
        let mut folder = &mut root;
        let mut rest = path.as_str();
        while let Some((name, below)) = rest.split_once('/') {
            folder = folder.folders.entry(name).or_default();
            rest = below;
        }
        folder.files.insert(rest, (executable, id));
    }
    root.id()
}

#[derive(Default)]
struct Folder<'a> {
    files: BTreeMap<&'a str, (bool, ObjectId)>,
    folders: BTreeMap<&'a str, Folder<'a>>,
}

impl Folder<'_> {
    /// As deep as a path has components.
    fn id(&self) -> ObjectId {
        // Git sorts a folder as if its name ended with a slash.
        let files = self.files.iter().map(|(name, (executable, id))| {
            let mode = if *executable { "100755" } else { "100644" };
            (name.as_bytes().to_vec(), mode, *name, *id)
        });
        let folders = self.folders.iter().map(|(name, folder)| ([name.as_bytes(), b"/"].concat(), "40000", *name, folder.id()));
        let mut entries: Vec<_> = files.chain(folders).collect();
        entries.sort_by(|one, other| one.0.cmp(&other.0));
        let mut content = Vec::new();
        for (_, mode, name, id) in entries {
            content.extend_from_slice(format!("{mode} {name}\0").as_bytes());
            content.extend_from_slice(&id.0);
        }
        ObjectId::of(Kind::Tree, &content)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_those_that_git_gives() {
        assert_eq!(ObjectId::of(Kind::Blob, b"").to_string(), "e69de29bb2d1d6434b8b29ae775ad8c2e48c5391");
        assert_eq!(tree_id([]).to_string(), "4b825dc642cb6eb9a060e54bf8d69288fbee4904");
        for text in ["", "4b825dc642cb6eb9a060e54bf8d69288fbee490", "4B825dc642cb6eb9a060e54bf8d69288fbee4904"] {
            assert_eq!(ObjectId::parse(text), None);
        }
    }

    #[test]
    fn a_tree_is_named_as_git_write_tree_does() {
        // git: printf x | git hash-object -w --stdin; for each path: git update-index --add --cacheinfo mode,id,path; git write-tree
        let paths = ["a", "a.b", "a-b/c", "a0", "d/e/f", "d/run"].map(|path| RelativePath::parse(path).expect("a path"));
        let x = ObjectId::of(Kind::Blob, b"x");
        let tree = tree_id(paths.iter().rev().map(|path| (path, path.as_str() == "d/run", x)));
        assert_eq!(tree.to_string(), "cf9cecb2af41aeba15554e706dffbe2b4ebbcd3a");
        assert_eq!(ObjectId::parse(&tree.to_string()), Some(tree));
    }
}
