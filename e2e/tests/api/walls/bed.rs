//! The walls on the shared API server, namespaces with and without them, and everybody who sends something there.

use std::time::{Duration, Instant};

use agentrun_e2e::api_server::ApiServer;
use agentrun_e2e::chart::{output, render};
use agentrun_operator::agent_run::objects::account::account;
use kube::Client;
use serde::Deserialize;
use serde_json::{Value, json};
use tokio::sync::OnceCell;

use super::super::raw::Answer;
use super::table::Row;

/// Where the chart is installed.
const SYSTEM: &str = "agentrun-system";
/// How long the API server may take to learn of a new policy, or of a namespace's.
const PATIENCE: Duration = Duration::from_secs(30);

/// Who sends a request.
#[derive(Deserialize, Clone, Copy, Debug, Default, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub enum Sender {
    /// The operator's own ServiceAccount, with the rights that the chart gives it.
    #[default]
    Operator,
    /// The gateway's, likewise.
    Gateway,
    /// The operator's name with every right, as if somebody had widened its role.
    MightyOperator,
    /// The gateway's, likewise.
    MightyGateway,
    /// An administrator of the cluster.
    Admin,
    /// Somebody who may enter the Pods of the namespace, and do nothing else.
    Debugger,
    /// The same, with the verb `enter` on AgentRuns.
    Enterer,
}

/// The policies and roles of the chart, installed once: they are the cluster's.
pub struct Bed {
    server: &'static ApiServer,
    operator: String,
    gateway: String,
}

/// Two namespaces of one test.
pub struct Place {
    /// Has the walls.
    pub walled: String,
    /// Has none: what is accepted here was refused for no other reason.
    pub open: String,
}

/// The one bed of all tests.
pub async fn bed() -> &'static Bed {
    static BED: OnceCell<Bed> = OnceCell::const_new();
    BED.get_or_init(make).await
}

async fn make() -> Bed {
    let server = ApiServer::shared().await;
    kubectl(server, &["create", "namespace", SYSTEM], "");
    for part in ["operator", "gateway"] {
        server.service_account(SYSTEM, &format!("agentrun-{part}")).await.expect("an account");
        for object in render(server, &format!("{part}-rbac.yaml"), &[]).expect("the chart renders") {
            kubectl(server, &["create", "-f", "-"], &object.to_string());
        }
    }
    for mut object in render(server, "admission/*.yaml", &[]).expect("the chart renders") {
        if object["kind"] == "ValidatingAdmissionPolicy" {
            object["spec"]["matchConstraints"]["namespaceSelector"] = json!({"matchLabels": {"walls": "up"}});
        }
        kubectl(server, &["create", "-f", "-"], &object.to_string());
    }
    let enter = ["--verb=create", "--resource=pods/exec,pods/attach,pods/portforward"];
    kubectl(server, &[&["create", "clusterrole", "debugger"], &enter[..]].concat(), "");
    kubectl(server, &["create", "clusterrole", "enterer", "--verb=enter", "--resource=agentruns.agentrun.dev"], "");
    for (user, role) in [("debugger", "debugger"), ("enterer", "debugger"), ("enterer", "enterer")] {
        kubectl(server, &["create", "clusterrolebinding", &format!("{user}-{role}"), "--clusterrole", role, "--user", user], "");
    }
    kubectl(
        server,
        &["create", "-f", "-"],
        r#"{"apiVersion": "node.k8s.io/v1", "kind": "RuntimeClass", "metadata": {"name": "gvisor"}, "handler": "runsc"}"#,
    );
    let operator = server.token(SYSTEM, "agentrun-operator", &[], None).await.expect("a token");
    let gateway = server.token(SYSTEM, "agentrun-gateway", &[], None).await.expect("a token");
    Bed { server, operator, gateway }
}

fn kubectl(server: &ApiServer, arguments: &[&str], input: &str) {
    let kubeconfig = server.kubeconfig_path();
    let all = [&["--kubeconfig", kubeconfig.to_str().expect("a path in UTF-8")], arguments].concat();
    output("kubectl", &all, input.as_bytes()).expect("kubectl does it");
}

