//! Reads what a plan rests on. From the caches, to see cheaply that nothing is to be done; live, before anything is written.

use std::collections::BTreeMap;

use agentrun_crds::agent_run_record::AgentRunRecordSpec;
use agentrun_crds::agent_run_status::Phase;
use agentrun_crds::{AgentPolicy, AgentRun, AgentRunRecord, AgentTemplate, ModelProvider, names};
use k8s_openapi::api::core::v1::{Namespace, Pod, Secret, Service, ServiceAccount};
use k8s_openapi::api::networking::v1::NetworkPolicy;
use kube::ResourceExt;
use kube::api::{Api, ListParams};
use kube::core::{DeserializeGuard, ObjectMeta};
use kube::runtime::reflector::ObjectRef;
use tokio::sync::OwnedMutexGuard;

use super::objects::Owner;
use super::objects::network_policy::Gateway;
use super::objects::ticket::Ticket;
use super::plan::{Facts, Fence, Making, Platform, Seen, Stage, Waiting, attempt, awaits_source, seen, stage};
use super::queue::{self, Decision, Peer, SlimRun};
use super::resolve;
use crate::context::{Caches, Context, Guarded};
use crate::error::Error;

/// Objects in one page of a list: bounds what is in memory at once.
const PAGE: u32 = 50;

/// What was read, and the namespace's turn where the run may start: it is held until the writes are done.
pub struct Observed {
    pub facts: Facts,
    pub turn: Option<OwnedMutexGuard<()>>,
}

/// Read the run itself. One that does not parse gets no further, but must still be let go when it is deleted.
pub async fn run(ctx: &Context, namespace: &str, name: &str) -> Result<Option<AgentRun>, Error> {
    let runs: Api<Guarded> = Api::namespaced(ctx.client.clone(), namespace);
    let found = runs.get_opt(name).await.map_err(Error::api("read the AgentRun"))?;
    Ok(match found {
        None => None,
        Some(DeserializeGuard(Ok(run))) => Some(run),
        Some(DeserializeGuard(Err(invalid))) => {
            ctx.metrics.unreadable.inc();
            tracing::warn!(run.namespace = namespace, run.name = name, error = invalid.error, "an AgentRun does not parse");
            invalid.metadata.deletion_timestamp.is_some().then(|| placeholder(invalid.metadata))
        }
    })
}

/// Enough of a run to clean up after it.
fn placeholder(metadata: ObjectMeta) -> AgentRun {
    let spec = serde_json::from_value(serde_json::json!({"instruction": "", "source": {}, "model": ""}));
    let mut run = AgentRun { metadata, spec: spec.expect("a spec without values"), status: None };
    run.status = Some(agentrun_crds::AgentRunStatus { phase: Some(Phase::Failed), ..Default::default() });
    run
}

/// Read live what the run's stage calls for.
pub async fn live(ctx: &Context, run: &AgentRun) -> Result<Observed, Error> {
    let owner = Owner::of(run);
    match stage(run) {
        Stage::Waiting => waiting(ctx, run, &owner).await,
        Stage::Started => {
            let (pod, fence) = tokio::join!(pod(ctx, &owner, attempt(run)), fence(ctx, &owner));
            let pod = pod?;
            let recorded = run.status.as_ref().is_some_and(|status| status.pod_ref.is_some());
            let making = if recorded || pod != Seen::Absent || run.spec.cancel { None } else { Some(making(ctx, &owner).await?) };
            Ok(Observed { facts: Facts::Started { pod, fence: fence?, making: making.map(Box::new) }, turn: None })
        }
        Stage::Ended => Ok(Observed { facts: Facts::Ended { pod: pod(ctx, &owner, attempt(run)).await? }, turn: None }),
    }
}

async fn pod(ctx: &Context, owner: &Owner, attempt: i64) -> Result<Seen<Box<Pod>>, Error> {
    let pods: Api<Pod> = Api::namespaced(ctx.client.clone(), &owner.namespace);
    let found = pods.get_opt(&owner.child_name(attempt)).await.map_err(Error::api("read the sandbox's Pod"))?;
    Ok(seen(owner, found))
}

