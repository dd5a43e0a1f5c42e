//! Whom a sandbox's runner tries to reach before and while it works: addresses that the operator knows of its cluster, as words
//! of the runner's command line.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};

use agentrun_crds::names;
use agentrun_crds::network_probe::{NetworkEnforcement, NetworkTarget};

use super::network_policy::Gateway;

/// Environment variable of the runner's container with its node's address.
pub const NODE_ADDRESS: &str = "NODE_ADDRESS";

const KUBELET_PORT: u16 = 10_250;
const DNS_PORT: u16 = 53;
/// Where clouds hand out a node's credentials.
const METADATA: IpAddr = IpAddr::V4(Ipv4Addr::new(169, 254, 169, 254));

/// Addresses of this cluster.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Probed {
    /// The API server's Service.
    pub api_server: SocketAddr,
    /// What Pods are given as their name server.
    pub name_server: Option<IpAddr>,
    /// Somebody outside.
    pub internet: Option<SocketAddr>,
}

impl Probed {
    /// The runner's arguments. The gateway's aggregated port is open to all but sandboxes, so that only a sandbox's own fence keeps
    /// it from there.
    pub fn arguments(&self, gateway: &Gateway, enforcement: NetworkEnforcement) -> Vec<String> {
        let node = format!("$({NODE_ADDRESS})");
        let mut places = vec![
            (NetworkTarget::ApiServer, "tcp", self.api_server.port(), self.api_server.ip().to_string()),
            (NetworkTarget::Node, "tcp", KUBELET_PORT, node),
            (NetworkTarget::Pod, "tcp", names::AGGREGATED_PORT, gateway.address.clone()),
            (NetworkTarget::Metadata, "tcp", 80, METADATA.to_string()),
        ];
        if let Some(address) = self.name_server {
            places.push((NetworkTarget::DnsTcp, "tcp", DNS_PORT, address.to_string()));
            places.push((NetworkTarget::DnsUdp, "udp", DNS_PORT, address.to_string()));
        }
        if let Some(address) = self.internet {
            places.push((NetworkTarget::Internet, "tcp", address.port(), address.ip().to_string()));
        }
        let word = |(target, protocol, port, address): (NetworkTarget, &str, u16, String)| {
            let flag = if enforcement.forbids(target) { "fenced" } else { "observed" };
            format!("--{flag}={}={protocol}/{port}/{address}", target.as_str())
        };
        places.into_iter().map(word).collect()
    }
}

/// The first name server of a resolver's configuration.
pub fn name_server(resolv_conf: &str) -> Option<IpAddr> {
    let servers = resolv_conf.lines().filter_map(|line| line.trim().strip_prefix("nameserver"));
    servers.filter_map(|address| address.trim().parse().ok()).next()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_forbidden_and_what_is_only_reported() {
        let gateway = Gateway { namespace: "n".into(), service: "s".into(), address: "10.0.0.1".into(), selector: Default::default() };
        let all = Probed {
            api_server: "10.96.0.1:443".parse().unwrap(),
            name_server: Some("10.96.0.10".parse().unwrap()),
            internet: Some("[2001:db8::1]:443".parse().unwrap()),
        };
        assert_eq!(
            all.arguments(&gateway, NetworkEnforcement::Required),
            [
                "--fenced=apiServer=tcp/443/10.96.0.1",
                "--fenced=node=tcp/10250/$(NODE_ADDRESS)",
                "--fenced=pod=tcp/7443/10.0.0.1",
                "--fenced=metadata=tcp/80/169.254.169.254",
                "--fenced=dnsTCP=tcp/53/10.96.0.10",
                "--fenced=dnsUDP=udp/53/10.96.0.10",
                "--fenced=internet=tcp/443/2001:db8::1",
            ]
        );
        let few = Probed { name_server: None, internet: None, ..all };
        let arguments = few.arguments(&gateway, NetworkEnforcement::ExceptNode);
        assert_eq!(arguments[..2], ["--fenced=apiServer=tcp/443/10.96.0.1", "--observed=node=tcp/10250/$(NODE_ADDRESS)"]);
        assert_eq!(arguments.len(), 4);
        assert!(few.arguments(&gateway, NetworkEnforcement::NotRequired).iter().all(|word| word.starts_with("--observed=")));
    }

    #[test]
    fn the_name_server_is_the_first_one() {
        assert_eq!(name_server("search a b\nnameserver 10.96.0.10\nnameserver 1.2.3.4\n"), Some("10.96.0.10".parse().unwrap()));
        assert_eq!(name_server("# nameserver 1.2.3.4\noptions ndots:5\n"), None);
    }
}
