//! The sandbox Pod: `install` copies the static executor, `executor` is the user's image with nothing of ours but that
//! binary, `runner` is our image and the only one that sees ticket and token.

use std::collections::BTreeMap;

use agentrun_crds::agent_policy::HostUsers;
use agentrun_crds::agent_run_status::Resolved;
use agentrun_crds::names;
use k8s_openapi::api::core::v1::{
    Capabilities, Container, EmptyDirVolumeSource, EnvVar, EnvVarSource, HostAlias, KeyToPath, ObjectFieldSelector, Pod, PodDNSConfig,
    PodSecurityContext, PodSpec, ProjectedVolumeSource, ResourceRequirements, SeccompProfile, SecretVolumeSource, SecurityContext,
    ServiceAccountTokenProjection, Volume, VolumeMount, VolumeProjection,
};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;

use super::network_policy::Gateway;
use super::probed::{NODE_ADDRESS, Probed};
use super::{Owner, share};

/// Container names.
pub const INSTALL: &str = "install";
pub const EXECUTOR: &str = "executor";
pub const RUNNER: &str = "runner";
/// Seconds that containers get to end.
pub const GRACE_SECONDS: i64 = 5;

const RUNNER_ID: i64 = 65532;
const EXECUTOR_ID: i64 = 65533;
const BIN: &str = "/agentrun/bin";
const SOCKET: &str = "/agentrun/socket";
const TICKET: &str = "/agentrun/ticket";
const TOKEN: &str = "/agentrun/token";
/// Where a command-line agent keeps its state.
const HOME: &str = "/home/agent";
/// Beyond startup deadline and wall time: what the last checks, the upload and a pause of the operator may take.
const SLACK_SECONDS: i64 = 600;

/// The image that has `/runner` and `/executor`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RunnerImage {
    pub name: String,
    pub pull_policy: String,
}

/// The Pod of an attempt.
pub fn pod(owner: &Owner, attempt: i64, resolved: &Resolved, gateway: &Gateway, image: &RunnerImage, probed: &Probed) -> Pod {
    let mut metadata = owner.metadata(attempt);
    // Nothing interrupted is repeated, so autoscalers should look elsewhere first.
    let annotations = [("cluster-autoscaler.kubernetes.io/safe-to-evict", "false"), ("karpenter.sh/do-not-disrupt", "true")];
    metadata.annotations = Some(annotations.map(|(key, value)| (key.to_owned(), value.to_owned())).into());
    Pod {
        metadata,
        spec: Some(PodSpec {
            restart_policy: Some("Never".into()),
            active_deadline_seconds: Some(longest_life(resolved)),
            termination_grace_period_seconds: Some(GRACE_SECONDS),
            service_account_name: Some(names::SANDBOX_SERVICE_ACCOUNT.into()),
            automount_service_account_token: Some(false),
            enable_service_links: Some(false),
            share_process_namespace: Some(false),
            host_users: (resolved.host_users == HostUsers::Isolated).then_some(false),
            runtime_class_name: resolved.runtime_class_name.clone(),
            // No names: the one address the sandbox needs is in its hosts file.
            dns_policy: Some("None".into()),
            dns_config: Some(PodDNSConfig { nameservers: Some(vec!["127.0.0.1".into()]), ..PodDNSConfig::default() }),
            host_aliases: Some(vec![HostAlias { ip: gateway.address.clone(), hostnames: Some(vec![gateway.server_name()]) }]),
            security_context: Some(PodSecurityContext {
                run_as_non_root: Some(true),
                fs_group: Some(RUNNER_ID),
                fs_group_change_policy: Some("OnRootMismatch".into()),
                seccomp_profile: Some(seccomp()),
                ..PodSecurityContext::default()
            }),
            init_containers: Some(vec![install(image), executor(resolved)]),
            containers: vec![runner(image, gateway, probed.arguments(gateway, resolved.network_enforcement))],
            volumes: Some(volumes(&owner.child_name(attempt), resolved)),
            ..PodSpec::default()
        }),
        status: None,
    }
}

/// The operator ends the run earlier; the kubelet does where no operator is left.
fn longest_life(resolved: &Resolved) -> i64 {
    resolved.startup_deadline_seconds + resolved.wall_time_seconds + resolved.max_pause_seconds() + SLACK_SECONDS
}

fn seccomp() -> SeccompProfile {
    SeccompProfile { type_: "RuntimeDefault".into(), localhost_profile: None }
}

fn confined(id: i64) -> Option<SecurityContext> {
    Some(SecurityContext {
        run_as_user: Some(id),
        run_as_group: Some(id),
        run_as_non_root: Some(true),
        privileged: Some(false),
        allow_privilege_escalation: Some(false),
        read_only_root_filesystem: Some(true),
        capabilities: Some(Capabilities { drop: Some(vec!["ALL".into()]), add: None }),
        seccomp_profile: Some(seccomp()),
        ..SecurityContext::default()
    })
}

fn strings(words: &[&str]) -> Option<Vec<String>> {
    Some(words.iter().map(|word| (*word).to_owned()).collect())
}

const MI: i128 = 1024 * 1024;

