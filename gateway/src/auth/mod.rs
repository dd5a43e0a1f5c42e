//! Who is calling: a run (`RunCaller<Audience>`, a run token whose run was confirmed live) or a person (`Person`,
//! TokenReview and SubjectAccessReview).

mod keys;
mod person;
mod run_token;

pub use keys::{TokenKeys, TokenKeysError};
pub use person::{Approve, Get, Identity, Patch, Person, Verb, identify};
pub(crate) use person::{allowed, forbidden, is_name};
pub use run_token::{AnyAudience, Approvals, Events, Inactive, Model, RunAudience, RunCaller, bearer, check_active, run_uid_text};
