//! The provider's key is looked for everywhere that people, Pods and providers' errors could carry it: it is nowhere but in
//! its Secret. The same search finds a key that was planted.

use agentrun_crds::agent_run_status::Phase;
use agentrun_e2e::node::{Offer, SYSTEM, Story, fixing_turns, processes, story};
use agentrun_scripted_model::{FaultKind, Turn};
use anyhow::{Context, Result, ensure};
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use k8s_openapi::api::core::v1::{ConfigMap, Event, Pod, Secret};
use k8s_openapi::api::networking::v1::NetworkPolicy;
use kube::api::{ListParams, LogParams};
use kube::{Api, ResourceExt};
use serde_json::{Value, json};

/// Searches all files and processes that the container can read, for the texts given, and prints where they are.
const SEARCH: &str = r#"
import os, sys
needles = [n.encode() for n in sys.argv[1:]]
def look(path):
    try:
        with open(path, "rb") as f:
            data = f.read(64 << 20)
    except OSError:
        return
    for needle in needles:
        if needle in data:
            print("FOUND", needle.decode(), path)
for top, dirs, files in os.walk("/"):
    if top == "/":
        dirs[:] = [d for d in dirs if d not in ("proc", "sys", "usr", "dev")]
    for name in files:
        path = os.path.join(top, name)
        if os.path.isfile(path) and not os.path.islink(path):
            look(path)
me = str(os.getpid())
for pid in os.listdir("/proc"):
    if pid.isdigit() and pid != me:
        for name in ("environ", "cmdline"):
            look(f"/proc/{pid}/{name}")
print("searched")
"#;

#[tokio::test]
async fn the_providers_key_is_nowhere_but_in_its_secret() {
    story("canary", body).await;
}

async fn body(story: &Story) -> Result<()> {
    let planted = format!("planted-{}", story.namespace);
    let echo = |code| FaultKind::Status { code, retry_after: None, echo_key: true };
    let plant = json!({"path": "shop/planted.txt", "content": planted});
    let turns = [
        Turn::call("write_file", plant).with_first(1, echo(500)),
        Turn::call("list", json!({"path": "."})).with_first(1, echo(429)),
        Turn::call("list", json!({"path": "."})).with_first(1, FaultKind::DelayHeader { ms: 15_000 }),
    ];
    // A provider that refuses the key and repeats it in the refusal.
    let offer = Offer::new(turns.into_iter().chain(fixing_turns())).and("refusing", [Turn::say("x").with(echo(401))]);
    story.offer(offer).await?;
    story.create("run", story.spec()).await?;
    let mut spec = story.spec();
    spec.model = "refusing".into();
    story.create("refused", spec).await?;

    // While the sandbox lives and has heard every echo: from within it, and of its processes from outside.
    let third = |run: &agentrun_crds::AgentRun| {
        let budget = run.status.as_ref().and_then(|status| status.budget.as_ref());
        budget.is_some_and(|budget| budget.spent.requests >= 2 && budget.spent.upstream_attempts >= 4 && !budget.reservations.is_empty())
    };
    let run =
        agentrun_e2e::node::until(&story.runs, "run", agentrun_e2e::node::Within::Medium, "its third call is on its way", third).await?;
    let pod = run.status.and_then(|status| status.pod_ref).context("a Pod")?.name;
    let pod = story.pods.get(&pod).await?;
    inside(story, &pod, &planted).await?;
    outside(story, &pod)?;
    logs(story, &story.pods, &pod.name_any()).await?;
    objects(story).await?;

    story.until_ended("run", Phase::Succeeded, "Succeeded").await?;
    story.until_ended("refused", Phase::Failed, "ProviderAuthFailed").await?;
    people(story, &planted).await?;
    objects(story).await?;
    store(story, &story.node.component("gateway").await?)?;
    let system: Api<Pod> = Api::namespaced(story.node.client.clone(), SYSTEM);
    for component in ["operator", "gateway"] {
        logs(story, &system, &story.node.component(component).await?.name_any()).await?;
    }

    // Where it belongs: in its Secret, and in the requests that the provider got.
    let seen = serde_json::to_string(&story.model.seen(&story.upstream("small")).await?)?;
    ensure!(holds(story, seen.as_bytes()), "the search does not find the key where it must be");
    Ok(())
}

/// Whether bytes hold the key, as it is or in base64 at any alignment.
fn holds(story: &Story, bytes: &[u8]) -> bool {
    let contains = |needle: &[u8]| bytes.windows(needle.len()).any(|window| window == needle);
    contains(story.key.as_bytes())
        || (0..3).any(|shift| {
            let encoded = STANDARD.encode([&vec![b'.'; shift], story.key.as_bytes()].concat());
            // Without the characters at both ends, which depend on the neighbours.
            contains(&encoded.as_bytes()[4..encoded.len() - 4])
        })
}

fn absent(story: &Story, place: &str, bytes: &[u8]) -> Result<()> {
    ensure!(!holds(story, bytes), "the provider's key is in {place}");
    Ok(())
}

