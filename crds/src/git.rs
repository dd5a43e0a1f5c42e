//! The grammar of git sources: the URL of a repository, the name of a ref, and which repositories an entry of a policy admits.

/// Longest URL in characters.
pub const MAX_URL_CHARS: usize = 512;
/// Longest ref in characters.
pub const MAX_REF_CHARS: usize = 255;

/// What a URL must look like, for messages.
pub const URL_ALLOWED: &str = "https://host[:port]/path/of/repository, in lower case up to the path, without credentials, query, fragment, '%', '.' or '..' (http:// where the policy allows it)";
/// What a ref must look like, for messages.
pub const REF_ALLOWED: &str = "a branch, a tag, a full name such as refs/heads/main, or the 40 hex digits of a commit";

/// A checked URL of a repository, reached over smart HTTP.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GitUrl {
    pub tls: bool,
    /// Name or IPv4 address, without port.
    pub host: String,
    /// `None`: the scheme's own.
    pub port: Option<u16>,
    /// With a leading `/`, no trailing one, as given.
    pub path: String,
}

impl GitUrl {
    /// `None`: it is not of the form that `URL_ALLOWED` says.
    pub fn parse(text: &str) -> Option<Self> {
        if text.chars().count() > MAX_URL_CHARS {
            return None;
        }
        let (tls, rest) = match (text.strip_prefix("https://"), text.strip_prefix("http://")) {
            (Some(rest), _) => (true, rest),
            (_, Some(rest)) => (false, rest),
            _ => return None,
        };
        let (authority, path) = rest.split_at(rest.find('/')?);
        let (host, port) = authority_of(authority)?;
        let segment = |segment: &str| {
            !matches!(segment, "" | "." | "..") && segment.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"._~+-".contains(&byte))
        };
        let fine = path[1..].split('/').all(segment);
        fine.then(|| GitUrl { tls, host, port, path: path.to_owned() })
    }

    /// Host, and port if it is not the scheme's own, as a policy's entry names it.
    pub fn authority(&self) -> String {
        match self.port {
            Some(port) if Some(port) != self.scheme_port() => format!("{}:{port}", self.host),
            _ => self.host.clone(),
        }
    }

    /// The port to connect to.
    pub fn port(&self) -> u16 {
        self.port.or(self.scheme_port()).unwrap_or(443)
    }

    fn scheme_port(&self) -> Option<u16> {
        Some(if self.tls { 443 } else { 80 })
    }

    /// The path without the leading `/` and without `.git` at its end.
    pub fn repository(&self) -> &str {
        let path = self.path.trim_start_matches('/');
        path.strip_suffix(".git").unwrap_or(path)
    }
}

/// `host` or `host:port`, in lower case.
pub fn authority_of(text: &str) -> Option<(String, Option<u16>)> {
    let (host, port) = match text.split_once(':') {
        Some((host, port)) => {
            let digits = !port.is_empty() && port.len() <= 5 && port.bytes().all(|byte| byte.is_ascii_digit()) && !port.starts_with('0');
            (host, Some(port.parse::<u16>().ok().filter(|_| digits)?))
        }
        None => (text, None),
    };
    let label = |label: &str| {
        let inside = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-';
        !label.is_empty() && label.bytes().all(inside) && !label.starts_with('-') && !label.ends_with('-')
    };
    (host.len() <= 253 && host.split('.').all(label)).then(|| (host.to_owned(), port))
}

/// Whether an entry's pattern (`org/repository`, `org/**`, `**`) admits this repository.
pub fn admits(pattern: &str, repository: &str) -> bool {
    match pattern.strip_suffix("/**") {
        _ if pattern == "**" => true,
        Some(folder) => repository.strip_prefix(folder).is_some_and(|rest| rest.len() > 1 && rest.starts_with('/')),
        None => pattern.strip_suffix(".git").unwrap_or(pattern) == repository,
    }
}

