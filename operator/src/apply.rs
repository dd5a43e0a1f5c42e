//! The only file that writes to Kubernetes for a run. Names are functions of the run, so repeating a write is harmless;
//! status is written against the resourceVersion that was read; Pods are deleted by UID.

use agentrun_crds::agent_run_status::AgentRunStatus;
use agentrun_crds::{AgentRun, AgentRunRecord, names};
use k8s_openapi::api::core::v1::{Pod, Secret, ServiceAccount};
use k8s_openapi::api::networking::v1::NetworkPolicy;
use kube::api::{Api, DeleteParams, Patch, PatchParams, PostParams, Preconditions};
use kube::core::{ObjectMeta, PartialObjectMeta};
use serde_json::{Value, json};

use crate::agent_run::merge;
use crate::agent_run::objects::{Owner, account, pod, ticket};
use crate::agent_run::plan::{Write, attempt};
use crate::agent_run::report;
use crate::agent_run::sandbox::clean;
use crate::context::Context;
use crate::error::Error;

/// How a write went.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Applied {
    Done,
    /// The run itself was written; it has this resourceVersion now, and is otherwise as the plan knows it.
    Run(String),
    /// Somebody else wrote first: look again.
    Conflict,
    /// The API server will not have this child: a reason for people.
    Refused(String),
}

/// Do one write.
pub async fn apply(ctx: &Context, run: &AgentRun, write: Write) -> Result<Applied, Error> {
    let owner = Owner::of(run);
    let attempt = attempt(run);
    let name = owner.child_name(attempt);
    let namespace = owner.namespace.as_str();
    match write {
        Write::AddFinalizer => finalizers(ctx, run, true).await,
        Write::RemoveFinalizer => finalizers(ctx, run, false).await,
        Write::Status(next) => status(ctx, run, &next).await,
        Write::CreateTicket { ticket, ca } => {
            let secrets: Api<Secret> = Api::namespaced(ctx.client.clone(), namespace);
            create_ticket(&secrets, &ticket::secret(&owner, attempt, &ticket, &ca)).await
        }
        Write::CreateAccount => {
            let accounts: Api<ServiceAccount> = Api::namespaced(ctx.client.clone(), namespace);
            created("create the sandboxes' ServiceAccount", accounts.create(&posted(), &account::account(namespace)).await)
        }
        Write::CreatePolicy(policy) => {
            let policies: Api<NetworkPolicy> = Api::namespaced(ctx.client.clone(), namespace);
            created("create a NetworkPolicy", policies.create(&posted(), &policy).await)
        }
        Write::RestorePolicy { found, wanted } => restore_policy(ctx, namespace, &found, &wanted).await,
        Write::CreatePod(pod) => {
            let pods: Api<Pod> = Api::namespaced(ctx.client.clone(), namespace);
            created("create the sandbox's Pod", pods.create(&posted(), &pod).await)
        }
        Write::DeletePod { name, uid, force } => {
            delete_pod(ctx, namespace, &name, &uid, force).await?;
            Ok(Applied::Done)
        }
        // By name, without looking: the operator may not read Secrets outside its namespace, and no other run has this name.
        Write::DeleteTicket => {
            let secrets: Api<Secret> = Api::namespaced(ctx.client.clone(), namespace);
            deleted("delete the ticket Secret", secrets.delete(&name, &DeleteParams::default()).await)
        }
        Write::DeletePolicy => delete_policy(ctx, &owner, &name).await,
        Write::KeepRecord(record) => keep_record(ctx, namespace, &record).await,
        Write::DeleteRun => {
            let runs: Api<AgentRun> = Api::namespaced(ctx.client.clone(), namespace);
            deleted("delete the finished AgentRun", runs.delete(&owner.name, &by_uid(&owner.uid)).await)
        }
    }
}

fn posted() -> PostParams {
    PostParams { field_manager: Some(names::OPERATOR.into()), ..PostParams::default() }
}

fn patched() -> PatchParams {
    PatchParams { field_manager: Some(names::OPERATOR.into()), ..PatchParams::default() }
}

