//! The APIService by which the cluster's API server passes `run.agentrun.dev` on to the gateway. One without a live back end
//! blocks the deletion of every namespace in the cluster, so it is there only while a gateway is ready.

pub mod keeper;
pub mod registration;
