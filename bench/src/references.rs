//! What the gateway is measured against, as processes with TLS in front of the same model.

use std::net::SocketAddr;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use agentrun_protocol::routes::CHAT_COMPLETIONS;
use anyhow::{Context, Result, ensure};

/// A reference; it ends when this is dropped.
pub struct Proxy {
    pub name: &'static str,
    pub url: String,
    /// It gets one of so many calls.
    pub thinned: usize,
    address: SocketAddr,
    certificate: reqwest::Certificate,
    child: Child,
    /// The one that works, where the child only watches it.
    worker: Option<u32>,
    _folder: tempfile::TempDir,
}

/// Give a process the first core, with all its threads and what it starts.
pub fn pin(pid: u32) -> Result<()> {
    allow(pid, "0")
}

/// Give it all cores again.
pub fn unpin(pid: u32) -> Result<()> {
    let last = std::fs::read_to_string("/sys/devices/system/cpu/online")?;
    allow(pid, last.trim())
}

fn allow(pid: u32, cores: &str) -> Result<()> {
    let pinned =
        Command::new("taskset").args(["--all-tasks", "--cpu-list", "--pid", cores, &pid.to_string()]).stdout(Stdio::null()).status()?;
    ensure!(pinned.success(), "taskset could not give process {pid} the cores {cores}");
    Ok(())
}

impl Proxy {
    /// The bare proxy of this program.
    pub async fn hyper(upstream: SocketAddr) -> Result<Proxy> {
        Self::start("a bare hyper proxy", |folder, listen| {
            let mut command = Command::new(std::env::current_exe()?);
            command.args(["proxy", "--listen", &listen.to_string(), "--upstream", &upstream.to_string(), "--certificates"]).arg(folder);
            Ok(command)
        })
        .await
    }

    /// nginx as a plain proxy with one worker; `None`, loudly, where it is not installed.
    pub async fn nginx(upstream: SocketAddr) -> Result<Option<Proxy>> {
        if Command::new("nginx").arg("-v").stderr(Stdio::null()).status().is_err() {
            println!("SKIPPED: nginx is not installed, so that nothing is compared to it: apt-get install nginx-light");
            return Ok(None);
        }
        let mut proxy = Self::start("nginx", |folder, listen| {
            let place = folder.display();
            let config = format!(
                "daemon off; worker_processes 1; pid {place}/pid; error_log {place}/error.log;
                 events {{}}
                 http {{
                   access_log off; client_body_temp_path {place}/b; proxy_temp_path {place}/p; fastcgi_temp_path {place}/f;
                   uwsgi_temp_path {place}/u; scgi_temp_path {place}/s; client_body_buffer_size 1m; keepalive_requests 1000000;
                   upstream model {{ server {upstream}; keepalive 32; }}
                   server {{
                     listen {listen} ssl http2; ssl_certificate {place}/tls.crt; ssl_certificate_key {place}/tls.key;
                     location / {{ proxy_pass http://model; proxy_http_version 1.1; proxy_set_header Connection \"\"; proxy_buffering off; }}
                   }}
                 }}"
            );
            std::fs::write(folder.join("nginx.conf"), config)?;
            let mut command = Command::new("nginx");
            command.arg("-c").arg(folder.join("nginx.conf")).arg("-e").arg(folder.join("error.log"));
            Ok(command)
        })
        .await?;
        let children = format!("/proc/{0}/task/{0}/children", proxy.child.id());
        proxy.worker = std::fs::read_to_string(children)?.split_whitespace().next().and_then(|pid| pid.parse().ok());
        ensure!(proxy.worker.is_some(), "nginx has no worker");
        Ok(Some(proxy))
    }

    /// LiteLLM's proxy with one worker and no database; `None`, loudly, where `bench/references.sh` could not install it.
    pub async fn litellm(upstream: SocketAddr, model: &str) -> Result<Option<Proxy>> {
        let Some(program) = std::env::var_os("AGENTRUN_LITELLM") else {
            println!("SKIPPED: LiteLLM is not installed, so that nothing is compared to it: bench/references.sh");
            return Ok(None);
        };
        let mut proxy = Self::start("LiteLLM", |folder, listen| {
            let parameters = serde_json::json!({
                "model": format!("openai/{model}"), "api_base": format!("http://{upstream}/v1"), "api_key": "sk-provider-key",
            });
            let config = serde_json::json!({ "model_list": [{ "model_name": model, "litellm_params": parameters }] });
            std::fs::write(folder.join("config.yaml"), config.to_string())?; // JSON is YAML
            let mut command = Command::new(program);
            command.arg("--config").arg(folder.join("config.yaml")).args(["--host", "127.0.0.1", "--num_workers", "1"]);
            command.args(["--port", &listen.port().to_string(), "--telemetry", "False"]);
            command.arg("--ssl_keyfile_path").arg(folder.join("tls.key")).arg("--ssl_certfile_path").arg(folder.join("tls.crt"));
            command.envs([("LITELLM_LOG", "ERROR"), ("LITELLM_LOCAL_MODEL_COST_MAP", "True")]);
            let log = std::fs::File::create(folder.join("log"))?;
            command.stdout(log.try_clone()?).stderr(log);
            Ok(command)
        })
        .await?;
        proxy.thinned = 8;
        Ok(Some(proxy))
    }

    async fn start(name: &'static str, command: impl FnOnce(&Path, SocketAddr) -> Result<Command>) -> Result<Proxy> {
        let folder = tempfile::tempdir()?;
        let made = rcgen::generate_simple_self_signed(vec!["localhost".to_owned()])?;
        std::fs::write(folder.path().join("tls.crt"), made.cert.pem())?;
        std::fs::write(folder.path().join("tls.key"), made.signing_key.serialize_pem())?;
        let address = std::net::TcpListener::bind(("127.0.0.1", 0))?.local_addr()?;
        let child = command(folder.path(), address)?.spawn().with_context(|| format!("starting {name}"))?;
        let certificate = reqwest::Certificate::from_pem(made.cert.pem().as_bytes())?;
        let url = format!("https://localhost:{}{CHAT_COMPLETIONS}", address.port());
        let proxy = Proxy { name, url, thinned: 1, address, certificate, child, worker: None, _folder: folder };
        let begun = Instant::now();
        while tokio::net::TcpStream::connect(address).await.is_err() {
            ensure!(begun.elapsed() < Duration::from_secs(120), "{name} does not listen");
            tokio::time::sleep(Duration::from_millis(20)).await; // that a process listens can only be tried
        }
        Ok(proxy)
    }

    /// The process that does the work.
    pub fn pid(&self) -> u32 {
        self.worker.unwrap_or(self.child.id())
    }

    /// A client with a connection of its own.
    pub fn client(&self) -> Result<reqwest::Client> {
        Ok(reqwest::Client::builder().tls_certs_only([self.certificate.clone()]).resolve("localhost", self.address).build()?)
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        // nginx's worker ends with its master only if that is asked to end.
        let _ = Command::new("kill").arg(self.child.id().to_string()).status();
        let _ = self.child.wait();
    }
}
