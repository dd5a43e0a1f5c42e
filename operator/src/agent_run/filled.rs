//! Whether every watch has brought its first list. kube's `Store::wait_until_ready` wakes only whoever asked last, and the
//! controller itself is one who asks, so a second waiter would hang or leave the controller hanging: we count on our own.

use std::sync::Arc;

use kube::runtime::watcher;
use tokio::sync::watch;

/// Cheap to clone.
#[derive(Clone)]
pub struct Filled(Arc<watch::Sender<usize>>);

impl Filled {
    /// Waits for so many watches.
    pub fn new(watches: usize) -> Self {
        Filled(Arc::new(watch::channel(watches).0))
    }

    /// For `inspect` on the events of one watch, behind its store. Its first complete list counts, later ones do not.
    pub fn first_list<K>(&self) -> impl FnMut(&watcher::Result<watcher::Event<K>>) + Send + use<K> {
        let left = Arc::clone(&self.0);
        let mut seen = false;
        move |event| {
            if !seen && matches!(event, Ok(watcher::Event::InitDone)) {
                seen = true;
                left.send_modify(|left| *left = left.saturating_sub(1));
            }
        }
    }

    /// Until all have. Any number may wait.
    pub async fn wait(&self) {
        // The sender lives in self, so this cannot fail.
        let _ = self.0.subscribe().wait_for(|left| *left == 0).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures::FutureExt;
    use k8s_openapi::api::core::v1::Pod;

    #[tokio::test]
    async fn everybody_who_waits_is_woken_by_the_last_first_list() {
        let filled = Filled::new(2);
        let mut waiting: Vec<_> = (0..3).map(|_| filled.clone()).map(|filled| tokio::spawn(async move { filled.wait().await })).collect();
        tokio::task::yield_now().await; // all have asked once
        let done = || Ok(watcher::Event::<Pod>::InitDone);
        let (mut one, mut other) = (filled.first_list::<Pod>(), filled.first_list::<Pod>());
        one(&Ok(watcher::Event::Init));
        one(&done());
        one(&done());
        assert!(filled.wait().now_or_never().is_none(), "one watch has been listed twice, the other never");
        other(&done());
        for waiter in waiting.drain(..) {
            waiter.await.unwrap();
        }
        filled.wait().await;
    }
}
