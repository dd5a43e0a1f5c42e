//! The name of a blob: `sha256:` and 64 lower-case hex digits.

use sha2::Digest as _;

/// A SHA-256.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Digest([u8; 32]);

/// Why a string is not a digest.
#[derive(thiserror::Error, Clone, Copy, Debug, PartialEq, Eq)]
#[error("is not a digest; it must be sha256: and 64 lower-case hex digits")]
pub struct DigestError;

impl Digest {
    /// Check a string; exactly one spelling is taken.
    pub fn parse(text: &str) -> Result<Self, DigestError> {
        let hex = text.strip_prefix("sha256:").filter(|hex| hex.len() == 64).ok_or(DigestError)?;
        let mut bytes = [0; 32];
        for (byte, pair) in bytes.iter_mut().zip(hex.as_bytes().chunks_exact(2)) {
            let digit = |c: u8| match c {
                b'0'..=b'9' => Ok(c - b'0'),
                b'a'..=b'f' => Ok(c - b'a' + 10),
                _ => Err(DigestError),
            };
            *byte = digit(pair[0])? << 4 | digit(pair[1])?;
        }
        Ok(Digest(bytes))
    }

    /// The digest of these bytes.
    pub fn of(content: &[u8]) -> Self {
        Digest(sha2::Sha256::digest(content).into())
    }

    /// 64 hex digits.
    pub fn hex(&self) -> String {
        self.0.iter().map(|byte| format!("{byte:02x}")).collect()
    }
}

impl std::fmt::Display for Digest {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "sha256:{}", self.hex())
    }
}

impl std::fmt::Debug for Digest {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        std::fmt::Display::fmt(self, f)
    }
}

/// Hashes what streams by.
#[derive(Clone, Default)]
pub struct Hasher(sha2::Sha256);

impl Hasher {
    pub fn update(&mut self, bytes: &[u8]) {
        self.0.update(bytes);
    }

    pub fn finish(self) -> Digest {
        Digest(self.0.finalize().into())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_digest_has_one_spelling() {
        let good = Digest::of(b"abc").to_string();
        assert_eq!(good, "sha256:ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
        assert_eq!(Digest::parse(&good).map(|digest| digest.to_string()), Ok(good.clone()));
        let mut hasher = Hasher::default();
        hasher.update(b"a");
        hasher.update(b"bc");
        assert_eq!(hasher.finish().to_string(), good);
        for bad in [
            "",
            "sha256:",
            &good[..70],
            &good.to_uppercase(),
            &good[7..],
            &format!("{good}0"),
            &good.replace('b', "g"),
            "sha256:../../../../etc/passwd",
        ] {
            assert_eq!(Digest::parse(bad), Err(DigestError), "{bad}");
        }
    }
}
