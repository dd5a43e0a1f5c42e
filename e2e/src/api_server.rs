//! A real etcd and kube-apiserver on loopback for tests that need the API but no node (tier T1): RBAC, TokenRequest and
//! TokenReview work, Pods are objects whose status the test writes. No controllers run, so nobody makes the `default`
//! ServiceAccount or finishes the deletion of a namespace; owner references are not collected.

mod binary;
mod pki;

pub use binary::binary;
pub use pki::{Clients, FRONT_PROXY};

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use k8s_openapi::api::authentication::v1::{BoundObjectReference, TokenRequest, TokenRequestSpec};
use k8s_openapi::api::core::v1::{Namespace, ServiceAccount};
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::api::{ListParams, Patch, PatchParams, PostParams};
use kube::runtime::conditions::is_crd_established;
use kube::runtime::wait::await_condition;
use kube::{Api, Client, Config};
use serde_json::json;

use crate::processes::Processes;

const START: Duration = Duration::from_secs(90);

/// A running API server; both processes end when it is dropped, and also when this process dies.
pub struct ApiServer {
    url: String,
    etcd: String,
    ca: pki::Ca,
    /// Signs certificates that aggregated APIs take for the API server's, if their name is right.
    pub front_proxy: Clients,
    token: String,
    folder: PathBuf,
    processes: Processes,
    names: AtomicUsize,
}

impl ApiServer {
    /// Start one and wait until it is ready. Fails, with what to do, where the programs have not been built.
    pub async fn start() -> Result<ApiServer> {
        let _ = rustls::crypto::aws_lc_rs::default_provider().install_default();
        let mut last = anyhow::anyhow!("not tried");
        // A port that was free a moment ago may be taken by somebody else.
        for _ in 0..3 {
            match Self::launch().await {
                Ok(server) => return Ok(server),
                Err(error) if error.is::<binary::Missing>() => return Err(error),
                Err(error) => last = error,
            }
        }
        Err(last.context("no API server after three tries"))
    }

