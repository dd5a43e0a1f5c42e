//! Reads a pack: every object is inflated, or made from its delta, once, and named by what its bytes hash to. Whatever the pack
//! claims, no more memory is taken than for one delta and the index, and no more disk than was allowed.

use std::collections::HashMap;
use std::io::{self, BufRead, Read};

use agentrun_protocol::git_object::{Kind, ObjectHasher, ObjectId};
use flate2::bufread::ZlibDecoder;
use sha1::{Digest, Sha1};

use super::delta;
use super::objects::{Objects, ObjectsError, Place};

/// Most objects of a pack.
const MAX_OBJECTS: u32 = 500_000;
/// Largest delta, which is held in memory.
const MAX_DELTA_BYTES: u64 = 32 << 20;
/// Delta instructions followed in one pack.
const MAX_STEPS: u64 = 16_000_000;
const TRAILER_BYTES: u64 = 20;

/// Read all of a pack of so many bytes.
pub(super) fn read(pack: impl BufRead, bytes: u64, objects: &mut Objects) -> Result<(), ObjectsError> {
    let mut pack = Counting { inner: pack, at: 0, hasher: Sha1::new() };
    let mut head = [0; 12];
    let cut = |error: io::Error| match error.kind() {
        io::ErrorKind::UnexpectedEof => ObjectsError::bad("is cut off"),
        _ => ObjectsError::Io(error),
    };
    pack.read_exact(&mut head).map_err(cut)?;
    let number = |at: usize| u32::from_be_bytes([head[at], head[at + 1], head[at + 2], head[at + 3]]);
    if &head[..4] != b"PACK" || !matches!(number(4), 2 | 3) {
        return Err(ObjectsError::bad("is not in a form that is known"));
    }
    let count = number(8);
    if count > MAX_OBJECTS {
        return Err(ObjectsError::bad(format!("has {count} objects, more than the {MAX_OBJECTS} that are read")));
    }
    let mut unpacking = Unpacking { objects, by_offset: HashMap::new(), waiting: HashMap::new(), steps: MAX_STEPS };
    for _ in 0..count {
        unpacking.entry(&mut pack)?;
    }
    if !unpacking.waiting.is_empty() {
        return Err(ObjectsError::bad("has deltas without their base"));
    }
    if pack.at + TRAILER_BYTES != bytes {
        return Err(ObjectsError::bad("goes on after its last object, or is cut off"));
    }
    let computed = std::mem::take(&mut pack.hasher).finalize();
    let mut trailer = [0; TRAILER_BYTES as usize];
    pack.read_exact(&mut trailer).map_err(cut)?;
    if computed[..] != trailer { Err(ObjectsError::bad("is damaged: its checksum is another")) } else { Ok(()) }
}

/// What a delta is made on.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
enum Base {
    At(u64),
    Named(ObjectId),
}

/// A delta whose base has not come yet.
struct Waiting {
    /// Of the entry in the pack.
    offset: u64,
    delta: Place,
}

struct Unpacking<'o> {
    objects: &'o mut Objects,
    by_offset: HashMap<u64, (Kind, Place)>,
    waiting: HashMap<Base, Vec<Waiting>>,
    steps: u64,
}

