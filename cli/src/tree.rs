//! A folder as the source of a run: what `.gitignore` leaves, regular files only, each path within our grammar. Nothing is
//! followed: a symbolic link within the folder is left out and named, one that leads out of it is refused.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::Read;
use std::os::unix::fs::{FileTypeExt, PermissionsExt};
use std::path::{Component, Path, PathBuf};

use agentrun_crds::paths::RelativePath;
use agentrun_protocol::people::{MAX_SOURCE_BYTES, MAX_SOURCE_FILES};
use ignore::WalkBuilder;
use rustix::fs::{Mode, OFlags};

use crate::archive;
use crate::failure::Failure;

/// Files by path, sorted by bytes.
#[derive(Debug, Default)]
pub struct Tree {
    pub files: Vec<TreeFile>,
    /// Symbolic links that were left out.
    pub skipped: Vec<String>,
}

#[derive(Debug, PartialEq, Eq)]
pub struct TreeFile {
    pub path: RelativePath,
    pub executable: bool,
    pub content: Vec<u8>,
}

/// Bounds; those of the protocol but in tests.
#[derive(Clone, Copy, Debug)]
pub struct Bounds {
    pub files: usize,
    /// Of the archive, headers included.
    pub bytes: usize,
}

impl Default for Bounds {
    fn default() -> Self {
        Bounds { files: MAX_SOURCE_FILES, bytes: MAX_SOURCE_BYTES }
    }
}

/// Read a folder. A refusal names the path.
pub fn read(folder: &Path, bounds: Bounds) -> Result<Tree, Failure> {
    let root = folder.canonicalize().map_err(|error| Failure::usage(format!("{}: {error}", folder.display())))?;
    if !root.is_dir() {
        return Err(Failure::usage(format!("{} is not a folder", folder.display())));
    }
    let mut tree = Tree::default();
    let mut keys: BTreeMap<String, String> = BTreeMap::new();
    let mut bytes = archive::END_BYTES;
    for entry in walk(&root) {
        let entry = entry.map_err(|error| Failure::usage(format!("cannot read {}: {error}", folder.display())))?;
        let Some(kind) = entry.file_type() else { continue };
        if kind.is_dir() {
            continue;
        }
        let shown = entry.path().strip_prefix(&root).unwrap_or(entry.path()).to_owned();
        let refuse = |why: String| Failure::usage(format!("{}: {}: {why}", folder.display(), shown.display()));
        if kind.is_symlink() {
            stays_within(&root, entry.path()).map_err(refuse)?;
            tree.skipped.push(shown.display().to_string());
            continue;
        }
        if let Some(what) = special(kind) {
            return Err(refuse(format!("is {what}; only regular files can be sent; delete it or name it in .gitignore")));
        }
        let text = shown.to_str().ok_or_else(|| refuse("its name is not UTF-8".into()))?;
        let path = RelativePath::parse(text).map_err(|error| refuse(format!("its path {error}")))?;
        if let Some(other) = keys.insert(path.collision_key(), text.to_owned()) {
            return Err(refuse(format!("is the same file as {other:?} where letter case or Unicode composition does not count")));
        }
        if tree.files.len() >= bounds.files {
            return Err(refuse(format!("is one file too many: at most {} can be sent; {ADVICE}", bounds.files)));
        }
        let file = open(entry.path()).map_err(|why| refuse(why.to_string()))?;
        let meta = file.metadata().map_err(|error| refuse(error.to_string()))?;
        if !meta.is_file() {
            return Err(refuse("is no regular file any more".into()));
        }
        let left = bounds.bytes.saturating_sub(bytes).saturating_sub(archive::header_bytes(text));
        let mut content = Vec::new();
        file.take(left as u64 + 1).read_to_end(&mut content).map_err(|error| refuse(error.to_string()))?;
        bytes += archive::header_bytes(text) + archive::padded(content.len());
        if content.len() > left || bytes > bounds.bytes {
            return Err(refuse(format!("with it the archive is larger than {} bytes; {ADVICE}", bounds.bytes)));
        }
        tree.files.push(TreeFile { path, executable: meta.permissions().mode() & 0o100 != 0, content });
    }
    tree.files.sort_by(|a, b| a.path.as_str().as_bytes().cmp(b.path.as_str().as_bytes()));
    tree.skipped.sort();
    if tree.files.is_empty() {
        return Err(Failure::usage(format!("{} holds no file to send", folder.display())));
    }
    Ok(tree)
}

const ADVICE: &str = "name what need not be sent in .gitignore, or send a folder further down";

