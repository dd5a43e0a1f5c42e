//! What wakes a run: itself, its Pod, the namespace's policy and NetworkPolicies, a provider, and a run of the namespace that has ended.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use agentrun_crds::agent_policy_status::USED_UP;
use agentrun_crds::{AgentPolicy, AgentRun, ModelProvider, names};
use futures::stream::{BoxStream, SelectAll};
use futures::{Stream, StreamExt};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::api::networking::v1::NetworkPolicy;
use kube::core::{DeserializeGuard, Resource};
use kube::runtime::controller::Config;
use kube::runtime::reflector::{self, ObjectRef};
use kube::runtime::{WatchStreamExt, applier, watcher};
use kube::{Api, Client};
use tokio_util::sync::CancellationToken;

use super::filled::Filled;
use super::objects::{SANDBOX, controller};
use super::observe::peers_cached;
use super::plan::{self, Stage};
use crate::context::{Caches, Context, Guarded};
use crate::driver;

/// Reconciles at once.
const CONCURRENCY: u16 = 8;
/// Queued runs woken when one ends: as many slots seldom free themselves at once.
const WOKEN: usize = 8;

type Wake = ObjectRef<Guarded>;
type Wakes = BoxStream<'static, Result<Wake, watcher::Error>>;

/// The controller's streams, running once `run` is polled.
pub struct Watches {
    pub caches: Arc<Caches>,
    /// Whether the caches hold all there was at the start.
    pub filled: Filled,
    wakes: SelectAll<Wakes>,
}

impl Watches {
    /// Watch everything; `namespace` is where providers are.
    pub fn new(client: &Client, namespace: &str) -> Self {
        let (runs, run_writer) = reflector::store();
        let (pods, pod_writer) = reflector::store();
        let (policies, policy_writer) = reflector::store();
        let (network_policies, network_policy_writer) = reflector::store();
        let caches = Arc::new(Caches { runs, pods, policies, network_policies });
        let filled = Filled::new(4);
        let watched = watcher::Config::default();
        let mut wakes: SelectAll<Wakes> = SelectAll::new();

        let seen = Arc::clone(&caches);
        let stream = watcher(Api::<Guarded>::all(client.clone()), watched.clone())
            .default_backoff()
            .modify(strip_run)
            .reflect(run_writer)
            .inspect(filled.first_list());
        wakes.push(spread(stream.touched_objects(), move |run| woken_by_run(&seen, &run)));

        let sandboxes = watched.clone().labels(&format!("{}={SANDBOX}", names::LABEL_COMPONENT));
        let stream = watcher(Api::<Pod>::all(client.clone()), sandboxes)
            .default_backoff()
            .modify(strip_pod)
            .reflect(pod_writer)
            .inspect(filled.first_list());
        wakes.push(spread(stream.touched_objects(), |pod| woken_by_pod(&pod)));

        let seen = Arc::clone(&caches);
        let api = Api::<DeserializeGuard<AgentPolicy>>::all(client.clone());
        let stream = watcher(api, watched.clone()).default_backoff().modify(strip).reflect(policy_writer).inspect(filled.first_list());
        let told = Told::default();
        wakes.push(spread(stream.touched_objects(), move |policy| match told.is_news(&seen, &policy) {
            true => woken_by_policy(&seen, policy.meta().namespace.as_deref()),
            false => Vec::new(),
        }));

        let seen = Arc::clone(&caches);
        let stream = watcher(Api::<NetworkPolicy>::all(client.clone()), watched.clone())
            .default_backoff()
            .modify(strip)
            .reflect(network_policy_writer)
            .inspect(filled.first_list());
        wakes.push(spread(stream.touched_objects(), move |policy| woken_by_network_policy(&seen, policy.metadata.namespace.as_deref())));

        let seen = Arc::clone(&caches);
        let api = Api::<DeserializeGuard<ModelProvider>>::namespaced(client.clone(), namespace);
        let stream = watcher(api, watched).default_backoff().modify(strip);
        wakes.push(spread(stream.touched_objects(), move |_| woken_by_policy(&seen, None)));
        Watches { caches, filled, wakes }
    }

