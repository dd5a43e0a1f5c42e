//! A run from a private repository behind TLS: the gateway fetches it once, the runner is given just that, and the patch applies to
//! the commit. The commit stays, also across a crash, and the API server keeps anybody from changing it.

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use agentrun_crds::agent_policy::{Addresses, LeftOut};
use agentrun_crds::agent_run::GitSource;
use agentrun_crds::agent_run_status::{ResolvedGit, StoredSource};
use agentrun_crds::names;
use agentrun_e2e::gateways::{Bed, Gateway, LiveRun};
use agentrun_e2e::node::{Within, until};
use agentrun_gateway::serve::{Listener, Stop, bind};
use agentrun_protocol::token::Audience;
use agentrun_scripted_model::git_host::{GitHost, git};
use agentrun_scripted_model::{Script, Turn};
use anyhow::{Context, Result, ensure};
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::Secret;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::Api;
use kube::api::PostParams;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use serde_json::{Value, json};

const KEY: &str = "gw-t1-s3cr3t";
/// `git:gw-t1-s3cr3t`
const AUTHORIZATION: &str = "Basic Z2l0Omd3LXQxLXMzY3IzdA==";

/// `private/shop.git` with `services/shop/{a.txt,run.sh}` on `main`; the work tree is beside it.
fn repository(root: &Path) -> Result<String> {
    let work = root.join("work");
    std::fs::create_dir_all(work.join("services/shop"))?;
    git(&work, &["init", "--quiet"]);
    std::fs::write(work.join("services/shop/a.txt"), "one\r\ntwo\r\n")?;
    std::fs::write(work.join("services/shop/b.txt"), "b\n")?;
    git(&work, &["add", "."]);
    git(&work, &["commit", "--quiet", "--message=base"]);
    std::fs::create_dir(root.join("private"))?;
    git(root, &["clone", "--quiet", "--bare", "work", "private/shop.git"]);
    Ok(git(&work, &["rev-parse", "HEAD"]))
}

/// Serve beneath TLS, and put authority and credential into Secret `git` of the runs' namespace.
async fn serve(bed: &Bed, host: &GitHost, stop: &Stop) -> Result<String> {
    let key = rcgen::generate_simple_self_signed(vec!["localhost".into()])?;
    let private = PrivateKeyDer::try_from(key.signing_key.serialize_der()).map_err(|error| anyhow::anyhow!(error))?;
    let tls = rustls::ServerConfig::builder()
        .with_no_client_auth()
        .with_single_cert(vec![CertificateDer::from(key.cert.der().to_vec())], private)?;
    let tcp = bind("git", ([127, 0, 0, 1], 0).into()).await?;
    let url = format!("https://localhost:{}", tcp.local_addr()?.port());
    let listener = Listener { name: "git", tcp, tls: Some(Arc::new(tls)), router: host.router(), max_connections: 64 };
    tokio::spawn(listener.serve(stop.clone()));
    let secret = Secret {
        metadata: ObjectMeta { name: Some("git".into()), ..ObjectMeta::default() },
        string_data: Some([("password".to_owned(), KEY.to_owned()), ("ca.crt".to_owned(), key.cert.pem())].into()),
        ..Secret::default()
    };
    Api::<Secret>::namespaced(bed.client.clone(), &bed.team).create(&PostParams::default(), &secret).await?;
    Ok(url)
}

fn how(secret: &str) -> ResolvedGit {
    ResolvedGit {
        secret: Some(secret.into()),
        addresses: Addresses::Private,
        max_bytes: 1 << 20,
        timeout_seconds: 30,
        symlinks: LeftOut::Refuse,
        submodules: LeftOut::Refuse,
    }
}

async fn decided(bed: &Bed, name: &str) -> Result<Result<StoredSource, String>> {
    let begun = Instant::now();
    loop {
        let status = bed.get(name).await?.status.context("a status")?;
        if let Some(source) = status.source {
            return Ok(Ok(source));
        }
        if let Some(failure) = status.source_failure {
            return Ok(Err(failure.message));
        }
        ensure!(begun.elapsed() < Duration::from_secs(60), "the gateway decided nothing about {name}");
        tokio::time::sleep(Duration::from_millis(50)).await; // a status can only be polled here
    }
}

