//! Packs and trees that no good repository has: each ends as a reason, within bounds.

use std::io::Write;
use std::time::{Duration, Instant};

use agentrun_crds::agent_policy::LeftOut;
use agentrun_protocol::git_object::{Kind, ObjectId};
use flate2::Compression;
use flate2::write::ZlibEncoder;
use sha1::{Digest, Sha1};

use super::super::export::{Wanted, export};
use super::super::objects::Objects;
use super::super::pack;

#[derive(Clone, Default)]
struct Maker {
    entries: Vec<u8>,
    count: u32,
}

fn deflate(content: &[u8]) -> Vec<u8> {
    let mut encoder = ZlibEncoder::new(Vec::new(), Compression::fast());
    encoder.write_all(content).unwrap();
    encoder.finish().unwrap()
}

fn header(kind: u8, mut bytes: u64) -> Vec<u8> {
    let mut first = kind << 4 | (bytes & 15) as u8;
    bytes >>= 4;
    let mut header = Vec::new();
    while bytes > 0 {
        header.push(first | 0x80);
        first = (bytes & 0x7f) as u8;
        bytes >>= 7;
    }
    header.push(first);
    header
}

impl Maker {
    fn raw(&mut self, head: Vec<u8>, rest: &[u8]) -> u64 {
        let at = 12 + self.entries.len() as u64;
        self.entries.extend_from_slice(&head);
        self.entries.extend_from_slice(rest);
        self.count += 1;
        at
    }

    fn object(&mut self, kind: Kind, content: &[u8]) -> ObjectId {
        let number = match kind {
            Kind::Commit => 1,
            Kind::Tree => 2,
            Kind::Blob => 3,
            Kind::Tag => 4,
        };
        self.raw(header(number, content.len() as u64), &deflate(content));
        ObjectId::of(kind, content)
    }

    fn tree(&mut self, entries: &[(&str, &str, ObjectId)]) -> ObjectId {
        let content: Vec<u8> =
            entries.iter().flat_map(|(mode, name, id)| [format!("{mode} {name}\0").as_bytes(), &bytes(*id)].concat()).collect();
        self.object(Kind::Tree, &content)
    }

    fn commit(&mut self, tree: ObjectId) -> ObjectId {
        self.object(Kind::Commit, format!("tree {tree}\nauthor a <a> 0 +0000\n\nx\n").as_bytes())
    }

    fn by_name(&mut self, base: ObjectId, delta: &[u8]) {
        self.raw([header(7, delta.len() as u64), bytes(base).to_vec()].concat(), &deflate(delta));
    }

    /// `back` below 128.
    fn by_distance(&mut self, back: u8, delta: &[u8]) {
        self.raw([header(6, delta.len() as u64), vec![back]].concat(), &deflate(delta));
    }

    fn finish(&self) -> Vec<u8> {
        let mut pack = [b"PACK".as_slice(), &2u32.to_be_bytes(), &self.count.to_be_bytes(), &self.entries].concat();
        let checksum = Sha1::digest(&pack);
        pack.extend_from_slice(&checksum);
        pack
    }
}

fn bytes(id: ObjectId) -> [u8; 20] {
    let text = id.to_string();
    std::array::from_fn(|at| u8::from_str_radix(&text[2 * at..2 * at + 2], 16).unwrap())
}

/// Read and export; files in all, or why not.
fn outcome(pack: &[u8], commit: ObjectId, most: u64) -> Result<usize, String> {
    let folder = tempfile::tempdir().unwrap();
    let mut objects = Objects::create(folder.path(), most, Instant::now() + Duration::from_secs(60)).unwrap();
    pack::read(pack, pack.len() as u64, &mut objects).map_err(|error| error.to_string())?;
    let wanted = Wanted { commit, sub_path: None, symlinks: LeftOut::Refuse, submodules: LeftOut::Refuse };
    export(&mut objects, &wanted, folder.path()).map(|exported| exported.summary.files).map_err(|error| error.to_string())
}

fn refused(pack: &[u8], commit: ObjectId, part: &str) {
    let why = outcome(pack, commit, 64 << 20).expect_err(part);
    assert!(why.contains(part), "{why} has no {part:?}");
}

