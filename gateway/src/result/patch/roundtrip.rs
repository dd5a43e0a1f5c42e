//! Property: what we render, the real `git apply` turns into exactly the tree that the manifest says; `git apply -R` turns it
//! back. And for odd cases by hand.

use std::collections::BTreeMap;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Command, Stdio};

use agentrun_crds::paths::RelativePath;
use proptest::prelude::*;

use super::{Mode, Patch, Side};

type Tree = BTreeMap<String, (Vec<u8>, bool)>;

fn write_tree(root: &Path, tree: &Tree) {
    for (path, (content, executable)) in tree {
        let path = root.join(path);
        std::fs::create_dir_all(path.parent().expect("beneath the root")).expect("folder");
        std::fs::write(&path, content).expect("file");
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(if *executable { 0o755 } else { 0o644 })).expect("mode");
    }
}

fn read_tree(root: &Path) -> Tree {
    let mut tree = Tree::new();
    let mut folders = vec![root.to_owned()];
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(folder).expect("folder") {
            let path = entry.expect("entry").path();
            if path.is_dir() {
                folders.push(path);
            } else {
                let executable = path.metadata().expect("metadata").permissions().mode() & 0o100 != 0;
                let name = path.strip_prefix(root).expect("beneath").to_str().expect("UTF-8").to_owned();
                tree.insert(name, (std::fs::read(&path).expect("file"), executable));
            }
        }
    }
    tree
}

fn render(old: &Tree, new: &Tree) -> Vec<u8> {
    fn side<'a>(tree: &'a Tree, path: &str) -> Option<Side<'a>> {
        tree.get(path).map(|(content, executable)| Side { content, mode: if *executable { Mode::Executable } else { Mode::Regular } })
    }
    let mut patch = Patch::new(usize::MAX);
    let paths: std::collections::BTreeSet<&String> = old.keys().chain(new.keys()).collect();
    for path in paths {
        patch.add(&RelativePath::parse(path).expect("path"), side(old, path), side(new, path)).expect("fits");
    }
    patch.finish()
}

