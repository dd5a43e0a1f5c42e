//! Kubernetes Events on a policy: once for each period, limit and share that is told of, whichever gateway writes it, since the
//! Event's name says which one it is.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::Arc;
use std::time::Duration;

use agentrun_crds::agent_policy_status::{PeriodStatus, USED_UP};
use agentrun_crds::period::Window;
use agentrun_crds::{AgentPolicy, names};
use k8s_openapi::api::core::v1::ObjectReference;
use k8s_openapi::api::events::v1::Event;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{MicroTime, ObjectMeta};
use kube::api::PostParams;
use kube::{Api, Client, Resource};

use super::namespace;

const TRIES: usize = 3;
const PATIENCE: Duration = Duration::from_secs(5);

/// That a share of a namespace's budget is spent.
pub struct Warning {
    pub policy: Arc<AgentPolicy>,
    pub window: Window,
    pub percent: i64,
}

impl Warning {
    /// Tell it; what cannot be told is logged, and stands in status as well.
    pub async fn tell(self, client: Client, instance: String) {
        let Some(mut event) = self.event(instance) else { return };
        let events: Api<Event> = Api::namespaced(client, namespace(&self.policy));
        for _ in 0..TRIES {
            match tokio::time::timeout(PATIENCE, events.create(&PostParams::default(), &event)).await {
                Ok(Ok(_)) => return,
                Ok(Err(kube::Error::Api(status))) if status.code == 409 => {
                    let name = event.metadata.name.clone().unwrap_or_default();
                    // Another gateway has told it, or we have, and did not hear of it; unless somebody else has taken the name.
                    match tokio::time::timeout(PATIENCE, events.get(&name)).await {
                        Ok(Ok(told)) if says_the_same(&told, &event) => return,
                        Ok(Ok(_)) => event.metadata = ObjectMeta { name: None, generate_name: Some(format!("{name}-")), ..event.metadata },
                        _ => {}
                    }
                }
                Ok(Err(error)) => tracing::warn!(%error, "an Event about a namespace's budget could not be written"),
                Err(_) => tracing::warn!("writing an Event about a namespace's budget took too long"),
            }
        }
    }

    fn event(&self, instance: String) -> Option<Event> {
        let status = self.policy.status.as_ref()?.of(self.window.period)?;
        let (period, until) = (self.window.period, self.window.end);
        let (reason, note) = if self.percent >= USED_UP {
            (
                "NamespaceBudgetSpent",
                format!(
                    "the namespace's budget of this {period} is spent ({}), or too little is left for a call; new runs wait until {until}",
                    shares(status)
                ),
            )
        } else {
            let percent = status.used_percent;
            (
                "NamespaceBudgetLow",
                format!("{percent} % of the namespace's budget of this {period} is spent ({}); it lasts until {until}", shares(status)),
            )
        };
        let mut limit = DefaultHasher::new();
        format!("{:?}", status.limit).hash(&mut limit);
        let name = format!("{}.{}-{}-{}-{:x}", names::POLICY, period, self.window.start.as_second(), self.percent, limit.finish());
        Some(Event {
            metadata: ObjectMeta { name: Some(name), namespace: Some(namespace(&self.policy).into()), ..ObjectMeta::default() },
            event_time: Some(MicroTime(k8s_openapi::jiff::Timestamp::now())),
            type_: Some("Warning".into()),
            reason: Some(reason.into()),
            action: Some("Metering".into()),
            note: Some(note),
            regarding: Some(ObjectReference {
                api_version: Some(AgentPolicy::api_version(&()).into()),
                kind: Some(AgentPolicy::kind(&()).into()),
                name: self.policy.metadata.name.clone(),
                namespace: self.policy.metadata.namespace.clone(),
                uid: self.policy.metadata.uid.clone(),
                ..ObjectReference::default()
            }),
            reporting_controller: Some(names::GATEWAY.into()),
            reporting_instance: Some(instance),
            ..Event::default()
        })
    }
}

/// Whoever may create Events in the namespace may have written this one.
fn says_the_same(one: &Event, other: &Event) -> bool {
    let uid = |event: &Event| event.regarding.as_ref().and_then(|about| about.uid.clone());
    (&one.type_, &one.reason, uid(one)) == (&other.type_, &other.reason, uid(other))
}

/// `90 of 100 requests, 0.45 of 0.50 cost`.
pub fn shares(status: &PeriodStatus) -> String {
    let PeriodStatus { limit, spent, .. } = status;
    let money = agentrun_crds::quantity::micros_text;
    let count = |spent: i64, limit: Option<i64>, what: &str| limit.map(|limit| format!("{spent} of {limit} {what}"));
    let all = [
        count(spent.requests, limit.requests, "requests"),
        count(spent.input_tokens, limit.input_tokens, "input tokens"),
        count(spent.output_tokens, limit.output_tokens, "output tokens"),
        limit.cost_micros.map(|limit| format!("{} of {} cost", money(spent.cost_micros), money(limit))),
    ];
    all.into_iter().flatten().collect::<Vec<_>>().join(", ")
}
