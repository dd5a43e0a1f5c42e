//! The AgentRun that `submit` creates: a manifest, flags, or both. Fields that we do not know are left for the API server
//! to judge.

use std::io::Read;
use std::path::Path;

use agentrun_crds::paths::RelativePath;
use agentrun_crds::{GROUP, VERSION, git, quantity};
use serde_json::{Map, Value, json};
use sha2::{Digest, Sha256};

use crate::archive::{self, Archive};
use crate::arguments::Submit;
use crate::checks;
use crate::failure::Failure;
use crate::run_name::{check_label, check_subdomain};
use crate::tree::{self, Bounds};

/// Annotation of a run that was submitted with a key: SHA-256 (hex) over key and spec.
pub const SUBMISSION: &str = "agentrun.dev/submission-sha256";
/// Largest manifest.
const MAX_MANIFEST: u64 = 4 * 1024 * 1024;
/// Largest instruction that is read; the API server's bound counts characters.
const MAX_INSTRUCTION: u64 = 256 * 1024;

/// What is to be created, and what is to be uploaded after that.
pub struct Manifest {
    pub run: Value,
    /// Of `-n`, else of the manifest; `None`: of the context.
    pub namespace: Option<String>,
    pub archive: Option<Archive>,
    pub warnings: Vec<String>,
}

/// From flags and files. `namespace` is what `-n` says.
pub fn build(submit: &Submit, namespace: Option<&str>) -> Result<Manifest, Failure> {
    let mut run = match &submit.file {
        Some(path) => read(path)?,
        None => json!({ "apiVersion": format!("{GROUP}/{VERSION}"), "kind": "AgentRun", "metadata": {}, "spec": {} }),
    };
    let mut warnings = Vec::new();
    let mut archive = None;
    let spec = member(&mut run, "spec")?;
    if let Some(folder) = &submit.dir {
        let tree = tree::read(folder, Bounds::default())?;
        warnings.extend(skipped(&tree.skipped));
        let source = match archive::inline(&tree.files) {
            Some(files) => {
                let files: Vec<Value> = files
                    .into_iter()
                    .map(|file| match file.executable {
                        true => json!({ "path": file.path, "content": file.content, "executable": true }),
                        false => json!({ "path": file.path, "content": file.content }),
                    })
                    .collect();
                json!({ "inline": { "files": files } })
            }
            None => {
                let packed = archive::pack(&tree.files)?;
                let source = json!({ "archive": { "digest": packed.digest } });
                archive = Some(packed);
                source
            }
        };
        spec.insert("source".into(), source);
    }
    if let Some(url) = &submit.git {
        spec.insert("source".into(), json!({ "git": git(url, submit)? }));
    }
    if let Some(text) = &submit.instruction {
        spec.insert("instruction".into(), instruction(text)?.into());
    }
    if !submit.checks.is_empty() {
        let (checks, more) = checks::parse(&submit.checks)?;
        warnings.extend(more);
        spec.insert("checks".into(), json!(checks));
    }
    if !submit.allowed_paths.is_empty() {
        spec.insert("allowedPaths".into(), json!(submit.allowed_paths));
    }
    for (name, value) in [("model", &submit.model), ("submittedFor", &submit.submitted_for)] {
        if let Some(value) = value {
            spec.insert(name.into(), json!(value));
        }
    }
    for (name, value) in [("harness", &submit.harness), ("image", &submit.image)] {
        if let Some(value) = value {
            entry(spec, "agent")?.insert(name.into(), json!(value));
        }
    }
    limits(spec, submit)?;
    if !spec.contains_key("instruction") {
        return Err(Failure::usage("the run has no instruction; give one with --instruction"));
    }
    if !spec.contains_key("source") {
        return Err(Failure::usage("the run has no source; give a folder with --dir, a repository with --git, or source in the manifest"));
    }
    let namespace = named_namespace(&run, namespace)?;
    name(&mut run, submit, namespace.as_deref())?;
    Ok(Manifest { run, namespace, archive, warnings })
}

