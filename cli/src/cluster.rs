//! The one way to the cluster: requests with the identity of a kubeconfig, each with a bound on time and size, and what a
//! refusal says, whether it comes from the API server, from its aggregator or from the gateway behind it.

use std::time::Duration;

use bytes::Bytes;
use http::{Method, Request, Response, StatusCode};
use http_body_util::{BodyExt, Limited};
use kube::client::Body;
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::{Client, Config};
use serde::de::DeserializeOwned;
use serde_json::Value;

use crate::arguments::Connection;
use crate::exit::Exit;
use crate::failure::Failure;

/// Largest answer that is read into memory; a list page of 100 runs with full status is below.
pub const MAX_ANSWER: usize = 64 * 1024 * 1024;
/// Largest refusal that is read.
const MAX_REFUSAL: usize = 256 * 1024;

/// A cluster as one user.
pub struct Cluster {
    pub client: Client,
    /// Of `-n`, else of the context, else `default`.
    pub namespace: String,
    /// Whether `-n` was given.
    pub namespace_given: bool,
    request_time: Duration,
}

/// Why a request has no good answer.
#[derive(Debug)]
pub enum Fault {
    /// No connection, no answer in time, or a cut one.
    Unreachable(String),
    /// The credentials could not be had: an exec plugin, a token file, a proxy.
    Credentials(String),
    Refused(Refusal),
    /// An answer that is not what the API promises.
    Garbled(String),
}

/// An answer of 400 or above.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Refusal {
    pub status: u16,
    /// The gateway's `error.code`, else the API server's `reason`; may be empty.
    pub code: String,
    pub message: String,
    /// Whether the gateway itself has answered.
    pub from_gateway: bool,
    /// `field: message` of each cause.
    pub causes: Vec<String>,
}

impl Fault {
    pub fn status(&self) -> Option<u16> {
        match self {
            Fault::Refused(refusal) => Some(refusal.status),
            _ => None,
        }
    }

    /// Whether the same request may succeed a little later.
    pub fn is_passing(&self) -> bool {
        match self {
            Fault::Unreachable(_) | Fault::Garbled(_) => true,
            Fault::Credentials(_) => false,
            Fault::Refused(refusal) => matches!(refusal.status, 429 | 500 | 502 | 503 | 504),
        }
    }

    /// The aggregated API is not registered, or nobody answers behind it.
    pub fn gateway_absent(&self) -> bool {
        match self {
            Fault::Refused(refusal) => !refusal.from_gateway && matches!(refusal.status, 404 | 502 | 503 | 504),
            _ => false,
        }
    }

    /// For a person: `what` is what was tried, such as `reading AgentRun fix-it`.
    pub fn failure(self, what: &str) -> Failure {
        match self {
            Fault::Unreachable(why) => Failure::new(Exit::NotSubmitted, format!("{what}: the cluster does not answer: {why}"))
                .advice("Check the kubeconfig, its context and the network: kubectl agentrun doctor"),
            Fault::Credentials(why) => Failure::new(Exit::NotSubmitted, format!("{what}: no credentials: {why}"))
                .advice("Log in again as this context of the kubeconfig needs it."),
            Fault::Garbled(why) => Failure::new(Exit::NotSubmitted, format!("{what}: the answer cannot be read: {why}")),
            Fault::Refused(refusal) => refusal.failure(what),
        }
    }
}

impl Refusal {
    fn failure(self, what: &str) -> Failure {
        let mut message = format!("{what}: {}", if self.message.is_empty() { format!("HTTP {}", self.status) } else { self.message });
        if self.causes.len() > 1 {
            for cause in &self.causes {
                message.push_str(&format!("\n  {cause}"));
            }
        }
        let failure = Failure::new(Exit::NotSubmitted, message);
        match self.status {
            401 => failure.advice("The cluster does not know these credentials; log in again."),
            // A refusal of the gateway's own, such as `own_run`, says itself what to do.
            403 if self.from_gateway && self.code != "forbidden" => failure,
            403 => failure.advice("Ask for the right in this namespace; kubectl agentrun doctor lists what is missing."),
            _ => failure,
        }
    }

