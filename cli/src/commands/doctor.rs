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

/// What people with a role can do.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Part {
    /// Without these there is nothing to do here.
    Read,
    Submit,
    Decide,
}

/// A right: verb, group, subresource, what it is for, and whose part it is.
const RIGHTS: [(&str, &str, &str, &str, Part); 13] = [
    ("create", GROUP, "", "submit", Part::Submit),
    ("get", GROUP, "", "see a run", Part::Read),
    ("list", GROUP, "", "list", Part::Read),
    ("watch", GROUP, "", "wait, list -w", Part::Read),
    ("patch", GROUP, "", "cancel, upload a source", Part::Submit),
    ("get", RUN_GROUP, "log", "watch, logs", Part::Read),
    ("get", RUN_GROUP, "events", "events", Part::Read),
    ("get", RUN_GROUP, "approvals", "approvals", Part::Read),
    ("get", RUN_GROUP, "patch", "patch, diff", Part::Read),
    ("get", RUN_GROUP, "artifacts", "artifacts", Part::Read),
    ("update", RUN_GROUP, "source", "submit --dir of a larger tree", Part::Submit),
    ("approve", GROUP, "", "approve, deny", Part::Decide),
    ("create", RUN_GROUP, "approvals", "approve, deny", Part::Decide),
];

/// What rules of approvals can name of the built-in agent.
const TOOLS: [&str; 6] = ["run_command", "write_file", "edit_file", "read_file", "list", "search"];

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
    let rules = policy.spec.approvals.rules.iter();
    for tool in rules.flat_map(|rule| &rule.tools).filter(|tool| !TOOLS.contains(&tool.as_str())) {
        let rule =
            format!("the AgentPolicy of namespace {namespace} has a rule on the tool {tool}, which the built-in agent does not have");
        findings.push(Finding::Unknown(format!("{rule}: it matches nothing of that agent (its tools: {})", TOOLS.join(", "))));
    }
    if policy.spec.default_image.is_none() {
        findings.push(Finding::Unknown(format!("the AgentPolicy of namespace {namespace} has no defaultImage: name one with --image")));
    }
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
    for (verb, group, sub, purpose, part) in RIGHTS {
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
            Ok(_) if part == Part::Decide => Finding::Unknown(format!("you may not {what} ({purpose}); the role agentrun-approver may")),
            Ok(_) if part == Part::Submit => Finding::Unknown(format!("you may not {what} ({purpose}); the role edit may")),
            Ok(_) => Finding::Wrong(
                format!("you may not {what} ({purpose})"),
                "Ask for the role view, edit or agentrun-approver in this namespace.".into(),
            ),
            Err(fault) => Finding::Unknown(fault.failure(&what).message),
        });
    }
    findings
}
