//! Deletes the records of runs that ended long ago and whose AgentRuns are gone: they would only ever get more.

use std::time::Duration;

use agentrun_crds::{AgentRun, AgentRunRecord};
use jiff::{SignedDuration, Timestamp};
use kube::api::{Api, DeleteParams, ListParams, Preconditions};
use kube::core::DeserializeGuard;

use crate::context::Context;
use crate::error::Error;

const PERIOD: Duration = Duration::from_secs(3600);
const PAGE: u32 = 500;

/// For ever; failures are logged and tried again.
pub async fn run(ctx: &Context) {
    loop {
        match once(ctx).await {
            Ok(0) => {}
            Ok(deleted) => tracing::info!(deleted, "records of runs past their retention are deleted"),
            Err(error) => tracing::warn!(%error, "records past their retention could not be deleted; trying again later"),
        }
        tokio::time::sleep(PERIOD).await;
    }
}

/// One pass over all of them; returns how many are gone.
pub async fn once(ctx: &Context) -> Result<usize, Error> {
    let retention = SignedDuration::from_hours(24 * i64::from(ctx.settings.record_retention_days));
    let before = (ctx.clock)().saturating_sub(retention).unwrap_or(Timestamp::MIN);
    let all: Api<DeserializeGuard<AgentRunRecord>> = Api::all(ctx.client.clone());
    let (mut page, mut deleted) = (ListParams::default().limit(PAGE), 0);
    loop {
        let list = all.list(&page).await.map_err(Error::api("list the AgentRunRecords"))?;
        for record in list.items.iter().filter_map(|record| record.0.as_ref().ok()).filter(|record| record.spec.finished_at.0 < before) {
            deleted += usize::from(delete(ctx, record).await?);
        }
        match list.metadata.continue_.filter(|token| !token.is_empty()) {
            Some(token) => page = page.continue_token(&token),
            None => return Ok(deleted),
        }
    }
}

/// Not while its AgentRun is there, which would leave none when it goes; and only the very one that was looked at.
async fn delete(ctx: &Context, record: &AgentRunRecord) -> Result<bool, Error> {
    let (Some(namespace), Some(name)) = (record.metadata.namespace.as_deref(), record.metadata.name.as_deref()) else { return Ok(false) };
    let runs: Api<AgentRun> = Api::namespaced(ctx.client.clone(), namespace);
    if runs.get_metadata_opt(name).await.map_err(Error::api("look for the AgentRun of a record"))?.is_some() {
        return Ok(false);
    }
    let records: Api<AgentRunRecord> = Api::namespaced(ctx.client.clone(), namespace);
    let very_one = Preconditions { uid: record.metadata.uid.clone(), resource_version: record.metadata.resource_version.clone() };
    match records.delete(name, &DeleteParams::default().preconditions(very_one)).await {
        Ok(_) => Ok(true),
        Err(kube::Error::Api(status)) if matches!(status.code, 404 | 409) => Ok(false),
        Err(source) => Err(Error::Api { what: "delete a record past its retention", source }),
    }
}