/// As git sees it: within a repository all its ignore files count, elsewhere those of the folder. `.git` is never sent.
fn walk(root: &Path) -> ignore::Walk {
    let in_repository = root.ancestors().any(|folder| folder.join(".git").exists());
    WalkBuilder::new(root)
        .follow_links(false)
        .hidden(false)
        .ignore(false)
        .git_ignore(true)
        .git_exclude(true)
        .git_global(true)
        .require_git(in_repository)
        .parents(in_repository)
        .filter_entry(|entry| entry.file_name() != ".git")
        .sort_by_file_path(Path::cmp)
        .build()
}

fn special(kind: std::fs::FileType) -> Option<&'static str> {
    if kind.is_fifo() {
        Some("a FIFO")
    } else if kind.is_socket() {
        Some("a socket")
    } else if kind.is_block_device() || kind.is_char_device() {
        Some("a device")
    } else if !kind.is_file() {
        Some("no regular file")
    } else {
        None
    }
}

/// Without following a link that has just taken its place, and without waiting for a writer of a FIFO.
fn open(path: &Path) -> std::io::Result<File> {
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
    Ok(File::from(rustix::fs::open(path, flags, Mode::empty())?))
}

/// Whether a link leads to something beneath the folder; a dangling one is judged by its words.
fn stays_within(root: &Path, link: &Path) -> Result<(), String> {
    let target = std::fs::read_link(link).map_err(|error| error.to_string())?;
    let out = || format!("is a symbolic link that leads out of the folder, to {}; delete it or name it in .gitignore", target.display());
    if target.is_absolute() {
        return Err(out());
    }
    let within = match link.canonicalize() {
        Ok(real) => real.starts_with(root),
        Err(_) => by_words(link.parent().unwrap_or(root), &target).starts_with(root),
    };
    if within { Ok(()) } else { Err(out()) }
}

