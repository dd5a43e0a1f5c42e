//! Content as a literal of git's binary patches: base 85 of a zlib stream. The stream is stored, not compressed: changed
//! binaries are rare and bounded, and a compressor is code we need not trust.

const ALPHABET: &[u8; 85] = b"0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz!#$%&()*+-;<=>?@^_`{|}~";
/// Bytes in one line.
const LINE: usize = 52;
/// Bytes in one stored block of deflate.
const BLOCK: usize = 65_535;

/// `literal <size>`, the lines, an empty line.
pub(super) fn write(out: &mut Vec<u8>, content: &[u8]) {
    out.extend_from_slice(format!("literal {}\n", content.len()).as_bytes());
    for line in stored(content).chunks(LINE) {
        // Length: A to Z is 1 to 26, a to z is 27 to 52.
        let length = u8::try_from(line.len()).unwrap_or(u8::MAX);
        out.push(if length <= 26 { b'A' + length - 1 } else { b'a' + length - 27 });
        for group in line.chunks(4) {
            let mut word = [0; 4];
            word[..group.len()].copy_from_slice(group);
            let mut value = u32::from_be_bytes(word);
            let mut digits = [0; 5];
            for digit in digits.iter_mut().rev() {
                *digit = ALPHABET[(value % 85) as usize];
                value /= 85;
            }
            out.extend_from_slice(&digits);
        }
        out.push(b'\n');
    }
    out.push(b'\n');
}

/// A zlib stream (RFC 1950) of stored blocks (RFC 1951, 3.2.4).
fn stored(content: &[u8]) -> Vec<u8> {
    let mut stream = Vec::with_capacity(content.len() + content.len() / BLOCK * 5 + 16);
    stream.extend_from_slice(&[0x78, 0x01]);
    let blocks: Vec<&[u8]> = if content.is_empty() { vec![&[]] } else { content.chunks(BLOCK).collect() };
    for (index, block) in blocks.iter().enumerate() {
        stream.push(u8::from(index + 1 == blocks.len()));
        let length = u16::try_from(block.len()).unwrap_or(u16::MAX);
        stream.extend_from_slice(&length.to_le_bytes());
        stream.extend_from_slice(&(!length).to_le_bytes());
        stream.extend_from_slice(block);
    }
    stream.extend_from_slice(&adler32(content).to_be_bytes());
    stream
}

fn adler32(content: &[u8]) -> u32 {
    let (mut a, mut b) = (1u32, 0u32);
    // 5,552 bytes are the most whose sums fit in 32 bits.
    for chunk in content.chunks(5552) {
        for &byte in chunk {
            a += u32::from(byte);
            b += a;
        }
        a %= 65_521;
        b %= 65_521;
    }
    b << 16 | a
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_checksum_is_adler32() {
        for (content, sum) in [(&b""[..], 1), (b"a", 0x0062_0062), (b"Wikipedia", 0x11e6_0398)] {
            assert_eq!(adler32(content), sum);
        }
        // Beyond one chunk: the sums as RFC 1950 defines them.
        let large = vec![0xff; 20_000];
        let (a, b) =
            large.iter().fold((1u64, 0u64), |(a, b), byte| ((a + u64::from(*byte)) % 65_521, (b + (a + u64::from(*byte))) % 65_521));
        assert_eq!(u64::from(adler32(&large)), b << 16 | a);
    }
}
