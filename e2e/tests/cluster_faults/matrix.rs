//! Each write of operator and gateway meets each fault, and each watch is disturbed in each way.

use std::collections::BTreeSet;
use std::time::Duration;

use agentrun_e2e::fault_proxy::{Fault, FaultProxy, Site, WatchFault};
use anyhow::{Result, ensure};

use super::world::World;

/// How long an idle platform is looked at, and the most writes of one process meanwhile that are not the renewal of its lease.
const IDLE: (Duration, usize) = (Duration::from_secs(12), 2);

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn runs_end_rightly_whatever_the_api_server_does() {
    faulty().await.unwrap();
}

async fn faulty() -> Result<()> {
    let mut world = World::start().await?;
    let proxies = |world: &World| [written(&world.operator_proxy), written(&world.gateway_proxy)];
    world.operator_proxy.inject(None);
    world.gateway_proxy.inject(None);
    world.next_namespace().await?;
    world.trial("without faults").await?;
    let sites = proxies(&world);
    println!("operator writes {}; gateway writes {}", list(&sites[0]), list(&sites[1]));
    ensure!(sites[0].len() >= 8 && sites[1].len() >= 2, "a run has more writes than these");

    for fault in Fault::ALL {
        world.next_namespace().await?;
        world.operator_proxy.inject(Some(fault));
        world.gateway_proxy.inject(Some(fault));
        world.trial(&format!("under {fault:?}")).await?;
        for (proxy, sites) in [&world.operator_proxy, &world.gateway_proxy].into_iter().zip(&sites) {
            let spared: BTreeSet<Site> = sites.difference(&proxy.met()).cloned().collect();
            ensure!(spared.is_empty(), "{fault:?} was not met by {}", list(&spared));
        }
    }
    for fault in WatchFault::ALL {
        world.next_namespace().await?;
        world.operator_proxy.disturb(Some(fault));
        world.gateway_proxy.disturb(Some(fault));
        world.trial(&format!("with watches that are {fault:?}")).await?;
    }
    world.operator_proxy.disturb(None);
    world.gateway_proxy.disturb(None);
    idle(&world).await
}

/// Sites of a run's writes. A lease is renewed when its time has come, which need not be within a trial.
fn written(proxy: &FaultProxy) -> BTreeSet<Site> {
    proxy.seen().into_keys().filter(|site| site.resource != "leases").collect()
}

fn list(sites: &BTreeSet<Site>) -> String {
    sites.iter().map(Site::to_string).collect::<Vec<_>>().join(", ")
}

/// Nobody writes for no reason: each process is counted for a while in which nothing is to be done.
async fn idle(world: &World) -> Result<()> {
    world.operator_proxy.inject(None);
    world.gateway_proxy.inject(None);
    tokio::time::sleep(IDLE.0).await; // what is measured is a rate
    for proxy in [&world.operator_proxy, &world.gateway_proxy] {
        let writes: usize = proxy.seen().iter().filter(|(site, _)| site.resource != "leases").map(|(_, count)| count).sum();
        ensure!(writes <= IDLE.1, "{writes} writes in {:?} in which nothing happens: {:?}", IDLE.0, proxy.seen());
    }
    Ok(())
}
