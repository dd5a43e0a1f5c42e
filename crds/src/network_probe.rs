//! What a sandbox must not reach, and what came of trying it.

use kube::KubeSchema;
use serde::{Deserialize, Serialize};

/// One target and its outcome.
#[derive(KubeSchema, Serialize, Deserialize, Clone, Copy, Debug, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct NetworkProbe {
    pub target: NetworkTarget,
    pub outcome: ProbeOutcome,
}

/// Somebody whom code in a sandbox must not reach.
#[derive(schemars::JsonSchema, Serialize, Deserialize, Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[serde(rename_all = "camelCase")]
pub enum NetworkTarget {
    /// The API server, by its Service's address.
    ApiServer,
    /// The kubelet of the Pod's node.
    Node,
    /// Another Pod: the gateway, on a port that it opens to all but that is closed to sandboxes.
    Pod,
    /// The cluster's DNS.
    #[serde(rename = "dnsTCP")]
    DnsTcp,
    /// The same.
    #[serde(rename = "dnsUDP")]
    DnsUdp,
    /// The address under which clouds hand out a node's credentials.
    Metadata,
    /// An address outside the cluster.
    Internet,
}

impl NetworkTarget {
    /// All of them.
    pub const ALL: &[NetworkTarget] = &[
        NetworkTarget::ApiServer,
        NetworkTarget::Node,
        NetworkTarget::Pod,
        NetworkTarget::DnsTcp,
        NetworkTarget::DnsUdp,
        NetworkTarget::Metadata,
        NetworkTarget::Internet,
    ];

    /// Those that listen in every cluster, so that silence shows the wall and not their absence.
    pub const CERTAIN: &[NetworkTarget] = &[NetworkTarget::ApiServer, NetworkTarget::Node, NetworkTarget::Pod];

    /// As in JSON and on the runner's command line.
    pub fn as_str(self) -> &'static str {
        match self {
            NetworkTarget::ApiServer => "apiServer",
            NetworkTarget::Node => "node",
            NetworkTarget::Pod => "pod",
            NetworkTarget::DnsTcp => "dnsTCP",
            NetworkTarget::DnsUdp => "dnsUDP",
            NetworkTarget::Metadata => "metadata",
            NetworkTarget::Internet => "internet",
        }
    }

    /// In a sentence.
    pub fn in_words(self) -> &'static str {
        match self {
            NetworkTarget::ApiServer => "the API server",
            NetworkTarget::Node => "its node",
            NetworkTarget::Pod => "another Pod",
            NetworkTarget::DnsTcp => "DNS over TCP",
            NetworkTarget::DnsUdp => "DNS over UDP",
            NetworkTarget::Metadata => "the cloud's metadata",
            NetworkTarget::Internet => "the internet",
        }
    }

    /// Several in a sentence.
    pub fn list(targets: impl IntoIterator<Item = NetworkTarget>) -> String {
        let words: Vec<&str> = targets.into_iter().map(NetworkTarget::in_words).collect();
        words.join(", ")
    }
}

/// What came of a try.
#[derive(schemars::JsonSchema, Serialize, Deserialize, Clone, Copy, Debug, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub enum ProbeOutcome {
    /// No packet came back, or the network said that none may pass.
    Held,
    /// A packet came back from the target, if only a refusal.
    Reached,
    /// It could not be tried.
    Unknown,
}

/// Whether sandboxes may run where NetworkPolicy is not seen to hold.
#[derive(schemars::JsonSchema, Serialize, Deserialize, Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum NetworkEnforcement {
    /// No.
    #[default]
    Required,
    /// Only the Pod's own node may be reached, which some network plugins let pass whatever a NetworkPolicy says.
    ExceptNode,
    /// Yes: the run goes on, and its status says what it reached.
    NotRequired,
}

impl NetworkEnforcement {
    /// Whether this target must be out of reach.
    pub fn forbids(self, target: NetworkTarget) -> bool {
        match self {
            NetworkEnforcement::Required => true,
            NetworkEnforcement::ExceptNode => target != NetworkTarget::Node,
            NetworkEnforcement::NotRequired => false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_words_are_those_of_json() {
        for target in NetworkTarget::ALL {
            assert_eq!(serde_json::to_value(target).unwrap(), target.as_str());
        }
    }
}
