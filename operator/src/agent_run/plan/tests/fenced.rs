//! The NetworkPolicies around a sandbox that is there.

use super::*;

fn line_of(run: &AgentRun, fence: Fence, refused: Option<&str>) -> String {
    let facts = Facts::Started { pod: pod(up()), fence, making: None };
    line(&plan(run, &facts, refused, at(20)))
}

#[test]
fn ours_are_put_back_and_others_end_the_run() {
    let working = || recorded(exchanged);
    let with = |change: fn(&mut Fence)| {
        let mut fence = fence();
        change(&mut fence);
        fence
    };
    let denial = json!({"podSelector": {}, "policyTypes": ["Ingress", "Egress"]});
    let of_others = json!({"podSelector": {"matchLabels": {"app": "shop"}}, "egress": [{}]});
    let rows = [
        ("all as it should be", working(), fence(), "DeleteTicket Running/Running"),
        ("the run's own is gone", working(), with(|f| drop(f.policies.pop())), "CreatePolicy"),
        ("the namespace's is gone", working(), with(|f| drop(f.policies.remove(0))), "CreatePolicy"),
        ("the run's own was changed", working(), with(|f| f.policies[1].spec.as_mut().unwrap().egress = None), "RestorePolicy"),
        ("the namespace's was changed", working(), with(|f| f.policies[0].spec.as_mut().unwrap().pod_selector = None), "RestorePolicy"),
        (
            "somebody made the run's own anew",
            working(),
            with(|f| f.policies[1].metadata.owner_references = None),
            "Failed/NetworkNotEnforced",
        ),
        ("nobody knows where the gateway is", working(), with(|f| f.gateway = None), "DeleteTicket Running/Running"),
        ("another denies as well", working(), fence_and("more", denial), "DeleteTicket Running/Running"),
        ("another is for others", working(), fence_and("shop", of_others), "DeleteTicket Running/Running"),
        ("another opens it", working(), fence_and("dns", open()), "Failed/NetworkNotEnforced"),
        ("before the exchange, too", recorded(|_| ()), fence_and("dns", open()), "Failed/NetworkNotEnforced"),
    ];
    for (row, run, fence, expected) in rows {
        assert_eq!(line_of(&run, fence, None), expected, "{row}");
    }
    let reached = r#"{"reason": "NetworkNotEnforced", "message": "it reached its node"}"#;
    let facts = Facts::Started { pod: pod(runner_ended(8, reached)), fence: fence_and("dns", open()), making: None };
    let Plan { writes, .. } = plan(&working(), &facts, None, at(20));
    let Some(Write::Status(status)) = writes.last() else { panic!("{writes:?}") };
    assert_eq!(condition(status, types::COMPLETE).unwrap().message, "it reached its node", "the runner's word counts first");
    let gone = with(|f| drop(f.policies.pop()));
    assert_eq!(line_of(&working(), gone, Some("the namespace is being terminated")), "Failed/NetworkNotEnforced");
}

#[test]
fn the_message_names_who_opened_it_and_what_to_do() {
    let facts = Facts::Started { pod: pod(up()), fence: fence_and("allow-dns", open()), making: None };
    let Plan { writes, .. } = plan(&recorded(exchanged), &facts, None, at(20));
    let [Write::Status(status)] = writes.as_slice() else { panic!("{writes:?}") };
    let complete = condition(status, types::COMPLETE).unwrap();
    for part in ["the NetworkPolicy allow-dns opens", "agentrun.dev/component=sandbox", "sandbox.networkEnforcement"] {
        assert!(complete.message.contains(part), "{part} is not in {}", complete.message);
    }
    let enforced = condition(status, types::NETWORK_ENFORCED).unwrap();
    assert_eq!((enforced.status.as_str(), &enforced.message), ("False", &complete.message));
}

#[test]
fn what_the_policy_accepts_stands_in_a_condition() {
    let run = recorded(|v| {
        exchanged(v);
        accepting(v);
        v["status"]["exchange"]["network"] = json!([{"target": "apiServer", "outcome": "held"}]);
    });
    let said = |fence: Fence| {
        let Plan { writes, .. } = plan(&run, &Facts::Started { pod: pod(up()), fence, making: None }, None, at(20));
        let Some(Write::Status(status)) = writes.last() else { panic!("{writes:?}") };
        let enforced = condition(status, types::NETWORK_ENFORCED).unwrap();
        format!("{} {}", enforced.status, enforced.reason)
    };
    assert_eq!(said(fence()), "True Held");
    assert_eq!(said(fence_and("dns", open())), "False Opened");
}
