//! How gateways start: together, and on what they cannot use.

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
