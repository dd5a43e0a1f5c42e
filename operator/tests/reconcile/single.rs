//! Single situations: refusals, walls, the queue, retention, certificates.

use std::sync::Arc;

use agentrun_operator::agent_run::{self, plan::Again};
use agentrun_operator::pki::{keeper, token_keys};
use serde_json::json;

use crate::stories::happy;
use crate::world::{NS, RUNS, World, context};

#[tokio::test]
async fn an_unchanged_world_is_not_written_to() {
    let world = World::new();
    for step in 0..4 {
        world.settle().await;
        let writes = world.fake.asked();
        world.settle().await;
        assert_eq!(world.fake.asked(), writes, "step {step}");
        match step {
            0 => world.kubelet(),
            1 => world.exchange(),
            _ => world.result("ChecksFailed"),
        }
    }
    world.assert_no_rule_broken();
}

#[tokio::test]
async fn refused_children_end_the_run_with_the_servers_words() {
    // where, code, message -> reason, whether a Pod may come later
    for (path, code, message, expected) in [
        ("/pods", 403, "pods \"x\" is forbidden: violates PodSecurity \"restricted\"", "True PodRejected"),
        ("/pods", 422, "Pod is invalid: spec.runtimeClassName", "True PodRejected"),
        ("/secrets", 403, "secrets is forbidden: exceeded quota: secrets", "True PodRejected"),
        ("/networkpolicies", 403, "denied the request: by some webhook", "True PodRejected"),
        ("/pods", 403, "pods is forbidden: exceeded quota: pods", "False Starting"),
    ] {
        let world = World::new();
        world.fake.with(|state| state.refuse = Some((path.to_owned(), code, message.to_owned())));
        world.settle().await;
        assert_eq!(world.condition("Complete"), expected, "{path} {message}");
        if expected == "True PodRejected" {
            assert!(world.status().to_string().contains(&message[..20].replace('"', "\\\"")), "{}", world.status());
            world.assert_clean();
        } else {
            world.fake.with(|state| state.refuse = None);
            world.settle().await;
            assert_eq!(world.created_pods(), 1, "a quota that frees itself");
        }
    }
    let world = World::new();
    let message = "pods is forbidden: User \"operator\" cannot create resource \"pods\"".to_owned();
    world.fake.with(|state| state.refuse = Some(("/pods".into(), 403, message)));
    let error = agent_run::converge(&context(&world.fake, &world.client), NS, "fix").await.unwrap_err();
    assert_eq!(error.class().label(), "denied", "an installation's fault is not the run's");
    assert_eq!(world.condition("Complete"), "False Starting");
}

#[tokio::test]
async fn somebody_elses_pod_is_left_alone() {
    let world = World::new();
    world.fake.put(&world.pod(), json!({"metadata": {"labels": {"mine": "yes"}}, "spec": {"containers": []}}));
    world.settle().await;
    assert_eq!(world.condition("Complete"), "True PodRejected");
    world.settle().await;
    assert_eq!(world.fake.get(&world.pod()).unwrap()["metadata"]["labels"]["mine"], "yes");
    assert_eq!(world.created_pods(), 0);
}

#[tokio::test]
async fn a_weakened_wall_is_restored_before_the_pod() {
    let world = World::new();
    let deny = "/apis/networking.k8s.io/v1/namespaces/team-a/networkpolicies/agentrun-sandbox-deny";
    world.fake.put(
        deny,
        json!({"spec": {"podSelector": {"matchLabels": {"agentrun.dev/component": "sandbox", "x": "y"}}, "policyTypes": ["Egress"], "egress": [{}]}}),
    );
    world.settle().await;
    let restored = world.fake.get(deny).unwrap();
    let expected = json!({"podSelector": {"matchLabels": {"agentrun.dev/component": "sandbox"}}, "policyTypes": ["Ingress", "Egress"]});
    assert_eq!(restored["spec"], expected);
    assert_eq!(world.created_pods(), 1);
}

#[tokio::test]
async fn the_cap_is_exact_under_a_rush() {
    let world = World::new();
    for n in 0..6 {
        world.submit(&format!("run-{n}"), &format!("uid-run-{n}"), |run| run["spec"]["priority"] = json!(n));
    }
    let ctx = context(&world.fake, &world.client);
    let all = (0..6).map(|n| {
        let ctx = Arc::clone(&ctx);
        tokio::spawn(async move { agent_run::converge(&ctx, NS, &format!("run-{n}")).await.map(|_| ()) })
    });
    for task in all.collect::<Vec<_>>() {
        task.await.unwrap().unwrap();
    }
    let phases = || -> Vec<String> {
        let of = |n: i32| world.fake.get(&format!("{RUNS}/run-{n}")).unwrap()["status"]["phase"].as_str().unwrap().to_owned();
        (0..6).map(of).collect()
    };
    assert_eq!(phases().iter().filter(|phase| *phase == "Starting").count(), 2, "{:?}", phases());
    assert_eq!(phases().iter().filter(|phase| *phase == "Queued").count(), 4);
    // One ends: the most important of those that wait is next, whoever asks first.
    let first = phases().iter().position(|phase| phase == "Starting").unwrap();
    world.fake.change(&format!("{RUNS}/run-{first}"), |run| {
        run["status"]["phase"] = json!("Succeeded");
        run["status"]["budget"]["gate"] = json!("Closed");
    });
    let queued: Vec<usize> = (0..6).filter(|n| phases()[*n] == "Queued").collect();
    for n in &queued {
        agent_run::converge(&ctx, NS, &format!("run-{n}")).await.unwrap();
    }
    assert_eq!(phases()[*queued.last().unwrap()], "Starting", "{:?}", phases());
    assert_eq!(phases().iter().filter(|phase| *phase == "Starting").count(), 2);
}

