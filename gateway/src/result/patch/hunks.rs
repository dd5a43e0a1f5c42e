//! Line differences of two texts as hunks. Lines end with `\n` and nothing else, as git counts them. The work for one patch is
//! bounded by counting it, not by a clock, so that the outcome is always the same: beyond it, what differs is replaced whole.

use std::ops::Range;

use similar::{Algorithm, DiffOp, DiffTag, capture_diff_slices, group_diff_ops};

/// Unchanged lines around a change.
const CONTEXT: usize = 3;
const NO_NEWLINE: &[u8] = b"\\ No newline at end of file\n";

/// What the differences of one patch may still cost: products of line counts.
pub struct Effort(u64);

impl Default for Effort {
    fn default() -> Self {
        Effort(50_000_000)
    }
}

impl Effort {
    pub(crate) fn of(products: u64) -> Self {
        Effort(products)
    }

    fn spend(&mut self, old: usize, new: usize) -> bool {
        let cost = (old as u64).saturating_mul(new as u64);
        match self.0.checked_sub(cost) {
            Some(left) => {
                self.0 = left;
                true
            }
            None => false,
        }
    }
}

/// Write the hunks from `old` to `new`, which differ.
pub(crate) fn write(out: &mut Vec<u8>, old: &str, new: &str, effort: &mut Effort) {
    if old.is_empty() || new.is_empty() {
        whole(out, old, new);
        return;
    }
    let old: Vec<&str> = old.split_inclusive('\n').collect();
    let new: Vec<&str> = new.split_inclusive('\n').collect();
    for group in group_diff_ops(operations(&old, &new, effort), CONTEXT) {
        hunk(out, &old, &new, &group);
    }
}

/// Equal ends are cut off first, so that the effort is measured by what is left.
fn operations(old: &[&str], new: &[&str], effort: &mut Effort) -> Vec<DiffOp> {
    let head = old.iter().zip(new).take_while(|(a, b)| a == b).count();
    let tail = old[head..].iter().rev().zip(new[head..].iter().rev()).take_while(|(a, b)| a == b).count();
    let (old_middle, new_middle) = (&old[head..old.len() - tail], &new[head..new.len() - tail]);
    let middle = if effort.spend(old_middle.len(), new_middle.len()) {
        capture_diff_slices(Algorithm::Myers, old_middle, new_middle)
    } else {
        vec![DiffOp::Replace { old_index: 0, old_len: old_middle.len(), new_index: 0, new_len: new_middle.len() }]
    };
    let mut all = vec![DiffOp::Equal { old_index: 0, new_index: 0, len: head }];
    all.extend(middle.into_iter().map(|op| shifted(op, head)));
    all.push(DiffOp::Equal { old_index: old.len() - tail, new_index: new.len() - tail, len: tail });
    all.retain(|op| !op.old_range().is_empty() || !op.new_range().is_empty());
    merged(all)
}

fn shifted(op: DiffOp, by: usize) -> DiffOp {
    match op {
        DiffOp::Equal { old_index, new_index, len } => DiffOp::Equal { old_index: old_index + by, new_index: new_index + by, len },
        DiffOp::Delete { old_index, old_len, new_index } => {
            DiffOp::Delete { old_index: old_index + by, old_len, new_index: new_index + by }
        }
        DiffOp::Insert { old_index, new_index, new_len } => {
            DiffOp::Insert { old_index: old_index + by, new_index: new_index + by, new_len }
        }
        DiffOp::Replace { old_index, old_len, new_index, new_len } => {
            DiffOp::Replace { old_index: old_index + by, old_len, new_index: new_index + by, new_len }
        }
    }
}

/// Neighbouring equal runs as one: grouping by context counts on it.
fn merged(ops: Vec<DiffOp>) -> Vec<DiffOp> {
    let mut all: Vec<DiffOp> = Vec::with_capacity(ops.len());
    for op in ops {
        match (all.last_mut(), op) {
            (Some(DiffOp::Equal { len, .. }), DiffOp::Equal { len: more, .. }) => *len += more,
            _ => all.push(op),
        }
    }
    all
}

