//! Operator and gateway are killed right after each of their writes of one run, before they learn that it was done.

use anyhow::{Result, ensure};

use super::world::World;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn runs_end_rightly_whenever_the_operator_dies() {
    let tried = crashes(|world, number| world.operator_proxy.crash_after(number, world.operator.killer()), |world| &world.operator_proxy);
    println!("the operator died after each of {} writes", tried.await.unwrap());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn runs_end_rightly_whenever_the_gateway_dies() {
    let tried = crashes(|world, number| world.gateway_proxy.crash_after(number, world.gateway.killer()), |world| &world.gateway_proxy);
    println!("the gateway died after each of {} writes", tried.await.unwrap());
}

/// Crash after the first write, the second, … until a whole run has fewer; how many crashes that were.
async fn crashes(arm: impl Fn(&World, usize), proxy: impl Fn(&World) -> &agentrun_e2e::fault_proxy::FaultProxy) -> Result<usize> {
    let mut world = World::start().await?;
    for number in 1.. {
        world.next_namespace().await?;
        arm(&world, number);
        world.trial(&format!("with a crash after write {number}")).await?;
        if !proxy(&world).has_crashed() {
            ensure!(number > 3, "a run has more writes than {}", number - 1);
            return Ok(number - 1);
        }
        world.ready().await?;
    }
    unreachable!("a run has no end of writes")
}
