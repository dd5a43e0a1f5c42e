//! Waiting for a condition of an object, by watching it. Nothing here sleeps; a wait that fails says what it last saw.

use std::fmt::Debug;
use std::time::Duration;

use anyhow::{Result, bail};
use futures::StreamExt;
use kube::runtime::watcher::watch_object;
use kube::{Api, Resource};
use serde::Serialize;
use serde::de::DeserializeOwned;

/// How long something may take on a small, busy node.
#[derive(Clone, Copy, Debug)]
pub enum Within {
    /// A reaction of one process: 20 s.
    Short,
    /// A sandbox comes up or goes: 90 s.
    Medium,
    /// A whole run, or a process that starts again and takes over: 4 min.
    Long,
}

impl Within {
    /// The time.
    pub fn duration(self) -> Duration {
        Duration::from_secs(match self {
            Within::Short => 20,
            Within::Medium => 90,
            Within::Long => 240,
        })
    }
}

/// Wait until the object exists and `test` holds for it. `what` completes "waiting until …".
pub async fn until<K>(api: &Api<K>, name: &str, within: Within, what: &str, test: impl Fn(&K) -> bool) -> Result<K>
where
    K: Resource<DynamicType = ()> + Clone + DeserializeOwned + Debug + Send + Serialize + 'static,
{
    match watch(api, name, within, what, |object| object.is_some_and(&test)).await? {
        Some(object) => Ok(object),
        None => bail!("{name} vanished while waiting until {what}"),
    }
}

/// Wait until the object does not exist.
pub async fn until_gone<K>(api: &Api<K>, name: &str, within: Within) -> Result<()>
where
    K: Resource<DynamicType = ()> + Clone + DeserializeOwned + Debug + Send + Serialize + 'static,
{
    watch(api, name, within, "it is gone", |object| object.is_none()).await.map(drop)
}

async fn watch<K>(api: &Api<K>, name: &str, within: Within, what: &str, test: impl Fn(Option<&K>) -> bool) -> Result<Option<K>>
where
    K: Resource<DynamicType = ()> + Clone + DeserializeOwned + Debug + Send + Serialize + 'static,
{
    let mut last = None;
    let mut objects = std::pin::pin!(watch_object(api.clone(), name));
    let found = tokio::time::timeout(within.duration(), async {
        while let Some(object) = objects.next().await {
            // The watcher resumes by itself after an error.
            let Ok(object) = object else { continue };
            let done = test(object.as_ref());
            last = Some(object);
            if done {
                return true;
            }
        }
        false
    })
    .await;
    match (found, last) {
        (Ok(true), Some(object)) => Ok(object),
        (_, last) => {
            let seen = match last {
                None => "it was never seen".to_owned(),
                Some(None) => "it does not exist".to_owned(),
                Some(Some(object)) => format!("last seen as {}", summary(&object)),
            };
            bail!("{} {name}: waited {:?} until {what}; {seen}", K::kind(&()), within.duration())
        }
    }
}

fn summary(object: &impl Serialize) -> String {
    let value = serde_json::to_value(object).unwrap_or_default();
    let text = value.get("status").unwrap_or(&value).to_string();
    text.chars().take(3000).collect()
}
