//! A tree as a run's source: in the object itself if it is small text, else as a tar archive whose bytes are a function of
//! paths, modes and contents alone.

use std::io::Write;

use agentrun_crds::agent_run::InlineFile;
use sha2::{Digest, Sha256};

use crate::failure::Failure;
use crate::tree::TreeFile;

/// Two empty blocks end an archive.
pub const END_BYTES: usize = 1024;
const BLOCK: usize = 512;
/// What a header holds of a path without help.
const SHORT_PATH: usize = 100;
/// Bounds of a source in the object.
const INLINE_FILES: usize = 32;
const INLINE_FILE_BYTES: usize = 64_000;
const INLINE_BYTES: usize = 128_000;

/// A source that is uploaded after the run was created.
pub struct Archive {
    pub bytes: Vec<u8>,
    /// `sha256:` and 64 hex digits.
    pub digest: String,
}

/// The files for the object itself, if the tree is small enough and text.
pub fn inline(files: &[TreeFile]) -> Option<Vec<InlineFile>> {
    let total: usize = files.iter().map(|file| file.content.len()).sum();
    if files.len() > INLINE_FILES || total > INLINE_BYTES || files.iter().any(|file| file.content.len() > INLINE_FILE_BYTES) {
        return None;
    }
    files
        .iter()
        .map(|file| {
            let content = std::str::from_utf8(&file.content).ok().filter(|text| !text.contains('\0'))?;
            Some(InlineFile { path: file.path.to_string(), content: content.to_owned(), executable: file.executable })
        })
        .collect()
}

/// Regular files in the order given, mode 644 or 755, no owner, no time. What the gateway would refuse is refused here.
pub fn pack(files: &[TreeFile]) -> Result<Archive, Failure> {
    let mut bytes = Vec::new();
    for file in files {
        write(&mut bytes, file).map_err(|error| Failure::local(format!("packing {}", file.path), &error))?;
    }
    bytes.resize(bytes.len() + END_BYTES, 0);
    // The gateway's own judgement, before a run is made that waits for a source which is then refused.
    agentrun_protocol::archive::read(bytes.as_slice(), |_, _| Ok(()))
        .map_err(|error| Failure::usage(format!("this folder cannot be sent: {error}")))?;
    let hex: String = Sha256::digest(&bytes).iter().map(|byte| format!("{byte:02x}")).collect();
    Ok(Archive { digest: format!("sha256:{hex}"), bytes })
}

fn write(bytes: &mut Vec<u8>, file: &TreeFile) -> std::io::Result<()> {
    let path = file.path.as_str();
    if path.len() > SHORT_PATH {
        // The GNU form of a long name: an entry of its own before the file's.
        let mut header = header(0o644, path.len() as u64 + 1);
        header.set_entry_type(tar::EntryType::GNULongName);
        name(&mut header, b"././@LongLink");
        header.set_cksum();
        append(bytes, &header, &[path.as_bytes(), b"\0"].concat())?;
    }
    let mut header = header(if file.executable { 0o755 } else { 0o644 }, file.content.len() as u64);
    name(&mut header, &path.as_bytes()[..path.len().min(SHORT_PATH)]);
    header.set_cksum();
    append(bytes, &header, &file.content)
}

fn header(mode: u32, size: u64) -> tar::Header {
    let mut header = tar::Header::new_gnu();
    header.set_entry_type(tar::EntryType::Regular);
    header.set_mode(mode);
    header.set_size(size);
    header.set_uid(0);
    header.set_gid(0);
    header.set_mtime(0);
    header
}

fn name(header: &mut tar::Header, name: &[u8]) {
    header.as_old_mut().name[..name.len()].copy_from_slice(name);
}

fn append(bytes: &mut Vec<u8>, header: &tar::Header, content: &[u8]) -> std::io::Result<()> {
    bytes.write_all(header.as_bytes())?;
    bytes.write_all(content)?;
    bytes.resize(bytes.len().next_multiple_of(BLOCK), 0);
    Ok(())
}

