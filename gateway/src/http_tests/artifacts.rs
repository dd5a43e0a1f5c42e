//! Artifacts: uploaded by the runner, downloaded by people.

use http::StatusCode;
use serde_json::json;

use super::{ALICE, OTHER_UID, World};
use crate::fixtures::RUN_UID;
use crate::store::Digest;

const NAMES: &str = "/sandbox/v1/artifacts";
const LIST: &str = "/v1/namespaces/team/runs/fix-it/artifacts";

#[tokio::test(flavor = "multi_thread")]
async fn an_artifact_goes_up_and_comes_down_as_an_attachment() {
    let world = World::new();
    let content = b"<script>alert(1)</script>\0";
    let digest = world.upload(RUN_UID, content).await;
    assert_eq!(world.upload(RUN_UID, content).await, digest, "repeating is harmless");
    let named = world.runner(RUN_UID, "POST", NAMES, json!({"name": "page.html", "digest": digest}).to_string()).await;
    assert_eq!(named.status, StatusCode::NO_CONTENT, "{}", named.text());
    assert_eq!(world.person(ALICE, LIST, &[]).await.json(), json!({"artifacts": [{"name": "page.html", "digest": digest, "bytes": 26}]}));

    let down = world.person(ALICE, &format!("{LIST}/{digest}"), &[]).await;
    assert_eq!((down.status, &down.body[..]), (StatusCode::OK, &content[..]));
    for (name, value) in [
        ("content-type", "application/octet-stream"),
        ("content-disposition", "attachment; filename=\"page.html\""),
        ("x-content-type-options", "nosniff"),
        ("content-security-policy", "sandbox; default-src 'none'; frame-ancestors 'none'"),
        ("content-length", "26"),
    ] {
        assert_eq!(down.headers[name], value, "{name}");
    }
    let etag = down.headers["etag"].to_str().expect("text").to_owned();
    let again = world.person(ALICE, &format!("{LIST}/{digest}"), &[("if-none-match", &etag)]).await;
    assert_eq!((again.status, again.body.len()), (StatusCode::NOT_MODIFIED, 0));
    let unnamed = world.upload(RUN_UID, b"unnamed").await;
    let down = world.person(ALICE, &format!("{LIST}/{unnamed}"), &[]).await;
    assert_eq!(down.headers["content-disposition"], format!("attachment; filename=\"{}\"", &unnamed["sha256:".len()..]));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_run_does_not_see_anothers_blobs() {
    let world = World::new();
    let secret = world.upload(OTHER_UID, b"secret").await;
    let named = world.runner(RUN_UID, "POST", NAMES, json!({"name": "mine", "digest": secret}).to_string()).await;
    assert_eq!(named.refusal(), (404, "not_found".into(), Some("digest".into())));
    let unknown = Digest::of(b"nobody has this").to_string();
    let (theirs, nobodys) =
        (world.person(ALICE, &format!("{LIST}/{secret}"), &[]).await, world.person(ALICE, &format!("{LIST}/{unknown}"), &[]).await);
    assert_eq!(theirs.refusal().0, 404);
    assert_eq!(theirs.text().replace(&secret, ""), nobodys.text().replace(&unknown, ""), "whether another run has it cannot be told");
}

#[tokio::test(flavor = "multi_thread")]
async fn refusals_keep_nothing() {
    let world = World::new();
    let digest = Digest::of(b"promised").to_string();
    let path = format!("/sandbox/v1/blobs/{digest}");
    assert_eq!(world.runner(RUN_UID, "PUT", &path, "sent").await.refusal(), (422, "digest_mismatch".into(), Some("digest".into())));
    let large = vec![0u8; agentrun_protocol::result::MAX_BLOB_BYTES + 1];
    assert_eq!(world.runner(RUN_UID, "PUT", &path, large).await.refusal(), (413, "too_large".into(), Some("body".into())));
    for bad in ["sha256:short", "md5:d41d8cd98f00b204e9800998ecf8427e", "..%2f..%2fetc%2fpasswd", "%ff"] {
        assert_eq!(
            world.runner(RUN_UID, "PUT", &format!("/sandbox/v1/blobs/{bad}"), "x").await.refusal(),
            (422, "invalid_field".into(), Some("digest".into())),
            "{bad}"
        );
    }
    let cut =
        axum::body::Body::from_stream(futures::stream::iter([Ok(bytes::Bytes::from_static(b"prom")), Err(std::io::Error::other("cut"))]));
    assert_eq!(world.runner(RUN_UID, "PUT", &path, cut).await.refusal(), (400, "body_incomplete".into(), Some("body".into())));
    assert_eq!(world.state.stores.artifacts.totals(RUN_UID).await.map(|totals| totals.blobs), Ok(0));
    let kept = world.upload(RUN_UID, b"kept").await;
    let reserved = world.runner(RUN_UID, "POST", NAMES, json!({"name": "changes.patch", "digest": kept}).to_string()).await;
    assert_eq!(reserved.refusal(), (422, "invalid_field".into(), Some("name".into())));
    assert_eq!(
        world.person(ALICE, &format!("{LIST}/sha256:nonsense"), &[]).await.refusal(),
        (400, "invalid_digest".into(), Some("artifact".into()))
    );
    assert_eq!(world.person(ALICE, &format!("{LIST}/nonsense"), &[]).await.refusal(), (404, "not_found".into(), Some("artifact".into())));
}
