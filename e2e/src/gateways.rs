//! Gateway processes against the real API server (tier T1), with a scripted model behind them. The test stands in for the
//! operator (it writes what the operator would into a run's status) and for the runner (it mints tokens with the key ring).

mod aggregated;
mod process;
mod shared_stores;

pub use aggregated::Aggregated;
pub use process::{Addresses, Gateway};

use std::net::SocketAddr;

use agentrun_crds::agent_run::{AgentRun, AgentRunSpec, GitSource, InlineFile, Source};
use agentrun_crds::agent_run_status::{AgentRunStatus, Exchange, Phase, PodRef, Resolved, ResolvedApprovals, ResolvedGit, ResolvedModel};
use agentrun_crds::approval_rules::{ApprovalRule, RuleDecision};
use agentrun_crds::budget::{Budget, Limit, Spent};
use agentrun_crds::model_provider::{Dialect, ModelProvider, ModelProviderSpec, PlainHttp, ProvidedModel, SecretKeyRef};
use agentrun_crds::network_probe::{NetworkEnforcement, NetworkProbe, NetworkTarget, ProbeOutcome};
use agentrun_crds::{agent_policy::HostUsers, names};
use agentrun_protocol::token::{Audience, Claims, KeyRing};
use agentrun_scripted_model::{Options, Running, Script};
use anyhow::{Context, Result, ensure};
use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use k8s_openapi::api::core::v1::{Container, Pod, PodSpec, Secret};
use k8s_openapi::api::rbac::v1::{PolicyRule, Role, RoleBinding, RoleRef, Subject};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference, Time};
use kube::api::{Patch, PatchParams, PostParams};
use kube::{Api, Resource};
use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair};
use serde_json::json;
use sha2::{Digest, Sha256};

use self::shared_stores::SharedStores;
use crate::api_server::ApiServer;

const PROVIDER: &str = "scripted";
const PROVIDER_KEY: &str = "sk-provider-key";
/// The model that runs name; the provider calls it `scripted/small`.
pub const MODEL: &str = "small";

/// One test's namespaces, keys, provider and model.
pub struct Bed {
    pub server: &'static ApiServer,
    pub client: kube::Client,
    /// The gateways' namespace.
    pub system: String,
    /// The runs' namespace.
    pub team: String,
    pub model: Running,
    pub ring: KeyRing,
    authority: String,
    data: tempfile::TempDir,
    shared_stores: Option<SharedStores>,
}

/// A run as it is after its exchange, with what its runner would hold.
#[derive(Clone)]
pub struct LiveRun {
    pub name: String,
    pub uid: String,
    pub pod: PodRef,
    pub ticket: Vec<u8>,
    pub claims: Claims,
}

impl Bed {
    /// Make everything but gateways and runs. The model answers with `script`, whatever its name.
    pub async fn start(mut script: Script) -> Result<Bed> {
        let server = ApiServer::shared().await;
        let client = server.client();
        let (system, team) = (server.namespace("system").await, server.namespace("team").await);
        server.service_account(&team, names::SANDBOX_SERVICE_ACCOUNT).await?;
        script.name = MODEL.into();
        let model = Running::start(Options { scripts: vec![script], key: Some(PROVIDER_KEY.into()) }).await?;

        let master: Vec<u8> = [random::<16>()?, random::<16>()?].concat();
        let (authority, certificate, key) = certificates(&format!("agentrun-gateway.{system}.svc"))?;
        let bed = Bed {
            ring: KeyRing::new([(1, master.clone())])?,
            data: tempfile::tempdir()?,
            server,
            client,
            system,
            team,
            model,
            authority: authority.clone(),
            shared_stores: None,
        };
        bed.secret(names::TOKEN_KEYS_SECRET, [("1", master)]).await?;
        bed.secret(names::SERVING_SECRET, [("tls.crt", certificate.into()), ("tls.key", key.into()), ("ca.crt", authority.into())]).await?;
        bed.secret("provider-key", [("api-key", PROVIDER_KEY.into())]).await?;
        let provider = ModelProvider::new(
            PROVIDER,
            ModelProviderSpec {
                dialect: Dialect::OpenAIChat,
                url: bed.model.completions(),
                plain_http: PlainHttp::Allowed,
                ca_bundle: None,
                secret_ref: SecretKeyRef { name: "provider-key".into(), key: "api-key".into() },
                allowed_namespaces: Some(Default::default()),
                models: vec![ProvidedModel { name: upstream(), price_per_million: None, max_output_tokens: Some(64), output_limit: None }],
                timeouts: Default::default(),
                caps: Default::default(),
            },
        );
        Api::<ModelProvider>::namespaced(bed.client.clone(), &bed.system).create(&PostParams::default(), &provider).await?;
        Ok(bed)
    }

