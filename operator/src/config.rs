//! All flags and environment names, checked once.
//!
//! The rights that the program needs (the chart's ClusterRole and Role say the same):
//!
//! | Where | Resource | Verbs | Why |
//! |---|---|---|---|
//! | cluster | `agentruns` | get list watch patch delete | watch, finalizer, retention |
//! | cluster | `agentruns/status` | patch | conditions, phase, budget |
//! | cluster | `agentpolicies` | get list watch | acceptance |
//! | cluster | `agentrunrecords` | get list create patch delete | what outlives a run, and whether it has run before |
//! | cluster | `namespaces` | get | labels that providers select |
//! | cluster | `pods` | get list watch create delete | the sandbox |
//! | cluster | `secrets` | create delete | the ticket; never read |
//! | cluster | `networkpolicies` | get list watch create patch delete | the sandbox's walls, restored if changed; others' that open it |
//! | cluster | `serviceaccounts` | get create | the sandboxes' account |
//! | cluster | `events.k8s.io` `events` | create patch | outcomes |
//! | cluster | `apiservices` | create; get patch delete on the one | the gateway's API, while a gateway is ready |
//! | cluster | `clusterroles` named `agentrun-operator` | get | what takes the registration along when the release goes |
//! | own namespace | `modelproviders`, `agenttemplates` | get list watch | acceptance |
//! | own namespace | `endpointslices` | list | whether a gateway is ready |
//! | own namespace | `services` | get | the gateway's address and Pods |
//! | own namespace | `secrets` named `agentrun-ca`, `agentrun-gateway-tls`, `agentrun-token-keys` | get update | certificates and keys (create comes from the cluster's rule) |
//! | own namespace | `leases` | create; get patch on the one | who works |

use std::net::{IpAddr, SocketAddr};

use clap::{ArgAction, Parser};

use crate::agent_run::objects::pod::RunnerImage;
use crate::agent_run::objects::probed::{self, Probed};
use crate::context::Settings;
use crate::leader::Candidate;

/// Turns AgentRuns into sandbox Pods.
#[derive(Parser, Debug)]
#[command(name = "operator", version)]
pub struct Flags {
    /// Namespace of operator and gateway.
    #[arg(long, env = "POD_NAMESPACE", default_value = "agentrun-system")]
    namespace: String,
    /// Name of this process among those that compete for the lease.
    #[arg(long, env = "POD_NAME", default_value = "agentrun-operator")]
    pod_name: String,
    /// Image with /runner and /executor.
    #[arg(long, env = "RUNNER_IMAGE")]
    runner_image: String,
    /// IfNotPresent, Always or Never.
    #[arg(long, env = "RUNNER_IMAGE_PULL_POLICY", default_value = "IfNotPresent")]
    runner_image_pull_policy: String,
    /// Address of the API server, which sandboxes must not reach: that of its Service.
    #[arg(long, env = "KUBERNETES_SERVICE_HOST")]
    api_server_address: IpAddr,
    /// Its port.
    #[arg(long, env = "KUBERNETES_SERVICE_PORT", default_value_t = 443)]
    api_server_port: u16,
    /// The cluster's DNS, which sandboxes must not reach. Unset: the operator's own.
    #[arg(long)]
    name_server: Option<IpAddr>,
    /// An address outside the cluster, which sandboxes must not reach: 192.0.2.1:443. Unset: none is tried.
    #[arg(long)]
    internet_address: Option<SocketAddr>,
    /// Name of the gateway's Service.
    #[arg(long, default_value = "agentrun-gateway")]
    gateway_service: String,
    /// Name of the lease.
    #[arg(long, default_value = "agentrun-operator")]
    lease_name: String,
    /// Make and renew the gateway's certificate; false where cert-manager does.
    #[arg(long, action = ArgAction::Set, default_value_t = true)]
    manage_certificates: bool,
    /// Days for which the AgentRunRecord of a run is kept after the run ended and its AgentRun is gone.
    #[arg(long, default_value_t = 365, value_parser = clap::value_parser!(u16).range(1..=3650))]
    record_retention_days: u16,
    /// Address of health and metrics, plain HTTP.
    #[arg(long, default_value = "0.0.0.0:8081")]
    listen: SocketAddr,
    /// Log one JSON object a line.
    #[arg(long)]
    log_json: bool,
}

