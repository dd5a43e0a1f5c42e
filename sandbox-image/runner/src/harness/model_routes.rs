//! Which requests of an agent go to the gateway: the model routes of its dialect and nothing else, with the headers that mean
//! something there. Pure.

use agentrun_crds::model_provider::Dialect;
use http::{HeaderMap, HeaderName, Method, Uri, header};

/// Longest query.
const MAX_QUERY_BYTES: usize = 256;
/// Headers of an agent that are passed on. Whatever it sends as a key is not among them.
const PASSED: &[HeaderName] = &[header::ACCEPT, header::CONTENT_TYPE];

/// Where a request goes; `None`: nowhere.
pub fn target(dialect: Dialect, method: &Method, uri: &Uri) -> Option<String> {
    let path = uri.path();
    let known = match dialect {
        Dialect::OpenAIChat => method == Method::POST && path == "/v1/chat/completions",
    };
    if !known {
        return None;
    }
    let query = uri.query().filter(|query| query.len() <= MAX_QUERY_BYTES).unwrap_or_default();
    // Gemini's clients may send their key here.
    let kept: Vec<&str> = query.split('&').filter(|pair| !pair.is_empty() && pair.split('=').next() != Some("key")).collect();
    Some(if kept.is_empty() { path.to_owned() } else { format!("{path}?{}", kept.join("&")) })
}

/// The headers that go along.
pub fn headers(of_agent: &HeaderMap) -> HeaderMap {
    of_agent.iter().filter(|(name, _)| PASSED.contains(name)).map(|(name, value)| (name.clone(), value.clone())).collect()
}

/// Whether a header of the gateway's answer is the agent's to see; the rest belongs to the connection.
pub fn answers(name: &HeaderName) -> bool {
    !matches!(name.as_str(), "connection" | "keep-alive" | "proxy-connection" | "te" | "trailer" | "transfer-encoding" | "upgrade")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_model_routes_of_the_dialect_lead_anywhere() {
        let chat = Dialect::OpenAIChat;
        for (dialect, method, uri, expected) in [
            (chat, "POST", "/v1/chat/completions", Some("/v1/chat/completions")),
            (chat, "POST", "/v1/chat/completions?key=x&a=b", Some("/v1/chat/completions?a=b")),
            (chat, "GET", "/v1/chat/completions", None),
            (chat, "POST", "/v1/chat/completions/", None),
            (chat, "POST", "/v1/./chat/completions", None),
            (chat, "POST", "/v1/responses", None),
            (chat, "POST", "/sandbox/v1/events", None),
            (chat, "POST", "//v1/chat/completions", None),
        ] {
            let target = target(dialect, &method.parse().unwrap(), &uri.parse().unwrap());
            assert_eq!(target.as_deref(), expected, "{method} {uri}");
        }
    }

    #[test]
    fn no_key_goes_along() {
        let mut sent = HeaderMap::new();
        for name in ["authorization", "x-api-key", "x-goog-api-key", "cookie", "host", "content-type", "x-agentrun", "connection"] {
            sent.insert(HeaderName::from_static(name), "v".parse().unwrap());
        }
        assert_eq!(headers(&sent).keys().collect::<Vec<_>>(), ["content-type"]);
    }
}