#[test]
fn deltas_in_any_order_make_the_same_objects() {
    // base: 10 bytes; copy 0..5, insert "!", copy 5..10.
    let delta = [10, 11, 0x90, 5, 1, b'!', 0x91, 5, 5];
    let made = b"01234!56789";
    let mut maker = Maker::default();
    let base = ObjectId::of(Kind::Blob, b"0123456789");
    // A chain whose last link comes first.
    maker.by_name(ObjectId::of(Kind::Blob, made), &[11, 1, 0x90, 1]);
    maker.by_name(base, &delta);
    maker.object(Kind::Blob, b"0123456789");
    let distance = 12 + maker.entries.len();
    let at = maker.raw(header(3, 3), &deflate(b"abc"));
    maker.by_distance((distance as u64 + deflate(b"abc").len() as u64 + 1 - at) as u8, &[3, 2, 0x91, 1, 2]);
    let tree = maker.tree(&[
        ("100644", "a", ObjectId::of(Kind::Blob, b"0")),
        ("100644", "b", ObjectId::of(Kind::Blob, made)),
        ("100644", "c", base),
        ("100644", "d", ObjectId::of(Kind::Blob, b"bc")),
    ]);
    let commit = maker.commit(tree);
    assert_eq!(outcome(&maker.finish(), commit, 1 << 20), Ok(4));
}

#[test]
fn broken_packs_are_refused() {
    let mut maker = Maker::default();
    let blob = maker.object(Kind::Blob, b"0123456789");
    let tree = maker.tree(&[("100644", "a", blob)]);
    let commit = maker.commit(tree);
    let good = maker.finish();
    assert_eq!(outcome(&good, commit, 1 << 20), Ok(1));
    for cut in 0..good.len() {
        outcome(&good[..cut], commit, 1 << 20).expect_err("cut");
    }
    for at in 0..good.len() {
        let mut damaged = good.clone();
        damaged[at] ^= 0x41;
        outcome(&damaged, commit, 1 << 20).expect_err("damaged");
    }
    refused(&[good.as_slice(), b"x"].concat(), commit, "goes on after its last object");
    refused(&[b"PACK".as_slice(), &4u32.to_be_bytes(), &[0; 30]].concat(), commit, "not in a form that is known");
    refused(&[b"PACK".as_slice(), &2u32.to_be_bytes(), &u32::MAX.to_be_bytes(), &[0; 30]].concat(), commit, "4294967295 objects");
    let with = |change: &dyn Fn(&mut Maker)| {
        let mut other = maker.clone();
        change(&mut other);
        other.finish()
    };
    for (pack, part) in [
        (with(&|m| _ = m.raw(header(3, 5), &deflate(b"1234"))), "smaller than it says"),
        (with(&|m| _ = m.raw(header(3, 3), &deflate(b"1234"))), "larger than it says"),
        (with(&|m| _ = m.raw(header(3, 3), b"no zlib")), "cannot be inflated"),
        (with(&|m| _ = m.raw(header(5, 3), &deflate(b"123"))), "unknown kind"),
        (with(&|m| _ = m.raw(vec![0xbf; 30], b"")), "a size that cannot be"),
        (with(&|m| m.by_distance(0, &[1, 1, 0x90, 1])), "lies before it"),
        (with(&|m| m.by_distance(127, &[1, 1, 0x90, 1])), "without their base"),
        (with(&|m| m.by_name(ObjectId::of(Kind::Blob, b"none"), &[1, 1, 0x90, 1])), "without their base"),
        (with(&|m| m.by_name(blob, &[9, 1, 0x90, 1])), "does not fit its base"),
        (with(&|m| m.by_name(blob, &[10, 2, 0x90, 1])), "malformed delta"),
        (with(&|m| m.by_name(blob, &[10, 1, 0x90, 2])), "malformed delta"),
        (with(&|m| m.by_name(blob, &[10, 1, 0x91, 10, 1])), "malformed delta"),
        (with(&|m| m.by_name(blob, &[10, 1, 0])), "malformed delta"),
        (with(&|m| m.by_name(blob, &[10, 5, 5, b'x'])), "malformed delta"),
        (with(&|m| m.by_name(blob, &[10])), "malformed delta"),
        (with(&|m| m.by_name(blob, &[10, 1, 0xff])), "malformed delta"),
        (with(&|m| m.by_name(blob, &[0xff; 12])), "malformed delta"),
    ] {
        refused(&pack, commit, part);
    }
    refused(&good, blob, "another kind than is needed");
    refused(&good, ObjectId::of(Kind::Commit, b""), "does not have the object");
}

