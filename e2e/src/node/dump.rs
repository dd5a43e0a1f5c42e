//! What a failed story leaves for whoever looks into it: objects and logs, in one file beneath `target/`.

use std::fmt::Write;
use std::path::Path;

use k8s_openapi::api::core::v1::{Event, Pod};
use k8s_openapi::api::networking::v1::NetworkPolicy;
use kube::api::{ListParams, LogParams};
use kube::{Api, Resource, ResourceExt};
use serde::Serialize;
use serde::de::DeserializeOwned;

use super::{SYSTEM, Story};

/// Write the file and say where it is. Never fails: what could not be read is written as an error.
pub async fn write(story: &Story) -> String {
    let mut text = String::new();
    let client = &story.node.client;
    objects(&mut text, &story.runs).await;
    objects(&mut text, &story.pods).await;
    objects(&mut text, &Api::<NetworkPolicy>::namespaced(client.clone(), &story.namespace)).await;
    objects(&mut text, &Api::<Event>::namespaced(client.clone(), &story.namespace)).await;
    logs(&mut text, &story.pods).await;
    logs(&mut text, &Api::namespaced(client.clone(), SYSTEM)).await;
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("../target/stories");
    let path = directory.join(format!("{}.txt", story.namespace));
    match std::fs::create_dir_all(&directory).and_then(|()| std::fs::write(&path, &text)) {
        Ok(()) => path.display().to_string(),
        Err(error) => format!("{error}\n{text}"),
    }
}

async fn objects<K>(text: &mut String, api: &Api<K>)
where
    K: Resource<DynamicType = ()> + Clone + DeserializeOwned + std::fmt::Debug + Serialize,
{
    let _ = writeln!(text, "=== {}", K::plural(&()));
    match api.list(&ListParams::default()).await {
        Ok(list) => {
            for mut object in list {
                object.meta_mut().managed_fields = None;
                let _ = writeln!(text, "{}---", serde_yaml::to_string(&object).unwrap_or_default());
            }
        }
        Err(error) => {
            let _ = writeln!(text, "{error}");
        }
    }
}

async fn logs(text: &mut String, pods: &Api<Pod>) {
    for pod in pods.list(&ListParams::default()).await.map(|list| list.items).unwrap_or_default() {
        let spec = pod.spec.clone().unwrap_or_default();
        for container in spec.init_containers.unwrap_or_default().into_iter().chain(spec.containers) {
            for previous in [true, false] {
                let parameters =
                    LogParams { container: Some(container.name.clone()), previous, tail_lines: Some(400), ..LogParams::default() };
                if let Ok(log) = pods.logs(&pod.name_any(), &parameters).await {
                    let which = if previous { " (previous)" } else { "" };
                    let _ = writeln!(text, "=== log of {}/{}{which}\n{log}", pod.name_any(), container.name);
                }
            }
        }
    }
}
