//! The master keys of the gateway's tokens: made once, if absent, and never touched again, so that whoever rotates them
//! (by adding an entry with a higher number) is not undone.

use std::time::Duration;

use agentrun_crds::names;
use k8s_openapi::ByteString;
use k8s_openapi::api::core::v1::Secret;
use kube::api::{Api, ObjectMeta, PostParams};

use crate::context::Context;
use crate::error::Error;

const RETRY: Duration = Duration::from_secs(5);

/// Until they are there.
pub async fn run(ctx: &Context) {
    while let Err(error) = ensure(ctx).await {
        tracing::warn!(%error, "the token keys could not be made; trying again");
        tokio::time::sleep(RETRY).await;
    }
}

/// Create the Secret if there is none.
pub async fn ensure(ctx: &Context) -> Result<(), Error> {
    let secrets: Api<Secret> = Api::namespaced(ctx.client.clone(), &ctx.settings.namespace);
    if secrets.get_opt(names::TOKEN_KEYS_SECRET).await.map_err(Error::api("read the token keys"))?.is_some() {
        return Ok(());
    }
    let mut key = vec![0; 32];
    aws_lc_rs::rand::fill(&mut key).map_err(|_| Error::Random)?;
    let secret = Secret {
        metadata: ObjectMeta { name: Some(names::TOKEN_KEYS_SECRET.into()), ..ObjectMeta::default() },
        type_: Some("Opaque".into()),
        data: Some([("1".to_owned(), ByteString(key))].into()),
        ..Secret::default()
    };
    let parameters = PostParams { field_manager: Some(names::OPERATOR.into()), ..PostParams::default() };
    match secrets.create(&parameters, &secret).await {
        Ok(_) => Ok(()),
        Err(kube::Error::Api(status)) if status.is_already_exists() => Ok(()),
        Err(source) => Err(Error::Api { what: "create the token keys", source }),
    }
}
