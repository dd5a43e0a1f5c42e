//! How often a run, and all runs of a namespace together, may call in a minute on this process: a bucket of so many calls for
//! each, that fills up evenly. In memory only; the hard limit is the budget.

use std::collections::HashMap;
use std::num::NonZeroU32;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use tokio::time::Instant;

/// Beyond so many buckets those that are full are dropped.
const MANY: usize = 4096;
const MINUTE: Duration = Duration::from_secs(60);

/// Calls per minute; `None`: any number.
#[derive(Clone, Copy, Debug, Default)]
pub struct RateLimits {
    pub run: Option<NonZeroU32>,
    pub namespace: Option<NonZeroU32>,
}

/// The buckets.
#[derive(Default)]
pub struct Rates {
    limits: RateLimits,
    buckets: Mutex<HashMap<Of, Bucket>>,
}

/// Whose calls are counted.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum Of {
    Run(String),
    Namespace(String),
}

/// A call came too soon.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TooSoon {
    /// `run` or `namespace`.
    pub of: &'static str,
    pub per_minute: NonZeroU32,
    /// When one more may come.
    pub retry_after: Duration,
}

/// When the bucket will be full, if nobody calls.
struct Bucket(Instant);

impl Rates {
    pub fn new(limits: RateLimits) -> Self {
        Rates { limits, buckets: Mutex::default() }
    }

    /// Count a call, or say when it may come again. What one of the two refuses does not count for the other.
    pub fn take(&self, run_uid: &str, namespace: &str, now: Instant) -> Result<(), TooSoon> {
        let RateLimits { run, namespace: all } = self.limits;
        if run.is_none() && all.is_none() {
            return Ok(());
        }
        let mut buckets = self.buckets.lock().unwrap_or_else(PoisonError::into_inner);
        if buckets.len() > MANY {
            buckets.retain(|_, Bucket(full)| *full > now);
        }
        let of_run = run.map(|limit| (Of::Run(run_uid.to_owned()), limit, "run"));
        let of_all = all.map(|limit| (Of::Namespace(namespace.to_owned()), limit, "namespace"));
        let counted: Vec<_> = of_run.into_iter().chain(of_all).collect();
        for (key, per_minute, of) in &counted {
            let full = buckets.get(key).map_or(now, |Bucket(full)| (*full).max(now));
            let retry_after = (full + MINUTE / per_minute.get()).saturating_duration_since(now + MINUTE);
            if !retry_after.is_zero() {
                return Err(TooSoon { of, per_minute: *per_minute, retry_after });
            }
        }
        for (key, per_minute, _) in counted {
            let Bucket(full) = buckets.entry(key).or_insert(Bucket(now));
            *full = (*full).max(now) + MINUTE / per_minute.get();
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rates(run: u32, namespace: u32) -> Rates {
        Rates::new(RateLimits { run: NonZeroU32::new(run), namespace: NonZeroU32::new(namespace) })
    }

    #[test]
    fn a_bucket_empties_and_fills_up_evenly() {
        let rates = rates(6, 0);
        let start = Instant::now();
        let at = |seconds: u64| start + Duration::from_secs(seconds);
        for _ in 0..6 {
            assert_eq!(rates.take("a", "team", at(0)), Ok(()));
        }
        let too_soon =
            |seconds| Err(TooSoon { of: "run", per_minute: NonZeroU32::new(6).unwrap(), retry_after: Duration::from_secs(seconds) });
        assert_eq!(rates.take("a", "team", at(0)), too_soon(10));
        assert_eq!(rates.take("a", "team", at(4)), too_soon(6));
        assert_eq!(rates.take("b", "team", at(4)), Ok(()), "another run has a bucket of its own");
        assert_eq!(rates.take("a", "team", at(10)), Ok(()));
        assert_eq!(rates.take("a", "team", at(10)), too_soon(10));
        for _ in 0..6 {
            assert_eq!(rates.take("a", "team", at(100)), Ok(()), "full again, and no more than full");
        }
        assert_eq!(rates.take("a", "team", at(100)), too_soon(10));
    }

    #[test]
    fn a_namespace_has_one_bucket_and_what_it_refuses_counts_for_no_run() {
        let rates = rates(2, 3);
        let now = Instant::now();
        let of = |run: &str| rates.take(run, "team", now).map_err(|too_soon| too_soon.of);
        assert_eq!([of("a"), of("a"), of("a")], [Ok(()), Ok(()), Err("run")]);
        assert_eq!([of("b"), of("b")], [Ok(()), Err("namespace")]);
        assert_eq!(rates.take("c", "other", now), Ok(()));
        let later = now + Duration::from_secs(20);
        assert_eq!(rates.take("b", "team", later), Ok(()), "the refused call of b was not counted");
    }

    #[test]
    fn without_limits_nothing_is_kept() {
        let rates = Rates::default();
        assert_eq!(rates.take("a", "team", Instant::now()), Ok(()));
        assert!(rates.buckets.lock().unwrap().is_empty());
    }
}