fn hunk(out: &mut Vec<u8>, old: &[&str], new: &[&str], group: &[DiffOp]) {
    let (Some(first), Some(last)) = (group.first(), group.last()) else { return };
    let old_range = first.old_range().start..last.old_range().end;
    let new_range = first.new_range().start..last.new_range().end;
    header(out, &old_range, &new_range);
    for op in group {
        if op.tag() == DiffTag::Equal {
            lines(out, b' ', &old[op.old_range()]);
        } else {
            lines(out, b'-', &old[op.old_range()]);
            lines(out, b'+', &new[op.new_range()]);
        }
    }
}

/// A text from or to nothing, without a list of its lines.
fn whole(out: &mut Vec<u8>, old: &str, new: &str) {
    let count = |text: &str| text.split_inclusive('\n').count();
    header(out, &(0..count(old)), &(0..count(new)));
    for (sign, text) in [(b'-', old), (b'+', new)] {
        for line in text.split_inclusive('\n') {
            lines(out, sign, &[line]);
        }
    }
}

fn header(out: &mut Vec<u8>, old: &Range<usize>, new: &Range<usize>) {
    // Lines count from 1; an empty range names the line before it.
    let text = |range: &Range<usize>| match range.len() {
        0 => format!("{},0", range.start),
        1 => format!("{}", range.start + 1),
        len => format!("{},{len}", range.start + 1),
    };
    out.extend_from_slice(format!("@@ -{} +{} @@\n", text(old), text(new)).as_bytes());
}

fn lines(out: &mut Vec<u8>, sign: u8, lines: &[&str]) {
    for line in lines {
        out.push(sign);
        out.extend_from_slice(line.as_bytes());
        if !line.ends_with('\n') {
            out.push(b'\n');
            out.extend_from_slice(NO_NEWLINE);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn diff(old: &str, new: &str, effort: u64) -> String {
        let mut out = Vec::new();
        write(&mut out, old, new, &mut Effort(effort));
        String::from_utf8(out).expect("UTF-8")
    }

    #[test]
    fn hunks() {
        let ten: String = (1..=10).map(|n| format!("{n}\n")).collect();
        for (old, new, expected) in [
            ("a", "b", "@@ -1 +1 @@\n-a\n\\ No newline at end of file\n+b\n\\ No newline at end of file\n"),
            ("a", "a\n", "@@ -1 +1 @@\n-a\n\\ No newline at end of file\n+a\n"),
            ("", "a\nb\n", "@@ -0,0 +1,2 @@\n+a\n+b\n"),
            ("a\r\n", "", "@@ -1 +0,0 @@\n-a\r\n"),
            ("a\rb\n", "a\rc\n", "@@ -1 +1 @@\n-a\rb\n+a\rc\n"),
            (&ten, &ten.replace("5\n", "five\n"), "@@ -2,7 +2,7 @@\n 2\n 3\n 4\n-5\n+five\n 6\n 7\n 8\n"),
            (&ten, &format!("0\n{ten}11\n"), "@@ -1,3 +1,4 @@\n+0\n 1\n 2\n 3\n@@ -8,3 +9,4 @@\n 8\n 9\n 10\n+11\n"),
        ] {
            assert_eq!(diff(old, new, u64::MAX), expected, "{old:?} {new:?}");
        }
    }

    #[test]
    fn beyond_the_effort_what_differs_is_replaced() {
        let (old, new) = ("head\na\nb\nc\ntail\n", "head\nx\nb\ny\ntail\n");
        assert_eq!(diff(old, new, 9), "@@ -1,5 +1,5 @@\n head\n-a\n+x\n b\n-c\n+y\n tail\n");
        assert_eq!(diff(old, new, 8), "@@ -1,5 +1,5 @@\n head\n-a\n-b\n-c\n+x\n+b\n+y\n tail\n");
    }

    #[test]
    fn hostile_texts_take_bounded_time() {
        let old: String = (0..32_000).map(|n| format!("{}\n", n % 2)).collect();
        let new: String = (0..4_000_000).map(|n| if n % 3 == 0 { "0\n" } else { "1\n" }).collect();
        let started = std::time::Instant::now();
        for _ in 0..4 {
            diff(&old, &new, Effort::default().0);
            diff(&old[..14_000], &new[..14_000], Effort::default().0);
        }
        assert!(started.elapsed().as_secs() < 60, "{:?}", started.elapsed());
    }
}
