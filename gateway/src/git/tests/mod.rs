//! Fetches from git's own `http-backend` behind TLS, from servers that misbehave, and of packs that no good server would send.

mod fetcher;
mod misbehaving;
mod packs;

use std::path::Path;
use std::sync::Arc;

use agentrun_crds::agent_policy::{Addresses, LeftOut};
use agentrun_crds::agent_run::GitSource;
use agentrun_crds::agent_run_status::ResolvedGit;
use agentrun_protocol::archive;
use agentrun_scripted_model::git_host::{GitHost, git};
use axum::Router;
use rustls_pki_types::{CertificateDer, PrivateKeyDer};
use serde_json::json;

use super::export::Exported;
use super::failure::Failure;
use super::fetch::{Request, fetch};
use crate::fake_api::FakeApi;
use crate::serve::{Listener, Stop};

/// `git:s3cr3t-k3y`
const AUTHORIZATION: &str = "Basic Z2l0OnMzY3IzdC1rM3k=";
const KEY: &str = "s3cr3t-k3y";

/// An HTTPS server on a loopback port, whose authority is in the Secret `trust` and, with a credential, in `private`.
struct Server {
    url: String,
    api: FakeApi,
    folder: tempfile::TempDir,
    stop: Stop,
}

impl Drop for Server {
    fn drop(&mut self) {
        self.stop.now.cancel();
    }
}

