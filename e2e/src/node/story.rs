//! One user story: a namespace of its own, runs in it, and whatever happens at the end everything it made is removed;
//! that nothing is left behind is a check of every story. On failure objects and logs are written to a file first.

use std::panic::AssertUnwindSafe;

use agentrun_crds::agent_run::{AgentRun, AgentRunSpec, Check, Limits, Source};
use agentrun_crds::agent_run_status::Phase;
use agentrun_crds::conditions::types::COMPLETE;
use agentrun_crds::{AgentTemplate, ModelProvider, names};
use anyhow::{Context, Result, bail, ensure};
use futures::FutureExt;
use k8s_openapi::api::core::v1::{Namespace, Pod, Secret, ServiceAccount};
use k8s_openapi::api::networking::v1::NetworkPolicy;
use k8s_openapi::api::node::v1::RuntimeClass;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, ObjectMeta};
use kube::Api;
use kube::api::{DeleteParams, ListParams, Patch, PatchParams, PostParams};
use serde_json::json;

use super::setup::STORY_LABEL;
use super::{Model, Node, People, SYSTEM, Within, dump, shop_files, until, until_gone};

/// Stories share the node; one that kills a process which serves all takes it alone.
static NODE: tokio::sync::RwLock<()> = tokio::sync::RwLock::const_new(());

/// What a story works with.
pub struct Story {
    pub node: Node,
    pub namespace: String,
    pub model: Model,
    pub people: People,
    /// The provider's key of this story: a canary, since it may show up nowhere.
    pub key: String,
    pub runs: Api<AgentRun>,
    pub pods: Api<Pod>,
}

/// Tell a story beside others.
pub async fn story(name: &str, body: impl AsyncFnOnce(&Story) -> Result<()>) {
    let _shared = NODE.read().await;
    Box::pin(tell(name, body)).await;
}

/// Tell a story alone on the node.
pub async fn story_alone(name: &str, body: impl AsyncFnOnce(&Story) -> Result<()>) {
    let _alone = NODE.write().await;
    Box::pin(tell(name, body)).await;
}

/// Tell a story of two teams, each with a namespace, provider and viewer of its own.
pub async fn two_stories(name: &str, body: impl AsyncFnOnce(&Story, &Story) -> Result<()>) {
    let _shared = NODE.read().await;
    Box::pin(tell(name, async |one: &Story| Box::pin(told(name, async |two: &Story| body(one, two).await)).await)).await;
}

#[expect(clippy::panic, reason = "a story that fails is a test that fails")]
async fn tell(name: &str, body: impl AsyncFnOnce(&Story) -> Result<()>) {
    if let Err(error) = Box::pin(told(name, body)).await {
        panic!("{name}: {error:?}");
    }
}

async fn told(name: &str, body: impl AsyncFnOnce(&Story) -> Result<()>) -> Result<()> {
    let story = Story::begin(name).await.context("setting the story up")?;
    let outcome = AssertUnwindSafe(Box::pin(body(&story))).catch_unwind().await;
    if !matches!(outcome, Ok(Ok(()))) {
        eprintln!("{name} failed; objects and logs: {}", dump::write(&story).await);
    }
    let cleaned = Box::pin(story.end()).await;
    match outcome {
        Err(panic) => std::panic::resume_unwind(panic),
        Ok(Err(error)) => Err(error),
        Ok(Ok(())) => {
            if cleaned.is_err() {
                eprintln!("{name} left something behind; objects and logs: {}", dump::write(&story).await);
            }
            cleaned.context("cleaning up")
        }
    }
}

