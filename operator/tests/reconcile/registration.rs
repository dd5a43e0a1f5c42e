//! The APIService comes with a ready gateway, goes 30 s after the last one, and follows the authority.

use agentrun_operator::aggregated::keeper::Keeper;
use serde_json::{Value, json};

use crate::fake_api::Failure;
use crate::world::{World, context};

const REGISTERED: &str = "/apis/apiregistration.k8s.io/v1/apiservices/v1alpha1.run.agentrun.dev";
const SYSTEM: &str = "/api/v1/namespaces/agentrun-system";
const SLICE: &str = "/apis/discovery.k8s.io/v1/namespaces/agentrun-system/endpointslices/agentrun-gateway-x";
const ROLE: &str = "/apis/rbac.authorization.k8s.io/v1/clusterroles/agentrun-operator";

fn endpoint(ready: bool) -> Value {
    let endpoint = json!({"addresses": ["10.0.0.9"], "conditions": {"ready": ready}});
    json!({"addressType": "IPv4", "ports": [{"name": "aggregated", "port": 7443}], "endpoints": [endpoint]})
}

fn platform() -> World {
    let world = World::new();
    let port = json!({"name": "aggregated", "port": 7443});
    world.fake.change(&format!("{SYSTEM}/services/agentrun-gateway"), |service| service["spec"]["ports"] = json!([port]));
    world.fake.put(ROLE, json!({"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRole"}));
    world.fake.put(SLICE, endpoint(false));
    world
}

#[tokio::test]
async fn it_stands_while_a_gateway_is_ready() {
    let world = platform();
    let ctx = context(&world.fake, &world.client);
    let mut keeper = Keeper::default();
    let mut look = async |seconds: i64| {
        world.fake.advance(seconds);
        keeper.keep(&ctx).await.unwrap();
        world.fake.get(REGISTERED)
    };
    assert_eq!(look(0).await, None, "no gateway is ready yet");
    world.fake.put(SLICE, endpoint(true));
    let registered = look(3).await.expect("registered");
    let spec = &registered["spec"];
    assert_eq!(spec["service"], json!({"namespace": "agentrun-system", "name": "agentrun-gateway", "port": 7443}));
    assert_eq!((&spec["caBundle"], &spec["insecureSkipTLSVerify"]), (&json!("UEVN"), &Value::Null));
    assert_eq!(registered["metadata"]["ownerReferences"][0]["uid"], world.fake.get(ROLE).unwrap()["metadata"]["uid"]);
    assert_eq!(registered["metadata"]["labels"]["app.kubernetes.io/managed-by"], "agentrun-operator");
    let writes = world.fake.asked();
    look(3).await;
    assert_eq!(world.fake.asked(), writes, "nothing changed, nothing is written");

    world.fake.change(&format!("{SYSTEM}/secrets/agentrun-gateway-tls"), |secret| secret["data"]["ca.crt"] = json!("UEVNIFBFTQ=="));
    assert_eq!(look(3).await.expect("stands")["spec"]["caBundle"], "UEVNIFBFTQ==", "another authority");

    world.fake.put(SLICE, endpoint(false));
    assert!(look(3).await.is_some());
    assert!(look(29).await.is_some(), "a restart takes less");
    world.fake.put(SLICE, endpoint(true));
    assert!(look(3).await.is_some());
    world.fake.put(SLICE, endpoint(false));
    assert!(look(3).await.is_some(), "the time is counted anew");
    assert_eq!(look(30).await, None, "withdrawn");
    assert_eq!(look(30).await, None);
    world.fake.put(SLICE, endpoint(true));
    assert!(look(3).await.is_some(), "and back");
    world.assert_no_rule_broken();
}

/// A new leader finds a registration and no gateway: it, too, gives the gateway its time and no more. A write that fails is tried
/// again.
#[tokio::test]
async fn a_new_process_withdraws_what_an_old_one_registered() {
    for failure in [None, Some(Failure::Before), Some(Failure::After), Some(Failure::Conflict)] {
        let world = platform();
        let ctx = context(&world.fake, &world.client);
        world.fake.put(SLICE, endpoint(true));
        Keeper::default().keep(&ctx).await.unwrap();
        world.fake.put(SLICE, endpoint(false));
        let mut successor = Keeper::default();
        successor.keep(&ctx).await.unwrap();
        assert!(world.fake.get(REGISTERED).is_some());
        world.fake.advance(30);
        let writes = world.fake.asked();
        world.fake.with(|state| state.fail = failure.map(|failure| (writes + 1, failure)));
        let first = successor.keep(&ctx).await;
        assert_eq!(first.is_err(), matches!(failure, Some(Failure::Before | Failure::After)));
        successor.keep(&ctx).await.unwrap();
        assert_eq!(world.fake.get(REGISTERED), None, "{failure:?}");
    }
}

/// Without the role of our release nothing would remove it after us; and what somebody else registered is theirs.
#[tokio::test]
async fn it_is_not_registered_for_ever_and_not_taken_from_somebody() {
    let world = platform();
    let ctx = context(&world.fake, &world.client);
    world.fake.put(SLICE, endpoint(true));
    world.fake.remove(ROLE);
    Keeper::default().keep(&ctx).await.unwrap();
    assert_eq!(world.fake.get(REGISTERED), None);
    world.fake.put(REGISTERED, json!({"spec": {"groupPriorityMinimum": 1, "versionPriority": 1}}));
    let theirs = world.fake.get(REGISTERED);
    world.fake.put(SLICE, endpoint(false));
    let mut keeper = Keeper::default();
    for _ in 0..2 {
        keeper.keep(&ctx).await.unwrap();
        world.fake.advance(60);
    }
    assert_eq!(world.fake.get(REGISTERED), theirs);
}
