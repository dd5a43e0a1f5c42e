//! What code in the sandbox can reach: the gateway's sandbox port, and nothing else. And what it can find: no credential.

use agentrun_crds::agent_run_status::Phase;
use agentrun_crds::names;
use agentrun_e2e::node::{Offer, Story, fixing_turns, gateway_address, story};
use agentrun_protocol::event::EventType;
use agentrun_scripted_model::Turn;
use anyhow::{Context, Result, ensure};
use k8s_openapi::api::core::v1::{Node, Pod, Service};
use kube::Api;
use kube::api::ListParams;
use serde_json::{Value, json};

/// Tries every target at once and prints one JSON object: name -> whether it answered.
const PROBE: &str = r#"
import json, os, socket, sys, threading
targets = json.loads(sys.argv[1])
found = {}
def tcp(name, host, port):
    try:
        socket.create_connection((host, port), 3).close()
        found[name] = True
    except OSError:
        found[name] = False
def udp(name, host, port):
    query = bytes.fromhex("abcd01000001000000000000") + b"\x0akubernetes\x07default\x03svc\x07cluster\x05local\x00\x00\x01\x00\x01"
    s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    s.settimeout(3)
    try:
        s.sendto(query, (host, port))
        found[name] = len(s.recv(512)) > 0
    except OSError:
        found[name] = False
threads = [threading.Thread(target=udp if kind == "udp" else tcp, args=(name, host, port)) for name, kind, host, port in targets]
[t.start() for t in threads]
[t.join() for t in threads]
try:
    socket.getaddrinfo("kubernetes.default.svc.cluster.local", 443)
    found["name resolution"] = True
except OSError:
    found["name resolution"] = False
for path in ["/agentrun/ticket", "/agentrun/token", "/var/run/secrets", "/run/secrets"]:
    found[path] = os.path.exists(path)
def readable(path):
    try:
        with open(path, "rb") as f:
            f.read()
        return True
    except OSError:
        return False
def command(pid):
    try:
        return open(f"/proc/{pid}/cmdline").read()
    except OSError:
        return ""
found["a process of the runner"] = any(command(pid).split("\0")[0].endswith("/runner") for pid in os.listdir("/proc") if pid.isdigit())
found["a token in a readable environment"] = any(
    readable(f"/proc/{pid}/environ") and b"ar1." in open(f"/proc/{pid}/environ", "rb").read() for pid in os.listdir("/proc") if pid.isdigit())
for name, path in [("its own binary", "/agentrun/bin/x"), ("the socket's directory", "/agentrun/socket/x"), ("the image", "/usr/x")]:
    try:
        open(path, "w").close()
        found["writes " + name] = True
    except OSError:
        found["writes " + name] = False
print(json.dumps(found))
"#;

#[tokio::test]
async fn the_sandbox_reaches_the_gateway_and_nothing_else() {
    story("network", body).await;
}

async fn body(story: &Story) -> Result<()> {
    let targets = targets(story).await?;
    let names: Vec<String> = targets.iter().map(|(name, ..)| name.clone()).collect();
    let probe = json!({"argv": ["python3", "-c", PROBE, serde_json::to_string(&targets)?]});
    story.offer(Offer::new([vec![Turn::call("run_command", probe)], fixing_turns()].concat())).await?;
    story.create("probe", story.spec()).await?;
    story.until_ended("probe", Phase::Succeeded, "Succeeded").await?;
    let events = story.people.all_events(&story.namespace, "probe").await?;
    let result = events.iter().find(|event| event.kind == EventType::ToolResult && event.data["tool"] == "run_command");
    let output = result.context("the probe's result")?.data["output"].as_str().unwrap_or_default();
    let json = output.lines().find(|line| line.starts_with('{')).with_context(|| format!("the probe printed {output}"))?;
    let found: serde_json::Map<String, Value> = serde_json::from_str(json)?;

    // The one that must answer shows that the probe can tell.
    for name in names {
        ensure!(found.contains_key(&name), "{name} was not tried");
    }
    let reached: Vec<&String> = found.iter().filter(|(_, reached)| **reached == true).map(|(name, _)| name).collect();
    assert_eq!(reached, ["the gateway's sandbox port"], "{found:?}");
    Ok(())
}

async fn targets(story: &Story) -> Result<Vec<(String, &'static str, String, u16)>> {
    let client = || story.node.client.clone();
    let service = async |namespace: &str, name: &str| -> Result<String> {
        let service = Api::<Service>::namespaced(client(), namespace).get(name).await?;
        service.spec.and_then(|spec| spec.cluster_ip).context("a cluster address")
    };
    let nodes = Api::<Node>::all(client()).list(&ListParams::default()).await?;
    let addresses = nodes.items.into_iter().next().and_then(|node| node.status).and_then(|status| status.addresses).unwrap_or_default();
    let node = addresses.into_iter().find(|address| address.type_ == "InternalIP").context("the node's address")?.address;
    let pod = |pods: Vec<Pod>| pods.into_iter().find_map(|pod| pod.status?.pod_ip);
    let model =
        pod(Api::<Pod>::namespaced(client(), "scripted-model").list(&ListParams::default()).await?.items).context("the model's address")?;
    let gateway_pod = story.node.component("gateway").await?.status.and_then(|status| status.pod_ip).context("the gateway's address")?;
    let operator_pod = story.node.component("operator").await?.status.and_then(|status| status.pod_ip).context("the operator's address")?;
    let gateway = gateway_address(&story.node).await?;
    let dns = Api::<Service>::namespaced(client(), "kube-system").list(&ListParams::default()).await?;
    let dns = dns.items.into_iter().find_map(|service| service.spec?.cluster_ip).context("a DNS service")?;
    let tcp = |name: &str, host: &str, port| (name.to_owned(), "tcp", host.to_owned(), port);
    Ok(vec![
        tcp("the gateway's sandbox port", &gateway, names::SANDBOX_PORT),
        tcp("the gateway's people port", &gateway, names::PEOPLE_PORT),
        tcp("the gateway's people port, directly", &gateway_pod, names::PEOPLE_PORT),
        tcp("the gateway's aggregated port, directly", &gateway_pod, names::AGGREGATED_PORT),
        tcp("the gateway's operations port", &gateway_pod, names::OPERATIONS_PORT),
        tcp("the operator", &operator_pod, names::OPERATIONS_PORT),
        tcp("the API server's service", &service("default", "kubernetes").await?, 443),
        tcp("the API server on the node", &node, 6443),
        tcp("the kubelet", &node, 10250),
        tcp("the model, past the gateway", &model, 8080),
        tcp("the model's service", &service("scripted-model", "scripted-model").await?, 8080),
        tcp("DNS over TCP", &dns, 53),
        ("DNS".to_owned(), "udp", dns.clone(), 53),
        tcp("the cloud's metadata", "169.254.169.254", 80),
    ])
}
