//! The entries of one tree object, in the form that git itself writes; any other is refused. Also the tree of a commit. Pure.

use agentrun_protocol::git_object::ObjectId;

/// What an entry is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum EntryKind {
    File { executable: bool },
    Folder,
    Symlink,
    Submodule,
}

/// One entry.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Entry {
    pub kind: EntryKind,
    pub name: String,
    pub id: ObjectId,
}

/// All entries of a tree. The error goes on from "the tree".
pub(super) fn entries(mut content: &[u8]) -> Result<Vec<Entry>, &'static str> {
    let mut entries: Vec<Entry> = Vec::new();
    let mut before: Vec<u8> = Vec::new();
    while !content.is_empty() {
        let space = content.iter().take(8).position(|byte| *byte == b' ').ok_or("has a malformed entry")?;
        let kind = match &content[..space] {
            // The second is what very old versions of git wrote.
            b"100644" | b"100664" => EntryKind::File { executable: false },
            b"100755" => EntryKind::File { executable: true },
            b"40000" => EntryKind::Folder,
            b"120000" => EntryKind::Symlink,
            b"160000" => EntryKind::Submodule,
            _ => return Err("has an entry of an unknown mode"),
        };
        content = &content[space + 1..];
        let end = content.iter().position(|byte| *byte == 0).ok_or("has a malformed entry")?;
        let (name, rest) = content.split_at(end);
        if name.is_empty() || name.contains(&b'/') {
            return Err("has an entry whose name is empty or has a slash");
        }
        let (id, rest) = rest[1..].split_first_chunk::<{ ObjectId::LENGTH }>().ok_or("has a malformed entry")?;
        content = rest;
        // Git sorts a folder as if its name ended with a slash.
        let key = if kind == EntryKind::Folder { [name, b"/"].concat() } else { name.to_vec() };
        if !entries.is_empty() && key <= before {
            return Err("has entries that are not in order, or one twice");
        }
        before = key;
        let name = std::str::from_utf8(name).map_err(|_| "has an entry whose name is not UTF-8")?.to_owned();
        entries.push(Entry { kind, name, id: ObjectId::from_bytes(*id) });
    }
    Ok(entries)
}

/// The tree of a commit.
pub(super) fn of_commit(content: &[u8]) -> Option<ObjectId> {
    let line = content.split(|byte| *byte == b'\n').next()?;
    ObjectId::parse(std::str::from_utf8(line).ok()?.strip_prefix("tree ")?)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tree(entries: &[(&str, &[u8])]) -> Vec<u8> {
        let entry = |(mode, name): &(&str, &[u8])| [mode.as_bytes(), b" ", name, b"\0", &[7; 20]].concat();
        entries.iter().flat_map(entry).collect()
    }

    #[test]
    fn only_what_git_writes_is_a_tree() {
        let good = tree(&[("100644", b"a"), ("40000", b"a.b"), ("100755", b"a0"), ("40000", b"a"), ("120000", b"l"), ("160000", b"m")]);
        assert!(entries(&good).is_err(), "a folder `a` comes before `a0`");
        let good = tree(&[("100644", b"a.b"), ("40000", b"a"), ("100755", b"a0"), ("120000", b"l"), ("160000", b"m")]);
        let kinds: Vec<EntryKind> = entries(&good).expect("a tree").iter().map(|entry| entry.kind).collect();
        let file = |executable| EntryKind::File { executable };
        assert_eq!(kinds, [file(false), EntryKind::Folder, file(true), EntryKind::Symlink, EntryKind::Submodule]);
        for (bad, part) in [
            (tree(&[("100644", b"")]), "empty"),
            (tree(&[("100644", b"a/b")]), "slash"),
            (tree(&[("100644", b"a"), ("100644", b"a")]), "twice"),
            (tree(&[("100644", b"b"), ("100644", b"a")]), "order"),
            (tree(&[("100600", b"a")]), "mode"),
            (tree(&[("040000", b"a")]), "mode"),
            (tree(&[("100644", b"\xff")]), "UTF-8"),
            (good[..good.len() - 1].to_vec(), "malformed"),
            (b"100644".to_vec(), "malformed"),
            (b"100644 a".to_vec(), "malformed"),
        ] {
            let why = entries(&bad).expect_err("no tree");
            assert!(why.contains(part), "{why} has no {part}");
        }
    }
}