fn git(url: &str, submit: &Submit) -> Result<Value, Failure> {
    if git::GitUrl::parse(url).is_none() {
        return Err(Failure::usage(format!("--git takes {}", git::URL_ALLOWED)));
    }
    let mut source = json!({ "url": url });
    if let Some(reference) = &submit.reference {
        if !git::is_ref(reference) {
            return Err(Failure::usage(format!("--ref takes {}", git::REF_ALLOWED)));
        }
        source["ref"] = json!(reference);
    }
    if let Some(path) = &submit.sub_path {
        RelativePath::parse(path).map_err(|why| Failure::usage(format!("--sub-path {why}")))?;
        source["subPath"] = json!(path);
    }
    Ok(source)
}

fn limits(spec: &mut Map<String, Value>, submit: &Submit) -> Result<(), Failure> {
    if submit.max_steps.is_none() && submit.wall_time.is_none() && submit.requests.is_none() && submit.cost.is_none() {
        return Ok(());
    }
    let limits = entry(spec, "limits")?;
    if let Some(steps) = submit.max_steps {
        limits.insert("maxSteps".into(), steps.into());
    }
    if let Some(time) = &submit.wall_time {
        quantity::seconds(time).map_err(|error| Failure::usage(format!("--wall-time: {error}")))?;
        limits.insert("wallTime".into(), json!(time));
    }
    if submit.requests.is_some() || submit.cost.is_some() {
        let budget = entry(limits, "budget")?;
        if let Some(requests) = submit.requests {
            budget.insert("requests".into(), requests.into());
        }
        if let Some(cost) = &submit.cost {
            quantity::micros(cost).map_err(|error| Failure::usage(format!("--cost: {error}")))?;
            budget.insert("cost".into(), json!(cost));
        }
    }
    Ok(())
}

fn named_namespace(run: &Value, given: Option<&str>) -> Result<Option<String>, Failure> {
    let own = run["metadata"]["namespace"].as_str();
    match (own, given) {
        (Some(own), Some(given)) if own != given => {
            Err(Failure::usage(format!("the manifest is for namespace {own:?}, the command line for {given:?}")))
        }
        (own, given) => {
            let namespace = own.or(given);
            if let Some(namespace) = namespace {
                check_label("namespace", namespace)?;
            }
            Ok(namespace.map(str::to_owned))
        }
    }
}

/// `--name`, `--generate-name` or a name of the key; else what the manifest says, else the folder's name.
fn name(run: &mut Value, submit: &Submit, namespace: Option<&str>) -> Result<(), Failure> {
    let spec_bytes = run["spec"].to_string();
    let meta = member(run, "metadata")?;
    if let Some(namespace) = namespace {
        meta.insert("namespace".into(), json!(namespace));
    }
    if let Some(name) = &submit.name {
        check_subdomain("run", name)?;
        meta.remove("generateName");
        meta.insert("name".into(), json!(name));
    }
    if let Some(prefix) = &submit.generate_name {
        check_subdomain("run", &format!("{prefix}0"))?;
        meta.remove("name");
        meta.insert("generateName".into(), json!(prefix));
    }
    if let Some(key) = &submit.idempotency_key {
        if key.is_empty() || key.len() > 256 {
            return Err(Failure::usage("--idempotency-key takes 1 to 256 bytes"));
        }
        if !meta.contains_key("name") {
            let prefix = prefix(meta, submit);
            meta.remove("generateName");
            meta.insert("name".into(), json!(format!("{prefix}{}", &sha256(&[key])[..16])));
        }
        entry(meta, "annotations")?.insert(SUBMISSION.into(), json!(sha256(&[key, &spec_bytes])));
    }
    if !meta.contains_key("name") && !meta.contains_key("generateName") {
        let prefix = prefix(meta, submit);
        meta.insert("generateName".into(), json!(prefix));
    }
    Ok(())
}

/// `shop-` of `~/src/Shop` and of `https://git.example/org/Shop.git`.
fn prefix(meta: &Map<String, Value>, submit: &Submit) -> String {
    if let Some(prefix) = meta.get("generateName").and_then(Value::as_str) {
        return prefix.to_owned();
    }
    let folder = submit.dir.as_deref().and_then(|folder| folder.canonicalize().ok());
    let name = folder.as_deref().and_then(Path::file_name).map(|name| name.to_string_lossy().to_lowercase());
    let repository = submit.git.as_deref().and_then(git::GitUrl::parse);
    let name = name.or_else(|| repository.and_then(|url| url.repository().rsplit('/').next().map(str::to_lowercase))).unwrap_or_default();
    let label: String = name.chars().map(|c| if c.is_ascii_lowercase() || c.is_ascii_digit() { c } else { '-' }).take(40).collect();
    match label.trim_matches('-') {
        "" => "run-".into(),
        label => format!("{label}-"),
    }
}

