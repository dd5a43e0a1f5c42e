//! NetworkPolicies that are not ours. Policies add up: each that selects a sandbox and allows anything opens its fence.

use std::collections::BTreeMap;

use k8s_openapi::api::networking::v1::NetworkPolicy;
use kube::core::{Selector, SelectorExt};

/// Whether a policy lets packets to or from a Pod with these labels.
pub fn opens(policy: &NetworkPolicy, labels: &BTreeMap<String, String>) -> bool {
    let Some(spec) = &policy.spec else { return false };
    let counts = |direction: &str| spec.policy_types.as_ref().is_none_or(|types| types.iter().any(|word| word == direction));
    let egress = counts("Egress") && spec.egress.as_ref().is_some_and(|rules| !rules.is_empty());
    let ingress = counts("Ingress") && spec.ingress.as_ref().is_some_and(|rules| !rules.is_empty());
    // A selector that cannot be read might select anything.
    let selects = spec.pod_selector.clone().and_then(|selector| Selector::try_from(selector).ok());
    (egress || ingress) && selects.is_none_or(|selector| selector.matches(labels))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    #[test]
    fn what_opens_a_sandbox() {
        let labels = [("agentrun.dev/component".to_owned(), "sandbox".to_owned()), ("agentrun.dev/run-uid".to_owned(), "u".to_owned())];
        let labels: BTreeMap<String, String> = labels.into();
        let not_sandboxes = json!({"matchExpressions": [{"key": "agentrun.dev/component", "operator": "NotIn", "values": ["sandbox"]}]});
        let rows: Vec<(&str, Value, bool)> = vec![
            ("everything out", json!({"podSelector": {}, "policyTypes": ["Egress"], "egress": [{}]}), true),
            ("everybody in", json!({"podSelector": {}, "policyTypes": ["Ingress"], "ingress": [{}]}), true),
            ("DNS only", json!({"podSelector": {}, "policyTypes": ["Egress"], "egress": [{"ports": [{"port": 53}]}]}), true),
            ("of sandboxes", json!({"podSelector": {"matchLabels": {"agentrun.dev/component": "sandbox"}}, "egress": [{}]}), true),
            ("of another run", json!({"podSelector": {"matchLabels": {"agentrun.dev/run-uid": "v"}}, "egress": [{}]}), false),
            ("of others", json!({"podSelector": {"matchLabels": {"app": "shop"}}, "egress": [{}]}), false),
            ("of all but sandboxes", json!({"podSelector": not_sandboxes, "egress": [{}]}), false),
            ("a denial", json!({"podSelector": {}, "policyTypes": ["Ingress", "Egress"]}), false),
            ("an empty list", json!({"podSelector": {}, "policyTypes": ["Egress"], "egress": []}), false),
            ("rules of a direction that does not count", json!({"podSelector": {}, "policyTypes": ["Ingress"], "egress": [{}]}), false),
            (
                "no selector that can be read",
                json!({"podSelector": {"matchExpressions": [{"key": "a", "operator": "Near"}]}, "egress": [{}]}),
                true,
            ),
            ("no spec", Value::Null, false),
        ];
        for (row, spec, expected) in rows {
            let policy: NetworkPolicy = serde_json::from_value(json!({"metadata": {"name": "x"}, "spec": spec})).unwrap();
            assert_eq!(opens(&policy, &labels), expected, "{row}");
        }
    }
}
