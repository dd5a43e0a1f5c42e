//! A run's source archive: uploaded by a person, read without being unpacked, fetched by the runner, and the base of its result.

use agentrun_protocol::people::MAX_SOURCE_BYTES;
use http::StatusCode;
use serde_json::{Value, json};

use super::{ALICE, CAROL, MALLORY, OTHER_UID, World};
use crate::fixtures::{self, RUN_UID};
use crate::store::Digest;

const SOURCE: &str = "/v1/namespaces/team/runs/fix-it/source";
const FETCH: &str = "/sandbox/v1/source";

fn tar(files: &[(&str, &str, u32)]) -> Vec<u8> {
    let mut builder = tar::Builder::new(Vec::new());
    for (path, content, mode) in files {
        let mut header = tar::Header::new_gnu();
        header.set_mode(*mode);
        header.set_size(content.len() as u64);
        builder.append_data(&mut header, path, content.as_bytes()).expect("a header");
    }
    builder.into_inner().expect("an archive")
}

/// A world whose run `fix-it` waits for this archive.
fn world(archive: &[u8]) -> World {
    let world = World::new();
    let mut run = fixtures::run_json();
    run["spec"]["source"] = json!({"archive": {"digest": Digest::of(archive).to_string()}});
    world.apply(run);
    world
}

