//! Command line and environment.

use std::net::SocketAddr;
use std::num::NonZeroU32;
use std::path::PathBuf;

use agentrun_crds::names;

use crate::store::StoreOptions;

/// The gateway of AgentRun.
#[derive(clap::Parser, Clone, Debug)]
#[command(name = "gateway", version)]
pub struct Config {
    /// Namespace of the gateway, its Secrets and the ModelProviders.
    #[arg(long, env = "POD_NAMESPACE", default_value = "agentrun-system")]
    pub namespace: String,
    /// Persistent name of this process; a restart under the same name settles what the one before left open.
    #[arg(long, env = "POD_NAME", default_value = "agentrun-gateway-0")]
    pub instance: String,
    /// Runs: exchange, model calls, events, artifacts, result. TLS.
    #[arg(long, default_value_t = SocketAddr::from(([0, 0, 0, 0], names::SANDBOX_PORT)))]
    pub sandbox_listen: SocketAddr,
    /// People: events, artifacts, patch. TLS.
    #[arg(long, default_value_t = SocketAddr::from(([0, 0, 0, 0], names::PEOPLE_PORT)))]
    pub people_listen: SocketAddr,
    /// A further name under which people reach the gateway, without port; may be repeated.
    #[arg(long = "allowed-host", value_name = "HOST")]
    pub allowed_hosts: Vec<String>,
    /// Pages of this origin, such as https://page.example.com, may call the people listener; may be repeated.
    #[arg(long = "allowed-origin", value_name = "ORIGIN")]
    pub allowed_origins: Vec<String>,
    /// The cluster's API server, for people with a kubeconfig. TLS, with its client certificate.
    #[arg(long, default_value_t = SocketAddr::from(([0, 0, 0, 0], names::AGGREGATED_PORT)))]
    pub aggregated_listen: SocketAddr,
    /// Health and metrics. Plain HTTP.
    #[arg(long, default_value_t = SocketAddr::from(([0, 0, 0, 0], names::OPERATIONS_PORT)))]
    pub operations_listen: SocketAddr,
    /// Folder of the embedded stores; with a database, of uploads under way and of notes about the budget.
    #[arg(long, default_value = "/var/lib/agentrun")]
    pub data_dir: PathBuf,
    #[command(flatten)]
    pub store: StoreOptions,
    /// How long new connections and calls are still taken after SIGTERM, while this process is not ready: until nobody is sent here
    /// any more. Of use where others serve.
    #[arg(long, default_value_t = 0)]
    pub shutdown_delay_seconds: u64,
    /// How long streams may go on after that.
    #[arg(long, default_value_t = 25)]
    pub drain_seconds: u64,
    /// Most open connections of one listener.
    #[arg(long, default_value_t = 2048)]
    pub max_connections: usize,
    /// Most model calls of one run at once, on this process; an AgentPolicy may say fewer.
    #[arg(long, default_value_t = 64)]
    pub max_in_flight_per_run: usize,
    /// Most model calls of one run in a minute, on this process; absent: any number. An AgentPolicy may say fewer.
    #[arg(long)]
    pub requests_per_minute_per_run: Option<NonZeroU32>,
    /// Most model calls of all runs of a namespace in a minute, on this process; absent: any number. An AgentPolicy may say fewer.
    #[arg(long)]
    pub requests_per_minute_per_namespace: Option<NonZeroU32>,
    /// Log as JSON lines rather than text.
    #[arg(long)]
    pub log_json: bool,
}
