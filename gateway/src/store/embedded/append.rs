//! One append, inside the writer's transaction: keys first, then quotas, then numbers, then rows.

use std::collections::HashMap;

use agentrun_protocol::event::EventType;
use rusqlite::{Connection, OptionalExtension, params};
use serde_json::json;

use crate::store::{NewRecord, Origin, Quotas, RunRef, StoreError};

/// What an append did.
pub(super) struct Appended {
    pub seqs: Vec<i64>,
    /// Whether anything was written.
    pub grew: bool,
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

/// Counters of a run, as in its row.
#[derive(Clone, Copy)]
struct Usage {
    sandbox: (i64, i64),
    gateway: (i64, i64),
    truncated: i64,
    /// Classes that this append finds full.
    shut: i64,
    dropped: i64,
}

impl Usage {
    /// Count the event, or say that it does not fit. Once a class has met its quota it stays shut: a log with holes after
    /// that would mislead more than one that says where it ends.
    fn admit(&mut self, class: Class, bytes: i64, quotas: &Quotas) -> bool {
        let (counter, most) = match class {
            Class::Essential => return true,
            Class::Output => (&mut self.sandbox, (quotas.sandbox_events / 4 * 3, quotas.sandbox_bytes / 4 * 3)),
            Class::Sandbox => (&mut self.sandbox, (quotas.sandbox_events, quotas.sandbox_bytes)),
            Class::Gateway => (&mut self.gateway, (quotas.gateway_events, quotas.gateway_bytes)),
        };
        let next = (counter.0 + 1, counter.1.saturating_add(bytes));
        if (self.truncated | self.shut) & class.bit() != 0 || next.0 > most.0 || next.1 > most.1 {
            self.shut |= class.bit();
            return false;
        }
        *counter = next;
        true
    }
}

/// The word of a type, as in JSON.
pub(super) fn word(kind: EventType) -> Result<String, StoreError> {
    match serde_json::to_value(kind) {
        Ok(serde_json::Value::String(word)) => Ok(word),
        other => Err(StoreError::Failed(format!("an event type without a word: {other:?}"))),
    }
}

pub(super) fn append(
    connection: &Connection,
    run: &RunRef,
    attempt: i64,
    origin: Origin,
    records: &[NewRecord],
    quotas: &Quotas,
    now: i64,
) -> Result<Appended, StoreError> {
    let id = super::run_row(connection, run)?;
    let mut seqs = vec![0; records.len()];
    // Index of the first record with the same key; the later ones get its number.
    let mut repeats = Vec::new();
    let mut fresh: Vec<usize> = Vec::new();
    let mut in_batch: HashMap<&str, usize> = HashMap::new();
    for (index, record) in records.iter().enumerate() {
        if let Some(seq) = stored(connection, id, attempt, origin, record)? {
            seqs[index] = seq;
        } else if let Some(first) = in_batch.get(record.key.as_str()) {
            if (records[*first].kind, &records[*first].data) != (record.kind, &record.data) {
                return Err(StoreError::KeyConflict { key: record.key.clone() });
            }
            repeats.push((index, *first));
        } else {
            in_batch.insert(&record.key, index);
            fresh.push(index);
        }
    }
    let grew = !fresh.is_empty();
    if grew {
        write(connection, id, attempt, origin, records, &fresh, quotas, now, &mut seqs)?;
    }
    for (index, first) in repeats {
        seqs[index] = seqs[first];
    }
    Ok(Appended { seqs, grew })
}

/// The number under which this record is stored already.
fn stored(connection: &Connection, id: i64, attempt: i64, origin: Origin, record: &NewRecord) -> Result<Option<i64>, StoreError> {
    let mut select =
        connection.prepare_cached("SELECT seq, kind, data FROM events WHERE run = ?1 AND attempt = ?2 AND origin = ?3 AND key = ?4")?;
    let row = select
        .query_row(params![id, attempt, origin as i64, record.key], |row| {
            Ok((row.get(0)?, row.get::<_, String>(1)?, row.get::<_, String>(2)?))
        })
        .optional()?;
    match row {
        None => Ok(None),
        Some((seq, kind, data)) if kind == word(record.kind)? && data == record.data => Ok(Some(seq)),
        Some(_) => Err(StoreError::KeyConflict { key: record.key.clone() }),
    }
}

#[expect(clippy::too_many_arguments, reason = "the second half of `append`, which alone calls it")]
fn write(
    connection: &Connection,
    id: i64,
    attempt: i64,
    origin: Origin,
    records: &[NewRecord],
    fresh: &[usize],
    quotas: &Quotas,
    now: i64,
    seqs: &mut [i64],
) -> Result<(), StoreError> {
    let (closed, mut usage) = connection
        .prepare_cached(
            "SELECT closed_at IS NOT NULL, sandbox_events, sandbox_bytes, gateway_events, gateway_bytes, truncated, dropped FROM runs WHERE id = ?1",
        )?
        .query_row([id], |row| {
            let usage = Usage {
                sandbox: (row.get(1)?, row.get(2)?),
                gateway: (row.get(3)?, row.get(4)?),
                truncated: row.get(5)?,
                shut: 0,
                dropped: row.get(6)?,
            };
            Ok((row.get::<_, bool>(0)?, usage))
        })?;
    if closed {
        return Err(StoreError::Closed);
    }
    let verdicts: Vec<(usize, Class, bool)> = fresh
        .iter()
        .map(|&index| {
            let class = Class::of(origin, records[index].kind);
            let bytes = i64::try_from(records[index].data.len()).unwrap_or(i64::MAX);
            (index, class, usage.admit(class, bytes, quotas))
        })
        .collect();
    // What will be written: records of the caller, and for each class that meets its quota one `truncated` event of ours.
    let mut rows: Vec<(Option<usize>, NewRecord)> = Vec::with_capacity(fresh.len());
    for &(index, class, admitted) in &verdicts {
        if admitted {
            rows.push((Some(index), records[index].clone()));
            continue;
        }
        usage.dropped += 1;
        if usage.truncated & class.bit() == 0 {
            usage.truncated |= class.bit();
            let dropped = verdicts.iter().filter(|(_, other, admitted)| *other == class && !admitted).count();
            let data = json!({"type": class.word(), "dropped": dropped});
            rows.push((None, NewRecord::new(format!("truncated/{}", class.word()), EventType::Truncated, &data)));
        }
    }
    let ends = rows.iter().position(|(_, record)| record.kind == EventType::End);
    if ends.is_some_and(|at| at + 1 != rows.len()) {
        return Err(StoreError::Closed);
    }
    let count = i64::try_from(rows.len()).unwrap_or(i64::MAX);
    let first: Option<i64> = connection
        .prepare_cached(
            "UPDATE runs SET next = next + ?2, sandbox_events = ?3, sandbox_bytes = ?4, gateway_events = ?5, gateway_bytes = ?6,
             truncated = ?7, dropped = ?8, closed_at = ?9 WHERE id = ?1 AND closed_at IS NULL RETURNING next - ?2",
        )?
        .query_row(
            params![
                id,
                count,
                usage.sandbox.0,
                usage.sandbox.1,
                usage.gateway.0,
                usage.gateway.1,
                usage.truncated,
                usage.dropped,
                ends.map(|_| now)
            ],
            |row| row.get(0),
        )
        .optional()?;
    let first = first.ok_or(StoreError::Closed)?;
    let mut insert = connection
        .prepare_cached("INSERT INTO events (run, seq, time, attempt, origin, key, kind, data) VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8)")?;
    for (seq, (index, record)) in (first..).zip(rows) {
        let (attempt, origin) = if index.is_some() { (attempt, origin) } else { (0, Origin::Gateway) };
        insert.execute(params![id, seq, now, attempt, origin as i64, record.key, word(record.kind)?, record.data])?;
        if let Some(index) = index {
            seqs[index] = seq;
        }
    }
    Ok(())
}