/// The same, checked.
#[derive(Debug)]
pub struct Config {
    pub settings: Settings,
    pub candidate: Candidate,
    pub manage_certificates: bool,
    pub listen: SocketAddr,
    pub log_json: bool,
}

impl Flags {
    /// Check every flag; the message names the one at fault.
    pub fn check(self) -> Result<Config, String> {
        let Flags {
            namespace,
            pod_name,
            runner_image,
            runner_image_pull_policy,
            api_server_address,
            api_server_port,
            name_server,
            internet_address,
            gateway_service,
            lease_name,
            manage_certificates,
            record_retention_days,
            listen,
            log_json,
        } = self;
        label("--namespace", &namespace)?;
        label("--gateway-service", &gateway_service)?;
        subdomain("--pod-name", &pod_name)?;
        subdomain("--lease-name", &lease_name)?;
        if runner_image.is_empty() || !runner_image.bytes().all(|b| b.is_ascii_graphic()) {
            return Err(format!("--runner-image: {runner_image:?} is no image reference; allowed: ASCII without spaces"));
        }
        if !["IfNotPresent", "Always", "Never"].contains(&runner_image_pull_policy.as_str()) {
            let allowed = "IfNotPresent, Always, Never";
            return Err(format!("--runner-image-pull-policy: {runner_image_pull_policy:?} is unknown; allowed: {allowed}"));
        }
        Ok(Config {
            settings: Settings {
                namespace: namespace.clone(),
                gateway_service,
                image: RunnerImage { name: runner_image, pull_policy: runner_image_pull_policy },
                probed: Probed {
                    api_server: SocketAddr::new(api_server_address, api_server_port),
                    name_server: name_server.or_else(own_name_server),
                    internet: internet_address,
                },
                record_retention_days,
            },
            candidate: Candidate { namespace, lease: lease_name, identity: pod_name },
            manage_certificates,
            listen,
            log_json,
        })
    }
}

/// That of the cluster's Pods, unless the Pod says otherwise.
fn own_name_server() -> Option<IpAddr> {
    probed::name_server(&std::fs::read_to_string("/etc/resolv.conf").unwrap_or_default())
}

fn word(text: &str, most: usize) -> bool {
    let inner = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-';
    (1..=most).contains(&text.len()) && text.bytes().all(inner) && !text.starts_with('-') && !text.ends_with('-')
}

fn label(flag: &str, text: &str) -> Result<(), String> {
    if word(text, 63) { Ok(()) } else { Err(format!("{flag}: {text:?} is no DNS label; allowed: 1 to 63 of a-z, 0-9 and '-'")) }
}

fn subdomain(flag: &str, text: &str) -> Result<(), String> {
    let fine = text.len() <= 100 && text.split('.').all(|part| word(part, 63));
    if fine {
        Ok(())
    } else {
        Err(format!("{flag}: {text:?} is no object name; allowed: DNS labels joined by '.', at most 100 characters"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(arguments: &[&str]) -> Result<Config, String> {
        let all = ["operator", "--runner-image", "runner:1", "--pod-name", "p", "--namespace", "n", "--api-server-address", "10.96.0.1"];
        Flags::try_parse_from(all.iter().chain(arguments)).map_err(|e| e.to_string())?.check()
    }

    #[test]
    fn defaults_and_refusals() {
        let config = parse(&[]).unwrap();
        assert_eq!((config.settings.namespace.as_str(), config.candidate.lease.as_str()), ("n", "agentrun-operator"));
        assert!(config.manage_certificates && !config.log_json);
        assert!(!parse(&["--manage-certificates=false"]).unwrap().manage_certificates);
        for (arguments, flag) in [
            (vec!["--gateway-service", "Gate.way"], "--gateway-service"),
            (vec!["--lease-name", "-"], "--lease-name"),
            (vec!["--runner-image-pull-policy", "Sometimes"], "--runner-image-pull-policy"),
            (vec!["--listen", "nowhere"], "--listen"),
            (vec!["--record-retention-days", "0"], "--record-retention-days"),
            (vec!["--internet-address", "example.com:443"], "--internet-address"),
            (vec!["--name-server", "dns"], "--name-server"),
            (vec!["--unknown"], "--unknown"),
        ] {
            let error = parse(&arguments).unwrap_err();
            assert!(error.contains(flag), "{error}");
        }
    }
}
