//! `list`, and `list -w`.

use agentrun_crds::AgentRun;
use futures::StreamExt;
use kube::Api;
use kube::ResourceExt;
use kube::runtime::WatchStreamExt;
use kube::runtime::watcher::{self, Event, watcher};
use serde_json::{Value, json};

use crate::arguments::{Form, List};
use crate::cluster::Cluster;
use crate::exit::Exit;
use crate::failure::Failure;
use crate::output::{Output, Table, age};
use crate::runs;

const HEADINGS: [&str; 9] = ["NAMESPACE", "NAME", "PHASE", "MODEL", "REQUESTS", "COST", "APPROVALS", "REASON", "AGE"];
/// Widths of the columns while watching, since later rows are not known yet.
const WIDTHS: [usize; 9] = [20, 32, 17, 16, 10, 10, 11, 24, 6];

pub async fn run(cluster: &Cluster, arguments: &List, output: &Output) -> Result<Exit, Failure> {
    let namespace = (!arguments.all_namespaces).then_some(cluster.namespace.as_str());
    if arguments.watch {
        return watch(cluster, namespace, arguments, output).await;
    }
    let runs = runs::list(cluster, namespace, arguments.selector.as_deref()).await?;
    match arguments.output {
        Some(Form::Name) => {
            for run in &runs {
                output.object(&json!(run), Form::Name)?;
            }
        }
        Some(form) => {
            let list = json!({ "apiVersion": "v1", "kind": "List", "items": runs });
            output.object(&list, form)?;
        }
        None if runs.is_empty() => {
            output.remark(&match namespace {
                Some(namespace) => format!("no runs in namespace {namespace}"),
                None => "no runs".into(),
            });
        }
        None => {
            let skip = usize::from(!arguments.all_namespaces);
            let mut table = Table::new(&HEADINGS[skip..]);
            for run in &runs {
                table.row(cells(run).split_off(skip));
            }
            for line in table.lines() {
                output.line(&line)?;
            }
        }
    }
    Ok(Exit::Succeeded)
}

async fn watch(cluster: &Cluster, namespace: Option<&str>, arguments: &List, output: &Output) -> Result<Exit, Failure> {
    // A list that is refused is told at once; a watch would try again for ever.
    let path = format!("{}?limit=1", runs::path(namespace));
    cluster.get::<Value>(&path).await.map_err(|fault| fault.failure("listing AgentRuns"))?;
    let api: Api<AgentRun> = match namespace {
        Some(namespace) => Api::namespaced(cluster.client.clone(), namespace),
        None => Api::all(cluster.client.clone()),
    };
    let mut config = watcher::Config::default();
    config.label_selector.clone_from(&arguments.selector);
    let skip = usize::from(!arguments.all_namespaces);
    output.line(&columns(&HEADINGS.map(String::from)[skip..], &WIDTHS[skip..]))?;
    let mut shown = std::collections::HashMap::new();
    let mut told = false;
    let mut changes = std::pin::pin!(watcher(api, config).default_backoff());
    while let Some(change) = changes.next().await {
        let row = match change {
            Ok(Event::InitApply(run) | Event::Apply(run)) => {
                told = false;
                let mut cells = cells(&run);
                let known: Vec<String> = cells[..8].to_vec();
                // A list that is read again shows what has changed only.
                if shown.insert(run.uid(), known.clone()) == Some(known) {
                    continue;
                }
                cells.split_off(skip)
            }
            Ok(Event::Delete(run)) => {
                shown.remove(&run.uid());
                let mut cells = cells(&run);
                cells[2] = "(deleted)".into();
                cells.split_off(skip)
            }
            Ok(Event::Init | Event::InitDone) => continue,
            Err(error) => {
                if !told {
                    output.remark(&format!("the watch broke, trying again: {error}"));
                }
                told = true;
                continue;
            }
        };
        output.line(&columns(&row, &WIDTHS[skip..]))?;
    }
    Ok(Exit::Succeeded)
}

fn cells(run: &AgentRun) -> Vec<String> {
    let status = run.status.as_ref();
    let text = |text: Option<&String>| text.cloned().unwrap_or_default();
    let created = run.metadata.creation_timestamp.as_ref().map_or(0, |time| time.0.as_second());
    vec![
        run.namespace().unwrap_or_default(),
        run.name_any(),
        status.and_then(|status| status.phase).map_or("Pending", |phase| phase.as_str()).to_owned(),
        run.spec.model.clone(),
        text(status.and_then(|status| status.requests_text.as_ref())),
        text(status.and_then(|status| status.cost_text.as_ref())),
        status
            .and_then(|status| status.pending_approvals)
            .filter(|pending| *pending > 0)
            .map_or(String::new(), |pending| pending.to_string()),
        runs::ended(run).map_or(String::new(), |(_, reason, _)| reason),
        age(jiff::Timestamp::now().as_second() - created),
    ]
}

fn columns(cells: &[String], widths: &[usize]) -> String {
    let mut line = String::new();
    for (cell, width) in cells.iter().zip(widths) {
        let cell = crate::visible::line(cell);
        line.push_str(&format!("{cell:<width$} "));
    }
    line.trim_end().to_owned()
}
