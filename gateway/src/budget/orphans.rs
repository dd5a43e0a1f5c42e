//! Reservations whose holder no longer answers for them are charged in full: those of an earlier life of this process at
//! once, others when they are older than any call may be. Several gateways that find the same charge it once, since what is not
//! in status any more is not charged.

use std::sync::Arc;
use std::time::Duration;

use agentrun_crds::budget::Reservation;

use super::{Account, Accounts, Ledger};
use crate::clock::Clock;

const SWEEP_EVERY: Duration = Duration::from_secs(20);
/// Time for the write that settles a call that ended.
const MARGIN_SECONDS: i64 = 120;

/// The sweep.
pub struct Orphans {
    pub ledger: Arc<dyn Ledger>,
    pub accounts: Accounts,
    pub clock: Clock,
    /// Longest total time of a call to any provider, in seconds.
    pub longest_call: Box<dyn Fn() -> i64 + Send + Sync>,
}

impl Orphans {
    /// Sweep now and then, for ever.
    pub async fn run(self) {
        self.accounts.wait_synced().await;
        loop {
            self.sweep();
            tokio::time::sleep(SWEEP_EVERY).await;
        }
    }

    fn sweep(&self) {
        let now = self.clock.unix_seconds();
        for account in self.accounts.snapshot(self.clock.now()) {
            let ids = self.orphans_of(&account, now);
            if !ids.is_empty() {
                tracing::warn!(account = account.name(), count = ids.len(), "reservations without a holder are charged in full");
                self.ledger.charge_in_full(account, ids);
            }
        }
    }

    fn orphans_of(&self, account: &Account, now: i64) -> Vec<String> {
        let live = |id: &str| self.ledger.is_live(id);
        let orphan = |r: &&Reservation| is_orphan(r, self.ledger.holder(), &live, (self.longest_call)(), now);
        account.reservations().iter().filter(orphan).map(|r| r.id.clone()).collect()
    }
}

fn is_orphan(reservation: &Reservation, holder: &str, live: &dyn Fn(&str) -> bool, longest: i64, now: i64) -> bool {
    let instance = |holder: &str| holder.rsplit_once('/').map(|(instance, _)| instance.to_owned());
    if reservation.holder == holder {
        // Ours: orphaned if we forgot it. The margin covers what the watch brought before we settled.
        return !live(&reservation.id) && now - reservation.since > MARGIN_SECONDS;
    }
    if live(&reservation.id) {
        return false; // recovered from an earlier life
    }
    // A slice is written anew, or goes back, within seconds: its holder is dead or cut off, and what is cut off grants nothing.
    let patience = if reservation.slice || reservation.is_request() { 0 } else { longest };
    instance(&reservation.holder) == instance(holder) || now - reservation.since > patience + MARGIN_SECONDS
}

#[cfg(test)]
mod tests {
    use agentrun_crds::budget::Amount;

    use super::*;

    #[test]
    fn the_dead_are_told_from_the_living() {
        let call = Amount { requests: 1, ..Amount::default() };
        for (name, holder, id, amount, slice, age, expected) in [
            ("an earlier life of ours", "gw-0/old", "a", call, false, 0, true),
            ("an earlier life of ours, recovered", "gw-0/old", "live", call, true, 9999, false),
            ("ours and live", "gw-0/now", "live", call, false, 9999, false),
            ("ours, settled a moment ago", "gw-0/now", "a", call, false, 5, false),
            ("ours, forgotten", "gw-0/now", "a", call, false, 121, true),
            ("another's, young", "gw-1/x", "a", call, false, 600, false),
            ("another's, older than any call", "gw-1/x", "a", call, false, 721, true),
            ("another's slice, young", "gw-1/x", "a", call, true, 119, false),
            ("another's slice, not written anew", "gw-1/x", "a", call, true, 121, true),
            ("another's request that nobody waits for", "gw-1/x", "a", Amount::default(), false, 121, true),
        ] {
            let reservation = Reservation { id: id.into(), holder: holder.into(), amount, slice, since: 10_000 };
            assert_eq!(is_orphan(&reservation, "gw-0/now", &|id| id == "live", 600, 10_000 + age), expected, "{name}");
        }
    }
}
