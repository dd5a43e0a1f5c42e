//! Somebody to try: a name, a protocol, a port and an address, as the operator writes them on the command line.

use std::{fmt, net::SocketAddr, str::FromStr};

use agentrun_crds::network_probe::NetworkTarget;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Protocol {
    Tcp,
    /// Asked a question of DNS; any answer counts.
    Udp,
}

/// `TARGET=PROTOCOL/PORT/ADDRESS`, such as `apiServer=tcp/443/10.96.0.1`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place {
    pub target: NetworkTarget,
    pub protocol: Protocol,
    pub address: SocketAddr,
}

impl FromStr for Place {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let parsed = || {
            let (name, rest) = text.split_once('=')?;
            let mut parts = rest.splitn(3, '/');
            let protocol = match parts.next()? {
                "tcp" => Protocol::Tcp,
                "udp" => Protocol::Udp,
                _ => return None,
            };
            let port = parts.next()?.parse().ok()?;
            let address = parts.next()?.parse().ok()?;
            let target = NetworkTarget::ALL.iter().find(|target| target.as_str() == name)?;
            Some(Place { target: *target, protocol, address: SocketAddr::new(address, port) })
        };
        parsed().ok_or_else(|| format!("{text:?} is not TARGET=tcp/PORT/ADDRESS or TARGET=udp/PORT/ADDRESS with a target that is known"))
    }
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({})", self.target.in_words(), self.address)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_are_read_and_nonsense_is_refused() {
        let place: Place = "apiServer=tcp/443/10.96.0.1".parse().unwrap();
        assert_eq!(place, Place { target: NetworkTarget::ApiServer, protocol: Protocol::Tcp, address: "10.96.0.1:443".parse().unwrap() });
        let place: Place = "dnsUDP=udp/53/fd00::a".parse().unwrap();
        assert_eq!((place.protocol, place.to_string()), (Protocol::Udp, "DNS over UDP ([fd00::a]:53)".to_owned()));
        for text in ["", "pod", "pod=tcp/443", "pod=tcp/70000/10.0.0.1", "pod=icmp/1/10.0.0.1", "moon=tcp/1/10.0.0.1", "pod=tcp/1/name"] {
            assert!(text.parse::<Place>().unwrap_err().contains("is not TARGET="), "{text}");
        }
    }
}
