//! Git's deltas: pieces of a base object and new bytes, in turn. Every length is checked against what is there.

use agentrun_protocol::git_object::{Kind, ObjectHasher, ObjectId};

use super::objects::{Objects, ObjectsError, Place};

const PIECE: usize = 64 * 1024;

/// Build the object that `delta` makes of `base`. `steps` is what is left of the instructions that may be followed in all.
pub(super) fn apply(
    objects: &mut Objects,
    kind: Kind,
    base: Place,
    delta: &[u8],
    steps: &mut u64,
) -> Result<(ObjectId, Place), ObjectsError> {
    let bad = || ObjectsError::bad("has a malformed delta");
    let mut rest = delta;
    let expected = length(&mut rest).ok_or_else(bad)?;
    let result = length(&mut rest).ok_or_else(bad)?;
    if expected != base.bytes {
        return Err(ObjectsError::bad("has a delta that does not fit its base"));
    }
    let place = Place { at: objects.end(), bytes: result };
    let mut hasher = ObjectHasher::new(kind, result);
    let mut left = result;
    let mut piece = [0; PIECE];
    while let Some((instruction, after)) = rest.split_first() {
        rest = after;
        *steps = steps.checked_sub(1).ok_or_else(|| ObjectsError::bad("has more delta instructions than are followed"))?;
        if *instruction & 0x80 == 0 {
            let length = usize::from(*instruction);
            if length == 0 || length > rest.len() {
                return Err(bad());
            }
            let (new, after) = rest.split_at(length);
            rest = after;
            left = left.checked_sub(length as u64).ok_or_else(bad)?;
            hasher.update(new);
            objects.append(new)?;
            continue;
        }
        let mut number = |from: u8, bytes: u8| {
            let mut value = 0u64;
            for bit in 0..bytes {
                if instruction & (1 << (from + bit)) != 0 {
                    let (byte, after) = rest.split_first()?;
                    rest = after;
                    value |= u64::from(*byte) << (8 * bit);
                }
            }
            Some(value)
        };
        let offset = number(0, 4).ok_or_else(bad)?;
        let mut length = number(4, 3).ok_or_else(bad)?;
        if length == 0 {
            length = 0x10000;
        }
        if offset.checked_add(length).is_none_or(|end| end > base.bytes) {
            return Err(bad());
        }
        left = left.checked_sub(length).ok_or_else(bad)?;
        let mut at = base.at + offset;
        while length > 0 {
            let now = length.min(PIECE as u64) as usize;
            objects.read_at(&mut piece[..now], at)?;
            hasher.update(&piece[..now]);
            objects.append(&piece[..now])?;
            (at, length) = (at + now as u64, length - now as u64);
        }
    }
    if left > 0 {
        return Err(bad());
    }
    Ok((objects.keep(kind, place, hasher), place))
}

/// A length of seven bits a byte, the lowest first.
fn length(rest: &mut &[u8]) -> Option<u64> {
    let mut value = 0u64;
    for shift in (0..63).step_by(7) {
        let (byte, after) = rest.split_first()?;
        *rest = after;
        value |= u64::from(byte & 0x7f) << shift;
        if byte & 0x80 == 0 {
            return Some(value);
        }
    }
    None
}
