//! Waits at start for a server that is not there yet, and says so now and then.

use std::time::Duration;

const BETWEEN: Duration = Duration::from_secs(1);
const SAY_EVERY: u32 = 15;

/// For what is waited, in words.
pub struct Waiting {
    what: String,
    tries: u32,
}

impl Waiting {
    pub fn for_the(what: impl Into<String>) -> Self {
        Waiting { what: what.into(), tries: 0 }
    }

    /// A try failed; returns when it is time for the next one.
    pub async fn again(&mut self, why: &str) {
        if self.tries.is_multiple_of(SAY_EVERY) {
            tracing::warn!(why, "waiting for the {}", self.what);
        }
        self.tries = self.tries.saturating_add(1);
        tokio::time::sleep(BETWEEN).await;
    }
}
