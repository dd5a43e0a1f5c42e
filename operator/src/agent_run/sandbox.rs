//! What a sandbox Pod's status says about its run. Pure; believes nothing that the executor's container could have written.

use agentrun_crds::conditions::Reason;
use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::core::v1::{ContainerState, ContainerStateTerminated, ContainerStatus, Pod, PodStatus};
use serde::Deserialize;

use super::objects::pod::{EXECUTOR, INSTALL, RUNNER};

/// How long an image may fail to be pulled, or a container to be started, before the run ends.
pub const PATIENCE: SignedDuration = SignedDuration::from_secs(60);
/// Longest text taken over from a Pod.
const MAX_TEXT: usize = 512;

/// How a sandbox stands.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Sandbox {
    /// Not up yet; fails with this reason at `fails_at`, or when the startup deadline passes.
    Coming { reason: Reason, message: String, fails_at: Option<Timestamp> },
    /// The runner runs.
    Up,
    /// It will do nothing any more.
    Ended(Reason, String),
}

/// Read a Pod.
pub fn read(pod: &Pod) -> Sandbox {
    let Some(status) = &pod.status else { return coming(Reason::StartupDeadlineExceeded, "the Pod waits for the scheduler") };
    if let Some(ended) = ended(status) {
        return ended;
    }
    for name in [EXECUTOR, RUNNER] {
        if container(status, name).and_then(ended_or_last).is_some_and(|end| end.reason.as_deref() == Some("OOMKilled")) {
            return Sandbox::Ended(Reason::OutOfMemory, out_of_memory(name));
        }
    }
    if container(status, RUNNER).and_then(|c| c.state.as_ref()).is_some_and(|state| state.running.is_some()) {
        return Sandbox::Up;
    }
    if let Some(stuck) = stuck(pod, status) {
        return stuck;
    }
    if let Some(why) = condition(status, "PodScheduled", "False") {
        return coming(Reason::Unschedulable, format!("no node takes the Pod: {why}"));
    }
    if condition(status, "PodScheduled", "True").is_none() {
        return coming(Reason::StartupDeadlineExceeded, "the Pod waits for the scheduler");
    }
    if condition(status, "PodReadyToStartContainers", "False").is_some() {
        let text =
            "the node has not made the Pod's sandbox yet; user namespaces, the runtime class and the network plugin are what it needs";
        return coming(Reason::StartupDeadlineExceeded, text);
    }
    coming(Reason::StartupDeadlineExceeded, "the containers are starting")
}

fn coming(reason: Reason, message: impl Into<String>) -> Sandbox {
    Sandbox::Coming { reason, message: message.into(), fails_at: None }
}

fn container<'a>(status: &'a PodStatus, name: &str) -> Option<&'a ContainerStatus> {
    let all = status.init_container_statuses.iter().flatten().chain(status.container_statuses.iter().flatten());
    all.into_iter().find(|container| container.name == name)
}

fn terminated(state: Option<&ContainerState>) -> Option<&ContainerStateTerminated> {
    state.and_then(|state| state.terminated.as_ref())
}

fn ended_or_last(container: &ContainerStatus) -> Option<&ContainerStateTerminated> {
    terminated(container.state.as_ref()).or_else(|| terminated(container.last_state.as_ref()))
}

/// The message of a Pod condition that stands at this status.
fn condition(status: &PodStatus, kind: &str, value: &str) -> Option<String> {
    let found = status.conditions.iter().flatten().find(|condition| condition.type_ == kind && condition.status == value)?;
    let text = found.message.clone().or_else(|| found.reason.clone()).unwrap_or_default();
    Some(clean(&text))
}

fn out_of_memory(container: &str) -> String {
    format!("the container {container} used more memory than it may; raise sandbox.memory in the policy or let the agent do less at once")
}

