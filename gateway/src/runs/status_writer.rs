//! Writes `AgentRun.status`, and lets the directory know what stands there.

use std::sync::Arc;

use agentrun_crds::{AgentRun, AgentRunStatus};
use kube::{Api, Client};

use super::RunDirectory;
use crate::error::ApiError;
use crate::status_update::{self, Standing};

/// Cheap to clone.
#[derive(Clone)]
pub struct StatusWriter {
    client: Client,
    directory: RunDirectory,
}

impl StatusWriter {
    pub fn new(client: Client, directory: RunDirectory) -> Self {
        StatusWriter { client, directory }
    }

    /// See `status_update::update`. The run in the answer is the one that was written or read.
    pub async fn update<T>(
        &self,
        run: &AgentRun,
        decide: impl FnMut(&AgentRun, &mut AgentRunStatus) -> Result<T, ApiError>,
    ) -> Result<(T, Arc<AgentRun>), ApiError> {
        let api: Api<AgentRun> = Api::namespaced(self.client.clone(), super::namespace(run));
        let (value, Standing { object, written_since }) = Box::pin(status_update::update(&api, run, decide)).await?;
        let run = match written_since {
            Some(since) => self.directory.confirmed(since, object),
            None => Arc::new(object),
        };
        Ok((value, run))
    }
}
