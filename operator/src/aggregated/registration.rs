//! Whether the APIService should stand, and what it says. Pure.

use agentrun_crds::names::{self, AGGREGATED_GROUP, AGGREGATED_PORT, AGGREGATED_VERSION};
use jiff::{SignedDuration, Timestamp};
use k8s_openapi::ByteString;
use k8s_openapi::api::core::v1::Service;
use k8s_openapi::api::discovery::v1::EndpointSlice;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference};
use k8s_openapi::kube_aggregator::pkg::apis::apiregistration::v1::{APIService, APIServiceSpec, ServiceReference};

/// How long no gateway may be ready: a restart takes less.
pub const PATIENCE: SignedDuration = SignedDuration::from_secs(30);
const MANAGED_BY: &str = "app.kubernetes.io/managed-by";
/// Beneath those of the cluster's own groups.
const GROUP_PRIORITY: i32 = 1000;
const VERSION_PRIORITY: i32 = 15;

/// The object's name.
pub fn name() -> String {
    format!("{AGGREGATED_VERSION}.{AGGREGATED_GROUP}")
}

/// What was read. Whatever could not be read is an error, not an absence.
#[derive(Clone, Debug, Default)]
pub struct Found {
    pub registered: Option<APIService>,
    pub service: Option<Service>,
    pub endpoints: Vec<EndpointSlice>,
    /// PEM certificates of who signs the gateway's.
    pub ca: Option<String>,
    /// The ClusterRole of our release: with it the registration goes, whoever removes it and whether we still run.
    pub owner: Option<OwnerReference>,
}

/// What to do.
#[derive(Clone, Debug, PartialEq)]
pub enum Step {
    Nothing,
    Register(Box<APIService>),
    /// Bring it back to what it should say; the resourceVersion is that of what was found.
    Correct {
        wanted: Box<APIService>,
        version: Option<String>,
    },
    Withdraw {
        uid: Option<String>,
    },
    /// Of that name, but not ours.
    LeaveAlone,
}

impl Found {
    /// Whether a gateway is ready to be asked.
    pub fn ready(&self) -> bool {
        let ports = self.service.as_ref().and_then(|service| service.spec.as_ref()).and_then(|spec| spec.ports.as_deref());
        let served = ports.unwrap_or_default().iter().any(|port| port.port == i32::from(AGGREGATED_PORT));
        served && self.ca.is_some() && self.owner.is_some() && self.endpoints.iter().any(answers)
    }
}

/// An endpoint that says nothing of itself counts as ready, as the API has it.
fn answers(slice: &EndpointSlice) -> bool {
    let port = slice.ports.iter().flatten().any(|port| port.port == Some(i32::from(AGGREGATED_PORT)));
    let ready = |endpoint: &k8s_openapi::api::discovery::v1::Endpoint| {
        endpoint.conditions.as_ref().and_then(|conditions| conditions.ready).unwrap_or(true)
    };
    port && slice.endpoints.iter().flatten().any(ready)
}

/// Decide; `unready` is since when no gateway has been ready.
pub fn decide(found: &Found, namespace: &str, service: &str, unready: Option<Timestamp>, now: Timestamp) -> Step {
    let registered = found.registered.as_ref();
    if registered.is_some_and(|registered| !ours(registered)) {
        return Step::LeaveAlone;
    }
    match (registered, unready) {
        (None, Some(_)) => Step::Nothing,
        (Some(registered), Some(since)) if since.saturating_add(PATIENCE).is_ok_and(|limit| now >= limit) => {
            Step::Withdraw { uid: registered.metadata.uid.clone() }
        }
        (registered, _) => match (registered, wanted(found, namespace, service)) {
            (_, None) => Step::Nothing,
            (None, Some(wanted)) => Step::Register(Box::new(wanted)),
            (Some(registered), Some(wanted)) if says(registered, &wanted) => Step::Nothing,
            (Some(registered), Some(wanted)) => {
                Step::Correct { wanted: Box::new(wanted), version: registered.metadata.resource_version.clone() }
            }
        },
    }
}

fn ours(registered: &APIService) -> bool {
    let labels = registered.metadata.labels.as_ref();
    labels.and_then(|labels| labels.get(MANAGED_BY)).is_some_and(|manager| manager == names::OPERATOR)
}

fn says(registered: &APIService, wanted: &APIService) -> bool {
    let spec = |object: &APIService| serde_json::to_value(&object.spec).ok();
    spec(registered) == spec(wanted) && registered.metadata.owner_references == wanted.metadata.owner_references
}

