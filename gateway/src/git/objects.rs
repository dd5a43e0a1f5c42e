//! Git objects in one temporary file that has no name: written once, found by the name that we computed of their bytes. Memory is
//! taken by the index only.

use std::collections::HashMap;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::time::Instant;

use agentrun_protocol::git_object::{Kind, ObjectHasher, ObjectId};

const BUFFER_BYTES: usize = 256 * 1024;

/// Where bytes stand in the file.
#[derive(Clone, Copy, Debug)]
pub(super) struct Place {
    pub at: u64,
    pub bytes: u64,
}

/// Why objects cannot be kept.
#[derive(thiserror::Error, Debug)]
pub(super) enum ObjectsError {
    /// The repository's fault; the sentence goes on from "the pack".
    #[error("{0}")]
    Bad(String),
    #[error("took too long to unpack")]
    TooLong,
    #[error(transparent)]
    Io(#[from] io::Error),
}

impl ObjectsError {
    pub fn bad(why: impl Into<String>) -> Self {
        ObjectsError::Bad(why.into())
    }
}

/// See the module.
pub(super) struct Objects {
    file: File,
    index: HashMap<ObjectId, (Kind, Place)>,
    /// What has not been written yet, and where it will stand.
    buffer: Vec<u8>,
    flushed: u64,
    most: u64,
    until: Instant,
}

impl Objects {
    /// In `folder`, of at most so many bytes, to be filled until then.
    pub fn create(folder: &Path, most: u64, until: Instant) -> io::Result<Self> {
        let file = tempfile::tempfile_in(folder)?;
        Ok(Objects { file, index: HashMap::new(), buffer: Vec::with_capacity(BUFFER_BYTES), flushed: 0, most, until })
    }

    /// Where the next byte will stand.
    pub fn end(&self) -> u64 {
        self.flushed + self.buffer.len() as u64
    }

    /// Add bytes at the end.
    pub fn append(&mut self, bytes: &[u8]) -> Result<(), ObjectsError> {
        if self.end() + bytes.len() as u64 > self.most {
            return Err(ObjectsError::bad(format!("unpacks to more than {} bytes", self.most)));
        }
        if self.buffer.len() + bytes.len() > BUFFER_BYTES {
            self.flush()?;
        }
        self.buffer.extend_from_slice(bytes);
        Ok(())
    }

    fn flush(&mut self) -> Result<(), ObjectsError> {
        if Instant::now() >= self.until {
            return Err(ObjectsError::TooLong);
        }
        self.file.write_all_at(&self.buffer, self.flushed)?;
        self.flushed += self.buffer.len() as u64;
        self.buffer.clear();
        Ok(())
    }

    /// Fill `into` from this offset.
    pub fn read_at(&mut self, into: &mut [u8], at: u64) -> Result<(), ObjectsError> {
        if at + into.len() as u64 > self.flushed {
            self.flush()?;
        }
        Ok(self.file.read_exact_at(into, at)?)
    }

    /// Let an object be found that was appended, hashed on the way. The first of its name counts.
    pub fn keep(&mut self, kind: Kind, place: Place, hasher: ObjectHasher) -> ObjectId {
        let id = hasher.finish();
        self.index.entry(id).or_insert((kind, place));
        id
    }

    pub fn find(&self, id: ObjectId) -> Option<(Kind, Place)> {
        self.index.get(&id).copied()
    }

    /// All of an object of this kind.
    pub fn read(&mut self, id: ObjectId, kind: Kind, most: u64) -> Result<Vec<u8>, ObjectsError> {
        let place = match self.find(id) {
            Some((found, place)) if found == kind => place,
            Some(_) => return Err(ObjectsError::bad(format!("has an object {id} of another kind than is needed"))),
            None => return Err(ObjectsError::bad(format!("does not have the object {id}"))),
        };
        if place.bytes > most {
            return Err(ObjectsError::bad(format!("has an object {id} of more than {most} bytes")));
        }
        let mut content = vec![0; usize::try_from(place.bytes).unwrap_or(usize::MAX)];
        self.read_at(&mut content, place.at)?;
        Ok(content)
    }
}

/// A range of the file, to be read in order.
pub(super) struct Reading<'a> {
    objects: &'a mut Objects,
    place: Place,
}

impl<'a> Reading<'a> {
    pub fn of(objects: &'a mut Objects, place: Place) -> Self {
        Reading { objects, place }
    }
}

impl io::Read for Reading<'_> {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        let length = into.len().min(usize::try_from(self.place.bytes).unwrap_or(usize::MAX));
        self.objects.read_at(&mut into[..length], self.place.at).map_err(|error| match error {
            ObjectsError::Io(error) => error,
            other => io::Error::other(other.to_string()),
        })?;
        self.place.at += length as u64;
        self.place.bytes -= length as u64;
        Ok(length)
    }
}