    /// From an answer's body, whoever made it.
    fn read(status: StatusCode, body: &[u8]) -> Refusal {
        let mut refusal = Refusal { status: status.as_u16(), ..Refusal::default() };
        let Ok(value) = serde_json::from_slice::<Value>(body) else {
            refusal.message = String::from_utf8_lossy(body).trim().chars().take(500).collect();
            return refusal;
        };
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        let ours = &value["error"];
        if ours["code"].is_string() {
            refusal.code = text(&ours["code"]);
            refusal.message = text(&ours["message"]);
            refusal.from_gateway = true;
            if let Some(field) = ours["field"].as_str() {
                refusal.causes.push(format!("{field}: {}", refusal.message));
            }
            return refusal;
        }
        refusal.code = text(&value["reason"]);
        refusal.message = text(&value["message"]);
        refusal.from_gateway = value["details"]["group"] == RUN_GROUP;
        for cause in value["details"]["causes"].as_array().into_iter().flatten() {
            refusal.causes.push(format!("{}: {}", text(&cause["field"]), text(&cause["message"])));
        }
        refusal
    }
}

/// The aggregated group, served by the gateway.
pub const RUN_GROUP: &str = "run.agentrun.dev";

impl Cluster {
    /// Of the kubeconfig, as `kubectl` would choose it; inside a Pod without one, of its ServiceAccount.
    pub async fn connect(connection: &Connection) -> Result<Cluster, Failure> {
        let options =
            KubeConfigOptions { context: connection.context.clone(), cluster: connection.cluster.clone(), user: connection.user.clone() };
        let chosen = connection.kubeconfig.is_some() || options.context.is_some() || options.cluster.is_some() || options.user.is_some();
        let config = match &connection.kubeconfig {
            Some(path) => match Kubeconfig::read_from(path) {
                Ok(file) => Config::from_custom_kubeconfig(file, &options).await,
                Err(error) => Err(error),
            }
            .map_err(|error| kubeconfig_failure(&error))?,
            None if chosen => Config::from_kubeconfig(&options).await.map_err(|error| kubeconfig_failure(&error))?,
            None => Config::infer().await.map_err(|error| kubeconfig_failure(&error))?,
        };
        Self::of(config, connection)
    }

    fn of(mut config: Config, connection: &Connection) -> Result<Cluster, Failure> {
        if let Some(user) = &connection.act_as {
            config.auth_info.impersonate = Some(user.clone());
        }
        if !connection.as_group.is_empty() {
            config.auth_info.impersonate_groups = Some(connection.as_group.clone());
        }
        // Its own retries take minutes; what may be repeated is repeated here.
        config.default_retry = false;
        config.read_timeout = None;
        if let Some(namespace) = &connection.namespace {
            crate::run_name::check_label("namespace", namespace)?;
        }
        let namespace = connection.namespace.clone().unwrap_or_else(|| config.default_namespace.clone());
        let client = Client::try_from(config)
            .map_err(|error| Failure::new(Exit::NotSubmitted, format!("this kubeconfig cannot be used: {}", chain(&error))))?;
        Ok(Cluster {
            client,
            namespace,
            namespace_given: connection.namespace.is_some(),
            request_time: Duration::from_secs(connection.request_timeout),
        })
    }

    /// The same cluster, another namespace.
    pub fn in_namespace(&self, namespace: &str) -> Cluster {
        Cluster { client: self.client.clone(), namespace: namespace.to_owned(), namespace_given: true, request_time: self.request_time }
    }

    /// Send, and wait for the answer's head only. An answer of 400 or above is a `Refused`.
    pub async fn open(&self, request: Request<Body>) -> Result<Response<Body>, Fault> {
        self.open_within(self.request_time, request).await
    }

    /// The same with a time of its own, for large bodies.
    pub async fn open_within(&self, time: Duration, request: Request<Body>) -> Result<Response<Body>, Fault> {
        let sent = tokio::time::timeout(time, self.client.send(request)).await;
        let response = match sent {
            Err(_) => return Err(Fault::Unreachable(format!("no answer within {} s", time.as_secs()))),
            Ok(Err(error)) => return Err(fault(&error)),
            Ok(Ok(response)) => response,
        };
        let status = response.status();
        if status.is_client_error() || status.is_server_error() {
            let body = self.body(response, MAX_REFUSAL).await.unwrap_or_default();
            return Err(Fault::Refused(Refusal::read(status, &body)));
        }
        Ok(response)
    }

    /// The whole answer, of at most `most` bytes.
    pub async fn body(&self, response: Response<Body>, most: usize) -> Result<Bytes, Fault> {
        let read = Limited::new(response.into_body(), most).collect();
        match tokio::time::timeout(self.request_time * 4, read).await {
            Err(_) => Err(Fault::Unreachable("the answer did not end in time".into())),
            Ok(Ok(whole)) => Ok(whole.to_bytes()),
            Ok(Err(error)) if error.is::<http_body_util::LengthLimitError>() => {
                Err(Fault::Garbled(format!("it is larger than {most} bytes")))
            }
            Ok(Err(error)) => Err(Fault::Unreachable(format!("the answer was cut: {error}"))),
        }
    }

