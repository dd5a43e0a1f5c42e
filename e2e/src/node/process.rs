//! Processes of Pods as the machine sees them, and programs run inside containers. The local node's processes are this
//! machine's, so a crash is a real SIGKILL, and what a container could read can be looked at from outside.

use std::path::PathBuf;
use std::process::{Output, Stdio};

use anyhow::{Context, Result, bail, ensure};
use k8s_openapi::api::core::v1::Pod;
use kube::api::{DeleteParams, ListParams};
use kube::{Api, ResourceExt};

use super::{Node, SYSTEM, Story, Within, until, until_gone};

/// A process of a container.
#[derive(Debug, Clone)]
pub struct Process {
    pub pid: u32,
    /// NUL-separated, as the kernel gives it.
    pub arguments: Vec<u8>,
    pub environment: Vec<u8>,
}

impl Process {
    /// The container's root directory, seen from here.
    pub fn root(&self) -> PathBuf {
        format!("/proc/{}/root", self.pid).into()
    }
}

/// The processes of one container of a Pod; empty once it has ended.
pub fn processes(pod: &Pod, container: &str) -> Result<Vec<Process>> {
    let status = pod.status.as_ref().context("the Pod has no status")?;
    let all = status.container_statuses.iter().chain(&status.init_container_statuses).flatten();
    let id = all.filter(|status| status.name == container).find_map(|status| status.container_id.as_deref());
    let id = id.and_then(|id| id.rsplit('/').next()).with_context(|| format!("container {container} has no id yet"))?;
    let mut found = Vec::new();
    for entry in std::fs::read_dir("/proc")?.flatten() {
        let Some(pid) = entry.file_name().to_str().and_then(|name| name.parse().ok()) else { continue };
        let read = |file: &str| std::fs::read(entry.path().join(file)).unwrap_or_default();
        if String::from_utf8_lossy(&read("cgroup")).contains(id) {
            found.push(Process { pid, arguments: read("cmdline"), environment: read("environ") });
        }
    }
    Ok(found)
}

impl Node {
    /// The running Pod of `operator` or `gateway`.
    pub async fn component(&self, name: &str) -> Result<Pod> {
        let pods: Api<Pod> = Api::namespaced(self.client.clone(), SYSTEM);
        let selected = ListParams::default().labels(&format!("app.kubernetes.io/name=agentrun,app.kubernetes.io/component={name}"));
        let found = pods.list(&selected).await?.items.into_iter().find(|pod| pod.metadata.deletion_timestamp.is_none() && is_ready(pod));
        found.with_context(|| format!("no Pod of the {name} is ready"))
    }

    /// Kill a component's process without a warning. Its Pod is removed too, so that the next one starts without the
    /// kubelet's growing pause after a crash.
    pub async fn crash(&self, name: &str) -> Result<()> {
        let pod = self.component(name).await?;
        let killed = processes(&pod, name)?;
        ensure!(!killed.is_empty(), "no process of the {name} was found on this machine");
        for process in &killed {
            // It may be gone by itself in the meantime.
            std::process::Command::new("kill").args(["-KILL", &process.pid.to_string()]).stderr(Stdio::null()).status()?;
        }
        let pods: Api<Pod> = Api::namespaced(self.client.clone(), SYSTEM);
        pods.delete(&pod.name_any(), &DeleteParams::default().grace_period(0)).await?;
        Ok(())
    }

    /// Wait until a component has a ready Pod again, other than `before`.
    pub async fn until_recovered(&self, name: &str, before: &str) -> Result<()> {
        use k8s_openapi::api::apps::v1::{Deployment, StatefulSet};
        let full = format!("agentrun-{name}");
        match name {
            "gateway" => {
                let pods: Api<Pod> = Api::namespaced(self.client.clone(), SYSTEM);
                let sets: Api<StatefulSet> = Api::namespaced(self.client.clone(), SYSTEM);
                let replaced = |pod: &Pod| pod.uid().is_some_and(|uid| uid != before) && is_ready(pod);
                until(&pods, &format!("{full}-0"), Within::Long, "its successor is ready", replaced).await?;
                until(&sets, &full, Within::Long, "it is ready", |set| {
                    set.status.as_ref().is_some_and(|status| status.ready_replicas == Some(1))
                })
                .await
                .map(drop)
            }
            _ => {
                let deployments: Api<Deployment> = Api::namespaced(self.client.clone(), SYSTEM);
                until(&deployments, &full, Within::Long, "it is available", |deployment| {
                    deployment.status.as_ref().is_some_and(|status| status.available_replicas == Some(1))
                })
                .await
                .map(drop)
            }
        }
    }

    /// The path of kubectl: that of the local cluster, else the one on the path.
    pub fn kubectl(&self) -> PathBuf {
        std::env::var_os("AGENTRUN_BIN").map_or_else(|| "kubectl".into(), |bin| PathBuf::from(bin).join("kubectl"))
    }
}

impl Story {
    /// Run a program in a container of a Pod, as somebody with `kubectl exec` would.
    pub async fn exec(&self, pod: &str, container: &str, argv: &[&str]) -> Result<Output> {
        let mut command = tokio::process::Command::new(self.node.kubectl());
        command.arg("--kubeconfig").arg(&self.node.kubeconfig).args([
            "--namespace",
            &self.namespace,
            "exec",
            pod,
            "--container",
            container,
            "--",
        ]);
        command.args(argv).stdin(Stdio::null()).kill_on_drop(true);
        match tokio::time::timeout(Within::Medium.duration(), command.output()).await {
            Ok(output) => Ok(output.context("starting kubectl")?),
            Err(_) => bail!("kubectl exec {argv:?} did not end in {:?}", Within::Medium.duration()),
        }
    }

    /// End a Pod as a node that fails would: its processes at once, no grace.
    pub async fn kill_pod(&self, name: &str) -> Result<()> {
        self.pods.delete(name, &DeleteParams::default().grace_period(0)).await?;
        until_gone(&self.pods, name, Within::Short).await
    }
}

fn is_ready(pod: &Pod) -> bool {
    let conditions = pod.status.as_ref().and_then(|status| status.conditions.as_ref());
    conditions.into_iter().flatten().any(|condition| condition.type_ == "Ready" && condition.status == "True")
}
