//! Approvals, cancelling, results, and the other verbs on the wire.

use serde_json::{Value, json};

use crate::fake::{Answer, Fake, ended, event, run};

fn view(id: i64, state: &str) -> Value {
    json!({
        "id": id, "state": state, "kind": "run_command", "summary": "rm -rf build", "digest": "d1", "shownTruncated": false,
        "requestedAt": "2026-01-01T00:00:00Z", "expiresAt": "2126-01-01T00:00:00Z", "shown": "rm -rf build\u{202e}\n",
    })
}

#[tokio::test]
async fn what_waits_is_listed_over_all_runs_that_wait() {
    let fake = Fake::new(|asked, _| {
        if asked.path.starts_with("/apis/agentrun.dev") {
            let mut elsewhere = run("two", json!({ "pendingApprovals": 1 }));
            elsewhere["metadata"]["namespace"] = json!("team-b");
            let items = [run("one", json!({ "pendingApprovals": 1 })), run("busy", json!({ "phase": "Running" })), elsewhere];
            Answer::json(200, &json!({ "items": items }))
        } else {
            Answer::json(200, &json!({ "approvals": [view(3, "pending"), view(2, "denied")] }))
        }
    })
    .await;
    let ended = fake.run(&["approvals", "-A"]).await.with(0);
    assert!(ended.stdout.contains("team-a/one 3  run_command  waits for "), "{}", ended.stdout);
    assert!(ended.stdout.contains("│ rm -rf build\\u{202e}\n"), "{}", ended.stdout);
    assert!(ended.stdout.contains("kubectl agentrun approve -n team-b two 3"), "{}", ended.stdout);
    assert!(!ended.stdout.contains("denied") && !ended.stdout.contains("busy"));
    let json: Value = serde_json::from_str(&fake.run(&["approvals", "-A", "-o", "json"]).await.with(0).stdout).expect("JSON");
    assert_eq!(json["approvals"].as_array().map(Vec::len), Some(2));
    assert_eq!(json["approvals"][0]["shown"], "rm -rf build\u{202e}\n");
}

#[tokio::test]
async fn a_decision_is_bound_to_what_was_shown() {
    let fake = Fake::new(|asked, before| match asked.method.as_str() {
        // Repeated while nobody answers.
        "POST" if before == 0 => Answer::text(503, "service unavailable"),
        "POST" => Answer::json(200, &view(3, "allowed")),
        _ => Answer::json(200, &view(3, "pending")),
    })
    .await;
    let ended = fake.run(&["approve", "r", "3", "--session", "--reason", "fine"]).await.with(0);
    assert!(ended.stdout.contains("│ rm -rf build\\u{202e}\n"), "{}", ended.stdout);
    let posted = fake.asked().into_iter().rfind(|asked| asked.method == "POST").expect("a decision");
    assert_eq!(posted.json(), json!({ "decision": "allow_session", "digest": "d1", "reason": "fine" }));
    assert_eq!(posted.path, "/apis/run.agentrun.dev/v1alpha1/namespaces/team-a/agentruns/r/approvals/3");
    for (line, decision) in
        [(vec!["approve", "r", "3"], "allow_once"), (vec!["deny", "r", "3"], "deny"), (vec!["deny", "r", "3", "--cancel"], "cancel")]
    {
        fake.run(&line).await.with(0);
        assert_eq!(fake.asked().last().expect("a decision").json()["decision"], decision);
    }
    let before = fake.asked().len();
    fake.run(&["approve", "r", "3", "--digest", "d2"]).await.with(1).says("digest_mismatch");
    fake.run(&["deny", "r", "3", "--reason", &"x".repeat(257)]).await.with(2).says("at most 256");
    assert!(fake.asked()[before..].iter().all(|asked| asked.method == "GET"));
}

#[tokio::test]
async fn a_lost_decision_says_what_it_became() {
    for (status, code, message, exit) in [
        (409, "already_decided", "approval 3 was denied by bob", 1),
        (409, "approval_expired", "approval 3 has expired", 1),
        (404, "not_found", "there is no approval 3", 3),
        (403, "own_run", "who submitted a run may not decide on it", 3),
    ] {
        let fake = Fake::new(move |asked, _| match asked.method.as_str() {
            "POST" => Answer::refusal(status, code, message),
            _ => Answer::json(200, &view(3, "pending")),
        })
        .await;
        fake.run(&["approve", "r", "3"]).await.with(exit).says(message);
    }
}

