//! `approvals`: what waits for a person, with the exact command or diff as the gateway made it from the bytes that will be
//! performed.

use agentrun_crds::agent_run_status::ApprovalState;
use agentrun_protocol::people::ApprovalView;
use futures::{StreamExt, stream};
use kube::ResourceExt;
use serde_json::{Value, json};

use crate::arguments::Approvals;
use crate::cluster::Cluster;
use crate::door::Door;
use crate::exit::Exit;
use crate::failure::Failure;
use crate::output::{Color, Output, age};
use crate::{hint, run_name, runs, visible};

/// Runs asked at once.
const AT_ONCE: usize = 8;

/// A run's approvals with where it is.
struct Asked {
    namespace: String,
    run: String,
    approvals: Vec<ApprovalView>,
}

pub async fn run(cluster: &Cluster, arguments: &Approvals, output: &Output) -> Result<Exit, Failure> {
    let asked = match &arguments.run {
        Some(run) => {
            let run = run_name::resolve(cluster, run).await?;
            let door = Door { cluster, run: &run };
            let approvals = door.approvals().await.map_err(|fault| door.failure(fault, &format!("reading the approvals of {run}")))?;
            vec![Asked { namespace: cluster.namespace.clone(), run: run.clone(), approvals }]
        }
        None => waiting(cluster, arguments.all_namespaces).await?,
    };
    if arguments.output.is_some() {
        let items: Vec<Value> = asked
            .iter()
            .flat_map(|asked| {
                asked.approvals.iter().map(|view| {
                    let mut value = json!(view);
                    value["namespace"] = json!(asked.namespace);
                    value["run"] = json!(asked.run);
                    value
                })
            })
            .collect();
        output.json(&json!({ "approvals": items }))?;
        return Ok(Exit::Succeeded);
    }
    let now = jiff::Timestamp::now().as_second();
    let mut first = true;
    for asked in &asked {
        for view in &asked.approvals {
            if !std::mem::take(&mut first) {
                output.line("")?;
            }
            let namespace = arguments.all_namespaces.then_some(asked.namespace.as_str());
            for line in lines(view, &asked.run, namespace, now, output) {
                output.line(&line)?;
            }
        }
    }
    if first {
        output.remark(match &arguments.run {
            Some(_) => "this run has asked for nothing",
            None => "nothing waits for a person",
        });
    }
    Ok(Exit::Succeeded)
}

/// Of the runs that wait, by their status; the gateway tells the rest.
async fn waiting(cluster: &Cluster, all: bool) -> Result<Vec<Asked>, Failure> {
    let runs = runs::list(cluster, (!all).then_some(cluster.namespace.as_str()), None).await?;
    let wait = runs.into_iter().filter(|run| run.status.as_ref().is_some_and(|status| status.pending_approvals.unwrap_or_default() > 0));
    let mut asked: Vec<Asked> = stream::iter(wait)
        .map(|run| async move {
            let (namespace, name) = (run.namespace().unwrap_or_default(), run.name_any());
            let there = cluster.in_namespace(&namespace);
            let door = Door { cluster: &there, run: &name };
            let mut approvals = door.approvals().await.map_err(|fault| door.failure(fault, &format!("reading the approvals of {name}")))?;
            approvals.retain(|view| view.state == ApprovalState::Pending);
            Ok(Asked { namespace, run: name, approvals })
        })
        .buffer_unordered(AT_ONCE)
        .collect::<Vec<Result<Asked, Failure>>>()
        .await
        .into_iter()
        .collect::<Result<_, _>>()?;
    // Who has waited longest comes first.
    asked.sort_by_key(|asked| (asked.approvals.first().map(|view| view.requested_at.clone()), asked.namespace.clone(), asked.run.clone()));
    Ok(asked)
}

/// One approval; `namespace` if the commands must name it.
pub fn lines(view: &ApprovalView, run: &str, namespace: Option<&str>, now: i64, output: &Output) -> Vec<String> {
    let seconds = |time: &str| time.parse::<jiff::Timestamp>().map(|time| time.as_second()).unwrap_or(now);
    let id = view.id;
    let place = namespace.map_or(String::new(), |namespace| format!("{namespace}/"));
    let state = match view.state {
        ApprovalState::Pending => {
            format!("waits for {}, expires in {}", age(now - seconds(&view.requested_at)), age(seconds(&view.expires_at) - now))
        }
        state => {
            let mut words = json!(state).as_str().unwrap_or_default().to_owned();
            if let Some(by) = &view.decided_by {
                words.push_str(&format!(" by {by}"));
            }
            if let Some(reason) = &view.reason {
                words.push_str(&format!(": {reason}"));
            }
            words
        }
    };
    let head = visible::line(&format!("{place}{run} {id}  {}  {state}", view.kind));
    let mut lines = vec![output.paint(if view.state == ApprovalState::Pending { Color::Yellow } else { Color::Dim }, &head)];
    let shown = view.shown.as_deref().unwrap_or(&view.summary);
    for line in visible::block(shown.trim_end_matches('\n')).split('\n') {
        let line = line.replace('\t', "    ");
        let color = match line.as_bytes().first() {
            Some(b'+') => Some(Color::Green),
            Some(b'-') => Some(Color::Red),
            Some(b'@') => Some(Color::Cyan),
            _ => None,
        };
        let line = color.map_or(line.clone(), |color| output.paint(color, &line));
        lines.push(format!("  {} {line}", output.paint(Color::Dim, "│")));
    }
    if view.shown_truncated {
        let digests = view.action.iter().flat_map(|action| &action.texts).map(|text| text.digest.as_str()).collect::<Vec<_>>().join(" ");
        lines.push(visible::line(&format!(
            "  only a part is shown; the rest: kubectl agentrun artifacts {run} --get DIGEST -O -, with {digests}"
        )));
    }
    if view.state == ApprovalState::Pending {
        let n = namespace.map_or(String::new(), |namespace| format!(" -n {namespace}"));
        lines.push(visible::line(&hint::complete(&format!(
            "  kubectl agentrun approve{n} {run} {id}   or: kubectl agentrun deny{n} {run} {id}"
        ))));
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::arguments::ColorChoice;

    #[test]
    fn what_waits_is_shown_with_the_commands_that_decide() {
        let output = Output::new(ColorChoice::Never);
        let mut view: ApprovalView = serde_json::from_value(json!({
            "id": 3, "state": "pending", "kind": "run_command", "summary": "rm -rf build", "digest": "d",
            "requestedAt": "1970-01-01T00:01:00Z", "expiresAt": "1970-01-01T00:31:00Z", "shown": "rm -rf\tbuild\u{1b}[2J\n+x\n",
        }))
        .expect("a view");
        assert_eq!(
            lines(&view, "fix", Some("team-a"), 101, &output),
            [
                "team-a/fix 3  run_command  waits for 41s, expires in 29m",
                "  │ rm -rf    build\\u{1b}[2J",
                "  │ +x",
                "  kubectl agentrun approve -n team-a fix 3   or: kubectl agentrun deny -n team-a fix 3",
            ]
        );
        view.state = ApprovalState::Denied;
        view.decided_by = Some("bob".into());
        view.reason = Some("not\nthis".into());
        assert_eq!(lines(&view, "fix", None, 101, &output)[0], "fix 3  run_command  denied by bob: not\\nthis");
        assert_eq!(lines(&view, "fix", None, 101, &output).len(), 3);
    }
}