fn by_uid(uid: &str) -> DeleteParams {
    DeleteParams::default().preconditions(Preconditions { uid: Some(uid.to_owned()), resource_version: None })
}

/// One that is there already was made by an earlier try, or is somebody's: the next look tells.
fn created<T>(what: &'static str, result: kube::Result<T>) -> Result<Applied, Error> {
    match result {
        Ok(_) => Ok(Applied::Done),
        Err(kube::Error::Api(status)) if status.is_already_exists() => Ok(Applied::Done),
        Err(kube::Error::Api(status)) if matches!(status.code, 400 | 403 | 422) && !lacks_right(&status) => {
            Ok(Applied::Refused(clean(&status.message)))
        }
        Err(source) => Err(Error::Api { what, source }),
    }
}

/// Refused for who we are, not for what the child is: the installation is at fault, not the run.
fn lacks_right(status: &kube::core::Status) -> bool {
    status.code == 403 && status.message.contains("cannot create resource")
}

fn deleted<T>(what: &'static str, result: kube::Result<T>) -> Result<Applied, Error> {
    match result {
        Ok(_) => Ok(Applied::Done),
        Err(kube::Error::Api(status)) if status.is_not_found() => Ok(Applied::Done),
        // Another object has that name by now.
        Err(kube::Error::Api(status)) if status.is_conflict() => Ok(Applied::Conflict),
        Err(source) => Err(Error::Api { what, source }),
    }
}

fn patched_or_conflict<T>(what: &'static str, result: kube::Result<T>) -> Result<Applied, Error> {
    match result {
        Ok(_) => Ok(Applied::Done),
        Err(kube::Error::Api(status)) if status.is_conflict() || status.is_not_found() => Ok(Applied::Conflict),
        Err(source) => Err(Error::Api { what, source }),
    }
}

/// A ticket whose hash no status knows is worthless, so one left by an earlier try is replaced, not read.
async fn create_ticket(secrets: &Api<Secret>, secret: &Secret) -> Result<Applied, Error> {
    const WHAT: &str = "create the ticket Secret";
    match secrets.create(&posted(), secret).await {
        Err(kube::Error::Api(status)) if status.is_already_exists() => {
            let name = secret.metadata.name.as_deref().unwrap_or_default();
            deleted("replace a ticket Secret", secrets.delete(name, &DeleteParams::default()).await)?;
            match secrets.create(&posted(), secret).await {
                Err(kube::Error::Api(status)) if status.is_already_exists() => Ok(Applied::Conflict),
                result => created(WHAT, result),
            }
        }
        result => created(WHAT, result),
    }
}

async fn finalizers(ctx: &Context, run: &AgentRun, held: bool) -> Result<Applied, Error> {
    let others = run.metadata.finalizers.iter().flatten().filter(|finalizer| *finalizer != names::FINALIZER);
    let list: Vec<&str> = others.map(String::as_str).chain(held.then_some(names::FINALIZER)).collect();
    let patch = json!({"metadata": {"resourceVersion": run.metadata.resource_version, "finalizers": list}});
    let owner = Owner::of(run);
    let runs: Api<AgentRun> = Api::namespaced(ctx.client.clone(), &owner.namespace);
    match runs.patch_metadata(&owner.name, &patched(), &Patch::Merge(patch)).await {
        Ok(PartialObjectMeta { metadata: ObjectMeta { resource_version: Some(version), .. }, .. }) => Ok(Applied::Run(version)),
        result => patched_or_conflict("write the finalizer", result),
    }
}

/// Only what differs is sent, so what others own and what we do not know stays as it is.
async fn status(ctx: &Context, run: &AgentRun, next: &AgentRunStatus) -> Result<Applied, Error> {
    let before = run.status.clone().unwrap_or_default();
    let Some(changes) = merge::diff(&value(&before), &value(next)) else { return Ok(Applied::Done) };
    let owner = Owner::of(run);
    let runs: Api<AgentRun> = Api::namespaced(ctx.client.clone(), &owner.namespace);
    let patch = json!({"metadata": {"resourceVersion": run.metadata.resource_version}, "status": changes});
    let applied = patched_or_conflict("write the status", runs.patch_status(&owner.name, &patched(), &Patch::Merge(patch)).await)?;
    if applied == Applied::Done {
        report::changed(ctx, run, &before, next).await;
    }
    Ok(applied)
}

