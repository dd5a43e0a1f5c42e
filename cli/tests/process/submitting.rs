//! Submitting: what is created and uploaded, and repeated.

use serde_json::{Value, json};
use sha2::{Digest, Sha256};

use crate::fake::{Answer, Fake, ended, event, run};

const RUNS: &str = "/apis/agentrun.dev/v1alpha1/namespaces/team-a/agentruns";
const SOURCE: &str = "/apis/run.agentrun.dev/v1alpha1/namespaces/team-a/agentruns/shop-1/source";

fn folder(fake: &Fake, bytes: usize) -> String {
    let shop = fake.path("shop");
    std::fs::create_dir_all(&shop).expect("made");
    std::fs::write(shop.join("a.py"), "x".repeat(bytes)).expect("written");
    shop.display().to_string()
}

/// The run as the API server would store it.
fn created(sent: &Value) -> Value {
    let mut stored = run("shop-1", json!({}));
    stored["spec"] = sent["spec"].clone();
    stored["metadata"]["annotations"] = sent["metadata"]["annotations"].clone();
    if let Some(name) = sent["metadata"]["name"].as_str() {
        stored["metadata"]["name"] = json!(name);
    }
    stored
}

#[tokio::test]
async fn a_folder_becomes_a_run_and_its_name_is_printed() {
    let fake = Fake::new(|asked, _| match asked.path.contains("agentpolicies") {
        true => Answer::json(200, &json!({ "spec": { "models": [{ "name": "large" }, { "name": "small" }] } })),
        false => Answer::json(201, &created(&asked.json())),
    })
    .await;
    let dir = folder(&fake, 10);
    let common = ["submit", "--dir", &dir, "-i", "fix it", "--check", "unit=python3 -m unittest"];
    for (more, expected) in [(vec![], "shop-1\n".to_owned()), (vec!["-o", "name"], "agentrun.agentrun.dev/shop-1\n".to_owned())] {
        let ended = fake.run(&[&common[..], &more].concat()).await.with(0);
        assert_eq!(ended.stdout, expected);
    }
    let printed: Value = serde_json::from_str(&fake.run(&[&common[..], &["-o", "json"]].concat()).await.with(0).stdout).expect("JSON");
    assert_eq!(printed["metadata"]["name"], "shop-1");
    let posted = fake.asked().into_iter().find(|asked| asked.method == "POST").expect("a creation");
    assert_eq!(posted.path, format!("{RUNS}?fieldManager=kubectl-agentrun&fieldValidation=Strict"));
    let sent = posted.json();
    assert_eq!(sent["metadata"], json!({ "generateName": "shop-" }));
    assert_eq!(sent["spec"]["model"], "large");
    assert_eq!(sent["spec"]["checks"], json!([{ "name": "unit", "argv": ["python3", "-m", "unittest"] }]));
}

#[tokio::test]
async fn a_larger_folder_is_uploaded_until_it_is_there() {
    let fake = Fake::new(|asked, before| {
        if asked.is("POST", RUNS) {
            Answer::json(201, &created(&asked.json()))
        } else if asked.is("PUT", SOURCE) {
            match before {
                0 => Answer::refusal(404, "not_found", "there is no AgentRun shop-1 in namespace team-a"),
                1 => Answer::text(503, "service unavailable"),
                _ => Answer::json(200, &json!({ "digest": "sha256:0", "bytes": 1, "files": 1 })),
            }
        } else {
            Answer::json(200, &json!({ "kind": "APIResourceList" }))
        }
    })
    .await;
    let dir = folder(&fake, 200_000);
    assert_eq!(fake.run(&["submit", "--dir", &dir, "-i", "x", "--model", "m"]).await.with(0).stdout, "shop-1\n");
    let asked = fake.asked();
    let posted = asked.iter().find(|asked| asked.method == "POST").expect("a creation").json();
    let puts: Vec<_> = asked.iter().filter(|asked| asked.method == "PUT").collect();
    assert_eq!(puts.len(), 3);
    let hex: String = Sha256::digest(&puts[2].body).iter().map(|byte| format!("{byte:02x}")).collect();
    assert_eq!(posted["spec"]["source"], json!({ "archive": { "digest": format!("sha256:{hex}") } }));
    assert_eq!(puts[2].headers["content-type"], "application/x-tar");
    assert!(puts[2].body.len() > 200_000);
}

#[tokio::test]
async fn a_refused_source_says_which_run_waits_for_it() {
    let fake = Fake::new(|asked, _| match asked.method.as_str() {
        "POST" => Answer::json(201, &created(&asked.json())),
        "PUT" => Answer::refusal(422, "invalid_source", "entry a.py: too deep"),
        _ => Answer::json(200, &json!({})),
    })
    .await;
    let dir = folder(&fake, 200_000);
    let ended = fake.run(&["submit", "--dir", &dir, "-i", "x", "--model", "m"]).await.with(3);
    assert_eq!(ended.stdout, "shop-1\n");
    ended.says("entry a.py: too deep").says("kubectl agentrun cancel shop-1");
}

#[tokio::test]
async fn nothing_is_created_where_the_source_could_not_be_uploaded() {
    let fake = Fake::new(|_, _| Answer::text(404, "404 page not found")).await;
    let dir = folder(&fake, 200_000);
    fake.run(&["submit", "--dir", &dir, "-i", "x", "--model", "m"]).await.with(3).says("the gateway is not reachable through the cluster");
    assert!(fake.asked().iter().all(|asked| asked.method == "GET"));
}

