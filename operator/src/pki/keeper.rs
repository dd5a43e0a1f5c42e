//! Keeps the Secrets of authority and serving certificate as `rotation` says. Writes with the resourceVersion it read, so two
//! keepers never overwrite each other.

use std::collections::BTreeMap;
use std::time::Duration;

use agentrun_crds::names;
use jiff::Timestamp;
use k8s_openapi::ByteString;
use k8s_openapi::api::core::v1::Secret;
use kube::api::{Api, ObjectMeta, PostParams};
use zeroize::Zeroizing;

use super::certificate::{self, Life, Pair};
use super::rotation::{self, Found, Signer};
use crate::context::Context;
use crate::error::Error;

const PERIOD: Duration = Duration::from_secs(60);
const RETRY: Duration = Duration::from_secs(5);
const TRIES: usize = 4;

/// For ever; failures are logged and tried again.
pub async fn run(ctx: &Context) {
    loop {
        let pause = match keep(ctx).await {
            Ok(()) => PERIOD,
            Err(error) => {
                tracing::warn!(%error, "the gateway's certificate could not be looked after; trying again");
                RETRY
            }
        };
        tokio::time::sleep(pause).await;
    }
}

/// The names of the gateway's certificate.
pub fn dns_names(service: &str, namespace: &str) -> Vec<String> {
    vec![
        service.to_owned(),
        format!("{service}.{namespace}"),
        format!("{service}.{namespace}.svc"),
        format!("{service}.{namespace}.svc.cluster.local"),
    ]
}

/// Bring both Secrets to what they should be.
pub async fn keep(ctx: &Context) -> Result<(), Error> {
    let secrets: Api<Secret> = Api::namespaced(ctx.client.clone(), &ctx.settings.namespace);
    for _ in 0..TRIES {
        if once(ctx, &secrets).await? {
            return Ok(());
        }
    }
    Err(Error::Restless(TRIES))
}

/// One look and what follows from it. False if somebody else wrote meanwhile.
async fn once(ctx: &Context, secrets: &Api<Secret>) -> Result<bool, Error> {
    let now = (ctx.clock)();
    let names = dns_names(&ctx.settings.gateway_service, &ctx.settings.namespace);
    let ca_secret = secrets.get_opt(names::CA_SECRET).await.map_err(Error::api("read the authority"))?;
    let serving_secret = secrets.get_opt(names::SERVING_SECRET).await.map_err(Error::api("read the gateway's certificate"))?;
    let mut current = pair(ca_secret.as_ref(), "tls.crt", "tls.key");
    let mut previous = pair(ca_secret.as_ref(), "previous.crt", "previous.key");
    let found = Found {
        current: current.as_ref().and_then(certificate::read),
        previous: previous.as_ref().and_then(certificate::read),
        serving: pair(serving_secret.as_ref(), "tls.crt", "tls.key").as_ref().and_then(certificate::read),
    };
    let steps = rotation::steps(&found, &names, now.as_second());
    if steps.new_authority {
        let made = certificate::authority(now, Life(rotation::AUTHORITY_LIFE)).map_err(|_| Error::Random)?;
        previous = current.take().filter(|_| steps.trust_previous);
        current = Some(made);
        let data = authority_data(current.as_ref(), previous.as_ref());
        if !write(secrets, names::CA_SECRET, ca_secret.as_ref(), data).await? {
            return Ok(false);
        }
        tracing::info!("a new authority for the gateway was made");
    }
    let Some(newest) = &current else { return Ok(false) };
    let bundle = match previous.as_ref().filter(|_| steps.trust_previous) {
        Some(previous) => format!("{}{}", newest.certificate, previous.certificate),
        None => newest.certificate.clone(),
    };
    let stands = text(serving_secret.as_ref(), "ca.crt").is_some_and(|text| *text == bundle);
    if !steps.new_serving && stands {
        if let Some(serving) = &found.serving {
            ctx.metrics.certificate_ends.set(serving.not_after);
        }
        return Ok(true);
    }
    let serving = if steps.new_serving {
        let signer = if steps.signer == Signer::Previous { previous.as_ref().unwrap_or(newest) } else { newest };
        tracing::info!("a new certificate for the gateway is made");
        certificate::serving(signer, &names, now, Life(rotation::SERVING_LIFE)).map_err(|_| Error::Random)?
    } else {
        match pair(serving_secret.as_ref(), "tls.crt", "tls.key") {
            Some(pair) => pair,
            None => return Ok(false),
        }
    };
    let mut data = pair_data(&serving, "tls.crt", "tls.key");
    data.insert("ca.crt".into(), ByteString(bundle.into_bytes()));
    write(secrets, names::SERVING_SECRET, serving_secret.as_ref(), data).await
}

fn text(secret: Option<&Secret>, key: &str) -> Option<Zeroizing<String>> {
    let bytes = &secret?.data.as_ref()?.get(key)?.0;
    String::from_utf8(bytes.clone()).ok().map(Zeroizing::new)
}

fn pair(secret: Option<&Secret>, certificate: &str, key: &str) -> Option<Pair> {
    Some(Pair { certificate: (*text(secret, certificate)?).clone(), key: text(secret, key)? })
}

fn pair_data(pair: &Pair, certificate: &str, key: &str) -> BTreeMap<String, ByteString> {
    [
        (certificate.to_owned(), ByteString(pair.certificate.clone().into_bytes())),
        (key.to_owned(), ByteString(pair.key.as_bytes().to_vec())),
    ]
    .into()
}

fn authority_data(current: Option<&Pair>, previous: Option<&Pair>) -> BTreeMap<String, ByteString> {
    let mut data = BTreeMap::new();
    if let Some(current) = current {
        data.extend(pair_data(current, "tls.crt", "tls.key"));
    }
    if let Some(previous) = previous {
        data.extend(pair_data(previous, "previous.crt", "previous.key"));
    }
    data
}

/// Create, or replace what was read. False if somebody else wrote first.
pub async fn write(secrets: &Api<Secret>, name: &str, read: Option<&Secret>, data: BTreeMap<String, ByteString>) -> Result<bool, Error> {
    let metadata = match read {
        Some(secret) => secret.metadata.clone(),
        None => ObjectMeta { name: Some(name.to_owned()), ..ObjectMeta::default() },
    };
    let type_ = read.and_then(|secret| secret.type_.clone()).unwrap_or_else(|| "kubernetes.io/tls".into());
    let secret = Secret { metadata, type_: Some(type_), data: Some(data), ..Secret::default() };
    let parameters = PostParams { field_manager: Some(names::OPERATOR.into()), ..PostParams::default() };
    let result = match read {
        Some(_) => secrets.replace(name, &parameters, &secret).await,
        None => secrets.create(&parameters, &secret).await,
    };
    match result {
        Ok(_) => Ok(true),
        Err(kube::Error::Api(status)) if status.is_already_exists() || status.is_conflict() || status.is_not_found() => Ok(false),
        Err(source) => Err(Error::Api { what: "write a Secret of the gateway", source }),
    }
}

/// The clock of a process.
pub fn system_clock() -> Timestamp {
    Timestamp::now()
}