/// Hex, over the parts' lengths and bytes.
fn sha256(parts: &[&str]) -> String {
    let mut hash = Sha256::new();
    for part in parts {
        hash.update((part.len() as u64).to_be_bytes());
        hash.update(part.as_bytes());
    }
    hash.finalize().iter().map(|byte| format!("{byte:02x}")).collect()
}

/// A text, `@file`, or `-`.
fn instruction(given: &str) -> Result<String, Failure> {
    let text = match given.strip_prefix('@') {
        Some(path) => bounded(Path::new(path), MAX_INSTRUCTION)?,
        None if given == "-" => bounded(Path::new("-"), MAX_INSTRUCTION)?,
        None => given.to_owned(),
    };
    let text = text.replace("\r\n", "\n");
    let text = text.trim_end().to_owned();
    if text.is_empty() { Err(Failure::usage("the instruction is empty")) } else { Ok(text) }
}

fn read(path: &Path) -> Result<Value, Failure> {
    let text = bounded(path, MAX_MANIFEST)?;
    let bad = |why: String| Failure::usage(format!("{}: {why}", path.display()));
    let run: Value = serde_saphyr::from_str(&text).map_err(|error| bad(format!("is not one YAML or JSON object: {error}")))?;
    let (version, kind) = (run["apiVersion"].as_str().unwrap_or_default(), run["kind"].as_str().unwrap_or_default());
    if kind != "AgentRun" || version != format!("{GROUP}/{VERSION}") {
        return Err(bad(format!("is {version:?} {kind:?}; an AgentRun of {GROUP}/{VERSION} is needed")));
    }
    Ok(run)
}

fn bounded(path: &Path, most: u64) -> Result<String, Failure> {
    let local = |error: &std::io::Error| Failure::new(crate::exit::Exit::Usage, format!("{}: {error}", path.display()));
    let mut text = String::new();
    if path == Path::new("-") {
        std::io::stdin().lock().take(most + 1).read_to_string(&mut text).map_err(|error| local(&error))?;
    } else {
        let file = std::fs::File::open(path).map_err(|error| local(&error))?;
        file.take(most + 1).read_to_string(&mut text).map_err(|error| local(&error))?;
    }
    if text.len() as u64 > most { Err(Failure::usage(format!("{} is larger than {most} bytes", path.display()))) } else { Ok(text) }
}

fn skipped(links: &[String]) -> Option<String> {
    let shown = links.iter().take(5).cloned().collect::<Vec<_>>().join(", ");
    let more = if links.len() > 5 { format!(" and {} more", links.len() - 5) } else { String::new() };
    (!links.is_empty()).then(|| format!("symbolic links are not sent: {shown}{more}"))
}

fn member<'a>(object: &'a mut Value, name: &str) -> Result<&'a mut Map<String, Value>, Failure> {
    let object = object.as_object_mut().ok_or_else(|| Failure::usage("the manifest is no object"))?;
    entry(object, name)
}

