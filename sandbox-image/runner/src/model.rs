//! One turn with the model, through the gateway: the call, its repeats, and what each refusal means for the run.

use std::time::Duration;

use agentrun_protocol::routes;
use bytes::Bytes;
use http::{Method, header};
use serde::Deserialize;
use tokio::time::{Instant, sleep};

use crate::{
    deadline::Deadline,
    events::Events,
    gateway::{Answer, Call, CallError, Gateway},
};

/// Tries of one turn; each may cost a request of the budget.
const MAX_TRIES: u32 = 6;
/// How long a gateway may be away, which costs nothing: as long as a node takes that is drained, or one whose volume moves.
const AWAY: Duration = Duration::from_secs(300);
const LONGEST_PAUSE_AWAY: Duration = Duration::from_secs(5);
const FIRST_PAUSE: Duration = Duration::from_millis(500);
const LONGEST_PAUSE: Duration = Duration::from_secs(60);
/// One answer takes at most so long.
const CALL_TIMEOUT: Duration = Duration::from_secs(600);

/// What the model said.
#[derive(Debug, Default, Clone, PartialEq)]
pub struct Reply {
    pub text: String,
    /// Handed back unchanged where a provider wants it.
    pub reasoning: Option<serde_json::Value>,
    pub calls: Vec<ToolCall>,
    pub finish: String,
    pub input_tokens: u64,
    pub output_tokens: u64,
}

/// One tool that the model wants to use.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ToolCall {
    pub id: String,
    pub name: String,
    /// JSON as the model wrote it, or nearly.
    pub arguments: String,
}

/// Why there is no reply.
#[derive(thiserror::Error, Debug, Clone, PartialEq, Eq)]
pub enum ModelError {
    /// The gateway has said whose.
    #[error("{0}")]
    BudgetExhausted(String),
    /// The run was closed: cancelled, over, or its token ran out.
    #[error("the run is no longer active: {0}")]
    Inactive(String),
    #[error("the model provider refused the gateway's key: {0}")]
    ProviderAuthFailed(String),
    #[error("the model provider is not available: {0}")]
    ProviderUnavailable(String),
    #[error("the model provider is not set up rightly: {0}")]
    ProviderMisconfigured(String),
    /// It could not be reached, or says that it cannot do its part.
    #[error("the gateway is not available: {0}")]
    GatewayUnavailable(String),
    #[error("the conversation is too long for the model: {0}")]
    TooLong(String),
    #[error("the model call was refused: {0}")]
    Refused(String),
}

/// Ask once more until there is a reply or no point in asking.
pub async fn ask(gateway: &Gateway, events: &Events, deadline: &Deadline, body: Bytes) -> Result<Reply, ModelError> {
    let mut pause = FIRST_PAUSE;
    let mut renewed = false;
    let mut tried = 0;
    let mut away = None;
    loop {
        let token = gateway.tokens.model();
        let call = Call {
            method: Method::POST,
            path: routes::CHAT_COMPLETIONS.to_owned(),
            token: Some(&token),
            body: body.clone(),
            content_type: "application/json",
            // The deadline is not this call's to enforce: the loop is cut there, and then it is no fault of the provider.
            timeout: CALL_TIMEOUT,
        };
        let (problem, wait, unavailable) = match gateway.transport.call(&call).await {
            Ok(answer) if answer.status.is_success() => match parse(&answer.body) {
                Ok(reply) => return Ok(reply),
                Err(problem) => (problem, None, ModelError::ProviderUnavailable as Unavailable),
            },
            Ok(answer) => match judge(&answer) {
                // A token may have been renewed while the call was under way.
                Judged::Final(ModelError::Inactive(why)) => {
                    if renewed || token.expose() == gateway.tokens.model().expose() {
                        return Err(ModelError::Inactive(why));
                    }
                    renewed = true;
                    continue;
                }
                Judged::Final(error) => return Err(error),
                Judged::Again(problem, wait, unavailable) => (problem, wait, unavailable),
                Judged::Away(problem) => {
                    away.get_or_insert_with(|| Away::begins(events, &problem)).wait(&problem, deadline).await?;
                    continue;
                }
                Judged::Wait(problem, wait) => {
                    events.note(format!("the model call waits {:.1} s: {problem}", wait.as_secs_f32()));
                    sleep(wait).await;
                    continue;
                }
            },
            Err(error @ CallError::Unreached(_)) => {
                let problem = error.to_string();
                away.get_or_insert_with(|| Away::begins(events, &problem)).wait(&problem, deadline).await?;
                continue;
            }
            Err(error) => (error.to_string(), None, ModelError::GatewayUnavailable as Unavailable),
        };
        away = None;
        let wait = wait.unwrap_or(pause).min(LONGEST_PAUSE);
        pause = (pause * 2).min(LONGEST_PAUSE);
        tried += 1;
        if tried >= MAX_TRIES || Instant::now() + wait >= deadline.work_until() {
            return Err(unavailable(format!("{problem} (tried {tried} times)")));
        }
        events.note(format!("the model call failed and is tried again in {:.1} s: {problem}", wait.as_secs_f32()));
        sleep(wait).await;
    }
}

