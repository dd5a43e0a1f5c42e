//! Where the bucket is, and with which credentials.

use std::path::PathBuf;

use rusty_s3::{Credentials, UrlStyle};

use crate::store::StoreError;
use crate::tls;

/// Command-line options of the object store. The credentials are in the environment, AWS_ACCESS_KEY_ID and
/// AWS_SECRET_ACCESS_KEY (and AWS_SESSION_TOKEN where there is one).
#[derive(clap::Args, Clone, Debug)]
pub struct ObjectOptions {
    /// URL of an S3-compatible store, such as https://s3.eu-central-1.amazonaws.com
    #[arg(long, value_name = "URL")]
    pub s3_endpoint: Option<String>,
    /// Its bucket for the content of artifacts; needed with --database-url-file.
    #[arg(long, value_name = "NAME")]
    pub s3_bucket: Option<String>,
    /// Its region.
    #[arg(long, value_name = "NAME", default_value = "us-east-1")]
    pub s3_region: String,
    /// Put before the name of each object, for a bucket that others use too.
    #[arg(long, value_name = "PREFIX", default_value = "")]
    pub s3_prefix: String,
    /// Put the bucket's name into the host rather than into the path.
    #[arg(long)]
    pub s3_virtual_host: bool,
    /// Let --s3-endpoint begin with http://. What is stored then crosses the network as it is.
    #[arg(long)]
    pub s3_allow_http: bool,
    /// PEM file of the authorities that the store's certificate may come from; absent: this machine's.
    #[arg(long, value_name = "PATH")]
    pub s3_ca_file: Option<PathBuf>,
}

/// The environment's.
pub fn credentials() -> Result<Credentials, StoreError> {
    Credentials::from_env().ok_or_else(|| failed("--s3-bucket needs AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY in the environment"))
}

/// The options, checked.
pub(super) struct Checked {
    pub bucket: rusty_s3::Bucket,
    /// Empty, or with a slash at its end.
    pub prefix: String,
    pub tls: rustls::ClientConfig,
}

impl ObjectOptions {
    pub(super) fn check(&self) -> Result<Checked, StoreError> {
        let endpoint = self.s3_endpoint.as_deref().ok_or_else(|| failed("--s3-bucket needs --s3-endpoint"))?;
        let name = self.s3_bucket.clone().ok_or_else(|| failed("--s3-endpoint needs --s3-bucket"))?;
        let plain = endpoint.starts_with("http://");
        if endpoint.contains('@') {
            return Err(failed("--s3-endpoint must hold no credentials; they go into AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY"));
        }
        if !(endpoint.starts_with("https://") || plain && self.s3_allow_http) {
            return Err(failed(format!(
                "--s3-endpoint {endpoint:?} must begin with https://, or with http:// and --s3-allow-http beside it"
            )));
        }
        let bad = |error: String| failed(format!("--s3-endpoint {endpoint:?} with bucket {name:?}: {error}"));
        let style = if self.s3_virtual_host { UrlStyle::VirtualHost } else { UrlStyle::Path };
        let url = endpoint.parse().map_err(|error| bad(format!("{error}")))?;
        let bucket = rusty_s3::Bucket::new(url, style, name.clone(), self.s3_region.clone()).map_err(|error| bad(error.to_string()))?;
        let tls = match &self.s3_ca_file {
            Some(path) => tls::trusting_file(path).map_err(|error| failed(format!("--s3-ca-file {error}")))?,
            None if plain => tls::trusting(rustls::RootCertStore::empty()),
            None => tls::trusting_machine()
                .map_err(|error| failed(format!("--s3-ca-file is needed, since this machine's authorities cannot be read: {error}")))?,
        };
        let prefix = match self.s3_prefix.trim_matches('/') {
            "" => String::new(),
            prefix => format!("{prefix}/"),
        };
        Ok(Checked { bucket, prefix, tls })
    }
}

fn failed(text: impl Into<String>) -> StoreError {
    StoreError::Failed(text.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_whole_and_safe_settings_are_taken() {
        let options = |endpoint: Option<&str>, bucket: Option<&str>, allow_http| ObjectOptions {
            s3_endpoint: endpoint.map(str::to_owned),
            s3_bucket: bucket.map(str::to_owned),
            s3_region: "r".into(),
            s3_prefix: "/a/b/".into(),
            s3_virtual_host: false,
            s3_allow_http: allow_http,
            s3_ca_file: None,
        };
        for (endpoint, bucket, allow_http, says) in [
            (Some("http://127.0.0.1:1"), Some("b"), true, ""),
            (Some("http://127.0.0.1:1"), Some("b"), false, "--s3-allow-http"),
            (Some("127.0.0.1:1"), Some("b"), true, "must begin with https://"),
            (Some("https://k:secret@h"), Some("b"), true, "must hold no credentials"),
            (Some("http://"), Some("b"), true, "--s3-endpoint"),
            (None, Some("b"), true, "needs --s3-endpoint"),
            (Some("http://127.0.0.1:1"), None, true, "needs --s3-bucket"),
        ] {
            match options(endpoint, bucket, allow_http).check() {
                Ok(checked) => assert_eq!((says, checked.prefix.as_str()), ("", "a/b/"), "{endpoint:?}"),
                Err(error) => {
                    assert!(!says.is_empty() && error.to_string().contains(says), "{endpoint:?}: {error}");
                    assert!(!error.to_string().contains("secret"), "{error}");
                }
            }
        }
    }
}
