//! The tables, by version. Gateways that start at once migrate one after the other, under a lock of the database.

use tokio_postgres::error::SqlState;
use tokio_postgres::{Client, Transaction};

use super::failure::Failure;
use super::options::Address;
use crate::store::StoreError;

/// Each brings the database from the version before it to its own: the first is 1. Never changed once released.
const MIGRATIONS: &[&str] = &[include_str!("migrations/1.sql")];
/// Of PostgreSQL's advisory locks; any number that nobody else uses.
const LOCK: i64 = 0x6167_656e_7472_756e;

/// Bring the database up to our version. One that a newer gateway has migrated is refused and left as it is.
pub(super) async fn migrate(address: &Address) -> Result<(), Failure> {
    let (mut client, connection) = address.config.connect(address.tls.clone()).await?;
    let driver = tokio_util::task::AbortOnDropHandle::new(tokio::spawn(connection));
    let migrated = run(&mut client).await;
    drop((client, driver));
    migrated
}

async fn run(client: &mut Client) -> Result<(), Failure> {
    let encoding: String = client.query_one("SHOW server_encoding", &[]).await?.get(0);
    if encoding != "UTF8" {
        return Err(StoreError::Failed(format!("the database has the encoding {encoding}; create it with encoding UTF8")).into());
    }
    let transaction = client.transaction().await?;
    // Held until the commit; the one who waits then sees what was done.
    transaction.execute("SELECT pg_advisory_xact_lock($1)", &[&LOCK]).await?;
    let known = i64::try_from(MIGRATIONS.len()).unwrap_or(i64::MAX);
    let version = version(&transaction).await?;
    if version > known {
        let text = format!("the database has version {version}; this gateway knows {known}. Install the newer gateway again");
        return Err(StoreError::Failed(text).into());
    }
    for (migration, to) in MIGRATIONS.iter().zip(1..).skip_while(|(_, to)| *to <= version) {
        transaction.batch_execute(migration).await?;
        transaction.execute("UPDATE agentrun_schema SET version = $1", &[&to]).await?;
        tracing::info!(version = to, "the database was migrated");
    }
    Ok(transaction.commit().await?)
}

async fn version(transaction: &Transaction<'_>) -> Result<i64, Failure> {
    let there: bool = transaction.query_one("SELECT to_regclass('agentrun_schema') IS NOT NULL", &[]).await?.get(0);
    if there {
        return Ok(transaction.query_one("SELECT version FROM agentrun_schema", &[]).await?.get(0));
    }
    let first = "CREATE TABLE agentrun_schema (version bigint NOT NULL); INSERT INTO agentrun_schema VALUES (0)";
    match transaction.batch_execute(first).await {
        Ok(()) => Ok(0),
        Err(error) if error.code() == Some(&SqlState::INSUFFICIENT_PRIVILEGE) => {
            Err(StoreError::Failed("the database's user may create no tables; let it own the database".into()).into())
        }
        Err(error) => Err(error.into()),
    }
}
