//! What the operator counts. Every label comes from a closed list.

use agentrun_crds::conditions::Reason;
use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::{Histogram, exponential_buckets};
use prometheus_client::registry::Registry;

/// `done` or an error's class.
#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Outcome {
    outcome: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Ended {
    reason: &'static str,
}

/// Shared by all tasks; cloning shares.
#[derive(Clone)]
pub struct Metrics {
    reconciles: Family<Outcome, Counter>,
    seconds: Histogram,
    ended: Family<Ended, Counter>,
    pub leader: Gauge,
    pub unreadable: Counter,
    pub swept_pods: Counter,
    /// Unix seconds at which the gateway's certificate ends.
    pub certificate_ends: Gauge,
    /// 1 while the gateway's API is registered by this process.
    pub registered: Gauge,
}

impl Metrics {
    /// Metrics, registered.
    pub fn new(registry: &mut Registry) -> Self {
        let metrics = Metrics {
            reconciles: Family::default(),
            seconds: Histogram::new(exponential_buckets(0.001, 2.0, 16)),
            ended: Family::default(),
            leader: Gauge::default(),
            unreadable: Counter::default(),
            swept_pods: Counter::default(),
            certificate_ends: Gauge::default(),
            registered: Gauge::default(),
        };
        let registry = registry.sub_registry_with_prefix("agentrun_operator");
        registry.register("reconciles", "Reconciles by outcome", metrics.reconciles.clone());
        registry.register("reconcile_seconds", "How long a reconcile took", metrics.seconds.clone());
        registry.register("runs_ended", "Runs that became terminal, by reason", metrics.ended.clone());
        registry.register("leader", "1 where this process holds the lease", metrics.leader.clone());
        registry.register("unreadable_objects", "AgentRuns met that do not parse", metrics.unreadable.clone());
        registry.register("api_registered", "1 while run.agentrun.dev is registered", metrics.registered.clone());
        registry.register("swept_pods", "Sandbox Pods removed because no live run wants them", metrics.swept_pods.clone());
        registry.register(
            "certificate_ends_seconds",
            "When the gateway's certificate ends, in Unix time",
            metrics.certificate_ends.clone(),
        );
        metrics
    }

    pub fn reconciled(&self, outcome: &'static str, seconds: f64) {
        self.reconciles.get_or_create(&Outcome { outcome }).inc();
        self.seconds.observe(seconds);
    }

    pub fn run_ended(&self, reason: Reason) {
        self.ended.get_or_create(&Ended { reason: reason.as_str() }).inc();
    }
}
