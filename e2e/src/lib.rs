//! The test beds of AgentRun: a real API server (`api_server`, tier T1), the real node (`node`, tier T2), and the servers of
//! shared stores (`store_servers`). See `tests/`.

pub mod api_server;
pub mod chart;
pub mod exchange;
pub mod fault_proxy;
pub mod gateways;
pub mod node;
pub mod plugin;
mod processes;
pub mod programs;
pub mod store_servers;
