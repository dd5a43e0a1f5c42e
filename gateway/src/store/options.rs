//! Command-line options of the stores.

use std::path::Path;

use super::postgres::DatabaseOptions;
use super::s3::ObjectOptions;
use super::{Quotas, StoreError};

#[derive(clap::Args, Clone, Debug)]
pub struct StoreOptions {
    /// Delete events and artifacts of a run so many days after it ended; the log then reads as a gap and its last event.
    #[arg(long, default_value_t = 30, value_parser = clap::value_parser!(u32).range(1..=3650))]
    pub retention_days: u32,
    /// Most bytes of the embedded database; appends answer 507 beyond it.
    #[arg(long, default_value_t = 64 << 30, value_parser = clap::value_parser!(u64).range(1 << 20..))]
    pub database_max_bytes: u64,
    /// Most bytes of blobs of one namespace.
    #[arg(long, default_value_t = 4 << 30, value_parser = clap::value_parser!(i64).range(1 << 20..))]
    pub namespace_blob_max_bytes: i64,
    #[command(flatten)]
    pub database: DatabaseOptions,
    #[command(flatten)]
    pub objects: ObjectOptions,
}

/// Where the stores are.
pub(super) enum Place<'a> {
    /// In a folder of this gateway.
    Embedded,
    /// In a database, whose URL is in this file, and a bucket, for any number of gateways.
    Shared(&'a Path),
}

impl StoreOptions {
    pub(super) fn quotas(&self) -> Quotas {
        Quotas { namespace_blob_bytes: self.namespace_blob_max_bytes, ..Quotas::default() }
    }

    pub(super) fn place(&self) -> Result<Place<'_>, StoreError> {
        let bucket = self.objects.s3_bucket.is_some() || self.objects.s3_endpoint.is_some();
        match (&self.database.database_url_file, bucket) {
            (None, false) => Ok(Place::Embedded),
            (Some(url_file), true) => Ok(Place::Shared(url_file)),
            (Some(_), false) => Err(StoreError::Failed(
                "--database-url-file needs --s3-endpoint and --s3-bucket: gateways that share a database must share the content of artifacts too".into(),
            )),
            (None, true) => Err(StoreError::Failed(
                "--s3-endpoint and --s3-bucket need --database-url-file: what is in the bucket is written down in a database".into(),
            )),
        }
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;
    use crate::config::Config;

    #[test]
    fn database_and_bucket_come_together() {
        let database = "--database-url-file=/nowhere";
        let bucket = "--s3-bucket=b";
        for (arguments, expected) in [
            (vec![], Ok(false)),
            (vec![database, bucket], Ok(true)),
            (vec![database], Err("needs --s3-endpoint and --s3-bucket")),
            (vec![bucket], Err("need --database-url-file")),
        ] {
            let config = Config::try_parse_from(["gateway"].into_iter().chain(arguments.clone())).unwrap();
            match (config.store.place(), expected) {
                (Ok(place), Ok(shared)) => assert_eq!(matches!(place, Place::Shared(_)), shared, "{arguments:?}"),
                (Err(error), Err(says)) => assert!(error.to_string().contains(says), "{error}"),
                (place, expected) => panic!("{arguments:?}: {:?}, not {expected:?}", place.map(|_| ())),
            }
        }
    }
}