fn entry<'a>(object: &'a mut Map<String, Value>, name: &str) -> Result<&'a mut Map<String, Value>, Failure> {
    let value = object.entry(name).or_insert_with(|| json!({}));
    if value.is_null() {
        *value = json!({});
    }
    value.as_object_mut().ok_or_else(|| Failure::usage(format!("{name} of the manifest is no object")))
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;
    use crate::arguments::{Arguments, Command};

    fn submit(line: &[&str]) -> Submit {
        let all = ["kubectl-agentrun", "submit"].iter().chain(line);
        match Arguments::try_parse_from(all).expect("a command line").command {
            Command::Submit(submit) => *submit,
            other => unreachable!("{other:?}"),
        }
    }

    fn folder() -> tempfile::TempDir {
        let parent = tempfile::tempdir().expect("a folder");
        let shop = parent.path().join("My_Shop");
        std::fs::create_dir(&shop).expect("made");
        std::fs::write(shop.join("a.py"), "print()\n").expect("written");
        std::fs::write(parent.path().join("run.yaml"), RUN).expect("written");
        parent
    }

    const RUN: &str = "apiVersion: agentrun.dev/v1alpha1\nkind: AgentRun\nmetadata: {name: fix, namespace: team-a, labels: {a: b}}\nspec:\n  instruction: |\n    Do it.\n  source: {inline: {files: [{path: a, content: x}]}}\n  model: small\n  novelty: 1\n  limits: {maxSteps: 3}\n";

    #[test]
    fn flags_make_a_manifest() {
        let parent = folder();
        let dir = parent.path().join("My_Shop");
        let flags = submit(&[
            "--dir",
            dir.to_str().expect("UTF-8"),
            "-i",
            "fix\r\nit\n",
            "--check",
            "python3 -m unittest",
            "--allowed-path",
            "a.py",
            "--model",
            "m",
            "--harness",
            "pi",
            "--image",
            "i",
            "--max-steps",
            "5",
            "--wall-time",
            "30m",
            "--requests",
            "7",
            "--cost",
            "0.50",
            "--submitted-for",
            "alice",
        ]);
        let manifest = build(&flags, Some("team-b")).expect("a manifest");
        assert_eq!(
            manifest.run,
            json!({
                "apiVersion": "agentrun.dev/v1alpha1", "kind": "AgentRun",
                "metadata": { "generateName": "my-shop-", "namespace": "team-b" },
                "spec": {
                    "instruction": "fix\nit",
                    "source": { "inline": { "files": [{ "path": "a.py", "content": "print()\n" }] } },
                    "checks": [{ "name": "check-1", "argv": ["python3", "-m", "unittest"] }],
                    "allowedPaths": ["a.py"], "model": "m", "agent": { "harness": "pi", "image": "i" }, "submittedFor": "alice",
                    "limits": { "maxSteps": 5, "wallTime": "30m", "budget": { "requests": 7, "cost": "0.50" } },
                },
            })
        );
        assert!(manifest.archive.is_none());
        let typed: agentrun_crds::AgentRun = serde_json::from_value(manifest.run).expect("an AgentRun");
        assert_eq!(typed.spec.checks.len(), 1);
    }

    #[test]
    fn a_repository_is_named_and_nothing_is_sent() {
        let flags = ["--git", "https://git.test/org/My_Shop.git", "--ref", "v1", "--sub-path", "a/b", "-i", "x"];
        let manifest = build(&submit(&flags), None).expect("a manifest");
        let source = json!({ "git": { "url": "https://git.test/org/My_Shop.git", "ref": "v1", "subPath": "a/b" } });
        assert_eq!((&manifest.run["spec"]["source"], &manifest.run["metadata"]["generateName"]), (&source, &json!("my-shop-")));
        assert!(manifest.archive.is_none());
        for (flags, part) in [
            (vec!["--git", "git@git.test:org/shop", "-i", "x"], "--git takes https://"),
            (vec!["--git", "https://me:key@git.test/shop", "-i", "x"], "--git takes https://"),
            (vec!["--git", "https://git.test/shop", "--ref", "a..b", "-i", "x"], "--ref takes"),
            (vec!["--git", "https://git.test/shop", "--sub-path", "../a", "-i", "x"], "--sub-path"),
        ] {
            let failure = build(&submit(&flags), None).err().unwrap_or_else(|| unreachable!("{flags:?} is taken"));
            assert!(failure.message.contains(part) && !failure.message.contains("key"), "{flags:?}: {}", failure.message);
        }
    }

    #[test]
    fn a_larger_tree_becomes_an_archive() {
        let parent = folder();
        let dir = parent.path().join("My_Shop");
        std::fs::write(dir.join("big"), vec![0; 200_000]).expect("written");
        let manifest = build(&submit(&["--dir", dir.to_str().expect("UTF-8"), "-i", "x"]), None).expect("a manifest");
        let archive = manifest.archive.expect("an archive");
        assert_eq!(manifest.run["spec"]["source"], json!({ "archive": { "digest": archive.digest } }));
    }

    #[test]
    fn a_manifest_keeps_what_we_do_not_know_and_flags_change_it() {
        let parent = folder();
        let file = parent.path().join("run.yaml");
        let file = file.to_str().expect("UTF-8");
        let manifest = build(&submit(&["-f", file, "--requests", "2", "--name", "other"]), None).expect("a manifest");
        assert_eq!(manifest.namespace.as_deref(), Some("team-a"));
        assert_eq!(manifest.run["metadata"], json!({ "name": "other", "namespace": "team-a", "labels": { "a": "b" } }));
        assert_eq!(manifest.run["spec"]["novelty"], 1);
        assert_eq!(manifest.run["spec"]["instruction"], "Do it.\n");
        assert_eq!(manifest.run["spec"]["limits"], json!({ "maxSteps": 3, "budget": { "requests": 2 } }));
    }

    #[test]
    fn one_key_gives_one_name_and_tells_other_specs_apart() {
        let parent = folder();
        let dir = parent.path().join("My_Shop");
        let dir = dir.to_str().expect("UTF-8");
        let keyed = |key: &str, text: &str| {
            build(&submit(&["--dir", dir, "-i", text, "--idempotency-key", key]), None).expect("a manifest").run["metadata"].clone()
        };
        let first = keyed("k", "x");
        assert_eq!(first, keyed("k", "x"));
        let name = first["name"].as_str().expect("a name");
        assert!(name.starts_with("my-shop-") && name.len() == 24, "{name}");
        assert_eq!(keyed("k", "y")["name"], first["name"]);
        assert_ne!(keyed("k", "y")["annotations"], first["annotations"]);
        assert_ne!(keyed("l", "x")["name"], first["name"]);
    }

    #[test]
    fn what_cannot_run_is_refused_here() {
        let parent = folder();
        let dir = parent.path().join("My_Shop");
        let dir = dir.to_str().expect("UTF-8");
        let path = |name: &str, text: &str| {
            let path = parent.path().join(name);
            std::fs::write(&path, text).expect("written");
            path.display().to_string()
        };
        let list = path("list.yaml", "- 1\n");
        let pod = path("pod.yaml", "apiVersion: v1\nkind: Pod\n");
        let broken = path("broken.yaml", "a: [\n");
        let sourceless = path("sourceless.yaml", "apiVersion: agentrun.dev/v1alpha1\nkind: AgentRun\nspec: {instruction: x}\n");
        let flat = path("flat.yaml", "apiVersion: agentrun.dev/v1alpha1\nkind: AgentRun\nspec: 3\n");
        let run = parent.path().join("run.yaml").display().to_string();
        for (line, namespace, part) in [
            (vec!["--dir", dir], None, "has no instruction"),
            (vec!["--dir", dir, "-i", " \n"], None, "is empty"),
            (vec!["--dir", dir, "-i", "@/does/not/exist"], None, "/does/not/exist"),
            (vec!["--dir", dir, "-i", "x", "--name", "Bad/Name"], None, "is not the name of a run"),
            (vec!["--dir", dir, "-i", "x", "--cost", "1,5"], None, "--cost"),
            (vec!["--dir", dir, "-i", "x", "--wall-time", "5"], None, "--wall-time"),
            (vec!["--dir", dir, "-i", "x", "--idempotency-key", ""], None, "1 to 256"),
            (vec!["-f", &list], None, "an AgentRun of"),
            (vec!["-f", &pod], None, "\"Pod\""),
            (vec!["-f", &broken], None, "is not one YAML or JSON object"),
            (vec!["-f", &sourceless], None, "has no source"),
            (vec!["-f", &flat], None, "spec of the manifest is no object"),
            (vec!["-f", &run], Some("team-b"), "is for namespace \"team-a\""),
            (vec!["--dir", "/does/not/exist", "-i", "x"], None, "/does/not/exist"),
        ] {
            let failure = build(&submit(&line), namespace).err().unwrap_or_else(|| unreachable!("{line:?} is taken"));
            assert!(failure.message.contains(part), "{line:?}: {}", failure.message);
        }
    }
}