    /// Reconcile until `stop`; then let running reconciles end.
    pub async fn run(self, ctx: Arc<Context>, stop: CancellationToken) {
        let Watches { caches, filled: _, wakes } = self;
        let runs = caches.runs.clone();
        let reconciler = move |run: Arc<Guarded>, ctx: Arc<Context>| driver::spawn(ctx, Arc::clone(&caches), run);
        let config = Config::default().concurrency(CONCURRENCY);
        let queue = wakes.take_until(stop.cancelled_owned());
        applier(reconciler, |_, error: &driver::Never, _| match *error {}, ctx, runs, Box::pin(queue), config)
            .for_each(|result| {
                if let Err(error) = result {
                    match error {
                        kube::runtime::controller::Error::QueueError(error) => tracing::warn!(%error, "a watch failed; trying again"),
                        // A run that is gone was still to be looked at: nothing to do.
                        error => tracing::debug!(%error, "nothing to reconcile"),
                    }
                }
                futures::future::ready(())
            })
            .await;
    }
}

fn spread<T: Send + 'static>(
    stream: impl Stream<Item = Result<T, watcher::Error>> + Send + 'static,
    wake: impl Fn(T) -> Vec<Wake> + Send + Sync + 'static,
) -> Wakes {
    let spread = stream.flat_map(move |item| {
        let wakes = match item {
            Ok(object) => wake(object).into_iter().map(Ok).collect(),
            Err(error) => vec![Err(error)],
        };
        futures::stream::iter(wakes)
    });
    spread.boxed()
}

fn strip<K: Resource>(object: &mut K) {
    object.meta_mut().managed_fields = None;
}

/// The files and the instruction are most of a run, and only live reads judge them.
fn strip_run(run: &mut Guarded) {
    strip(run);
    if let Ok(run) = &mut run.0 {
        run.spec.source.inline = None;
        run.spec.instruction.clear();
        run.metadata.annotations = None;
    }
}

fn strip_pod(pod: &mut Pod) {
    strip(pod);
    pod.spec = None;
}

fn reference(metadata: &kube::core::ObjectMeta) -> Option<Wake> {
    Some(ObjectRef::new(metadata.name.as_deref()?).within(metadata.namespace.as_deref()?))
}

/// Itself; and the next of its namespace, should it have ended.
fn woken_by_run(caches: &Caches, run: &Guarded) -> Vec<Wake> {
    let metadata = run.meta();
    let mut woken: Vec<Wake> = reference(metadata).into_iter().collect();
    let freed = run.0.as_ref().is_ok_and(|run| plan::stage(run) == Stage::Ended);
    if let (true, Some(namespace)) = (freed, metadata.namespace.as_deref()) {
        woken.extend(next_in_line(caches, namespace));
    }
    woken
}

fn next_in_line(caches: &Caches, namespace: &str) -> Vec<Wake> {
    let mut queued = peers_cached(caches, namespace);
    queued.retain(|peer| peer.queued);
    queued.sort_by_key(|peer| (std::cmp::Reverse(peer.priority), peer.created, peer.uid.clone()));
    let uids: Vec<String> = queued.into_iter().take(WOKEN).map(|peer| peer.uid).collect();
    let runs = caches.runs.state_filter(|run| run.meta().uid.as_ref().is_some_and(|uid| uids.contains(uid)));
    runs.iter().filter_map(|run| reference(run.meta())).collect()
}

fn woken_by_pod(pod: &Pod) -> Vec<Wake> {
    let owner = controller(&pod.metadata);
    owner
        .zip(pod.metadata.namespace.as_deref())
        .map(|(owner, namespace)| ObjectRef::new(&owner.name).within(namespace))
        .into_iter()
        .collect()
}

/// What runs that wait have been woken for. Gateways write what was spent into a policy's status every second or so, which matters
/// to nobody who waits until a budget is spent, or is not any more.
#[derive(Default)]
struct Told(Mutex<HashMap<String, Matter>>);

/// A policy's generation, and the ends of the periods whose budgets are spent.
type Matter = (Option<i64>, Vec<Timestamp>);

