//! The run token: `ar1.` + base64url(payload) + `.` + base64url(HMAC-SHA256). The payload is fixed-width binary, each
//! audience has its own key (HKDF-SHA256 from a master of at least 32 bytes), and verification is constant-time over the
//! bytes received. Pure: `now` comes from outside, and nothing here knows HTTP or Kubernetes.

use std::collections::BTreeMap;

use base64::{Engine, engine::general_purpose::URL_SAFE_NO_PAD};
use hmac::{Hmac, KeyInit, Mac};
use sha2::Sha256;
use zeroize::Zeroizing;

const PREFIX: &str = "ar1.";
const VERSION: u8 = 1;
/// version 1, key id 4, audience 1, run UID 16, attempt 4, Pod UID 16, iat 8, exp 8, nonce 16.
const PAYLOAD_BYTES: usize = 74;
const TAG_BYTES: usize = 32;

/// What a token is good for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Audience {
    Model = 1,
    Events = 2,
    Approvals = 3,
}

impl Audience {
    /// Every audience.
    pub const ALL: [Audience; 3] = [Audience::Model, Audience::Events, Audience::Approvals];

    fn label(self) -> &'static [u8] {
        match self {
            Audience::Model => b"agentrun/token/v1/model",
            Audience::Events => b"agentrun/token/v1/events",
            Audience::Approvals => b"agentrun/token/v1/approvals",
        }
    }
}

/// Who holds a token, and until when. UIDs are the 16 bytes of the Kubernetes UUIDs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Claims {
    pub audience: Audience,
    pub run_uid: [u8; 16],
    pub attempt: u32,
    pub pod_uid: [u8; 16],
    /// Unix seconds.
    pub issued_at: i64,
    /// Unix seconds; invalid from this second on.
    pub expires_at: i64,
    pub nonce: [u8; 16],
}

/// Why a token was refused. Deliberately coarse towards the outside: callers answer all of them alike.
#[derive(thiserror::Error, Clone, Copy, Debug, PartialEq, Eq)]
pub enum TokenError {
    #[error("the token is not of the form ar1.<payload>.<tag>")]
    Malformed,
    #[error("the token's signature is wrong")]
    Forged,
    #[error("the token is for another audience")]
    WrongAudience,
    #[error("the token has expired or is not valid yet")]
    Expired,
}

/// Why a key ring cannot be used.
#[derive(thiserror::Error, Clone, Copy, Debug, PartialEq, Eq)]
pub enum KeyRingError {
    #[error("token key {0} has {1} bytes; at least 32 random bytes are needed")]
    TooShort(u32, usize),
    #[error("there is no token key")]
    Empty,
}

/// Master keys by id; the highest id signs, all verify. No `Debug`.
#[derive(Clone)]
pub struct KeyRing {
    keys: BTreeMap<u32, [Zeroizing<[u8; 32]>; 3]>,
}

impl KeyRing {
    /// Derive the audience keys. Refuses short masters.
    pub fn new(masters: impl IntoIterator<Item = (u32, Vec<u8>)>) -> Result<Self, KeyRingError> {
        let mut keys = BTreeMap::new();
        for (id, master) in masters {
            let master = Zeroizing::new(master);
            if master.len() < 32 {
                return Err(KeyRingError::TooShort(id, master.len()));
            }
            keys.insert(id, Audience::ALL.map(|audience| hkdf(&master, audience.label())));
        }
        if keys.is_empty() { Err(KeyRingError::Empty) } else { Ok(KeyRing { keys }) }
    }

    /// Sign with the newest key. The same claims give the same token.
    pub fn mint(&self, claims: &Claims) -> String {
        let (id, keys) = self.keys.last_key_value().expect("a key ring is never empty");
        let payload = encode(*id, claims);
        let tag = tag(&keys[claims.audience as usize - 1], &payload);
        format!("{PREFIX}{}.{}", URL_SAFE_NO_PAD.encode(payload), URL_SAFE_NO_PAD.encode(tag))
    }

    /// Verify signature, audience and time.
    pub fn verify(&self, token: &str, audience: Audience, now: i64) -> Result<Claims, TokenError> {
        let claims = self.verify_any(token, now)?;
        if claims.audience == audience { Ok(claims) } else { Err(TokenError::WrongAudience) }
    }

    /// Verify signature and time, whatever the audience.
    pub fn verify_any(&self, token: &str, now: i64) -> Result<Claims, TokenError> {
        let (payload, tag_text) = token.strip_prefix(PREFIX).and_then(|rest| rest.split_once('.')).ok_or(TokenError::Malformed)?;
        let mut bytes = [0u8; PAYLOAD_BYTES];
        let mut received = [0u8; TAG_BYTES];
        // The buffers are exact, so a longer or shorter text is an error, and so is a non-canonical last character.
        if URL_SAFE_NO_PAD.decode_slice(payload, &mut bytes) != Ok(PAYLOAD_BYTES)
            || URL_SAFE_NO_PAD.decode_slice(tag_text, &mut received) != Ok(TAG_BYTES)
        {
            return Err(TokenError::Malformed);
        }
        let (key_id, claims) = decode(&bytes).ok_or(TokenError::Malformed)?;
        let keys = self.keys.get(&key_id).ok_or(TokenError::Forged)?;
        let mut mac = Hmac::<Sha256>::new_from_slice(&keys[claims.audience as usize - 1][..]).expect("HMAC takes any key length");
        mac.update(&bytes);
        mac.verify_slice(&received).map_err(|_| TokenError::Forged)?;
        if now < claims.issued_at.saturating_sub(60) || now >= claims.expires_at {
            return Err(TokenError::Expired);
        }
        Ok(claims)
    }
}

