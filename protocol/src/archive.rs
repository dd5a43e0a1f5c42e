//! Source archives: tar, read entry by entry and never unpacked. Gateway and runner read them with this one function, so that
//! the tree that is judged is the tree that was staged. What a tar reader could take in two ways is refused.

use std::collections::HashMap;
use std::io::{self, Read};

use agentrun_crds::paths::{MAX_PATH_BYTES, RelativePath, is_invisible};
use tar::{Archive, Entry, EntryType, Header};

use crate::people::MAX_SOURCE_FILES;

/// Most folders that the files lie in.
pub const MAX_FOLDERS: usize = MAX_SOURCE_FILES;
/// Entries of all kinds: each file may have one for its long name, and folders have their own.
const MAX_ENTRIES: usize = 4 * MAX_SOURCE_FILES;
/// Extended headers are for paths and times.
const MAX_EXTENDED_BYTES: u64 = 16 * 1024;
/// Two empty blocks end an archive.
const END_BYTES: u64 = 1024;
/// What else pax headers say and what it does not matter here: times, owners, remarks.
const HARMLESS: &[&str] = &["mtime", "atime", "ctime", "comment", "uid", "gid", "uname", "gname"];

/// One regular file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ArchiveFile {
    pub path: RelativePath,
    /// Mode 755, else 644.
    pub executable: bool,
    /// Where its content begins in the archive.
    pub at: u64,
    pub bytes: u64,
}

/// What an archive holds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Summary {
    pub files: usize,
    /// Of the archive itself.
    pub bytes: u64,
}

/// Why an archive is no source, and which of its entries is at fault.
#[derive(thiserror::Error, Clone, Debug, PartialEq, Eq)]
pub enum ArchiveError {
    #[error("entry {entry:?} {why}")]
    Entry { entry: String, why: String },
    #[error("the archive {0}")]
    Whole(String),
}

/// Read all of an archive; `take` gets each file with its content, of which it may leave something.
pub fn read(reader: impl Read, mut take: impl FnMut(&ArchiveFile, &mut dyn Read) -> io::Result<()>) -> Result<Summary, ArchiveError> {
    let mut archive = Archive::new(Tail { inner: reader, bytes: 0, zeros: 0 });
    let mut tree = Tree::default();
    let mut pending = Pending::default();
    let mut summary = Summary::default();
    let entries = archive.entries().map_err(unreadable)?.raw(true);
    for (number, entry) in entries.enumerate() {
        let mut entry = entry.map_err(unreadable)?;
        if number >= MAX_ENTRIES {
            return Err(ArchiveError::Whole(format!("has more than {MAX_ENTRIES} entries")));
        }
        let header = entry.header().clone();
        if header.as_ustar().is_none() && header.as_gnu().is_none() {
            return Err(at(&shown(&header.path_bytes()), "is neither in the form of ustar nor of GNU tar"));
        }
        match header.entry_type() {
            EntryType::GNULongName => pending.long_name(&mut entry)?,
            EntryType::XHeader => pending.extended(&mut entry)?,
            EntryType::XGlobalHeader => global(&mut entry)?,
            kind => {
                let name = pending.name(&header)?;
                let Some(file) = file(kind, &header, &entry, &name)? else { continue };
                tree.add(&file.path)?;
                summary.files += 1;
                if summary.files > MAX_SOURCE_FILES {
                    return Err(ArchiveError::Whole(format!("has more than {MAX_SOURCE_FILES} files")));
                }
                let mut content = Counting { inner: &mut entry, bytes: 0 };
                take(&file, &mut content).map_err(unreadable)?;
                io::copy(&mut content, &mut io::sink()).map_err(unreadable)?;
                if content.bytes != file.bytes {
                    return Err(at(file.path.as_str(), "is cut off"));
                }
            }
        }
    }
    if pending.stands() {
        return Err(ArchiveError::Whole("ends after a header that describes a next entry".into()));
    }
    if summary.files == 0 {
        return Err(ArchiveError::Whole("has no file".into()));
    }
    let mut rest = archive.into_inner();
    let mut piece = [0; 8192];
    loop {
        match rest.read(&mut piece).map_err(unreadable)? {
            0 => break,
            read if piece[..read].iter().all(|byte| *byte == 0) => {}
            _ => return Err(ArchiveError::Whole("goes on after its end".into())),
        }
    }
    if rest.zeros < END_BYTES {
        return Err(ArchiveError::Whole("is cut off: it does not end with two empty blocks".into()));
    }
    Ok(Summary { bytes: rest.bytes, ..summary })
}

