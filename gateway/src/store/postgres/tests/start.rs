//! How gateways start: together, and on what they cannot use.

use rcgen::{CertificateParams, KeyPair};
use rustls::ServerConfig;
use rustls_pki_types::PrivateKeyDer;
use tokio::net::{TcpListener, TcpStream};
use tokio_rustls::TlsAcceptor;

use super::*;

#[tokio::test(flavor = "multi_thread")]
async fn five_that_start_at_once_migrate_once() {
    let bed = Bed::new();
    let names: Vec<String> = (0..5).map(|n| format!("gateway-{n}")).collect();
    let stores = futures::future::join_all(names.iter().map(|name| bed.open(name))).await;
    assert_eq!(stores.len(), 5);
    assert_eq!(bed.psql("SELECT count(*), max(version) FROM agentrun_schema"), "1|1");
    drop(stores);
    bed.open("gateway-0").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_database_of_a_newer_version_is_refused_and_left_as_it_is() {
    let bed = Bed::new();
    drop(bed.open("gateway-0").await);
    bed.psql("UPDATE agentrun_schema SET version = 99");
    let refused = refusal(&bed, &bed.server.url(&bed.database)).await;
    assert!(refused.contains("the database has version 99; this gateway knows 1"), "{refused}");
    assert_eq!(bed.psql("SELECT version FROM agentrun_schema"), "99");
}

#[tokio::test(flavor = "multi_thread")]
async fn what_cannot_be_used_is_an_error_that_says_what_and_never_the_password() {
    let bed = Bed::new();
    let url = bed.server.url(&bed.database);
    bed.server.psql("postgres", &format!("CREATE DATABASE {}_latin ENCODING LATIN1 TEMPLATE template0", bed.database)).expect("made");
    for (url, says) in [
        (url.replace("pass%2Fword", "wrong-secret"), "password authentication failed"),
        (url.replace("agentrun:", "nobody:"), "authentication failed for user \"nobody\""),
        (url.replace(&bed.database, "no_such_database"), "\"no_such_database\" does not exist"),
        (url.replace(&bed.database, &format!("{}_latin", bed.database)), "encoding LATIN1"),
        (url.replace("localhost", "127.0.0.1"), "certificate"),
        (url.replace("postgresql://", "mysql://"), "begins with postgresql://"),
        (format!("{url}?wrong-secret=1"), "not the URL of a PostgreSQL database"),
    ] {
        let refused = refusal(&bed, &url).await;
        assert!(refused.contains(says), "{says}: {refused}");
        for secret in ["wrong-secret", "pass/word", "pass%2Fword"] {
            assert!(!refused.contains(secret), "{refused}");
        }
    }
    let plain = bed.try_open("gateway-0", &format!("{url}?sslmode=disable"), Clock::system()).await;
    assert!(plain.is_ok(), "unencrypted only where the URL says so");
}

async fn refusal(bed: &Bed, url: &str) -> String {
    let opened = tokio::time::timeout(std::time::Duration::from_secs(20), bed.try_open("gateway-0", url, Clock::system())).await;
    opened.expect("it does not wait for what waiting cannot mend").err().expect("refused").to_string()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_bucket_that_cannot_be_used_is_an_error_that_says_what() {
    let bed = Bed::new();
    for (name, options, credentials, says) in [
        (
            "no such bucket",
            ObjectOptions { s3_bucket: Some("no-such-bucket".into()), ..bed.objects() },
            credentials(),
            "is there such a bucket?",
        ),
        ("wrong credentials", bed.objects(), Credentials::new(ACCESS_KEY, "wrong-secret"), "AWS_SECRET_ACCESS_KEY"),
    ] {
        let refused = Bucket::open(&options, credentials).await.err().expect(name).to_string();
        assert!(refused.contains(says), "{name}: {refused}");
        assert!(!refused.contains("wrong-secret"), "{refused}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_bucket_behind_tls_is_trusted_by_its_authority_only() {
    let bed = Bed::new();
    let (endpoint, authority) = tls_front().await;
    let file = bed.folder.path().join("objects-ca.crt");
    std::fs::write(&file, authority).expect("written");
    let options = ObjectOptions { s3_endpoint: Some(endpoint), s3_allow_http: false, s3_ca_file: Some(file), ..bed.objects() };
    let bucket = Bucket::open(&options, credentials()).await.expect("trusted");
    let content = bed.folder.path().join("content");
    std::fs::write(&content, b"over TLS").expect("written");
    bucket.put("one", &content, 8).await.expect("put");
    assert_eq!((bucket.has("one").await, bucket.has("two").await), (Ok(true), Ok(false)));
    let other = ObjectOptions { s3_ca_file: bed.options().database_ca_file, ..options };
    let refused = tokio::time::timeout(std::time::Duration::from_secs(20), Bucket::open(&other, credentials())).await;
    let refused = refused.expect("it does not wait for what waiting cannot mend").err().expect("refused").to_string();
    assert!(refused.contains("certificate"), "{refused}");
}

/// The object store behind TLS; its URL and the PEM of its authority.
async fn tls_front() -> (String, String) {
    let key = KeyPair::generate().expect("a key");
    let certificate = CertificateParams::new(vec!["localhost".to_owned()]).expect("a name").self_signed(&key).expect("a certificate");
    let server = ServerConfig::builder()
        .with_no_client_auth()
        .with_single_cert(vec![certificate.der().clone()], PrivateKeyDer::try_from(key.serialize_der()).expect("a key"))
        .expect("a configuration");
    let acceptor = TlsAcceptor::from(Arc::new(server));
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let endpoint = format!("https://localhost:{}", listener.local_addr().expect("an address").port());
    let behind = Objects::shared().endpoint().trim_start_matches("http://").to_owned();
    tokio::spawn(async move {
        while let Ok((front, _)) = listener.accept().await {
            let (acceptor, behind) = (acceptor.clone(), behind.clone());
            tokio::spawn(async move {
                let Ok(mut front) = acceptor.accept(front).await else { return };
                let mut behind = TcpStream::connect(behind).await.expect("the object store");
                let _ = tokio::io::copy_bidirectional(&mut front, &mut behind).await;
            });
        }
    });
    (endpoint, certificate.pem())
}
