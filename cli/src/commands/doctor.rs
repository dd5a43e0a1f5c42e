//! `doctor`: what a run needs, one line each: ok, wrong with what to do, or not known.

use agentrun_crds::{AgentPolicy, GROUP, ModelProvider, VERSION};
use http::Method;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::APIResourceList;
use kube::ResourceExt;
use serde::Deserialize;
use serde_json::{Value, json};

use crate::cluster::{Cluster, Fault, RUN_GROUP};
use crate::exit::Exit;
use crate::failure::Failure;
use crate::output::{Color, Output};
use crate::{door, visible};

/// What came of one look.
enum Finding {
    Ok(String),
    /// What is wrong, and what to do.
    Wrong(String, String),
    /// It could not be looked at.
    Unknown(String),
}

/// A right: verb, group, resource, subresource, what it is for, and whether a run can do without.
const RIGHTS: [(&str, &str, &str, &str, bool); 13] = [
    ("create", GROUP, "", "submit", true),
    ("get", GROUP, "", "see a run", true),
    ("list", GROUP, "", "list", true),
    ("watch", GROUP, "", "wait, list -w", true),
    ("patch", GROUP, "", "cancel, upload a source", true),
    ("get", RUN_GROUP, "log", "watch, logs", true),
    ("get", RUN_GROUP, "events", "events", true),
    ("get", RUN_GROUP, "approvals", "approvals", true),
    ("get", RUN_GROUP, "patch", "patch, diff", true),
    ("get", RUN_GROUP, "artifacts", "artifacts", true),
    ("update", RUN_GROUP, "source", "submit --dir of a larger tree", true),
    ("approve", GROUP, "", "approve, deny", false),
    ("create", RUN_GROUP, "approvals", "approve, deny", false),
];

pub async fn run(cluster: &Cluster, output: &Output) -> Result<Exit, Failure> {
    let mut wrong = 0;
    let mut say = |finding: Finding| -> Result<(), Failure> {
        let (color, word, text, next) = match finding {
            Finding::Ok(text) => (Color::Green, "ok", text, None),
            Finding::Unknown(text) => (Color::Dim, "?", text, None),
            Finding::Wrong(text, next) => {
                wrong += 1;
                (Color::Red, "wrong", text, Some(next))
            }
        };
        output.line(&format!("{} {}", output.paint(color, &format!("{word:<5}")), visible::line(&text)))?;
        next.map_or(Ok(()), |next| output.line(&format!("      {}", visible::line(&next))))
    };
    match cluster.get::<Value>("/version").await {
        Ok(version) => say(Finding::Ok(format!("the API server answers: {}", version["gitVersion"].as_str().unwrap_or("?"))))?,
        Err(fault) => {
            let next = "Check the kubeconfig, its context and the network.";
            say(Finding::Wrong(format!("the API server: {}", fault.failure("asking for its version").message), next.into()))?;
            return Ok(Exit::Failed);
        }
    }
    say(kinds(cluster).await)?;
    say(gateway(cluster).await)?;
    for finding in policy(cluster).await {
        say(finding)?;
    }
    for finding in rights(cluster).await {
        say(finding)?;
    }
    Ok(if wrong == 0 { Exit::Succeeded } else { Exit::Failed })
}

async fn kinds(cluster: &Cluster) -> Finding {
    let wanted = ["agentruns", "agentpolicies", "modelproviders", "agentrunrecords"];
    let install = "Ask the platform team to install AgentRun: helm install agentrun charts/agentrun -n agentrun-system";
    match cluster.get::<APIResourceList>(&format!("/apis/{GROUP}/{VERSION}")).await {
        Ok(list) => {
            let missing: Vec<&str> = wanted.into_iter().filter(|kind| !list.resources.iter().any(|have| have.name == *kind)).collect();
            if missing.is_empty() {
                Finding::Ok(format!("the kinds of {GROUP}/{VERSION} are installed"))
            } else {
                Finding::Wrong(format!("kinds of {GROUP} are missing: {}", missing.join(", ")), install.into())
            }
        }
        Err(fault) if fault.status() == Some(404) => Finding::Wrong(format!("the kinds of {GROUP} are not installed"), install.into()),
        Err(fault) => Finding::Unknown(fault.failure("the kinds").message),
    }
}

