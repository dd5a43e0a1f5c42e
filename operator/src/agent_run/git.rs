//! What a policy says of the repository that a run names: which entry admits it, and how it is fetched. Pure.

use agentrun_crds::agent_policy::{AgentPolicySpec, GitHost};
use agentrun_crds::agent_run::AgentRunSpec;
use agentrun_crds::agent_run_status::ResolvedGit;
use agentrun_crds::git::{self, GitUrl};
use agentrun_crds::model_provider::PlainHttp;
use agentrun_crds::quantity;

use super::resolve::{broken, denied};
use super::spec::{Refusal, show};

const DEFAULT_MAX_BYTES: i64 = 64 << 20;
const DEFAULT_TIMEOUT_SECONDS: i64 = 120;
const MAX_TIMEOUT_SECONDS: i64 = 3_600;
const MAX_BYTES: i64 = 1 << 30;

/// `None`: the source is none of git.
pub fn resolve(spec: &AgentRunSpec, policy: &AgentPolicySpec) -> Result<Option<ResolvedGit>, Refusal> {
    let Some(source) = &spec.source.git else { return Ok(None) };
    let field = "spec.source.git.url";
    let Some(allowed) = &policy.git else {
        return Err(denied(field, "the policy allows no git source", "a source that is inline or an archive"));
    };
    let url = GitUrl::parse(&source.url).ok_or_else(|| denied(field, "is not the URL of a repository", git::URL_ALLOWED))?;
    let entry = allowed.allow.iter().find(|entry| names(entry, &url)).ok_or_else(|| {
        let entries: Vec<String> =
            allowed.allow.iter().take(16).map(|entry| format!("{}: {}", entry.host, entry.paths.join(" "))).collect();
        denied(field, format!("{} is not allowed", show(&source.url)), entries.join(", "))
    })?;
    if !url.tls && entry.plain_http == PlainHttp::Refused {
        return Err(denied(field, "begins with http://", "https://, unless the policy's entry says plainHTTP: Allowed"));
    }
    let max_bytes = match &allowed.max_bytes {
        Some(text) => quantity::bytes(text).ok_or_else(|| broken("git.maxBytes", "is no quantity of bytes"))?.clamp(1, MAX_BYTES),
        None => DEFAULT_MAX_BYTES,
    };
    let timeout_seconds = match &allowed.timeout {
        Some(text) => quantity::seconds(text).map_err(|error| broken("git.timeout", error))?.clamp(1, MAX_TIMEOUT_SECONDS),
        None => DEFAULT_TIMEOUT_SECONDS,
    };
    Ok(Some(ResolvedGit {
        secret: entry.secret_ref.as_ref().map(|secret| secret.name.clone()),
        addresses: entry.addresses,
        max_bytes,
        timeout_seconds,
        symlinks: allowed.symlinks,
        submodules: allowed.submodules,
    }))
}

fn names(entry: &GitHost, url: &GitUrl) -> bool {
    let Some((host, port)) = git::authority_of(&entry.host) else { return false };
    let same = GitUrl { host, port, ..url.clone() }.authority() == url.authority();
    same && entry.paths.iter().any(|pattern| git::admits(pattern, url.repository()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn resolved(url: &str, git: Value) -> Result<Option<ResolvedGit>, String> {
        let spec = json!({"instruction": "x", "model": "small", "source": {"git": {"url": url, "ref": "main"}}});
        let policy = json!({"models": [], "images": [], "git": git});
        let (spec, policy) = (serde_json::from_value(spec).unwrap(), serde_json::from_value(policy).unwrap());
        resolve(&spec, &policy).map_err(|refusal| refusal.message)
    }

    #[test]
    fn the_first_entry_that_admits_a_url_says_how_it_is_fetched() {
        let policy = json!({
            "allow": [
                {"host": "git.test", "paths": ["org/**"], "secretRef": {"name": "org"}},
                {"host": "git.test", "paths": ["**"]},
                {"host": "git.team.svc:3000", "addresses": "Private", "plainHTTP": "Allowed"},
                {"host": "tls.only"},
            ],
            "maxBytes": "1Mi", "timeout": "30s", "symlinks": "Omit",
        });
        for (url, expected) in [
            ("https://git.test/org/shop.git", Ok(Some("org"))),
            ("https://git.test:443/org/shop.git", Ok(Some("org"))),
            ("https://git.test/other/shop", Ok(None)),
            ("https://git.test:8443/org/shop", Err("is not allowed")),
            ("https://sub.git.test/org/shop", Err("is not allowed")),
            ("http://git.team.svc:3000/shop", Ok(None)),
            ("http://git.test/org/shop", Err("begins with http://")),
            ("http://tls.only/shop", Err("begins with http://")),
            ("https://evil.test/org/shop", Err("allowed: git.test: org/**, git.test: **")),
        ] {
            match (resolved(url, policy.clone()), expected) {
                (Ok(Some(git)), Ok(secret)) => {
                    assert_eq!(git.secret.as_deref(), secret, "{url}");
                    assert_eq!((git.max_bytes, git.timeout_seconds), (1 << 20, 30));
                }
                (Err(message), Err(part)) => assert!(message.contains(part), "{url}: {message}"),
                (got, expected) => panic!("{url}: {got:?}, not {expected:?}"),
            }
        }
        assert!(resolved("https://git.test/a", Value::Null).unwrap_err().contains("allows no git source"));
        let plain = resolved("https://git.test/a", json!({"allow": [{"host": "git.test"}]})).unwrap().unwrap();
        assert_eq!((plain.max_bytes, plain.timeout_seconds), (DEFAULT_MAX_BYTES, DEFAULT_TIMEOUT_SECONDS));
    }
}