    /// The same, with gateways that share a database and a bucket.
    pub async fn start_with_shared_stores(script: Script) -> Result<Bed> {
        let bed = Bed::start(script).await?;
        let shared_stores = SharedStores::make(bed.data.path())?;
        Ok(Bed { shared_stores: Some(shared_stores), ..bed })
    }

    async fn secret<const N: usize>(&self, name: &str, data: [(&str, Vec<u8>); N]) -> Result<()> {
        let data = data.map(|(key, value)| (key.to_owned(), k8s_openapi::ByteString(value)));
        let secret = Secret { metadata: named(name), data: Some(data.into()), ..Secret::default() };
        Api::<Secret>::namespaced(self.client.clone(), &self.system).create(&PostParams::default(), &secret).await?;
        Ok(())
    }

    /// A client that trusts the gateways' authority and takes this address for the gateway's.
    pub fn client_through(&self, address: SocketAddr) -> Result<reqwest::Client> {
        Ok(self.client_builder(address)?.build()?)
    }

    /// The same, to be told more.
    pub fn client_builder(&self, address: SocketAddr) -> Result<reqwest::ClientBuilder> {
        let authority = reqwest::Certificate::from_pem(self.authority.as_bytes())?;
        Ok(reqwest::Client::builder().tls_certs_only([authority]).resolve(&self.host(), address))
    }

    /// The name in the gateways' certificate.
    pub fn host(&self) -> String {
        format!("agentrun-gateway.{}.svc", self.system)
    }

    /// The same with a client certificate (certificate and key, PEM).
    pub fn client_with_certificate(&self, address: SocketAddr, (certificate, key): (String, String)) -> Result<reqwest::Client> {
        let identity = reqwest::Identity::from_pem(format!("{certificate}{key}").as_bytes())?;
        Ok(self.client_builder(address)?.identity(identity).build()?)
    }

    /// A run that has exchanged its ticket, with this much of its budget spent.
    pub async fn run(&self, name: &str, limit: Limit, spent: Spent) -> Result<LiveRun> {
        self.exchanged(self.run_before_exchange(name, limit, spent).await?).await
    }

    /// The same of a run that starts from a commit.
    pub async fn run_from_git(&self, name: &str, source: GitSource, how: ResolvedGit) -> Result<LiveRun> {
        let source = Source { git: Some(source), ..Source::default() };
        let limit = Limit { requests: 10, ..Limit::default() };
        self.exchanged(self.started(name, source, Resolved { git: Some(how), ..resolved(limit) }, Spent::default()).await?).await
    }

    async fn exchanged(&self, run: LiveRun) -> Result<LiveRun> {
        let (name, nonce) = (run.name.clone(), random::<16>()?);
        let exchange = Exchange {
            attempt: 1,
            public_key: URL_SAFE_NO_PAD.encode([7; 32]),
            nonce: URL_SAFE_NO_PAD.encode(nonce),
            at: now(),
            compromised: false,
            walls: vec!["seccomp".into()],
            network: vec![NetworkProbe { target: NetworkTarget::ApiServer, outcome: ProbeOutcome::Held }],
        };
        self.patch_status(&name, json!({"phase": Phase::Running, "exchange": exchange})).await?;
        Ok(LiveRun { claims: Claims { nonce, ..run.claims }, ..run })
    }

    /// A run whose Pod is there and whose ticket waits to be exchanged.
    pub async fn run_before_exchange(&self, name: &str, limit: Limit, spent: Spent) -> Result<LiveRun> {
        let files = vec![InlineFile { path: "a.txt".into(), content: "one\n".into(), executable: false }];
        self.started(name, Source::inline(files), resolved(limit), spent).await
    }