/// A gateway that is away.
struct Away {
    since: Instant,
    pause: Duration,
}

impl Away {
    fn begins(events: &Events, problem: &str) -> Self {
        events.note(format!("the model call waits until the gateway is back: {problem}"));
        Away { since: Instant::now(), pause: FIRST_PAUSE }
    }

    /// Pause before another try, or say that it is away for too long.
    async fn wait(&mut self, problem: &str, deadline: &Deadline) -> Result<(), ModelError> {
        if self.since.elapsed() + self.pause > AWAY || Instant::now() + self.pause >= deadline.work_until() {
            return Err(ModelError::GatewayUnavailable(format!("{problem} (for {} s)", self.since.elapsed().as_secs())));
        }
        sleep(self.pause).await;
        self.pause = (self.pause * 2).min(LONGEST_PAUSE_AWAY);
        Ok(())
    }
}

/// Who is to blame when no try is left.
type Unavailable = fn(String) -> ModelError;

enum Judged {
    Final(ModelError),
    Again(String, Option<Duration>, Unavailable),
    /// The gateway has done nothing with it, since what it stands on is away.
    Away(String),
    /// Nothing is wrong but that it came too soon: as often as there is time for.
    Wait(String, Duration),
}

fn judge(answer: &Answer) -> Judged {
    let refusal = answer.refusal();
    let CallError::Refused { status, code, message } = &refusal else {
        return Judged::Again(refusal.to_string(), None, ModelError::GatewayUnavailable);
    };
    let said = |name: &str| answer.headers.get(name).and_then(|value| value.to_str().ok());
    let text = format!("{status} {code}: {message}");
    let seconds = said(header::RETRY_AFTER.as_str()).and_then(|value| value.trim().parse::<u64>().ok());
    let wait = seconds.map(Duration::from_secs);
    let again = said("x-should-retry") != Some("false");
    // What the gateway says of a provider has a code of its own.
    let unavailable: Unavailable =
        if code.starts_with("provider_") { ModelError::ProviderUnavailable } else { ModelError::GatewayUnavailable };
    match (status, code.as_str()) {
        (_, "model_request_budget_exhausted" | "namespace_budget_exhausted") => Judged::Final(ModelError::BudgetExhausted(message.clone())),
        (_, "provider_auth_failed") => Judged::Final(ModelError::ProviderAuthFailed(message.clone())),
        (_, "provider_misconfigured") => Judged::Final(ModelError::ProviderMisconfigured(message.clone())),
        (401, _) => Judged::Final(ModelError::Inactive(text)),
        (400 | 413, code) if code.contains("context_length") || *status == 413 => Judged::Final(ModelError::TooLong(text)),
        (503, code) if !code.starts_with("provider_") && again => Judged::Away(text),
        (429, "rate_limited") => Judged::Wait(text, wait.unwrap_or(FIRST_PAUSE).clamp(FIRST_PAUSE, LONGEST_PAUSE)),
        (408 | 409 | 425 | 429 | 500..=599, _) if again => Judged::Again(text, wait, unavailable),
        (408 | 409 | 425 | 429 | 500..=599, _) => Judged::Final(unavailable(text)),
        _ => Judged::Final(ModelError::Refused(text)),
    }
}

#[derive(Deserialize)]
struct Completion {
    choices: Vec<Choice>,
    #[serde(default)]
    usage: Option<Usage>,
}

#[derive(Deserialize)]
struct Choice {
    message: Message,
    #[serde(default)]
    finish_reason: Option<String>,
}

#[derive(Deserialize)]
struct Message {
    #[serde(default)]
    content: Option<String>,
    #[serde(default)]
    reasoning_content: Option<serde_json::Value>,
    #[serde(default)]
    tool_calls: Option<Vec<WireCall>>,
}

#[derive(Deserialize)]
struct WireCall {
    #[serde(default)]
    id: String,
    function: WireFunction,
}

