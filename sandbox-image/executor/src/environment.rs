//! The environment of commands: a few fixed variables, where the image keeps its toolchain, and what the request adds.

use std::{collections::BTreeMap, ffi::OsString, path::Path};

const DEFAULT_PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

/// Variables by which images say where their toolchains are. Everything else of the container's environment stays behind.
const TOOLCHAIN: &[&str] = &[
    "CARGO_HOME",
    "GEM_HOME",
    "GOPATH",
    "GOROOT",
    "GRADLE_HOME",
    "JAVA_HOME",
    "LD_LIBRARY_PATH",
    "MAVEN_HOME",
    "NODE_PATH",
    "RUSTUP_HOME",
    "SSL_CERT_FILE",
    "VIRTUAL_ENV",
];

/// The variables that every command gets. `root` is the workspace's absolute path, `home` the home directory if there is one.
pub fn base(root: &Path, home: Option<&Path>, of_container: impl Fn(&str) -> Option<OsString>) -> BTreeMap<OsString, OsString> {
    let mut variables: BTreeMap<OsString, OsString> = BTreeMap::new();
    let mut set = |name: &str, value: OsString| {
        variables.insert(name.into(), value);
    };
    set("PATH", of_container("PATH").unwrap_or_else(|| DEFAULT_PATH.into()));
    set("HOME", home.map_or_else(|| "/tmp".into(), |home| home.as_os_str().to_owned()));
    set("TMPDIR", "/tmp".into());
    set("LANG", "C.UTF-8".into());
    // Compiled copies beside the sources would be changed files, and stale ones when a file is edited twice in a second.
    set("PYTHONDONTWRITEBYTECODE", "1".into());
    // Nothing may ask a question: there is nobody to answer.
    set("GIT_TERMINAL_PROMPT", "0".into());
    // The workspace's directory belongs to root, which git takes for dubious.
    set("GIT_CONFIG_COUNT", "1".into());
    set("GIT_CONFIG_KEY_0", "safe.directory".into());
    set("GIT_CONFIG_VALUE_0", root.as_os_str().to_owned());
    for name in TOOLCHAIN {
        if let Some(value) = of_container(name) {
            set(name, value);
        }
    }
    variables
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_known_variables_pass() {
        let container = |name: &str| match name {
            "PATH" => Some("/opt/bin".into()),
            "JAVA_HOME" => Some("/opt/java".into()),
            "KUBERNETES_SERVICE_HOST" | "HOSTNAME" | "LD_PRELOAD" => Some("x".into()),
            _ => None,
        };
        let variables = base(Path::new("/workspace"), Some(Path::new("/home/agent")), container);
        assert_eq!(variables[&OsString::from("PATH")], "/opt/bin");
        assert_eq!(variables[&OsString::from("HOME")], "/home/agent");
        assert_eq!(variables[&OsString::from("JAVA_HOME")], "/opt/java");
        for absent in ["KUBERNETES_SERVICE_HOST", "HOSTNAME", "LD_PRELOAD"] {
            assert!(!variables.contains_key(&OsString::from(absent)));
        }
        let bare = base(Path::new("/w"), None, |_| None);
        assert_eq!((&bare[&OsString::from("PATH")], &bare[&OsString::from("HOME")]), (&DEFAULT_PATH.into(), &"/tmp".into()));
    }
}
