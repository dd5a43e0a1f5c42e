//! What becomes of the NetworkPolicies around a sandbox while it works.

use agentrun_operator::agent_run;
use serde_json::json;

use crate::world::{NS, World, context};

const POLICIES: &str = "/apis/networking.k8s.io/v1/namespaces/team-a/networkpolicies";

async fn working() -> World {
    let world = World::new();
    world.settle().await;
    world.kubelet();
    world.exchange();
    world.settle().await;
    assert_eq!(world.status()["phase"], "Running");
    world
}

#[tokio::test]
async fn a_policy_that_was_deleted_or_changed_is_put_back() {
    let world = working().await;
    let own = format!("{POLICIES}/{}", world.name);
    let deny = format!("{POLICIES}/agentrun-sandbox-deny");
    for path in [&own, &deny] {
        let before = world.fake.get(path).unwrap()["spec"].clone();
        world.fake.remove(path);
        world.settle().await;
        assert_eq!(world.fake.get(path).unwrap()["spec"], before, "{path} was deleted");
        world.fake.change(path, |policy| policy["spec"]["egress"] = json!([{}]));
        world.settle().await;
        assert_eq!(world.fake.get(path).unwrap()["spec"]["egress"], before["egress"], "{path} was changed");
    }
    assert_eq!(world.status()["phase"], "Running", "the run goes on");
    let writes = world.fake.asked();
    world.settle().await;
    assert_eq!(world.fake.asked(), writes);
    world.assert_no_rule_broken();
}

#[tokio::test]
async fn somebodys_open_policy_ends_the_run_and_is_left_alone() {
    for early in [true, false] {
        let world = if early { World::new() } else { working().await };
        let path = format!("{POLICIES}/allow-all");
        world.fake.put(&path, json!({"spec": {"podSelector": {}, "policyTypes": ["Egress"], "egress": [{}]}}));
        world.settle().await;
        assert_eq!(world.condition("Complete"), "True NetworkNotEnforced");
        assert_eq!(world.condition("NetworkEnforced"), "False NetworkNotEnforced");
        assert_eq!(world.status()["budget"]["gate"], "Closed");
        assert_eq!(world.created_pods(), usize::from(!early));
        let told = world.fake.with(|state| state.done.iter().filter(|write| write.ends_with("/events")).count());
        assert!(told > 0, "an Event says so");
        assert!(world.fake.get(&path).is_some());
        world.assert_no_rule_broken();
    }
}

#[tokio::test]
async fn a_policy_may_accept_it_and_then_status_says_who_opened_it() {
    let world = World::new();
    let agent_policy = "/apis/agentrun.dev/v1alpha1/namespaces/team-a/agentpolicies/default";
    world.fake.change(agent_policy, |policy| policy["spec"]["sandbox"] = json!({"networkEnforcement": "NotRequired"}));
    world.fake.put(&format!("{POLICIES}/allow-all"), json!({"spec": {"podSelector": {}, "policyTypes": ["Egress"], "egress": [{}]}}));
    let ctx = context(&world.fake, &world.client);
    agent_run::converge(&ctx, NS, "fix").await.unwrap();
    world.kubelet();
    world.exchange();
    agent_run::converge(&ctx, NS, "fix").await.unwrap();
    assert_eq!(world.status()["phase"], "Running");
    assert_eq!(world.condition("NetworkEnforced"), "False Opened");
    world.fake.remove(&format!("{POLICIES}/allow-all"));
    agent_run::converge(&ctx, NS, "fix").await.unwrap();
    assert_eq!(world.condition("NetworkEnforced"), "Unknown NotTried");
}
