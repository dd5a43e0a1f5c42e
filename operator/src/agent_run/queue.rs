//! Who of a namespace's runs may start: so many at once, the more important first, then the older. Pure.

use std::cmp::Reverse;

use agentrun_crds::AgentRun;
use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::core::{NamespaceResourceScope, Resource};
use serde::Deserialize;

use super::plan::awaits_source;

/// What the queue needs to know of a run; a list of these costs a fraction of the runs' sources.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Peer {
    pub uid: String,
    pub priority: i32,
    pub created: Option<Timestamp>,
    /// Left the queue and has not ended.
    pub active: bool,
    /// Accepted, its source here, not started, and neither cancelled nor being deleted.
    pub queued: bool,
}

/// What becomes of a run that could start.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Decision {
    Start,
    Wait,
    /// As many wait already as may.
    Full,
}

/// Decide for `me`, given everybody of the namespace.
pub fn decide(me: &Peer, peers: &[Peer], concurrent: i64, most_queued: i64) -> Decision {
    let order = |peer: &Peer| (Reverse(peer.priority), peer.created, peer.uid.clone());
    let mine = order(me);
    let (mut active, mut queued, mut ahead) = (0, 0, 0);
    for peer in peers.iter().filter(|peer| peer.uid != me.uid) {
        active += i64::from(peer.active);
        queued += i64::from(peer.queued);
        ahead += i64::from(peer.queued && order(peer) < mine);
    }
    if active + ahead < concurrent {
        Decision::Start
    } else if me.queued || queued < most_queued {
        Decision::Wait
    } else {
        Decision::Full
    }
}

/// A run as the queue reads it from the API server.
#[derive(Clone, Debug, Deserialize)]
pub struct SlimRun {
    #[serde(default)]
    pub metadata: ObjectMeta,
    #[serde(default)]
    spec: SlimSpec,
    #[serde(default)]
    status: Option<SlimStatus>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct SlimSpec {
    priority: i32,
    cancel: bool,
    source: SlimSource,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
struct SlimSource {
    archive: Option<serde::de::IgnoredAny>,
    git: Option<serde::de::IgnoredAny>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct SlimStatus {
    phase: Option<String>,
    started_at: Option<String>,
    resolved: Option<serde::de::IgnoredAny>,
    source: Option<serde::de::IgnoredAny>,
}

impl Resource for SlimRun {
    type DynamicType = ();
    type Scope = NamespaceResourceScope;

    fn kind(_: &()) -> std::borrow::Cow<'_, str> {
        AgentRun::kind(&())
    }
    fn group(_: &()) -> std::borrow::Cow<'_, str> {
        AgentRun::group(&())
    }
    fn version(_: &()) -> std::borrow::Cow<'_, str> {
        AgentRun::version(&())
    }
    fn plural(_: &()) -> std::borrow::Cow<'_, str> {
        AgentRun::plural(&())
    }
    fn meta(&self) -> &ObjectMeta {
        &self.metadata
    }
    fn meta_mut(&mut self) -> &mut ObjectMeta {
        &mut self.metadata
    }
}

impl From<&SlimRun> for Peer {
    fn from(run: &SlimRun) -> Self {
        let status = run.status.clone().unwrap_or_default();
        let ended = matches!(status.phase.as_deref(), Some("Succeeded" | "Failed" | "Cancelled"));
        let SlimSource { archive, git } = &run.spec.source;
        let here = (archive.is_none() && git.is_none()) || status.source.is_some();
        let waits = status.started_at.is_none() && status.resolved.is_some() && here;
        peer(&run.metadata, run.spec.priority, !ended && status.started_at.is_some(), !ended && waits && !run.spec.cancel)
    }
}

impl From<&AgentRun> for Peer {
    fn from(run: &AgentRun) -> Self {
        let status = run.status.as_ref();
        let ended = status.and_then(|status| status.phase).is_some_and(|phase| phase.is_terminal());
        let started = status.is_some_and(|status| status.started_at.is_some());
        let accepted = status.is_some_and(|status| status.resolved.is_some()) && !awaits_source(run);
        peer(&run.metadata, run.spec.priority, !ended && started, !ended && !started && accepted && !run.spec.cancel)
    }
}

