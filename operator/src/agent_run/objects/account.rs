//! The ServiceAccount of every sandbox: no rights, no token mounted. The namespace's, owned by no run.

use agentrun_crds::names;
use k8s_openapi::api::core::v1::ServiceAccount;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;

pub fn account(namespace: &str) -> ServiceAccount {
    ServiceAccount {
        metadata: ObjectMeta {
            name: Some(names::SANDBOX_SERVICE_ACCOUNT.into()),
            namespace: Some(namespace.into()),
            ..ObjectMeta::default()
        },
        automount_service_account_token: Some(false),
        ..ServiceAccount::default()
    }
}
