//! Requests to our kinds with bodies that no Rust type could hold, as `kubectl` sends them: fields are validated strictly.

use kube::Client;
use serde_json::Value;

/// What the API server said of a write: the stored object, or its sentence.
pub type Answer = Result<Value, String>;

/// One kind in one namespace.
pub struct Raw {
    pub client: Client,
    pub path: String,
}

impl Raw {
    /// `plural` of our group.
    pub fn new(client: Client, namespace: &str, plural: &str) -> Self {
        Raw { client, path: format!("/apis/agentrun.dev/v1alpha1/namespaces/{namespace}/{plural}") }
    }

    /// Validate as for a creation and store nothing.
    pub async fn try_create(&self, object: &Value) -> Answer {
        self.send("POST", format!("{}?dryRun=All&fieldValidation=Strict", self.path), object).await
    }

    pub async fn create(&self, object: &Value) -> Answer {
        self.send("POST", format!("{}?fieldValidation=Strict", self.path), object).await
    }

    pub async fn get(&self, name: &str) -> Answer {
        self.send("GET", format!("{}/{name}", self.path), &Value::Null).await
    }

    /// Replace spec and metadata, or, if `status`, the status.
    pub async fn replace(&self, name: &str, object: &Value, status: bool) -> Answer {
        let part = if status { "/status" } else { "" };
        self.send("PUT", format!("{}/{name}{part}?fieldValidation=Strict", self.path), object).await
    }

    async fn send(&self, method: &str, uri: String, body: &Value) -> Answer {
        let body = if body.is_null() { Vec::new() } else { serde_json::to_vec(body).expect("JSON") };
        self.bytes(method, uri, body).await
    }

    /// Send any bytes.
    pub async fn bytes(&self, method: &str, uri: String, body: Vec<u8>) -> Answer {
        let request = http::Request::builder().method(method).uri(uri).header("content-type", "application/json").body(body);
        match self.client.request::<Value>(request.expect("a request")).await {
            Ok(value) => Ok(value),
            Err(kube::Error::Api(status)) => Err(status.message),
            Err(other) => Err(format!("{other:?}")),
        }
    }
}
