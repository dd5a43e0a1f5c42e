//! Where a write goes, without names: `patch agentruns/status`.

use std::fmt;

use http::Method;

/// A verb and a resource, with its subresource.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Site {
    pub verb: &'static str,
    pub resource: String,
}

impl fmt::Display for Site {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.verb, self.resource)
    }
}

impl Site {
    /// Of a request; `None` for one that writes nothing. Reviews (of tokens, of access) are asked by POST and keep nothing, but
    /// fail as writes do, so they count.
    pub fn of(method: &Method, path: &str) -> Option<Site> {
        let verb = match *method {
            Method::POST => "create",
            Method::PUT => "update",
            Method::PATCH => "patch",
            Method::DELETE => "delete",
            _ => return None,
        };
        let mut parts = path.split('/').filter(|part| !part.is_empty());
        // /api/<version>/… or /apis/<group>/<version>/…
        if parts.next()? == "apis" {
            parts.next()?;
        }
        parts.next()?;
        let mut parts: Vec<&str> = parts.collect();
        if parts.len() > 2 && parts[0] == "namespaces" {
            parts.drain(..2);
        }
        let subresource = parts.get(2).map(|name| format!("/{name}")).unwrap_or_default();
        Some(Site { verb, resource: format!("{}{subresource}", parts.first()?) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_left_out() {
        for (method, path, expected) in [
            (Method::POST, "/api/v1/namespaces/a/pods", Some("create pods")),
            (Method::DELETE, "/api/v1/namespaces/a/pods/b", Some("delete pods")),
            (Method::PATCH, "/apis/agentrun.dev/v1alpha1/namespaces/a/agentruns/b/status", Some("patch agentruns/status")),
            (Method::POST, "/apis/authentication.k8s.io/v1/tokenreviews", Some("create tokenreviews")),
            (Method::PUT, "/api/v1/namespaces/a", Some("update namespaces")),
            (Method::GET, "/api/v1/namespaces/a/pods", None),
            (Method::POST, "/nothing", None),
        ] {
            assert_eq!(Site::of(&method, path).map(|site| site.to_string()).as_deref(), expected, "{method} {path}");
        }
    }
}