    /// The one server of a test binary, with our kinds installed: tests keep apart by namespaces.
    pub async fn shared() -> &'static ApiServer {
        static SHARED: tokio::sync::OnceCell<ApiServer> = tokio::sync::OnceCell::const_new();
        SHARED
            .get_or_init(|| async {
                let server = ApiServer::start().await.expect("an API server for the tests");
                server.install_crds().await.expect("the API server takes our definitions");
                server
            })
            .await
    }

    async fn launch() -> Result<ApiServer> {
        let (etcd, apiserver) = (binary("etcd")?, binary("kube-apiserver")?);
        let folder = tempfile::Builder::new().prefix("agentrun-api-").tempdir()?.keep();
        let ca = pki::write(&folder)?;
        let front_proxy = pki::write_front_proxy(&folder)?;
        let token = format!("admin-{}", pki::random_word());
        std::fs::write(folder.join("tokens.csv"), format!("{token},admin,admin,system:masters\n"))?;
        let [client, peer, secure] = free_ports()?;
        let (client, peer) = (format!("http://127.0.0.1:{client}"), format!("http://127.0.0.1:{peer}"));
        let file = |name: &str| folder.join(name).display().to_string();

        let mut processes = Processes::new(&folder, "api-server")?;
        processes.spawn(
            "etcd",
            &etcd,
            &[
                // What is thrown away need not be on the disk.
                "--unsafe-no-fsync",
                "--log-level=warn",
                &format!("--data-dir={}", file("etcd")),
                &format!("--listen-client-urls={client}"),
                &format!("--advertise-client-urls={client}"),
                &format!("--listen-peer-urls={peer}"),
                &format!("--initial-advertise-peer-urls={peer}"),
                &format!("--initial-cluster=default={peer}"),
            ],
        )?;
        processes.spawn(
            "kube-apiserver",
            &apiserver,
            &[
                &format!("--etcd-servers={client}"),
                "--bind-address=127.0.0.1",
                &format!("--secure-port={secure}"),
                &format!("--tls-cert-file={}", file("serving.crt")),
                &format!("--tls-private-key-file={}", file("serving.key")),
                &format!("--token-auth-file={}", file("tokens.csv")),
                "--service-account-issuer=https://kubernetes.default.svc",
                &format!("--service-account-key-file={}", file("accounts.pub")),
                &format!("--service-account-signing-key-file={}", file("accounts.key")),
                "--authorization-mode=RBAC",
                // As on any cluster: what may not be privileged is for policies to say.
                "--allow-privileged=true",
                "--service-cluster-ip-range=10.96.0.0/16",
                "--endpoint-reconciler-type=none",
                &format!("--requestheader-client-ca-file={}", file("front-proxy-ca.crt")),
                &format!("--requestheader-allowed-names={}", pki::FRONT_PROXY),
                "--requestheader-username-headers=X-Remote-User",
                "--requestheader-uid-headers=X-Remote-Uid",
                "--requestheader-group-headers=X-Remote-Group",
                "--requestheader-extra-headers-prefix=X-Remote-Extra-",
                &format!("--proxy-client-cert-file={}", file("front-proxy.crt")),
                &format!("--proxy-client-key-file={}", file("front-proxy.key")),
                "--profiling=false",
            ],
        )?;
        let url = format!("https://127.0.0.1:{secure}");
        let server = ApiServer { url, etcd: client, ca, front_proxy, token, folder, processes, names: AtomicUsize::new(0) };
        server.write_kubeconfig("admin", &server.token)?;
        server.ready().await?;
        Ok(server)
    }

    async fn ready(&self) -> Result<()> {
        let certificate = reqwest::Certificate::from_pem(self.ca.pem.as_bytes())?;
        let http = reqwest::Client::builder().tls_certs_only([certificate]).timeout(Duration::from_secs(5)).build()?;
        let begun = Instant::now();
        loop {
            let answer = http.get(format!("{}/readyz", self.url)).bearer_auth(&self.token).send().await;
            if answer.as_ref().is_ok_and(|answer| answer.status().is_success()) {
                return Ok(());
            }
            if let Some(dead) = self.processes.dead() {
                bail!("{dead} ended while starting; its last lines:\n{}", self.processes.tail(dead));
            }
            if begun.elapsed() > START {
                bail!("not ready after {START:?} ({answer:?}); last lines:\n{}", self.processes.tail("kube-apiserver"));
            }
            tokio::time::sleep(Duration::from_millis(50)).await; // readiness can only be polled
        }
    }

    /// `https://127.0.0.1:<port>`.
    pub fn url(&self) -> &str {
        &self.url
    }

    /// What etcd holds under a key, in base64.
    pub async fn etcd_get(&self, key: &str) -> Result<String> {
        let answer = self.etcd("range", json!({"key": base64(key)})).await?;
        Ok(answer["kvs"][0]["value"].as_str().with_context(|| format!("etcd has no {key}"))?.to_owned())
    }

    /// Put a value (base64) back behind the API server's back, as a restored backup does.
    pub async fn etcd_put(&self, key: &str, value: &str) -> Result<()> {
        self.etcd("put", json!({"key": base64(key), "value": value})).await.map(drop)
    }

    async fn etcd(&self, method: &str, body: serde_json::Value) -> Result<serde_json::Value> {
        let http = reqwest::Client::builder().tls_certs_only([]).build()?;
        Ok(http.post(format!("{}/v3/kv/{method}", self.etcd)).json(&body).send().await?.error_for_status()?.json().await?)
    }

    /// The CA that signed the server's certificate, PEM.
    pub fn ca_pem(&self) -> &str {
        &self.ca.pem
    }

    /// Kubeconfig of an administrator.
    pub fn kubeconfig_path(&self) -> PathBuf {
        self.folder.join("admin.kubeconfig")
    }

    /// Where the logs of both processes are; they stay after the tests.
    pub fn logs(&self) -> &Path {
        self.processes.logs()
    }

    /// A client of an administrator. Make one in each test: a client belongs to the runtime that made it.
    pub fn client(&self) -> Client {
        self.client_with_token(&self.token)
    }

    /// A client that holds a bearer token.
    pub fn client_with_token(&self, token: &str) -> Client {
        let mut config = self.config();
        config.auth_info.token = Some(token.to_owned().into());
        Client::try_from(config).expect("a client can be made")
    }

    /// A client of somebody else, by impersonation.
    pub fn client_as(&self, user: &str, groups: &[&str]) -> Client {
        let mut config = self.config();
        config.auth_info.token = Some(self.token.clone().into());
        config.auth_info.impersonate = Some(user.to_owned());
        config.auth_info.impersonate_groups = Some(groups.iter().map(|group| (*group).to_owned()).collect());
        Client::try_from(config).expect("a client can be made")
    }

    /// Everything but who asks. Retries are off: a test wants to see the first answer.
    fn config(&self) -> Config {
        let mut config = Config::new(self.url.parse().expect("our own URL parses"));
        config.root_cert = Some(vec![self.ca.der.clone()]);
        config.default_retry = false;
        config
    }

    /// Write a kubeconfig for a token, for a process that is given `KUBECONFIG`.
    pub fn write_kubeconfig(&self, name: &str, token: &str) -> Result<PathBuf> {
        self.kubeconfig(name, &self.url, token)
    }

    /// The same of an administrator who asks at another address, where somebody passes it on.
    pub fn write_kubeconfig_through(&self, name: &str, url: &str) -> Result<PathBuf> {
        self.kubeconfig(name, url, &self.token)
    }

    fn kubeconfig(&self, name: &str, url: &str, token: &str) -> Result<PathBuf> {
        let ca = base64(&self.ca.pem);
        let kubeconfig = serde_json::json!({
            "apiVersion": "v1", "kind": "Config", "current-context": "test",
            "clusters": [{"name": "test", "cluster": {"server": url, "certificate-authority-data": ca}}],
            "users": [{"name": "test", "user": {"token": token}}],
            "contexts": [{"name": "test", "context": {"cluster": "test", "user": "test"}}],
        });
        let path = self.folder.join(format!("{name}.kubeconfig"));
        std::fs::write(&path, serde_json::to_vec_pretty(&kubeconfig)?)?; // JSON is YAML
        Ok(path)
    }

    /// Install or update our kinds and wait until the API server serves them.
    pub async fn install_crds(&self) -> Result<()> {
        let definitions: Api<CustomResourceDefinition> = Api::all(self.client());
        for crd in agentrun_crds::all() {
            let name = crd.metadata.name.clone().context("a definition has a name")?;
            definitions.patch(&name, &PatchParams::apply("agentrun-e2e").force(), &Patch::Apply(&crd)).await?;
            tokio::time::timeout(Duration::from_secs(30), await_condition(definitions.clone(), &name, is_crd_established()))
                .await
                .with_context(|| format!("{name} was not established in time"))??;
        }
        self.served::<agentrun_crds::AgentRun>().await?;
        self.served::<agentrun_crds::AgentPolicy>().await?;
        self.served::<agentrun_crds::ModelProvider>().await
    }

    /// An established kind's storage takes a moment more, in which requests are told to come again.
    async fn served<K>(&self) -> Result<()>
    where
        K: kube::Resource<DynamicType = ()> + Clone + serde::de::DeserializeOwned + std::fmt::Debug,
    {
        let objects: Api<K> = Api::all(self.client());
        let begun = Instant::now();
        while let Err(error) = objects.list(&ListParams::default().limit(1)).await {
            if begun.elapsed() > START {
                return Err(error).context(format!("{} is not served", K::plural(&())));
            }
            tokio::time::sleep(Duration::from_millis(50)).await; // as above: only polling tells
        }
        Ok(())
    }

    /// Make a namespace of its own for a test and return its name.
    pub async fn namespace(&self, prefix: &str) -> String {
        let name = format!("{prefix}-{}", self.names.fetch_add(1, Ordering::Relaxed));
        let namespace =
            Namespace { metadata: kube::core::ObjectMeta { name: Some(name.clone()), ..Default::default() }, ..Default::default() };
        Api::all(self.client()).create(&PostParams::default(), &namespace).await.expect("a namespace can be made");
        name
    }

    /// Make a ServiceAccount.
    pub async fn service_account(&self, namespace: &str, name: &str) -> Result<()> {
        let account =
            ServiceAccount { metadata: kube::core::ObjectMeta { name: Some(name.to_owned()), ..Default::default() }, ..Default::default() };
        Api::namespaced(self.client(), namespace).create(&PostParams::default(), &account).await?;
        Ok(())
    }

    /// A token of a ServiceAccount for these audiences (none: the API server's own), bound to a Pod if its name and UID are given.
    pub async fn token(&self, namespace: &str, account: &str, audiences: &[&str], pod: Option<(&str, &str)>) -> Result<String> {
        let bound = pod.map(|(name, uid)| BoundObjectReference {
            api_version: Some("v1".into()),
            kind: Some("Pod".into()),
            name: Some(name.into()),
            uid: Some(uid.into()),
        });
        let request = TokenRequest {
            spec: Some(TokenRequestSpec {
                audiences: Some(audiences.iter().map(|audience| (*audience).to_owned()).collect()),
                bound_object_ref: bound,
                expiration_seconds: Some(3600),
            }),
            ..TokenRequest::default()
        };
        let accounts: Api<ServiceAccount> = Api::namespaced(self.client(), namespace);
        let answer = accounts.create_token_request(account, &PostParams::default(), &request).await?;
        answer.status.and_then(|status| status.token).context("a token request has a token")
    }
}

impl ApiServer {
    /// A token of a ServiceAccount that expired an hour ago; in all else it is as good as any.
    pub async fn expired_token(&self, namespace: &str, account: &str, audiences: &[&str]) -> Result<String> {
        pki::older_token(&self.folder, &self.token(namespace, account, audiences, None).await?, 7200)
    }
}

fn base64(text: &str) -> String {
    use base64::Engine;
    base64::engine::general_purpose::STANDARD.encode(text)
}

/// Three ports that are free now.
fn free_ports() -> Result<[u16; 3]> {
    let mut held = Vec::new();
    for _ in 0..3 {
        held.push(std::net::TcpListener::bind(("127.0.0.1", 0))?);
    }
    let mut ports = [0; 3];
    for (port, listener) in ports.iter_mut().zip(&held) {
        *port = listener.local_addr()?.port();
    }
    Ok(ports)
}
