//! The chart's ValidatingAdmissionPolicies as helm renders them, on a real API server: what is weaker than what we build, or is not
//! its writer's business, is refused with the policy's name and words; the same is accepted where the policies do not hold; what
//! operator and gateway do is accepted.

mod bed;
mod pods;
mod reach;
mod statuses;
mod table;