#[tokio::test(flavor = "multi_thread")]
async fn an_archive_is_uploaded_fetched_and_the_base_of_the_result() {
    let archive = tar(&[("src/a.py", "x = 1\n", 0o755), ("README", "r\n", 0o644)]);
    let digest = Digest::of(&archive).to_string();
    let world = world(&archive);
    assert_eq!(world.runner(RUN_UID, "GET", FETCH, "").await.refusal(), (503, "source_not_uploaded".into(), None));
    let view = json!({"digest": digest, "bytes": archive.len(), "files": 2});
    for path in [SOURCE, &format!("/v1/runs/{RUN_UID}/source")] {
        let answer = world.person_with(ALICE, "PUT", path, &[], archive.clone()).await;
        assert_eq!((answer.status, answer.json()), (StatusCode::OK, view.clone()));
        assert_eq!(world.live("fix-it")["status"]["source"], view);
    }
    let job = world.runner(RUN_UID, "GET", "/sandbox/v1/job", "").await.json();
    assert_eq!((&job["archive"], &job["files"]), (&json!(digest), &json!([])));
    let fetched = world.runner(RUN_UID, "GET", FETCH, "").await;
    assert_eq!((fetched.status, fetched.body.as_ref()), (StatusCode::OK, archive.as_slice()));

    let state = |content: &str, mode: u32| json!({"digest": Digest::of(content.as_bytes()).to_string(), "mode": mode});
    world.upload(RUN_UID, b"x = 2\n").await;
    let mut result = json!({
        "runUid": RUN_UID, "attempt": 1, "outcome": "done", "message": "fixed", "steps": 4, "manifestComplete": true,
        "checks": [{"name": "unit", "argv": ["python3", "-m", "pytest"], "exitCode": 0}],
        "changes": [
            {"path": "README", "before": state("r\n", 644)},
            {"path": "src/a.py", "before": state("x = 1\n", 755), "after": state("x = 2\n", 755)},
        ],
    });
    // Another base is found out, and does not stand in the way.
    result["changes"][1]["before"]["mode"] = 644.into();
    let probe = world.runner(OTHER_UID, "POST", "/sandbox/v1/result", result.to_string()).await;
    assert_eq!(probe.refusal().0, 422);
    result["changes"][1]["before"]["mode"] = 755.into();
    let verdict = world.runner(RUN_UID, "POST", "/sandbox/v1/result", result.to_string()).await.json();
    assert_eq!(verdict["verdict"], "Succeeded", "{verdict}");
    world.live("fix-it");
    let patch = world.person(CAROL, "/v1/namespaces/team/runs/fix-it/patch", &[]).await;
    assert!(patch.text().contains("-x = 1\n+x = 2\n") && patch.text().contains("deleted file mode 100644"), "{}", patch.text());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_result_that_lies_about_the_archive_is_found_out() {
    let archive = tar(&[("a.py", "x = 1\n", 0o644)]);
    let world = world(&archive);
    assert_eq!(world.person_with(ALICE, "PUT", SOURCE, &[], archive.clone()).await.status, StatusCode::OK);
    world.upload(RUN_UID, b"x = 2\n").await;
    let state = |content: &str| json!({"digest": Digest::of(content.as_bytes()).to_string(), "mode": 644});
    let result = json!({
        "runUid": RUN_UID, "attempt": 1, "outcome": "done", "message": "", "steps": 4, "manifestComplete": true,
        "checks": [{"name": "unit", "argv": ["python3", "-m", "pytest"], "exitCode": 0}],
        "changes": [{"path": "a.py", "before": state("x = 0\n"), "after": state("x = 2\n")}],
    });
    let verdict = world.runner(RUN_UID, "POST", "/sandbox/v1/result", result.to_string()).await.json();
    assert_eq!(verdict["verdict"], "ResultInvalid", "{verdict}");
    assert!(verdict["message"].as_str().is_some_and(|text| text.contains("a.py was not like that in the source")), "{verdict}");
}

#[tokio::test(flavor = "multi_thread")]
async fn refusals_keep_nothing() {
    let good = tar(&[("a.py", "x = 1\n", 0o644)]);
    let mut link = tar::Header::new_gnu();
    link.set_entry_type(tar::EntryType::Symlink);
    link.set_size(0);
    let mut builder = tar::Builder::new(Vec::new());
    builder.append_link(&mut link, "out", "/etc").expect("a link");
    let hostile = builder.into_inner().expect("an archive");
    let large = vec![0; MAX_SOURCE_BYTES + 1];
    let cut = |archive: &[u8]| {
        let piece = Ok(bytes::Bytes::copy_from_slice(archive));
        axum::body::Body::from_stream(futures::stream::iter([piece, Err(std::io::Error::other("cut"))]))
    };
    let long = MAX_SOURCE_BYTES.saturating_add(1).to_string();
    let length: [(&str, &str); 1] = [("content-length", &long)];
    type Row<'a> = (&'a str, &'a [u8], &'a str, &'a [(&'a str, &'a str)], axum::body::Body, (u16, &'a str, Option<&'a str>));
    let rows: Vec<Row<'_>> = vec![
        ("a link out", &hostile, ALICE, &[], hostile.clone().into(), (422, "invalid_archive", Some("out"))),
        ("another archive", &hostile, ALICE, &[], good.clone().into(), (422, "digest_mismatch", Some("digest"))),
        ("no archive", b"hello", ALICE, &[], "hello".into(), (422, "invalid_archive", Some("body"))),
        ("a broken upload", &good, ALICE, &[], cut(&good[..600]), (400, "body_incomplete", Some("body"))),
        ("cut off", &good[..600], ALICE, &[], good[..600].to_vec().into(), (422, "invalid_archive", Some("body"))),
        ("too large", &large, ALICE, &[], large.clone().into(), (413, "too_large", Some("body"))),
        ("announced as too large", &large, ALICE, &length, large.clone().into(), (413, "too_large", Some("body"))),
        ("of a reader", &good, CAROL, &[], good.clone().into(), (403, "forbidden", None)),
        ("of a stranger", &good, MALLORY, &[], good.clone().into(), (403, "forbidden", None)),
    ];
    for (what, named, who, headers, body, (status, code, field)) in rows {
        let world = world(named);
        let refusal = world.person_with(who, "PUT", SOURCE, headers, body).await.refusal();
        assert_eq!(refusal, (status, code.into(), field.map(Into::into)), "{what}");
        assert_eq!(world.live("fix-it")["status"]["source"], Value::Null, "{what}");
        assert_eq!(world.state.stores.artifacts.totals(RUN_UID).await.map(|totals| totals.blobs), Ok(0), "{what}");
    }
    // A run that has no archive, one that has ended, and an id that a stranger may not know of.
    let world = world(&good);
    let inline = world.person_with(ALICE, "PUT", "/v1/namespaces/team/runs/other/source", &[], good.clone()).await;
    assert_eq!(inline.refusal(), (404, "not_found".into(), None));
    assert_eq!(world.runner(OTHER_UID, "GET", FETCH, "").await.refusal().0, 404);
    for (who, expected) in [(CAROL, 403), (MALLORY, 404)] {
        let path = format!("/v1/runs/{RUN_UID}/source");
        assert_eq!(world.person_with(who, "PUT", &path, &[], good.clone()).await.refusal().0, expected, "{who}");
    }
    world.edit("fix-it", |run| run["status"]["phase"] = "Failed".into());
    assert_eq!(world.person_with(ALICE, "PUT", SOURCE, &[], good).await.refusal(), (409, "already_completed".into(), None));
}
