//! Tells followers of a log that it has grown.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use tokio::sync::watch;

/// Runs that somebody follows. Cheap to clone.
#[derive(Clone, Default)]
pub struct Wakes(Arc<Mutex<HashMap<String, watch::Sender<u64>>>>);

impl Wakes {
    pub fn subscribe(&self, run_uid: &str) -> watch::Receiver<u64> {
        let mut senders = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        senders.retain(|_, sender| sender.receiver_count() > 0);
        senders.entry(run_uid.to_owned()).or_insert_with(|| watch::channel(0).0).subscribe()
    }

    /// The runs that are followed now.
    pub fn followed(&self) -> Vec<String> {
        let senders = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        senders.iter().filter(|(_, sender)| sender.receiver_count() > 0).map(|(uid, _)| uid.clone()).collect()
    }

    pub fn wake(&self, run_uid: &str) {
        let senders = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(sender) = senders.get(run_uid) {
            sender.send_modify(|version| *version = version.wrapping_add(1));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn followers_wake_and_leave_nothing_behind() {
        let wakes = Wakes::default();
        let (mut a, b) = (wakes.subscribe("a"), wakes.subscribe("b"));
        wakes.wake("a");
        a.changed().await.expect("woken");
        assert!(!b.has_changed().expect("open"), "another run's follower sleeps on");
        assert_eq!(wakes.followed().len(), 2);
        drop((a, b));
        assert!(wakes.followed().is_empty());
        let _other = wakes.subscribe("c");
        assert_eq!(wakes.0.lock().expect("not poisoned").len(), 1);
    }
}
