//! A process that appends is killed with SIGKILL; every event that it had acknowledged is there afterwards, and the log is
//! dense. The child is this test binary, started again.

use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};

use agentrun_protocol::event::EventType;
use serde_json::json;

use super::*;
use crate::store::{ArtifactStore, Digest, EventStore, NewRecord, Origin, PageLimit, RunRef, put};

const FOLDER: &str = "AGENTRUN_TEST_CRASH_FOLDER";
const RUNS: usize = 4;

fn run(n: usize) -> RunRef {
    RunRef { uid: format!("run-{n}"), namespace: "n".into(), name: format!("r{n}") }
}

fn open(folder: &Path) -> Embedded {
    Embedded::open(folder, Quotas::default(), Limits::default(), Clock::system()).expect("open")
}

/// The child: appends and uploads until it is killed, and prints what was acknowledged. Without the variable it is nobody's
/// child and does nothing.
#[test]
fn child_of_the_crash_test() {
    let Some(folder) = std::env::var_os(FOLDER) else { return };
    let runtime = tokio::runtime::Runtime::new().expect("runtime");
    runtime.block_on(async {
        let store = Arc::new(open(Path::new(&folder)));
        let tasks: Vec<_> = (0..RUNS)
            .map(|n| {
                let store = store.clone();
                tokio::spawn(async move {
                    let from = store.state(&run(n).uid).await.expect("state").unwrap_or_default().last;
                    for key in from.. {
                        let records = vec![NewRecord::new(key.to_string(), EventType::Phase, &json!({"text": "x".repeat(500)}))];
                        let seqs = store.append(&run(n), 1, Origin::Gateway, records).await.expect("appended");
                        println!("event {n} {key} {}", seqs[0]);
                        if key % 8 == 0 {
                            let content = format!("{n}-{key}").into_bytes();
                            let digest = put(&*store, &run(n), Origin::Sandbox, content).await.expect("stored");
                            println!("blob {n} {digest} -");
                        }
                    }
                })
            })
            .collect();
        futures::future::join_all(tasks).await;
    });
}

#[test]
fn what_was_acknowledged_survives_sigkill() {
    let folder = tempfile::tempdir().expect("folder");
    let mut acknowledged: Vec<(usize, String, String)> = Vec::new();
    for round in 0..3 {
        let mut child = Command::new(std::env::current_exe().expect("this binary"))
            .args(["--exact", "store::embedded::crash::child_of_the_crash_test", "--nocapture"])
            .env(FOLDER, folder.path())
            .stdout(Stdio::piped())
            .spawn()
            .expect("child");
        let mut lines = BufReader::new(child.stdout.take().expect("piped")).lines();
        let mut count = 0;
        while count < 150 + 37 * round {
            let line = lines.next().expect("the child goes on until it is killed").expect("UTF-8");
            count += remember(&line, &mut acknowledged);
        }
        child.kill().expect("killed");
        // What it had printed before it died was acknowledged too; its last line may be cut.
        let rest: Vec<String> = lines.map_while(Result::ok).collect();
        for line in &rest[..rest.len().saturating_sub(1)] {
            remember(line, &mut acknowledged);
        }
        child.wait().expect("reaped");
        verify(folder.path(), &acknowledged);
    }
}

fn remember(line: &str, acknowledged: &mut Vec<(usize, String, String)>) -> usize {
    let parts: Vec<&str> = line.split(' ').collect();
    match parts[..] {
        ["event" | "blob", n, what, seq] => {
            acknowledged.push((n.parse().expect("run"), what.into(), seq.into()));
            1
        }
        _ => 0,
    }
}

fn verify(folder: &Path, acknowledged: &[(usize, String, String)]) {
    let runtime = tokio::runtime::Runtime::new().expect("runtime");
    runtime.block_on(async {
        let store = open(folder);
        let mut counts = Vec::new();
        for n in 0..RUNS {
            let page = store.read(&run(n).uid, 0, PageLimit { events: 1_000_000, bytes: usize::MAX }).await.expect("read");
            let seqs: Vec<i64> = page.records.iter().map(|record| record.seq).collect();
            assert_eq!(seqs, (1..=page.last).collect::<Vec<i64>>(), "dense");
            counts.push(page.last);
        }
        for (n, what, seq) in acknowledged {
            if let Ok(seq) = seq.parse::<i64>() {
                assert!(seq <= counts[*n], "event {seq} of run {n} was acknowledged and is gone");
                let record = NewRecord::new(what.clone(), EventType::Phase, &json!({"text": "x".repeat(500)}));
                assert_eq!(store.append(&run(*n), 1, Origin::Gateway, vec![record]).await, Ok(vec![seq]), "its key has its number");
            } else {
                let digest = Digest::parse(what).expect("digest");
                let blob = store.open(&run(*n).uid, digest).await.expect("open").expect("acknowledged blobs are there");
                blob.read(digest).await.expect("sound");
            }
        }
    });
}