#[tokio::test]
async fn cancelling_asks_once_and_says_who_came_first() {
    let fake = Fake::new(|asked, _| match asked.method.as_str() {
        "PATCH" => Answer::json(200, &run("r", json!({ "phase": "Running" }))),
        _ => Answer::json(200, &run("r", json!({ "phase": "Running" }))),
    })
    .await;
    assert_eq!(fake.run(&["cancel", "r"]).await.with(0).stdout, "r: asked to end\n");
    let patch = fake.asked().into_iter().find(|asked| asked.method == "PATCH").expect("a patch");
    assert_eq!(
        (patch.json(), patch.headers["content-type"].to_str().expect("text")),
        (json!({ "metadata": { "resourceVersion": "7" }, "spec": { "cancel": true } }), "application/merge-patch+json")
    );
    // Completed before, and completed in between: what was written is not what was read.
    let between = std::sync::atomic::AtomicBool::new(false);
    let fake = Fake::new(move |asked, _| match asked.method.as_str() {
        "PATCH" => {
            between.store(true, std::sync::atomic::Ordering::SeqCst);
            Answer::status(409, "Conflict", "the object has been modified")
        }
        _ if between.load(std::sync::atomic::Ordering::SeqCst) => Answer::json(200, &run("r", ended("Succeeded", "Succeeded"))),
        _ => Answer::json(200, &run("r", json!({ "phase": "Running" }))),
    })
    .await;
    fake.run(&["cancel", "r"]).await.with(1).says("already_completed: r has ended as Succeeded");
    let result = json!({ "attempt": 1, "verdict": "Succeeded", "message": "", "changedFiles": 0, "steps": 1 });
    for (status, said) in [
        (ended("Succeeded", "Succeeded"), "already_completed: r has ended as Succeeded"),
        (json!({ "phase": "Running", "attempt": 1, "result": result }), "already_completed: r has its result, and ends"),
    ] {
        let fake = Fake::new(move |_, _| Answer::json(200, &run("r", status.clone()))).await;
        fake.run(&["cancel", "r"]).await.with(1).says(said);
        assert!(fake.asked().iter().all(|asked| asked.method != "PATCH"));
    }
    let fake = Fake::new(|_, _| Answer::json(200, &run("r", ended("Cancelled", "Cancelled")))).await;
    fake.run(&["cancel", "r"]).await.with(0);
}

#[tokio::test]
async fn a_patch_goes_into_a_pipe_as_it_is() {
    let patch = b"diff --git a/x b/x\n--- a/x\n+++ b/x\n@@ -1 +1 @@\n-a\r\n+\x1b[31mb\xff\n";
    let fake = Fake::new(|asked, _| {
        assert!(asked.path.ends_with("/agentruns/r/patch"));
        Answer::text(200, patch.to_vec())
    })
    .await;
    let output = fake.command(&["patch", "r"]).output().await.expect("it runs");
    assert_eq!(output.stdout, patch);
    let diff = fake.run(&["diff", "r"]).await.with(0).stdout;
    assert_eq!(diff, "diff --git a/x b/x\n--- a/x\n+++ b/x\n@@ -1 +1 @@\n-a\\r\n+\\u{1b}[31mb\u{fffd}\n");
    let colored = fake.run(&["diff", "r", "--color", "always"]).await.with(0).stdout;
    assert!(colored.contains("\u{1b}[31m-a\\r\u{1b}[0m"), "{colored:?}");
    let fake = Fake::new(|_, _| Answer::refusal(404, "no_patch", "the run has not ended")).await;
    fake.run(&["patch", "r"]).await.with(1).says("the run has not ended").says("kubectl agentrun why r");
}