#[derive(Deserialize)]
struct WireFunction {
    #[serde(default)]
    name: String,
    #[serde(default)]
    arguments: String,
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct Usage {
    prompt_tokens: u64,
    completion_tokens: u64,
}

fn parse(body: &[u8]) -> Result<Reply, String> {
    let completion: Completion = serde_json::from_slice(body).map_err(|error| format!("the model's answer cannot be read: {error}"))?;
    let choice = completion.choices.into_iter().next().ok_or("the model's answer has no choice")?;
    let usage = completion.usage.unwrap_or_default();
    let calls = choice.message.tool_calls.unwrap_or_default();
    Ok(Reply {
        text: choice.message.content.unwrap_or_default(),
        reasoning: choice.message.reasoning_content.filter(|value| !value.is_null()),
        calls: calls
            .into_iter()
            .enumerate()
            .map(|(number, call)| ToolCall {
                id: if call.id.is_empty() { format!("call-{number}") } else { call.id },
                name: call.function.name,
                arguments: call.function.arguments,
            })
            .collect(),
        finish: choice.finish_reason.unwrap_or_default(),
        input_tokens: usage.prompt_tokens,
        output_tokens: usage.completion_tokens,
    })
}

#[cfg(test)]
mod tests {
    use http::{HeaderMap, StatusCode};
    use serde_json::json;

    use super::*;

    #[test]
    fn each_refusal_means_one_thing() {
        let budget = "model_request_budget_exhausted";
        for (status, code, headers, expected) in [
            (403, budget, &[("x-should-retry", "false")][..], "BudgetExhausted"),
            (403, "namespace_budget_exhausted", &[("x-should-retry", "false"), ("retry-after", "3600")], "BudgetExhausted"),
            (401, "inactive_run_token", &[], "Inactive"),
            (502, "provider_auth_failed", &[], "ProviderAuthFailed"),
            (429, "rate_limit_exceeded", &[("retry-after", "7")], "again Some(7s)"),
            (429, "x", &[("retry-after", "soon")], "again None"),
            (429, "provider_rate_limited", &[("x-should-retry", "false")], "ProviderUnavailable"),
            (429, "rate_limited", &[("retry-after", "30")], "wait 30s"),
            (429, "too_many_calls_in_flight", &[("x-should-retry", "false")], "GatewayUnavailable"),
            (502, "provider_misconfigured", &[("x-should-retry", "false")], "ProviderMisconfigured"),
            (500, "", &[], "again None"),
            (503, "storage_unavailable", &[], "away"),
            (503, "provider_unavailable", &[], "again None"),
            (400, "context_length_exceeded", &[], "TooLong"),
            (413, "", &[], "TooLong"),
            (400, "invalid_request", &[], "Refused"),
            (403, "model_not_allowed", &[], "Refused"),
            (302, "", &[], "Refused"),
        ] {
            let mut map = HeaderMap::new();
            headers.iter().for_each(|(name, value)| drop(map.insert(*name, value.parse().unwrap())));
            let body = json!({"error": {"code": code, "message": "m"}}).to_string().into();
            let answer = Answer { status: StatusCode::from_u16(status).unwrap(), headers: map, body };
            let judged = match judge(&answer) {
                Judged::Final(error) => format!("{error:?}").split('(').next().unwrap().to_owned(),
                Judged::Again(_, wait, _) => format!("again {wait:?}"),
                Judged::Away(_) => "away".to_owned(),
                Judged::Wait(_, wait) => format!("wait {wait:?}"),
            };
            assert_eq!(judged, expected, "{status} {code}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_gateway_may_be_away_for_minutes_but_not_past_the_deadline() {
        let events = Events::new(std::sync::Arc::new(|_| {}));
        for (seconds, expected) in [(3600, 290..=300), (100, 60..=100)] {
            let deadline = Deadline::new(seconds, 0);
            let begun = Instant::now();
            let mut away = Away::begins(&events, "nobody listens");
            let error = loop {
                if let Err(error) = away.wait("nobody listens", &deadline).await {
                    break error;
                }
            };
            assert!(expected.contains(&begun.elapsed().as_secs()), "{:?} of {seconds} s", begun.elapsed());
            assert!(matches!(&error, ModelError::GatewayUnavailable(why) if why.starts_with("nobody listens (for ")), "{error}");
        }
    }

    #[test]
    fn replies_of_many_shapes_are_read() {
        let read = |message: serde_json::Value| {
            parse(json!({"choices": [{"message": message, "finish_reason": "stop"}], "unknown": {}}).to_string().as_bytes())
        };
        assert_eq!(read(json!({"role": "assistant", "content": "hi"})).unwrap().text, "hi");
        let reply = read(json!({"content": null, "refusal": null, "tool_calls": [
            {"id": "a", "type": "function", "function": {"name": "list", "arguments": "{}"}},
            {"function": {"name": "search"}}]}))
        .unwrap();
        assert_eq!(reply.calls.len(), 2);
        assert_eq!((reply.calls[1].id.as_str(), reply.calls[1].arguments.as_str()), ("call-1", ""));
        for bad in ["", "{}", "[]", r#"{"choices": []}"#, r#"{"choices": [{}]}"#, r#"{"choices": [{"message": {"content": 5}}]}"#] {
            assert!(parse(bad.as_bytes()).is_err(), "{bad}");
        }
    }
}
