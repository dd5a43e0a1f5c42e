//! The NetworkPolicies around a sandbox: ours stand as they should, and nobody else's opens it.

use std::collections::BTreeMap;

use k8s_openapi::api::networking::v1::NetworkPolicy;

use super::super::objects::network_policy::{DENY, Gateway, deny_all, same, to_gateway};
use super::super::objects::{Owner, foreign_policy};
use super::Write;

/// What was observed of them.
#[derive(Clone, Debug, Default)]
pub struct Fence {
    /// Where the run's own leads to; absent while the gateway has no Service.
    pub gateway: Option<Gateway>,
    /// All of the namespace.
    pub policies: Vec<NetworkPolicy>,
}

impl Fence {
    /// Whether a policy that the run does not own has the name of the run's own.
    pub fn taken(&self, owner: &Owner, attempt: i64) -> bool {
        self.named(&owner.child_name(attempt)).is_some_and(|policy| !owner.controls(&policy.metadata))
    }

    /// What puts ours up, or back.
    pub fn repairs(&self, owner: &Owner, attempt: i64) -> Vec<Write> {
        let own = self.gateway.as_ref().filter(|_| !self.taken(owner, attempt)).map(|gateway| to_gateway(owner, attempt, gateway));
        [Some(deny_all(&owner.namespace)), own].into_iter().flatten().filter_map(|wanted| self.repair(wanted)).collect()
    }

    fn repair(&self, wanted: NetworkPolicy) -> Option<Write> {
        match self.named(wanted.metadata.name.as_deref().unwrap_or_default()) {
            None => Some(Write::CreatePolicy(Box::new(wanted))),
            Some(found) if same(found, &wanted) => None,
            Some(found) => Some(Write::RestorePolicy { found: Box::new(found.clone()), wanted: Box::new(wanted) }),
        }
    }

    /// Others' that let packets to or from a sandbox with these labels.
    pub fn opened_by(&self, owner: &Owner, attempt: i64, labels: &BTreeMap<String, String>) -> Vec<String> {
        let own = owner.child_name(attempt);
        let name = |policy: &NetworkPolicy| policy.metadata.name.clone().unwrap_or_default();
        let ours = |policy: &NetworkPolicy| name(policy) == DENY || (name(policy) == own && owner.controls(&policy.metadata));
        let open = self.policies.iter().filter(|policy| !ours(policy) && foreign_policy::opens(policy, labels));
        let mut names: Vec<String> = open.map(name).collect();
        names.sort();
        names
    }

    fn named(&self, name: &str) -> Option<&NetworkPolicy> {
        self.policies.iter().find(|policy| policy.metadata.name.as_deref() == Some(name))
    }
}