/// How many fetches have begun.
fn fetches(host: &GitHost) -> usize {
    host.seen().iter().filter(|line| line.starts_with("GET")).count()
}

/// Which of the gateways holds the lease.
async fn leader(bed: &Bed) -> Result<String> {
    let leases: Api<Lease> = Api::namespaced(bed.client.clone(), &bed.system);
    let held = |lease: &Lease| lease.spec.as_ref().is_some_and(|spec| spec.holder_identity.is_some());
    let lease = until(&leases, names::GATEWAY, Within::Medium, "a gateway leads", held).await?;
    lease.spec.and_then(|spec| spec.holder_identity).context("a leader")
}

async fn sandbox(bed: &Bed, gateway: &Gateway, run: &LiveRun, path: &str) -> Result<reqwest::Response> {
    let token = bed.token(run, Audience::Events);
    loop {
        let answer = gateway.http.get(format!("{}{path}", gateway.url)).bearer_auth(&token).send().await?;
        // As a runner does: the gateway that is asked may not have seen yet that the source is there.
        if answer.status() != 503 {
            return Ok(answer.error_for_status()?);
        }
        tokio::time::sleep(std::time::Duration::from_millis(50)).await; // only asking tells
    }
}

#[tokio::test]
async fn a_private_commit_becomes_a_patch_that_applies_to_it() -> Result<()> {
    // Another test's gateway follows the same cluster, and would fetch into a store of its own.
    let _turn = super::turn::alone().await;
    let _ = rustls::crypto::aws_lc_rs::default_provider().install_default();
    let root = tempfile::tempdir()?;
    let commit = repository(root.path())?;
    let bed = Bed::start(Script::new("", [Turn::say("ok")])).await?;
    let (host, stop) = (GitHost::new(root.path(), AUTHORIZATION), Stop::default());
    let url = format!("{}/private/shop.git", serve(&bed, &host, &stop).await?);
    let source = |reference: &str| GitSource { url: url.clone(), reference: reference.into(), sub_path: Some("services/shop".into()) };
    let run = bed.run_from_git("fix", source("main"), how("git")).await?;
    let gateway = bed.gateway("gateway-0").await?;

    let fetched = decided(&bed, "fix").await?.map_err(anyhow::Error::msg)?;
    let named = fetched.git.clone().context("a commit")?;
    assert_eq!(named.commit, commit);
    assert_eq!(named.tree, git(&root.path().join("work"), &["rev-parse", "HEAD:services/shop"]));
    let job: Value = sandbox(&bed, &gateway, &run, "/sandbox/v1/job").await?.json().await?;
    assert_eq!((&job["archive"], &job["tree"]), (&json!(fetched.digest), &json!(named.staged_tree)));
    let archive = sandbox(&bed, &gateway, &run, "/sandbox/v1/source").await?.bytes().await?;
    assert_eq!(archive.len() as i64, fetched.bytes);

    // The branch goes on; the run does not, and nobody can move it.
    std::fs::write(root.path().join("work/services/shop/a.txt"), "else\n")?;
    git(&root.path().join("work"), &["commit", "--quiet", "--all", "--message=on"]);
    git(&root.path().join("work"), &["push", "--quiet", "../private/shop.git", "main"]);
    let moved = bed.patch_status("fix", json!({"source": {"git": {"commit": "0".repeat(40)}}})).await;
    ensure!(moved.is_err_and(|error| format!("{error:#}").contains("is written once")), "a source was changed");

    // What the sandbox does with it.
    let content = b"one\r\n2\r\n".to_vec();
    let digest = agentrun_gateway::store::Digest::of(&content).to_string();
    let before = agentrun_gateway::store::Digest::of(b"one\r\ntwo\r\n").to_string();
    let token = bed.token(&run, Audience::Events);
    let put = gateway.http.put(format!("{}/sandbox/v1/blobs/{digest}", gateway.url)).bearer_auth(&token).body(content.clone());
    ensure!(put.send().await?.status().is_success(), "the blob was not taken");
    let result = json!({
        "runUid": run.uid, "attempt": 1, "outcome": "done", "message": "fixed", "steps": 1, "manifestComplete": true, "checks": [],
        "changes": [{"path": "a.txt", "before": {"digest": before, "mode": 644}, "after": {"digest": digest, "mode": 644}}],
    });
    let judged: Value =
        gateway.http.post(format!("{}/sandbox/v1/result", gateway.url)).bearer_auth(&token).json(&result).send().await?.json().await?;
    assert_eq!(judged["verdict"], "Succeeded", "{judged}");
    let reader = bed.reader("reader").await?;
    let patch = gateway.http.get(format!("{}/v1/namespaces/{}/runs/fix/patch", gateway.people_url, bed.team)).bearer_auth(reader);
    let patch = patch.send().await?.bytes().await?;
    let clone = tempfile::tempdir()?;
    git(clone.path(), &["clone", "--quiet", root.path().join("work").to_str().context("a path")?, "."]);
    git(clone.path(), &["checkout", "--quiet", &commit]);
    std::fs::write(clone.path().join("fix.patch"), &patch)?;
    git(clone.path(), &["apply", "fix.patch"]);
    assert_eq!(std::fs::read(clone.path().join("services/shop/a.txt"))?, content);

    // A branch that is not there: a reason, without the key.
    bed.run_from_git("gone", source("gone"), how("git")).await?;
    let why = decided(&bed, "gone").await?.expect_err("no such branch");
    ensure!(why.contains("no branch and no tag gone"), "{why}");
    let log = gateway.log();
    ensure!(!log.contains(KEY) && !log.contains(AUTHORIZATION) && log.contains(&commit), "the log: {log}");
    assert_eq!(fetches(&host), 2, "each run's source is asked for once: {:?}", host.seen());

    // A gateway that was killed begins again what it had not finished, and nothing that it had.
    drop(gateway);
    bed.run_from_git("later", source(&commit), how("git")).await?;
    let _gateway = bed.gateway("gateway-0").await?;
    let later = decided(&bed, "later").await?.map_err(anyhow::Error::msg)?;
    assert_eq!(later.digest, fetched.digest, "the same commit gives the same archive");
    assert_eq!(fetches(&host), 3, "{:?}", host.seen());
    stop.now.cancel();
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn of_two_gateways_one_fetches_and_the_other_takes_over() -> Result<()> {
    let _turn = super::turn::alone().await;
    let _ = rustls::crypto::aws_lc_rs::default_provider().install_default();
    let root = tempfile::tempdir()?;
    repository(root.path())?;
    let bed = Bed::start(Script::new("", [Turn::say("ok")])).await?;
    let (host, stop) = (GitHost::new(root.path(), AUTHORIZATION), Stop::default());
    let url = format!("{}/private/shop.git", serve(&bed, &host, &stop).await?);
    let source = || GitSource { url: url.clone(), reference: "main".into(), sub_path: None };
    let mut gateways = [("a", bed.gateway("a").await?), ("b", bed.gateway("b").await?)];
    for name in ["one", "two", "three"] {
        bed.run_from_git(name, source(), how("git")).await?;
    }
    for name in ["one", "two", "three"] {
        decided(&bed, name).await?.map_err(anyhow::Error::msg)?;
    }
    assert_eq!(fetches(&host), 3, "each source once: {:?}", host.seen());

    // Killed in the middle of a fetch.
    host.hold(true);
    bed.run_from_git("four", source(), how("git")).await?;
    let begun = Instant::now();
    while fetches(&host) < 4 {
        ensure!(begun.elapsed() < Duration::from_secs(20), "nobody fetches");
        tokio::time::sleep(Duration::from_millis(20)).await; // what the server has seen can only be polled
    }
    let killed = leader(&bed).await?;
    for (_, gateway) in gateways.iter_mut().filter(|(instance, _)| bed.full_name(instance) == killed) {
        gateway.crash()?;
    }
    host.hold(false);
    decided(&bed, "four").await?.map_err(anyhow::Error::msg)?;
    ensure!(leader(&bed).await? != killed, "nobody has taken over");
    assert_eq!(fetches(&host), 5, "once by the one that was killed, once by its successor: {:?}", host.seen());
    stop.now.cancel();
    Ok(())
}
