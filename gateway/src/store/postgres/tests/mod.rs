//! The suites of all traits on PostgreSQL and a bucket, real ones, and what only several gateways can get wrong.

mod blobs;
mod budget;
mod outage;
mod replicas;
mod start;

use std::path::PathBuf;
use std::sync::Arc;

use agentrun_e2e::store_servers::{ACCESS_KEY, Objects, Postgres as Server, SECRET_KEY};
use rusty_s3::Credentials;

use super::*;
use crate::store::RunRef;
use crate::store::s3::ObjectOptions;
use crate::store::suite::{self, Subject};

/// A database and a bucket, and what gateways need to reach them.
struct Bed {
    server: &'static Server,
    database: String,
    bucket: String,
    folder: tempfile::TempDir,
    quotas: Quotas,
}

impl Bed {
    fn new() -> Self {
        Self::on(Server::shared())
    }

    fn on(server: &'static Server) -> Self {
        let _ = rustls::crypto::aws_lc_rs::default_provider().install_default();
        let (database, bucket) = (server.database().expect("a database"), Objects::shared().bucket().expect("a bucket"));
        Bed { server, database, bucket, folder: tempfile::tempdir().expect("folder"), quotas: Quotas::default() }
    }

    fn url_file(&self, url: &str) -> PathBuf {
        let path = self.folder.path().join(format!("url-{}", uuid::Uuid::new_v4()));
        std::fs::write(&path, format!("{url}\n")).expect("written");
        path
    }

    fn options(&self) -> DatabaseOptions {
        let authority = self.folder.path().join("ca.crt");
        std::fs::write(&authority, &self.server.authority).expect("written");
        DatabaseOptions { database_url_file: None, database_ca_file: Some(authority), database_connections: 8 }
    }

    fn objects(&self) -> ObjectOptions {
        ObjectOptions {
            s3_endpoint: Some(Objects::shared().endpoint()),
            s3_bucket: Some(self.bucket.clone()),
            s3_region: "us-east-1".into(),
            s3_prefix: "runs".into(),
            s3_virtual_host: false,
            s3_allow_http: true,
            s3_ca_file: None,
        }
    }

    async fn bucket(&self) -> Bucket {
        Bucket::open(&self.objects(), credentials()).await.expect("the bucket")
    }

    /// The stores of one gateway.
    async fn try_open(&self, instance: &str, url: &str, clock: Clock) -> Result<Arc<Postgres>, StoreError> {
        let folder = self.folder.path().join(instance);
        let (url_file, options) = (self.url_file(url), self.options());
        let bucket = self.bucket().await;
        Postgres::open(&folder, (&url_file, &options), bucket, self.quotas, instance, clock).await.map(Arc::new)
    }

    async fn open(&self, instance: &str) -> Arc<Postgres> {
        self.try_open(instance, &self.server.url(&self.database), Clock::from_fn(|| 1_000)).await.expect("the stores")
    }

    fn psql(&self, sql: &str) -> String {
        self.server.psql(&self.database, sql).expect("psql")
    }
}

fn credentials() -> Credentials {
    Credentials::new(ACCESS_KEY, SECRET_KEY)
}

fn run(uid: &str) -> RunRef {
    RunRef { uid: uid.into(), namespace: "team".into(), name: format!("run-{uid}") }
}

fn subject(quotas: Quotas) -> Subject {
    // The suite's cases make their stores where nothing can be awaited.
    let (store, bed) = tokio::task::block_in_place(|| {
        let bed = Bed { quotas, ..Bed::new() };
        (tokio::runtime::Handle::current().block_on(bed.open("gateway-0")), bed)
    });
    Subject { events: store.clone(), artifacts: store.clone(), ledger: store, _keep: Box::new(bed.folder) }
}

suite::event_store!(subject);
suite::artifact_store!(subject);
suite::budget_ledger!(subject);
