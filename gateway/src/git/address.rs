//! Which addresses a git server may have. Judged on the very address that is connected to, so that a name that changes its mind
//! gains nothing.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use agentrun_crds::agent_policy::Addresses;

/// Whether a connection to this address is allowed.
pub(super) fn allowed(address: IpAddr, addresses: Addresses) -> bool {
    let kind = match address {
        IpAddr::V4(address) => kind_v4(address),
        IpAddr::V6(address) => match embedded(address) {
            Some(inside) => kind_v4(inside),
            None => kind_v6(address),
        },
    };
    match kind {
        Kind::Public => true,
        Kind::Private => addresses == Addresses::Private,
        Kind::Never => false,
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Public,
    /// Of a site, a cluster or this machine.
    Private,
    /// Link-local, where clouds keep their metadata, and what is no host at all.
    Never,
}

fn kind_v4(address: Ipv4Addr) -> Kind {
    let [a, b, c, _] = address.octets();
    match (a, b, c) {
        (0, ..) | (169, 254, _) | (224.., ..) => Kind::Never,
        // Alibaba's metadata service stands in the shared range.
        (100, 100, 100) if address == Ipv4Addr::new(100, 100, 100, 200) => Kind::Never,
        (10 | 127, ..) | (172, 16..=31, _) | (192, 168, _) | (100, 64..=127, _) => Kind::Private,
        // Protocol assignments, documentation and benchmarks.
        (192, 0, 0 | 2) | (198, 18 | 19, _) | (198, 51, 100) | (203, 0, 113) => Kind::Private,
        _ => Kind::Public,
    }
}

fn kind_v6(address: Ipv6Addr) -> Kind {
    let first = address.segments()[0];
    // AWS answers for metadata at a unique local address.
    if address.is_unspecified() || address == Ipv6Addr::new(0xfd00, 0xec2, 0, 0, 0, 0, 0, 0x254) {
        return Kind::Never;
    }
    match first {
        0xfe80..=0xfebf | 0xff00..=0xffff => Kind::Never,
        // Global unicast but for documentation.
        0x2000..=0x3fff if address.segments()[..2] != [0x2001, 0xdb8] => Kind::Public,
        _ => Kind::Private,
    }
}

/// The IPv4 address that this one leads to: mapped, compatible, NAT64, 6to4.
fn embedded(address: Ipv6Addr) -> Option<Ipv4Addr> {
    let segments = address.segments();
    let of = |high: u16, low: u16| Ipv4Addr::from((u32::from(high) << 16) | u32::from(low));
    match segments {
        [0, 0, 0, 0, 0, 0xffff | 0, high, low] if address != Ipv6Addr::LOCALHOST && !address.is_unspecified() => Some(of(high, low)),
        [0x64, 0xff9b, 0, 0, 0, 0, high, low] => Some(of(high, low)),
        [0x2002, high, low, ..] => Some(of(high, low)),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn metadata_is_never_reached_and_private_addresses_only_where_the_policy_says() {
        for (address, kind) in [
            ("140.82.112.3", Kind::Public),
            ("2606:50c0:8000::153", Kind::Public),
            ("10.1.2.3", Kind::Private),
            ("172.16.0.1", Kind::Private),
            ("172.32.0.1", Kind::Public),
            ("192.168.1.1", Kind::Private),
            ("100.64.0.1", Kind::Private),
            ("127.0.0.1", Kind::Private),
            ("::1", Kind::Private),
            ("fd12:3456::1", Kind::Private),
            ("169.254.169.254", Kind::Never),
            ("100.100.100.200", Kind::Never),
            ("fd00:ec2::254", Kind::Never),
            ("fe80::1", Kind::Never),
            ("ff02::1", Kind::Never),
            ("224.0.0.1", Kind::Never),
            ("255.255.255.255", Kind::Never),
            ("0.0.0.0", Kind::Never),
            ("::", Kind::Never),
            ("::ffff:169.254.169.254", Kind::Never),
            ("::ffff:10.0.0.1", Kind::Private),
            ("64:ff9b::a9fe:a9fe", Kind::Never),
            ("64:ff9b::8c52:7003", Kind::Public),
            ("2002:a00:1::", Kind::Private),
        ] {
            let address: IpAddr = address.parse().expect("an address");
            assert_eq!(allowed(address, Addresses::Public), kind == Kind::Public, "{address}");
            assert_eq!(allowed(address, Addresses::Private), kind != Kind::Never, "{address}");
        }
    }
}
