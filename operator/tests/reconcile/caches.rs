//! What the caches decide, the sweep, and the driver around a reconcile.

use agentrun_crds::names;
use agentrun_operator::agent_run::{self, plan::Again, sweep};
use agentrun_operator::context::{Caches, Guarded};
use agentrun_operator::driver::{DEADLINE, drive};
use kube::runtime::controller::Action;
use kube::runtime::reflector;
use kube::runtime::watcher::Event;
use serde_json::{Value, json};

use crate::world::{NS, World, context};

fn caches(run: Option<&Value>, pod: Option<&Value>) -> Caches {
    caches_with(run, pod, Vec::new())
}

fn caches_with(run: Option<&Value>, pod: Option<&Value>, network_policies_now: Vec<Value>) -> Caches {
    let (runs, mut run_writer) = reflector::store();
    let (pods, mut pod_writer) = reflector::store();
    let (policies, _) = reflector::store();
    if let Some(run) = run {
        run_writer.apply_watcher_event(&Event::Apply(serde_json::from_value(run.clone()).unwrap()));
    }
    if let Some(pod) = pod {
        pod_writer.apply_watcher_event(&Event::Apply(serde_json::from_value(pod.clone()).unwrap()));
    }
    let (network_policies, mut network_policy_writer) = reflector::store();
    for policy in network_policies_now {
        network_policy_writer.apply_watcher_event(&Event::Apply(serde_json::from_value(policy).unwrap()));
    }
    Caches { runs, pods, policies, network_policies }
}

fn guarded(run: &Value) -> Guarded {
    serde_json::from_value(run.clone()).unwrap()
}

#[tokio::test]
async fn old_caches_make_no_second_pod() {
    let world = World::new();
    let ctx = context(&world.fake, &world.client);
    let fresh = world.fake.get(&world.run).unwrap();
    agent_run::converge(&ctx, NS, "fix").await.unwrap();
    let recorded = world.fake.get(&world.run).unwrap();
    // The cache has the run from before its start, then the run but not its Pod.
    for run in [&fresh, &recorded] {
        agent_run::reconcile(&ctx, &caches(Some(run), None), &guarded(run)).await.unwrap();
        assert_eq!(world.created_pods(), 1);
        assert_eq!(world.status()["phase"], "Starting");
    }
    // The Pod came and went, and the cache still has it: the slow look finds out, and nothing is made again.
    world.fake.remove(&world.pod());
    agent_run::reconcile(&ctx, &caches(Some(&fresh), None), &guarded(&fresh)).await.unwrap();
    assert_eq!(world.condition("Complete"), "True SandboxLost");
    assert_eq!(world.created_pods(), 1);
}

#[tokio::test]
async fn where_nothing_is_to_be_done_nothing_is_asked() {
    let world = World::new();
    world.settle().await;
    world.kubelet();
    world.exchange();
    world.settle().await;
    let (run, pod) = (world.fake.get(&world.run).unwrap(), world.fake.get(&world.pod()).unwrap());
    let ctx = context(&world.fake, &world.client);
    let policies = world.network_policies();
    let caches = || caches_with(Some(&run), Some(&pod), policies.clone());
    // A process that has just begun looks once, to know the gateway.
    agent_run::reconcile(&ctx, &caches(), &guarded(&run)).await.unwrap();
    let requests = world.fake.with(|state| state.requests);
    let again = agent_run::reconcile(&ctx, &caches(), &guarded(&run)).await.unwrap();
    assert!(matches!(again, Again::In(_)), "the wall time is waited for: {again:?}");
    assert_eq!(world.fake.with(|state| state.requests), requests);
}

#[tokio::test]
async fn pods_that_no_run_wants_are_swept() {
    // phase and finalizer of the run, whether it is there -> whether its Pod goes
    for (phase, held, exists, swept) in
        [("Running", true, true, false), ("Failed", true, true, false), ("Failed", false, true, true), ("Running", true, false, true)]
    {
        let world = World::new();
        world.settle().await;
        world.fake.change(&world.run, |run| {
            run["status"]["phase"] = json!(phase);
            run["metadata"]["finalizers"] = if held { json!([names::FINALIZER]) } else { json!([]) };
        });
        let (run, pod) = (world.fake.get(&world.run), world.fake.get(&world.pod()));
        if !exists {
            world.fake.remove(&world.run);
        }
        let caches = caches(run.as_ref().filter(|_| exists), pod.as_ref());
        sweep::once(&context(&world.fake, &world.client), &caches).await.unwrap();
        let deleted = !world.fake.get(&world.pod()).unwrap()["metadata"]["deletionTimestamp"].is_null();
        assert_eq!(deleted, swept, "{phase} held {held} exists {exists}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_reconcile_that_hangs_or_panics_is_ended_and_tried_again() {
    let world = World::new();
    let ctx = context(&world.fake, &world.client);
    let run = guarded(&world.fake.get(&world.run).unwrap());
    let begun = tokio::time::Instant::now();
    let action = drive(&ctx, &run, std::future::pending()).await;
    assert_eq!(begun.elapsed(), DEADLINE);
    assert_ne!(action, Action::await_change());
    let action = drive(&ctx, &run, async { panic!("a bug") }).await;
    assert_ne!(action, Action::await_change(), "a panic ends one reconcile only, and it is tried again");
    assert_eq!(drive(&ctx, &run, async { Ok(Again::Never) }).await, Action::await_change());
    let pause = std::time::Duration::from_secs(7);
    assert_eq!(drive(&ctx, &run, async move { Ok(Again::In(pause)) }).await, Action::requeue(pause));
}
