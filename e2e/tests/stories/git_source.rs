//! A developer submits a branch of a private repository inside the cluster, and takes the patch back as a commit with `git am`. The
//! gateway has the credential only once the platform lets it read that one Secret.

use agentrun_crds::agent_policy::{Addresses, GitHost, GitPolicy, GitSecret};
use agentrun_crds::agent_run::{GitSource, Source};
use agentrun_crds::agent_run_status::Phase;
use agentrun_crds::model_provider::PlainHttp;
use agentrun_e2e::node::{Colleague, Offer, SYSTEM, Story, Within, fixing_turns, original_tree, story, tests_pass, until};
use agentrun_scripted_model::git_host::git;
use anyhow::{Context, Result, ensure};
use k8s_openapi::api::core::v1::{ConfigMap, Pod, Secret, Service};
use k8s_openapi::api::rbac::v1::{Role, RoleBinding};
use kube::Api;
use kube::api::PostParams;
use serde_json::{Value, json};

const PASSWORD: &str = "st0ry-passw0rd";

#[tokio::test]
async fn a_branch_becomes_a_commit() {
    story("git", body).await;
}

async fn create<K>(story: &Story, object: Value) -> Result<()>
where
    K: kube::Resource<DynamicType = (), Scope = k8s_openapi::NamespaceResourceScope>,
    K: serde::Serialize + serde::de::DeserializeOwned + Clone + std::fmt::Debug,
{
    let api: Api<K> = Api::namespaced(story.node.client.clone(), &story.namespace);
    api.create(&PostParams::default(), &serde_json::from_value(object)?).await?;
    Ok(())
}

/// Serve this bundle as `/shop.git`; the URL.
async fn serve(story: &Story, bundle: Vec<u8>) -> Result<String> {
    let encoded = k8s_openapi::ByteString(bundle);
    let files =
        json!({"metadata": {"name": "git"}, "data": {"server.py": include_str!("git_server.py")}, "binaryData": {"shop.bundle": encoded}});
    create::<ConfigMap>(story, files).await?;
    create::<Secret>(story, json!({"metadata": {"name": "git"}, "stringData": {"username": "git", "password": PASSWORD}})).await?;
    let image = story.node.image("toolchain")?.image.clone();
    let pod = json!({
        "metadata": {"name": "git", "labels": {"app": "git-server"}},
        "spec": {
            "automountServiceAccountToken": false,
            "securityContext": {"runAsNonRoot": true, "runAsUser": 65533, "seccompProfile": {"type": "RuntimeDefault"}},
            "containers": [{
                "name": "git", "image": image,
                "command": ["sh", "-ec", "git clone --quiet --bare /files/shop.bundle /srv/git/shop.git; exec python3 /files/server.py"],
                "env": [{"name": "PASSWORD", "value": PASSWORD}],
                "volumeMounts": [{"name": "files", "mountPath": "/files"}, {"name": "git", "mountPath": "/srv/git"}, {"name": "tmp", "mountPath": "/tmp"}],
                "readinessProbe": {"tcpSocket": {"port": 8080}, "periodSeconds": 1},
                "securityContext": {"allowPrivilegeEscalation": false, "readOnlyRootFilesystem": true, "capabilities": {"drop": ["ALL"]}},
            }],
            "volumes": [{"name": "files", "configMap": {"name": "git"}}, {"name": "git", "emptyDir": {}}, {"name": "tmp", "emptyDir": {}}],
        },
    });
    create::<Pod>(story, pod).await?;
    create::<Service>(story, json!({"metadata": {"name": "git"}, "spec": {"selector": {"app": "git-server"}, "ports": [{"port": 8080}]}}))
        .await?;
    let pods: Api<Pod> = Api::namespaced(story.node.client.clone(), &story.namespace);
    until(&pods, "git", Within::Medium, "the git server is ready", |pod| {
        let conditions = pod.status.iter().flat_map(|status| status.conditions.iter().flatten());
        conditions.into_iter().any(|condition| condition.type_ == "Ready" && condition.status == "True")
    })
    .await?;
    Ok(format!("http://git.{}.svc.cluster.local:8080/shop.git", story.namespace))
}

async fn body(story: &Story) -> Result<()> {
    let tree = original_tree()?;
    git(tree.path(), &["add", "."]);
    git(tree.path(), &["commit", "--quiet", "--message=base"]);
    git(tree.path(), &["branch", "--move", "--force", "main"]);
    let commit = git(tree.path(), &["rev-parse", "HEAD"]);
    let elsewhere = tempfile::tempdir()?;
    let bundle = elsewhere.path().join("shop.bundle");
    git(tree.path(), &["bundle", "create", "--quiet", bundle.to_str().context("a path")?, "main", "HEAD"]);
    let url = serve(story, std::fs::read(&bundle)?).await?;
    let host = GitHost {
        host: format!("git.{}.svc.cluster.local:8080", story.namespace),
        paths: vec!["**".into()],
        secret_ref: Some(GitSecret { name: "git".into() }),
        addresses: Addresses::Private,
        plain_http: PlainHttp::Allowed,
    };
    let git_policy = GitPolicy { allow: vec![host], ..GitPolicy::default() };
    let mut offer = Offer::new(fixing_turns());
    offer.git = Some(git_policy);
    story.offer(offer).await?;

    // Nobody lets the gateway read the Secret: a reason, and no Pod.
    let source = GitSource { url: url.clone(), reference: "main".into(), sub_path: None };
    let spec = agentrun_crds::AgentRunSpec { source: Source { git: Some(source), ..Source::default() }, ..story.spec() };
    story.create("unread", spec).await?;
    let run = story.until_ended("unread", Phase::Failed, "SourceUnavailable").await?;
    let text = serde_json::to_string(&run)?;
    ensure!(text.contains("the gateway may not read Secret") && !text.contains(PASSWORD), "{text}");
    ensure!(run.status.is_some_and(|status| status.pod_ref.is_none()), "a Pod was made for a run without a source");

    // As the chart's gateway.gitSecrets does.
    let rules = json!([{"apiGroups": [""], "resources": ["secrets"], "resourceNames": ["git"], "verbs": ["get"]}]);
    create::<Role>(story, json!({"metadata": {"name": "git"}, "rules": rules})).await?;
    let role = json!({"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": "git"});
    let gateway = json!([{"kind": "ServiceAccount", "name": "agentrun-gateway", "namespace": SYSTEM}]);
    create::<RoleBinding>(story, json!({"metadata": {"name": "git"}, "roleRef": role, "subjects": gateway})).await?;

    let developer = Colleague::new(story, "dev", "edit").await?;
    let submit = ["submit", "--git", &url, "--ref", "main", "--instruction", "Make the tests pass.\n\nQuickly."];
    let check = ["--check", "python3 -m unittest discover", "--name", "fix", "--follow"];
    developer.ok(&[&submit[..], &check].concat()).await?;
    let run = story.runs.get("fix").await?;
    let source = run.status.and_then(|status| status.source).context("a source")?;
    ensure!(source.git.as_ref().is_some_and(|git| git.commit == commit), "{source:?}");

    let mail = elsewhere.path().join("fix.mail");
    std::fs::write(&mail, developer.ok(&["patch", "fix", "--mailbox"]).await?)?;
    git(tree.path(), &["am", "--quiet", mail.to_str().context("a path")?]);
    ensure!(git(tree.path(), &["log", "-1", "--format=%an: %s"]) == "AgentRun: Make the tests pass.");
    let (passed, said) = tests_pass(tree.path())?;
    ensure!(passed, "the tests fail after the fix:\n{said}");
    Ok(())
}
