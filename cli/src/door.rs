//! One run at the gateway, through the aggregated API: events, approvals, artifacts, patch, source.

use std::time::Duration;

use agentrun_protocol::people::{ApprovalList, ApprovalView, DecisionRequest, SourceView};
use bytes::Bytes;
use http::{Method, Response};
use kube::client::Body;
use serde::Deserialize;
use serde_json::{Value, json};

use crate::cluster::{Cluster, Fault, RUN_GROUP, request};
use crate::exit::Exit;
use crate::failure::Failure;
use crate::runs;

/// One upload of a source.
const UPLOAD_TIME: Duration = Duration::from_secs(300);

/// What every verb needs of a run at the gateway.
pub struct Door<'a> {
    pub cluster: &'a Cluster,
    pub run: &'a str,
}

/// `GET …/artifacts`.
#[derive(Deserialize)]
pub struct ArtifactList {
    pub artifacts: Vec<Artifact>,
}

#[derive(Deserialize, Clone, Debug, PartialEq, Eq)]
pub struct Artifact {
    pub name: String,
    pub digest: String,
    pub bytes: i64,
}

impl Door<'_> {
    fn path(&self, rest: &str) -> String {
        format!("/apis/{RUN_GROUP}/v1alpha1/namespaces/{}/agentruns/{}/{rest}", self.cluster.namespace, self.run)
    }

    /// NDJSON of what is there after a number.
    pub async fn events(&self, after: i64) -> Result<Response<Body>, Fault> {
        self.open(&format!("events?after={after}")).await
    }

    /// NDJSON that goes on to the run's end; over `log`, which the API server does not cut after a minute.
    pub async fn follow(&self, after: i64) -> Result<Response<Body>, Fault> {
        self.open(&format!("log?follow=true&after={after}")).await
    }

    pub async fn approvals(&self) -> Result<Vec<ApprovalView>, Fault> {
        let list: ApprovalList = self.cluster.get(&self.path("approvals")).await?;
        Ok(list.approvals)
    }

    pub async fn approval(&self, id: i64) -> Result<ApprovalView, Fault> {
        self.cluster.get(&self.path(&format!("approvals/{id}"))).await
    }

    pub async fn decide(&self, id: i64, decision: &DecisionRequest) -> Result<ApprovalView, Fault> {
        self.cluster.send(Method::POST, &self.path(&format!("approvals/{id}")), "application/json", &json!(decision)).await
    }

    pub async fn artifacts(&self) -> Result<Vec<Artifact>, Fault> {
        let list: ArtifactList = self.cluster.get(&self.path("artifacts")).await?;
        Ok(list.artifacts)
    }

    pub async fn artifact(&self, digest: &str) -> Result<Response<Body>, Fault> {
        self.open(&format!("artifacts/{}", runs::encoded(digest))).await
    }

    pub async fn patch(&self) -> Result<Response<Body>, Fault> {
        self.open("patch").await
    }

    pub async fn upload(&self, archive: Bytes) -> Result<SourceView, Fault> {
        let request = request(Method::PUT, &self.path("source"), Some("application/x-tar"), archive)?;
        let response = self.cluster.open_within(UPLOAD_TIME, request).await?;
        self.cluster.json(response).await
    }

    async fn open(&self, rest: &str) -> Result<Response<Body>, Fault> {
        self.cluster.open(request(Method::GET, &self.path(rest), None, Bytes::new())?).await
    }

    /// For a person; a gateway that is not there gets advice of its own.
    pub fn failure(&self, fault: Fault, what: &str) -> Failure {
        if fault.gateway_absent() {
            let detail = match &fault {
                Fault::Refused(refusal) if !refusal.message.is_empty() => format!(" ({})", refusal.message.trim()),
                _ => String::new(),
            };
            return Failure::new(Exit::NotSubmitted, format!("{what}: the gateway is not reachable through the cluster{detail}"))
                .advice("kubectl agentrun doctor says what is missing; kubectl get agentruns works without it.");
        }
        fault.failure(what)
    }
}

/// Whether the aggregated API is there and answers.
pub async fn served(cluster: &Cluster) -> Result<Value, Fault> {
    cluster.get(&format!("/apis/{RUN_GROUP}/v1alpha1")).await
}
