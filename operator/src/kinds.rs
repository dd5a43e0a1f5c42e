//! Waiting for our CustomResourceDefinitions: a chart may install them after us, so we poll and do not crash.

use std::time::Duration;

use agentrun_crds::{AgentPolicy, AgentRun, ModelProvider};
use kube::api::ListParams;
use kube::core::PartialObjectMeta;
use kube::{Api, Client};

const PAUSE: Duration = Duration::from_secs(2);

/// Until all three kinds are served.
pub async fn wait(client: &Client, namespace: &str, missing: impl Fn()) {
    let mut last = String::new();
    while let Err(error) = served(client, namespace).await {
        missing();
        let said = crate::error::said(&error);
        if said != last {
            tracing::warn!("the kinds of agentrun.dev are not served yet; trying again: {said}");
            last = said;
        }
        tokio::time::sleep(PAUSE).await;
    }
}

async fn served(client: &Client, namespace: &str) -> kube::Result<()> {
    let one = ListParams::default().limit(1);
    Api::<PartialObjectMeta<AgentRun>>::all(client.clone()).list(&one).await?;
    Api::<PartialObjectMeta<AgentPolicy>>::all(client.clone()).list(&one).await?;
    Api::<PartialObjectMeta<ModelProvider>>::namespaced(client.clone(), namespace).list(&one).await?;
    Ok(())
}