    async fn started(&self, name: &str, source: Source, resolved: Resolved, spent: Spent) -> Result<LiveRun> {
        let (spec, limit) = (AgentRunSpec::new("Fix it.", source, MODEL), resolved.budget);
        let runs: Api<AgentRun> = Api::namespaced(self.client.clone(), &self.team);
        let run = runs.create(&PostParams::default(), &AgentRun::new(name, spec)).await?;
        let uid = run.metadata.uid.context("a UID")?;
        let pod = self.pod(name, &uid).await?;
        let ticket = [random::<16>()?, random::<16>()?].concat();
        let status = AgentRunStatus {
            phase: Some(Phase::Starting),
            attempt: Some(1),
            resolved: Some(resolved),
            pod_ref: Some(pod.clone()),
            ticket_sha256: Some(Sha256::digest(&ticket).iter().map(|byte| format!("{byte:02x}")).collect()),
            started_at: Some(Time(k8s_openapi::jiff::Timestamp::now())),
            budget: Some(Budget { spent, ..Budget::new(limit) }),
            ..AgentRunStatus::default()
        };
        self.patch_status(name, serde_json::to_value(status)?).await?;
        let claims = Claims {
            audience: Audience::Model,
            run_uid: uuid_bytes(&uid)?,
            attempt: 1,
            pod_uid: uuid_bytes(&pod.uid)?,
            issued_at: now(),
            expires_at: now() + 900,
            nonce: [0; 16],
        };
        Ok(LiveRun { name: name.into(), uid, pod, ticket, claims })
    }

    /// The sandbox Pod of a run, which no node will ever start.
    async fn pod(&self, run: &str, run_uid: &str) -> Result<PodRef> {
        let name = names::child_name(run_uid, 1);
        let labels = [(names::LABEL_COMPONENT, "sandbox"), (names::LABEL_RUN_UID, run_uid)];
        let owner = OwnerReference {
            api_version: AgentRun::api_version(&()).into(),
            kind: AgentRun::kind(&()).into(),
            name: run.into(),
            uid: run_uid.into(),
            controller: Some(true),
            block_owner_deletion: Some(true),
        };
        let pod = Pod {
            metadata: ObjectMeta {
                labels: Some(labels.map(|(key, value)| (key.to_owned(), value.to_owned())).into()),
                owner_references: Some(vec![owner]),
                ..named(&name)
            },
            spec: Some(PodSpec {
                service_account_name: Some(names::SANDBOX_SERVICE_ACCOUNT.into()),
                automount_service_account_token: Some(false),
                containers: vec![Container { name: "runner".into(), image: Some("none".into()), ..Container::default() }],
                ..PodSpec::default()
            }),
            ..Pod::default()
        };
        let pod = Api::<Pod>::namespaced(self.client.clone(), &self.team).create(&PostParams::default(), &pod).await?;
        Ok(PodRef { name, uid: pod.metadata.uid.context("a UID")? })
    }

    /// Write into a run's status, as the operator would.
    pub async fn patch_status(&self, name: &str, status: serde_json::Value) -> Result<AgentRun> {
        let runs: Api<AgentRun> = Api::namespaced(self.client.clone(), &self.team);
        runs.patch_status(name, &PatchParams::default(), &Patch::Merge(json!({"status": status}))).await.context("writing a run's status")
    }

    /// The run as it stands.
    pub async fn get(&self, name: &str) -> Result<AgentRun> {
        Ok(Api::<AgentRun>::namespaced(self.client.clone(), &self.team).get(name).await?)
    }

    /// A ServiceAccount of the runs' namespace that may read runs there; its token for the people listener.
    pub async fn reader(&self, name: &str) -> Result<String> {
        self.account(name, &[(agentrun_crds::GROUP, "agentruns", "get"), (agentrun_crds::GROUP, "agentruns", "list")]).await?;
        self.server.token(&self.team, name, &[names::PEOPLE_AUDIENCE], None).await
    }

    /// A ServiceAccount of the runs' namespace with these rights there (group, resource, verb); its token for the API server.
    pub async fn account(&self, name: &str, rights: &[(&str, &str, &str)]) -> Result<String> {
        self.server.service_account(&self.team, name).await?;
        let rules = rights.iter().map(|(group, resource, verb)| PolicyRule {
            api_groups: Some(vec![(*group).into()]),
            resources: Some(vec![(*resource).into()]),
            verbs: vec![(*verb).into()],
            ..PolicyRule::default()
        });
        let role = Role { metadata: named(name), rules: Some(rules.collect()) };
        Api::<Role>::namespaced(self.client.clone(), &self.team).create(&PostParams::default(), &role).await?;
        let binding = self.binding(name, name, "Role", name);
        Api::<RoleBinding>::namespaced(self.client.clone(), &self.team).create(&PostParams::default(), &binding).await?;
        self.server.token(&self.team, name, &[], None).await
    }