fn tag(key: &[u8; 32], payload: &[u8]) -> [u8; TAG_BYTES] {
    let mut mac = Hmac::<Sha256>::new_from_slice(key).expect("HMAC takes any key length");
    mac.update(payload);
    mac.finalize().into_bytes().into()
}

/// HKDF-SHA256 with an empty salt and one block of output (RFC 5869).
fn hkdf(master: &[u8], info: &[u8]) -> Zeroizing<[u8; 32]> {
    let pseudo_random_key = Zeroizing::new(tag(&[0u8; 32], master));
    let mut block = info.to_vec();
    block.push(1);
    Zeroizing::new(tag(&pseudo_random_key, &block))
}

fn encode(key_id: u32, claims: &Claims) -> [u8; PAYLOAD_BYTES] {
    let mut bytes = [0u8; PAYLOAD_BYTES];
    let mut rest = &mut bytes[..];
    let mut put = |field: &[u8]| {
        let (head, tail) = std::mem::take(&mut rest).split_at_mut(field.len());
        head.copy_from_slice(field);
        rest = tail;
    };
    put(&[VERSION]);
    put(&key_id.to_be_bytes());
    put(&[claims.audience as u8]);
    put(&claims.run_uid);
    put(&claims.attempt.to_be_bytes());
    put(&claims.pod_uid);
    put(&claims.issued_at.to_be_bytes());
    put(&claims.expires_at.to_be_bytes());
    put(&claims.nonce);
    bytes
}

fn decode(bytes: &[u8; PAYLOAD_BYTES]) -> Option<(u32, Claims)> {
    fn take<const N: usize>(bytes: &[u8], at: &mut usize) -> Option<[u8; N]> {
        let field = bytes.get(*at..*at + N)?.try_into().ok()?;
        *at += N;
        Some(field)
    }
    let at = &mut 0;
    if take::<1>(bytes, at)? != [VERSION] {
        return None;
    }
    let key_id = u32::from_be_bytes(take(bytes, at)?);
    let [audience] = take::<1>(bytes, at)?;
    let audience = Audience::ALL.into_iter().find(|a| *a as u8 == audience)?;
    let claims = Claims {
        audience,
        run_uid: take(bytes, at)?,
        attempt: u32::from_be_bytes(take(bytes, at)?),
        pod_uid: take(bytes, at)?,
        issued_at: i64::from_be_bytes(take(bytes, at)?),
        expires_at: i64::from_be_bytes(take(bytes, at)?),
        nonce: take(bytes, at)?,
    };
    Some((key_id, claims))
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: i64 = 1_800_000_000;

    fn ring() -> KeyRing {
        KeyRing::new([(1, vec![7; 32]), (2, vec![8; 32])]).unwrap()
    }

    fn claims(audience: Audience) -> Claims {
        Claims { audience, run_uid: [1; 16], attempt: 1, pod_uid: [2; 16], issued_at: NOW, expires_at: NOW + 900, nonce: [3; 16] }
    }

    #[test]
    fn a_token_is_good_for_its_own_audience_and_time_only() {
        for minted in Audience::ALL {
            let token = ring().mint(&claims(minted));
            for asked in Audience::ALL {
                assert_eq!(ring().verify(&token, asked, NOW).is_ok(), minted == asked);
            }
            assert_eq!(ring().verify(&token, minted, NOW + 900), Err(TokenError::Expired));
            assert_eq!(ring().verify(&token, minted, NOW - 61), Err(TokenError::Expired));
            assert_eq!(ring().verify(&token, minted, NOW + 899), Ok(claims(minted)));
        }
    }

    #[test]
    fn every_changed_byte_and_every_length_is_refused() {
        let token = ring().mint(&claims(Audience::Model));
        for at in 0..token.len() {
            for replacement in ['A', 'B', '.', '-', '=', ' '] {
                let mut changed: Vec<char> = token.chars().collect();
                if changed[at] == replacement {
                    continue;
                }
                changed[at] = replacement;
                let changed: String = changed.into_iter().collect();
                assert!(ring().verify(&changed, Audience::Model, NOW).is_err(), "{changed}");
            }
            assert!(ring().verify(&token[..at], Audience::Model, NOW).is_err());
        }
        for text in [format!("{token}A"), format!("{token}="), format!(" {token}"), token.replace("ar1", "ar2"), String::new()] {
            assert!(ring().verify(&text, Audience::Model, NOW).is_err(), "{text}");
        }
    }

    #[test]
    fn an_old_key_still_verifies_and_an_unknown_one_does_not() {
        let old = KeyRing::new([(1, vec![7; 32])]).unwrap();
        let token = old.mint(&claims(Audience::Events));
        assert!(ring().verify(&token, Audience::Events, NOW).is_ok());
        let token = ring().mint(&claims(Audience::Events));
        assert_eq!(old.verify(&token, Audience::Events, NOW), Err(TokenError::Forged));
    }

    #[test]
    fn short_or_missing_masters_are_refused() {
        assert_eq!(KeyRing::new([(1, vec![0; 31])]).err(), Some(KeyRingError::TooShort(1, 31)));
        assert_eq!(KeyRing::new([]).err(), Some(KeyRingError::Empty));
    }
}
