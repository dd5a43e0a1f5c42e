//! Tests that load the one API server of this binary run alone; the others run beside each other. A test that mostly waits
//! takes no turn.

use tokio::sync::{RwLock, RwLockReadGuard, RwLockWriteGuard};

static TURN: RwLock<()> = RwLock::const_new(());

/// Nothing else runs until the guard is dropped.
pub async fn alone() -> RwLockWriteGuard<'static, ()> {
    TURN.write().await
}

/// Nothing that must be alone runs until the guard is dropped.
pub async fn beside() -> RwLockReadGuard<'static, ()> {
    TURN.read().await
}
