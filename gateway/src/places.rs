//! Places for work that takes much of the machine: so many for one key, so many in all. Who waits for a place of its key holds none
//! of the others'.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError, Weak};

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// Cheap to clone.
#[derive(Clone)]
pub struct Places {
    of_one: usize,
    of_all: Arc<Semaphore>,
    by_key: Arc<Mutex<HashMap<String, Weak<Semaphore>>>>,
}

/// A place that is held. Dropping it gives it back.
#[derive(Debug)]
pub struct Place {
    _of_one: OwnedSemaphorePermit,
    _of_all: OwnedSemaphorePermit,
}

impl Places {
    pub fn new(of_one: usize, of_all: usize) -> Self {
        Places { of_one, of_all: Arc::new(Semaphore::new(of_all)), by_key: Arc::default() }
    }

    /// Wait for a place.
    pub async fn enter(&self, key: &str) -> Place {
        loop {
            // Neither is ever closed.
            let Ok(of_one) = self.of(key).acquire_owned().await else { continue };
            let Ok(of_all) = self.of_all.clone().acquire_owned().await else { continue };
            return Place { _of_one: of_one, _of_all: of_all };
        }
    }

    fn of(&self, key: &str) -> Arc<Semaphore> {
        let mut by_key = self.by_key.lock().unwrap_or_else(PoisonError::into_inner);
        by_key.retain(|_, places| places.strong_count() > 0);
        if let Some(places) = by_key.get(key).and_then(Weak::upgrade) {
            return places;
        }
        let places = Arc::new(Semaphore::new(self.of_one));
        by_key.insert(key.to_owned(), Arc::downgrade(&places));
        places
    }
}

#[cfg(test)]
mod tests {
    use futures::FutureExt;

    use super::*;

    #[test]
    fn one_key_cannot_take_all_places_nor_keep_them() {
        let places = Places::new(2, 3);
        let at_once = |key: &str| places.enter(key).now_or_never();
        let (first, second) = (at_once("a").expect("a place"), at_once("a").expect("a place"));
        assert!(at_once("a").is_none(), "a has its two");
        let third = at_once("b").expect("a place of b");
        assert!(at_once("c").is_none(), "all are taken");
        drop(first);
        let fourth = at_once("c").expect("the place that a gave back");
        assert!(at_once("a").is_none());
        drop((second, third, fourth));
        assert!(at_once("d").is_some());
        assert_eq!(places.by_key.lock().expect("no panic").len(), 1, "keys that hold nothing are forgotten");
    }
}
