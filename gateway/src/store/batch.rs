//! What an append comes to, decided from what is stored: keys first, then quotas. Pure: rows, numbers and time are the back end's.

use std::collections::HashMap;

use agentrun_protocol::event::EventType;
use serde_json::json;

use super::{NewRecord, Origin, Quotas, StoreError};

/// What is stored under a key.
pub struct Stored {
    pub seq: i64,
    pub kind: String,
    pub data: String,
}

/// Counters of a run, as in its row.
#[derive(Clone, Copy)]
pub struct Usage {
    /// Events and bytes of their data.
    pub sandbox: (i64, i64),
    pub gateway: (i64, i64),
    /// One bit for each class of events that has met its quota.
    pub truncated: i64,
    pub dropped: i64,
}

/// The records of one append, told apart by their keys.
pub struct Batch<'a> {
    attempt: i64,
    origin: Origin,
    records: &'a [NewRecord],
    seqs: Vec<i64>,
    fresh: Vec<usize>,
    /// A record, and the first of the batch with the same key, whose number it gets.
    repeats: Vec<(usize, usize)>,
}

/// What is to be written.
pub struct Plan {
    /// Records of the caller, and for each class that meets its quota one `truncated` event of ours.
    pub rows: Vec<Row>,
    pub usage: Usage,
    /// The last row is the log's end.
    pub ends: bool,
}

/// An event to be written.
pub struct Row {
    index: Option<usize>,
    pub attempt: i64,
    pub origin: Origin,
    pub record: NewRecord,
}

impl<'a> Batch<'a> {
    /// `stored`: what is there already under these records' keys, of this attempt and origin.
    pub fn of(attempt: i64, origin: Origin, records: &'a [NewRecord], stored: &HashMap<String, Stored>) -> Result<Self, StoreError> {
        let mut batch = Batch { attempt, origin, records, seqs: vec![0; records.len()], fresh: Vec::new(), repeats: Vec::new() };
        let mut in_batch: HashMap<&str, usize> = HashMap::new();
        for (index, record) in records.iter().enumerate() {
            let conflict = || StoreError::KeyConflict { key: record.key.clone() };
            if let Some(stored) = stored.get(&record.key) {
                if stored.kind != word(record.kind)? || stored.data != record.data {
                    return Err(conflict());
                }
                batch.seqs[index] = stored.seq;
            } else if let Some(first) = in_batch.get(record.key.as_str()) {
                if (records[*first].kind, &records[*first].data) != (record.kind, &record.data) {
                    return Err(conflict());
                }
                batch.repeats.push((index, *first));
            } else {
                in_batch.insert(&record.key, index);
                batch.fresh.push(index);
            }
        }
        Ok(batch)
    }

    /// Whether all of it is stored already.
    pub fn is_stored(&self) -> bool {
        self.fresh.is_empty()
    }

    /// Hold the rest to the quotas.
    pub fn plan(&self, closed: bool, mut usage: Usage, quotas: &Quotas) -> Result<Plan, StoreError> {
        if closed {
            return Err(StoreError::Closed);
        }
        let mut shut = 0;
        let verdicts: Vec<(usize, Class, bool)> = self
            .fresh
            .iter()
            .map(|&index| {
                let class = Class::of(self.origin, self.records[index].kind);
                let bytes = i64::try_from(self.records[index].data.len()).unwrap_or(i64::MAX);
                (index, class, usage.admit(&mut shut, class, bytes, quotas))
            })
            .collect();
        let mut rows: Vec<Row> = Vec::with_capacity(self.fresh.len());
        for &(index, class, admitted) in &verdicts {
            if admitted {
                let record = self.records[index].clone();
                rows.push(Row { index: Some(index), attempt: self.attempt, origin: self.origin, record });
                continue;
            }
            usage.dropped += 1;
            if usage.truncated & class.bit() == 0 {
                usage.truncated |= class.bit();
                let dropped = verdicts.iter().filter(|(_, other, admitted)| *other == class && !admitted).count();
                let data = json!({"type": class.word(), "dropped": dropped});
                let record = NewRecord::new(format!("truncated/{}", class.word()), EventType::Truncated, &data);
                rows.push(Row { index: None, attempt: 0, origin: Origin::Gateway, record });
            }
        }
        let end = rows.iter().position(|row| row.record.kind == EventType::End);
        if end.is_some_and(|at| at + 1 != rows.len()) {
            return Err(StoreError::Closed);
        }
        Ok(Plan { rows, usage, ends: end.is_some() })
    }

