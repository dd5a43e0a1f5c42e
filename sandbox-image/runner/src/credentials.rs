//! What the Pod was given to prove itself with, and how secrets are held: wiped when dropped, never shown.

use std::{fs, net::IpAddr, path::Path};

use http::HeaderValue;
use zeroize::Zeroizing;

/// A secret text. It has no `Debug` and no `Display`.
pub struct Secret(Zeroizing<String>);

impl Secret {
    pub fn new(text: String) -> Self {
        Secret(Zeroizing::new(text))
    }

    /// As a bearer token; marked so that no log prints it.
    pub fn bearer(&self) -> Result<HeaderValue, http::header::InvalidHeaderValue> {
        let text = Zeroizing::new(format!("Bearer {}", self.0.as_str()));
        let mut value = HeaderValue::from_str(&text)?;
        value.set_sensitive(true);
        Ok(value)
    }

    pub fn expose(&self) -> &str {
        &self.0
    }
}

/// The ticket, the Pod's own token, and the gateway's CA.
pub struct Credentials {
    pub ticket: Zeroizing<Vec<u8>>,
    pub pod_token: Secret,
    pub ca: Vec<u8>,
}

const TICKET_BYTES: usize = 32;
const MAX_FILE_BYTES: u64 = 64 * 1024;

impl Credentials {
    /// Read them. Errors name the file, never its content. The kubelet publishes keys as symbolic links, which are followed.
    pub fn read(ticket_dir: &Path, pod_token: &Path) -> Result<Self, String> {
        let ticket = Zeroizing::new(read(&ticket_dir.join("ticket"))?);
        if ticket.len() != TICKET_BYTES {
            return Err(format!("{}: has {} bytes, not {TICKET_BYTES}", ticket_dir.join("ticket").display(), ticket.len()));
        }
        let token = String::from_utf8(read(pod_token)?).map_err(|_| format!("{}: is not a token", pod_token.display()))?;
        let token = Zeroizing::new(token);
        if token.trim().is_empty() {
            return Err(format!("{}: is empty", pod_token.display()));
        }
        Ok(Credentials { ticket, pod_token: Secret::new(token.trim().to_owned()), ca: read(&ticket_dir.join("ca.crt"))? })
    }
}

fn read(path: &Path) -> Result<Vec<u8>, String> {
    use std::io::Read;
    let shown = path.display();
    let file = fs::File::open(path).map_err(|error| format!("{shown}: {error}"))?;
    let mut bytes = Vec::with_capacity(4096);
    file.take(MAX_FILE_BYTES).read_to_end(&mut bytes).map_err(|error| format!("{shown}: {error}"))?;
    Ok(bytes)
}

/// The addresses of a host by a hosts file. There is no DNS in a sandbox, and a resolver would only wait for it.
pub fn addresses(hosts: &str, host: &str) -> Vec<IpAddr> {
    if let Ok(address) = host.trim_matches(['[', ']']).parse() {
        return vec![address];
    }
    let lines = hosts.lines().map(|line| line.split('#').next().unwrap_or_default());
    let named = lines.filter_map(|line| {
        let mut words = line.split_ascii_whitespace();
        let address = words.next()?.parse().ok()?;
        words.any(|name| name.eq_ignore_ascii_case(host)).then_some(address)
    });
    named.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hosts_are_found_by_any_of_their_names() {
        let hosts = "# Kubernetes\n127.0.0.1 localhost\n::1\tlocalhost ip6\n10.96.0.7 gw.ns.svc gw # gw3\nbad line\n";
        for (host, expected) in [
            ("localhost", &["127.0.0.1", "::1"][..]),
            ("GW.ns.svc", &["10.96.0.7"]),
            ("gw", &["10.96.0.7"]),
            ("gw3", &[]),
            ("10.96.0.7", &["10.96.0.7"]),
            ("[::1]", &["::1"]),
            ("line", &[]),
        ] {
            let found: Vec<String> = addresses(hosts, host).iter().map(ToString::to_string).collect();
            assert_eq!(found, expected, "{host}");
        }
    }

    #[test]
    fn files_are_followed_bounded_and_named() {
        let dir = tempfile::tempdir().unwrap();
        let put = |name: &str, bytes: &[u8]| fs::write(dir.path().join(name), bytes).unwrap();
        let token = dir.path().join("token");
        put("real", &[7; 32]);
        put("ca.crt", b"pem");
        put("token", b" abc\n");
        let credentials = || Credentials::read(dir.path(), &token).err();
        assert!(credentials().unwrap().contains("ticket: "));
        std::os::unix::fs::symlink("real", dir.path().join("ticket")).unwrap();
        assert!(credentials().is_none());
        assert_eq!(Credentials::read(dir.path(), &token).ok().unwrap().pod_token.expose(), "abc");
        put("real", &[7; 31]);
        assert!(credentials().unwrap().contains("31 bytes"));
        put("real", &[7; 32]);
        put("token", b"\n");
        assert!(credentials().unwrap().contains("is empty"));
    }

    #[test]
    fn a_bearer_header_is_not_printed() {
        let header = Secret::new("tok".into()).bearer().unwrap();
        assert!(header.is_sensitive() && !format!("{header:?}").contains("tok"));
        assert!(Secret::new("a\nb".into()).bearer().is_err());
    }
}
