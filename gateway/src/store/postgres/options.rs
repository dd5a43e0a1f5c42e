//! Where the database is. Its URL holds a password, so it comes from a file and is never shown.

use std::path::{Path, PathBuf};
use std::time::Duration;

use rustls_tokio_postgres::MakeRustlsConnect;
use tokio_postgres::Config;
use tokio_postgres::config::{Host, SslMode};

use crate::store::StoreError;
use crate::tls;

/// Command-line options of the database.
#[derive(clap::Args, Clone, Debug)]
pub struct DatabaseOptions {
    /// File with the URL of a PostgreSQL database, postgresql://USER:PASSWORD@HOST/DATABASE, for gateways that share it; absent:
    /// the embedded stores. Connections are encrypted and the server's certificate is verified, unless the URL says
    /// sslmode=disable.
    #[arg(long, value_name = "PATH")]
    pub database_url_file: Option<PathBuf>,
    /// PEM file of the authorities that the database's certificate may come from; absent: this machine's.
    #[arg(long, value_name = "PATH")]
    pub database_ca_file: Option<PathBuf>,
    /// Most connections to the database, besides the one that listens.
    #[arg(long, value_name = "COUNT", default_value_t = 16, value_parser = clap::value_parser!(u16).range(2..=1000))]
    pub database_connections: u16,
}

/// How to reach the database.
#[derive(Clone)]
pub(super) struct Address {
    pub config: Config,
    pub tls: MakeRustlsConnect,
}

const CONNECT_TIME: Duration = Duration::from_secs(5);
/// What was sent and is not acknowledged for so long breaks the connection.
const SILENCE: Duration = Duration::from_secs(10);

impl Address {
    pub fn read(url_file: &Path, ca_file: Option<&Path>) -> Result<Self, StoreError> {
        let failed = |what: String| StoreError::Failed(format!("--database-url-file {}: {what}", url_file.display()));
        let url = std::fs::read_to_string(url_file).map_err(|error| failed(error.to_string()))?;
        let mut config = parse(url.trim()).map_err(failed)?;
        config.application_name("agentrun-gateway").connect_timeout(CONNECT_TIME).tcp_user_timeout(SILENCE);
        config.keepalives_idle(SILENCE).keepalives_interval(SILENCE).keepalives_retries(3);
        let tls = match ca_file {
            Some(path) => tls::trusting_file(path).map_err(|error| StoreError::Failed(format!("--database-ca-file {error}")))?,
            None if config.get_ssl_mode() == SslMode::Disable => tls::trusting(rustls::RootCertStore::empty()),
            None => tls::trusting_machine().map_err(|error| {
                StoreError::Failed(format!(
                    "the database needs --database-ca-file, since this machine's authorities cannot be read: {error}"
                ))
            })?,
        };
        Ok(Address { config, tls: MakeRustlsConnect::new(tls) })
    }

    /// For people: no user, no password.
    pub fn shown(&self) -> String {
        let host = match self.config.get_hosts().first() {
            Some(Host::Tcp(name)) => name.clone(),
            Some(Host::Unix(path)) => path.display().to_string(),
            None => "localhost".into(),
        };
        let port = self.config.get_ports().first().copied().unwrap_or(5432);
        format!("{}, port {port}, database {:?}", host, self.config.get_dbname().unwrap_or_default())
    }
}

fn parse(url: &str) -> Result<Config, String> {
    if !url.starts_with("postgresql://") && !url.starts_with("postgres://") {
        return Err("it must hold a URL that begins with postgresql://".into());
    }
    // Verifying is all that we do; the client's parser does not know these words for it.
    let url = url.replace("sslmode=verify-full", "sslmode=require").replace("sslmode=verify-ca", "sslmode=require");
    // The parser's message may hold a part of the URL, and that may be of the password.
    let mut config: Config = url
        .parse()
        .map_err(|_| "this is not the URL of a PostgreSQL database; special characters in a password must be percent-encoded")?;
    let remote = config.get_hosts().iter().any(|host| matches!(host, Host::Tcp(_)));
    if config.get_ssl_mode() == SslMode::Prefer {
        config.ssl_mode(if remote { SslMode::Require } else { SslMode::Disable });
    }
    if config.get_hosts().is_empty() || config.get_dbname().is_none() || config.get_user().is_none() {
        return Err("the URL must name user, host and database".into());
    }
    Ok(config)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn urls_are_encrypted_unless_they_say_otherwise_and_never_shown() {
        for (url, expected) in [
            ("postgresql://u:hunter2@db/x", Some(SslMode::Require)),
            ("postgres://u:hunter2@db/x?sslmode=verify-full", Some(SslMode::Require)),
            ("postgresql://u:hunter2@db/x?sslmode=prefer", Some(SslMode::Require)),
            ("postgresql://u:hunter2@db/x?sslmode=disable", Some(SslMode::Disable)),
            ("postgresql://u@%2Frun%2Fpostgresql/x", Some(SslMode::Disable)),
            ("postgresql://u:hunter2@db", None),
            ("postgresql://db/x", None),
            ("postgresql://u:hunter2@db/x?sslmode=hunter2", None),
            ("mysql://u:hunter2@db/x", None),
            ("hunter2", None),
            ("", None),
        ] {
            let parsed = parse(url);
            assert_eq!(parsed.as_ref().ok().map(Config::get_ssl_mode), expected, "{url}");
            assert!(!format!("{parsed:?}").contains("hunter2"), "{url}: {parsed:?}");
        }
    }
}
