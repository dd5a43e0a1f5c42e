//! Whether what a runner tried to reach shows that its sandbox reaches nothing but the gateway. Pure.

use agentrun_crds::network_probe::{NetworkEnforcement, NetworkProbe, NetworkTarget, ProbeOutcome};
use http::StatusCode;

use crate::error::ApiError;

/// Every target that listens in every cluster was tried in vain, and no other was reached.
pub fn judge(enforcement: NetworkEnforcement, network: &[NetworkProbe]) -> Result<(), ApiError> {
    let outcome = |target: NetworkTarget| network.iter().find(|probe| probe.target == target).map(|probe| probe.outcome);
    let forbidden = || NetworkTarget::ALL.iter().copied().filter(|target| enforcement.forbids(*target));
    let reached = NetworkTarget::list(forbidden().filter(|target| outcome(*target) == Some(ProbeOutcome::Reached)));
    let doubtful = NetworkTarget::list(forbidden().filter(|target| match outcome(*target) {
        Some(outcome) => outcome == ProbeOutcome::Unknown,
        None => NetworkTarget::CERTAIN.contains(target),
    }));
    let found = match (reached.is_empty(), doubtful.is_empty()) {
        (true, true) => return Ok(()),
        (false, _) => format!("the sandbox reached {reached}"),
        (true, false) => format!("it is not known whether the sandbox reaches {doubtful}"),
    };
    let remedy = "tokens are handed out only where NetworkPolicy is seen to hold: use a network plugin that enforces it, or accept \
                  this by sandbox.networkEnforcement in the AgentPolicy";
    Err(ApiError::new(StatusCode::FORBIDDEN, "network_not_enforced", format!("{found}; {remedy}")).field("network"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table() {
        use NetworkEnforcement::{ExceptNode, NotRequired, Required};
        use NetworkTarget::{ApiServer, DnsUdp, Internet, Node, Pod};
        use ProbeOutcome::{Held, Reached, Unknown};
        let certain = [(ApiServer, Held), (Node, Held), (Pod, Held)];
        let with = |more: &[(NetworkTarget, ProbeOutcome)]| {
            let mut all: Vec<(NetworkTarget, ProbeOutcome)> = certain.to_vec();
            all.retain(|(target, _)| more.iter().all(|(other, _)| other != target));
            [all, more.to_vec()].concat()
        };
        let without = |target: NetworkTarget| certain.into_iter().filter(|(other, _)| *other != target).collect::<Vec<_>>();
        // enforcement, report, what the refusal names
        let rows = [
            (Required, with(&[]), None),
            (Required, with(&[(Internet, Held), (DnsUdp, Held)]), None),
            (Required, with(&[(ApiServer, Reached)]), Some("reached the API server;")),
            (Required, with(&[(Node, Reached), (DnsUdp, Reached)]), Some("reached its node, DNS over UDP;")),
            (Required, with(&[(Internet, Reached)]), Some("reached the internet;")),
            (Required, with(&[(Internet, Unknown)]), Some("reaches the internet;")),
            (Required, with(&[(Internet, Unknown), (Pod, Reached)]), Some("reached another Pod;")),
            (Required, without(Pod), Some("reaches another Pod;")),
            (Required, without(Node), Some("reaches its node;")),
            (Required, vec![], Some("reaches the API server, its node, another Pod;")),
            (ExceptNode, with(&[(Node, Reached)]), None),
            (ExceptNode, without(Node), None),
            (ExceptNode, with(&[(Node, Reached), (Pod, Reached)]), Some("reached another Pod;")),
            (NotRequired, with(&[(ApiServer, Reached), (Internet, Reached)]), None),
            (NotRequired, vec![], None),
        ];
        for (enforcement, report, names) in rows {
            let probes: Vec<NetworkProbe> =
                report.iter().map(|(target, outcome)| NetworkProbe { target: *target, outcome: *outcome }).collect();
            let refused = judge(enforcement, &probes).err();
            match names {
                None => assert!(refused.is_none(), "{enforcement:?} {report:?}: {refused:?}"),
                Some(names) => {
                    let refused = refused.unwrap();
                    assert_eq!(refused.code, "network_not_enforced");
                    assert!(refused.message.contains(names), "{names} is not in {}", refused.message);
                }
            }
        }
    }
}
