//! The committed YAML is what the types say: `crds/yaml/` for people, and the same within the chart's templates.
//! `AGENTRUN_REGENERATE=1 cargo test -p agentrun-crds --test generated` rewrites both.

use std::path::{Path, PathBuf};

use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;

const ORIGIN: &str = "# Generated from crds/src; see crds/tests/generated.rs.\n";

#[test]
fn the_committed_yaml_is_current() {
    let repository = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    for crd in agentrun_crds::all() {
        let name = format!("{}.yaml", crd.spec.names.plural);
        compare(repository.join("crds/yaml").join(&name), plain(&crd));
        compare(repository.join("charts/agentrun/templates/crds").join(&name), template(&crd));
    }
}

fn plain(crd: &CustomResourceDefinition) -> String {
    format!("{ORIGIN}{}", yaml(crd))
}

/// The type holds bounds as floats; people read `32`, not `32.0`.
fn yaml(crd: &CustomResourceDefinition) -> String {
    fn whole(value: &mut serde_json::Value) {
        match value {
            serde_json::Value::Number(number) => {
                if let Some(float) = number.as_f64().filter(|float| number.is_f64() && float.fract() == 0.0) {
                    *value = (float as i64).into();
                }
            }
            serde_json::Value::Array(items) => items.iter_mut().for_each(whole),
            serde_json::Value::Object(map) => map.values_mut().for_each(whole),
            _ => {}
        }
    }
    let mut json = serde_json::to_value(crd).expect("a definition is JSON");
    whole(&mut json);
    serde_yaml::to_string(&json).expect("a definition is YAML")
}

/// `helm uninstall` keeps the definitions, and with them every run.
fn template(crd: &CustomResourceDefinition) -> String {
    let mut crd = crd.clone();
    crd.metadata.annotations = Some([("helm.sh/resource-policy".to_owned(), "keep".to_owned())].into());
    let yaml = yaml(&crd);
    assert!(!yaml.contains("{{") && !yaml.contains("}}"), "Helm would read a part of {:?} as a template", crd.metadata.name);
    format!("{{{{- if .Values.crds.install }}}}\n{ORIGIN}{yaml}{{{{- end }}}}\n")
}

fn compare(path: PathBuf, wanted: String) {
    if std::env::var_os("AGENTRUN_REGENERATE").is_some() {
        std::fs::create_dir_all(path.parent().expect("a file has a folder")).expect("the folder can be made");
        std::fs::write(&path, wanted).expect("the file can be written");
        return;
    }
    let found = std::fs::read_to_string(&path).unwrap_or_default();
    assert!(
        found == wanted,
        "{} is stale: run `AGENTRUN_REGENERATE=1 cargo test -p agentrun-crds --test generated` and commit the result",
        path.display()
    );
}