#[tokio::test]
async fn an_artifact_is_what_was_listed_or_nothing() {
    let digest = "sha256:2cf24dba5fb0a30e26e83b2ac5b9e29e1b161e5c1fa7425e73043362938b9824";
    let fake = Fake::new(move |asked, _| match asked.path.ends_with("/artifacts") {
        true => Answer::json(
            200,
            &json!({ "artifacts": [
                { "name": "report.txt", "digest": digest, "bytes": 5 },
                { "name": "../../evil", "digest": digest, "bytes": 5 },
                { "name": "forged", "digest": format!("sha256:{}", "0".repeat(64)), "bytes": 5 },
            ] }),
        ),
        false => Answer::text(200, "hello"),
    })
    .await;
    assert!(fake.run(&["artifacts", "r"]).await.with(0).stdout.contains("report.txt   5       sha256:2cf2"));
    assert_eq!(fake.run(&["artifacts", "r", "--get", "report.txt", "-O", "out"]).await.with(0).stdout, "out/report.txt\n");
    assert_eq!(std::fs::read_to_string(fake.path("out/report.txt")).expect("written"), "hello");
    fake.run(&["artifacts", "r", "--get", "report.txt", "-O", "out"]).await.with(1).says("--force");
    assert_eq!(fake.run(&["artifacts", "r", "--get", digest, "-O", "-"]).await.with(0).stdout, "hello");
    let unnamed = "sha256:486ea46224d1bb4fb680f34f7c9ad96a8f24ec88be73ea8e5a6c65260e9cb8a7";
    fake.run(&["artifacts", "r", "--get", unnamed]).await.with(1).says("is not what was listed: sha256:2cf24");
    fake.run(&["artifacts", "r", "--get", "../../evil"]).await.with(1).says("has an empty component, '.' or '..'");
    fake.run(&["artifacts", "r", "--get", "forged"]).await.with(1).says("is not what was listed");
    fake.run(&["artifacts", "r", "--get", "none"]).await.with(3).says("has no artifact");
    assert!(!fake.path("forged").exists());
}

#[tokio::test]
async fn latest_and_mine_are_found() {
    let fake = Fake::new(|asked, _| {
        if asked.path.contains("selfsubjectreviews") {
            return Answer::json(201, &json!({ "status": { "userInfo": { "username": "alice" } } }));
        }
        if asked.path.contains("limit=") {
            let mut mine = run("mine", json!({}));
            mine["spec"]["submittedBy"] = json!("alice");
            let mut latest = run("latest", json!({}));
            latest["metadata"]["creationTimestamp"] = json!("2026-01-02T00:00:00Z");
            // Two pages.
            return match asked.path.contains("continue=next") {
                false => Answer::json(200, &json!({ "metadata": { "continue": "next" }, "items": [latest] })),
                true => Answer::json(200, &json!({ "metadata": {}, "items": [mine] })),
            };
        }
        Answer::text(200, event(1, "step", &json!({ "step": 1, "maxSteps": 2 })))
    })
    .await;
    for (alias, name) in [("@latest", "latest"), ("@mine", "mine")] {
        fake.run(&["logs", alias]).await.with(0);
        assert!(fake.asked().last().expect("asked").path.contains(&format!("/agentruns/{name}/events")), "{alias}");
    }
}

#[tokio::test]
async fn lists_have_forms() {
    let fake = Fake::new(|_, _| {
        let mut one = run("one", ended("Failed", "ChecksFailed"));
        one["status"]["requestsText"] = json!("2/10");
        Answer::json(200, &json!({ "metadata": {}, "items": [one] }))
    })
    .await;
    let table = fake.run(&["list"]).await.with(0).stdout;
    let words: Vec<Vec<&str>> = table.lines().map(|line| line.split_whitespace().collect()).collect();
    assert_eq!(words[0], ["NAME", "PHASE", "MODEL", "REQUESTS", "COST", "APPROVALS", "REASON", "AGE"]);
    assert_eq!(words[1][..5], ["one", "Failed", "small", "2/10", "ChecksFailed"]);
    assert_eq!(fake.run(&["list", "-o", "name"]).await.with(0).stdout, "agentrun.agentrun.dev/one\n");
    let json: Value = serde_json::from_str(&fake.run(&["list", "-o", "json"]).await.with(0).stdout).expect("JSON");
    assert_eq!(json["items"][0]["metadata"]["name"], "one");
    assert!(fake.run(&["list", "-A"]).await.with(0).stdout.starts_with("NAMESPACE"));
    assert!(fake.asked().last().expect("asked").path.starts_with("/apis/agentrun.dev/v1alpha1/agentruns?"));
    fake.run(&["list", "-n", "team-b", "-l", "a in (b)"]).await.with(0);
    let last = fake.asked().pop().expect("asked").path;
    assert!(last.starts_with("/apis/agentrun.dev/v1alpha1/namespaces/team-b/agentruns?limit=100&labelSelector=a%20in%20%28b%29"), "{last}");
    fake.run(&["list", "--context", "other"]).await.with(0);
    assert!(fake.asked().last().expect("asked").path.contains("/namespaces/default/"));
}

