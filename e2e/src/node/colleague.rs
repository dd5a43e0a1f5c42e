//! People with a kubeconfig of their own and `kubectl agentrun`: each a ServiceAccount with one role in one namespace.

use anyhow::{Context, Result};
use k8s_openapi::api::authentication::v1::{TokenRequest, TokenRequestSpec};
use k8s_openapi::api::core::v1::ServiceAccount;
use k8s_openapi::api::rbac::v1::{RoleBinding, RoleRef, Subject};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::Api;
use kube::api::PostParams;
use kube::config::Kubeconfig;
use serde_json::json;

use super::Story;
use crate::plugin::Plugin;

/// Somebody at a terminal.
pub struct Colleague {
    pub plugin: Plugin,
    /// The name that the cluster knows them by.
    pub username: String,
    _kubeconfig: tempfile::TempDir,
}

impl Colleague {
    /// Somebody new, who holds a ClusterRole in the story's namespace.
    pub async fn new(story: &Story, name: &str, cluster_role: &str) -> Result<Colleague> {
        let client = || story.node.client.clone();
        let accounts: Api<ServiceAccount> = Api::namespaced(client(), &story.namespace);
        let metadata = ObjectMeta { name: Some(name.into()), ..ObjectMeta::default() };
        accounts.create(&PostParams::default(), &ServiceAccount { metadata: metadata.clone(), ..ServiceAccount::default() }).await?;
        let binding = RoleBinding {
            metadata,
            role_ref: RoleRef {
                api_group: Some("rbac.authorization.k8s.io".into()),
                kind: "ClusterRole".into(),
                name: cluster_role.into(),
            },
            subjects: Some(vec![Subject {
                kind: "ServiceAccount".into(),
                name: name.into(),
                namespace: Some(story.namespace.clone()),
                ..Subject::default()
            }]),
        };
        Api::<RoleBinding>::namespaced(client(), &story.namespace).create(&PostParams::default(), &binding).await?;
        let request = TokenRequest { spec: Some(TokenRequestSpec::default()), ..TokenRequest::default() };
        let token = accounts.create_token_request(name, &PostParams::default(), &request).await?.status.context("a token")?.token;

        let mut config = serde_json::to_value(Kubeconfig::read_from(&story.node.kubeconfig)?)?;
        config["contexts"][0]["context"]["user"] = name.into();
        config["users"] = json!([{ "name": name, "user": { "token": token } }]);
        let folder = tempfile::tempdir()?;
        let kubeconfig = folder.path().join("kubeconfig");
        std::fs::write(&kubeconfig, serde_json::to_vec(&config)?)?;
        let username = format!("system:serviceaccount:{}:{name}", story.namespace);
        Ok(Colleague { plugin: Plugin::new(&kubeconfig, &story.namespace)?, username, _kubeconfig: folder })
    }

    /// A command that must succeed; its standard output.
    pub async fn ok(&self, arguments: &[&str]) -> Result<String> {
        self.plugin.expect(arguments, 0, "").await
    }
}
