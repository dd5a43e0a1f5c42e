//! A gateway behind the API server: the Service and the APIService that the operator would make.

use std::time::Duration;

use agentrun_crds::names::{AGGREGATED_GROUP, AGGREGATED_VERSION, GATEWAY};
use anyhow::{Context, Result};
use k8s_openapi::ByteString;
use k8s_openapi::api::core::v1::{Service, ServiceSpec};
use k8s_openapi::kube_aggregator::pkg::apis::apiregistration::v1::{APIService, APIServiceSpec, ServiceReference};
use kube::Api;
use kube::api::{DeleteParams, PostParams};
use kube::runtime::wait::{await_condition, conditions::is_deleted};
use tokio::sync::{Mutex, MutexGuard};

use super::{Bed, Gateway, named};

const PATIENCE: Duration = Duration::from_secs(60);
/// A cluster has one APIService of our group, so tests that need it take turns.
static TURN: Mutex<()> = Mutex::const_new(());

/// Our group is served by one gateway for as long as this lives.
pub struct Aggregated {
    services: Api<APIService>,
    _turn: MutexGuard<'static, ()>,
}

impl Bed {
    /// Let the API server pass our group on to this gateway; done when it says that it does.
    pub async fn aggregate(&self, gateway: &Gateway) -> Result<Aggregated> {
        let turn = TURN.lock().await;
        let aggregated = Aggregated { services: Api::all(self.client.clone()), _turn: turn };
        // Of a test that has failed.
        aggregated.withdraw().await?;
        aggregated.register(self, gateway).await?;
        Ok(aggregated)
    }
}

impl Aggregated {
    /// Serve our group by this gateway, as after `withdraw`, without giving the turn to another test in between.
    pub async fn register(&self, bed: &Bed, gateway: &Gateway) -> Result<()> {
        // The processes of this tier are on loopback, which no Endpoints may name.
        let elsewhere =
            ServiceSpec { type_: Some("ExternalName".into()), external_name: Some("localhost".into()), ..ServiceSpec::default() };
        let service = Service { metadata: named(GATEWAY), spec: Some(elsewhere), status: None };
        let services: Api<Service> = Api::namespaced(bed.client.clone(), &bed.system);
        if services.get_opt(GATEWAY).await?.is_none() {
            services.create(&PostParams::default(), &service).await?;
        }
        let spec = APIServiceSpec {
            group: Some(AGGREGATED_GROUP.into()),
            version: Some(AGGREGATED_VERSION.into()),
            ca_bundle: Some(ByteString(bed.authority.clone().into_bytes())),
            service: Some(ServiceReference {
                namespace: Some(bed.system.clone()),
                name: Some(GATEWAY.into()),
                port: Some(gateway.aggregated.port().into()),
            }),
            group_priority_minimum: 1000,
            version_priority: 10,
            ..APIServiceSpec::default()
        };
        let object = APIService { metadata: named(&name()), spec: Some(spec), status: None };
        self.services.create(&PostParams::default(), &object).await?;
        let available = |object: Option<&APIService>| {
            let conditions = object.and_then(|object| object.status.as_ref()).and_then(|status| status.conditions.as_ref());
            conditions.is_some_and(|all| all.iter().any(|one| one.type_ == "Available" && one.status == "True"))
        };
        let name = name();
        let waiting = await_condition(self.services.clone(), &name, available);
        if tokio::time::timeout(PATIENCE, waiting).await.is_err() {
            let status = self.services.get_status(&name).await.ok().and_then(|object| object.status);
            anyhow::bail!("the APIService does not become available: {status:?}");
        }
        Ok(())
    }

    /// Take it away again.
    pub async fn withdraw(&self) -> Result<()> {
        let Some(object) = self.services.get_opt(&name()).await? else { return Ok(()) };
        let uid = object.metadata.uid.context("a UID")?;
        self.services.delete(&name(), &DeleteParams::default()).await?;
        tokio::time::timeout(PATIENCE, await_condition(self.services.clone(), &name(), is_deleted(&uid))).await??;
        Ok(())
    }
}

fn name() -> String {
    format!("{AGGREGATED_VERSION}.{AGGREGATED_GROUP}")
}