/// The end of a Pod, if it has ended.
fn ended(status: &PodStatus) -> Option<Sandbox> {
    let phase = status.phase.as_deref().unwrap_or_default();
    let runner = container(status, RUNNER).and_then(|c| terminated(c.state.as_ref()));
    if !matches!(phase, "Failed" | "Succeeded") && runner.is_none() {
        return None;
    }
    let why = clean(status.message.as_deref().unwrap_or_default());
    let ended = |reason, message: String| Some(Sandbox::Ended(reason, message));
    match status.reason.as_deref() {
        Some("Evicted") if why.contains("EmptyDir") || why.contains("ephemeral") => {
            return ended(Reason::WorkspaceFull, format!("the sandbox wrote more than its workspace holds: {why}"));
        }
        Some("Evicted") => return ended(Reason::Evicted, format!("the node evicted the Pod: {why}")),
        Some("DeadlineExceeded") => return ended(Reason::DeadlineExceeded, "the Pod's own deadline passed".into()),
        Some(reason) if runner.is_none() && container(status, INSTALL).is_none_or(|c| c.state.is_none()) => {
            return ended(Reason::PodRejected, format!("the node refused the Pod: {}: {why}", clean(reason)));
        }
        _ => {}
    }
    if let Some(why) = condition(status, "DisruptionTarget", "True") {
        return ended(Reason::Evicted, format!("the Pod was taken from its node: {why}"));
    }
    for name in [EXECUTOR, RUNNER] {
        if container(status, name).and_then(ended_or_last).is_some_and(|end| end.reason.as_deref() == Some("OOMKilled")) {
            return ended(Reason::OutOfMemory, out_of_memory(name));
        }
    }
    if let Some(install) = container(status, INSTALL).and_then(|c| terminated(c.state.as_ref())).filter(|end| end.exit_code != 0) {
        return ended(Reason::PodRejected, format!("the executor could not be installed: {}", end_of(install)));
    }
    match runner {
        Some(end) => {
            let (reason, message) = runner_end(end);
            ended(reason, message)
        }
        None => ended(Reason::SandboxLost, format!("the Pod ended without its runner having run: {why}")),
    }
}

/// Reasons that a runner may give for its own end.
const RUNNER_REASONS: &[Reason] = &[
    Reason::ConfinementFailed,
    Reason::NetworkNotEnforced,
    Reason::AgentError,
    Reason::SandboxLost,
    Reason::SourceUnavailable,
    Reason::StartupDeadlineExceeded,
];

#[derive(Deserialize)]
struct RunnerMessage {
    reason: String,
    #[serde(default)]
    message: String,
}

fn runner_end(end: &ContainerStateTerminated) -> (Reason, String) {
    if end.exit_code == 0 {
        return (Reason::AgentError, "the runner ended, but the gateway has no result of it".into());
    }
    let text = end.message.as_deref().unwrap_or_default();
    match serde_json::from_str::<RunnerMessage>(text) {
        // The runner was told to stop, and not by us: our own ends are decided before the Pod goes.
        Ok(said) if said.reason == Reason::Cancelled.as_str() => {
            let message = "somebody ended the sandbox from outside; what it did is not repeated: create a new AgentRun to run again";
            (Reason::SandboxLost, message.into())
        }
        Ok(said) => {
            let known = RUNNER_REASONS.iter().find(|reason| reason.as_str() == said.reason);
            (*known.unwrap_or(&Reason::AgentError), clean(&said.message))
        }
        // Killed from outside: what it did is not known.
        Err(_) if end.exit_code > 128 => (Reason::SandboxLost, format!("the runner was killed: {}", end_of(end))),
        Err(_) => (Reason::AgentError, format!("the runner ended without a result: {}", end_of(end))),
    }
}

fn end_of(end: &ContainerStateTerminated) -> String {
    let reason = clean(end.reason.as_deref().unwrap_or("ended"));
    let message = clean(end.message.as_deref().unwrap_or_default());
    format!("{reason}, exit status {}{}{message}", end.exit_code, if message.is_empty() { "" } else { ": " })
}

