//! `submit`: build, create, upload, print the name, and follow if asked.

use std::time::Duration;

use serde_json::{Value, json};

use crate::archive::Archive;
use crate::arguments::{DryRun, Form, Submit};
use crate::cluster::{Cluster, Fault};
use crate::commands::{wait, watch};
use crate::door::{self, Door};
use crate::exit::Exit;
use crate::failure::Failure;
use crate::manifest::{self, Manifest, SUBMISSION};
use crate::output::Output;
use crate::{hint, runs, upload};

/// Tries of a creation that is safe to repeat.
const TRIES: u32 = 5;

/// What would be created, without asking anybody.
pub fn dry(submit: &Submit, namespace: Option<&str>, output: &Output) -> Result<Exit, Failure> {
    let manifest = manifest::build(submit, namespace)?;
    warn(&manifest, output);
    output.object(&manifest.run, submit.output.unwrap_or(Form::Yaml))?;
    Ok(Exit::Succeeded)
}

pub async fn run(cluster: &mut Cluster, submit: &Submit, output: &Output) -> Result<Exit, Failure> {
    let given = cluster.namespace_given.then(|| cluster.namespace.clone());
    let mut manifest = manifest::build(submit, given.as_deref())?;
    if let Some(namespace) = &manifest.namespace {
        if *namespace != cluster.namespace {
            hint::in_namespace(namespace);
        }
        cluster.namespace.clone_from(namespace);
    }
    warn(&manifest, output);
    if manifest.run["spec"]["model"].is_null() {
        manifest.run["spec"]["model"] = json!(first_model(cluster).await?);
    }
    if submit.dry_run == Some(DryRun::Server) {
        let run = runs::create(cluster, &cluster.namespace, &manifest.run, true).await.map_err(|fault| refused(fault, &manifest))?;
        output.object(&run, submit.output.unwrap_or(Form::Yaml))?;
        return Ok(Exit::Succeeded);
    }
    if manifest.archive.is_some() {
        // Before a run is made that nobody could give its source.
        if let Err(fault) = door::served(cluster).await {
            return Err(Door { cluster, run: "" }.failure(fault, "the source must be uploaded"));
        }
    }
    let run = create(cluster, &manifest, submit.idempotency_key.is_some()).await?;
    let name = run["metadata"]["name"].as_str().unwrap_or_default().to_owned();
    match submit.output {
        Some(form) => output.object(&run, form)?,
        None => output.line(&name)?,
    }
    let uploaded = run["status"]["source"].is_object() || run["status"]["finishedAt"].is_string();
    if let (Some(archive), false) = (manifest.archive, uploaded)
        && let Some(ended) = send_source(cluster, &name, archive, submit.idempotency_key.is_some(), output).await?
    {
        return Ok(ended);
    }
    if submit.follow {
        watch::to_the_end(cluster, &name, !output.terminal, submit.timeout, output).await
    } else if submit.wait {
        wait::to_the_end(cluster, &name, submit.timeout, output).await
    } else {
        Ok(Exit::Succeeded)
    }
}

/// Upload; or, of a run that has ended meanwhile, since it was refused, say how: it takes no source, and why is the answer.
pub async fn send_source(cluster: &Cluster, run: &str, archive: Archive, keyed: bool, output: &Output) -> Result<Option<Exit>, Failure> {
    let Err(failure) = upload::send(&Door { cluster, run }, archive, keyed).await else { return Ok(None) };
    let ended = runs::find(cluster, run).await.ok().flatten().and_then(|run| runs::ended(&run));
    let Some((phase, reason, message)) = ended else { return Err(failure) };
    Ok(Some(watch::tell(run, phase, &reason, &message, output)))
}

/// Create, or find what an earlier try with the same key has created.
async fn create(cluster: &Cluster, manifest: &Manifest, keyed: bool) -> Result<Value, Failure> {
    let mut tries = 0;
    loop {
        tries += 1;
        let fault = match runs::create(cluster, &cluster.namespace, &manifest.run, false).await {
            Ok(run) => return Ok(run),
            Err(fault) => fault,
        };
        let taken = matches!(&fault, Fault::Refused(refusal) if refusal.status == 409 && refusal.code == "AlreadyExists");
        if keyed && taken {
            return earlier(cluster, manifest).await;
        }
        // Without a key a lost answer may mean a second run.
        if !keyed || !fault.is_passing() || tries == TRIES {
            return Err(refused(fault, manifest));
        }
        tokio::time::sleep(Duration::from_millis(250) * 2u32.pow(tries)).await;
    }
}

async fn earlier(cluster: &Cluster, manifest: &Manifest) -> Result<Value, Failure> {
    let name = manifest.run["metadata"]["name"].as_str().unwrap_or_default();
    let path = format!("{}/{name}", runs::path(Some(&cluster.namespace)));
    let found: Value = cluster.get(&path).await.map_err(|fault| fault.failure(&format!("reading AgentRun {name}")))?;
    let digest = |run: &Value| run["metadata"]["annotations"][SUBMISSION].as_str().map(str::to_owned);
    if digest(&found) == digest(&manifest.run) {
        return Ok(found);
    }
    Err(Failure::new(Exit::NotSubmitted, format!("AgentRun {name} exists and was submitted with another key or another spec"))
        .advice("A key stands for one submission; choose another --idempotency-key."))
}

fn refused(fault: Fault, manifest: &Manifest) -> Failure {
    let name = ["name", "generateName"].iter().find_map(|key| manifest.run["metadata"][key].as_str()).unwrap_or_default();
    let missing_kind = fault.status() == Some(404) && fault_message(&fault).contains("could not find the requested resource");
    let taken = fault.status() == Some(409);
    let failure = fault.failure(&format!("creating AgentRun {name}"));
    if missing_kind {
        return failure.advice("AgentRun is not installed in this cluster: kubectl agentrun doctor");
    }
    if taken {
        return failure.advice("Choose another --name, or --generate-name; --idempotency-key makes repeating harmless.");
    }
    failure
}

fn fault_message(fault: &Fault) -> &str {
    match fault {
        Fault::Refused(refusal) => &refusal.message,
        _ => "",
    }
}

/// The first model that the namespace's policy offers.
async fn first_model(cluster: &Cluster) -> Result<String, Failure> {
    let path = format!("/apis/{}/{}/namespaces/{}/agentpolicies/default", agentrun_crds::GROUP, agentrun_crds::VERSION, cluster.namespace);
    let advice = "Name a model with --model.";
    match cluster.get::<Value>(&path).await {
        Ok(policy) => policy["spec"]["models"][0]["name"].as_str().map(str::to_owned).ok_or_else(|| {
            Failure::usage(format!("no --model is given, and the policy of namespace {} offers none", cluster.namespace)).advice(advice)
        }),
        Err(fault) if matches!(fault.status(), Some(403 | 404)) => {
            let what = format!("no --model is given, and the policy of namespace {} cannot be read", cluster.namespace);
            Err(Failure { exit: Exit::Usage, ..fault.failure(&what) }.advice(advice))
        }
        Err(fault) => Err(fault.failure("reading the AgentPolicy for a model")),
    }
}

fn warn(manifest: &Manifest, output: &Output) {
    for warning in &manifest.warnings {
        output.remark(&format!("warning: {warning}"));
    }
}
