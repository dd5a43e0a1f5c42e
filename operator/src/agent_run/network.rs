//! What status says of a sandbox's network. Pure.

use agentrun_crds::network_probe::{NetworkEnforcement, NetworkProbe, NetworkTarget, ProbeOutcome};

/// Status, reason and message of the condition NetworkEnforced: by what the runner reported at the exchange, and by the
/// NetworkPolicies of others that open the sandbox now.
pub fn enforced(enforcement: NetworkEnforcement, probes: &[NetworkProbe], opened_by: &[String]) -> (&'static str, &'static str, String) {
    let with = |outcome: ProbeOutcome| probes.iter().filter(move |probe| probe.outcome == outcome).map(|probe| probe.target);
    let reached: Vec<NetworkTarget> = with(ProbeOutcome::Reached).collect();
    let held = NetworkTarget::list(with(ProbeOutcome::Held));
    let accepted = |target: &NetworkTarget| enforcement == NetworkEnforcement::ExceptNode && *target == NetworkTarget::Node;
    if !opened_by.is_empty() {
        return ("False", "Opened", format!("{}; the AgentPolicy accepts it", opened(opened_by)));
    }
    if reached.iter().any(|target| !accepted(target)) {
        let message = format!("the sandbox reaches {}; the AgentPolicy accepts it", NetworkTarget::list(reached));
        return ("False", "Reached", message);
    }
    match (held.is_empty(), reached.is_empty()) {
        (true, _) => ("Unknown", "NotTried", "the runner reported nothing that it tried to reach".into()),
        (false, true) => ("True", "Held", format!("tried and not reached: {held}")),
        (false, false) => ("True", "Held", format!("tried and not reached: {held}; reached, as the AgentPolicy accepts: its node")),
    }
}

/// Who opens a sandbox.
pub fn opened(by: &[String]) -> String {
    match by {
        [one] => format!("the NetworkPolicy {one} opens the sandbox beside our own"),
        many => format!("the NetworkPolicies {} open the sandbox beside our own", many.join(", ")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What the policy asks, what was tried, who opens it, what is said.
    type Row = (NetworkEnforcement, Vec<(NetworkTarget, ProbeOutcome)>, Vec<String>, &'static str);

    #[test]
    fn what_is_said() {
        use NetworkEnforcement::{ExceptNode, NotRequired, Required};
        use NetworkTarget::{ApiServer, Node};
        use ProbeOutcome::{Held, Reached, Unknown};
        let policy = || vec!["allow-dns".to_owned()];
        let rows: Vec<Row> = vec![
            (Required, vec![(ApiServer, Held), (Node, Held)], vec![], "True Held tried and not reached: the API server, its node"),
            (Required, vec![], vec![], "Unknown NotTried the runner reported nothing that it tried to reach"),
            (
                ExceptNode,
                vec![(ApiServer, Held), (Node, Reached)],
                vec![],
                "True Held tried and not reached: the API server; reached, as the AgentPolicy accepts: its node",
            ),
            (
                NotRequired,
                vec![(ApiServer, Reached), (Node, Held)],
                vec![],
                "False Reached the sandbox reaches the API server; the AgentPolicy accepts it",
            ),
            (NotRequired, vec![(ApiServer, Unknown)], vec![], "Unknown NotTried the runner reported nothing that it tried to reach"),
            (
                NotRequired,
                vec![(ApiServer, Held)],
                policy(),
                "False Opened the NetworkPolicy allow-dns opens the sandbox beside our own; the AgentPolicy accepts it",
            ),
        ];
        for (enforcement, probes, opened_by, expected) in rows {
            let probes: Vec<NetworkProbe> = probes.into_iter().map(|(target, outcome)| NetworkProbe { target, outcome }).collect();
            let (status, reason, message) = enforced(enforcement, &probes, &opened_by);
            assert_eq!(format!("{status} {reason} {message}"), expected);
        }
    }
}
