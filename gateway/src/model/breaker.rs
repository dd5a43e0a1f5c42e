//! Stops asking a provider that keeps failing: after some failures in a row it is left alone for a while, then one call tries it.
//! Knows neither HTTP nor clocks; `now` comes in.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::time::Instant;

/// So many failures in a row open it.
const FAILURES: u32 = 5;
const FIRST_PAUSE: Duration = Duration::from_secs(5);
const LONGEST_PAUSE: Duration = Duration::from_secs(60);

/// See the module.
#[derive(Default)]
pub struct Breaker(Mutex<State>);

#[derive(Default)]
struct State {
    failures: u32,
    open: Option<Open>,
}

#[derive(Clone, Copy)]
struct Open {
    /// Until when nobody may ask.
    until: Instant,
    /// The next pause.
    pause: Duration,
    /// One call tries it.
    trial: bool,
}

impl Breaker {
    /// How long nobody may ask; `None` if a call may go. The first after a pause is a trial, and holds the others off for another.
    pub fn wait(&self, now: Instant) -> Option<Duration> {
        let mut state = self.lock();
        let Open { until, pause, .. } = state.open?;
        if now < until {
            return Some(until - now);
        }
        state.open = Some(Open { until: now + pause, pause, trial: true });
        None
    }

    /// It answered, be it with a refusal.
    pub fn answered(&self) {
        *self.lock() = State::default();
    }

    /// It could not be reached, broke off, or failed. Returns whether that opened it.
    pub fn failed(&self, now: Instant) -> bool {
        let mut state = self.lock();
        state.failures = state.failures.saturating_add(1);
        let (pause, opens) = match state.open {
            Some(Open { pause, trial: true, .. }) => (pause, true),
            // Calls that were under way when it opened say nothing new.
            Some(_) => (FIRST_PAUSE, false),
            None => (FIRST_PAUSE, state.failures >= FAILURES),
        };
        if opens {
            state.open = Some(Open { until: now + pause, pause: (pause * 2).min(LONGEST_PAUSE), trial: false });
        }
        opens
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_opens_after_failures_in_a_row_and_lets_one_call_try_after_each_pause() {
        let breaker = Breaker::default();
        let start = Instant::now();
        let at = |seconds: u64| start + Duration::from_secs(seconds);
        for _ in 0..4 {
            breaker.failed(start);
        }
        breaker.answered();
        for _ in 0..4 {
            breaker.failed(start);
            assert_eq!(breaker.wait(start), None, "fewer than five in a row");
        }
        breaker.failed(start);
        assert_eq!(breaker.wait(at(1)), Some(Duration::from_secs(4)));
        breaker.failed(at(4));
        assert_eq!(breaker.wait(at(5)), None, "the trial");
        assert_eq!(breaker.wait(at(5)), Some(Duration::from_secs(10)), "and only one");
        breaker.failed(at(6));
        assert_eq!(breaker.wait(at(7)), Some(Duration::from_secs(9)));
        assert_eq!(breaker.wait(at(16)), None, "a trial that nobody hears of again holds up nobody for ever");
        assert_eq!(breaker.wait(at(36)), None);
        breaker.answered();
        assert_eq!(breaker.wait(at(36)), None);
        breaker.failed(at(36));
        assert_eq!(breaker.wait(at(36)), None, "it counts anew");
    }

    #[test]
    fn no_pause_is_longer_than_a_minute() {
        let breaker = Breaker::default();
        let mut now = Instant::now();
        for _ in 0..40 {
            breaker.failed(now);
            if let Some(wait) = breaker.wait(now) {
                assert!(wait <= LONGEST_PAUSE, "{wait:?}");
                now += wait;
            }
        }
    }
}
