//! Names that operator, gateway and tests share: labels, finalizer, field managers, child names, audiences, ports.

use sha2::{Digest, Sha256};

/// Label on everything that a run created; its value is the run's UID.
pub const LABEL_RUN_UID: &str = "agentrun.dev/run-uid";
/// Label on the record of a run; its value is the run's UID. Another label than that of what a run created, since it stays.
pub const LABEL_RECORD_OF: &str = "agentrun.dev/record-of";
/// Label that marks sandbox Pods; the value is always `sandbox`.
pub const LABEL_COMPONENT: &str = "agentrun.dev/component";
/// Holds the AgentRun until its Pod, Secret and NetworkPolicy are gone.
pub const FINALIZER: &str = "agentrun.dev/cleanup";
/// Field manager of the operator's writes.
pub const OPERATOR: &str = "agentrun-operator";
/// Field manager of the gateway's writes.
pub const GATEWAY: &str = "agentrun-gateway";
/// The one AgentPolicy of a namespace that counts.
pub const POLICY: &str = "default";
/// Audience of the Pod-bound ServiceAccount token in the exchange.
pub const EXCHANGE_AUDIENCE: &str = "agentrun-gateway-exchange";
/// Audience of bearer tokens on the people listener.
pub const PEOPLE_AUDIENCE: &str = "agentrun-gateway";
/// ServiceAccount of every sandbox Pod, without rights; the operator makes it in each namespace that has runs.
pub const SANDBOX_SERVICE_ACCOUNT: &str = "agentrun-sandbox";
/// The gateway's sandbox listener (container port, and the Service's).
pub const SANDBOX_PORT: u16 = 8443;
/// The gateway's people listener.
pub const PEOPLE_PORT: u16 = 9443;
/// The gateway's aggregated listener, which the cluster's API server alone may use.
pub const AGGREGATED_PORT: u16 = 7443;
/// API group that the gateway serves through the cluster's API server: subresources of AgentRuns.
pub const AGGREGATED_GROUP: &str = "run.agentrun.dev";
/// Its version.
pub const AGGREGATED_VERSION: &str = "v1alpha1";
/// Operations listener of operator and gateway: health and metrics, plain HTTP.
pub const OPERATIONS_PORT: u16 = 8081;
/// Secret with the CA's key, in the operator's namespace (`tls.crt`, `tls.key`).
pub const CA_SECRET: &str = "agentrun-ca";
/// Secret with the gateway's serving certificate (`tls.crt`, `tls.key`, `ca.crt`), in the same namespace.
pub const SERVING_SECRET: &str = "agentrun-gateway-tls";
/// Secret with the token master keys: one entry per key, entry name = decimal key id, value = at least 32 random bytes.
/// The highest id signs; all verify.
pub const TOKEN_KEYS_SECRET: &str = "agentrun-token-keys";

/// `run-<first 16 hex digits of SHA-256(run UID)>-<attempt>`: Pod, ticket Secret and NetworkPolicy of one attempt.
pub fn child_name(run_uid: &str, attempt: i64) -> String {
    let digest = Sha256::digest(run_uid.as_bytes());
    let short: String = digest.iter().take(8).map(|byte| format!("{byte:02x}")).collect();
    format!("run-{short}-{attempt}")
}
