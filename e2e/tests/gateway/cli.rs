//! `kubectl agentrun` with nothing but a kubeconfig: through a real API server, whose RBAC judges, to a real gateway.

use agentrun_crds::budget::{Limit, Spent};
use agentrun_crds::names::AGGREGATED_GROUP;
use agentrun_e2e::gateways::{Aggregated, Bed, Gateway, LiveRun, MODEL};
use agentrun_e2e::plugin::{LONGEST, Plugin};
use agentrun_protocol::event::{AppendRequest, EventType, NewEvent};
use agentrun_protocol::routes;
use agentrun_protocol::token::Audience;
use agentrun_scripted_model::{Script, Turn};
use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt, BufReader};

const EVENTS: usize = 40;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn people_need_nothing_but_a_kubeconfig() {
    let _turn = super::turn::beside().await;
    body().await.unwrap();
}

async fn body() -> Result<()> {
    let bed = Bed::start(Script::new("", [Turn::say("yes")])).await?;
    let gateway = bed.gateway("a").await?;
    let aggregated = bed.aggregate(&gateway).await?;
    let editor = person(&bed, "editor", &["create", "get", "list", "watch", "patch"]).await?;
    let viewer = person(&bed, "viewer", &["get", "list", "watch"]).await?;
    submits(&bed, &editor, &viewer).await?;
    uploads(&bed, &editor, &viewer).await?;
    cancels(&bed, &editor, &viewer).await?;
    decides(&bed, &gateway, &viewer).await?;
    doctor(&editor, &viewer).await?;
    follows_over_another_gateway(&bed, gateway, aggregated, &viewer).await
}

/// Somebody with these verbs on AgentRuns; who may change one may also write to its parts.
async fn person(bed: &Bed, name: &str, verbs: &[&str]) -> Result<Plugin> {
    let runs = verbs.iter().map(|verb| (agentrun_crds::GROUP, "agentruns", *verb));
    let writes = verbs.iter().any(|verb| ["patch", "approve"].contains(verb));
    let verbs = if writes { &["get", "create", "update"][..] } else { &["get"] };
    let parts = verbs.iter().map(|verb| (AGGREGATED_GROUP, "*", *verb));
    let token = bed.account(name, &runs.chain(parts).collect::<Vec<_>>()).await?;
    Plugin::new(&bed.server.write_kubeconfig(&format!("{}-{name}", bed.team), &token)?, &bed.team)
}

