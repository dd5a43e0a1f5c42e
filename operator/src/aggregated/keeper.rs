//! Keeps the APIService as `registration` says: looks every few seconds, and writes where something has changed.

use std::time::Duration;

use agentrun_crds::names;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Secret, Service};
use k8s_openapi::api::discovery::v1::EndpointSlice;
use k8s_openapi::api::rbac::v1::ClusterRole;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;
use k8s_openapi::kube_aggregator::pkg::apis::apiregistration::v1::APIService;
use kube::api::{Api, DeleteParams, ListParams, Patch, PatchParams, PostParams, Preconditions};
use kube::core::PartialObjectMeta;
use serde_json::json;

use super::registration::{self, Found, Step};
use crate::context::Context;
use crate::error::Error;

const PERIOD: Duration = Duration::from_secs(3);
/// For one look and its write.
const DEADLINE: Duration = Duration::from_secs(15);
/// The gateway has one replica today; the list has a bound all the same.
const MOST_SLICES: u32 = 100;

/// Since when no gateway has been ready; survives from look to look.
#[derive(Debug, Default)]
pub struct Keeper {
    unready: Option<Timestamp>,
}

/// For ever; failures are logged and tried again.
pub async fn run(ctx: &Context) {
    let mut keeper = Keeper::default();
    let mut last = String::new();
    loop {
        let looked = tokio::time::timeout(DEADLINE, keeper.keep(ctx)).await.unwrap_or(Err(Error::Timeout(DEADLINE)));
        let said = looked.err().map(|error| error.to_string()).unwrap_or_default();
        if !said.is_empty() && said != last {
            tracing::warn!("the registration of run.agentrun.dev could not be looked after; trying again: {said}");
        }
        last = said;
        tokio::time::sleep(PERIOD).await;
    }
}

impl Keeper {
    /// One look and what follows from it.
    pub async fn keep(&mut self, ctx: &Context) -> Result<(), Error> {
        let found = find(ctx).await?;
        ctx.metrics.registered.set(i64::from(found.registered.is_some()));
        let now = (ctx.clock)();
        self.unready = if found.ready() { None } else { Some(self.unready.unwrap_or(now)) };
        let step = registration::decide(&found, &ctx.settings.namespace, &ctx.settings.gateway_service, self.unready, now);
        apply(ctx, step).await
    }
}

async fn find(ctx: &Context) -> Result<Found, Error> {
    let client = || ctx.client.clone();
    let namespace = ctx.settings.namespace.as_str();
    let registrations: Api<APIService> = Api::all(client());
    let services: Api<Service> = Api::namespaced(client(), namespace);
    let slices: Api<EndpointSlice> = Api::namespaced(client(), namespace);
    let secrets: Api<Secret> = Api::namespaced(client(), namespace);
    let roles: Api<ClusterRole> = Api::all(client());
    let name = registration::name();
    let of_gateway =
        ListParams::default().labels(&format!("kubernetes.io/service-name={}", ctx.settings.gateway_service)).limit(MOST_SLICES);
    let (registered, service, endpoints, secret, role) = tokio::join!(
        registrations.get_opt(&name),
        services.get_opt(&ctx.settings.gateway_service),
        slices.list(&of_gateway),
        secrets.get_opt(names::SERVING_SECRET),
        roles.get_metadata_opt(names::OPERATOR),
    );
    let secret = secret.map_err(Error::api("read the gateway's certificate"))?;
    let ca = secret.and_then(|secret| secret.data).and_then(|mut data| data.remove("ca.crt"));
    let role = role.map_err(Error::api("read the operator's ClusterRole"))?;
    Ok(Found {
        registered: registered.map_err(Error::api("read the registration of run.agentrun.dev"))?,
        service: service.map_err(Error::api("read the gateway's Service"))?,
        endpoints: endpoints.map_err(Error::api("list the gateway's endpoints"))?.items,
        ca: ca.and_then(|bytes| String::from_utf8(bytes.0).ok()).filter(|ca| !ca.trim().is_empty()),
        owner: role.and_then(|role| owner(&role)),
    })
}

fn owner(role: &PartialObjectMeta<ClusterRole>) -> Option<OwnerReference> {
    Some(OwnerReference {
        api_version: "rbac.authorization.k8s.io/v1".into(),
        kind: "ClusterRole".into(),
        name: role.metadata.name.clone()?,
        uid: role.metadata.uid.clone()?,
        ..OwnerReference::default()
    })
}

async fn apply(ctx: &Context, step: Step) -> Result<(), Error> {
    let registrations: Api<APIService> = Api::all(ctx.client.clone());
    let name = registration::name();
    let result = match step {
        Step::Nothing => return Ok(()),
        Step::LeaveAlone => {
            tracing::debug!(name, "an APIService of this name is somebody else's");
            return Ok(());
        }
        Step::Register(wanted) => {
            tracing::info!(name, "a gateway is ready: registering its API");
            let parameters = PostParams { field_manager: Some(names::OPERATOR.into()), ..PostParams::default() };
            registrations.create(&parameters, &wanted).await.map(|_| ())
        }
        Step::Correct { wanted, version } => {
            tracing::info!(name, "correcting the registration of the gateway's API");
            let patch = json!({
                "metadata": {"resourceVersion": version, "ownerReferences": wanted.metadata.owner_references},
                "spec": patch(&wanted),
            });
            let parameters = PatchParams { field_manager: Some(names::OPERATOR.into()), ..PatchParams::default() };
            registrations.patch(&name, &parameters, &Patch::Merge(patch)).await.map(|_| ())
        }
        Step::Withdraw { uid } => {
            tracing::warn!(name, "no gateway is ready: withdrawing its API, which would block the deletion of namespaces");
            let parameters = DeleteParams::default().preconditions(Preconditions { uid, resource_version: None });
            registrations.delete(&name, &parameters).await.map(|_| ())
        }
    };
    match result {
        Ok(()) => Ok(()),
        // Somebody was faster: the next look tells.
        Err(kube::Error::Api(status)) if status.is_conflict() || status.is_already_exists() || status.is_not_found() => Ok(()),
        Err(source) => Err(Error::Api { what: "write the registration of run.agentrun.dev", source }),
    }
}

/// A merge patch leaves what it does not name, so what must not be there is named.
fn patch(wanted: &APIService) -> serde_json::Value {
    let mut spec = serde_json::to_value(&wanted.spec).expect("a spec is plain data");
    spec["insecureSkipTLSVerify"] = serde_json::Value::Null;
    spec
}