fn by_words(folder: &Path, target: &Path) -> PathBuf {
    let mut path = folder.to_owned();
    for component in target.components() {
        match component {
            Component::ParentDir => {
                path.pop();
            }
            Component::Normal(name) => path.push(name),
            _ => {}
        }
    }
    path
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::ffi::OsStrExt;
    use std::os::unix::fs::symlink;

    use super::*;

    struct Folder(tempfile::TempDir);

    impl Folder {
        fn new(files: &[(&str, &str)]) -> Self {
            let folder = Folder(tempfile::tempdir().expect("a folder"));
            for (path, content) in files {
                folder.write(path, content);
            }
            folder
        }

        fn path(&self, path: &str) -> PathBuf {
            self.0.path().join(path)
        }

        fn write(&self, path: &str, content: &str) {
            fs::create_dir_all(self.path(path).parent().expect("a parent")).expect("folders");
            fs::write(self.path(path), content).expect("written");
        }

        fn read(&self) -> Result<Tree, Failure> {
            read(self.0.path(), Bounds::default())
        }

        fn paths(&self) -> Vec<String> {
            self.read().expect("a tree").files.iter().map(|file| file.path.to_string()).collect()
        }
    }

    #[test]
    fn gitignore_counts_and_git_is_never_sent() {
        let folder = Folder::new(&[
            (".gitignore", "target/\n*.log\n!keep.log\n"),
            ("target/big", "x"),
            ("a.log", "x"),
            ("keep.log", "x"),
            ("src/.gitignore", "/gen\n"),
            ("src/gen", "x"),
            ("src/main.py", "x"),
            (".github/ci.yml", "x"),
            (".git/config", "x"),
            ("sub/.git", "gitdir: ../.git/modules/sub"),
            ("sub/b", "x"),
            (".ignore", "src\n"),
        ]);
        let expected = [".github/ci.yml", ".gitignore", ".ignore", "keep.log", "src/.gitignore", "src/main.py", "sub/b"];
        assert_eq!(folder.paths(), expected);
        // The same where there is no repository.
        fs::remove_dir_all(folder.path(".git")).expect("removed");
        assert_eq!(folder.paths(), expected);
    }

    #[test]
    fn ignore_files_above_count_within_a_repository_only() {
        let folder = Folder::new(&[(".gitignore", "*.o\n"), ("lib/a.o", "x"), ("lib/a.c", "x")]);
        let lib = || read(&folder.path("lib"), Bounds::default()).expect("a tree").files.len();
        assert_eq!(lib(), 2);
        fs::create_dir(folder.path(".git")).expect("made");
        assert_eq!(lib(), 1);
    }

    #[test]
    fn modes_are_two_and_order_is_that_of_bytes() {
        let folder = Folder::new(&[("b", "1"), ("a/c", "2"), ("a.txt", "3"), ("ü", "4"), ("B", "5")]);
        fs::remove_file(folder.path("B")).expect("removed");
        fs::set_permissions(folder.path("b"), fs::Permissions::from_mode(0o711)).expect("set");
        let tree = folder.read().expect("a tree");
        let seen: Vec<(&str, bool)> = tree.files.iter().map(|file| (file.path.as_str(), file.executable)).collect();
        assert_eq!(seen, [("a.txt", false), ("a/c", false), ("b", true), ("ü", false)]);
    }

    #[test]
    fn links_within_are_left_out_and_links_out_are_refused() {
        for (target, refused) in [
            ("a", false),
            ("sub/../a", false),
            ("missing", false),
            (".", false),
            ("/etc/passwd", true),
            ("../outside", true),
            ("../../../../../../../../etc/passwd", true),
            ("sub/../../x", true),
        ] {
            let folder = Folder::new(&[("a", "x"), ("sub/b", "x")]);
            symlink(target, folder.path("link")).expect("linked");
            match folder.read() {
                Ok(tree) => {
                    assert!(!refused, "{target}");
                    assert_eq!((tree.skipped, tree.files.len()), (vec!["link".to_owned()], 2), "{target}");
                }
                Err(failure) => {
                    assert!(refused, "{target}: {}", failure.message);
                    assert!(failure.message.contains("link: is a symbolic link that leads out"), "{}", failure.message);
                }
            }
        }
        // Through a folder that is itself a link out: the first link is what is refused.
        let folder = Folder::new(&[("a", "x")]);
        symlink("/etc", folder.path("etc")).expect("linked");
        assert!(folder.read().is_err());
    }

    #[test]
    fn what_is_no_regular_file_is_refused_unless_ignored() {
        let folder = Folder::new(&[("a", "x"), ("sub/b", "x")]);
        rustix::fs::mknodat(rustix::fs::CWD, folder.path("sub/pipe"), rustix::fs::FileType::Fifo, Mode::RUSR, 0).expect("a FIFO");
        let failure = folder.read().expect_err("refused");
        assert!(failure.message.contains("sub/pipe: is a FIFO"), "{}", failure.message);
        folder.write(".gitignore", "pipe\n");
        assert_eq!(folder.paths().len(), 3);
        let _socket = std::os::unix::net::UnixListener::bind(folder.path("s")).expect("a socket");
        assert!(folder.read().expect_err("refused").message.contains("s: is a socket"));
    }

    #[test]
    fn names_outside_the_grammar_and_collisions_are_refused() {
        for (names, part) in [
            (vec!["a\\b"], "contains a backslash"),
            (vec!["a\nb"], "contains a control character"),
            (vec!["a\u{202e}b"], "invisible formatting character"),
            (vec!["sub/.GIT/x"], "equivalent to '.git'"),
            (vec!["README", "readme"], "letter case or Unicode composition"),
            (vec!["\u{e9}", "e\u{301}"], "letter case or Unicode composition"),
        ] {
            let folder = Folder::new(&[]);
            for name in &names {
                folder.write(name, "x");
            }
            let failure = folder.read().expect_err("refused");
            assert!(failure.message.contains(part), "{names:?}: {}", failure.message);
        }
        let folder = Folder::new(&[]);
        fs::write(folder.0.path().join(std::ffi::OsStr::from_bytes(b"a\xff")), "x").expect("written");
        assert!(folder.read().expect_err("refused").message.contains("not UTF-8"));
    }

    #[test]
    fn bounds_are_those_of_the_archive() {
        let folder = Folder::new(&[("a", "x"), ("b", "y")]);
        let files = |files| read(folder.0.path(), Bounds { files, ..Bounds::default() });
        assert!(files(2).is_ok());
        assert!(files(1).expect_err("refused").message.contains("b: is one file too many"));
        let exact = archive::pack(&files(2).expect("a tree").files).expect("packed").bytes.len();
        let bytes = |bytes| read(folder.0.path(), Bounds { bytes, ..Bounds::default() });
        assert!(bytes(exact).is_ok());
        assert!(bytes(exact - 1).expect_err("refused").message.contains("b: with it the archive is larger"));
        assert!(read(&folder.path("a"), Bounds::default()).expect_err("refused").message.contains("is not a folder"));
        assert!(read(&folder.path("none"), Bounds::default()).is_err());
        assert!(Folder::new(&[]).read().expect_err("refused").message.contains("holds no file"));
    }

    #[test]
    fn many_files_are_refused_at_the_bound() {
        let folder = Folder::new(&[]);
        for n in 0..1_200 {
            folder.write(&format!("d{}/f{n}", n % 10), "");
        }
        let failure = read(folder.0.path(), Bounds { files: 1_000, ..Bounds::default() }).expect_err("refused");
        assert!(failure.message.contains("at most 1000"), "{}", failure.message);
    }
}
