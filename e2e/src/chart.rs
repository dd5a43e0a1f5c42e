//! Objects of the Helm chart as helm renders them, for tests that need some of them on an API server of their own.

use std::io::Write;
use std::process::{Command, Stdio};

use anyhow::{Context, Result, ensure};
use serde_json::Value;

use crate::api_server::{ApiServer, binary};

/// The objects of one file of the chart's templates; `arguments` are helm's.
pub fn render(server: &ApiServer, template: &str, arguments: &[&str]) -> Result<Vec<Value>> {
    let chart = concat!(env!("CARGO_MANIFEST_DIR"), "/../charts/agentrun");
    let show = format!("templates/{template}");
    let fixed = ["template", "agentrun", chart, "--namespace", "agentrun-system", "--show-only", &show];
    let yaml = output("helm", &[&fixed, arguments].concat(), b"")?;
    let kubeconfig = server.kubeconfig_path();
    let kubeconfig = kubeconfig.to_str().context("a path in UTF-8")?;
    let objects = output("kubectl", &["--kubeconfig", kubeconfig, "create", "--dry-run=client", "-o", "json", "-f", "-"], yaml.as_bytes())?;
    let documents = serde_json::Deserializer::from_str(&objects).into_iter::<Value>().collect::<Result<Vec<_>, _>>()?;
    Ok(documents.into_iter().flat_map(|o| o["items"].as_array().cloned().unwrap_or_else(|| vec![o.clone()])).collect())
}

/// What a program of the cluster prints, given some input; its errors are the error.
pub fn output(program: &str, arguments: &[&str], input: &[u8]) -> Result<String> {
    let mut command = Command::new(binary(program)?);
    let mut child = command.args(arguments).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn()?;
    child.stdin.take().context("an input")?.write_all(input)?;
    let done = child.wait_with_output()?;
    ensure!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
    Ok(String::from_utf8_lossy(&done.stdout).into_owned())
}