/// A regular file, or `None` for a folder, which the paths of files imply.
fn file(kind: EntryType, header: &Header, entry: &Entry<'_, impl Read>, name: &str) -> Result<Option<ArchiveFile>, ArchiveError> {
    let refused = |why: &str| at(name, why);
    match kind {
        EntryType::Regular | EntryType::Directory => {}
        EntryType::Link => return Err(refused("is a hard link; only regular files are taken")),
        EntryType::Symlink => return Err(refused("is a symbolic link; only regular files are taken")),
        EntryType::Char | EntryType::Block => return Err(refused("is a device; only regular files are taken")),
        EntryType::Fifo => return Err(refused("is a pipe; only regular files are taken")),
        EntryType::GNUSparse => return Err(refused("is stored with holes; store it in full")),
        EntryType::GNULongLink => return Err(refused("has a link's long name; only regular files are taken")),
        other => return Err(at(name, &format!("is of an unknown type ({:#04x}); only regular files are taken", other.as_byte()))),
    }
    let plain = name.strip_prefix("./").unwrap_or(name);
    if kind.is_dir() {
        if entry.size() != 0 {
            return Err(refused("is a folder with content"));
        }
        let plain = plain.strip_suffix('/').unwrap_or(plain);
        if !matches!(plain, "" | ".") {
            RelativePath::parse(plain).map_err(|why| at(name, &format!("is a path that {why}")))?;
        }
        return Ok(None);
    }
    let path = RelativePath::parse(plain).map_err(|why| at(name, &format!("is a path that {why}")))?;
    let mode = header.mode().map_err(|_| refused("has a mode that is no number"))?;
    if mode & 0o7000 != 0 {
        return Err(refused("has a special mode (setuid, setgid or sticky); 644 and 755 are taken"));
    }
    Ok(Some(ArchiveFile { path, executable: mode & 0o100 != 0, at: entry.raw_file_position(), bytes: entry.size() }))
}

/// What headers before an entry say of it.
#[derive(Default)]
struct Pending {
    name: Option<String>,
    extended: bool,
}

impl Pending {
    fn stands(&self) -> bool {
        self.name.is_some() || self.extended
    }

    fn long_name(&mut self, entry: &mut Entry<'_, impl Read>) -> Result<(), ArchiveError> {
        if self.stands() {
            return Err(ArchiveError::Whole("gives one entry two names".into()));
        }
        // The path, `./` before it and a zero byte after it.
        let text = bounded(entry, MAX_PATH_BYTES as u64 + 3, "a path is too long")?;
        let text = text.strip_suffix(&[0]).unwrap_or(&text);
        self.name = Some(utf8(text)?);
        Ok(())
    }

    fn extended(&mut self, entry: &mut Entry<'_, impl Read>) -> Result<(), ArchiveError> {
        if self.stands() {
            return Err(ArchiveError::Whole("gives one entry two extended headers".into()));
        }
        self.extended = true;
        for (key, value) in records(&bounded(entry, MAX_EXTENDED_BYTES, "an extended header is too long")?)? {
            if key == "path" {
                if self.name.replace(utf8(&value)?).is_some() {
                    return Err(ArchiveError::Whole("gives one entry two names".into()));
                }
            } else if !HARMLESS.contains(&key.as_str()) {
                return Err(ArchiveError::Whole(format!("has an extended header with {key:?}, which may change what is read")));
            }
        }
        Ok(())
    }

    /// The name of the entry that follows; nothing is pending then.
    fn name(&mut self, header: &Header) -> Result<String, ArchiveError> {
        match std::mem::take(self).name {
            Some(name) => Ok(name),
            None => utf8(&header.path_bytes()),
        }
    }
}

/// For all that follow: `git archive` puts the commit there.
fn global(entry: &mut Entry<'_, impl Read>) -> Result<(), ArchiveError> {
    for (key, _) in records(&bounded(entry, MAX_EXTENDED_BYTES, "a global header is too long")?)? {
        if key != "comment" {
            return Err(ArchiveError::Whole(format!("has a global header with {key:?}; only a comment is taken")));
        }
    }
    Ok(())
}