impl Story {
    async fn begin(name: &str) -> Result<Story> {
        let node = Node::connect().await?;
        let model = Model::connect(&node).await?;
        let random = random_hex(4)?;
        let namespace = format!("story-{name}-{random}");
        let labels = [(STORY_LABEL, namespace.as_str()), ("pod-security.kubernetes.io/enforce", "restricted")];
        let object = Namespace {
            metadata: ObjectMeta {
                name: Some(namespace.clone()),
                labels: Some(labels.map(|(key, value)| (key.to_owned(), value.to_owned())).into()),
                ..ObjectMeta::default()
            },
            ..Namespace::default()
        };
        Api::<Namespace>::all(node.client.clone()).create(&PostParams::default(), &object).await?;
        let people = People::viewer(&node, &namespace).await?;
        let (runs, pods) = (Api::namespaced(node.client.clone(), &namespace), Api::namespaced(node.client.clone(), &namespace));
        Ok(Story { key: format!("sk-canary-{}", random_hex(16)?), node, namespace, model, people, runs, pods })
    }

    /// The upstream's name of a model that this story offers.
    pub fn upstream(&self, model: &str) -> String {
        format!("{}/{model}", self.namespace)
    }

    /// A run of the shop project as people would write it: one check, changes beneath `shop/` only.
    pub fn spec(&self) -> AgentRunSpec {
        AgentRunSpec {
            allowed_paths: vec!["shop/**".into()],
            checks: vec![Check { name: "unit".into(), argv: ["python3", "-m", "unittest", "discover"].map(String::from).into() }],
            limits: Limits { max_steps: Some(12), wall_time: Some("3m".into()), budget: None },
            ..AgentRunSpec::new("The discount tests fail. Fix the code.", Source::inline(shop_files()), "small")
        }
    }

    /// Create a run.
    pub async fn create(&self, name: &str, spec: AgentRunSpec) -> Result<AgentRun> {
        self.runs.create(&PostParams::default(), &AgentRun::new(name, spec)).await.with_context(|| format!("creating run {name}"))
    }

    /// Ask a run to end.
    pub async fn cancel(&self, name: &str) -> Result<()> {
        self.runs.patch(name, &PatchParams::default(), &Patch::Merge(json!({"spec": {"cancel": true}}))).await?;
        Ok(())
    }

    /// Wait until a run is in one of these phases.
    pub async fn until_phase(&self, name: &str, phases: &[Phase], within: Within) -> Result<AgentRun> {
        let what = format!("its phase is one of {phases:?}");
        until(&self.runs, name, within, &what, |run| phase(run).is_some_and(|phase| phases.contains(&phase))).await
    }

    /// Wait until a run is terminal and its Complete condition says so, and return it.
    pub async fn until_complete(&self, name: &str, within: Within) -> Result<AgentRun> {
        until(&self.runs, name, within, "it is complete", |run| {
            phase(run).is_some_and(Phase::is_terminal) && condition(run, COMPLETE).is_some_and(|complete| complete.status == "True")
        })
        .await
    }

    /// Wait until a run's only call of a model has reached the provider and is reserved in the run's status.
    pub async fn until_calling(&self, name: &str, model: &str) -> Result<AgentRun> {
        let calling = |run: &AgentRun| {
            let budget = run.status.as_ref().and_then(|status| status.budget.as_ref());
            budget.is_some_and(|budget| !budget.reservations.is_empty())
        };
        let run = until(&self.runs, name, Within::Medium, "a model call is on its way", calling).await?;
        self.model.until_requests(&self.upstream(model), 1).await?;
        Ok(run)
    }

    /// Wait until a run has ended, and check how.
    pub async fn until_ended(&self, name: &str, expected: Phase, reason: &str) -> Result<AgentRun> {
        let run = self.until_complete(name, Within::Long).await?;
        let complete = condition(&run, COMPLETE).context("just seen")?;
        ensure!(
            phase(&run) == Some(expected) && complete.reason == reason,
            "{name} ended {:?} with reason {} ({}); {expected:?} with {reason} was expected",
            phase(&run),
            complete.reason,
            complete.message
        );
        ensure!(!complete.message.is_empty(), "the Complete condition of {name} has no message");
        Ok(run)
    }

