//! While the run goes on: look again and again, and end it when somebody is reached who must not be.

use std::time::Duration;

use agentrun_crds::{conditions::Reason, network_probe::ProbeOutcome};
use tokio::time::sleep;

use super::{Network, Place, gate::outcomes};
use crate::termination::Failed;

/// No start waits for these looks, so a lost packet may be sent again.
const SILENCE: Duration = Duration::from_millis(1_500);
/// Before somebody who was reached is tried once more.
const CONFIRM: Duration = Duration::from_secs(1);

/// Resolves when the same place was reached twice in a row.
pub async fn watch(network: &Network) -> Failed {
    loop {
        sleep(network.period).await;
        let reached = reached_twice(&network.fenced).await;
        if !reached.is_empty() {
            return open(&reached);
        }
    }
}

async fn reached_twice(places: &[Place]) -> Vec<Place> {
    let once = reached(places).await;
    if once.is_empty() {
        return once;
    }
    sleep(CONFIRM).await;
    reached(&once).await
}

async fn reached(places: &[Place]) -> Vec<Place> {
    let outcomes = outcomes(places.iter(), SILENCE).await;
    outcomes.into_iter().filter(|(_, outcome)| *outcome == ProbeOutcome::Reached).map(|(place, _)| *place).collect()
}

fn open(places: &[Place]) -> Failed {
    let places: Vec<String> = places.iter().map(ToString::to_string).collect();
    let message = format!(
        "the sandbox reached {} while it ran: NetworkPolicy did no longer hold, so it was ended; look at the network plugin and at \
         the NetworkPolicies of the namespace",
        places.join(", ")
    );
    Failed::new(Reason::NetworkNotEnforced, message)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::network::testing::{Listener, place};

    #[tokio::test]
    async fn only_who_is_reached_twice_in_a_row_counts() {
        let (open, once) = (Listener::new(1024), Listener::of_one());
        let places = [place(open.address), place(once.address)];
        assert_eq!(reached_twice(&places).await, [places[0]]);
        assert_eq!(reached_twice(&places[1..]).await, []);
    }

    #[tokio::test]
    async fn the_end_names_who_was_reached() {
        let open = Listener::new(1024);
        let network =
            Network { fenced: vec![place(open.address)], observed: vec![], patience: Duration::ZERO, period: Duration::from_millis(1) };
        let failed = watch(&network).await;
        assert_eq!(failed.reason, Reason::NetworkNotEnforced);
        assert!(failed.message.contains(&format!("another Pod ({})", open.address)), "{}", failed.message);
    }
}