#[tokio::test]
async fn retention_deletes_the_run() {
    let world = World::new();
    world.fake.change(&world.run, |run| run["spec"]["ttlSecondsAfterFinished"] = json!(60));
    happy(&world).await;
    assert!(matches!(world.settle().await, Again::In(pause) if pause.as_secs() <= 60));
    world.fake.advance(61);
    assert_eq!(world.settle().await, Again::Never);
    assert_eq!(world.fake.get(&world.run), None);
}

#[tokio::test]
async fn a_run_that_does_not_parse_can_still_be_deleted() {
    let world = World::new();
    world.settle().await;
    let now = world.fake.now().to_string();
    world.fake.change(&world.run, |run| {
        run["spec"]["model"] = json!(7);
        run["metadata"]["deletionTimestamp"] = json!(now);
    });
    world.settle().await;
    world.kubelet();
    world.settle().await;
    assert_eq!(world.fake.get(&world.run), None);
    world.assert_clean();
}

#[tokio::test]
async fn policy_and_run_may_come_in_any_order() {
    let path = "/apis/agentrun.dev/v1alpha1/namespaces/team-a/agentpolicies/default";
    let world = World::new();
    let policy = world.fake.get(path).unwrap();
    world.fake.remove(path);
    assert!(matches!(world.settle().await, Again::In(pause) if pause.as_secs() <= 10));
    assert_eq!(world.condition("Accepted"), "Unknown WaitingForPolicy");
    world.fake.advance(9);
    world.fake.put(path, policy);
    world.settle().await;
    assert_eq!(world.status()["phase"], "Starting");

    let world = World::new();
    world.fake.remove(path);
    world.settle().await;
    world.fake.advance(10);
    world.settle().await;
    assert_eq!(world.condition("Complete"), "True PolicyMissing");
}

#[tokio::test]
async fn certificates_and_keys_are_made_once_and_renewed() {
    let world = World::new();
    let secret = |name: &str| format!("/api/v1/namespaces/agentrun-system/secrets/{name}");
    world.fake.remove(&secret("agentrun-gateway-tls"));
    let ctx = context(&world.fake, &world.client);
    keeper::keep(&ctx).await.unwrap();
    token_keys::ensure(&ctx).await.unwrap();
    let serving = world.fake.get(&secret("agentrun-gateway-tls")).unwrap();
    let keys = world.fake.get(&secret("agentrun-token-keys")).unwrap();
    for key in ["tls.crt", "tls.key", "ca.crt"] {
        assert!(serving["data"][key].is_string(), "{key}");
    }
    assert_eq!(keys["data"]["1"].as_str().unwrap().len(), 44, "32 bytes in base64");
    let writes = world.fake.asked();
    keeper::keep(&ctx).await.unwrap();
    token_keys::ensure(&ctx).await.unwrap();
    assert_eq!(world.fake.asked(), writes, "nothing changed, nothing is written");

    world.fake.advance(61 * 86_400);
    keeper::keep(&ctx).await.unwrap();
    let renewed = world.fake.get(&secret("agentrun-gateway-tls")).unwrap();
    assert_ne!(renewed["data"]["tls.crt"], serving["data"]["tls.crt"]);
    assert_eq!(renewed["data"]["ca.crt"], serving["data"]["ca.crt"], "the authority stays");

    world.fake.advance(200 * 86_400);
    keeper::keep(&ctx).await.unwrap();
    let announced = world.fake.get(&secret("agentrun-gateway-tls")).unwrap();
    assert!(
        announced["data"]["ca.crt"].as_str().unwrap().len() > serving["data"]["ca.crt"].as_str().unwrap().len() * 3 / 2,
        "two authorities"
    );
    assert!(world.fake.get(&secret("agentrun-ca")).unwrap()["data"]["previous.key"].is_string());
    world.fake.change(&secret("agentrun-gateway-tls"), |secret| secret["data"] = json!({}));
    keeper::keep(&ctx).await.unwrap();
    assert!(world.fake.get(&secret("agentrun-gateway-tls")).unwrap()["data"]["tls.crt"].is_string(), "a damaged Secret is repaired");
}

#[tokio::test]
async fn children_that_cannot_be_removed_hold_a_run_for_a_while_only() {
    for freed in [true, false] {
        let world = World::new();
        world.settle().await;
        world.kubelet();
        world.exchange();
        world.result("Succeeded");
        world.settle().await;
        world.kubelet();
        world.fake.with(|state| state.forbid = Some("/networkpolicies/".into()));
        let ctx = context(&world.fake, &world.client);
        for _ in 0..3 {
            world.fake.advance(60);
            let error = agent_run::converge(&ctx, NS, "fix").await.unwrap_err();
            assert_eq!(error.class().label(), "denied");
            assert_eq!(world.condition("CleanupFailed"), "True Retrying");
            assert_eq!(world.condition("Complete"), "True Succeeded", "never an outcome");
        }
        if freed {
            world.fake.with(|state| state.forbid = None);
            world.settle().await;
            assert_eq!(world.condition("CleanupFailed"), "-");
            world.assert_clean();
        } else {
            world.fake.advance(200);
            world.settle().await;
            assert_eq!(world.condition("CleanupFailed"), "True Retrying", "it stays as the record");
        }
        assert_eq!(world.fake.get(&world.run).unwrap()["metadata"]["finalizers"], json!([]));
    }
}