async fn waiting(ctx: &Context, run: &AgentRun, owner: &Owner) -> Result<Observed, Error> {
    let policies: Api<DeserializeGuard<AgentPolicy>> = Api::namespaced(ctx.client.clone(), &owner.namespace);
    let namespaces: Api<Namespace> = Api::all(ctx.client.clone());
    let (policy, namespace, platform, record) =
        tokio::join!(policies.get_opt(names::POLICY), namespaces.get_opt(&owner.namespace), platform(ctx), record(ctx, owner));
    let record = record?;
    let policy = policy.map_err(Error::api("read the AgentPolicy"))?.and_then(|guarded| guarded.0.ok());
    let (policy, policy_status) = policy.map(|policy| (policy.spec, policy.status)).unzip();
    let namespace = namespace.map_err(Error::api("read the namespace"))?.and_then(|namespace| namespace.metadata.labels);
    let platform = platform?;
    let accepted = run.status.as_ref().is_some_and(|status| status.resolved.is_some());
    let mut providers = BTreeMap::new();
    if let Some(Ok(offered)) = policy.as_ref().filter(|_| !accepted).map(|policy| resolve::offered(&run.spec, policy)) {
        for name in resolve::providers(offered) {
            if !providers.contains_key(name)
                && let Some(found) = provider(ctx, name).await?
            {
                providers.insert(name.to_owned(), found);
            }
        }
    }
    let template = match run.spec.agent.harness.as_ref().filter(|_| !accepted) {
        Some(name) => template(ctx, name).await?,
        None => None,
    };
    let namespace = namespace.unwrap_or_default();
    let accepted = accepted
        || policy.as_ref().is_some_and(|policy| resolve::resolve(&run.spec, policy, &providers, template.as_ref(), &namespace).is_ok());
    // Only a run that could start has to know the others, and from then on nobody else of the namespace may start.
    let (turn, peers) = if accepted && policy.is_some() && platform.is_some() && !run.spec.cancel && !awaits_source(run) {
        let turn = ctx.starts.turn(&owner.namespace).await;
        let peers = peers(ctx, &owner.namespace).await?;
        (Some(turn), Some(peers))
    } else {
        (None, None)
    };
    let ticket = Ticket::random().map_err(|_| Error::Random)?;
    let policy_status = policy_status.flatten().unwrap_or_default();
    let facts = Waiting { policy, policy_status, providers, template, record, namespace, platform, peers, ticket };
    Ok(Observed { facts: Facts::Waiting(Box::new(facts)), turn })
}

async fn provider(ctx: &Context, name: &str) -> Result<Option<agentrun_crds::ModelProviderSpec>, Error> {
    let providers: Api<DeserializeGuard<ModelProvider>> = Api::namespaced(ctx.client.clone(), &ctx.settings.namespace);
    let found = providers.get_opt(name).await.map_err(Error::api("read the ModelProvider"))?;
    Ok(found.and_then(|guarded| guarded.0.ok()).map(|provider| provider.spec))
}

async fn template(ctx: &Context, name: &str) -> Result<Option<agentrun_crds::AgentTemplateSpec>, Error> {
    let templates: Api<DeserializeGuard<AgentTemplate>> = Api::namespaced(ctx.client.clone(), &ctx.settings.namespace);
    let found = templates.get_opt(name).await.map_err(Error::api("read the AgentTemplate"))?;
    Ok(found.and_then(|guarded| guarded.0.ok()).map(|template| template.spec))
}

async fn record(ctx: &Context, owner: &Owner) -> Result<Option<AgentRunRecordSpec>, Error> {
    let records: Api<DeserializeGuard<AgentRunRecord>> = Api::namespaced(ctx.client.clone(), &owner.namespace);
    let found = records.get_opt(&owner.name).await.map_err(Error::api("read the AgentRunRecord"))?;
    Ok(found.and_then(|guarded| guarded.0.ok()).map(|record| record.spec))
}

/// All runs of a namespace, read consistently, page by page.
async fn peers(ctx: &Context, namespace: &str) -> Result<Vec<Peer>, Error> {
    let runs: Api<SlimRun> = Api::namespaced(ctx.client.clone(), namespace);
    let mut params = ListParams::default().limit(PAGE);
    let mut peers = Vec::new();
    loop {
        let page = runs.list(&params).await.map_err(Error::api("list the namespace's AgentRuns"))?;
        peers.extend(page.items.iter().map(Peer::from));
        match page.metadata.continue_.filter(|token| !token.is_empty()) {
            Some(token) => params = params.continue_token(&token),
            None => return Ok(peers),
        }
    }
}

