//! `fs.Read`: a regular file's bytes in chunks, with the digest of exactly what was sent.

use std::io::Read;

use agentrun_protocol::executor::{FsRead, FsReadDone, MAX_CHUNK_BYTES};
use sha2::{Digest, Sha256};

use crate::{
    failure::Failure,
    request::Request,
    workspace::{Workspace, digits},
};

/// Blocking. `max_bytes` 0 reads nothing and tells the size.
pub fn read(workspace: &Workspace, request: &Request, read: &FsRead) -> Result<FsReadDone, Failure> {
    let (file, stat) = workspace.file(&read.path)?;
    // One byte more than asked tells a file that ends here from one that goes on, also while it grows.
    let mut rest = (&file).take(read.max_bytes.saturating_add(1));
    let mut hash = Sha256::new();
    let mut sent = 0u64;
    let mut buffer = vec![0; MAX_CHUNK_BYTES];
    let truncated = loop {
        request.check()?;
        let count = fill(&mut rest, &mut buffer).map_err(|error| Failure::io(&read.path, &error))?;
        let wanted = usize::try_from(read.max_bytes - sent).unwrap_or(usize::MAX).min(count);
        if wanted > 0 {
            hash.update(&buffer[..wanted]);
            sent += wanted as u64;
            request.emit_blocking(buffer[..wanted].to_vec())?;
        }
        if count > wanted {
            break true;
        }
        if count < buffer.len() {
            break false;
        }
    };
    let size = u64::try_from(stat.st_size).unwrap_or_default();
    Ok(FsReadDone { size: if truncated { size } else { sent }, mode: digits(&stat), sha256: digest_text(hash), truncated })
}

/// Read until the buffer is full or the file ends.
pub fn fill(from: &mut impl Read, buffer: &mut [u8]) -> std::io::Result<usize> {
    let mut filled = 0;
    while filled < buffer.len() {
        match from.read(&mut buffer[filled..]) {
            Ok(0) => break,
            Ok(count) => filled += count,
            Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(filled)
}

/// `sha256:` and 64 hex digits.
pub fn digest_text(hash: Sha256) -> String {
    let mut text = String::from("sha256:");
    for byte in hash.finalize() {
        text.push_str(&format!("{byte:02x}"));
    }
    text
}