/// Whether a text can be the name of a ref or a commit: what git itself would take, of ASCII.
pub fn is_ref(text: &str) -> bool {
    let fine = |c: char| c.is_ascii_alphanumeric() || "_.@+#%=,/-".contains(c);
    let broken = ["..", "//", "@{", "/.", "./", ".lock/"].iter().any(|part| text.contains(part));
    let ends = text.starts_with(['-', '/', '.']) || text.ends_with(['/', '.']) || text.ends_with(".lock");
    (1..=MAX_REF_CHARS).contains(&text.chars().count()) && text.chars().all(fine) && !broken && !ends && text != "@"
}

/// Whether a ref is a full commit of a SHA-1 repository.
pub fn is_commit(text: &str) -> bool {
    text.len() == 40 && text.bytes().all(|byte| byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn urls_are_of_one_form() {
        for (text, authority, port, repository) in [
            ("https://git.example/org/shop.git", "git.example", 443, "org/shop"),
            ("https://git.example:443/org/shop", "git.example", 443, "org/shop"),
            ("https://git.example:8443/a/b/c~d+e/.github", "git.example:8443", 8443, "a/b/c~d+e/.github"),
            ("http://git.team.svc/shop.git", "git.team.svc", 80, "shop"),
            ("http://10.0.0.1:3000/shop", "10.0.0.1:3000", 3000, "shop"),
        ] {
            let url = GitUrl::parse(text).unwrap_or_else(|| panic!("{text}"));
            assert_eq!((url.authority().as_str(), url.port(), url.repository()), (authority, port, repository), "{text}");
        }
        let long = format!("https://git.example/{}", "a".repeat(MAX_URL_CHARS));
        for text in [
            "",
            "git.example/shop",
            "ssh://git.example/shop",
            "git@git.example:shop",
            "file:///shop",
            "HTTPS://git.example/shop",
            "https://git.example",
            "https://git.example/",
            "https://git.example/shop/",
            "https://git.example//shop",
            "https:///shop",
            "https://user@git.example/shop",
            "https://user:key@git.example/shop",
            "https://git.example/shop?service=x",
            "https://git.example/shop#x",
            "https://git.example/a/../b",
            "https://git.example/a/./b",
            "https://git.example/a%2e/b",
            "https://git.example/a b",
            "https://git.example/a\\b",
            "https://git.example/\u{fc}",
            "https://Git.example/shop",
            "https://git.example:/shop",
            "https://git.example:0/shop",
            "https://git.example:65536/shop",
            "https://git.example:080/shop",
            "https://[::1]/shop",
            "https://-git.example/shop",
            "https://git..example/shop",
            "https://git.example./shop",
            &long,
        ] {
            assert_eq!(GitUrl::parse(text), None, "{text}");
        }
    }

    #[test]
    fn patterns_admit_whole_components() {
        for (pattern, repository, admitted) in [
            ("**", "org/shop", true),
            ("org/**", "org/shop", true),
            ("org/**", "org/team/shop", true),
            ("org/**", "org", false),
            ("org/**", "organised/shop", false),
            ("org/shop", "org/shop", true),
            ("org/shop.git", "org/shop", true),
            ("org/shop", "org/shop2", false),
            ("org/shop", "Org/shop", false),
        ] {
            assert_eq!(admits(pattern, repository), admitted, "{pattern} {repository}");
        }
    }

    #[test]
    fn refs_are_what_git_takes() {
        for text in
            ["main", "HEAD", "v1.0", "feature/a-b_c", "refs/pull/1/head", "0123456789012345678901234567890123456789", "a@b", "release+1"]
        {
            assert!(is_ref(text), "{text}");
        }
        for text in [
            "",
            "-main",
            "/main",
            "main/",
            "a..b",
            "a//b",
            "a@{1}",
            "a b",
            "a~1",
            "a^",
            "a:b",
            "a?",
            "a*",
            "a[",
            "a\\b",
            "a\n",
            ".a",
            "a/.b",
            "a.",
            "a.lock",
            "@",
            "a\u{202e}b",
            "caf\u{e9}",
        ] {
            assert!(!is_ref(text), "{text:?}");
        }
        assert!(is_commit("0123456789abcdef0123456789012345678901ab") && !is_commit("0123456789ABCDEF0123456789012345678901AB"));
    }
}