impl Bed {
    /// Two namespaces with the sandboxes' account, and the policy that a namespace of runs has, if its `sandbox` is given.
    pub async fn place(&self, sandbox: Option<&Value>) -> Place {
        let place = Place { walled: self.server.namespace("walled").await, open: self.server.namespace("open").await };
        kubectl(self.server, &["label", "namespace", &place.walled, "walls=up"], "");
        for namespace in [&place.walled, &place.open] {
            self.server.service_account(namespace, "default").await.expect("an account");
            let account = serde_json::to_string(&account(namespace)).expect("JSON");
            kubectl(self.server, &["create", "-f", "-"], &account);
            if let Some(sandbox) = sandbox {
                let policy = json!({
                    "apiVersion": "agentrun.dev/v1alpha1", "kind": "AgentPolicy", "metadata": {"name": "default", "namespace": namespace},
                    "spec": {"models": [{"name": "small", "provider": "scripted", "model": "small"}], "images": [], "sandbox": sandbox},
                });
                kubectl(self.server, &["create", "-f", "-"], &policy.to_string());
            }
        }
        // Until the walls know the namespace, since before that they accept anything.
        let impostor = json!({"metadata": {"name": "impostor", "labels": {"agentrun.dev/component": "sandbox"}}, "spec": {"containers": [{"name": "a", "image": "a"}]}});
        let pods = format!("/api/v1/namespaces/{}/pods?dryRun=All", place.walled);
        self.send_until(Sender::Admin, "POST", &pods, &impostor, true).await.expect_err("the walls stand");
        place
    }

    fn client(&self, sender: Sender) -> Client {
        let mighty = |user: &str| self.server.client_as(user, &["system:masters"]);
        match sender {
            Sender::Operator => self.server.client_with_token(&self.operator),
            Sender::Gateway => self.server.client_with_token(&self.gateway),
            Sender::MightyOperator => mighty(&format!("system:serviceaccount:{SYSTEM}:agentrun-operator")),
            Sender::MightyGateway => mighty(&format!("system:serviceaccount:{SYSTEM}:agentrun-gateway")),
            Sender::Admin => mighty("anna"),
            Sender::Debugger => self.server.client_as("debugger", &["people"]),
            Sender::Enterer => self.server.client_as("enterer", &["people"]),
        }
    }

    /// Send a request: `path` begins below the API of a namespace, such as `/api/v1/namespaces/{namespace}`.
    pub async fn send(&self, sender: Sender, method: &str, path: &str, body: &Value) -> Answer {
        let kind = if method == "PATCH" { "application/merge-patch+json" } else { "application/json" };
        let body = if body.is_null() { Vec::new() } else { serde_json::to_vec(body).expect("JSON") };
        let request = http::Request::builder().method(method).uri(path).header("content-type", kind).body(body).expect("a request");
        match self.client(sender).request::<Value>(request).await {
            Ok(value) => Ok(value),
            Err(kube::Error::Api(status)) => Err(status.message),
            Err(other) => Err(format!("{other:?}")),
        }
    }

    /// The answers behind the walls and where there are none, to a request that changes nothing. A refusal by the walls is waited
    /// for, as they may not stand yet; so is its end, as they may not know of the namespace's policy.
    pub async fn both(&self, place: &Place, row: &Row, method: &str, request: impl Fn(&str) -> (String, Value)) -> (Answer, Answer) {
        let (path, body) = request(&place.open);
        let open = self.send(row.sender, method, &path, &body).await;
        let (path, body) = request(&place.walled);
        (self.send_until(row.sender, method, &path, &body, !row.by.is_empty()).await, open)
    }

    /// The same request again and again, until the walls refuse it, or do not.
    pub async fn send_until(&self, sender: Sender, method: &str, path: &str, body: &Value, refused: bool) -> Answer {
        let begun = Instant::now();
        loop {
            let answer = self.send(sender, method, path, body).await;
            let by_walls = answer.as_ref().is_err_and(|message| message.contains("ValidatingAdmissionPolicy"));
            if by_walls == refused || begun.elapsed() > PATIENCE {
                return answer;
            }
            tokio::time::sleep(Duration::from_millis(100)).await; // only asking tells
        }
    }
}