    pub async fn get<T: DeserializeOwned>(&self, path: &str) -> Result<T, Fault> {
        self.exchange(request(Method::GET, path, None, Bytes::new())?).await
    }

    /// `method` with a JSON body.
    pub async fn send<T: DeserializeOwned>(&self, method: Method, path: &str, kind: &'static str, body: &Value) -> Result<T, Fault> {
        self.exchange(request(method, path, Some(kind), body.to_string().into())?).await
    }

    /// Send, and read the answer as JSON.
    pub async fn exchange<T: DeserializeOwned>(&self, request: Request<Body>) -> Result<T, Fault> {
        let response = self.open(request).await?;
        self.json(response).await
    }

    /// An answer's body as JSON.
    pub async fn json<T: DeserializeOwned>(&self, response: Response<Body>) -> Result<T, Fault> {
        let body = self.body(response, MAX_ANSWER).await?;
        serde_json::from_slice(&body).map_err(|error| Fault::Garbled(error.to_string()))
    }
}

/// A request; the client adds address and credentials.
pub fn request(method: Method, path: &str, kind: Option<&'static str>, body: Bytes) -> Result<Request<Body>, Fault> {
    let mut request = Request::builder().method(method).uri(path);
    if let Some(kind) = kind {
        request = request.header(http::header::CONTENT_TYPE, kind);
    }
    request.body(Body::from(body)).map_err(|error| Fault::Garbled(format!("{path}: {error}")))
}

fn kubeconfig_failure(error: &dyn std::error::Error) -> Failure {
    Failure::new(Exit::NotSubmitted, chain(error))
        .advice("Name a kubeconfig with --kubeconfig or KUBECONFIG, and a context of it with --context.")
}

fn fault(error: &kube::Error) -> Fault {
    match error {
        kube::Error::Auth(why) => Fault::Credentials(chain(why)),
        kube::Error::ProxyProtocolDisabled { .. } | kube::Error::ProxyProtocolUnsupported { .. } => Fault::Credentials(chain(error)),
        kube::Error::Service(why) if why.downcast_ref::<kube::client::AuthError>().is_some() => Fault::Credentials(chain(why.as_ref())),
        kube::Error::Service(why) => Fault::Unreachable(chain(why.as_ref())),
        other => Fault::Unreachable(chain(other)),
    }
}

/// An error and what caused it, without what repeats.
fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut next = error.source();
    while let Some(cause) = next {
        let cause_text = cause.to_string();
        if !text.contains(&cause_text) {
            text.push_str(": ");
            text.push_str(&cause_text);
        }
        next = cause.source();
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refusal_says_who_refused_and_why() {
        let status = |code: u16, body: &str| Refusal::read(StatusCode::from_u16(code).expect("a status"), body.as_bytes());
        let ours = status(409, r#"{"error":{"code":"already_decided","message":"denied by bob","field":"decision"}}"#);
        assert_eq!((ours.code.as_str(), ours.message.as_str(), ours.from_gateway), ("already_decided", "denied by bob", true));
        assert_eq!(ours.causes, ["decision: denied by bob"]);
        let server = status(
            422,
            r#"{"kind":"Status","reason":"Invalid","message":"it is invalid","details":{"group":"agentrun.dev","causes":[{"field":"spec.model","message":"too long"}]}}"#,
        );
        assert_eq!((server.code.as_str(), server.from_gateway), ("Invalid", false));
        assert_eq!(server.causes, ["spec.model: too long"]);
        let both = status(
            404,
            r#"{"kind":"Status","reason":"NotFound","message":"no such run","error":{"code":"not_found","message":"no such run"}}"#,
        );
        assert!(both.from_gateway);
        for (code, body, absent) in [
            (404, "404 page not found", true),
            (503, "service unavailable", true),
            (404, r#"{"kind":"Status","reason":"NotFound","message":"the server could not find the requested resource"}"#, true),
            (404, r#"{"error":{"code":"not_found","message":"no run"}}"#, false),
            (403, r#"{"kind":"Status","reason":"Forbidden"}"#, false),
        ] {
            assert_eq!(Fault::Refused(status(code, body)).gateway_absent(), absent, "{body}");
        }
        assert_eq!(status(500, "x\n").message, "x");
    }
}
