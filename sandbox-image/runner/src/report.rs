//! Tells the gateway what came of the run: blobs, artifacts, then the result, repeated until it is accepted.

use agentrun_protocol::{
    job::Job,
    result::{ArtifactRequest, ClaimedCheck, MAX_BLOB_BYTES, ResultResponse, SandboxResult},
    routes,
};
use bytes::Bytes;
use http::Method;
use serde_json::{Value, json};
use tokio::time::Instant;

use crate::{
    checks::Checked,
    events::Events,
    gateway::{CallError, Gateway},
    staging::digest,
};

/// Uploads and posts of one run's end.
pub struct Report<'a> {
    pub gateway: &'a Gateway,
    pub events: &'a Events,
    /// Nothing is repeated after this.
    pub until: Instant,
}

impl Report<'_> {
    /// Upload bytes under their digest.
    pub async fn blob(&self, digest: &str, content: Bytes) -> Result<(), CallError> {
        let path = format!("{}/{digest}", routes::BLOBS);
        self.gateway.send(Method::PUT, &path, content, "application/octet-stream", self.until).await.map(drop)
    }

    /// Upload an artifact. One that cannot be is noted; the run goes on.
    pub async fn artifact(&self, name: &str, content: Bytes) -> Option<String> {
        let content = content.slice(..content.len().min(MAX_BLOB_BYTES));
        let digest = digest(&content);
        let request = ArtifactRequest { name: name.to_owned(), digest: digest.clone() };
        let stored = async {
            self.blob(&digest, content).await?;
            self.gateway.json::<Value>(Method::POST, routes::ARTIFACTS, Some(&request), self.until).await
        };
        match stored.await {
            Ok(_) => Some(digest),
            Err(error) => {
                self.events.note(format!("the artifact {name} could not be stored: {error}"));
                None
            }
        }
    }

    /// What was asked, without the contents of files.
    pub async fn request(&self, job: &Job) {
        let files = job.files.iter().map(|file| json!({"path": file.path, "digest": digest(file.content.as_bytes())}));
        let request = json!({
            "namespace": job.namespace, "name": job.name, "runUid": job.run_uid, "attempt": job.attempt, "model": job.model,
            "instruction": job.instruction, "allowedPaths": job.allowed_paths, "checks": job.checks, "maxSteps": job.max_steps, "archive": job.archive,
            "files": files.collect::<Vec<_>>(),
        });
        self.artifact("request.json", pretty(&request)).await;
    }

    /// The checks with their logs stored.
    pub async fn checks(&self, checked: Vec<Checked>) -> Vec<ClaimedCheck> {
        let mut claims = Vec::with_capacity(checked.len());
        for Checked { claim, log } in checked {
            let name = artifact_name(&format!("check-{}.log", claim.name));
            let log = self.artifact(&name, log).await;
            claims.push(ClaimedCheck { log, ..claim });
        }
        claims
    }

    /// Post the result until it is accepted.
    pub async fn result(&self, result: &SandboxResult) -> Result<ResultResponse, CallError> {
        self.gateway.json(Method::POST, routes::RESULT, Some(result), self.until).await
    }
}

/// JSON for people.
pub fn pretty(value: &Value) -> Bytes {
    format!("{value:#}\n").into()
}

/// Only what an artifact's name may hold.
fn artifact_name(text: &str) -> String {
    let allowed = |c: char| if c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '-') { c } else { '-' };
    text.chars().take(128).map(allowed).collect()
}
