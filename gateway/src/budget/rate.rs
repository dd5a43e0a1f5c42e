//! How often a run, and all runs of a namespace together, may call in a minute on this process: a bucket of so many calls for
//! each, that fills up evenly. In memory only; the hard limit is the budget. What counts is the namespace's policy, beneath the
//! ceilings of this process.

use std::collections::HashMap;
use std::num::NonZeroU32;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use agentrun_crds::agent_policy;
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

/// What bounds a run's calls besides its budget.
#[derive(Clone, Copy, Debug)]
pub struct CallLimits {
    pub rates: RateLimits,
    /// Calls of one run at once.
    pub in_flight: usize,
}

impl CallLimits {
    /// These as ceilings over what a namespace's policy says.
    pub fn over(self, policy: &agent_policy::RateLimits) -> CallLimits {
        let lower = |ceiling: Option<NonZeroU32>, said: Option<i64>| {
            let said = said.and_then(|said| NonZeroU32::new(u32::try_from(said).ok()?));
            ceiling.into_iter().chain(said).min()
        };
        CallLimits {
            rates: RateLimits {
                run: lower(self.rates.run, policy.requests_per_minute_per_run),
                namespace: lower(self.rates.namespace, policy.requests_per_minute_per_namespace),
            },
            in_flight: policy
                .max_in_flight_per_run
                .and_then(|most| usize::try_from(most).ok())
                .map_or(self.in_flight, |most| most.min(self.in_flight)),
        }
    }
}

/// The buckets.
#[derive(Default)]
pub struct Rates {
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
    /// Count a call, or say when it may come again. What one of the two refuses does not count for the other.
    pub fn take(&self, limits: RateLimits, run_uid: &str, namespace: &str, now: Instant) -> Result<(), TooSoon> {
        let RateLimits { run, namespace: all } = limits;
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

    fn limits(run: u32, namespace: u32) -> RateLimits {
        RateLimits { run: NonZeroU32::new(run), namespace: NonZeroU32::new(namespace) }
    }

    #[test]
    fn a_bucket_empties_and_fills_up_evenly() {
        let (rates, six) = (Rates::default(), limits(6, 0));
        let start = Instant::now();
        let at = |seconds: u64| start + Duration::from_secs(seconds);
        for _ in 0..6 {
            assert_eq!(rates.take(six, "a", "team", at(0)), Ok(()));
        }
        let too_soon =
            |seconds| Err(TooSoon { of: "run", per_minute: NonZeroU32::new(6).unwrap(), retry_after: Duration::from_secs(seconds) });
        assert_eq!(rates.take(six, "a", "team", at(0)), too_soon(10));
        assert_eq!(rates.take(six, "a", "team", at(4)), too_soon(6));
        assert_eq!(rates.take(six, "b", "team", at(4)), Ok(()), "another run has a bucket of its own");
        assert_eq!(rates.take(six, "a", "team", at(10)), Ok(()));
        assert_eq!(rates.take(six, "a", "team", at(10)), too_soon(10));
        for _ in 0..6 {
            assert_eq!(rates.take(six, "a", "team", at(100)), Ok(()), "full again, and no more than full");
        }
        assert_eq!(rates.take(six, "a", "team", at(100)), too_soon(10));
    }

    #[test]
    fn a_namespace_has_one_bucket_and_what_it_refuses_counts_for_no_run() {
        let (rates, limits) = (Rates::default(), limits(2, 3));
        let now = Instant::now();
        let of = |run: &str| rates.take(limits, run, "team", now).map_err(|too_soon| too_soon.of);
        assert_eq!([of("a"), of("a"), of("a")], [Ok(()), Ok(()), Err("run")]);
        assert_eq!([of("b"), of("b")], [Ok(()), Err("namespace")]);
        assert_eq!(rates.take(limits, "c", "other", now), Ok(()));
        let later = now + Duration::from_secs(20);
        assert_eq!(rates.take(limits, "b", "team", later), Ok(()), "the refused call of b was not counted");
    }

    #[test]
    fn without_limits_nothing_is_kept() {
        let rates = Rates::default();
        assert_eq!(rates.take(RateLimits::default(), "a", "team", Instant::now()), Ok(()));
        assert!(rates.buckets.lock().unwrap().is_empty());
    }

    #[test]
    fn the_lower_of_ceiling_and_policy_counts() {
        let ceiling = CallLimits { rates: limits(10, 0), in_flight: 64 };
        let policy = |run, namespace, in_flight| agent_policy::RateLimits {
            requests_per_minute_per_run: run,
            requests_per_minute_per_namespace: namespace,
            max_in_flight_per_run: in_flight,
        };
        for (said, run, namespace, in_flight) in [
            (policy(None, None, None), 10, 0, 64),
            (policy(Some(4), Some(30), Some(2)), 4, 30, 2),
            (policy(Some(400), None, Some(400)), 10, 0, 64),
        ] {
            let CallLimits { rates, in_flight: most } = ceiling.over(&said);
            assert_eq!((rates.run, rates.namespace, most), (NonZeroU32::new(run), NonZeroU32::new(namespace), in_flight), "{said:?}");
        }
    }
}
