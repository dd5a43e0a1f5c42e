//! The run's deadline, and how much of it is kept for telling what came of it.

use std::time::Duration;

use tokio::time::Instant;

const LEAST_RESERVE: Duration = Duration::from_secs(3);
const MOST_RESERVE: Duration = Duration::from_secs(20);

/// When to stop working and when all must be over.
#[derive(Clone, Copy, Debug)]
pub struct Deadline {
    /// The operator ends the run here.
    pub end: Instant,
    /// The agent and the checks stop here, a tenth of the time before, so that the result can still be delivered.
    pub work_until: Instant,
}

impl Deadline {
    /// `deadline` and `now` in Unix seconds.
    pub fn new(deadline: i64, now: i64) -> Self {
        let left = Duration::from_secs(u64::try_from(deadline.saturating_sub(now)).unwrap_or_default());
        let reserve = (left / 10).clamp(LEAST_RESERVE, MOST_RESERVE);
        let start = Instant::now();
        // A far deadline must not overflow the clock.
        let left = left.min(Duration::from_secs(366 * 24 * 3600));
        Deadline { end: start + left, work_until: start + left.saturating_sub(reserve) }
    }

    /// Time left for work.
    pub fn left(&self) -> Duration {
        self.work_until.saturating_duration_since(Instant::now())
    }
}

/// Unix seconds.
pub fn unix_now() -> i64 {
    jiff::Timestamp::now().as_second()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_tenth_is_reserved_within_bounds() {
        for (seconds, work) in [(180, 162), (10, 7), (2, 0), (0, 0), (-5, 0), (3600, 3580), (i64::MAX, 366 * 24 * 3600 - 20)] {
            assert_eq!(Deadline::new(seconds, 0).left(), Duration::from_secs(work), "{seconds}");
        }
        assert_eq!(Deadline::new(i64::MIN, i64::MAX).left(), Duration::ZERO);
    }
}