/// A container that does not come up and will hardly do so by waiting.
fn stuck(pod: &Pod, status: &PodStatus) -> Option<Sandbox> {
    let scheduled = status.conditions.iter().flatten().find(|c| c.type_ == "PodScheduled" && c.status == "True");
    let since = scheduled.and_then(|c| c.last_transition_time.as_ref()).or(pod.metadata.creation_timestamp.as_ref())?.0;
    let fails_at = since.checked_add(PATIENCE).ok();
    for name in [INSTALL, EXECUTOR, RUNNER] {
        let Some(found) = container(status, name) else { continue };
        let Some(waiting) = found.state.as_ref().and_then(|state| state.waiting.as_ref()) else { continue };
        let word = waiting.reason.as_deref().unwrap_or_default();
        let why = clean(waiting.message.as_deref().unwrap_or_default());
        let image = clean(&found.image);
        return Some(match word {
            "InvalidImageName" => Sandbox::Ended(Reason::ImagePullFailed, format!("{image:?} of container {name} is no image name: {why}")),
            "ErrImagePull"
            | "ImagePullBackOff"
            | "ErrImageNeverPull"
            | "RegistryUnavailable"
            | "ImageInspectError"
            | "SignatureValidationFailed" => Sandbox::Coming {
                reason: Reason::ImagePullFailed,
                message: format!("the image {image} of container {name} cannot be pulled ({word}): {why}"),
                fails_at,
            },
            "CreateContainerConfigError" | "CreateContainerError" | "RunContainerError" | "CreatePodSandboxError" => Sandbox::Coming {
                reason: Reason::PodRejected,
                message: format!("the node cannot start the container {name} ({word}): {why}"),
                fails_at,
            },
            "CrashLoopBackOff" => {
                let last = ended_or_last(found).map(end_of).unwrap_or_default();
                Sandbox::Ended(Reason::PodRejected, format!("the container {name} does not stay up: {last}"))
            }
            _ => continue,
        });
    }
    None
}