impl Server {
    async fn start(router: Router) -> Server {
        let _ = rustls::crypto::aws_lc_rs::default_provider().install_default();
        let key = rcgen::generate_simple_self_signed(vec!["localhost".into()]).unwrap();
        let (certificate, private) = (CertificateDer::from(key.cert.der().to_vec()), key.signing_key.serialize_der());
        let tls = rustls::ServerConfig::builder()
            .with_no_client_auth()
            .with_single_cert(vec![certificate], PrivateKeyDer::try_from(private).unwrap())
            .unwrap();
        let tcp = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("https://localhost:{}", tcp.local_addr().unwrap().port());
        let stop = Stop::default();
        let listener = Listener { name: "git", tcp, tls: Some(Arc::new(tls)), router, max_connections: 64 };
        tokio::spawn(listener.serve(stop.clone()));
        let api = FakeApi::default();
        let encoded = |text: &str| base64::Engine::encode(&base64::engine::general_purpose::STANDARD, text);
        for (name, password) in [("trust", None), ("private", Some(KEY)), ("wrong", Some("wr0ng-k3y"))] {
            let mut data = json!({"ca.crt": encoded(&key.cert.pem())});
            if let Some(password) = password {
                data["password"] = encoded(password).into();
            }
            let secret = json!({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": name, "namespace": "team"}, "data": data});
            api.lock().objects.insert(format!("namespaces/team/secrets/{name}"), secret);
        }
        Server { url, api, folder: tempfile::tempdir().unwrap(), stop }
    }

    fn request(&self, path: &str, reference: &str) -> Request {
        Request {
            namespace: "team".into(),
            source: GitSource { url: format!("{}{path}", self.url), reference: reference.into(), sub_path: None },
            how: ResolvedGit {
                secret: Some("trust".into()),
                addresses: Addresses::Private,
                max_bytes: 64 << 20,
                timeout_seconds: 60,
                symlinks: LeftOut::Refuse,
                submodules: LeftOut::Refuse,
            },
        }
    }

    async fn fetch(&self, request: &Request) -> Result<Exported, Failure> {
        let fetched = fetch(&self.api.client(), self.folder.path(), request).await;
        assert_eq!(std::fs::read_dir(self.folder.path()).unwrap().count(), 0, "a temporary file has a name");
        fetched
    }

    async fn failure(&self, request: &Request) -> String {
        match self.fetch(request).await {
            Ok(_) => panic!("{request:?} was fetched"),
            Err(failure) => failure.message,
        }
    }
}

/// Path, mode and content of each file, in the archive's order.
fn files(exported: &Exported) -> Vec<(String, u32, Vec<u8>)> {
    let mut files = Vec::new();
    archive::read(&exported.archive, |file, content| {
        let mut bytes = Vec::new();
        content.read_to_end(&mut bytes)?;
        files.push((file.path.to_string(), if file.executable { 755 } else { 644 }, bytes));
        Ok(())
    })
    .unwrap();
    files
}

/// A repository `shop.git` with two commits on `main`, a tag of the first, and a copy of it beneath `private/`.
fn shop(root: &Path) -> (String, String) {
    let work = root.join("work");
    std::fs::create_dir_all(work.join("src/deep")).unwrap();
    git(&work, &["init", "--quiet"]);
    std::fs::write(work.join("README"), "one\n").unwrap();
    std::fs::write(work.join("src/run.sh"), "#!/bin/sh\n").unwrap();
    std::fs::write(work.join("src/deep/data.bin"), [0, 1, 2, 255]).unwrap();
    std::fs::set_permissions(work.join("src/run.sh"), std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
    git(&work, &["add", "."]);
    git(&work, &["commit", "--quiet", "--message=one"]);
    git(&work, &["tag", "--annotate", "--message=v1", "v1"]);
    std::fs::write(work.join("README"), "two\n").unwrap();
    git(&work, &["commit", "--quiet", "--all", "--message=two"]);
    std::fs::create_dir(root.join("private")).unwrap();
    for target in ["shop.git", "private/shop.git"] {
        git(root, &["clone", "--quiet", "--bare", "work", target]);
    }
    (git(&work, &["rev-parse", "HEAD~1"]), git(&work, &["rev-parse", "HEAD"]))
}

#[tokio::test(flavor = "multi_thread")]
async fn a_commit_becomes_an_archive_whatever_it_is_called() {
    let root = tempfile::tempdir().unwrap();
    let (first, second) = shop(root.path());
    let host = GitHost::new(root.path(), AUTHORIZATION);
    let server = Server::start(host.router()).await;
    let mut digests = Vec::new();
    for (reference, commit, readme) in [
        ("main", &second, "two\n"),
        ("HEAD", &second, "two\n"),
        ("refs/heads/main", &second, "two\n"),
        (second.as_str(), &second, "two\n"),
        ("v1", &first, "one\n"),
        (first.as_str(), &first, "one\n"),
    ] {
        let fetched =
            server.fetch(&server.request("/shop.git", reference)).await.unwrap_or_else(|failure| panic!("{reference}: {failure:?}"));
        assert_eq!(&fetched.git.commit, commit, "{reference}");
        assert_eq!(fetched.git.tree, git(&root.path().join("work"), &["rev-parse", &format!("{commit}^{{tree}}")]), "{reference}");
        assert_eq!(fetched.git.staged_tree, fetched.git.tree);
        let found = files(&fetched);
        let expected =
            [("README", 644, readme.as_bytes()), ("src/deep/data.bin", 644, &[0, 1, 2, 255]), ("src/run.sh", 755, b"#!/bin/sh\n")];
        let expected: Vec<(String, u32, Vec<u8>)> =
            expected.iter().map(|(path, mode, content)| ((*path).into(), *mode, content.to_vec())).collect();
        assert_eq!(found, expected, "{reference}");
        digests.push(fetched.digest);
    }
    assert!(digests[..4].iter().all(|digest| *digest == digests[0]), "the same commit gives the same archive");
    for line in host.seen() {
        assert!(line.ends_with("/info/refs?service=git-upload-pack") || line.ends_with("/git-upload-pack?"), "{line}");
    }
    let mut part = server.request("/shop.git", "main");
    part.source.sub_path = Some("src".into());
    let fetched = server.fetch(&part).await.unwrap();
    assert_eq!(fetched.git.tree, git(&root.path().join("work"), &["rev-parse", "HEAD:src"]));
    assert_eq!(files(&fetched).iter().map(|(path, ..)| path.as_str()).collect::<Vec<_>>(), ["deep/data.bin", "run.sh"]);
    part.source.sub_path = Some("README".into());
    assert!(server.failure(&part).await.contains("has no folder README (subPath)"));
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_not_there_or_not_allowed_is_said_without_the_credential() {
    let root = tempfile::tempdir().unwrap();
    let (first, second) = shop(root.path());
    let server = Server::start(GitHost::new(root.path(), AUTHORIZATION).router()).await;
    let request = |path: &str, reference: &str, secret: Option<&str>| {
        let mut request = server.request(path, reference);
        request.how.secret = secret.map(Into::into);
        request
    };
    let private = server.fetch(&request("/private/shop.git", "main", Some("private"))).await.expect("the credential is right");
    assert_eq!(private.git.commit, second);
    let nowhere = "0123456789012345678901234567890123456789";
    for (request, part) in [
        (request("/private/shop.git", "main", Some("trust")), "refused the credential of Secret team/trust (401)"),
        (request("/private/shop.git", "main", Some("wrong")), "refused the credential of Secret team/wrong (401)"),
        (
            request("/private/shop.git", "main", Some("absent")),
            "Secret team/absent, which the policy names for this repository, does not exist",
        ),
        (request("/shop.git", "main", None), "the certificate of localhost is not trusted"),
        (request("/nothing.git", "main", Some("trust")), "no such repository"),
        (request("/shop.git", "feature", Some("trust")), "no branch and no tag feature"),
        (request("/shop.git", nowhere, Some("trust")), "does not have the commit"),
        (
            request("/shop.git", &git(&root.path().join("work"), &["rev-parse", "HEAD:README"]), Some("trust")),
            "another kind than is needed",
        ),
    ] {
        let message = server.failure(&request).await;
        assert!(message.contains(part), "{message}");
        assert!(!message.contains(KEY) && !message.contains("wr0ng") && !message.contains("Basic"), "{message}");
    }
    let mut public = server.request("/shop.git", "main");
    public.how.addresses = Addresses::Public;
    assert!(server.failure(&public).await.contains("has no public address"));
    // A branch that is rewritten between its resolution and the fetch: the commit that was resolved, or a refusal; never another.
    let work = root.path().join("work");
    git(&work, &["tag", "main", &first]);
    git(&work, &["push", "--quiet", "../shop.git", "refs/tags/main"]);
    assert!(server.failure(&server.request("/shop.git", "main")).await.contains("both a branch and a tag"));
}

#[tokio::test(flavor = "multi_thread")]
async fn links_and_submodules_are_refused_or_left_out_and_pointers_are_plain_files() {
    let root = tempfile::tempdir().unwrap();
    let (first, _) = shop(root.path());
    let work = root.path().join("work");
    std::os::unix::fs::symlink("/etc/passwd", work.join("src/link")).unwrap();
    git(&work, &["update-index", "--add", "--cacheinfo", &format!("160000,{first},vendor/lib")]);
    std::fs::write(work.join("big.bin"), "version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 1\n").unwrap();
    git(&work, &["add", "src/link", "big.bin"]);
    git(&work, &["commit", "--quiet", "--message=links"]);
    git(&work, &["push", "--quiet", "../shop.git", "main"]);
    let server = Server::start(GitHost::new(root.path(), AUTHORIZATION).router()).await;
    let mut request = server.request("/shop.git", "main");
    assert!(server.failure(&request).await.contains("has a symbolic link \"src/link\", which cannot be staged"));
    request.how.symlinks = LeftOut::Omit;
    assert!(server.failure(&request).await.contains("has a submodule \"vendor/lib\""));
    request.how.submodules = LeftOut::Omit;
    let fetched = server.fetch(&request).await.unwrap();
    assert_eq!(fetched.git.omitted, ["src/link", "vendor/lib"]);
    assert_ne!(fetched.git.staged_tree, fetched.git.tree);
    let found = files(&fetched);
    assert_eq!(found.len(), 4);
    assert!(found.iter().any(|(path, _, content)| path == "big.bin" && content.starts_with(b"version https://git-lfs")));
}
