//! `rerun`: the spec of a run again, as a new run.

use serde_json::{Value, json};

use crate::arguments::Rerun;
use crate::cluster::Cluster;
use crate::commands::submit::send_source;
use crate::commands::watch;
use crate::door::{self, Door};
use crate::exit::Exit;
use crate::failure::Failure;
use crate::output::Output;
use crate::tree::{self, Bounds};
use crate::{archive, run_name, runs};

/// What belongs to the old run alone.
const NOT_TAKEN: [&str; 2] = ["cancel", "submittedBy"];

pub async fn run(cluster: &Cluster, arguments: &Rerun, output: &Output) -> Result<Exit, Failure> {
    let old = run_name::resolve(cluster, &arguments.run.run).await?;
    let path = format!("{}/{old}", runs::path(Some(&cluster.namespace)));
    let found: Value = match cluster.get(&path).await {
        Ok(found) => found,
        Err(fault) if fault.status() == Some(404) => return Err(runs::absent(cluster, &old)),
        Err(fault) => return Err(fault.failure(&format!("reading AgentRun {old}"))),
    };
    let mut run = again(&found, arguments.name.as_deref())?;
    let archive = match run["spec"]["source"]["archive"]["digest"].as_str() {
        None if arguments.dir.is_some() => return Err(Failure::usage(format!("{old} has its source in itself; leave out --dir"))),
        None => None,
        Some(digest) => {
            let Some(folder) = &arguments.dir else {
                return Err(Failure::usage(format!("the source of {old} was uploaded; give its folder again with --dir")));
            };
            let packed = archive::pack(&tree::read(folder, Bounds::default())?.files)?;
            if packed.digest != digest {
                output.remark(&format!("warning: {} is not what {old} worked on; the new run gets it as it is now", folder.display()));
            }
            door::served(cluster).await.map_err(|fault| Door { cluster, run: "" }.failure(fault, "the source must be uploaded"))?;
            Some(packed)
        }
    };
    if let Some(archive) = &archive {
        run["spec"]["source"] = json!({ "archive": { "digest": archive.digest } });
    }
    let created = runs::create(cluster, &cluster.namespace, &run, false)
        .await
        .map_err(|fault| fault.failure(&format!("creating a run like {old}")))?;
    let name = created["metadata"]["name"].as_str().unwrap_or_default().to_owned();
    output.line(&name)?;
    if let Some(archive) = archive
        && let Some(ended) = send_source(cluster, &name, archive, false, output).await?
    {
        return Ok(ended);
    }
    if arguments.follow { watch::to_the_end(cluster, &name, !output.terminal, None, output).await } else { Ok(Exit::Succeeded) }
}

/// The spec without what belongs to the old run, beneath a new name. Labels are not taken: they may belong to a tool.
fn again(old: &Value, name: Option<&str>) -> Result<Value, Failure> {
    let mut spec = old["spec"].clone();
    if let Some(spec) = spec.as_object_mut() {
        spec.retain(|field, _| !NOT_TAKEN.contains(&field.as_str()));
    }
    let metadata = match name {
        Some(name) => {
            run_name::check_subdomain("run", name)?;
            json!({ "name": name })
        }
        None => {
            // A name that the API server has completed ends in a dash and five characters.
            let base = old["metadata"]["generateName"].as_str().map_or_else(
                || format!("{}-", old["metadata"]["name"].as_str().unwrap_or("run").chars().take(240).collect::<String>()),
                str::to_owned,
            );
            json!({ "generateName": base })
        }
    };
    Ok(json!({ "apiVersion": old["apiVersion"], "kind": old["kind"], "metadata": metadata, "spec": spec }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_belongs_to_the_old_run_is_left_behind() {
        let old = json!({
            "apiVersion": "agentrun.dev/v1alpha1", "kind": "AgentRun",
            "metadata": { "name": "fix", "uid": "u", "labels": { "a": "b" }, "annotations": { "c": "d" } },
            "spec": { "instruction": "x", "cancel": true, "submittedBy": "bob", "model": "m", "rerunKey": "2" },
            "status": { "phase": "Cancelled" },
        });
        let expected = json!({
            "apiVersion": "agentrun.dev/v1alpha1", "kind": "AgentRun", "metadata": { "generateName": "fix-" },
            "spec": { "instruction": "x", "model": "m", "rerunKey": "2" },
        });
        assert_eq!(again(&old, None).expect("a run"), expected);
        assert_eq!(again(&old, Some("new")).expect("a run")["metadata"], json!({ "name": "new" }));
        assert!(again(&old, Some("Not/One")).is_err());
    }
}
