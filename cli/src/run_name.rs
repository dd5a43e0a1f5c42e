//! Which run is meant: a name, `@latest`, or `@mine`.

use agentrun_crds::AgentRun;
use http::Method;
use serde_json::{Value, json};

use crate::cluster::Cluster;
use crate::exit::Exit;
use crate::failure::Failure;
use crate::runs;

/// The newest run of the namespace.
pub const LATEST: &str = "@latest";
/// The newest run that the user has submitted.
pub const MINE: &str = "@mine";

/// The run's name. One that is not an alias is only checked for its form.
pub async fn resolve(cluster: &Cluster, given: &str) -> Result<String, Failure> {
    let given = given.strip_prefix("agentrun/").or_else(|| given.strip_prefix("agentrun.agentrun.dev/")).unwrap_or(given);
    let mine = match given {
        LATEST => None,
        MINE => Some(whoami(cluster).await?),
        name if name.starts_with('@') => {
            return Err(Failure::usage(format!("there is no alias {name:?}; use a run's name, {LATEST} or {MINE}")));
        }
        name => {
            check_subdomain("run", name)?;
            return Ok(name.to_owned());
        }
    };
    let all = runs::list(cluster, Some(&cluster.namespace), None).await?;
    newest(&all, mine.as_deref()).ok_or_else(|| {
        let whose = mine.map_or("any run".to_owned(), |user| format!("a run submitted by {user}"));
        Failure::new(Exit::NotSubmitted, format!("namespace {} does not have {whose}", cluster.namespace))
            .advice("-n names another namespace; kubectl agentrun list -A shows the runs of all.")
    })
}

/// The name of the run created last; of two in the same second the one that sorts last.
fn newest(runs: &[AgentRun], submitter: Option<&str>) -> Option<String> {
    runs.iter()
        .filter(|run| {
            submitter.is_none_or(|user| [&run.spec.submitted_by, &run.spec.submitted_for].iter().any(|by| by.as_deref() == Some(user)))
        })
        .max_by_key(|run| (run.metadata.creation_timestamp.as_ref().map(|time| time.0), run.metadata.name.clone()))
        .and_then(|run| run.metadata.name.clone())
}

/// The user's name as the cluster knows it.
pub async fn whoami(cluster: &Cluster) -> Result<String, Failure> {
    let review = json!({ "apiVersion": "authentication.k8s.io/v1", "kind": "SelfSubjectReview" });
    let path = "/apis/authentication.k8s.io/v1/selfsubjectreviews";
    let answer: Value =
        cluster.send(Method::POST, path, "application/json", &review).await.map_err(|fault| fault.failure("asking who you are"))?;
    Ok(answer["status"]["userInfo"]["username"].as_str().unwrap_or_default().to_owned())
}

/// A DNS label, since it becomes part of a path.
pub fn check_label(what: &str, name: &str) -> Result<(), Failure> {
    let good = name.len() <= 63 && is_label(name);
    if good { Ok(()) } else { Err(Failure::usage(format!("{name:?} is not the name of a {what}"))) }
}

/// DNS labels with dots between.
pub fn check_subdomain(what: &str, name: &str) -> Result<(), Failure> {
    let good = name.len() <= 253 && name.split('.').all(is_label);
    if good { Ok(()) } else { Err(Failure::usage(format!("{name:?} is not the name of a {what}"))) }
}

fn is_label(label: &str) -> bool {
    let letter = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit();
    label.starts_with(letter) && label.ends_with(letter) && label.chars().all(|c| letter(c) || c == '-')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_names_become_part_of_a_path() {
        for good in ["a", "fix-it", "run-1.two", "0"] {
            assert!(check_subdomain("run", good).is_ok(), "{good}");
        }
        for bad in ["", "-a", "a-", "A", "a/b", "..", "a..b", "a?b", "a%2f", "ü", &"a".repeat(254)] {
            assert!(check_subdomain("run", bad).is_err(), "{bad}");
        }
        assert!(check_label("namespace", "a.b").is_err());
    }

    #[test]
    fn the_newest_is_the_one_created_last() {
        let run = |name: &str, time: &str, by: &str| -> AgentRun {
            serde_json::from_value(json!({
                "apiVersion": "agentrun.dev/v1alpha1", "kind": "AgentRun",
                "metadata": { "name": name, "creationTimestamp": time },
                "spec": { "instruction": "x", "source": {}, "model": "m", "submittedBy": by },
            }))
            .expect("a run")
        };
        let runs =
            [run("b", "2026-01-01T00:00:02Z", "alice"), run("a", "2026-01-01T00:00:03Z", "bob"), run("c", "2026-01-01T00:00:01Z", "alice")];
        assert_eq!(newest(&runs, None).as_deref(), Some("a"));
        assert_eq!(newest(&runs, Some("alice")).as_deref(), Some("b"));
        assert_eq!(newest(&runs, Some("eve")), None);
        assert_eq!(newest(&[], None), None);
    }
}
