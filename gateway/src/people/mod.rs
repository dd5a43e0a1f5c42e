//! What people and their programs may ask: one list of operations, mounted on the listener for people and on the one behind the
//! cluster's API server. Documents and tests are made from the same list, so an operation that exists is in all of them.

mod openapi;
mod runs;
mod site;

use std::sync::Arc;

use agentrun_protocol::people::{ApprovalList, ApprovalView, ArtifactList, DecisionRequest, RunList, RunView, SourceView, SubmitRequest};
use axum::Router;
use axum::middleware::from_fn_with_state;
use axum::routing::{MethodRouter, get, post, put};

pub use site::Site;

use self::openapi::{Content, json};
use crate::app::AppState;
use crate::{approvals, artifacts, events, source};

/// One operation on a run.
pub struct Operation {
    pub method: &'static str,
    /// Beneath the run.
    pub path: &'static str,
    /// The RBAC verb on `agentruns.agentrun.dev` that it needs.
    pub right: &'static str,
    /// For the OpenAPI document.
    pub summary: &'static str,
    takes: Content,
    gives: (u16, Content),
    handler: fn() -> MethodRouter<AppState>,
}

/// Every operation on a run.
pub const OPERATIONS: &[Operation] = &[
    Operation {
        method: "GET",
        path: "/events",
        right: "get",
        summary: "Events, up to now or followed",
        takes: Content::Nothing,
        gives: (200, Content::Events),
        handler: || get(events::of_run),
    },
    Operation {
        method: "GET",
        path: "/log",
        right: "get",
        summary: "Events, as `events`; the API server lets this one be followed for long",
        takes: Content::Nothing,
        gives: (200, Content::Events),
        handler: || get(events::log_of_run),
    },
    Operation {
        method: "GET",
        path: "/artifacts",
        right: "get",
        summary: "Names, digests and sizes of the run's artifacts",
        takes: Content::Nothing,
        gives: (200, json::<ArtifactList>()),
        handler: || get(artifacts::list),
    },
    Operation {
        method: "GET",
        path: "/artifacts/{artifact}",
        right: "get",
        summary: "The content of an artifact, by digest or name",
        takes: Content::Nothing,
        gives: (200, Content::Bytes("application/octet-stream")),
        handler: || get(artifacts::blob),
    },
    Operation {
        method: "GET",
        path: "/approvals",
        right: "get",
        summary: "What waits for a person, and what became of earlier ones",
        takes: Content::Nothing,
        gives: (200, json::<ApprovalList>()),
        handler: || get(approvals::list),
    },
    Operation {
        method: "GET",
        path: "/approvals/{approval}",
        right: "get",
        summary: "One approval, with all that is shown of it",
        takes: Content::Nothing,
        gives: (200, json::<ApprovalView>()),
        handler: || get(approvals::one),
    },
    Operation {
        method: "POST",
        path: "/approvals/{approval}",
        right: "approve",
        summary: "Decide",
        takes: json::<DecisionRequest>(),
        gives: (200, json::<ApprovalView>()),
        handler: || post(approvals::decide),
    },
    Operation {
        method: "GET",
        path: "/patch",
        right: "get",
        summary: "The patch, for `git apply`",
        takes: Content::Nothing,
        gives: (200, Content::Bytes("text/x-diff")),
        handler: || get(artifacts::patch),
    },
    Operation {
        method: "PUT",
        path: "/source",
        right: "patch",
        summary: "Upload the source archive that the run names by its digest",
        takes: Content::Bytes("application/x-tar"),
        gives: (200, json::<SourceView>()),
        handler: || put(source::put),
    },
    Operation {
        method: "POST",
        path: "/cancel",
        right: "patch",
        summary: "Ask the run to end",
        takes: Content::Nothing,
        gives: (202, json::<RunView>()),
        handler: || post(runs::cancel),
    },
];

/// Operations that the API server has itself, so that only the listener for people has them; with whole paths.
pub const PEOPLE_ONLY: &[Operation] = &[
    Operation {
        method: "GET",
        path: "/v1/runs",
        right: "list",
        summary: "The newest runs of a namespace",
        takes: Content::Nothing,
        gives: (200, json::<RunList>()),
        handler: || get(runs::list),
    },
    Operation {
        method: "POST",
        path: "/v1/runs",
        right: "create",
        summary: "Submit a run",
        takes: json::<SubmitRequest>(),
        gives: (202, json::<RunView>()),
        handler: || post(runs::submit),
    },
    Operation {
        method: "GET",
        path: "/v1/runs/{id}",
        right: "get",
        summary: "One run",
        takes: Content::Nothing,
        gives: (200, json::<RunView>()),
        handler: || get(runs::one),
    },
    Operation {
        method: "GET",
        path: "/v1/namespaces/{ns}/runs/{name}",
        right: "get",
        summary: "One run, by its name",
        takes: Content::Nothing,
        gives: (200, json::<RunView>()),
        handler: || get(runs::one),
    },
];

impl Operation {
    /// The subresource's name, the first part of its path.
    pub fn subresource(&self) -> &'static str {
        self.path.trim_start_matches('/').split('/').next().unwrap_or_default()
    }

    /// What the API server's RBAC calls the method.
    pub fn kubernetes_verb(&self) -> &'static str {
        match self.method {
            "POST" => "create",
            "PUT" => "update",
            _ => "get",
        }
    }
}

/// Where a run is on the listener for people.
pub const RUN_PREFIXES: &[&str] = &["/v1/namespaces/{ns}/runs/{name}", "/v1/runs/{id}"];

/// Every operation, to be mounted beneath a path that names a run by `{ns}` and `{name}`, or by `{id}`.
pub fn run_routes() -> Router<AppState> {
    mounted(OPERATIONS)
}

/// Routes of the listener for people. Other sites' pages are kept out of them all.
pub fn routes(site: Arc<Site>) -> Router<AppState> {
    let beneath = RUN_PREFIXES.iter().fold(mounted(PEOPLE_ONLY), |router, prefix| router.nest(prefix, run_routes()));
    let beneath = beneath.route("/openapi.json", get(async || axum::Json(openapi::document())));
    beneath.layer(from_fn_with_state(site, site::guard))
}

fn mounted(operations: &[Operation]) -> Router<AppState> {
    operations.iter().fold(Router::new(), |router, operation| router.route(operation.path, (operation.handler)()))
}
