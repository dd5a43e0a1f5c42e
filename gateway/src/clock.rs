//! The clock: wall time comes in from outside, so that tests can choose it. Deadlines use `tokio::time` instead.

use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

/// Wall time.
#[derive(Clone)]
pub struct Clock(Arc<dyn Fn() -> i64 + Send + Sync>);

impl Clock {
    /// The machine's clock.
    pub fn system() -> Self {
        Clock(Arc::new(|| {
            let elapsed = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
            i64::try_from(elapsed.as_millis()).unwrap_or(i64::MAX)
        }))
    }

    /// A clock that tests set: `millis` is called for each reading.
    pub fn from_fn(millis: impl Fn() -> i64 + Send + Sync + 'static) -> Self {
        Clock(Arc::new(millis))
    }

    /// Unix milliseconds.
    pub fn unix_millis(&self) -> i64 {
        (self.0)()
    }

    /// As a point in time.
    pub fn now(&self) -> jiff::Timestamp {
        jiff::Timestamp::from_millisecond(self.unix_millis()).unwrap_or(jiff::Timestamp::UNIX_EPOCH)
    }

    /// Unix seconds.
    pub fn unix_seconds(&self) -> i64 {
        self.unix_millis().div_euclid(1000)
    }

    /// RFC 3339 with milliseconds, UTC.
    pub fn rfc3339_millis(&self) -> String {
        format!("{:.3}", self.now())
    }
}