async fn submits(bed: &Bed, editor: &Plugin, viewer: &Plugin) -> Result<()> {
    let shop = editor.home.path().join("shop");
    std::fs::create_dir_all(shop.join("src"))?;
    std::fs::write(shop.join("src/a.py"), "print('ü')\n")?;
    std::fs::write(shop.join(".gitignore"), "*.log\n")?;
    std::fs::write(shop.join("x.log"), "no")?;
    let shop = shop.display().to_string();
    let line = ["submit", "--dir", &shop, "-i", "Fix it.", "--check", "unit=python3 -m unittest", "--cost", "0.50", "--wall-time", "30m"];
    let with = |more: &[&'static str]| -> Vec<&str> { [&line[..], more].concat() };

    // Without a policy to choose from, a model must be named.
    editor.expect(&with(&[]), 2, "Name a model with --model").await?;
    let name = editor.expect(&with(&["--model", MODEL]), 0, "").await?;
    let run = bed.get(name.trim()).await?;
    ensure!(name.starts_with("shop-"), "{name}");
    let files: Vec<&str> = run.spec.source.inline.iter().flat_map(|inline| &inline.files).map(|file| file.path.as_str()).collect();
    ensure!(files == [".gitignore", "src/a.py"], "{files:?}");
    ensure!(run.spec.checks[0].argv == ["python3", "-m", "unittest"], "{:?}", run.spec.checks);

    // The same key, the same run; what the API server has made of it does not count.
    let keyed = with(&["--model", MODEL, "--idempotency-key", "build-7"]);
    let first = editor.expect(&keyed, 0, "").await?;
    ensure!(editor.expect(&keyed, 0, "").await? == first);
    editor.expect(&[&keyed[..], &["--max-steps", "3"]].concat(), 3, "another key or another spec").await?;

    // The API server judges, also of fields that this program does not know.
    editor.expect(&with(&["--model", MODEL, "--max-steps", "0"]), 3, "spec.limits.maxSteps").await?;
    let manifest = "apiVersion: agentrun.dev/v1alpha1\nkind: AgentRun\nmetadata: {name: from-file}\nspec: {instruction: x, model: m, novelty: 1, source: {inline: {files: [{path: a, content: x}]}}}\n";
    std::fs::write(editor.home.path().join("run.yaml"), manifest)?;
    editor.expect(&["submit", "-f", "run.yaml"], 3, "novelty").await?;
    std::fs::write(editor.home.path().join("run.yaml"), manifest.replace("novelty: 1, ", ""))?;
    let printed = editor.expect(&["submit", "-f", "run.yaml", "--dry-run", "-o", "json"], 0, "").await?;
    ensure!(serde_json::from_str::<Value>(&printed)?["spec"]["allowedPaths"] == json!(["**"]), "defaults of the API server: {printed}");
    ensure!(editor.expect(&["submit", "-f", "run.yaml", "-o", "name"], 0, "").await? == "agentrun.agentrun.dev/from-file\n");
    editor.expect(&["submit", "-f", "run.yaml"], 3, "already exists").await?;
    viewer.expect(&with(&["--model", MODEL]), 3, "forbidden").await?;

    let listed = viewer.expect(&["list"], 0, "").await?;
    for name in [name.trim(), first.trim(), "from-file"] {
        ensure!(listed.lines().any(|line| line.starts_with(&format!("{name} "))), "{name}: {listed}");
    }
    viewer.expect(&["list", "-A"], 3, "forbidden").await?;
    viewer.expect(&["why", "from-file"], 0, "").await?;
    viewer.expect(&["usage"], 0, "").await?;
    Ok(())
}

/// A tree too large for the object goes through the API server to the gateway, which checks and records it.
async fn uploads(bed: &Bed, editor: &Plugin, viewer: &Plugin) -> Result<()> {
    let large = editor.home.path().join("large");
    let deep = large.join("d".repeat(120));
    std::fs::create_dir_all(&deep)?;
    std::fs::write(deep.join("ü.txt"), "deep\n")?;
    // More than the API server takes of an object.
    std::fs::write(large.join("model.bin"), vec![0xfe; 8 * 1024 * 1024])?;
    let dir = large.display().to_string();
    let line = ["submit", "--dir", &dir, "-i", "Fix it.", "--model", MODEL, "--idempotency-key", "large"];
    let name = editor.expect(&line, 0, "").await?;
    let run = bed.get(name.trim()).await?;
    let source = run.status.and_then(|status| status.source).context("the source was recorded")?;
    let wanted = run.spec.source.archive.context("the run names an archive")?.digest;
    ensure!((source.files, source.digest == wanted) == (2, true), "{source:?}, not {wanted}");
    ensure!(editor.expect(&line, 0, "").await? == name, "the same key gives the same run");

    let again = editor.expect(&["rerun", name.trim(), "--dir", &dir], 0, "").await?;
    ensure!(again != name && bed.get(again.trim()).await?.status.is_some_and(|status| status.source == Some(source)));
    editor.expect(&["rerun", name.trim()], 2, "give its folder again with --dir").await?;
    viewer.expect(&["rerun", name.trim(), "--dir", &dir], 3, "forbidden").await?;
    Ok(())
}

async fn cancels(bed: &Bed, editor: &Plugin, viewer: &Plugin) -> Result<()> {
    bed.run("to-cancel", Limit { requests: 1, ..Limit::default() }, Spent::default()).await?;
    viewer.expect(&["cancel", "to-cancel"], 3, "forbidden").await?;
    ensure!(!bed.get("to-cancel").await?.spec.cancel);
    editor.expect(&["cancel", "to-cancel"], 0, "").await?;
    ensure!(bed.get("to-cancel").await?.spec.cancel);
    end(bed, "to-cancel", "Cancelled", "Cancelled").await?;
    editor.expect(&["wait", "to-cancel"], 7, "").await?;
    editor.expect(&["watch", "to-cancel"], 7, "").await?;
    bed.run("done", Limit { requests: 1, ..Limit::default() }, Spent::default()).await?;
    end(bed, "done", "Succeeded", "Succeeded").await?;
    editor.expect(&["cancel", "done"], 1, "already_completed").await?;
    // With its last event the gateway has seen the run's end too.
    ensure!(editor.expect(&["logs", "-f", "done"], 0, "").await?.contains("end      Succeeded"));
    editor.expect(&["patch", "done"], 1, "the run ended without a result").await?;
    viewer.expect(&["events", "done", "--after", "900"], 3, "the log's last is").await?;
    Ok(())
}

async fn decides(bed: &Bed, gateway: &Gateway, viewer: &Plugin) -> Result<()> {
    let approver = person(bed, "approver", &["get", "list", "approve"]).await?;
    let run = bed.run("asks", Limit { requests: 5, ..Limit::default() }, Spent::default()).await?;
    let ask = async |argv: &[&str]| -> Result<String> {
        let url = format!("{}{}", gateway.url, routes::APPROVALS);
        let body = json!({ "action": { "tool": "run_command", "argv": argv } });
        let answer = gateway.http.post(url).bearer_auth(bed.token(&run, Audience::Approvals)).json(&body).send().await?;
        Ok(answer.error_for_status()?.json::<Value>().await?["id"].to_string())
    };
    let first = ask(&["rm", "-rf", "build\u{202e}"]).await?;
    let waits = approver.expect(&["approvals"], 0, "").await?;
    for part in [
        &format!("asks {first}  run_command  waits for"),
        "│ $ rm -rf 'build\\u{202e}'",
        &format!("kubectl agentrun -n {} approve asks {first}", bed.team),
    ] {
        ensure!(waits.contains(part), "{part}: {waits}");
    }
    viewer.expect(&["approve", "asks", &first], 3, "forbidden").await?;
    let said = approver.expect(&["approve", "asks", &first, "--session", "--reason", "fine"], 0, "").await?;
    ensure!(said.ends_with("allowed, and the same action again in this run\n"), "{said}");
    let status = bed.get("asks").await?.status.context("a status")?;
    let decided = serde_json::to_value(&status.approvals)?;
    let decider = format!("system:serviceaccount:{}:approver", bed.team);
    for (key, value) in [("state", "allowed"), ("scope", "session"), ("reason", "fine"), ("decidedBy", &decider)] {
        ensure!(decided[0][key] == value, "{key}: {decided}");
    }
    // Saying the same again is harmless; saying something else comes too late.
    approver.expect(&["approve", "asks", &first, "--session"], 0, "").await?;
    approver.expect(&["deny", "asks", &first], 1, &decider).await?;
    approver.expect(&["deny", "asks", "99"], 3, "approval 99").await?;

    let second = ask(&["ls"]).await?;
    approver.expect(&["deny", "asks", &second, "--reason", "not now"], 0, "").await?;
    let all = approver.expect(&["approvals", "asks", "-o", "json"], 0, "").await?;
    let all: Value = serde_json::from_str(&all)?;
    ensure!(all["approvals"][1]["state"] == "denied" && all["approvals"][1]["reason"] == "not now", "{all}");
    approver.expect(&["approvals"], 0, "nothing waits").await?;
    let logs = approver.expect(&["logs", "asks"], 0, "").await?;
    ensure!(logs.contains(&format!("{second} denied: run_command ls, by {decider}, \"not now\"")), "{logs}");

    let third = ask(&["ls", "-l"]).await?;
    approver.expect(&["deny", "asks", &third, "--cancel"], 0, "").await?;
    ensure!(bed.get("asks").await?.spec.cancel, "the run is asked to end");
    Ok(())
}

async fn doctor(editor: &Plugin, viewer: &Plugin) -> Result<()> {
    let create = "you may create agentruns.agentrun.dev";
    // Submitting is not a viewer's part.
    for (person, submit) in [(editor, format!("ok    {create}")), (viewer, format!("?     {}", create.replace("may", "may not")))] {
        let said = person.expect(&["doctor"], 0, "").await?;
        let ok = ["the API server answers", "the kinds of agentrun.dev/v1alpha1", "the gateway answers through the cluster"];
        for part in ok.map(|part| format!("ok    {part}")).iter().chain([&submit]) {
            ensure!(said.contains(part.as_str()), "{part}: {said}");
        }
    }
    Ok(())
}

/// A follower is there before the first event, over a gateway's death, the APIService's withdrawal and another gateway, to the
/// end; what it prints is the log.
async fn follows_over_another_gateway(bed: &Bed, mut gateway: Gateway, aggregated: Aggregated, viewer: &Plugin) -> Result<()> {
    let run = bed.run("followed", Limit { requests: 5, ..Limit::default() }, Spent::default()).await?;
    let mut child = viewer.command(&["events", "followed", "-f", "-o", "json"]).spawn()?;
    let mut lines = BufReader::new(child.stdout.take().context("a pipe")?).lines();
    let mut seen: Vec<Value> = Vec::new();
    let mut until = async |enough: &dyn Fn(&[Value]) -> bool| -> Result<Vec<Value>> {
        while !enough(&seen) {
            let line = tokio::time::timeout(LONGEST, lines.next_line()).await??.context("the follower ended")?;
            seen.push(serde_json::from_str(&line)?);
        }
        Ok(seen.clone())
    };
    append(bed, &gateway, &run, 0..EVENTS / 2).await?;
    until(&|seen| notes(seen).len() == EVENTS / 2).await?;

    gateway.crash()?;
    aggregated.withdraw().await?;
    let gateway = bed.gateway("a").await?;
    append(bed, &gateway, &run, EVENTS / 2..EVENTS).await?;
    aggregated.register(bed, &gateway).await?;
    until(&|seen| notes(seen).len() == EVENTS).await?;

    let mut watching = viewer.command(&["watch", "followed"]).spawn()?;
    end(bed, "followed", "Failed", "ChecksFailed").await?;
    let seen = until(&|seen| seen.last().is_some_and(|event| event["type"] == "end")).await?;
    let status = tokio::time::timeout(LONGEST, child.wait()).await??;
    ensure!(status.code() == Some(0), "{status}");
    ensure!(seen.iter().map(|event| event["seq"].as_i64()).eq((1..=seen.len() as i64).map(Some)), "not dense: {seen:?}");
    ensure!(notes(&seen) == (0..EVENTS).map(|at| format!("note {at}")).collect::<Vec<_>>(), "{seen:?}");

    let status = tokio::time::timeout(LONGEST, watching.wait()).await??;
    ensure!(status.code() == Some(4), "{status}");
    let said = viewer.expect(&["why", "followed"], 0, "").await?;
    ensure!(said.contains("Failed, ChecksFailed") && said.contains("end      Failed ChecksFailed"), "{said}");
    let all = viewer.expect(&["events", "followed", "-o", "json"], 0, "").await?;
    let all: Vec<Value> = all.lines().map(serde_json::from_str).collect::<Result<_, _>>()?;
    ensure!(all == seen, "what was followed is not the log");
    viewer.expect(&["logs", "-f", "nothing"], 3, "there is no AgentRun nothing").await?;
    aggregated.withdraw().await?;
    viewer.expect(&["logs", "followed"], 3, "the gateway is not reachable through the cluster").await?;
    Ok(())
}

fn notes(events: &[Value]) -> Vec<String> {
    let notes = events.iter().filter(|event| event["type"] == "note");
    notes.map(|event| event["data"]["text"].as_str().unwrap_or_default().to_owned()).collect()
}

async fn append(bed: &Bed, gateway: &Gateway, run: &LiveRun, range: std::ops::Range<usize>) -> Result<()> {
    let token = bed.token(run, Audience::Events);
    for at in range {
        let event = NewEvent { key: at.to_string(), kind: EventType::Note, data: json!({ "text": format!("note {at}") }) };
        let url = format!("{}{}", gateway.url, routes::EVENTS);
        let request = AppendRequest { events: vec![event] };
        gateway.http.post(url).bearer_auth(&token).json(&request).send().await?.error_for_status()?;
    }
    Ok(())
}

/// As the operator would end a run.
async fn end(bed: &Bed, name: &str, phase: &str, reason: &str) -> Result<()> {
    let now = jiff::Timestamp::now();
    let complete = json!({
        "type": "Complete", "status": "True", "reason": reason, "message": "it is over", "lastTransitionTime": format!("{now:.0}"),
    });
    bed.patch_status(
        name,
        json!({ "phase": phase, "finishedAt": format!("{now:.0}"), "budget": { "gate": "Closed" }, "conditions": [complete] }),
    )
    .await?;
    Ok(())
}
