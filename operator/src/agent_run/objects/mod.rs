//! Builders of an attempt's children. Pure; every field comes from constants and from what was frozen at acceptance, so
//! that nobody who writes an AgentRun shapes a Pod.

pub mod account;
pub mod foreign_policy;
pub mod network_policy;
pub mod pod;
pub mod probed;
mod share;
pub mod ticket;

use std::collections::BTreeMap;

use agentrun_crds::{AgentRun, names};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference};
use kube::Resource;

/// The value of `agentrun.dev/component` on everything that makes a sandbox.
pub const SANDBOX: &str = "sandbox";

/// The run that children belong to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Owner {
    pub namespace: String,
    pub name: String,
    pub uid: String,
}

impl Owner {
    /// Of a run as read from the API server, where both names and the UID are always set.
    pub fn of(run: &AgentRun) -> Self {
        let metadata = &run.metadata;
        Owner {
            namespace: metadata.namespace.clone().unwrap_or_default(),
            name: metadata.name.clone().unwrap_or_default(),
            uid: metadata.uid.clone().unwrap_or_default(),
        }
    }

    /// The name of Pod, ticket and NetworkPolicy of an attempt.
    pub fn child_name(&self, attempt: i64) -> String {
        names::child_name(&self.uid, attempt)
    }

    fn metadata(&self, attempt: i64) -> ObjectMeta {
        ObjectMeta {
            name: Some(self.child_name(attempt)),
            namespace: Some(self.namespace.clone()),
            labels: Some(labels(&self.uid)),
            // No blockOwnerDeletion: our own finalizer keeps the order.
            owner_references: Some(vec![OwnerReference {
                api_version: AgentRun::api_version(&()).into_owned(),
                kind: AgentRun::kind(&()).into_owned(),
                name: self.name.clone(),
                uid: self.uid.clone(),
                controller: Some(true),
                block_owner_deletion: None,
            }]),
            ..ObjectMeta::default()
        }
    }

    /// Whether this run controls an object.
    pub fn controls(&self, metadata: &ObjectMeta) -> bool {
        controller(metadata).is_some_and(|owner| owner.uid == self.uid)
    }
}

/// The controller of an object, if it is an AgentRun.
pub fn controller(metadata: &ObjectMeta) -> Option<&OwnerReference> {
    let run = |owner: &&OwnerReference| {
        owner.controller == Some(true) && owner.kind == AgentRun::kind(&()) && owner.api_version == AgentRun::api_version(&())
    };
    metadata.owner_references.iter().flatten().find(run)
}

/// Labels of everything that makes a run's sandbox, its Pod among it.
pub fn labels(uid: &str) -> BTreeMap<String, String> {
    [(names::LABEL_COMPONENT.to_owned(), SANDBOX.to_owned()), (names::LABEL_RUN_UID.to_owned(), uid.to_owned())].into()
}