fn value(status: &AgentRunStatus) -> Value {
    serde_json::to_value(status).expect("a status is plain data")
}

async fn restore_policy(ctx: &Context, namespace: &str, found: &NetworkPolicy, wanted: &NetworkPolicy) -> Result<Applied, Error> {
    let spec = |policy: &NetworkPolicy| serde_json::to_value(&policy.spec).expect("a policy is plain data");
    let Some(changes) = merge::diff(&spec(found), &spec(wanted)) else { return Ok(Applied::Done) };
    let name = found.metadata.name.as_deref().unwrap_or_default();
    tracing::warn!(namespace, name, "a NetworkPolicy of the sandboxes was changed; restoring it");
    let policies: Api<NetworkPolicy> = Api::namespaced(ctx.client.clone(), namespace);
    let patch = json!({"metadata": {"resourceVersion": found.metadata.resource_version}, "spec": changes});
    patched_or_conflict("restore a NetworkPolicy", policies.patch(name, &patched(), &Patch::Merge(patch)).await)
}

/// Delete this Pod and no successor of its name.
pub async fn delete_pod(ctx: &Context, namespace: &str, name: &str, uid: &str, force: bool) -> Result<(), Error> {
    let grace = if force { 0 } else { u32::try_from(pod::GRACE_SECONDS).unwrap_or(0) };
    let pods: Api<Pod> = Api::namespaced(ctx.client.clone(), namespace);
    deleted("delete the sandbox's Pod", pods.delete(name, &by_uid(uid).grace_period(grace)).await).map(|_| ())
}

/// One record a name: that of the last run. Where the namespace is being deleted nothing can be created, and nobody is left for
/// whom a record would matter.
async fn keep_record(ctx: &Context, namespace: &str, record: &AgentRunRecord) -> Result<Applied, Error> {
    let records: Api<AgentRunRecord> = Api::namespaced(ctx.client.clone(), namespace);
    match records.create(&posted(), record).await {
        Ok(_) => return Ok(Applied::Done),
        Err(kube::Error::Api(status)) if status.is_already_exists() => {}
        Err(kube::Error::Api(status)) if namespace_ends(&status) => return Ok(Applied::Done),
        Err(source) => return Err(Error::Api { what: "keep the record of the run", source }),
    }
    let name = record.metadata.name.as_deref().unwrap_or_default();
    let found = records.get_opt(name).await.map_err(Error::api("read the record of an earlier run"))?;
    let Some(found) = found else { return Ok(Applied::Conflict) };
    let value = |record: &AgentRunRecord| json!({"metadata": {"labels": record.metadata.labels}, "spec": record.spec});
    let Some(mut changes) = merge::diff(&value(&found), &value(record)) else { return Ok(Applied::Done) };
    changes["metadata"]["resourceVersion"] = json!(found.metadata.resource_version);
    patched_or_conflict("replace the record of an earlier run", records.patch(name, &patched(), &Patch::Merge(changes)).await)
}

fn namespace_ends(status: &kube::core::Status) -> bool {
    let causes = status.details.as_ref().map(|details| details.causes.as_slice()).unwrap_or_default();
    status.code == 403 && causes.iter().any(|cause| cause.reason == "NamespaceTerminating")
}

/// Only ours, and only the one that was looked at.
async fn delete_policy(ctx: &Context, owner: &Owner, name: &str) -> Result<Applied, Error> {
    let policies: Api<NetworkPolicy> = Api::namespaced(ctx.client.clone(), &owner.namespace);
    let found = policies.get_opt(name).await.map_err(Error::api("read the NetworkPolicy"))?;
    match found {
        Some(policy) if owner.controls(&policy.metadata) => {
            let uid = policy.metadata.uid.as_deref().unwrap_or_default();
            deleted("delete the NetworkPolicy", policies.delete(name, &by_uid(uid)).await)
        }
        _ => Ok(Applied::Done),
    }
}
