//! The test beds of AgentRun: a real API server (`api_server`, tier T1) and the real node (`node`, tier T2). See `tests/`.

pub mod api_server;
pub mod chart;
pub mod exchange;
pub mod gateways;
pub mod node;
pub mod plugin;
pub mod programs;
