//! How often each object failed in a row at the same step, and how long to wait before the next try. Cleared by success, and by
//! failing at another step: that one was got over.

use std::collections::HashMap;
use std::sync::Mutex;
use std::time::Duration;

use crate::error::Class;

/// Objects remembered at most; the counts of others start again.
const MOST: usize = 10_000;

/// Failures in a row, by object UID, and the step at which.
#[derive(Default)]
pub struct Backoff(Mutex<HashMap<String, (&'static str, u32)>>);

impl Backoff {
    /// Count a failure at this step and say how long to wait: doubled each time, with jitter so that many objects do not come back at once.
    /// `chance` is a number from 0 to 1.
    pub fn failed(&self, uid: &str, step: &'static str, class: Class, chance: f64) -> Duration {
        let mut failures = self.0.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        if failures.len() >= MOST && !failures.contains_key(uid) {
            failures.clear();
        }
        let (last, count) = failures.entry(uid.to_owned()).or_insert((step, 0));
        if *last != step {
            (*last, *count) = (step, 0);
        }
        let (first, longest) = class.pauses();
        let pause = first.saturating_mul(1 << (*count).min(16)).min(longest);
        *count = count.saturating_add(1);
        pause.mul_f64(0.5 + chance.clamp(0.0, 1.0) / 2.0)
    }

    pub fn succeeded(&self, uid: &str) {
        self.0.lock().unwrap_or_else(std::sync::PoisonError::into_inner).remove(uid);
    }
}

/// A number from 0 to 1.
pub fn chance() -> f64 {
    let mut bytes = [0; 4];
    match aws_lc_rs::rand::fill(&mut bytes) {
        Ok(()) => f64::from(u32::from_le_bytes(bytes)) / f64::from(u32::MAX),
        Err(_) => 1.0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_double_and_success_forgets() {
        let backoff = Backoff::default();
        let pauses: Vec<u64> = (0..10).map(|_| backoff.failed("a", "read", Class::Transient, 1.0).as_millis() as u64).collect();
        assert_eq!(pauses, [500, 1000, 2000, 4000, 8000, 16_000, 32_000, 60_000, 60_000, 60_000]);
        assert_eq!(backoff.failed("b", "read", Class::Transient, 0.0), Duration::from_millis(250), "half of it is jitter");
        assert_eq!(backoff.failed("a", "write", Class::Transient, 1.0), Duration::from_millis(500), "the step before was got over");
        backoff.succeeded("a");
        assert_eq!(backoff.failed("a", "read", Class::Transient, 1.0), Duration::from_millis(500));
        assert!((0..100).all(|_| (0.0..=1.0).contains(&chance())));
    }

    #[test]
    fn memory_is_bounded() {
        let backoff = Backoff::default();
        for n in 0..MOST + 5 {
            backoff.failed(&n.to_string(), "read", Class::Bug, 0.5);
        }
        assert!(backoff.0.lock().unwrap().len() <= MOST);
    }
}
