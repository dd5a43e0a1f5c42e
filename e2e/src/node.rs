//! The real node, for the stories: its client, its images, and the one deployment of the scripted model. A story gets a
//! namespace of its own (`story`); those that break a process for all have the node to themselves (`story_alone`).

mod colleague;
mod dump;
mod fence;
mod model;
mod people;
mod process;
mod setup;
mod shop;
mod story;
mod wait;

pub use colleague::Colleague;
pub use model::Model;
pub use people::{People, Reply, gateway_address, gateway_ca, gateway_client, server_name};
pub use process::{Process, processes};
pub use setup::Offer;
pub use shop::{fixing_turns, original_tree, shop_files, tests_pass};
pub use story::{Story, condition, phase, story, story_alone, two_stories};
pub use wait::{Within, until, until_gone};

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use kube::config::{KubeConfigOptions, Kubeconfig};
use serde::Deserialize;

/// Namespace of operator and gateway, as `e2e/install.sh` installs them.
pub const SYSTEM: &str = "agentrun-system";

/// A node with the chart installed. Belongs to one async runtime, so each story has its own.
#[derive(Clone)]
pub struct Node {
    pub client: kube::Client,
    /// For programs such as kubectl.
    pub kubeconfig: PathBuf,
    images: BTreeMap<String, Image>,
}

/// One of our images in the node.
#[derive(Deserialize, Clone)]
pub struct Image {
    /// Full reference with a tag.
    pub image: String,
    pub digest: String,
}

impl Node {
    /// The node that `AGENTRUN_KUBECONFIG` names, with the images that `AGENTRUN_IMAGES` lists.
    pub async fn connect() -> Result<Node> {
        let hint = "is not set: `make e2e` starts a node, installs the chart and sets it";
        let kubeconfig = PathBuf::from(std::env::var_os("AGENTRUN_KUBECONFIG").with_context(|| format!("AGENTRUN_KUBECONFIG {hint}"))?);
        let images = match std::env::var_os("AGENTRUN_IMAGES") {
            Some(path) => PathBuf::from(path),
            None => Path::new(env!("CARGO_MANIFEST_DIR")).join("../target/images.json"),
        };
        let images = std::fs::read(&images).with_context(|| format!("reading {}; `make images` writes it", images.display()))?;
        let client = kube::Client::try_from(read_kubeconfig(&kubeconfig).await?)?;
        Ok(Node { client, kubeconfig, images: serde_json::from_slice(&images)? })
    }

    /// A client of somebody else, by impersonation.
    pub async fn client_as(&self, user: &str) -> Result<kube::Client> {
        let mut config = read_kubeconfig(&self.kubeconfig).await?;
        config.auth_info.impersonate = Some(user.to_owned());
        Ok(kube::Client::try_from(config)?)
    }

    /// One of our images by its short name.
    pub fn image(&self, name: &str) -> Result<&Image> {
        self.images.get(name).with_context(|| format!("the list of images has no {name}"))
    }
}

async fn read_kubeconfig(path: &Path) -> Result<kube::Config> {
    let config = Kubeconfig::read_from(path).with_context(|| format!("reading {}", path.display()))?;
    Ok(kube::Config::from_custom_kubeconfig(config, &KubeConfigOptions::default()).await?)
}
