//! What one run may have in flight at a time on this process, so that no run takes another's memory or connections.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use http::StatusCode;

use crate::error::ApiError;

/// A kind of work.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Gate {
    Append,
    Upload,
    Result,
    Follow,
    /// Asking for an approval, or using one.
    Approve,
    /// Waiting for a decision.
    Await,
    /// Uploading a source archive.
    Source,
}

impl Gate {
    /// For one run, and for all together.
    fn limits(self) -> (usize, usize) {
        match self {
            Gate::Append => (2, 512),
            Gate::Upload => (4, 512),
            Gate::Result => (1, 64),
            Gate::Follow => (32, 1024),
            Gate::Approve => (4, 256),
            Gate::Await => (32, 2048),
            Gate::Source => (1, 8),
        }
    }

    fn word(self) -> &'static str {
        match self {
            Gate::Append => "appends",
            Gate::Upload => "uploads",
            Gate::Result => "results",
            Gate::Follow => "event readers",
            Gate::Approve => "requests for approval",
            Gate::Await => "waits for a decision",
            Gate::Source => "source uploads",
        }
    }
}

type Counts = Arc<Mutex<HashMap<(Gate, Option<String>), usize>>>;

/// Counts by run. Cheap to clone.
#[derive(Clone, Default)]
pub struct Gates(Counts);

/// A place taken; given back when dropped.
pub struct GateGuard {
    counts: Counts,
    keys: [(Gate, Option<String>); 2],
}

impl Gates {
    /// Take a place, or 429.
    pub fn enter(&self, gate: Gate, run_uid: &str) -> Result<GateGuard, ApiError> {
        let (per_run, in_all) = gate.limits();
        let keys = [(gate, Some(run_uid.to_owned())), (gate, None)];
        let mut counts = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        for (key, most, of) in [(&keys[0], per_run, "one run"), (&keys[1], in_all, "all runs")] {
            if counts.get(key).is_some_and(|count| *count >= most) {
                let message = format!("at most {most} {} of {of} at a time; wait for one to end", gate.word());
                let retry = http::HeaderValue::from_static("1");
                return Err(
                    ApiError::new(StatusCode::TOO_MANY_REQUESTS, "too_many_in_flight", message).header(http::header::RETRY_AFTER, retry)
                );
            }
        }
        for key in &keys {
            *counts.entry(key.clone()).or_default() += 1;
        }
        drop(counts);
        Ok(GateGuard { counts: self.0.clone(), keys })
    }
}

impl Drop for GateGuard {
    fn drop(&mut self) {
        let mut counts = self.counts.lock().unwrap_or_else(PoisonError::into_inner);
        for key in &self.keys {
            match counts.get_mut(key) {
                Some(count) if *count > 1 => *count -= 1,
                _ => drop(counts.remove(key)),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_run_is_bounded_and_leaves_room_for_others() {
        let gates = Gates::default();
        let held: Vec<_> = (0..2).map(|_| gates.enter(Gate::Append, "a").expect("room")).collect();
        assert_eq!(gates.enter(Gate::Append, "a").err().map(|error| error.status), Some(StatusCode::TOO_MANY_REQUESTS));
        assert!(gates.enter(Gate::Append, "b").is_ok(), "another run is not blocked");
        assert!(gates.enter(Gate::Upload, "a").is_ok(), "another kind is not blocked");
        drop(held);
        assert!(gates.enter(Gate::Append, "a").is_ok());
        assert!(gates.0.lock().expect("not poisoned").is_empty(), "nothing is kept of what has left");
    }

    #[test]
    fn all_runs_together_are_bounded() {
        let gates = Gates::default();
        let held: Vec<_> = (0..64).map(|n| gates.enter(Gate::Result, &n.to_string()).expect("room")).collect();
        assert!(gates.enter(Gate::Result, "one-more").is_err());
        drop(held);
        assert!(gates.enter(Gate::Result, "one-more").is_ok());
    }
}