#[test]
fn bombs_stop_at_their_bound() {
    let zeros = vec![0; 40 << 20];
    let mut maker = Maker::default();
    let blob = maker.object(Kind::Blob, &zeros);
    let tree = maker.tree(&[("100644", "zeros", blob)]);
    let commit = maker.commit(tree);
    let pack = maker.finish();
    assert!(pack.len() < 1 << 20);
    assert!(outcome(&pack, commit, 16 << 20).expect_err("a bomb").contains("unpacks to more than 16777216 bytes"));
    refused(&pack, commit, "more than 33554432 bytes");

    // Deltas that double what they are made on.
    let mut maker = Maker::default();
    let mut content = vec![7u8; 64];
    maker.object(Kind::Blob, &content);
    for _ in 0..30 {
        let length = content.len() as u64;
        let mut delta = Vec::new();
        for mut number in [length, 2 * length] {
            while number > 0x7f {
                delta.push(number as u8 | 0x80);
                number >>= 7;
            }
            delta.push(number as u8);
        }
        let copy = [0xf0, length as u8, (length >> 8) as u8, (length >> 16) as u8];
        delta.extend_from_slice(&copy);
        delta.extend_from_slice(&copy);
        maker.by_name(ObjectId::of(Kind::Blob, &content), &delta);
        content.extend_from_within(..);
        if content.len() >= 8 << 20 {
            break;
        }
    }
    let tree = maker.tree(&[]);
    let commit = maker.commit(tree);
    assert!(outcome(&maker.finish(), commit, 4 << 20).expect_err("a bomb").contains("unpacks to more than"));

    // 10 to the tenth files in eleven small trees.
    let mut maker = Maker::default();
    let blob = maker.object(Kind::Blob, b"x");
    let mut tree = maker.tree(&[("100644", "f", blob)]);
    for _ in 0..10 {
        let names: Vec<String> = (0..10).map(|n| format!("d{n}")).collect();
        tree = maker.tree(&names.iter().map(|name| ("40000", name.as_str(), tree)).collect::<Vec<_>>());
    }
    let commit = maker.commit(tree);
    refused(&maker.finish(), commit, "more than 10000 folders");

    let mut maker = Maker::default();
    let blob = maker.object(Kind::Blob, b"");
    let names: Vec<String> = (0..20_000).map(|n| format!("f{n:06}")).collect();
    let tree = maker.tree(&names.iter().map(|name| ("100644", name.as_str(), blob)).collect::<Vec<_>>());
    let commit = maker.commit(tree);
    refused(&maker.finish(), commit, "more than 10000 files");
}

#[test]
fn hostile_trees_are_refused() {
    let mut base = Maker::default();
    let blob = base.object(Kind::Blob, b"x");
    let inner = base.tree(&[("100644", "config", blob)]);
    let absent = ObjectId::of(Kind::Blob, b"absent");
    let long = "n".repeat(600);
    type Row<'r> = (Vec<(&'r str, &'r str, ObjectId)>, &'r str);
    let rows: Vec<Row<'_>> = vec![
        (vec![("40000", ".git", inner)], "'.git'"),
        (vec![("40000", ".GIT", inner)], "'.git'"),
        (vec![("40000", "git~1", inner)], "'.git'"),
        (vec![("100644", ".git", blob)], "'.git'"),
        (vec![("40000", "..", inner)], "'..'"),
        (vec![("40000", ".", inner)], "'.'"),
        (vec![("100644", "a\\b", blob)], "backslash"),
        (vec![("100644", "a\nb", blob)], "control character"),
        (vec![("100644", "a\u{202e}b", blob)], "invisible"),
        (vec![("100644", &long, blob)], "longer than 512 bytes"),
        (vec![("100644", "A", blob), ("100644", "a", blob)], "one on some file systems"),
        (vec![("100644", "cafe\u{301}", blob), ("100644", "caf\u{e9}", blob)], "one on some file systems"),
        (vec![("100644", "a", blob), ("40000", "a", inner)], "which is a file"),
        (vec![("100644", "a", absent)], "does not have the content of \"a\""),
        (vec![("40000", "a", absent)], "does not have the object"),
        (vec![("40000", "a", blob)], "another kind than is needed"),
        (vec![("100644", "a", inner)], "does not have the content"),
        (vec![("120000", "a", blob)], "symbolic link"),
        (vec![("160000", "a", blob)], "submodule"),
        (vec![("100644", "b", blob), ("100644", "a", blob)], "not in order"),
        (vec![("107777", "a", blob)], "unknown mode"),
        (vec![], "has no file"),
    ];
    for (entries, part) in rows {
        let mut maker = base.clone();
        let tree = maker.tree(&entries);
        let commit = maker.commit(tree);
        refused(&maker.finish(), commit, part);
    }
    let mut maker = base.clone();
    let commit = maker.object(Kind::Commit, b"author a\n");
    refused(&maker.finish(), commit, "names no tree");
}