    /// A ServiceAccount of the runs' namespace to whom ClusterRoles are bound there; its token for the API server.
    pub async fn bound(&self, name: &str, cluster_roles: &[&str]) -> Result<String> {
        self.server.service_account(&self.team, name).await?;
        for role in cluster_roles {
            let binding = self.binding(name, &format!("{name}-{role}"), "ClusterRole", role);
            Api::<RoleBinding>::namespaced(self.client.clone(), &self.team).create(&PostParams::default(), &binding).await?;
        }
        self.server.token(&self.team, name, &[], None).await
    }

    fn binding(&self, account: &str, name: &str, kind: &str, role: &str) -> RoleBinding {
        RoleBinding {
            metadata: named(name),
            role_ref: RoleRef { api_group: Some("rbac.authorization.k8s.io".into()), kind: kind.into(), name: role.into() },
            subjects: Some(vec![Subject {
                kind: "ServiceAccount".into(),
                name: account.into(),
                namespace: Some(self.team.clone()),
                ..Subject::default()
            }]),
        }
    }

    /// The token of a run for an audience.
    pub fn token(&self, run: &LiveRun, audience: Audience) -> String {
        self.ring.mint(&Claims { audience, ..run.claims })
    }
}

/// What the provider calls the model.
pub fn upstream() -> String {
    format!("scripted/{MODEL}")
}

fn resolved(budget: Limit) -> Resolved {
    Resolved {
        git: None,
        policy_sha256: "0".repeat(64),
        model: ResolvedModel {
            name: MODEL.into(),
            provider: PROVIDER.into(),
            dialect: None,
            model: upstream(),
            max_output_tokens: 64,
            input_micros_per_million: None,
            output_micros_per_million: None,
            cached_input_micros_per_million: None,
            cache_write_micros_per_million: None,
            fallbacks: Vec::new(),
        },
        harness: None,
        embeddings: None,
        image: "none".into(),
        max_steps: 12,
        budget,
        wall_time_seconds: 600,
        startup_deadline_seconds: 300,
        allowed_paths: vec!["**".into()],
        checks: Vec::new(),
        host_users: HostUsers::Isolated,
        network_enforcement: NetworkEnforcement::Required,
        approvals: Some(ResolvedApprovals {
            policy_rules: vec![ApprovalRule {
                tools: vec!["run_command".into()],
                argv: None,
                paths: Vec::new(),
                decision: RuleDecision::Ask,
            }],
            run_rules: Vec::new(),
            timeout_seconds: 600,
            max_pause_seconds: 0,
            submitter_may_approve: true,
        }),
        runtime_class_name: None,
        cpu: "1".into(),
        memory: "1Gi".into(),
        workspace: "1Gi".into(),
    }
}

fn certificates(server_name: &str) -> Result<(String, String, String)> {
    let mut params = CertificateParams::new(Vec::new())?;
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let authority = CertifiedIssuer::self_signed(params, KeyPair::generate()?)?;
    let key = KeyPair::generate()?;
    let certificate = CertificateParams::new(vec![server_name.to_owned()])?.signed_by(&key, &authority)?;
    Ok((authority.pem(), certificate.pem(), key.serialize_pem()))
}

fn named(name: &str) -> ObjectMeta {
    ObjectMeta { name: Some(name.into()), ..ObjectMeta::default() }
}

/// Unix seconds.
pub fn now() -> i64 {
    jiff::Timestamp::now().as_second()
}

fn random<const N: usize>() -> Result<[u8; N]> {
    let mut bytes = [0; N];
    aws_lc_rs::rand::fill(&mut bytes).map_err(|_| anyhow::anyhow!("no randomness"))?;
    Ok(bytes)
}

fn uuid_bytes(text: &str) -> Result<[u8; 16]> {
    let digits: String = text.chars().filter(|c| *c != '-').collect();
    ensure!(digits.len() == 32 && digits.is_ascii(), "{text} is not a UUID");
    let mut bytes = [0; 16];
    for (at, byte) in bytes.iter_mut().enumerate() {
        *byte = u8::from_str_radix(&digits[2 * at..2 * at + 2], 16)?;
    }
    Ok(bytes)
}