/// What a file costs besides its content.
pub fn header_bytes(path: &str) -> usize {
    if path.len() > SHORT_PATH { 2 * BLOCK + padded(path.len() + 1) } else { BLOCK }
}

/// Content with its padding.
pub fn padded(bytes: usize) -> usize {
    bytes.next_multiple_of(BLOCK)
}

#[cfg(test)]
mod tests {
    use agentrun_crds::paths::RelativePath;

    use super::*;

    fn file(path: &str, executable: bool, content: &[u8]) -> TreeFile {
        TreeFile { path: RelativePath::parse(path).expect("a path"), executable, content: content.to_vec() }
    }

    #[test]
    fn the_archive_is_what_tar_reads_and_its_bytes_never_change() {
        let long = format!("{}/{}", "d".repeat(200), "ü".repeat(100));
        let border = "e".repeat(100);
        let files =
            [file("a.txt", false, b"hello\n"), file(&long, true, b"long"), file(&border, false, &[0xff; 512]), file("empty", true, b"")];
        let packed = pack(&files).expect("packed");
        assert_eq!(packed.bytes, pack(&files).expect("packed").bytes);
        // Committed: another version of this program must give one tree the same digest.
        assert_eq!(packed.digest, "sha256:8a2fb79cae95c893abc73a3bd65539130fc0e6e9f9d8e05908551fe46595c255");
        let expected: usize = files.iter().map(|file| header_bytes(file.path.as_str()) + padded(file.content.len())).sum();
        assert_eq!(packed.bytes.len(), expected + END_BYTES);
        // As gateway and runner read it.
        let mut seen = Vec::new();
        let summary = agentrun_protocol::archive::read(packed.bytes.as_slice(), |file, reader| {
            let mut content = Vec::new();
            reader.read_to_end(&mut content)?;
            seen.push((file.path.to_string(), file.executable, content));
            Ok(())
        });
        let summary = summary.expect("an archive without a fault");
        assert_eq!((summary.files, summary.bytes), (files.len(), packed.bytes.len() as u64));
        let expected: Vec<_> = files.iter().map(|file| (file.path.to_string(), file.executable, file.content.clone())).collect();
        assert_eq!(seen, expected);
        for entry in tar::Archive::new(packed.bytes.as_slice()).entries().expect("an archive") {
            let header = entry.expect("an entry").header().clone();
            assert_eq!((header.mtime().ok(), header.uid().ok(), header.gid().ok()), (Some(0), Some(0), Some(0)));
        }
    }

    #[test]
    fn what_the_gateway_would_refuse_is_not_sent() {
        let failure = pack(&[file("Src/a", false, b"x"), file("src/b", false, b"y")]).err().expect("folders that are one");
        assert!(failure.message.contains("this folder cannot be sent") && failure.message.contains("src"), "{}", failure.message);
    }

    #[test]
    fn small_text_goes_into_the_object() {
        let many = |count: usize, bytes: usize| -> Vec<TreeFile> {
            (0..count).map(|n| file(&format!("f{n}"), false, "x".repeat(bytes).as_bytes())).collect()
        };
        for (what, files, fits) in [
            ("two", vec![file("a", false, b"x"), file("b", true, "ü".as_bytes())], true),
            ("not UTF-8", vec![file("a", false, b"\xff")], false),
            ("NUL", vec![file("a", false, b"a\0b")], false),
            ("32 files", many(32, 1), true),
            ("33 files", many(33, 1), false),
            ("a file of 64,000", many(1, 64_000), true),
            ("a file of 64,001", many(1, 64_001), false),
            ("128,000", many(2, 64_000), true),
            ("more", many(3, 42_667), false),
        ] {
            assert_eq!(inline(&files).is_some(), fits, "{what}");
        }
    }
}