fn wanted(found: &Found, namespace: &str, service: &str) -> Option<APIService> {
    let (ca, owner) = (found.ca.as_ref()?, found.owner.clone()?);
    Some(APIService {
        metadata: ObjectMeta {
            name: Some(name()),
            labels: Some([(MANAGED_BY.to_owned(), names::OPERATOR.to_owned())].into()),
            owner_references: Some(vec![owner]),
            ..ObjectMeta::default()
        },
        spec: Some(APIServiceSpec {
            group: Some(AGGREGATED_GROUP.into()),
            version: Some(AGGREGATED_VERSION.into()),
            group_priority_minimum: GROUP_PRIORITY,
            version_priority: VERSION_PRIORITY,
            ca_bundle: Some(ByteString(ca.clone().into_bytes())),
            insecure_skip_tls_verify: None,
            service: Some(ServiceReference {
                namespace: Some(namespace.into()),
                name: Some(service.into()),
                port: Some(i32::from(AGGREGATED_PORT)),
            }),
        }),
        status: None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(second).unwrap()
    }

    fn slice(port: i32, ready: Value) -> EndpointSlice {
        let slice = json!({"addressType": "IPv4", "ports": [{"name": "p", "port": port}],
            "endpoints": [{"addresses": ["10.0.0.1"], "conditions": ready}]});
        serde_json::from_value(slice).unwrap()
    }

    fn found() -> Found {
        let service = json!({"spec": {"ports": [{"name": "aggregated", "port": AGGREGATED_PORT}]}});
        Found {
            registered: None,
            service: serde_json::from_value(service).unwrap(),
            endpoints: vec![slice(7443, json!({"ready": true}))],
            ca: Some("PEM".into()),
            owner: Some(OwnerReference {
                kind: "ClusterRole".into(),
                name: "agentrun-operator".into(),
                uid: "u".into(),
                ..OwnerReference::default()
            }),
        }
    }

    /// As the API server gives it back.
    fn registered(change: impl FnOnce(&mut Value)) -> Option<APIService> {
        let mut value = serde_json::to_value(wanted(&found(), "system", "gateway").unwrap()).unwrap();
        value["metadata"]["uid"] = json!("api-1");
        value["metadata"]["resourceVersion"] = json!("7");
        value["status"] = json!({"conditions": []});
        change(&mut value);
        Some(serde_json::from_value(value).unwrap())
    }

    #[test]
    fn ready_is_one_endpoint_of_the_right_port() {
        type Change = fn(&mut Found);
        let rows: [(&str, Change, bool); 9] = [
            ("one", |_| (), true),
            ("says nothing of itself", |f| f.endpoints = vec![slice(7443, json!({}))], true),
            ("one of two", |f| f.endpoints.insert(0, slice(7443, json!({"ready": false}))), true),
            ("none", |f| f.endpoints.clear(), false),
            ("not ready", |f| f.endpoints = vec![slice(7443, json!({"ready": false}))], false),
            ("of an older gateway", |f| f.endpoints = vec![slice(9443, json!({"ready": true}))], false),
            ("no such port", |f| f.service = serde_json::from_value(json!({"spec": {"ports": [{"port": 9443}]}})).unwrap(), false),
            ("no certificate", |f| f.ca = None, false),
            ("nothing that would take it along at the end", |f| f.owner = None, false),
        ];
        for (row, change, expected) in rows {
            let mut found = found();
            change(&mut found);
            assert_eq!(found.ready(), expected, "{row}");
        }
    }

    #[test]
    fn the_table() {
        type Change = fn(&mut Found);
        let rows: [(&str, Change, Option<i64>, &str); 11] = [
            ("ready", |_| (), None, "Register"),
            ("ready and there", |f| f.registered = registered(|_| ()), None, "Nothing"),
            ("not ready and not there", |_| (), Some(99), "Nothing"),
            ("not ready for a moment", |f| f.registered = registered(|_| ()), Some(71), "Nothing"),
            ("not ready for long", |f| f.registered = registered(|_| ()), Some(70), "Withdraw"),
            (
                "not ready for long, certificate gone",
                |f| {
                    f.registered = registered(|_| ());
                    f.ca = None;
                },
                Some(70),
                "Withdraw",
            ),
            (
                "another authority",
                |f| {
                    f.registered = registered(|_| ());
                    f.ca = Some("PEM PEM".into());
                },
                None,
                "Correct",
            ),
            ("changed by somebody", |f| f.registered = registered(|v| v["spec"]["insecureSkipTLSVerify"] = json!(true)), None, "Correct"),
            (
                "installed anew",
                |f| f.registered = registered(|v| v["metadata"]["ownerReferences"][0]["uid"] = json!("old")),
                None,
                "Correct",
            ),
            ("somebody's", |f| f.registered = registered(|v| v["metadata"]["labels"] = json!({})), None, "LeaveAlone"),
            ("somebody's, and nobody ready", |f| f.registered = registered(|v| v["metadata"]["labels"] = json!({})), Some(0), "LeaveAlone"),
        ];
        for (row, change, unready, expected) in rows {
            let mut found = found();
            change(&mut found);
            let step = format!("{:?}", decide(&found, "system", "gateway", unready.map(at), at(100)));
            assert!(step.starts_with(expected), "{row}: {step}");
        }
    }
}
