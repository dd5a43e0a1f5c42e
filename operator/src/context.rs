//! What a reconcile may use. Cheap to clone into an `Arc` once; holds no state of any run but who is being started.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use agentrun_crds::{AgentPolicy, AgentRun};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::api::networking::v1::NetworkPolicy;
use kube::Client;
use kube::core::DeserializeGuard;
use kube::runtime::events::Recorder;
use kube::runtime::reflector::Store;
use tokio::sync::OwnedMutexGuard;

use crate::agent_run::objects::network_policy::Gateway;
use crate::agent_run::objects::pod::RunnerImage;
use crate::agent_run::objects::probed::Probed;
use crate::backoff::Backoff;
use crate::metrics::Metrics;

/// An AgentRun as it is watched: one that does not parse must not stop the watch for all others.
pub type Guarded = DeserializeGuard<AgentRun>;

/// Settings that reconciles read.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Where the gateway, its Service, certificates and providers are.
    pub namespace: String,
    pub gateway_service: String,
    pub image: RunnerImage,
    pub probed: Probed,
    /// How long the record of a run is kept after the run ended.
    pub record_retention_days: u16,
}

/// What the watches know. A hint when to look: what is written is decided on live reads.
pub struct Caches {
    pub runs: Store<Guarded>,
    pub pods: Store<Pod>,
    pub policies: Store<DeserializeGuard<AgentPolicy>>,
    pub network_policies: Store<NetworkPolicy>,
}

pub struct Context {
    pub client: Client,
    pub settings: Settings,
    pub recorder: Recorder,
    pub metrics: Metrics,
    pub backoff: Backoff,
    /// Injected, so that tests move it.
    pub clock: Box<dyn Fn() -> Timestamp + Send + Sync>,
    pub starts: Starts,
    /// The gateway as last read, for looks that ask the API server nothing.
    pub gateway: Mutex<Option<Gateway>>,
}

impl Context {
    pub fn remember(&self, gateway: Option<Gateway>) {
        *self.gateway.lock().unwrap_or_else(PoisonError::into_inner) = gateway;
    }

    pub fn remembered(&self) -> Option<Gateway> {
        self.gateway.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

/// One start at a time in a namespace, so that counting and starting are one step.
#[derive(Default)]
pub struct Starts(Mutex<HashMap<String, Arc<tokio::sync::Mutex<()>>>>);

impl Starts {
    /// Wait for the namespace's turn; it is given back by dropping.
    pub async fn turn(&self, namespace: &str) -> OwnedMutexGuard<()> {
        let turn = {
            let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
            all.retain(|_, turn| Arc::strong_count(turn) > 1);
            Arc::clone(all.entry(namespace.to_owned()).or_default())
        };
        turn.lock_owned().await
    }
}