/// Text from a node or a runner: no control or invisible characters, and cut.
pub fn clean(text: &str) -> String {
    let visible = |c: char| if c.is_control() || agentrun_crds::paths::is_invisible(c) { ' ' } else { c };
    let cleaned: String = text.chars().take(MAX_TEXT).map(visible).collect();
    cleaned.trim().to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn pod(status: Value) -> Pod {
        serde_json::from_value(json!({"metadata": {"creationTimestamp": "2026-01-01T00:00:00Z"}, "status": status})).unwrap()
    }

    fn waiting(name: &str, reason: &str) -> Value {
        json!({"phase": "Pending", "initContainerStatuses": [
            {"name": name, "image": "i", "imageID": "", "ready": false, "restartCount": 0, "state": {"waiting": {"reason": reason, "message": "m"}}}]})
    }

    fn runner(state: Value) -> Value {
        json!({"phase": "Running", "containerStatuses": [
            {"name": "runner", "image": "i", "imageID": "", "ready": false, "restartCount": 0, "state": state}]})
    }

    fn exited(code: i64, message: &str) -> Value {
        runner(json!({"terminated": {"exitCode": code, "reason": "Error", "message": message}}))
    }

    fn name(sandbox: &Sandbox) -> String {
        match sandbox {
            Sandbox::Coming { reason, fails_at, .. } => {
                format!("coming {}{}", reason.as_str(), if fails_at.is_some() { " soon" } else { "" })
            }
            Sandbox::Up => "up".into(),
            Sandbox::Ended(reason, _) => format!("ended {}", reason.as_str()),
        }
    }

    #[test]
    fn the_table() {
        let failed = |reason: &str, message: &str| json!({"phase": "Failed", "reason": reason, "message": message});
        let executor_oom = json!({"phase": "Running",
            "initContainerStatuses": [{"name": "executor", "image": "i", "imageID": "", "ready": true, "restartCount": 1,
                "state": {"running": {}}, "lastState": {"terminated": {"exitCode": 137, "reason": "OOMKilled"}}}],
            "containerStatuses": [{"name": "runner", "image": "i", "imageID": "", "ready": true, "restartCount": 0, "state": {"running": {}}}]});
        let rows = [
            (json!({"phase": "Pending"}), "coming StartupDeadlineExceeded"),
            (
                json!({"phase": "Pending", "conditions": [{"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "0/1 nodes"}]}),
                "coming Unschedulable",
            ),
            (
                json!({"phase": "Pending", "conditions": [{"type": "PodReadyToStartContainers", "status": "False"}]}),
                "coming StartupDeadlineExceeded",
            ),
            (waiting("executor", "PodInitializing"), "coming StartupDeadlineExceeded"),
            (waiting("executor", "ErrImagePull"), "coming ImagePullFailed soon"),
            (waiting("install", "ImagePullBackOff"), "coming ImagePullFailed soon"),
            (waiting("executor", "InvalidImageName"), "ended ImagePullFailed"),
            (waiting("executor", "CreateContainerConfigError"), "coming PodRejected soon"),
            (waiting("executor", "RunContainerError"), "coming PodRejected soon"),
            (waiting("executor", "CrashLoopBackOff"), "ended PodRejected"),
            (runner(json!({"running": {}})), "up"),
            (executor_oom, "ended OutOfMemory"),
            (runner(json!({"terminated": {"exitCode": 137, "reason": "OOMKilled"}})), "ended OutOfMemory"),
            (exited(0, ""), "ended AgentError"),
            (exited(1, r#"{"reason": "ConfinementFailed", "message": "no user namespace"}"#), "ended ConfinementFailed"),
            (exited(8, r#"{"reason": "NetworkNotEnforced", "message": "it reached the API server"}"#), "ended NetworkNotEnforced"),
            (exited(1, r#"{"reason": "SandboxLost"}"#), "ended SandboxLost"),
            (exited(1, r#"{"reason": "Succeeded", "message": "trust me"}"#), "ended AgentError"),
            (exited(1, r#"{"reason": "BudgetExhausted"}"#), "ended AgentError"),
            (exited(143, r#"{"reason": "Cancelled", "message": "the Pod was asked to end"}"#), "ended SandboxLost"),
            (exited(101, "panicked"), "ended AgentError"),
            (exited(137, ""), "ended SandboxLost"),
            (exited(137, r#"{"reason": "AgentError"}"#), "ended AgentError"),
            (failed("Evicted", "Usage of EmptyDir volume \"workspace\" exceeds the limit \"1Gi\". "), "ended WorkspaceFull"),
            (failed("Evicted", "Pod ephemeral local storage usage exceeds the total limit of containers 1Gi."), "ended WorkspaceFull"),
            (failed("Evicted", "The node was low on resource: memory."), "ended Evicted"),
            (failed("DeadlineExceeded", "Pod was active on the node longer than the specified deadline"), "ended DeadlineExceeded"),
            (failed("UnexpectedAdmissionError", "Allocate failed"), "ended PodRejected"),
            (failed("OutOfcpu", "Node didn't have enough resource: cpu"), "ended PodRejected"),
            (
                json!({"phase": "Failed", "conditions": [{"type": "DisruptionTarget", "status": "True", "reason": "DeletionByTaintManager"}]}),
                "ended Evicted",
            ),
            (json!({"phase": "Failed"}), "ended SandboxLost"),
        ];
        for (status, expected) in rows {
            assert_eq!(name(&read(&pod(status.clone()))), expected, "{status}");
        }
        assert_eq!(name(&read(&Pod::default())), "coming StartupDeadlineExceeded");
    }

    #[test]
    fn patience_counts_from_scheduling() {
        let mut status = waiting("executor", "ErrImagePull");
        status["conditions"] = json!([{"type": "PodScheduled", "status": "True", "lastTransitionTime": "2026-01-01T00:02:00Z"}]);
        let Sandbox::Coming { fails_at, .. } = read(&pod(status)) else { panic!("not coming") };
        assert_eq!(fails_at, Some("2026-01-01T00:03:00Z".parse().unwrap()));
    }

    #[test]
    fn text_from_outside_is_cut_and_plain() {
        let Sandbox::Ended(_, message) = read(&pod(exited(1, r#"{"reason": "AgentError", "message": "a\u001b[31m\u202eb"}"#))) else {
            panic!()
        };
        assert_eq!(message, "a [31m b");
        assert_eq!(clean(&"x".repeat(10_000)).len(), MAX_TEXT);
    }
}
