//! One operator and one gateway, each behind a proxy of its own, on an API server without nodes.

use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use agentrun_crds::{AgentPolicy, names};
use agentrun_e2e::fault_proxy::FaultProxy;
use agentrun_e2e::gateways::{Addresses, Bed, MODEL, upstream};
use agentrun_e2e::programs::program;
use agentrun_scripted_model::{Script, Turn};
use anyhow::{Context, Result};
use k8s_openapi::api::core::v1::Service;
use kube::Api;
use kube::api::PostParams;
use serde_json::json;
use tokio::sync::{Mutex, MutexGuard};

use super::process::Restarted;

/// How long faults and crashes may hold a run up, once they have stopped.
pub const PATIENCE: Duration = Duration::from_secs(60);

/// An operator takes every run of the cluster for its own, so there is one world at a time.
static TURN: Mutex<()> = Mutex::const_new(());

pub struct World {
    pub bed: Bed,
    pub addresses: Addresses,
    pub operator_proxy: FaultProxy,
    pub gateway_proxy: FaultProxy,
    pub operator: Restarted,
    pub gateway: Restarted,
    _turn: MutexGuard<'static, ()>,
}

impl World {
    pub async fn start() -> Result<World> {
        let turn = TURN.lock().await;
        let bed = Bed::start(Script::new("", [Turn::say("yes")])).await?;
        let service: Service = serde_json::from_value(json!({
            "metadata": {"name": names::GATEWAY},
            "spec": {"selector": {"app": "gateway"}, "ports": [{"name": "sandbox", "port": names::SANDBOX_PORT}]},
        }))?;
        Api::<Service>::namespaced(bed.client.clone(), &bed.system).create(&PostParams::default(), &service).await?;
        let operator_proxy = FaultProxy::start(bed.server, "operator").await?;
        let gateway_proxy = FaultProxy::start(bed.server, "gateway").await?;
        let addresses = Addresses::free()?;

        let operator = Restarted::start(operator(&bed, &operator_proxy)?);
        let gateway = bed.gateway_command("g", &addresses, &gateway_proxy.kubeconfig, &["--drain-seconds=2"])?.0;
        let gateway = Restarted::start(gateway);
        let world = World { bed, addresses, operator_proxy, gateway_proxy, operator, gateway, _turn: turn };
        world.ready().await?;
        Ok(world)
    }

    /// Until the gateway serves.
    pub async fn ready(&self) -> Result<()> {
        let url = format!("http://{}/readyz", self.addresses.operations);
        let http = reqwest::Client::new();
        let asking = async {
            while !http.get(&url).send().await.is_ok_and(|answer| answer.status().is_success()) {
                tokio::time::sleep(Duration::from_millis(50)).await; // readiness can only be polled
            }
        };
        tokio::time::timeout(PATIENCE, asking).await.context("the gateway is not ready")
    }

    /// A namespace with a policy for the next run.
    pub async fn next_namespace(&mut self) -> Result<()> {
        self.bed.team = self.bed.server.namespace("team").await;
        let policy: AgentPolicy = serde_json::from_value(json!({
            "apiVersion": "agentrun.dev/v1alpha1", "kind": "AgentPolicy", "metadata": {"name": names::POLICY},
            "spec": {
                "models": [{"name": MODEL, "provider": "scripted", "model": upstream()}],
                "images": ["none"], "defaultImage": "none",
            },
        }))?;
        Api::<AgentPolicy>::namespaced(self.bed.client.clone(), &self.bed.team).create(&PostParams::default(), &policy).await?;
        Ok(())
    }
}

fn operator(bed: &Bed, proxy: &FaultProxy) -> Result<Command> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../target/test-logs/faults");
    std::fs::create_dir_all(&folder)?;
    let log = folder.join(format!("{}-operator.log", std::process::id()));
    let output = std::fs::File::options().create(true).append(true).open(log)?;
    // The process ends with the thread of its test, whatever happens to us.
    let mut command = Command::new("setpriv");
    command
        .args(["--pdeathsig", "KILL", "--"])
        .arg(program("agentrun-operator")?)
        .arg(format!("--namespace={}", bed.system))
        .args([
            "--pod-name=operator",
            "--runner-image=none",
            "--api-server-address=127.0.0.1",
            "--manage-certificates=false",
            "--listen=127.0.0.1:0",
        ])
        .env_clear()
        .env("KUBECONFIG", &proxy.kubeconfig)
        .env("RUST_LOG", "info")
        .stdin(Stdio::null())
        .stdout(output.try_clone()?)
        .stderr(output);
    Ok(command)
}
