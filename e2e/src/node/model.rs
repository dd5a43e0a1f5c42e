//! The scripted model inside the node: deployed once from the manifest of the demo, told its scripts at run time.

use std::collections::BTreeMap;
use std::time::Duration;

use agentrun_crds::model_provider::Dialect;
use agentrun_protocol::routes;
use agentrun_scripted_model::{Line, Script, Seen, parse_bill};
use anyhow::{Context, Result, ensure};
use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::core::v1::Service;
use kube::Api;
use kube::api::{DynamicObject, Patch, PatchParams};
use kube::core::{ApiResource, GroupVersionKind};
use serde::Deserialize;

use super::{Node, Within, until};

const MANIFEST: &str = include_str!("../../../examples/scripted-model.yaml");
const NAMESPACE: &str = "scripted-model";
const NAME: &str = "scripted-model";
const ADDRESS: &str = "http://scripted-model.scripted-model.svc.cluster.local:8080";

/// What a ModelProvider of a dialect says to reach it.
pub fn url(dialect: Dialect) -> String {
    let path = match dialect {
        Dialect::OpenAIChat => routes::CHAT_COMPLETIONS,
        Dialect::OpenAIResponses => routes::RESPONSES,
        Dialect::OpenAIEmbeddings => routes::EMBEDDINGS,
        Dialect::AnthropicMessages => routes::MESSAGES,
        Dialect::Gemini => routes::GEMINI_MODELS,
    };
    format!("{ADDRESS}{path}")
}

static DEPLOYED: tokio::sync::OnceCell<()> = tokio::sync::OnceCell::const_new();

/// The scripted model, as the test reaches it.
#[derive(Clone)]
pub struct Model {
    http: reqwest::Client,
    base: String,
}

impl Model {
    /// Deploy it if this process has not yet, and connect.
    pub async fn connect(node: &Node) -> Result<Model> {
        let http = reqwest::Client::builder().connect_timeout(Duration::from_secs(2)).build()?;
        DEPLOYED.get_or_try_init(|| deploy(node, &http)).await.context("deploying the scripted model")?;
        Ok(Model { base: base(node).await?, http })
    }

    /// Teach a script, or replace it.
    pub async fn register(&self, script: &Script) -> Result<()> {
        let response = self.http.post(format!("{}/__script", self.base)).body(serde_json::to_string(script)?).send().await?;
        ensure!(response.status().is_success(), "the script was refused: {}", response.text().await?);
        Ok(())
    }

    /// Wait until so many requests have come for a model name.
    pub async fn until_requests(&self, model: &str, requests: u64) -> Result<()> {
        let url = format!("{}/__wait?requests={requests}&model={}", self.base, model.replace('/', "%2F"));
        let status = self.http.get(url).send().await?.status();
        ensure!(status.is_success(), "{requests} requests for {model} were awaited; only {:?} came", self.bill(model).await?);
        Ok(())
    }

    /// What was served for a model name.
    pub async fn bill(&self, model: &str) -> Result<Line> {
        let body = self.http.get(format!("{}/__bill", self.base)).send().await?.bytes().await?;
        let bill: BTreeMap<String, Line> = parse_bill(&body)?;
        Ok(bill.get(model).copied().unwrap_or_default())
    }

    /// The last requests for a model name.
    pub async fn seen(&self, model: &str) -> Result<Vec<Seen>> {
        let url = format!("{}/__seen?model={}", self.base, model.replace('/', "%2F"));
        Ok(self.http.get(url).send().await?.error_for_status()?.json().await?)
    }
}

async fn base(node: &Node) -> Result<String> {
    let service = Api::<Service>::namespaced(node.client.clone(), NAMESPACE).get(NAME).await?;
    let address = service.spec.and_then(|spec| spec.cluster_ip).context("the scripted model's Service has no address")?;
    Ok(format!("http://{address}:8080"))
}

async fn deploy(node: &Node, http: &reqwest::Client) -> Result<()> {
    let image = node.image("scripted-model")?;
    for document in serde_yaml::Deserializer::from_str(MANIFEST) {
        let mut object = serde_json::Value::deserialize(document)?;
        if object["kind"] == "Deployment" {
            let template = &mut object["spec"]["template"];
            // The tag may stay the same while the image changes; the digest is what makes it roll out.
            template["metadata"]["annotations"]["agentrun.dev/image-digest"] = image.digest.clone().into();
            template["spec"]["containers"][0]["image"] = image.image.clone().into();
        }
        let object: DynamicObject = serde_json::from_value(object)?;
        let types = object.types.clone().context("every document has a kind")?;
        let resource = ApiResource::from_gvk(&GroupVersionKind::try_from(&types)?);
        let name = object.metadata.name.clone().context("every document has a name")?;
        let api: Api<DynamicObject> = match &object.metadata.namespace {
            Some(namespace) => Api::namespaced_with(node.client.clone(), namespace, &resource),
            None => Api::all_with(node.client.clone(), &resource),
        };
        api.patch(&name, &PatchParams::apply("agentrun-stories").force(), &Patch::Apply(&object))
            .await
            .with_context(|| format!("applying {name}"))?;
    }
    let deployments: Api<Deployment> = Api::namespaced(node.client.clone(), NAMESPACE);
    until(&deployments, NAME, Within::Medium, "it is rolled out", |deployment| {
        let status = deployment.status.clone().unwrap_or_default();
        status.observed_generation == deployment.metadata.generation
            && status.updated_replicas == Some(1)
            && status.available_replicas == Some(1)
            && status.replicas == Some(1)
    })
    .await?;
    // The Service's address may lead to the Pod before for a moment. That can only be asked, not watched.
    let health = format!("{}/healthz", base(node).await?);
    let answers = async {
        while http.get(&health).send().await.is_err() {
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    };
    tokio::time::timeout(Within::Medium.duration(), answers).await.context("its Service does not answer")
}
