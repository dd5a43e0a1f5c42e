//! What calls have taken of each slice, in a file that is written before a call goes out and never flushed: it outlives the
//! process, for the kernel has it, and it is believed only as long as the machine has not started anew since.

use std::collections::HashMap;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::{Mutex, PoisonError};

use agentrun_crds::budget::Amount;

/// Boot (36), slice (36), four dimensions and attempts (40), check (8).
const RECORD: usize = 120;
const TEXT: usize = 36;

pub struct BudgetNotes {
    /// `None`: notes cannot be kept here, and a slice that is lost counts as spent.
    file: Option<File>,
    boot: [u8; TEXT],
    places: Mutex<HashMap<String, u64>>,
    found: HashMap<String, (Amount, i64)>,
}

impl BudgetNotes {
    /// Read what an earlier process has left, and begin anew.
    pub fn open(path: &Path) -> Self {
        let boot = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").ok().and_then(|id| text(id.trim()));
        let left = std::fs::read(path).unwrap_or_default();
        let file = File::options().create(true).write(true).truncate(true).open(path);
        let (file, boot) = match (file, boot) {
            (Ok(file), Some(boot)) => (Some(file), boot),
            (file, boot) => {
                tracing::warn!(error = ?file.err(), known_boot = boot.is_some(), "the budget's notes cannot be kept; after a crash slices count as spent");
                (None, [0; TEXT])
            }
        };
        let found = left.chunks_exact(RECORD).filter_map(|record| parse(record, &boot)).collect();
        BudgetNotes { file, boot, places: Mutex::default(), found }
    }

    /// What the earlier process had noted, by slice.
    pub fn found(&self) -> HashMap<String, (Amount, i64)> {
        self.found.clone()
    }

    /// Note it; one place a run.
    pub fn write(&self, run_uid: &str, slice: &str, used: Amount, attempts: i64) {
        let (Some(file), Some(slice)) = (&self.file, text(slice)) else { return };
        let mut record = [0; RECORD];
        record[..TEXT].copy_from_slice(&self.boot);
        record[TEXT..2 * TEXT].copy_from_slice(&slice);
        let numbers = [used.requests, used.input_tokens, used.output_tokens, used.cost_micros, attempts];
        for (place, number) in record[2 * TEXT..].chunks_exact_mut(8).zip(numbers) {
            place.copy_from_slice(&number.to_le_bytes());
        }
        let check = check(&record[..RECORD - 8]);
        record[RECORD - 8..].copy_from_slice(&check.to_le_bytes());
        let place = {
            let mut places = self.places.lock().unwrap_or_else(PoisonError::into_inner);
            let next = places.len() as u64;
            match places.get(run_uid) {
                Some(place) => *place,
                None => *places.entry(run_uid.to_owned()).or_insert(next),
            }
        };
        if let Err(error) = file.write_all_at(&record, place * RECORD as u64) {
            tracing::warn!(%error, "a note of the budget could not be written; after a crash its slice counts as spent");
        }
    }
}

fn text(text: &str) -> Option<[u8; TEXT]> {
    let mut bytes = [0; TEXT];
    bytes.get_mut(..text.len())?.copy_from_slice(text.as_bytes());
    Some(bytes)
}

fn parse(record: &[u8], boot: &[u8; TEXT]) -> Option<(String, (Amount, i64))> {
    let number = |at: usize| record.get(2 * TEXT + 8 * at..)?.first_chunk::<8>().map(|bytes| i64::from_le_bytes(*bytes));
    if record.get(..TEXT)? != boot || number(5)? != i64::from_le_bytes(check(record.get(..RECORD - 8)?).to_le_bytes()) {
        return None;
    }
    let slice = std::str::from_utf8(record.get(TEXT..2 * TEXT)?).ok()?.trim_end_matches('\0').to_owned();
    let used = Amount { requests: number(0)?, input_tokens: number(1)?, output_tokens: number(2)?, cost_micros: number(3)? };
    Some((slice, (used, number(4)?)))
}

/// FNV-1a.
fn check(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, |hash, byte| (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_whole_records_of_this_boot_are_believed() {
        let folder = tempfile::tempdir().expect("folder");
        let path = folder.path().join("notes");
        let used = Amount { requests: 3, ..Amount::default() };
        BudgetNotes::open(&path).write("run", "slice", used, 3);
        let good = std::fs::read(&path).expect("a file");
        let expected = HashMap::from([("slice".to_owned(), (used, 3))]);
        for (name, bytes, expected) in [
            ("as written", good.clone(), expected.clone()),
            ("with half a record behind it", [good.as_slice(), &good[..60]].concat(), expected),
            ("torn", good[..RECORD - 1].to_vec(), HashMap::new()),
            ("of another boot", [b"x", &good[1..]].concat(), HashMap::new()),
            (
                "changed",
                {
                    let mut bytes = good;
                    bytes[80] ^= 1;
                    bytes
                },
                HashMap::new(),
            ),
            ("none", Vec::new(), HashMap::new()),
        ] {
            std::fs::write(&path, bytes).expect("written");
            assert_eq!(BudgetNotes::open(&path).found(), expected, "{name}");
        }
    }
}
