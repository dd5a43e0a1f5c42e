//! What a sandbox may reach: the gateway's sandbox port, nothing else, and nobody reaches it. Two policies: the run's own
//! opens the gateway, the namespace's denies everything to every sandbox and stands behind it.

use std::collections::BTreeMap;

use agentrun_crds::names;
use k8s_openapi::api::networking::v1::{NetworkPolicy, NetworkPolicyEgressRule, NetworkPolicyPeer, NetworkPolicyPort, NetworkPolicySpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{LabelSelector, ObjectMeta};
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;

use super::{Owner, SANDBOX};

/// Name of the namespace's policy.
pub const DENY: &str = "agentrun-sandbox-deny";

/// Where the gateway is, read from its Service.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Gateway {
    /// Its namespace, the operator's own.
    pub namespace: String,
    /// Name of its Service.
    pub service: String,
    /// The Service's cluster address.
    pub address: String,
    /// Labels of its Pods.
    pub selector: BTreeMap<String, String>,
}

impl Gateway {
    /// The name in its certificate.
    pub fn server_name(&self) -> String {
        format!("{}.{}.svc", self.service, self.namespace)
    }
}

fn select(key: &str, value: &str) -> LabelSelector {
    LabelSelector { match_labels: Some([(key.to_owned(), value.to_owned())].into()), ..LabelSelector::default() }
}

fn both() -> Option<Vec<String>> {
    Some(vec!["Ingress".into(), "Egress".into()])
}

/// No traffic for any sandbox of the namespace. Owned by no run, so it is there before the first and after the last.
pub fn deny_all(namespace: &str) -> NetworkPolicy {
    NetworkPolicy {
        metadata: ObjectMeta { name: Some(DENY.into()), namespace: Some(namespace.into()), ..ObjectMeta::default() },
        spec: Some(NetworkPolicySpec {
            pod_selector: Some(select(names::LABEL_COMPONENT, SANDBOX)),
            policy_types: both(),
            ..NetworkPolicySpec::default()
        }),
    }
}

/// The run's way to the gateway. The port is the container's: rules see the packet after the Service was translated.
pub fn to_gateway(owner: &Owner, attempt: i64, gateway: &Gateway) -> NetworkPolicy {
    let peer = NetworkPolicyPeer {
        namespace_selector: Some(select("kubernetes.io/metadata.name", &gateway.namespace)),
        pod_selector: Some(LabelSelector { match_labels: Some(gateway.selector.clone()), ..LabelSelector::default() }),
        ip_block: None,
    };
    let port =
        NetworkPolicyPort { port: Some(IntOrString::Int(i32::from(names::SANDBOX_PORT))), protocol: Some("TCP".into()), end_port: None };
    NetworkPolicy {
        metadata: owner.metadata(attempt),
        spec: Some(NetworkPolicySpec {
            pod_selector: Some(select(names::LABEL_RUN_UID, &owner.uid)),
            policy_types: both(),
            ingress: None,
            egress: Some(vec![NetworkPolicyEgressRule { to: Some(vec![peer]), ports: Some(vec![port]) }]),
        }),
    }
}

/// Whether a policy as read back says the same as one we built; absent and empty lists mean the same.
pub fn same(found: &NetworkPolicy, wanted: &NetworkPolicy) -> bool {
    normal(found) == normal(wanted)
}

fn normal(policy: &NetworkPolicy) -> NetworkPolicySpec {
    let mut spec = policy.spec.clone().unwrap_or_default();
    spec.ingress = spec.ingress.filter(|rules| !rules.is_empty());
    spec.egress = spec.egress.filter(|rules| !rules.is_empty());
    if let Some(types) = spec.policy_types.as_mut() {
        types.sort();
    }
    spec
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn owner() -> Owner {
        Owner { namespace: "team-a".into(), name: "fix".into(), uid: "u-1".into() }
    }

    fn gateway() -> Gateway {
        Gateway {
            namespace: "agentrun-system".into(),
            service: "agentrun-gateway".into(),
            address: "10.0.0.1".into(),
            selector: [("app".to_owned(), "gw".to_owned())].into(),
        }
    }

    #[test]
    fn what_is_written() {
        let policy = serde_json::to_value(to_gateway(&owner(), 1, &gateway())).unwrap();
        assert_eq!(
            policy["spec"],
            json!({
                "podSelector": {"matchLabels": {"agentrun.dev/run-uid": "u-1"}},
                "policyTypes": ["Ingress", "Egress"],
                "egress": [{
                    "to": [{
                        "namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "agentrun-system"}},
                        "podSelector": {"matchLabels": {"app": "gw"}},
                    }],
                    "ports": [{"port": 8443, "protocol": "TCP"}],
                }],
            })
        );
        let owners = &policy["metadata"]["ownerReferences"];
        assert_eq!((&owners[0]["uid"], &owners[0]["controller"]), (&json!("u-1"), &json!(true)));
        let deny = serde_json::to_value(deny_all("team-a")).unwrap();
        let expected = json!({"podSelector": {"matchLabels": {"agentrun.dev/component": "sandbox"}}, "policyTypes": ["Ingress", "Egress"]});
        assert_eq!(deny["spec"], expected);
        assert!(deny["metadata"].get("ownerReferences").is_none());
    }

    #[test]
    fn a_weakened_policy_is_seen() {
        let wanted = deny_all("team-a");
        let mut found = wanted.clone();
        assert!(same(&found, &wanted));
        found.spec.as_mut().unwrap().egress = Some(vec![]);
        assert!(same(&found, &wanted), "an empty list denies as well");
        found.spec.as_mut().unwrap().egress = Some(vec![NetworkPolicyEgressRule::default()]);
        assert!(!same(&found, &wanted));
        found = wanted.clone();
        found.spec.as_mut().unwrap().policy_types = Some(vec!["Ingress".into()]);
        assert!(!same(&found, &wanted));
    }
}