    /// The number of each record, where the plan's rows are numbered from `first`.
    pub fn numbered(mut self, plan: &Plan, first: i64) -> Vec<i64> {
        for (seq, row) in (first..).zip(&plan.rows) {
            if let Some(index) = row.index {
                self.seqs[index] = seq;
            }
        }
        self.seqs()
    }

    /// The same where nothing was written.
    pub fn seqs(mut self) -> Vec<i64> {
        for (index, first) in self.repeats {
            self.seqs[index] = self.seqs[first];
        }
        self.seqs
    }
}

impl Usage {
    /// Count the event, or say that it does not fit. Once a class has met its quota it stays shut: a log with holes after
    /// that would mislead more than one that says where it ends. `shut`: classes that this append finds full.
    fn admit(&mut self, shut: &mut i64, class: Class, bytes: i64, quotas: &Quotas) -> bool {
        let (counter, most) = match class {
            Class::Essential => return true,
            Class::Output => (&mut self.sandbox, (quotas.sandbox_events / 4 * 3, quotas.sandbox_bytes / 4 * 3)),
            Class::Sandbox => (&mut self.sandbox, (quotas.sandbox_events, quotas.sandbox_bytes)),
            Class::Gateway => (&mut self.gateway, (quotas.gateway_events, quotas.gateway_bytes)),
        };
        let next = (counter.0 + 1, counter.1.saturating_add(bytes));
        if (self.truncated | *shut) & class.bit() != 0 || next.0 > most.0 || next.1 > most.1 {
            *shut |= class.bit();
            return false;
        }
        *counter = next;
        true
    }
}

/// Which quota an event counts against.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Class {
    /// Live output: the first to go, so that what the agent did stays visible.
    Output,
    Sandbox,
    Gateway,
    /// Never dropped; there are only as many as a run has phases, attempts and approvals.
    Essential,
}

impl Class {
    fn of(origin: Origin, kind: EventType) -> Self {
        match (origin, kind) {
            (Origin::Sandbox, EventType::Output) => Class::Output,
            (Origin::Sandbox, _) => Class::Sandbox,
            (Origin::Gateway, EventType::ModelCall | EventType::Budget) => Class::Gateway,
            (Origin::Gateway, _) => Class::Essential,
            // People append nothing; should it ever come to that, it would be bounded.
            (Origin::Person, _) => Class::Gateway,
        }
    }

    fn bit(self) -> i64 {
        match self {
            Class::Output => 1,
            Class::Sandbox => 2,
            Class::Gateway => 4,
            Class::Essential => 0,
        }
    }

    /// In the `truncated` event.
    fn word(self) -> &'static str {
        match self {
            Class::Output => "output",
            Class::Sandbox => "sandbox",
            Class::Gateway | Class::Essential => "gateway",
        }
    }
}

/// The word of a type, as in JSON.
pub fn word(kind: EventType) -> Result<String, StoreError> {
    match serde_json::to_value(kind) {
        Ok(serde_json::Value::String(word)) => Ok(word),
        other => Err(StoreError::Failed(format!("an event type without a word: {other:?}"))),
    }
}

/// The type of a stored word.
pub fn kind(word: &str) -> Result<EventType, StoreError> {
    serde_json::from_value(word.into()).map_err(|_| StoreError::Failed(format!("unknown event type {word:?}")))
}
