//! The test server itself: what other tests take for granted of it.

use agentrun_e2e::api_server::ApiServer;
use k8s_openapi::api::authentication::v1::{TokenReview, TokenReviewSpec};
use k8s_openapi::api::core::v1::{ConfigMap, Pod};
use kube::api::{DeleteParams, ListParams, PostParams};
use kube::{Api, Client};
use serde_json::json;

async fn review(client: Client, token: &str, audience: &str) -> k8s_openapi::api::authentication::v1::TokenReviewStatus {
    let spec = TokenReviewSpec { audiences: Some(vec![audience.to_owned()]), token: token.to_owned() };
    let review = TokenReview { spec, ..TokenReview::default() };
    let answer = Api::<TokenReview>::all(client).create(&PostParams::default(), &review).await.expect("a review");
    answer.status.expect("a review has a status")
}

#[tokio::test]
async fn a_token_is_bound_to_its_audience_and_pod() {
    let server = ApiServer::shared().await;
    let namespace = server.namespace("tokens").await;
    server.service_account(&namespace, "sandbox").await.expect("an account");
    let pods: Api<Pod> = Api::namespaced(server.client(), &namespace);
    let pod = serde_json::from_value(json!({
        "metadata": {"name": "pod"},
        "spec": {"serviceAccountName": "sandbox", "automountServiceAccountToken": false, "containers": [{"name": "a", "image": "a"}]},
    }));
    let pod = pods.create(&PostParams::default(), &pod.expect("a Pod")).await.expect("a Pod can be made");
    let uid = pod.metadata.uid.expect("a UID");
    let token = server.token(&namespace, "sandbox", &["here"], Some(("pod", &uid))).await.expect("a token");

    let seen = review(server.client(), &token, "here").await;
    assert_eq!(seen.authenticated, Some(true), "{seen:?}");
    let user = seen.user.expect("a user");
    assert_eq!(user.username.as_deref(), Some(format!("system:serviceaccount:{namespace}:sandbox").as_str()));
    let extra = user.extra.expect("a bound token tells its Pod");
    assert_eq!(extra["authentication.kubernetes.io/pod-uid"], std::slice::from_ref(&uid));
    assert_ne!(review(server.client(), &token, "elsewhere").await.authenticated, Some(true));
    server.token(&namespace, "sandbox", &["here"], Some(("pod", "another"))).await.expect_err("another Pod's UID is refused");
    pods.delete("pod", &DeleteParams::default().grace_period(0)).await.expect("the Pod can be deleted");
}

#[tokio::test]
async fn access_is_by_role() {
    let server = ApiServer::shared().await;
    let namespace = server.namespace("roles").await;
    server.service_account(&namespace, "nobody").await.expect("an account");
    let token = server.token(&namespace, "nobody", &[], None).await.expect("a token");
    for client in [server.client_with_token(&token), server.client_as("anna", &["people"])] {
        let maps: Api<ConfigMap> = Api::namespaced(client, &namespace);
        let refused = maps.list(&ListParams::default()).await.expect_err("nobody may read");
        assert!(matches!(&refused, kube::Error::Api(status) if status.code == 403), "{refused:?}");
    }
    let maps: Api<ConfigMap> = Api::namespaced(server.client_as("anna", &["system:masters"]), &namespace);
    maps.list(&ListParams::default()).await.expect("an administrator may read");
}

#[tokio::test]
async fn a_kubeconfig_reaches_it() {
    let server = ApiServer::shared().await;
    let kubeconfig = kube::config::Kubeconfig::read_from(server.kubeconfig_path()).expect("a kubeconfig");
    let config = kube::Config::from_custom_kubeconfig(kubeconfig, &Default::default()).await.expect("a configuration");
    let version = Client::try_from(config).expect("a client").apiserver_version().await.expect("an answer");
    assert_eq!((version.major.as_str(), version.minor.as_str()), ("1", "36"));
}

/// The processes of a server that is dropped are gone, and so is what it kept on disk.
#[tokio::test]
async fn nothing_outlives_a_server() {
    let server = ApiServer::start().await.expect("a server of our own");
    let url = server.url().to_owned();
    let folder = server.kubeconfig_path().parent().expect("a folder").to_owned();
    assert!(folder.is_dir());
    drop(server);
    let port: u16 = url.rsplit(':').next().and_then(|port| port.parse().ok()).expect("a port");
    assert!(std::net::TcpStream::connect(("127.0.0.1", port)).is_err(), "{url} still answers");
    assert!(!folder.exists(), "{} is still there", folder.display());
}