async fn gateway(ctx: &Context) -> Result<Option<Gateway>, Error> {
    let services: Api<Service> = Api::namespaced(ctx.client.clone(), &ctx.settings.namespace);
    let name = &ctx.settings.gateway_service;
    let spec = services.get_opt(name).await.map_err(Error::api("read the gateway's Service"))?.and_then(|service| service.spec);
    let Some(spec) = spec else { return Ok(None) };
    let address = spec.cluster_ip.filter(|address| !address.is_empty() && address != "None");
    let selector = spec.selector.filter(|selector| !selector.is_empty());
    Ok(address.zip(selector).map(|(address, selector)| Gateway {
        namespace: ctx.settings.namespace.clone(),
        service: name.clone(),
        address,
        selector,
    }))
}

async fn platform(ctx: &Context) -> Result<Option<Platform>, Error> {
    let secrets: Api<Secret> = Api::namespaced(ctx.client.clone(), &ctx.settings.namespace);
    let (gateway, secret) = tokio::join!(gateway(ctx), secrets.get_opt(names::SERVING_SECRET));
    let secret = secret.map_err(Error::api("read the gateway's certificate"))?;
    let ca = secret.and_then(|secret| secret.data).and_then(|mut data| data.remove("ca.crt"));
    let ca = ca.and_then(|bytes| String::from_utf8(bytes.0).ok()).filter(|ca| !ca.trim().is_empty());
    Ok(gateway?.zip(ca).map(|(gateway, ca)| Platform { gateway, ca }))
}

async fn making(ctx: &Context, owner: &Owner) -> Result<Making, Error> {
    let accounts: Api<ServiceAccount> = Api::namespaced(ctx.client.clone(), &owner.namespace);
    let account = accounts.get_opt(names::SANDBOX_SERVICE_ACCOUNT).await.map_err(Error::api("read the sandboxes' ServiceAccount"))?;
    Ok(Making { image: ctx.settings.image.clone(), probed: ctx.settings.probed.clone(), account: account.is_some() })
}

async fn fence(ctx: &Context, owner: &Owner) -> Result<Fence, Error> {
    let policies: Api<NetworkPolicy> = Api::namespaced(ctx.client.clone(), &owner.namespace);
    let params = ListParams::default();
    let (gateway, policies) = tokio::join!(gateway(ctx), policies.list(&params));
    let policies = policies.map_err(Error::api("list the namespace's NetworkPolicies"))?.items;
    let gateway = gateway?;
    ctx.remember(gateway.clone());
    Ok(Fence { gateway, policies })
}

/// What the caches know; `None` where only a live look can tell.
pub fn cached(ctx: &Context, caches: &Caches, run: &AgentRun) -> Option<Facts> {
    let owner = Owner::of(run);
    let pod = || {
        let found = caches.pods.get(&ObjectRef::new(&owner.child_name(attempt(run))).within(&owner.namespace));
        seen(&owner, found.map(|pod| (*pod).clone()))
    };
    match stage(run) {
        Stage::Waiting => None,
        Stage::Started => {
            let inside = |policy: &NetworkPolicy| policy.metadata.namespace.as_ref() == Some(&owner.namespace);
            let policies = caches.network_policies.state_filter(inside).iter().map(|policy| (**policy).clone()).collect();
            let fence = Fence { gateway: Some(ctx.remembered()?), policies };
            Some(Facts::Started { pod: pod(), fence, making: None })
        }
        Stage::Ended => Some(Facts::Ended { pod: pod() }),
    }
}

/// Whether an accepted run has, by the caches, no chance to start now. A wrong answer is put right by the next change of a
/// run of the namespace, or by the slow look.
pub fn waits(caches: &Caches, run: &AgentRun) -> bool {
    let queued = run.status.as_ref().is_some_and(|status| status.phase == Some(Phase::Queued) && status.resolved.is_some());
    if stage(run) != Stage::Waiting || !queued || run.spec.cancel {
        return false;
    }
    let namespace = run.namespace().unwrap_or_default();
    let policy = caches.policies.get(&ObjectRef::new(names::POLICY).within(&namespace));
    let Some(Ok(policy)) = policy.as_ref().map(|policy| policy.0.as_ref()) else { return false };
    let concurrent = policy.spec.limits.concurrent_runs.unwrap_or(resolve::DEFAULT_CONCURRENT_RUNS);
    queue::decide(&Peer::from(run), &peers_cached(caches, &namespace), concurrent, i64::MAX) == Decision::Wait
}

/// A namespace's runs, as the watch knows them.
pub fn peers_cached(caches: &Caches, namespace: &str) -> Vec<Peer> {
    let runs = caches.runs.state_filter(|run| kube::Resource::meta(run).namespace.as_deref() == Some(namespace));
    runs.iter().filter_map(|run| run.0.as_ref().ok()).map(Peer::from).collect()
}
