//! The database and the bucket of a bed's gateways, and how a gateway is told of them.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::Result;

use crate::store_servers::{ACCESS_KEY, Objects, Postgres, SECRET_KEY};

pub(super) struct SharedStores {
    url_file: PathBuf,
    authority_file: PathBuf,
    bucket: String,
}

impl SharedStores {
    pub fn make(folder: &Path) -> Result<Self> {
        let (database, url_file, authority_file) = (Postgres::shared(), folder.join("database-url"), folder.join("database-ca.crt"));
        std::fs::write(&url_file, database.url(&database.database()?))?;
        std::fs::write(&authority_file, &database.authority)?;
        Ok(SharedStores { url_file, authority_file, bucket: Objects::shared().bucket()? })
    }

    pub fn give_to(&self, gateway: &mut Command) {
        gateway
            .arg(format!("--database-url-file={}", self.url_file.display()))
            .arg(format!("--database-ca-file={}", self.authority_file.display()))
            .arg(format!("--s3-endpoint={}", Objects::shared().endpoint()))
            .arg(format!("--s3-bucket={}", self.bucket))
            .arg("--s3-allow-http")
            .env("AWS_ACCESS_KEY_ID", ACCESS_KEY)
            .env("AWS_SECRET_ACCESS_KEY", SECRET_KEY);
    }
}
