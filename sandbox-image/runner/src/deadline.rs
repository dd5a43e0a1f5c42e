//! The run's deadline, and how much of it is kept for telling what came of it.

use std::{sync::Arc, time::Duration};

use tokio::{sync::watch, time::Instant};

const LEAST_RESERVE: Duration = Duration::from_secs(3);
const MOST_RESERVE: Duration = Duration::from_secs(20);

/// When to stop working and when all must be over. It moves while people are waited for, as far as the gateway says, for
/// everybody who holds it.
#[derive(Clone, Debug)]
pub struct Deadline(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    start: Instant,
    /// Unix seconds.
    started_at: i64,
    reserve: Duration,
    end: watch::Sender<Instant>,
}

impl Deadline {
    /// `deadline` and `now` in Unix seconds.
    pub fn new(deadline: i64, now: i64) -> Self {
        let start = Instant::now();
        let left = span(deadline, now);
        let reserve = (left / 10).clamp(LEAST_RESERVE, MOST_RESERVE);
        Deadline(Arc::new(Shared { start, started_at: now, reserve, end: watch::Sender::new(start + left) }))
    }

    /// The operator ends the run here.
    pub fn end(&self) -> Instant {
        *self.0.end.borrow()
    }

    /// The agent and the checks stop here, a tenth of the time before, so that the result can still be delivered.
    pub fn work_until(&self) -> Instant {
        // Not before the start: an instant has no other zero.
        self.end().checked_sub(self.0.reserve).map_or(self.0.start, |until| until.max(self.0.start))
    }

    /// Time left for work.
    pub fn left(&self) -> Duration {
        self.work_until().saturating_duration_since(Instant::now())
    }

    /// The gateway's word, Unix seconds. A deadline only moves away.
    pub fn moved_to(&self, deadline: i64) {
        let end = self.0.start + span(deadline, self.0.started_at);
        self.0.end.send_if_modified(|current| {
            let moves = end > *current;
            *current = end.max(*current);
            moves
        });
    }

    /// Until no time is left for work, however often that moves meanwhile.
    pub async fn passed(&self) {
        let mut moved = self.0.end.subscribe();
        while !self.left().is_zero() {
            tokio::select! {
                () = tokio::time::sleep_until(self.work_until()) => {}
                // The sender is ours, so this is no error.
                _ = moved.changed() => {}
            }
        }
    }
}

/// A far deadline must not overflow the clock.
fn span(deadline: i64, from: i64) -> Duration {
    Duration::from_secs(u64::try_from(deadline.saturating_sub(from)).unwrap_or_default()).min(Duration::from_secs(366 * 24 * 3600))
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

    #[tokio::test(start_paused = true)]
    async fn a_deadline_moves_away_for_all_who_hold_it() {
        let deadline = Deadline::new(1_100, 1_000);
        let held = deadline.clone();
        let begun = Instant::now();
        let waiting = tokio::spawn(async move {
            held.passed().await;
            begun.elapsed()
        });
        tokio::time::sleep(Duration::from_secs(80)).await;
        deadline.moved_to(1_150);
        deadline.moved_to(1_050);
        assert_eq!((deadline.left(), deadline.end() - begun), (Duration::from_secs(60), Duration::from_secs(150)));
        assert_eq!(waiting.await.unwrap().as_secs(), 140);
    }
}
