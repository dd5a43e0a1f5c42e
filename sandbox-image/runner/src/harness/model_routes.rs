//! Which requests of an agent go to the gateway: the model routes of its dialect and nothing else, with the headers that mean
//! something there. Pure.

use agentrun_crds::model_provider::Dialect;
use agentrun_protocol::routes;
use http::{HeaderMap, HeaderName, Method, Uri};

/// Longest query.
const MAX_QUERY_BYTES: usize = 256;
/// Headers of an agent that are passed on. Whatever it sends as a key is not among them.
const PASSED: &[&str] = &["accept", "content-type", "anthropic-version", "anthropic-beta"];
/// What stands behind the model's name in Gemini's paths.
const GEMINI_CALLS: &[&str] = &[":generateContent", ":streamGenerateContent", ":countTokens"];

/// Where a request goes; `None`: nowhere.
pub fn target(dialect: Dialect, method: &Method, uri: &Uri) -> Option<String> {
    let path = uri.path();
    let lists = method == Method::GET;
    let known = match dialect {
        _ if method == Method::POST && path == routes::EMBEDDINGS => true,
        Dialect::OpenAIChat if method == Method::POST => path == routes::CHAT_COMPLETIONS,
        Dialect::OpenAIResponses if method == Method::POST => path == routes::RESPONSES,
        Dialect::AnthropicMessages if method == Method::POST => [routes::MESSAGES, routes::COUNT_TOKENS].contains(&path),
        Dialect::Gemini if method == Method::POST => is_gemini(path),
        Dialect::Gemini => lists && path == routes::GEMINI_MODELS,
        _ => lists && path == routes::MODELS,
    };
    if !known {
        return None;
    }
    let query = uri.query().filter(|query| query.len() <= MAX_QUERY_BYTES).unwrap_or_default();
    // Gemini's clients may send their key here.
    let kept: Vec<&str> = query.split('&').filter(|pair| !pair.is_empty() && pair.split('=').next() != Some("key")).collect();
    Some(if kept.is_empty() { path.to_owned() } else { format!("{path}?{}", kept.join("&")) })
}

/// `{model}:{call}` below Gemini's models; the gateway compares the model's name.
fn is_gemini(path: &str) -> bool {
    let call = path.strip_prefix(routes::GEMINI_MODELS).and_then(|rest| rest.strip_prefix('/'));
    call.is_some_and(|call| !call.contains("..") && !call.contains("//") && GEMINI_CALLS.iter().any(|word| call.ends_with(word)))
}

/// Whether a request has the model say something, rather than list, count or measure.
pub fn is_turn(method: &Method, target: &str) -> bool {
    let path = target.split('?').next().unwrap_or_default();
    method == Method::POST && !path.ends_with(":countTokens") && ![routes::COUNT_TOKENS, routes::EMBEDDINGS].contains(&path)
}

/// The headers that go along.
pub fn headers(of_agent: &HeaderMap) -> HeaderMap {
    of_agent.iter().filter(|(name, _)| PASSED.contains(&name.as_str())).map(|(name, value)| (name.clone(), value.clone())).collect()
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
            (chat, "POST", "/v1/embeddings", Some("/v1/embeddings")),
            (chat, "GET", "/v1/models", Some("/v1/models")),
            (Dialect::OpenAIResponses, "POST", "/v1/responses", Some("/v1/responses")),
            (Dialect::OpenAIResponses, "GET", "/v1/models?client_version=1", Some("/v1/models?client_version=1")),
            (Dialect::AnthropicMessages, "POST", "/v1/messages?beta=true", Some("/v1/messages?beta=true")),
            (Dialect::AnthropicMessages, "POST", "/v1/messages/count_tokens", Some("/v1/messages/count_tokens")),
            (Dialect::AnthropicMessages, "POST", "/v1/messages/batches", None),
            (
                Dialect::Gemini,
                "POST",
                "/v1beta/models/m:streamGenerateContent?alt=sse&key=x",
                Some("/v1beta/models/m:streamGenerateContent?alt=sse"),
            ),
            (Dialect::Gemini, "POST", "/v1beta/models/../x:generateContent", None),
            (Dialect::Gemini, "POST", "/v1beta/models/m:embedContent", None),
            (Dialect::Gemini, "GET", "/v1beta/models", Some("/v1beta/models")),
            (chat, "POST", "/sandbox/v1/events", None),
            (chat, "POST", "//v1/chat/completions", None),
        ] {
            let target = target(dialect, &method.parse().unwrap(), &uri.parse().unwrap());
            assert_eq!(target.as_deref(), expected, "{method} {uri}");
        }
    }

    #[test]
    fn a_turn_is_what_the_model_answers() {
        for (method, target, expected) in [
            ("POST", "/v1/chat/completions", true),
            ("POST", "/v1/messages?beta=true", true),
            ("POST", "/v1beta/models/small:streamGenerateContent?alt=sse", true),
            ("POST", "/v1/messages/count_tokens?beta=true", false),
            ("POST", "/v1beta/models/small:countTokens", false),
            ("POST", "/v1/embeddings", false),
            ("GET", "/v1/models", false),
        ] {
            assert_eq!(is_turn(&method.parse().unwrap(), target), expected, "{target}");
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