impl Unpacking<'_> {
    fn entry(&mut self, pack: &mut Counting<impl BufRead>) -> Result<(), ObjectsError> {
        let offset = pack.at;
        let (kind, bytes) = header(pack)?;
        let kind = match kind {
            1 => Kind::Commit,
            2 => Kind::Tree,
            3 => Kind::Blob,
            4 => Kind::Tag,
            6 => {
                let back = distance(pack)?;
                let base = offset.checked_sub(back).filter(|base| *base < offset);
                return self.delta(
                    pack,
                    offset,
                    bytes,
                    Base::At(base.ok_or_else(|| ObjectsError::bad("has a delta on what lies before it"))?),
                );
            }
            7 => {
                let mut id = [0; ObjectId::LENGTH];
                pack.read_exact(&mut id).map_err(|_| ObjectsError::bad("is cut off"))?;
                return self.delta(pack, offset, bytes, Base::Named(ObjectId::from_bytes(id)));
            }
            _ => return Err(ObjectsError::bad("has an object of an unknown kind")),
        };
        let place = Place { at: self.objects.end(), bytes };
        let mut hasher = ObjectHasher::new(kind, bytes);
        inflate(pack, bytes, |piece| {
            hasher.update(piece);
            self.objects.append(piece)
        })?;
        let id = self.objects.keep(kind, place, hasher);
        self.settled(offset, id, kind, place)
    }

    fn delta(&mut self, pack: &mut Counting<impl BufRead>, offset: u64, bytes: u64, base: Base) -> Result<(), ObjectsError> {
        if bytes > MAX_DELTA_BYTES {
            return Err(ObjectsError::bad(format!("has a delta of more than {MAX_DELTA_BYTES} bytes")));
        }
        let found = match base {
            Base::At(at) => self.by_offset.get(&at).copied(),
            Base::Named(id) => self.objects.find(id),
        };
        let Some((kind, on)) = found else {
            let place = Place { at: self.objects.end(), bytes };
            inflate(pack, bytes, |piece| self.objects.append(piece))?;
            self.waiting.entry(base).or_default().push(Waiting { offset, delta: place });
            return Ok(());
        };
        let mut delta = Vec::new();
        inflate(pack, bytes, |piece| {
            delta.extend_from_slice(piece);
            Ok(())
        })?;
        let (id, place) = delta::apply(self.objects, kind, on, &delta, &mut self.steps)?;
        self.settled(offset, id, kind, place)
    }

    /// An object is there: so are those that waited for it, and for them.
    fn settled(&mut self, offset: u64, id: ObjectId, kind: Kind, place: Place) -> Result<(), ObjectsError> {
        let mut settled = vec![(offset, id, place)];
        while let Some((offset, id, place)) = settled.pop() {
            self.by_offset.insert(offset, (kind, place));
            for base in [Base::At(offset), Base::Named(id)] {
                for waiting in self.waiting.remove(&base).unwrap_or_default() {
                    let mut delta = vec![0; waiting.delta.bytes as usize];
                    self.objects.read_at(&mut delta, waiting.delta.at)?;
                    let (id, made) = delta::apply(self.objects, kind, place, &delta, &mut self.steps)?;
                    settled.push((waiting.offset, id, made));
                }
            }
        }
        Ok(())
    }
}

/// Kind, and bytes once inflated.
fn header(pack: &mut impl Read) -> Result<(u8, u64), ObjectsError> {
    let first = byte(pack)?;
    let mut bytes = u64::from(first & 0x0f);
    let mut more = first & 0x80 != 0;
    let mut shift = 4;
    while more {
        let next = byte(pack)?;
        if shift > 56 {
            return Err(ObjectsError::bad("has an object of a size that cannot be"));
        }
        bytes |= u64::from(next & 0x7f) << shift;
        shift += 7;
        more = next & 0x80 != 0;
    }
    Ok((first >> 4 & 7, bytes))
}

/// How far back the base lies.
fn distance(pack: &mut impl Read) -> Result<u64, ObjectsError> {
    let mut next = byte(pack)?;
    let mut value = u64::from(next & 0x7f);
    while next & 0x80 != 0 {
        next = byte(pack)?;
        value =
            (value + 1).checked_mul(128).ok_or_else(|| ObjectsError::bad("has a delta on what lies before it"))? | u64::from(next & 0x7f);
    }
    Ok(value)
}

fn byte(pack: &mut impl Read) -> Result<u8, ObjectsError> {
    let mut byte = [0];
    pack.read_exact(&mut byte).map_err(|_| ObjectsError::bad("is cut off"))?;
    Ok(byte[0])
}

/// Inflate exactly so many bytes.
fn inflate(pack: &mut impl BufRead, bytes: u64, mut take: impl FnMut(&[u8]) -> Result<(), ObjectsError>) -> Result<(), ObjectsError> {
    let damaged = |_| ObjectsError::bad("is damaged: an object cannot be inflated");
    let mut decoder = ZlibDecoder::new(pack);
    let mut piece = [0; 32 * 1024];
    let mut left = bytes;
    loop {
        let read = decoder.read(&mut piece).map_err(damaged)?;
        if read == 0 {
            break;
        }
        left = left.checked_sub(read as u64).ok_or_else(|| ObjectsError::bad("has an object that is larger than it says"))?;
        take(&piece[..read])?;
    }
    if left > 0 { Err(ObjectsError::bad("has an object that is smaller than it says")) } else { Ok(()) }
}

/// Knows how far it has been read, and hashes that.
struct Counting<R> {
    inner: R,
    at: u64,
    hasher: Sha1,
}

impl<R: BufRead> Read for Counting<R> {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        let found = self.inner.fill_buf()?;
        let length = found.len().min(into.len());
        into[..length].copy_from_slice(&found[..length]);
        self.consume(length);
        Ok(length)
    }
}

impl<R: BufRead> BufRead for Counting<R> {
    fn fill_buf(&mut self) -> io::Result<&[u8]> {
        self.inner.fill_buf()
    }

    fn consume(&mut self, length: usize) {
        // What was filled before is there without reading.
        if let Ok(found) = self.inner.fill_buf() {
            self.hasher.update(&found[..length.min(found.len())]);
        }
        self.inner.consume(length);
        self.at += length as u64;
    }
}
