//! Writes `AgentPolicy.status`. A namespace's policy holds the budgets of several periods, so that the writes of this process
//! take turns: they would only be in each other's way.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use agentrun_crds::{AgentPolicy, AgentPolicyStatus};
use kube::{Api, Client};

use super::{PolicyDirectory, namespace};
use crate::error::ApiError;
use crate::status_update::{self, Standing};

/// Cheap to clone.
#[derive(Clone)]
pub struct PolicyWriter {
    client: Client,
    directory: PolicyDirectory,
    turns: Arc<Mutex<HashMap<String, Arc<tokio::sync::Mutex<()>>>>>,
}

impl PolicyWriter {
    pub fn new(client: Client, directory: PolicyDirectory) -> Self {
        PolicyWriter { client, directory, turns: Arc::default() }
    }

    /// See `status_update::update`. The policy in the answer is the one that was written or read.
    pub async fn update<T>(
        &self,
        policy: &AgentPolicy,
        mut decide: impl FnMut(&AgentPolicy, &mut AgentPolicyStatus) -> T,
    ) -> Result<(T, Arc<AgentPolicy>), ApiError> {
        let turn = self.turns.lock().unwrap_or_else(PoisonError::into_inner).entry(namespace(policy).to_owned()).or_default().clone();
        let _turn = turn.lock().await;
        let guess = self.directory.get(namespace(policy)).ok_or_else(ApiError::inactive_run_token)?;
        let api: Api<AgentPolicy> = Api::namespaced(self.client.clone(), namespace(policy));
        let (value, Standing { object, .. }) =
            Box::pin(status_update::update(&api, &guess, |policy, status| Ok(decide(policy, status)))).await?;
        Ok((value, self.directory.written(object)))
    }
}