fn resources(cpu: &str, memory: &str, storage: &str) -> Option<ResourceRequirements> {
    let quantities = |amounts: [(&str, String); 3]| -> BTreeMap<String, Quantity> {
        amounts.into_iter().map(|(name, amount)| (name.to_owned(), Quantity(amount))).collect()
    };
    Some(ResourceRequirements {
        limits: Some(quantities([("cpu", cpu.into()), ("memory", memory.into()), ("ephemeral-storage", storage.into())])),
        requests: Some(quantities([
            ("cpu", share::of_cpu(cpu, 10)),
            ("memory", share::of_bytes(memory, 32 * MI)),
            ("ephemeral-storage", share::of_bytes(storage, MI)),
        ])),
        claims: None,
    })
}

fn mount(name: &str, path: &str, read_only: bool) -> VolumeMount {
    VolumeMount { name: name.into(), mount_path: path.into(), read_only: Some(read_only), ..VolumeMount::default() }
}

fn install(image: &RunnerImage) -> Container {
    Container {
        name: INSTALL.into(),
        image: Some(image.name.clone()),
        image_pull_policy: Some(image.pull_policy.clone()),
        command: strings(&["/executor", "install", "/agentrun/bin/executor"]),
        resources: resources("200m", "64Mi", "64Mi"),
        security_context: confined(RUNNER_ID),
        volume_mounts: Some(vec![mount("bin", BIN, false)]),
        ..Container::default()
    }
}

fn executor(resolved: &Resolved) -> Container {
    let mut words = vec!["/agentrun/bin/executor", "serve", "--socket", "/agentrun/socket/executor.sock", "--root", "/workspace"];
    let mut mounts = vec![
        mount("bin", BIN, true),
        mount("socket", SOCKET, true),
        mount("workspace", "/workspace", false),
        mount("executor-tmp", "/tmp", false),
    ];
    if resolved.harness.is_some() {
        words.extend(["--home", HOME]);
        mounts.push(mount("home", HOME, false));
    }
    Container {
        name: EXECUTOR.into(),
        image: Some(resolved.image.clone()),
        // A native sidecar: it starts before the runner and is ended when the runner has ended.
        restart_policy: Some("Always".into()),
        command: strings(&words),
        working_dir: Some("/workspace".into()),
        // The sum of these limits bounds the Pod's emptyDirs; the runner's share covers both /tmp.
        resources: resources(&resolved.cpu, &resolved.memory, &resolved.workspace),
        security_context: confined(EXECUTOR_ID),
        volume_mounts: Some(mounts),
        ..Container::default()
    }
}

fn runner(image: &RunnerImage, gateway: &Gateway, probed: Vec<String>) -> Container {
    let url = format!("https://{}:{}", gateway.server_name(), names::SANDBOX_PORT);
    let token = format!("{TOKEN}/token");
    let words = ["/runner", "--gateway", &url, "--ticket-dir", TICKET, "--pod-token", &token, "--socket", "/agentrun/socket/executor.sock"];
    Container {
        name: RUNNER.into(),
        image: Some(image.name.clone()),
        image_pull_policy: Some(image.pull_policy.clone()),
        command: strings(&words).map(|words| [words, probed].concat()),
        env: Some(vec![node_address()]),
        termination_message_policy: Some("File".into()),
        resources: resources("1", "256Mi", "512Mi"),
        security_context: confined(RUNNER_ID),
        volume_mounts: Some(vec![
            mount("socket", SOCKET, false),
            mount("ticket", TICKET, true),
            mount("token", TOKEN, true),
            mount("runner-tmp", "/tmp", false),
        ]),
        ..Container::default()
    }
}

/// For the runner's arguments, which name it.
fn node_address() -> EnvVar {
    let field = ObjectFieldSelector { field_path: "status.hostIP".into(), api_version: None };
    let source = EnvVarSource { field_ref: Some(field), ..EnvVarSource::default() };
    EnvVar { name: NODE_ADDRESS.into(), value_from: Some(source), value: None }
}

fn volumes(secret: &str, resolved: &Resolved) -> Vec<Volume> {
    let empty = |name: &str, limit: &str| Volume {
        name: name.into(),
        empty_dir: Some(EmptyDirVolumeSource { size_limit: Some(Quantity(limit.into())), medium: None }),
        ..Volume::default()
    };
    let key = |key: &str| KeyToPath { key: key.into(), path: key.into(), mode: None };
    let mut volumes = vec![
        empty("bin", "64Mi"),
        empty("socket", "1Mi"),
        empty("workspace", &resolved.workspace),
        empty("executor-tmp", "256Mi"),
        empty("runner-tmp", "64Mi"),
        Volume {
            name: "ticket".into(),
            secret: Some(SecretVolumeSource {
                secret_name: Some(secret.into()),
                items: Some(vec![key("ticket"), key("ca.crt")]),
                default_mode: Some(0o440),
                optional: Some(false),
            }),
            ..Volume::default()
        },
        Volume {
            name: "token".into(),
            projected: Some(ProjectedVolumeSource {
                default_mode: Some(0o440),
                sources: Some(vec![VolumeProjection {
                    service_account_token: Some(ServiceAccountTokenProjection {
                        audience: Some(names::EXCHANGE_AUDIENCE.into()),
                        expiration_seconds: Some(600),
                        path: "token".into(),
                    }),
                    ..VolumeProjection::default()
                }]),
            }),
            ..Volume::default()
        },
    ];
    if resolved.harness.is_some() {
        volumes.push(empty("home", "192Mi"));
    }
    volumes
}

#[cfg(test)]
#[path = "pod_tests.rs"]
mod tests;