#[tokio::test]
async fn the_same_key_gives_the_same_run() {
    let store: std::sync::Arc<std::sync::Mutex<Option<Value>>> = std::sync::Arc::default();
    let stored = store.clone();
    let fake = Fake::new(move |asked, before| {
        let mut store = stored.lock().expect("no panic");
        match (asked.method.as_str(), &*store) {
            // The answer to the first creation is lost.
            ("POST", None) => {
                *store = Some(created(&asked.json()));
                Answer::text(503, "service unavailable")
            }
            ("POST", Some(_)) => Answer::status(409, "AlreadyExists", "agentruns \"x\" already exists"),
            (_, Some(run)) if asked.path.contains("/log") => {
                let _ = (run, before);
                Answer::text(200, event(1, "end", &json!({ "phase": "Failed", "reason": "ChecksFailed" })))
            }
            (_, Some(run)) => {
                let mut run = run.clone();
                run["status"] = ended("Failed", "ChecksFailed");
                Answer::json(200, &run)
            }
            (_, None) => Answer::status(404, "NotFound", "not found"),
        }
    })
    .await;
    let dir = folder(&fake, 10);
    let submit = |text: &'static str, more: &'static [&'static str]| {
        let line: Vec<&str> = ["submit", "--dir", &dir, "-i", text, "--model", "m", "--idempotency-key", "build-7"]
            .into_iter()
            .chain(more.iter().copied())
            .collect();
        let line: Vec<String> = line.into_iter().map(String::from).collect();
        let fake = &fake;
        async move { fake.run(&line.iter().map(String::as_str).collect::<Vec<_>>()).await }
    };
    let first = submit("x", &[]).await.with(0).stdout;
    assert!(first.starts_with("shop-"), "{first}");
    assert_eq!(submit("x", &[]).await.with(0).stdout, first);
    // As if it had been submitted now.
    assert!(submit("x", &["--follow"]).await.with(4).stdout.starts_with(&first));
    submit("x", &["--wait"]).await.with(4);
    submit("another task", &[]).await.with(3).says("another key or another spec");
    let names: std::collections::BTreeSet<String> =
        fake.asked().iter().filter(|asked| asked.method == "POST").map(|asked| asked.json()["metadata"]["name"].to_string()).collect();
    assert_eq!(names.len(), 1);
}

#[tokio::test]
async fn without_a_key_a_creation_is_not_repeated() {
    let fake = Fake::new(|_, _| Answer::text(503, "service unavailable")).await;
    let dir = folder(&fake, 10);
    fake.run(&["submit", "--dir", &dir, "-i", "x", "--model", "m"]).await.with(3);
    assert_eq!(fake.asked().len(), 1);
}

#[tokio::test]
async fn refusals_of_the_api_server_name_the_fields() {
    let fake = Fake::new(|_, _| {
        Answer::json(
            422,
            &json!({ "kind": "Status", "reason": "Invalid", "message": "AgentRun \"x\" is invalid", "details": { "causes": [
                { "field": "spec.model", "message": "too long\u{1b}[2J" }, { "field": "spec.checks[0].name", "message": "not a label" },
            ] } }),
        )
    })
    .await;
    let dir = folder(&fake, 10);
    let ended = fake.run(&["submit", "--dir", &dir, "-i", "x", "--model", "m"]).await.with(3);
    let ended = ended.says("spec.model: too long\\u{1b}[2J").says("spec.checks[0].name: not a label");
    assert_eq!(ended.stdout, "");
    let fake = Fake::new(|_, _| Answer::status(404, "NotFound", "the server could not find the requested resource")).await;
    let dir = folder(&fake, 10);
    fake.run(&["submit", "--dir", &dir, "-i", "x", "--model", "m"]).await.with(3).says("AgentRun is not installed in this cluster");
}

#[tokio::test]
async fn what_is_wrong_here_is_not_sent() {
    let fake = Fake::new(|_, _| Answer::text(500, "")).await;
    let dir = folder(&fake, 10);
    std::os::unix::fs::symlink("/etc/passwd", fake.path("shop/out")).expect("linked");
    fake.run(&["submit", "--dir", &dir, "-i", "x", "--model", "m"]).await.with(2).says("out: is a symbolic link that leads out");
    fake.run(&["submit", "--dir", &dir]).await.with(2);
    fake.run(&["submit", "-f", "/none.yaml"]).await.with(2).says("/none.yaml");
    fake.run(&["submit", "--no-such-flag"]).await.with(2);
    fake.run(&["watch", "Not/AName"]).await.with(2).says("is not the name of a run");
    fake.run(&["watch", "@newest"]).await.with(2).says("there is no alias");
    assert!(fake.asked().is_empty());
}

#[tokio::test]
async fn a_dry_run_creates_nothing() {
    let fake = Fake::new(|asked, _| Answer::json(201, &created(&asked.json()))).await;
    let dir = folder(&fake, 10);
    let line = ["submit", "--dir", &dir, "-i", "x", "--model", "m"];
    let printed = fake.run(&[&line[..], &["--dry-run=client"]].concat()).await.with(0).stdout;
    assert!(fake.asked().is_empty());
    // What is printed is what -f takes.
    std::fs::write(fake.path("run.yaml"), &printed).expect("written");
    let again = fake.run(&["submit", "-f", "run.yaml", "--dry-run=client"]).await.with(0).stdout;
    assert_eq!(again, printed);
    fake.run(&[&line[..], &["--dry-run"]].concat()).await.with(0);
    assert!(fake.asked()[0].path.ends_with("&dryRun=All"));
}