async fn inside(story: &Story, pod: &Pod, planted: &str) -> Result<()> {
    let key = STANDARD.encode(&story.key);
    // The search gets the needles by argv, so it leaves itself out; it prints which needle it found.
    let output =
        story.exec(&pod.name_any(), "executor", &["python3", "-c", SEARCH, &story.key, key.trim_end_matches('='), planted]).await?;
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    ensure!(text.contains("searched"), "the search did not end: {text} {}", String::from_utf8_lossy(&output.stderr));
    let found: Vec<&str> = text.lines().filter(|line| line.starts_with("FOUND")).collect();
    ensure!(
        found.iter().any(|line| line.contains(planted) && line.contains("shop/planted.txt")),
        "the planted text was not found: {found:?}"
    );
    ensure!(found.iter().all(|line| line.starts_with(&format!("FOUND {planted}"))), "the sandbox holds the key: {found:?}");
    Ok(())
}

fn outside(story: &Story, pod: &Pod) -> Result<()> {
    let mut files = 0;
    for container in ["executor", "runner"] {
        let processes = processes(pod, container)?;
        ensure!(!processes.is_empty(), "no process of {container} was found on this machine");
        for process in processes {
            absent(story, &format!("the arguments of {container}"), &process.arguments)?;
            absent(story, &format!("the environment of {container}"), &process.environment)?;
            if container == "runner" {
                files += search_tree(story, &process.root().join("agentrun"))? + search_tree(story, &process.root().join("tmp"))?;
            }
        }
    }
    ensure!(files > 0, "the runner's files were not searched");
    Ok(())
}

/// What the gateway keeps on its volume: events, artifacts, its ledger.
fn store(story: &Story, gateway: &Pod) -> Result<()> {
    let process = processes(gateway, "gateway")?.into_iter().next().context("a process of the gateway on this machine")?;
    absent(story, "the arguments of the gateway", &process.arguments)?;
    absent(story, "the environment of the gateway", &process.environment)?;
    let files = search_tree(story, &process.root().join("var/lib/agentrun"))?;
    ensure!(files > 2, "only {files} files of the gateway's store were searched");
    Ok(())
}

fn search_tree(story: &Story, directory: &std::path::Path) -> Result<usize> {
    let mut files = 0;
    for entry in std::fs::read_dir(directory).into_iter().flatten().flatten() {
        let path = entry.path();
        let Ok(kind) = std::fs::metadata(&path) else { continue };
        if kind.is_dir() && !path.is_symlink() {
            files += search_tree(story, &path)?;
        } else if kind.is_file() {
            files += 1;
            absent(story, &path.display().to_string(), &std::fs::read(&path)?)?;
        }
    }
    Ok(files)
}

async fn logs(story: &Story, pods: &Api<Pod>, pod: &str) -> Result<()> {
    let spec = pods.get(pod).await?.spec.unwrap_or_default();
    for container in spec.init_containers.unwrap_or_default().into_iter().chain(spec.containers) {
        let log = pods.logs(pod, &LogParams { container: Some(container.name.clone()), ..LogParams::default() }).await?;
        absent(story, &format!("the log of {pod}/{}", container.name), log.as_bytes())?;
    }
    Ok(())
}

async fn objects(story: &Story) -> Result<()> {
    let client = || story.node.client.clone();
    let all = ListParams::default();
    let bytes = [
        ("the runs", serde_json::to_vec(&story.runs.list(&all).await?.items)?),
        ("the Pods", serde_json::to_vec(&story.pods.list(&all).await?.items)?),
        ("the namespace's Secrets", serde_json::to_vec(&Api::<Secret>::namespaced(client(), &story.namespace).list(&all).await?.items)?),
        ("ConfigMaps", serde_json::to_vec(&Api::<ConfigMap>::all(client()).list(&all).await?.items)?),
        ("the NetworkPolicies", serde_json::to_vec(&Api::<NetworkPolicy>::namespaced(client(), &story.namespace).list(&all).await?.items)?),
        ("the namespace's Events", serde_json::to_vec(&Api::<Event>::namespaced(client(), &story.namespace).list(&all).await?.items)?),
        ("the system's Events", serde_json::to_vec(&Api::<Event>::namespaced(client(), SYSTEM).list(&all).await?.items)?),
    ];
    for (place, bytes) in bytes {
        absent(story, place, &bytes)?;
    }
    Ok(())
}

async fn people(story: &Story, planted: &str) -> Result<()> {
    let mut text = String::new();
    for run in ["run", "refused"] {
        let base = format!("/v1/namespaces/{}/runs/{run}", story.namespace);
        let events = serde_json::to_string(&story.people.all_events(&story.namespace, run).await?)?;
        absent(story, &format!("the events of {run}"), events.as_bytes())?;
        text += &events;
        for path in ["patch", "artifacts", "artifacts/sha256:0", "nonsense", "events?after=x"] {
            let reply = story.people.get(&format!("{base}/{path}")).await?;
            absent(story, &format!("the answer to {path}"), &reply.body)?;
            absent(story, &format!("the headers of the answer to {path}"), format!("{:?}", reply.headers).as_bytes())?;
        }
        let artifacts: Value = serde_json::from_slice(&story.people.get_ok(&format!("{base}/artifacts")).await?.body)?;
        for artifact in artifacts["artifacts"].as_array().into_iter().flatten() {
            let digest = artifact["digest"].as_str().context("an artifact has a digest")?;
            let reply = story.people.get_ok(&format!("{base}/artifacts/{digest}")).await?;
            absent(story, &format!("artifact {}", artifact["name"]), &reply.body)?;
        }
    }
    ensure!(text.contains(planted), "the events do not hold what the agent wrote, so searching them proves nothing");
    Ok(())
}