fn bounded(entry: &mut Entry<'_, impl Read>, most: u64, why: &str) -> Result<Vec<u8>, ArchiveError> {
    let size = entry.size();
    if size > most {
        return Err(ArchiveError::Whole(format!("cannot be read: {why} (at most {most} bytes)")));
    }
    let mut content = Vec::new();
    entry.read_to_end(&mut content).map_err(unreadable)?;
    if content.len() as u64 != size {
        return Err(ArchiveError::Whole("is cut off".into()));
    }
    Ok(content)
}

/// Records of a pax header: `<length> <key>=<value>\n`, the length counting all of it.
fn records(mut text: &[u8]) -> Result<Vec<(String, Vec<u8>)>, ArchiveError> {
    let bad = || ArchiveError::Whole("has a malformed extended header".into());
    let mut records = Vec::new();
    while !text.is_empty() {
        let space = text.iter().take(8).position(|byte| *byte == b' ').ok_or_else(bad)?;
        let digits = std::str::from_utf8(&text[..space]).ok().filter(|digits| digits.bytes().all(|byte| byte.is_ascii_digit()));
        let length: usize = digits.and_then(|digits| digits.parse().ok()).ok_or_else(bad)?;
        if length <= space + 1 || length > text.len() || text[length - 1] != b'\n' {
            return Err(bad());
        }
        let record = &text[space + 1..length - 1];
        let equals = record.iter().position(|byte| *byte == b'=').ok_or_else(bad)?;
        records.push((shown(&record[..equals]), record[equals + 1..].to_vec()));
        text = &text[length..];
    }
    Ok(records)
}

fn utf8(bytes: &[u8]) -> Result<String, ArchiveError> {
    String::from_utf8(bytes.to_vec()).map_err(|_| at(&shown(bytes), "is a path that is not UTF-8"))
}

fn at(entry: &str, why: &str) -> ArchiveError {
    ArchiveError::Entry { entry: shown(entry.as_bytes()), why: why.to_owned() }
}

fn unreadable(error: io::Error) -> ArchiveError {
    ArchiveError::Whole(format!("cannot be read: {}", shown(error.to_string().as_bytes())))
}

/// Fit to be shown: short, and nothing that a terminal would act on.
fn shown(bytes: &[u8]) -> String {
    let text = String::from_utf8_lossy(bytes);
    let shown: String = text.chars().take(200).map(|c| if c.is_control() || is_invisible(c) { '\u{fffd}' } else { c }).collect();
    if text.chars().nth(200).is_some() { format!("{shown}…") } else { shown }
}

/// The paths so far, so that each is one file on every file system.
#[derive(Default)]
struct Tree {
    /// By what some file system takes for the same: spelling, and whether it is a file.
    seen: HashMap<String, (String, bool)>,
    folders: usize,
}

impl Tree {
    fn add(&mut self, path: &RelativePath) -> Result<(), ArchiveError> {
        let (text, key) = (path.as_str(), path.collision_key());
        let ends = |text: &str| text.match_indices('/').map(|(at, _)| at).chain([text.len()]).collect::<Vec<_>>();
        let (text_ends, key_ends) = (ends(text), ends(&key));
        for (n, (text_end, key_end)) in text_ends.iter().zip(&key_ends).enumerate() {
            let (part, is_file) = (&text[..*text_end], n + 1 == text_ends.len());
            match self.seen.get(&key[..*key_end]) {
                Some((other, _)) if other != part => {
                    return Err(at(
                        text,
                        &format!("and {:?} are one on some file systems (case or Unicode form)", shown(other.as_bytes())),
                    ));
                }
                Some((_, true)) if is_file => return Err(at(text, "is there twice")),
                Some((_, true)) => return Err(at(text, &format!("lies in {part:?}, which is a file"))),
                Some((_, false)) if is_file => return Err(at(text, "is a folder of other files")),
                Some(_) => {}
                None => {
                    if !is_file {
                        self.folders += 1;
                        if self.folders > MAX_FOLDERS {
                            return Err(ArchiveError::Whole(format!("has more than {MAX_FOLDERS} folders")));
                        }
                    }
                    self.seen.insert(key[..*key_end].to_owned(), (part.to_owned(), is_file));
                }
            }
        }
        Ok(())
    }
}

/// Knows how many bytes were read, and how many zeros were the last.
struct Tail<R> {
    inner: R,
    bytes: u64,
    zeros: u64,
}