impl Told {
    fn is_news(&self, caches: &Caches, policy: &DeserializeGuard<AgentPolicy>) -> bool {
        let namespace = policy.meta().namespace.clone().unwrap_or_default();
        let name = policy.meta().name.as_deref().unwrap_or_default();
        let mut told = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(standing) = caches.policies.get(&ObjectRef::new(name).within(&namespace)) else {
            told.remove(&namespace);
            return true;
        };
        let status = standing.0.as_ref().ok().and_then(|policy| policy.status.as_ref());
        let spent = status.map_or(&[][..], |status| &status.budgets).iter().filter(|period| period.warned >= USED_UP);
        let matter = (standing.meta().generation, spent.map(|period| period.ends_at.0).collect());
        told.insert(namespace, matter.clone()) != Some(matter)
    }
}

/// Every run that waits: of one namespace, or of all.
fn woken_by_policy(caches: &Caches, namespace: Option<&str>) -> Vec<Wake> {
    in_stage(caches, Stage::Waiting, namespace)
}

/// Every run of the namespace that may have a sandbox.
fn woken_by_network_policy(caches: &Caches, namespace: Option<&str>) -> Vec<Wake> {
    in_stage(caches, Stage::Started, namespace)
}

fn in_stage(caches: &Caches, stage: Stage, namespace: Option<&str>) -> Vec<Wake> {
    let there = |run: &Guarded| run.0.as_ref().is_ok_and(|run: &AgentRun| plan::stage(run) == stage);
    let runs = caches.runs.state_filter(|run| there(run) && namespace.is_none_or(|ns| run.meta().namespace.as_deref() == Some(ns)));
    runs.iter().filter_map(|run| reference(run.meta())).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use kube::runtime::watcher::Event;
    use serde_json::{Value, json};

    fn run(name: &str, priority: i32, status: Value) -> Guarded {
        let run = json!({
            "apiVersion": "agentrun.dev/v1alpha1", "kind": "AgentRun",
            "metadata": {"name": name, "namespace": "team-a", "uid": name, "creationTimestamp": "2026-01-01T00:00:00Z"},
            "spec": {"instruction": "x", "model": "small", "source": {"inline": {"files": [{"path": "a", "content": "b"}]}}, "priority": priority},
            "status": status,
        });
        serde_json::from_value(run).unwrap()
    }

    fn resolved() -> Value {
        json!({
            "policySha256": "00", "image": "tools:1", "maxSteps": 12, "wallTimeSeconds": 180, "startupDeadlineSeconds": 300,
            "model": {"name": "small", "provider": "p", "model": "m", "maxOutputTokens": 4096}, "budget": {"requests": 14},
            "allowedPaths": ["**"], "checks": [], "hostUsers": "Isolated", "cpu": "1", "memory": "1Gi", "workspace": "1Gi",
        })
    }

    fn caches(runs: Vec<Guarded>, concurrent: i64) -> Caches {
        let (run_store, mut run_writer) = reflector::store();
        let (pods, _) = reflector::store();
        let (policies, mut policy_writer) = reflector::store();
        for run in runs {
            run_writer.apply_watcher_event(&Event::Apply(run));
        }
        let policy = json!({
            "apiVersion": "agentrun.dev/v1alpha1", "kind": "AgentPolicy", "metadata": {"name": "default", "namespace": "team-a"},
            "spec": {"models": [], "images": [], "limits": {"concurrentRuns": concurrent}},
        });
        policy_writer.apply_watcher_event(&Event::Apply(serde_json::from_value(policy).unwrap()));
        Caches { runs: run_store, pods, policies, network_policies: reflector::store().0 }
    }

    fn names(woken: Vec<Wake>) -> Vec<String> {
        let mut names: Vec<String> = woken.into_iter().map(|wake| wake.name).collect();
        names.sort();
        names
    }

    #[test]
    fn an_end_wakes_those_that_wait() {
        let ended = run("ended", 0, json!({"phase": "Failed", "startedAt": "2026-01-01T00:00:01Z"}));
        let working = run("working", 0, json!({"phase": "Running", "startedAt": "2026-01-01T00:00:01Z", "resolved": resolved()}));
        let queued = run("queued", 0, json!({"phase": "Queued", "resolved": resolved()}));
        let pending = run("pending", 0, json!({"phase": "Pending"}));
        let caches = caches(vec![ended.clone(), working.clone(), queued, pending], 2);
        assert_eq!(names(woken_by_run(&caches, &ended)), ["ended", "queued"]);
        assert_eq!(names(woken_by_run(&caches, &working)), ["working"]);
        assert_eq!(names(woken_by_policy(&caches, Some("team-a"))), ["pending", "queued"]);
        assert_eq!(names(woken_by_policy(&caches, Some("team-b"))), Vec::<String>::new());
        assert_eq!(names(woken_by_policy(&caches, None)), ["pending", "queued"]);
        assert_eq!(names(woken_by_network_policy(&caches, Some("team-a"))), ["working"]);
        assert_eq!(names(woken_by_network_policy(&caches, Some("team-b"))), Vec::<String>::new());
    }

    #[test]
    fn who_has_no_chance_is_not_looked_at_live() {
        use super::super::observe::waits;
        let working = run("working", 0, json!({"phase": "Running", "startedAt": "2026-01-01T00:00:01Z", "resolved": resolved()}));
        let queued = run("queued", 0, json!({"phase": "Queued", "resolved": resolved()}));
        let urgent = run("urgent", 5, json!({"phase": "Queued", "resolved": resolved()}));
        let fresh = run("fresh", 0, json!({}));
        let all = vec![working, queued.clone(), urgent.clone(), fresh.clone()];
        // run, cap -> waits
        for (run, concurrent, expected) in
            [(&queued, 1, true), (&urgent, 1, true), (&urgent, 2, false), (&queued, 2, true), (&queued, 3, false), (&fresh, 1, false)]
        {
            let caches = caches(all.clone(), concurrent);
            let run = run.0.as_ref().unwrap();
            assert_eq!(waits(&caches, run), expected, "{:?} of {concurrent}", run.metadata.name);
        }
    }

    #[test]
    fn what_gateways_write_into_a_policy_wakes_nobody_until_a_budget_is_spent() {
        let (policies, mut writer) = reflector::store();
        let caches = Caches { runs: reflector::store().0, pods: reflector::store().0, policies, network_policies: reflector::store().0 };
        let told = Told::default();
        let policy = |generation: i64, requests: i64, warned: i64| -> DeserializeGuard<AgentPolicy> {
            serde_json::from_value(json!({
                "apiVersion": "agentrun.dev/v1alpha1", "kind": "AgentPolicy",
                "metadata": {"name": "default", "namespace": "team-a", "generation": generation},
                "spec": {"models": [], "images": []},
                "status": {"budgets": [{"period": "Day", "startsAt": "2026-01-01T00:00:00Z", "endsAt": "2026-01-02T00:00:00Z",
                    "spent": {"requests": requests}, "warned": warned}]},
            }))
            .unwrap()
        };
        for (step, (generation, requests, warned, expected)) in [
            (1, 1, 0, true),
            (1, 2, 0, false),
            (1, 8, 80, false),
            (1, 10, 100, true),
            (1, 11, 100, false),
            (2, 11, 100, true),
            (2, 11, 0, true),
        ]
        .into_iter()
        .enumerate()
        {
            let policy = policy(generation, requests, warned);
            writer.apply_watcher_event(&Event::Apply(policy.clone()));
            assert_eq!(told.is_news(&caches, &policy), expected, "step {step}");
        }
        let gone = policy(2, 11, 0);
        writer.apply_watcher_event(&Event::Delete(gone.clone()));
        assert!(told.is_news(&caches, &gone) && told.is_news(&caches, &gone));
    }

    #[test]
    fn what_is_cached_is_small() {
        let mut run = run("r", 0, json!({}));
        strip_run(&mut run);
        let run = run.0.unwrap();
        assert!(run.spec.source.inline.is_none() && run.spec.instruction.is_empty());
    }

    #[test]
    fn a_pod_wakes_its_run() {
        let pod = |kind: &str| {
            let owner = json!({"apiVersion": "agentrun.dev/v1alpha1", "kind": kind, "name": "fix", "uid": "u", "controller": true});
            serde_json::from_value::<Pod>(json!({"metadata": {"name": "p", "namespace": "team-a", "ownerReferences": [owner]}})).unwrap()
        };
        assert_eq!(names(woken_by_pod(&pod("AgentRun"))), ["fix"]);
        assert_eq!(names(woken_by_pod(&pod("Job"))), Vec::<String>::new());
    }
}
