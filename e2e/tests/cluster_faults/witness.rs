//! Watches a namespace from outside, past the proxies, and remembers what must never be.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, PoisonError};

use agentrun_crds::AgentRun;
use agentrun_crds::agent_run_status::Phase;
use anyhow::{Result, ensure};
use futures::StreamExt;
use k8s_openapi::api::core::v1::Pod;
use kube::runtime::{WatchStreamExt, watcher};
use kube::{Api, ResourceExt};

#[derive(Default)]
struct Seen {
    /// In the order in which they were seen, without repeats.
    phases: Vec<Phase>,
    pods: BTreeSet<String>,
}

pub struct Witness {
    seen: Arc<Mutex<Seen>>,
    tasks: [tokio::task::JoinHandle<()>; 2],
}

impl Witness {
    pub fn of(client: &kube::Client, namespace: &str) -> Witness {
        let seen = Arc::new(Mutex::<Seen>::default());
        let runs = watcher(Api::<AgentRun>::namespaced(client.clone(), namespace), watcher::Config::default()).applied_objects();
        let pods = watcher(Api::<Pod>::namespaced(client.clone(), namespace), watcher::Config::default()).applied_objects();
        let (of_runs, of_pods) = (seen.clone(), seen.clone());
        let tasks = [
            tokio::spawn(runs.for_each(move |run| {
                let phase = run.ok().and_then(|run| run.status).and_then(|status| status.phase);
                let mut seen = of_runs.lock().unwrap_or_else(PoisonError::into_inner);
                if let Some(phase) = phase.filter(|phase| seen.phases.last() != Some(phase)) {
                    seen.phases.push(phase);
                }
                std::future::ready(())
            })),
            tokio::spawn(pods.for_each(move |pod| {
                if let Some(uid) = pod.ok().and_then(|pod| pod.uid()) {
                    of_pods.lock().unwrap_or_else(PoisonError::into_inner).pods.insert(uid);
                }
                std::future::ready(())
            })),
        ];
        Witness { seen, tasks }
    }

    /// One Pod was ever made, and phases went forward only.
    pub fn judge(&self) -> Result<()> {
        let seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
        ensure!(seen.pods.len() == 1, "{} Pods were made", seen.pods.len());
        let rank = |phase: &Phase| match phase {
            Phase::Pending => 0,
            Phase::Queued => 1,
            Phase::Starting => 2,
            Phase::Running | Phase::AwaitingApproval => 3,
            Phase::Cancelling => 4,
            Phase::Succeeded | Phase::Failed | Phase::Cancelled => 5,
        };
        ensure!(seen.phases.iter().map(rank).is_sorted_by(|before, after| before < after), "phases went {:?}", seen.phases);
        Ok(())
    }
}

impl Drop for Witness {
    fn drop(&mut self) {
        self.tasks.iter().for_each(tokio::task::JoinHandle::abort);
    }
}