    /// Wait until the Pod, Secret and NetworkPolicy of a run's current attempt are gone.
    pub async fn until_children_gone(&self, run: &AgentRun) -> Result<()> {
        let uid = run.metadata.uid.as_deref().context("a run from the API server has a UID")?;
        let attempt = run.status.as_ref().and_then(|status| status.attempt).unwrap_or(1);
        let child = names::child_name(uid, attempt);
        until_gone(&self.pods, &child, Within::Medium).await?;
        until_gone(&Api::<Secret>::namespaced(self.node.client.clone(), &self.namespace), &child, Within::Medium).await?;
        until_gone(&Api::<NetworkPolicy>::namespaced(self.node.client.clone(), &self.namespace), &child, Within::Medium).await
    }

    /// Everything in the namespace that carries a run's label.
    pub async fn leftovers(&self) -> Result<Vec<String>> {
        let labelled = ListParams::default().labels(names::LABEL_RUN_UID);
        let client = || self.node.client.clone();
        let mut left = Vec::new();
        for pod in self.pods.list(&labelled).await? {
            left.push(format!("Pod {}", pod.metadata.name.unwrap_or_default()));
        }
        for secret in Api::<Secret>::namespaced(client(), &self.namespace).list(&labelled).await? {
            left.push(format!("Secret {}", secret.metadata.name.unwrap_or_default()));
        }
        for policy in Api::<NetworkPolicy>::namespaced(client(), &self.namespace).list(&labelled).await? {
            left.push(format!("NetworkPolicy {}", policy.metadata.name.unwrap_or_default()));
        }
        for account in Api::<ServiceAccount>::namespaced(client(), &self.namespace).list(&labelled).await? {
            left.push(format!("ServiceAccount {}", account.metadata.name.unwrap_or_default()));
        }
        Ok(left)
    }

    /// Delete the runs, see that nothing of them is left, delete the rest.
    async fn end(&self) -> Result<()> {
        let ended = async {
            self.runs.delete_collection(&DeleteParams::default(), &ListParams::default()).await?;
            for run in self.runs.list(&ListParams::default()).await? {
                until_gone(&self.runs, run.metadata.name.as_deref().unwrap_or_default(), Within::Medium).await?;
            }
            let left = self.leftovers().await?;
            if left.is_empty() { Ok(()) } else { bail!("the runs are deleted, but these are left: {left:?}") }
        };
        let ended = Box::pin(ended).await;
        let ours = ListParams::default().labels(&format!("{STORY_LABEL}={}", self.namespace));
        let client = || self.node.client.clone();
        Api::<ModelProvider>::namespaced(client(), SYSTEM).delete_collection(&DeleteParams::default(), &ours).await?;
        Api::<AgentTemplate>::namespaced(client(), SYSTEM).delete_collection(&DeleteParams::default(), &ours).await?;
        Api::<Secret>::namespaced(client(), SYSTEM).delete_collection(&DeleteParams::default(), &ours).await?;
        Api::<RuntimeClass>::all(client()).delete_collection(&DeleteParams::default(), &ours).await?;
        Api::<Namespace>::all(client()).delete(&self.namespace, &DeleteParams::default()).await?;
        ended
    }
}

/// The phase of a run.
pub fn phase(run: &AgentRun) -> Option<Phase> {
    run.status.as_ref().and_then(|status| status.phase)
}

/// A condition of a run.
pub fn condition<'run>(run: &'run AgentRun, kind: &str) -> Option<&'run Condition> {
    run.status.as_ref()?.conditions.iter().find(|condition| condition.type_ == kind)
}

fn random_hex(bytes: usize) -> Result<String> {
    use std::io::Read;
    let mut buffer = vec![0u8; bytes];
    std::fs::File::open("/dev/urandom")?.read_exact(&mut buffer)?;
    Ok(buffer.iter().map(|byte| format!("{byte:02x}")).collect())
}