impl<R: Read> Read for Tail<R> {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        let read = self.inner.read(into)?;
        self.bytes += read as u64;
        match into[..read].iter().rposition(|byte| *byte != 0) {
            Some(last) => self.zeros = (read - last - 1) as u64,
            None => self.zeros += read as u64,
        }
        Ok(read)
    }
}

struct Counting<'a, R> {
    inner: &'a mut R,
    bytes: u64,
}

impl<R: Read> Read for Counting<'_, R> {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        let read = self.inner.read(into)?;
        self.bytes += read as u64;
        Ok(read)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Makes archives that no good program would.
    #[derive(Default)]
    struct Maker(Vec<u8>);

    impl Maker {
        fn entry(mut self, kind: u8, name: &[u8], mode: u32, content: &[u8]) -> Self {
            let mut header = Header::new_ustar();
            header.as_old_mut().name[..name.len()].copy_from_slice(name);
            header.as_old_mut().linkflag = [kind];
            header.set_mode(mode);
            header.set_size(content.len() as u64);
            header.set_cksum();
            self.0.extend_from_slice(header.as_bytes());
            self.0.extend_from_slice(content);
            self.0.resize(self.0.len().next_multiple_of(512), 0);
            self
        }

        fn file(self, name: &str) -> Self {
            self.entry(b'0', name.as_bytes(), 0o644, b"x")
        }

        fn pax(self, kind: u8, key: &str, value: &str) -> Self {
            let body = format!(" {key}={value}\n");
            let length = (1..).find(|length| length - length.to_string().len() == body.len()).expect("a length");
            self.entry(kind, b"pax", 0o644, format!("{length}{body}").as_bytes())
        }

        fn end(mut self) -> Vec<u8> {
            self.0.resize(self.0.len() + 1024, 0);
            self.0
        }
    }

    fn paths(archive: &[u8]) -> Result<Vec<(String, bool, String)>, ArchiveError> {
        let mut seen = Vec::new();
        read(archive, |file, content| {
            let mut text = String::new();
            content.read_to_string(&mut text)?;
            if let Some(content) = archive.get(file.at as usize..(file.at + file.bytes) as usize) {
                assert_eq!(content, text.as_bytes(), "the offset is right");
            }
            seen.push((file.path.to_string(), file.executable, text));
            Ok(())
        })
        .map(|summary| {
            assert_eq!(summary, Summary { files: seen.len(), bytes: archive.len() as u64 });
            seen
        })
    }

    #[test]
    fn what_programs_make_is_read() {
        let long = format!("{}/{}", "d".repeat(150), "ü".repeat(60));
        let archive = Maker::default()
            .pax(b'g', "comment", "0123abcd")
            .entry(b'5', b"./", 0o755, b"")
            .entry(b'5', b"src/", 0o755, b"")
            .entry(b'0', b"./src/a.py", 0o664, b"one")
            .entry(b'0', b"run", 0o775, b"two")
            .entry(0, b"old", 0o600, b"")
            .pax(b'x', "path", &long)
            .entry(b'0', b"shortened", 0o644, b"three")
            .entry(b'L', b"././@LongLink", 0o644, format!("{}z\0", "e/".repeat(120)).as_bytes())
            .entry(b'0', b"shortened", 0o644, b"four")
            .end();
        let row = |path: &str, executable, text: &str| (path.to_owned(), executable, text.to_owned());
        let expected = [
            row("src/a.py", false, "one"),
            row("run", true, "two"),
            row("old", false, ""),
            row(&long, false, "three"),
            row(&format!("{}z", "e/".repeat(120)), false, "four"),
        ];
        assert_eq!(paths(&archive), Ok(expected.to_vec()));
    }

    #[test]
    fn what_is_no_plain_tree_is_refused_by_name() {
        let make = Maker::default;
        let cut = |mut archive: Vec<u8>, by: usize| {
            archive.truncate(archive.len() - by);
            archive
        };
        let many = |folders: &str, count: usize| {
            (0..count).fold(make(), |maker, n| maker.file(&format!("{}{n}", folders.replace('N', &n.to_string())))).end()
        };
        let mut bad_sum = make().file("a").end();
        bad_sum[0] = b'b';
        let mut after = make().file("a").end();
        after.extend(make().file("b").end());
        let rows: Vec<(Vec<u8>, &str)> = vec![
            (make().entry(b'2', b"link", 0o777, b"").end(), "entry \"link\" is a symbolic link"),
            (make().entry(b'1', b"link", 0o644, b"").end(), "entry \"link\" is a hard link"),
            (make().entry(b'3', b"null", 0o644, b"").end(), "entry \"null\" is a device"),
            (make().entry(b'4', b"sda", 0o644, b"").end(), "is a device"),
            (make().entry(b'6', b"pipe", 0o644, b"").end(), "is a pipe"),
            (make().entry(b'7', b"odd", 0o644, b"").end(), "unknown type (0x37)"),
            (make().entry(b'S', b"holes", 0o644, b"").end(), "is stored with holes"),
            (make().entry(b'K', b"k", 0o644, b"x").end(), "link's long name"),
            (make().file("/etc/passwd").end(), "\"/etc/passwd\" is a path that starts with '/'"),
            (make().file("../up").end(), "\"../up\" is a path that has an empty component"),
            (make().file("a/../../up").end(), "has an empty component"),
            (make().file("././a").end(), "has an empty component"),
            (make().file(".git/config").end(), "equivalent to '.git'"),
            (make().file("a/.GIT/hooks").end(), "equivalent to '.git'"),
            (make().entry(b'5', b"../up/", 0o755, b"").end(), "\"../up/\" is a path that"),
            (make().entry(b'5', b".git/", 0o755, b"").end(), "equivalent to '.git'"),
            (make().entry(b'5', b"d/", 0o755, b"x").end(), "folder with content"),
            (make().entry(b'0', b"a\x1b[2J", 0o644, b"").end(), "contains a control character"),
            (make().entry(b'0', b"a\xff", 0o644, b"").end(), "not UTF-8"),
            (make().entry(b'0', b"s", 0o4755, b"").end(), "special mode"),
            (make().file("a").file("a").end(), "\"a\" is there twice"),
            (make().file("a").file("./a").end(), "is there twice"),
            (make().file("README").file("readme").end(), "\"readme\" and \"README\" are one"),
            (make().file("Src/a").file("src/b").end(), "\"src/b\" and \"Src\" are one"),
            (make().file("caf\u{e9}").file("cafe\u{301}").end(), "are one on some file systems"),
            (make().file("a").file("a/b").end(), "\"a/b\" lies in \"a\", which is a file"),
            (make().file("a/b").file("a").end(), "\"a\" is a folder of other files"),
            (make().pax(b'x', "size", "0").file("a").end(), "extended header with \"size\""),
            (make().pax(b'x', "linkpath", "/etc").file("a").end(), "\"linkpath\""),
            (make().pax(b'x', "GNU.sparse.major", "1").file("a").end(), "\"GNU.sparse.major\""),
            (make().pax(b'x', "path", "../up").file("a").end(), "\"../up\" is a path that"),
            (make().pax(b'x', "path", ".git/x").file("a").end(), "equivalent to '.git'"),
            (make().pax(b'x', "path", "b").pax(b'x', "path", "c").file("a").end(), "two extended headers"),
            (make().pax(b'x', "path", "b").entry(b'L', b"l", 0, b"c").file("a").end(), "two names"),
            (make().pax(b'g', "path", "b").file("a").end(), "global header with \"path\""),
            (make().entry(b'x', b"p", 0o644, b"99 path=b\n").file("a").end(), "malformed extended header"),
            (make().entry(b'x', b"p", 0o644, &[b'9'; 20_000]).file("a").end(), "extended header is too long"),
            (make().entry(b'L', b"l", 0o644, &[b'a'; 600]).file("a").end(), "a path is too long"),
            (make().file("a").entry(b'L', b"l", 0o644, b"b").end(), "describes a next entry"),
            (make().end(), "has no file"),
            (Vec::new(), "has no file"),
            (b"not a tar".repeat(200), "cannot be read"),
            (bad_sum, "checksum"),
            (after, "goes on after its end"),
            (cut(make().file("a").end(), 1024), "is cut off"),
            (cut(make().file("a").end(), 512), "is cut off"),
            (cut(make().entry(b'0', b"a", 0o644, &[1; 2000]).end(), 1024 + 600), "\"a\" is cut off"),
            (many("", MAX_SOURCE_FILES + 1), "more than 10000 files"),
            (many("dN/eN/", MAX_FOLDERS / 2 + 1), "more than 10000 folders"),
        ];
        for (archive, expected) in rows {
            let error = paths(&archive).expect_err(expected).to_string();
            assert!(error.contains(expected), "{expected}: {error}");
            assert!(error.chars().all(|c| !c.is_control()), "{error:?}");
        }
    }
}