#[tokio::test]
async fn why_tells_the_story_also_without_a_gateway() {
    let fake = Fake::new(|asked, _| match asked.path.starts_with("/apis/agentrun.dev") {
        true => Answer::json(200, &run("r", ended("Failed", "ChecksFailed"))),
        false => Answer::text(404, "404 page not found"),
    })
    .await;
    let ended = fake.run(&["why", "r"]).await.with(0);
    for part in
        ["Ended     Failed, ChecksFailed", "Fault     the agent's", "Next      Read what the check printed (kubectl agentrun logs r)"]
    {
        assert!(ended.stdout.contains(part), "{}", ended.stdout);
    }
    ended.says("the gateway is not reachable");
}

#[tokio::test]
async fn a_run_is_submitted_again_without_what_was_its_own() {
    let fake = Fake::new(|asked, _| match asked.method.as_str() {
        "POST" => Answer::json(201, &run("r-x", json!({}))),
        _ => {
            let mut old = run("r", ended("Cancelled", "Cancelled"));
            old["spec"]["cancel"] = json!(true);
            Answer::json(200, &old)
        }
    })
    .await;
    assert_eq!(fake.run(&["rerun", "r"]).await.with(0).stdout, "r-x\n");
    let sent = fake.asked().pop().expect("a creation").json();
    assert_eq!((sent["metadata"].clone(), sent["spec"]["cancel"].clone()), (json!({ "generateName": "r-" }), Value::Null));
}

#[tokio::test]
async fn the_doctor_says_what_is_wrong_and_what_to_do() {
    let answer = |asked: &crate::fake::Asked, healthy: bool| {
        let path = asked.path.as_str();
        let policy = json!({
            "apiVersion": "agentrun.dev/v1alpha1", "kind": "AgentPolicy", "metadata": { "name": "default" },
            "spec": { "models": [{ "name": "small", "provider": "p", "model": "m" }], "images": [] },
        });
        match path {
            "/version" => Answer::json(200, &json!({ "gitVersion": "v1.36.0" })),
            "/apis/agentrun.dev/v1alpha1" => {
                let resources: Vec<Value> = ["agentruns", "agentpolicies", "modelproviders", "agentrunrecords"]
                    .map(|name| json!({ "name": name, "singularName": "", "namespaced": true, "kind": "K", "verbs": [] }))
                    .to_vec();
                Answer::json(200, &json!({ "groupVersion": "agentrun.dev/v1alpha1", "resources": resources }))
            }
            "/apis/run.agentrun.dev/v1alpha1" if healthy => Answer::json(200, &json!({})),
            "/apis/run.agentrun.dev/v1alpha1" => Answer::text(404, "404 page not found"),
            _ if path.contains("agentpolicies") && healthy => Answer::json(200, &policy),
            _ if path.contains("agentpolicies") => Answer::status(404, "NotFound", "not found"),
            _ if path.contains("modelproviders") => Answer::status(403, "Forbidden", "no"),
            _ if path.contains("selfsubjectaccessreviews") => {
                let verb = asked.json()["spec"]["resourceAttributes"]["verb"].clone();
                Answer::json(201, &json!({ "status": { "allowed": healthy && verb != "approve" } }))
            }
            _ => Answer::text(500, "unexpected"),
        }
    };
    let fake = Fake::new(move |asked, _| answer(asked, true)).await;
    let ended = fake.run(&["doctor"]).await.with(0);
    assert!(!ended.stdout.contains("wrong"), "{}", ended.stdout);
    assert!(ended.stdout.contains("?     you may not approve agentruns.agentrun.dev in team-a"), "{}", ended.stdout);
    let fake = Fake::new(move |asked, _| answer(asked, false)).await;
    let ended = fake.run(&["doctor"]).await.with(1);
    for part in [
        "wrong the gateway is not reachable through the cluster",
        "wrong namespace team-a has no AgentPolicy",
        "wrong you may not get agentruns.agentrun.dev",
        "?     you may not create agentruns.agentrun.dev",
    ] {
        assert!(ended.stdout.contains(part), "{}", ended.stdout);
    }
}
