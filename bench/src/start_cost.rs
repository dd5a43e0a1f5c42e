//! What a run costs to start over a bare Pod of the same three containers: from `create` until the first model call reaches
//! the provider, against from `create` until the Pod is Ready. Pairs in turns on the same node, so that both see its moods.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use agentrun_crds::names;
use agentrun_e2e::node::{Offer, Story, Within, story, until, until_gone};
use agentrun_scripted_model::Turn;
use anyhow::{Context, Result};
use k8s_openapi::api::core::v1::{Pod, PodSpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::api::{DeleteParams, PostParams};

use crate::report::{Row, median};

const PAIRS: usize = 20;
/// Pairs before the measured ones: images are unpacked, caches are filled.
const WARM: usize = 2;

/// Measure, and give the row.
pub async fn measure() -> Result<Vec<Row>> {
    let (mut runs, mut pods) = (Vec::new(), Vec::new());
    story("bench", async |story: &Story| {
        story.offer(Offer::new([Turn::say("Nothing to do.")])).await?;
        let mut spec = None;
        for pair in 0..WARM + PAIRS {
            shift(pair).await;
            let run = Box::pin(one_run(story, &format!("run-{pair}"), &mut spec)).await?;
            shift(pair).await;
            let pod = one_pod(story, &format!("bare-{pair}"), spec.clone().context("the first run gives the Pod's spec")?).await?;
            eprintln!("pair {pair}: run {run:.0} ms, bare Pod {pod:.0} ms");
            if pair >= WARM {
                runs.push(run);
                pods.push(pod);
            }
        }
        Ok(())
    })
    .await;
    Ok(vec![Row::compared("start: create to first model call, over a bare Pod to Ready", "ms", median(runs), median(pods), Some(1.5))])
}

/// The kubelet looks at its containers once a second, so what is measured depends on when within that second it begins: a
/// start falls into one of two groups, a second apart. Each pair begins at another point of the second, spread evenly, the
/// same for both sides; otherwise the end of one measurement sets the point at which the next begins.
async fn shift(pair: usize) {
    let part = (pair as f64 * 0.618_034).fract();
    tokio::time::sleep(Duration::from_secs_f64(part)).await;
}

fn unix_millis() -> f64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0.0, |since| since.as_secs_f64() * 1e3)
}

async fn one_run(story: &Story, name: &str, pod_spec: &mut Option<PodSpec>) -> Result<f64> {
    let mut spec = story.spec();
    spec.checks.clear();
    let before = story.model.bill(&story.upstream("small")).await?.requests as usize;
    let started = unix_millis();
    let run = story.create(name, spec).await?;
    if pod_spec.is_none() {
        let child = names::child_name(run.metadata.uid.as_deref().context("a UID")?, 1);
        let pod = until(&story.pods, &child, Within::Medium, "its containers run", ready).await?;
        *pod_spec = Some(bare(pod.spec.context("a spec")?));
    }
    let run = story.until_complete(name, Within::Medium).await?;
    let arrival = story.model.seen(&story.upstream("small")).await?.get(before).context("no model call arrived")?.at;
    story.until_children_gone(&run).await?;
    Ok(arrival as f64 - started)
}

async fn one_pod(story: &Story, name: &str, spec: PodSpec) -> Result<f64> {
    let pod = Pod { metadata: ObjectMeta { name: Some(name.into()), ..ObjectMeta::default() }, spec: Some(spec), ..Pod::default() };
    let started = unix_millis();
    story.pods.create(&PostParams::default(), &pod).await?;
    until(&story.pods, name, Within::Medium, "it is Ready", ready).await?;
    let ready = unix_millis() - started;
    story.pods.delete(name, &DeleteParams::default().grace_period(1)).await?;
    until_gone(&story.pods, name, Within::Medium).await?;
    Ok(ready)
}

fn ready(pod: &Pod) -> bool {
    let conditions = pod.status.as_ref().and_then(|status| status.conditions.as_ref());
    conditions.into_iter().flatten().any(|condition| condition.type_ == "Ready" && condition.status == "True")
}

/// The sandbox's Pod without a run: the same images, walls and limits; no ticket and no token; and in place of the runner its
/// image's other program, which waits for a socket that never comes.
fn bare(mut spec: PodSpec) -> PodSpec {
    let credentials = |name: &str| ["ticket", "token"].contains(&name);
    spec.node_name = None;
    spec.active_deadline_seconds = Some(100);
    if let Some(volumes) = &mut spec.volumes {
        volumes.retain(|volume| !credentials(&volume.name));
    }
    for container in spec.containers.iter_mut().chain(spec.init_containers.iter_mut().flatten()) {
        if let Some(mounts) = &mut container.volume_mounts {
            mounts.retain(|mount| !credentials(&mount.name));
        }
        if container.name == "runner" {
            container.command = Some(["/executor", "serve", "--socket", "/tmp/nobody.sock", "--root", "/tmp"].map(String::from).into());
            container.args = None;
        }
    }
    spec
}