async fn gateway(cluster: &Cluster) -> Finding {
    match door::served(cluster).await {
        Ok(_) => Finding::Ok(format!("the gateway answers through the cluster ({RUN_GROUP})")),
        Err(Fault::Refused(refusal)) if refusal.status == 404 => Finding::Wrong(
            format!("the gateway is not reachable through the cluster: APIService v1alpha1.{RUN_GROUP} is not registered"),
            "The operator registers it while a gateway is ready: kubectl -n agentrun-system get pods".into(),
        ),
        Err(Fault::Refused(refusal)) if matches!(refusal.status, 502..=504) => Finding::Wrong(
            format!("the gateway does not answer behind APIService v1alpha1.{RUN_GROUP}: {}", refusal.message),
            format!("See why: kubectl get apiservice v1alpha1.{RUN_GROUP} -o yaml; kubectl -n agentrun-system get pods"),
        ),
        Err(fault) => Finding::Unknown(fault.failure("the gateway").message),
    }
}

async fn policy(cluster: &Cluster) -> Vec<Finding> {
    let namespace = &cluster.namespace;
    let path = format!("/apis/{GROUP}/{VERSION}/namespaces/{namespace}/agentpolicies/default");
    let policy: AgentPolicy = match cluster.get(&path).await {
        Ok(policy) => policy,
        Err(fault) if fault.status() == Some(404) => {
            return vec![Finding::Wrong(
                format!("namespace {namespace} has no AgentPolicy named default, so nothing runs in it"),
                format!("The platform team makes one, as in examples/policy.yaml; or choose another namespace with -n than {namespace}"),
            )];
        }
        Err(fault) => return vec![Finding::Unknown(fault.failure("the AgentPolicy").message)],
    };
    let names: Vec<&str> = policy.spec.models.iter().map(|model| model.name.as_str()).collect();
    let mut findings = vec![match names.is_empty() {
        true => Finding::Wrong(
            format!("the AgentPolicy of namespace {namespace} offers no model"),
            "The platform team adds one to spec.models.".into(),
        ),
        false => Finding::Ok(format!("the AgentPolicy of namespace {namespace} offers: {}", names.join(", "))),
    }];
    #[derive(Deserialize)]
    struct Providers {
        items: Vec<ModelProvider>,
    }
    let providers = match cluster.get::<Providers>(&format!("/apis/{GROUP}/{VERSION}/modelproviders?limit=500")).await {
        Ok(providers) => providers.items,
        Err(fault) if fault.status() == Some(403) => {
            findings.push(Finding::Unknown("the ModelProviders are for the platform team to read".into()));
            return findings;
        }
        Err(fault) => {
            findings.push(Finding::Unknown(fault.failure("the ModelProviders").message));
            return findings;
        }
    };
    for offered in &policy.spec.models {
        let found: Vec<&ModelProvider> = providers.iter().filter(|provider| provider.name_any() == offered.provider).collect();
        let next = format!("The platform team corrects ModelProvider {} or the policy.", offered.provider);
        findings.push(if found.is_empty() {
            Finding::Wrong(format!("model {}: there is no ModelProvider {}", offered.name, offered.provider), next)
        } else if found.iter().all(|provider| !provider.spec.models.iter().any(|model| model.name == offered.model)) {
            Finding::Wrong(format!("model {}: ModelProvider {} has no model {}", offered.name, offered.provider, offered.model), next)
        } else {
            Finding::Ok(format!("model {}: ModelProvider {} has {}", offered.name, offered.provider, offered.model))
        });
    }
    findings
}

async fn rights(cluster: &Cluster) -> Vec<Finding> {
    let mut findings = Vec::new();
    for (verb, group, sub, purpose, needed) in RIGHTS {
        let resource = if sub.is_empty() { "agentruns".to_owned() } else { format!("agentruns/{sub}") };
        let review = json!({
            "apiVersion": "authorization.k8s.io/v1", "kind": "SelfSubjectAccessReview",
            "spec": { "resourceAttributes": {
                "namespace": cluster.namespace, "verb": verb, "group": group, "resource": "agentruns", "subresource": sub,
            } },
        });
        let what = format!("{verb} {resource}.{group} in {}", cluster.namespace);
        let path = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews";
        findings.push(match cluster.send::<Value>(Method::POST, path, "application/json", &review).await {
            Ok(answer) if answer["status"]["allowed"] == true => Finding::Ok(format!("you may {what} ({purpose})")),
            Ok(_) if !needed => Finding::Unknown(format!("you may not {what} ({purpose}); others decide")),
            Ok(_) => Finding::Wrong(
                format!("you may not {what} ({purpose})"),
                "Ask for the role edit (or view, to look on only) in this namespace.".into(),
            ),
            Err(fault) => Finding::Unknown(fault.failure(&what).message),
        });
    }
    findings
}
