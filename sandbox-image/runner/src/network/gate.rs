//! Before the exchange: look until the gateway is reached and nobody else is, or patience has ended.

use std::{net::SocketAddr, time::Duration};

use agentrun_crds::network_probe::{NetworkProbe, ProbeOutcome};
use tokio::{
    net::TcpStream,
    time::{Instant, sleep, timeout},
};

use super::{Network, Place, probe::try_place};

/// How long the gateway may take to answer.
const GATEWAY_PATIENCE: Duration = Duration::from_secs(1);
/// Silence for so long is silence. Longer than a cluster takes to answer, and short, since each start waits for it.
const SILENCE: Duration = Duration::from_millis(200);
/// Where the gateway is slow to answer, others may be as well: silence is then so many times as long.
const TIMES_THE_GATEWAYS: u32 = 4;
/// Between two looks.
const PAUSE: Duration = Duration::from_millis(200);

/// The last look: each place with its outcome.
pub async fn hold(network: &Network, gateway: SocketAddr) -> Vec<NetworkProbe> {
    let until = Instant::now() + network.patience;
    loop {
        let (probes, held) = look(network, gateway).await;
        if held || Instant::now() >= until {
            return probes;
        }
        sleep(PAUSE).await;
    }
}

/// All places at once, and whether the fence holds. A look in which the gateway was not reached shows nothing.
async fn look(network: &Network, gateway: SocketAddr) -> (Vec<NetworkProbe>, bool) {
    let asked = Instant::now();
    let reached = matches!(timeout(GATEWAY_PATIENCE, TcpStream::connect(gateway)).await, Ok(Ok(_)));
    let silence = SILENCE.max(asked.elapsed() * TIMES_THE_GATEWAYS);
    let outcomes = outcomes(network.fenced.iter().chain(&network.observed), silence).await;
    let probes = outcomes.into_iter().map(|(place, outcome)| NetworkProbe {
        target: place.target,
        outcome: if reached || outcome == ProbeOutcome::Reached { outcome } else { ProbeOutcome::Unknown },
    });
    let probes: Vec<NetworkProbe> = probes.collect();
    let held = probes[..network.fenced.len()].iter().all(|probe| probe.outcome == ProbeOutcome::Held);
    (probes, held)
}

/// Try places at once, in their order.
pub(super) async fn outcomes<'p>(places: impl Iterator<Item = &'p Place>, patience: Duration) -> Vec<(&'p Place, ProbeOutcome)> {
    futures::future::join_all(places.map(async |place| (place, try_place(place, patience).await))).await
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::network::testing::{Listener, place};

    fn network(fenced: Vec<Place>, observed: Vec<Place>, patience: Duration) -> Network {
        Network { fenced, observed, patience, period: Network::PERIOD }
    }

    async fn outcomes(network: &Network, gateway: SocketAddr) -> Vec<ProbeOutcome> {
        hold(network, gateway).await.iter().map(|probe| probe.outcome).collect()
    }

    #[tokio::test]
    async fn a_fence_that_is_late_is_waited_for() {
        let (gateway, late) = (Listener::new(16), Listener::of_one());
        let network = network(vec![place(late.address)], vec![], Duration::from_secs(30));
        assert_eq!(outcomes(&network, gateway.address).await, [ProbeOutcome::Held]);
    }

    #[tokio::test]
    async fn a_fence_that_never_comes_is_reported_once_patience_has_ended() {
        let (gateway, open) = (Listener::new(16), Listener::new(1024));
        let network = network(vec![place(open.address)], vec![], Duration::from_millis(500));
        let begun = Instant::now();
        assert_eq!(outcomes(&network, gateway.address).await, [ProbeOutcome::Reached]);
        assert!(begun.elapsed() >= Duration::from_millis(500));
    }

    #[tokio::test]
    async fn what_may_be_reached_is_not_waited_for() {
        let (gateway, open) = (Listener::new(16), Listener::new(1024));
        let network = network(vec![], vec![place(open.address)], Duration::from_secs(3600));
        assert_eq!(outcomes(&network, gateway.address).await, [ProbeOutcome::Reached]);
    }

    #[tokio::test]
    async fn silence_shows_nothing_while_the_gateway_is_silent_too() {
        let (gateway, silent) = (Listener::of_one(), Listener::of_one());
        let (_one, _other) = (gateway.take(), silent.take());
        let network = network(vec![place(silent.address)], vec![], Duration::ZERO);
        assert_eq!(outcomes(&network, gateway.address).await, [ProbeOutcome::Unknown]);
    }
}
