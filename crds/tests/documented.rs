//! `docs/reference/` names every field of a spec and of the status, nothing else, and every reason with its fault and meaning.

use std::collections::BTreeSet;

use agentrun_crds::conditions::Reason;
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::{JSONSchemaProps, JSONSchemaPropsOrArray};

fn page(name: &str) -> String {
    let path = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/reference").join(name);
    std::fs::read_to_string(&path).unwrap_or_else(|error| unreachable!("{}: {error}", path.display()))
}

/// The first cells of the tables beneath a heading (or of the whole page), as field paths. `.b` after `x.a` means `x.b`.
fn documented(page: &str, heading: Option<&str>) -> BTreeSet<String> {
    let mut fields = BTreeSet::new();
    let mut wanted = heading.is_none();
    for line in page.lines() {
        if let (Some(heading), true) = (heading, line.starts_with('#')) {
            wanted = line == heading;
        }
        let Some(cell) = line.strip_prefix("| `").filter(|_| wanted).and_then(|row| row.split(" | ").next()) else { continue };
        let mut last = String::new();
        for token in cell.split('`').step_by(2) {
            let parent = last.rsplit_once('.').map_or("", |(parent, _)| parent);
            last = if token.starts_with('.') { format!("{parent}{token}") } else { token.to_owned() };
            fields.insert(last.clone());
        }
    }
    fields
}

/// Paths of everything beneath a node, and of its leaves. A list's items are `[]`; a map with free keys is a leaf.
fn walk(node: &JSONSchemaProps, path: &str, all: &mut BTreeSet<String>, leaves: &mut BTreeSet<String>) {
    if !path.is_empty() {
        all.insert(path.to_owned());
    }
    if let Some(JSONSchemaPropsOrArray::Schema(items)) = &node.items {
        walk(items, &format!("{path}[]"), all, leaves);
    } else if let Some(properties) = &node.properties {
        for (name, property) in properties {
            let path = if path.is_empty() { name.clone() } else { format!("{path}.{name}") };
            walk(property, &path, all, leaves);
        }
    } else {
        leaves.insert(path.to_owned());
    }
}

fn part(kind: &str, name: &str) -> JSONSchemaProps {
    let crd = agentrun_crds::all().into_iter().find(|crd| crd.spec.names.kind == kind).expect("the kind exists");
    let schema = crd.spec.versions[0].schema.clone().and_then(|schema| schema.open_api_v3_schema).expect("it has a schema");
    schema.properties.and_then(|mut properties| properties.remove(name)).expect("it has this part")
}

#[test]
fn every_field_of_a_spec_is_in_its_table_and_nothing_else() {
    for (kind, name, heading) in [
        ("AgentRun", "agentrun.md", Some("## spec")),
        ("AgentPolicy", "agentpolicy.md", Some("## spec")),
        ("ModelProvider", "modelprovider.md", None),
        ("AgentTemplate", "agenttemplate.md", None),
        ("AgentRunRecord", "agentrunrecord.md", None),
    ] {
        let (mut all, mut leaves) = (BTreeSet::new(), BTreeSet::new());
        walk(&part(kind, "spec"), "", &mut all, &mut leaves);
        let documented = documented(&page(name), heading);
        assert_eq!(documented.difference(&all).collect::<Vec<_>>(), Vec::<&String>::new(), "{name} names what {kind} does not have");
        assert_eq!(leaves.difference(&documented).collect::<Vec<_>>(), Vec::<&String>::new(), "{name} lacks fields of {kind}");
    }
}

#[test]
fn every_field_of_the_status_is_in_its_table_and_nothing_else() {
    for (kind, name) in [("AgentRun", "agentrun.md"), ("AgentPolicy", "agentpolicy.md")] {
        let (mut all, mut leaves) = (BTreeSet::new(), BTreeSet::new());
        walk(&part(kind, "status"), "", &mut all, &mut leaves);
        let documented = documented(&page(name), Some("## status"));
        assert_eq!(documented.difference(&all).collect::<Vec<_>>(), Vec::<&String>::new(), "{name} names what the status does not have");
        // The status is told one member a row, budgets one level deeper.
        let lacking: Vec<&String> = leaves
            .iter()
            .filter(|leaf| {
                let covers = |field: &String| leaf.starts_with(field.as_str()) && !["budget", "budgets[]"].contains(&field.as_str());
                !documented.iter().any(covers)
            })
            .collect();
        assert_eq!(lacking, Vec::<&String>::new(), "{name} lacks parts of the status");
    }
}

#[test]
fn every_reason_is_in_the_table_as_the_code_says_it() {
    let page = page("reasons.md");
    let rows: Vec<Vec<&str>> = page
        .lines()
        .filter_map(|line| line.strip_prefix("| `"))
        .map(|row| row.split(" | ").take(3).map(|cell| cell.trim_end_matches('`')).collect())
        .collect();
    let expected: Vec<Vec<String>> = Reason::ALL
        .iter()
        .map(|reason| vec![reason.as_str().to_owned(), format!("{:?}", reason.fault()), reason.meaning().to_owned()])
        .collect();
    assert_eq!(rows, expected);
}