fn peer(metadata: &ObjectMeta, priority: i32, active: bool, queued: bool) -> Peer {
    Peer {
        uid: metadata.uid.clone().unwrap_or_default(),
        priority,
        created: metadata.creation_timestamp.as_ref().map(|time| time.0),
        active,
        queued: queued && metadata.deletion_timestamp.is_none(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn peer(uid: &str, priority: i32, second: i64, state: &str) -> Peer {
        Peer {
            uid: uid.into(),
            priority,
            created: Some(Timestamp::from_second(second).unwrap()),
            active: state == "active",
            queued: state == "queued",
        }
    }

    #[test]
    fn the_table() {
        let active = peer("a", 0, 1, "active");
        let old = peer("b", 0, 2, "queued");
        let high = peer("c", 9, 3, "queued");
        let me_new = peer("m", 0, 5, "");
        let me_queued = peer("m", 0, 5, "queued");
        let me_high = peer("m", 10, 5, "");
        let done = peer("d", 0, 0, "");
        // me, others, concurrent, most queued -> decision
        for (row, (me, peers, concurrent, most, expected)) in [
            (&me_new, vec![], 1, 200, Decision::Start),
            (&me_new, vec![&done, &done], 1, 200, Decision::Start),
            (&me_new, vec![&active], 1, 200, Decision::Wait),
            (&me_new, vec![&active], 2, 200, Decision::Start),
            (&me_new, vec![&active, &old], 2, 200, Decision::Wait),
            (&me_high, vec![&active, &old, &high], 2, 200, Decision::Start),
            (&me_new, vec![&active, &old, &high], 1, 2, Decision::Full),
            (&me_queued, vec![&active, &old, &high], 1, 2, Decision::Wait),
            (&me_new, vec![&active], 1, 0, Decision::Full),
            (&me_queued, vec![&me_queued, &active], 2, 1, Decision::Start),
        ]
        .into_iter()
        .enumerate()
        {
            let peers: Vec<Peer> = peers.into_iter().cloned().collect();
            assert_eq!(decide(me, &peers, concurrent, most), expected, "row {row}");
        }
    }

    #[test]
    fn never_more_than_the_cap_start_and_nobody_starves() {
        // Everybody asks in turn, in any order, with up-to-date knowledge: exactly the cap starts.
        let mut peers: Vec<Peer> = (0..10).map(|n| peer(&format!("{n}"), n % 3, i64::from(n), "queued")).collect();
        for start in 0..peers.len() {
            let at = (start * 7) % peers.len();
            if decide(&peers[at], &peers, 3, 200) == Decision::Start {
                peers[at].queued = false;
                peers[at].active = true;
            }
        }
        let active: Vec<&str> = peers.iter().filter(|peer| peer.active).map(|peer| peer.uid.as_str()).collect();
        assert_eq!(active, ["2", "5", "8"], "the three of priority 2");
        let mut rounds = 0;
        while peers.iter().any(|peer| peer.queued) {
            rounds += 1;
            assert!(rounds < 20, "somebody starves");
            let ends = peers.iter().position(|peer| peer.active).unwrap();
            peers[ends].active = false;
            for at in 0..peers.len() {
                if peers[at].queued && decide(&peers[at], &peers, 3, 200) == Decision::Start {
                    peers[at].queued = false;
                    peers[at].active = true;
                }
            }
            assert!(peers.iter().filter(|peer| peer.active).count() <= 3);
        }
    }

    fn resolved() -> serde_json::Value {
        json!({
            "policySha256": "00", "image": "tools:1", "maxSteps": 12, "wallTimeSeconds": 180, "startupDeadlineSeconds": 300,
            "model": {"name": "small", "provider": "p", "model": "m", "maxOutputTokens": 4096}, "budget": {"requests": 14},
            "allowedPaths": ["**"], "checks": [], "hostUsers": "Isolated", "cpu": "1", "memory": "1Gi", "workspace": "1Gi",
        })
    }

    #[test]
    fn a_run_is_read_the_same_slim_or_whole() {
        let inline = json!({"inline": {"files": []}});
        let archive = json!({"archive": {"digest": "sha256:00"}});
        let git = json!({"git": {"url": "https://git.test/shop", "ref": "main"}});
        let uploaded = json!({"resolved": resolved(), "source": {"digest": "sha256:00", "bytes": 1, "files": 1}});
        for (source, status, cancel, active, queued) in [
            (&inline, json!({}), false, false, false),
            (&inline, json!({"resolved": resolved()}), false, false, true),
            (&inline, json!({"resolved": resolved()}), true, false, false),
            (&archive, json!({"resolved": resolved()}), false, false, false),
            (&archive, uploaded.clone(), false, false, true),
            (&git, json!({"resolved": resolved()}), false, false, false),
            (&git, uploaded.clone(), false, false, true),
            (&archive, uploaded, true, false, false),
            (&inline, json!({"resolved": resolved(), "startedAt": "2026-01-01T00:00:00Z", "phase": "Running"}), false, true, false),
            (&inline, json!({"resolved": resolved(), "startedAt": "2026-01-01T00:00:00Z", "phase": "Failed"}), false, false, false),
        ] {
            let run = json!({
                "apiVersion": "agentrun.dev/v1alpha1", "kind": "AgentRun",
                "metadata": {"name": "r", "uid": "u", "creationTimestamp": "2026-01-01T00:00:00Z"},
                "spec": {"priority": 3, "cancel": cancel, "instruction": "x", "model": "small", "source": source}, "status": status,
            });
            let slim = Peer::from(&serde_json::from_value::<SlimRun>(run.clone()).unwrap());
            let whole = Peer::from(&serde_json::from_value::<AgentRun>(run).unwrap());
            assert_eq!(slim, whole, "{source} {status} {cancel}");
            assert_eq!((slim.priority, slim.active, slim.queued), (3, active, queued), "{source} {status} {cancel}");
        }
    }
}
