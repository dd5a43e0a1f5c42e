//! The CustomResourceDefinitions as they are installed: the derived schemas plus every bound, default and CEL rule.
//! One file a kind says what its objects may be; `node` is how they say it, `grammar` what texts they share. Nothing here
//! looks at an object: the API server enforces all of it, so that a bug of ours cannot break a promise.

mod agent_policy;
mod agent_policy_status;
mod agent_run;
mod agent_run_record;
mod agent_run_status;
mod agent_template;
mod budget;
mod grammar;
mod model_provider;
mod node;

use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::CustomResourceExt;

use self::node::Node;

/// Every CustomResourceDefinition, in install order.
pub fn all() -> Vec<CustomResourceDefinition> {
    vec![
        shaped::<crate::ModelProvider>(model_provider::shape),
        shaped::<crate::AgentTemplate>(agent_template::shape),
        shaped::<crate::AgentPolicy>(agent_policy::shape),
        shaped::<crate::AgentRunRecord>(agent_run_record::shape),
        shaped::<crate::AgentRun>(agent_run::shape),
    ]
}

/// The derived definition of a kind with its rules put in.
fn shaped<K: CustomResourceExt>(shape: fn(&mut Node<'_>)) -> CustomResourceDefinition {
    let mut crd = K::crd();
    for version in &mut crd.spec.versions {
        let derived = version.schema.as_mut().and_then(|schema| schema.open_api_v3_schema.take());
        let mut schema = serde_json::to_value(derived).expect("a derived schema is JSON");
        node::forbid_null(&mut schema);
        shape(&mut Node::root(K::crd_name(), &mut schema));
        let shaped = serde_json::from_value(schema).expect("a shaped schema is a schema");
        version.schema.get_or_insert_default().open_api_v3_schema = Some(shaped);
    }
    crd
}
