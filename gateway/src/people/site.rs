//! Keeps other web sites out: a page in somebody's browser must not be able to use what the browser can reach. Asked of every
//! request on the listener for people, before anybody is known.

use std::sync::Arc;

use axum::extract::{Request, State};
use axum::middleware::Next;
use axum::response::Response;
use http::{HeaderMap, Method, StatusCode, Uri, header};

use crate::body::shortened;
use crate::error::ApiError;

/// Under which names we are known, and which pages may call.
#[derive(Clone, Debug, Default)]
pub struct Site {
    hosts: Vec<String>,
    origins: Vec<String>,
}

impl Site {
    /// Our names as a Service of this namespace and this machine's own, and those that are allowed besides.
    pub fn new(namespace: &str, allowed_hosts: &[String], allowed_origins: &[String]) -> Arc<Self> {
        let name = agentrun_crds::names::GATEWAY;
        let ours = [
            name.to_owned(),
            format!("{name}.{namespace}"),
            format!("{name}.{namespace}.svc"),
            format!("{name}.{namespace}.svc.cluster.local"),
            "localhost".into(),
            "127.0.0.1".into(),
            "[::1]".into(),
        ];
        let hosts = ours.into_iter().chain(allowed_hosts.iter().map(|host| host.to_ascii_lowercase())).collect();
        Arc::new(Site { hosts, origins: allowed_origins.iter().map(|origin| origin.to_ascii_lowercase()).collect() })
    }

    fn admit(&self, method: &Method, uri: &Uri, headers: &HeaderMap) -> Result<(), ApiError> {
        let named = headers.get(header::HOST).map(|host| host.to_str().unwrap_or_default());
        let named = named.or_else(|| uri.authority().map(|authority| authority.as_str())).unwrap_or_default();
        if !self.hosts.contains(&without_port(named).to_ascii_lowercase()) {
            let message = format!("{} is none of this gateway's names; --allowed-host (gateway.allowedHosts) adds one", shortened(named));
            return Err(ApiError::new(StatusCode::MISDIRECTED_REQUEST, "host_not_allowed", message).field("Host"));
        }
        for origin in headers.get_all(header::ORIGIN) {
            let origin = origin.to_str().unwrap_or_default().to_ascii_lowercase();
            if !self.origins.contains(&origin) {
                let message = format!("pages of {} may not call; --allowed-origin (gateway.allowedOrigins) adds one", shortened(&origin));
                return Err(ApiError::new(StatusCode::FORBIDDEN, "origin_not_allowed", message).field("Origin"));
            }
        }
        // A form of another site can send anything but this without being asked.
        let kind = headers.get(header::CONTENT_TYPE).and_then(|kind| kind.to_str().ok()).unwrap_or_default();
        let kind = kind.split(';').next().unwrap_or_default().trim();
        if method == Method::POST && !kind.eq_ignore_ascii_case("application/json") {
            let message = "a POST needs Content-Type: application/json, also without a body";
            return Err(ApiError::new(StatusCode::UNSUPPORTED_MEDIA_TYPE, "json_required", message).field("Content-Type"));
        }
        Ok(())
    }
}

/// The middleware.
pub(crate) async fn guard(State(site): State<Arc<Site>>, request: Request, next: Next) -> Result<Response, ApiError> {
    site.admit(request.method(), request.uri(), request.headers())?;
    Ok(next.run(request).await)
}

fn without_port(host: &str) -> &str {
    match host.rsplit_once(':') {
        Some((name, port)) if port.bytes().all(|byte| byte.is_ascii_digit()) && (!name.contains(':') || name.ends_with(']')) => name,
        _ => host,
    }
}

#[cfg(test)]
mod tests {
    use http::HeaderValue;

    use super::*;

    #[test]
    fn only_our_own_names_and_listed_pages_are_let_in() {
        let site = Site::new("ns", &["Gateway.example.com".to_owned()], &["https://page.example.com".to_owned()]);
        let json = ("content-type", "application/json");
        type Row<'a> = (&'a str, &'a [(&'static str, &'static str)], u16);
        let rows: &[Row<'_>] = &[
            ("GET", &[("host", "agentrun-gateway.ns.svc:9443")], 200),
            ("GET", &[("host", "AGENTRUN-GATEWAY")], 200),
            ("GET", &[("host", "gateway.example.com")], 200),
            ("GET", &[("host", "localhost:9443")], 200),
            ("GET", &[("host", "[::1]:9443")], 200),
            ("GET", &[("host", "evil.example.com")], 421),
            ("GET", &[("host", "agentrun-gateway.other.svc")], 421),
            ("GET", &[("host", "")], 421),
            ("GET", &[], 421),
            ("GET", &[("host", "localhost"), ("origin", "https://page.example.com")], 200),
            ("GET", &[("host", "localhost"), ("origin", "https://evil.example.com")], 403),
            ("GET", &[("host", "localhost"), ("origin", "null")], 403),
            ("PUT", &[("host", "localhost"), ("origin", "https://evil.example.com")], 403),
            ("POST", &[("host", "localhost"), json], 200),
            ("POST", &[("host", "localhost"), ("content-type", "application/json; charset=utf-8")], 200),
            ("POST", &[("host", "localhost"), ("content-type", "text/plain")], 415),
            ("POST", &[("host", "localhost"), ("content-type", "application/x-www-form-urlencoded")], 415),
            ("POST", &[("host", "localhost")], 415),
            ("POST", &[("host", "localhost"), json, ("origin", "http://page.example.com")], 403),
        ];
        for (method, headers, expected) in rows {
            let headers: HeaderMap = headers.iter().map(|(name, value)| (name.parse().unwrap(), HeaderValue::from_static(value))).collect();
            let got = site.admit(&method.parse().unwrap(), &Uri::from_static("/v1/runs"), &headers);
            assert_eq!(got.map_or_else(|error| error.status.as_u16(), |()| 200), *expected, "{method} {headers:?}");
        }
        let http2 = Uri::from_static("https://localhost:9443/v1/runs");
        assert!(site.admit(&Method::GET, &http2, &HeaderMap::new()).is_ok(), "HTTP/2 names the host elsewhere");
    }
}