fn git_apply(root: &Path, patch: &[u8], arguments: &[&str]) {
    use std::io::Write;
    let mut git = Command::new("git")
        .args(["apply", "--whitespace=nowarn"])
        .args(arguments)
        .arg("-")
        .current_dir(root)
        .env_clear()
        .env("PATH", std::env::var_os("PATH").unwrap_or_default())
        .env("HOME", "/nonexistent")
        .env("GIT_CONFIG_NOSYSTEM", "1")
        // The folder is no repository, and none above it counts.
        .env("GIT_CEILING_DIRECTORIES", root.parent().expect("a parent"))
        .stdin(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("git is needed for this test");
    git.stdin.take().expect("piped").write_all(patch).expect("written");
    let output = git.wait_with_output().expect("waited");
    assert!(output.status.success(), "{}\n{}", String::from_utf8_lossy(&output.stderr), String::from_utf8_lossy(patch));
}

fn check(old: &Tree, new: &Tree) {
    if old == new {
        return;
    }
    let patch = render(old, new);
    assert_eq!(patch, render(old, new), "the same bytes each time");
    assert!(std::str::from_utf8(&patch).is_ok(), "a patch is text");
    let folder = tempfile::tempdir().expect("folder");
    let root = folder.path().join("tree");
    std::fs::create_dir(&root).expect("root");
    write_tree(&root, old);
    git_apply(&root, &patch, &[]);
    assert_eq!(read_tree(&root), *new, "{}", String::from_utf8_lossy(&patch));
    git_apply(&root, &patch, &["-R"]);
    assert_eq!(read_tree(&root), *old, "{}", String::from_utf8_lossy(&patch));
}

fn tree(files: &[(&str, &[u8], bool)]) -> Tree {
    files.iter().map(|(path, content, executable)| ((*path).to_owned(), (content.to_vec(), *executable))).collect()
}

#[test]
fn odd_cases() {
    let long = "x".repeat(300_000);
    let many: String = (0..200_000).map(|n| format!("{n}\n")).collect();
    let blob: Vec<u8> = (0..200_000u32).map(|n| (n.wrapping_mul(2_654_435_761) >> 24) as u8).collect();
    let rows: &[(Tree, Tree)] = &[
        // A file becomes a folder, and back.
        (tree(&[("a", b"x\n", false)]), tree(&[("a/b", b"y\n", false)])),
        (tree(&[("a/b", b"x\n", false), ("a/c", b"", true)]), tree(&[("a", b"y", false)])),
        // Modes: alone, with content, of empty and binary files.
        (tree(&[("s", b"x\n", false)]), tree(&[("s", b"x\n", true)])),
        (tree(&[("s", b"x\n", true)]), tree(&[("s", b"y\n", false)])),
        (tree(&[("s", b"", false)]), tree(&[("s", b"", true)])),
        (tree(&[("s", b"\0", false)]), tree(&[("s", b"\0\0", true)])),
        (tree(&[]), tree(&[("new empty", b"", true), ("new", b"\0", true)])),
        // Text to binary, binary to text, to and from empty.
        (tree(&[("t", b"text\n", false)]), tree(&[("t", b"bin\0ary", false)])),
        (tree(&[("t", b"\xff\xfe", false)]), tree(&[("t", b"text", false)])),
        (tree(&[("t", b"text", false)]), tree(&[("t", b"", false)])),
        (tree(&[("t", b"", false)]), tree(&[("t", b"\0", false)])),
        (tree(&[]), tree(&[("big", &blob, false)])),
        // Newlines.
        (tree(&[("n", b"a\r\nb\r\n", false)]), tree(&[("n", b"a\nb\n", false)])),
        (tree(&[("n", b"a\rb", false)]), tree(&[("n", b"a\rb\r", false)])),
        (tree(&[("n", b"a\nb", false)]), tree(&[("n", b"a\nb\n", false)])),
        (tree(&[("n", b"\n", false)]), tree(&[("n", b"\n\n\n", false)])),
        (tree(&[("n", b"\x0c\x0b\xc2\x85\xe2\x80\xa8x\n", false)]), tree(&[("n", b"\x0c\x0b\xc2\x85\xe2\x80\xa8y\n", false)])),
        // Content that looks like a patch.
        (
            tree(&[("p", b"-- a\n++ b\n@@ -1 +1 @@\n", false)]),
            tree(&[("p", b"-- a\n++ c\n\\ No newline at end of file\ndiff --git a/x b/x\n", false)]),
        ),
        // Names.
        (
            tree(&[("a b/c d", b"1\n", false), ("tr ", b"", false), (" lead", b"x", false)]),
            tree(&[("a b/c d", b"2\n", true), ("tr ", b"", true), (" lead", b"", false), ("b/ a/b", b"", false), ("x b/x", b"", true)]),
        ),
        (
            tree(&[("say \"hi\"", b"1\n", false), ("\u{fc}/\u{65e5}\u{672c}", b"", false), ("'$(rm)'", b"x\n", false)]),
            tree(&[("say \"hi\"", b"2\n", false), ("\u{fc}/\u{65e5}\u{672c}", b"", true), ("-rf", b"", false), ("a\"b c", b"q", false)]),
        ),
        (tree(&[("dev/null", b"x\n", false)]), tree(&[("dev/null", b"y\n", false), ("null", b"", false)])),
        // Long.
        (tree(&[("l", long.as_bytes(), false)]), tree(&[("l", format!("{long}\n{long}").as_bytes(), false)])),
        (tree(&[("m", &many.as_bytes()[..60_000], false)]), tree(&[("m", many.as_bytes(), false)])),
    ];
    for (old, new) in rows {
        check(old, new);
    }
}

/// Pieces that differences and patches trip over.
fn content() -> impl Strategy<Value = Vec<u8>> {
    let piece = prop_oneof![
        8 => prop::sample::select(vec!["a\n", "b\n", "c\n", "\n", "a\r\n", "\t x \n", "\u{fc}\u{1f600}\n"]).prop_map(|text| text.as_bytes().to_vec()),
        1 => prop::sample::select(vec!["no newline", "\r", "+", "-", "\\", "@@ -1 +1 @@\n", "--- a/x\n", "\u{2028}"]).prop_map(|text| text.as_bytes().to_vec()),
        1 => prop::collection::vec(any::<u8>(), 0..200),
    ];
    let text = prop::collection::vec(prop::sample::select(vec!["a\n", "b\n", "c\n", "d\n", "\n"]), 0..60)
        .prop_map(|lines| lines.concat().into_bytes());
    prop_oneof![3 => prop::collection::vec(piece, 0..24).prop_map(|pieces| pieces.concat()), 2 => text]
}

fn path() -> impl Strategy<Value = String> {
    let component = prop::sample::select(vec!["a", "b", "c d", "\u{e9}", "q\"q", "x.py", " s", "t ", "-", "\u{65e5}\u{672c}", "b'"]);
    prop::collection::vec(component, 1..4).prop_map(|components| components.join("/"))
}

/// Keep what can stand together: no path is both a file and a folder.
fn consistent(files: Vec<(String, (Vec<u8>, bool))>) -> Tree {
    let mut tree = Tree::new();
    for (path, file) in files {
        let inside = |a: &str, b: &str| a.strip_prefix(b).is_some_and(|rest| rest.starts_with('/'));
        if !tree.keys().any(|other| inside(other, &path) || inside(&path, other)) {
            tree.insert(path, file);
        }
    }
    tree
}

/// A file after: as before, edited, or anything.
fn trees() -> impl Strategy<Value = (Tree, Tree)> {
    let files = || prop::collection::vec((path(), (content(), any::<bool>())), 0..8);
    (files(), files(), prop::collection::vec((0..4u8, any::<prop::sample::Index>(), any::<bool>()), 8)).prop_map(|(old, fresh, edits)| {
        let old = consistent(old);
        let mut kept = Vec::new();
        for ((path, (content, executable)), (edit, at, flip)) in old.iter().zip(edits) {
            let mut content = content.clone();
            match edit {
                0 => continue,
                1 => content.insert(at.index(content.len() + 1), b'\n'),
                2 if !content.is_empty() => drop(content.remove(at.index(content.len()))),
                _ => {}
            }
            kept.push((path.clone(), (content, executable ^ flip)));
        }
        (old, consistent(kept.into_iter().chain(fresh).collect()))
    })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, failure_persistence: None, ..ProptestConfig::default() })]
    #[test]
    fn git_apply_reproduces_the_manifest((old, new) in trees()) {
        check(&old, &new);
    }
}
