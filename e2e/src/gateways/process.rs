//! One gateway process of a test bed: built if need be, started on ports of its own, ended with the test.

use std::net::{SocketAddr, TcpListener};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};

use super::Bed;
use crate::programs::program;

/// A gateway process. It ends when this is dropped.
pub struct Gateway {
    child: Child,
    /// Of the sandbox listener.
    pub address: SocketAddr,
    pub url: String,
    /// The people listener's base address; `http` reaches it too.
    pub people_url: String,
    /// The aggregated listener's, which wants the API server's certificate.
    pub aggregated_url: String,
    pub aggregated: SocketAddr,
    pub http: reqwest::Client,
    /// Base address of the operations listener, plain HTTP.
    pub operations: String,
    log: PathBuf,
}

impl Bed {
    /// Start a gateway and wait until it is ready. The same `instance` again takes over what the one before left.
    pub async fn gateway(&self, instance: &str) -> Result<Gateway> {
        self.gateway_with(instance, &["--drain-seconds=2"]).await
    }

    /// The same with other arguments.
    pub async fn gateway_with(&self, instance: &str, arguments: &[&str]) -> Result<Gateway> {
        let addresses = Addresses::free()?;
        let (mut command, log) = self.gateway_command(instance, &addresses, &self.server.kubeconfig_path(), arguments)?;
        let Addresses { sandbox, people, aggregated, operations } = addresses;
        let child = command.spawn().context("starting a gateway with setpriv (util-linux)")?;
        let name = self.host();
        let http = self.client_through(sandbox)?;
        let url = format!("https://{name}:{}", sandbox.port());
        let people_url = format!("https://{name}:{}", people.port());
        let aggregated_url = format!("https://{name}:{}", aggregated.port());
        let operations = format!("http://{operations}");
        let mut gateway = Gateway { child, address: sandbox, url, people_url, aggregated_url, aggregated, http, operations, log };
        gateway.ready().await?;
        Ok(gateway)
    }

    /// The command that starts a gateway at these addresses, with its output in this file.
    pub fn gateway_command(
        &self,
        instance: &str,
        addresses: &Addresses,
        kubeconfig: &Path,
        arguments: &[&str],
    ) -> Result<(Command, PathBuf)> {
        let data = self.data.path().join(instance);
        std::fs::create_dir_all(&data)?;
        let logs = Path::new(env!("CARGO_MANIFEST_DIR")).join("../target/test-logs/gateways");
        std::fs::create_dir_all(&logs)?;
        let log = logs.join(format!("{}-{}-{instance}.log", std::process::id(), self.system));
        let output = std::fs::File::options().create(true).append(true).open(&log)?;
        // The process ends with the thread of its test, whatever happens to us.
        let mut command = Command::new("setpriv");
        command
            .args(["--pdeathsig", "KILL", "--"])
            .arg(program("agentrun-gateway")?)
            .arg(format!("--namespace={}", self.system))
            .arg(format!("--instance={}", self.full_name(instance)))
            .arg(format!("--sandbox-listen={}", addresses.sandbox))
            .arg(format!("--people-listen={}", addresses.people))
            .arg(format!("--aggregated-listen={}", addresses.aggregated))
            .arg(format!("--operations-listen={}", addresses.operations))
            .arg(format!("--data-dir={}", data.display()))
            .args(arguments)
            .env_clear()
            .env("KUBECONFIG", kubeconfig)
            .env("RUST_LOG", "info")
            .stdin(Stdio::null())
            .stdout(output.try_clone()?)
            .stderr(output);
        if let Some(stores) = &self.shared_stores {
            stores.give_to(&mut command);
        }
        Ok((command, log))
    }
}

impl Bed {
    /// What an instance is called. All gateways see the runs of all tests, and one of the same name would take a reservation for its own.
    pub fn full_name(&self, instance: &str) -> String {
        format!("{}-{instance}", self.system)
    }
}

impl Gateway {
    async fn ready(&mut self) -> Result<()> {
        let begun = Instant::now();
        let http = reqwest::Client::new();
        loop {
            if http.get(format!("{}/readyz", self.operations)).send().await.is_ok_and(|answer| answer.status().is_success()) {
                return Ok(());
            }
            if let Some(status) = self.child.try_wait()? {
                bail!("the gateway ended ({status}); its log: {}", self.log_tail());
            }
            ensure!(begun.elapsed() < Duration::from_secs(60), "the gateway is not ready; its log: {}", self.log_tail());
            tokio::time::sleep(Duration::from_millis(50)).await; // readiness can only be polled
        }
    }

    /// POST a chat/completions body.
    pub async fn chat(&self, token: &str, body: &serde_json::Value) -> Result<reqwest::Response> {
        let url = format!("{}{}", self.url, agentrun_protocol::routes::CHAT_COMPLETIONS);
        Ok(self.http.post(url).bearer_auth(token).json(body).send().await?)
    }

    /// Its process id.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// End the process without a warning.
    pub fn crash(&mut self) -> Result<()> {
        self.child.kill()?;
        self.child.wait()?;
        Ok(())
    }

    /// Ask it to end, as the kubelet does.
    pub fn ask_to_end(&self) -> Result<()> {
        let asked = Command::new("kill").arg(self.child.id().to_string()).status()?;
        ensure!(asked.success(), "kill could not signal process {}", self.child.id());
        Ok(())
    }

    /// Ask it to end, and wait until it has.
    pub fn terminate(&mut self) -> Result<()> {
        self.ask_to_end()?;
        let ended = self.child.wait()?;
        ensure!(ended.success(), "the gateway ended with {ended}; its log: {}", self.log_tail());
        Ok(())
    }

    /// What it logged.
    pub fn log(&self) -> String {
        std::fs::read_to_string(&self.log).unwrap_or_default()
    }

    fn log_tail(&self) -> String {
        let log = self.log();
        let lines: Vec<&str> = log.lines().collect();
        lines[lines.len().saturating_sub(30)..].join("\n")
    }
}

impl Drop for Gateway {
    fn drop(&mut self) {
        let _ = self.crash();
    }
}

/// Where the four listeners of a gateway are.
#[derive(Clone, Copy, Debug)]
pub struct Addresses {
    pub sandbox: SocketAddr,
    pub people: SocketAddr,
    pub aggregated: SocketAddr,
    pub operations: SocketAddr,
}

impl Addresses {
    /// On loopback, on ports that are free now.
    pub fn free() -> Result<Addresses> {
        let held = [(); 4].map(|()| TcpListener::bind(("127.0.0.1", 0)).and_then(|listener| Ok((listener.local_addr()?, listener))));
        let mut addresses = Vec::new();
        for listener in &held {
            match listener {
                Ok((address, _)) => addresses.push(*address),
                Err(error) => bail!("no free port: {error}"),
            }
        }
        let [sandbox, people, aggregated, operations] =
            addresses.try_into().map_err(|_| anyhow::anyhow!("four listeners have four addresses"))?;
        Ok(Addresses { sandbox, people, aggregated, operations })
    }
}
