//! Five people decide at once and at odds, over two gateway processes that are killed again and again, while three executions
//! and one for another action try to use what is allowed: each approval is decided once, consumed at most once, and never for
//! another digest. `AGENTRUN_APPROVAL_ROUNDS` says how often (500; `make approvals` does 1,000).

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError, RwLock};
use std::time::Duration;

use agentrun_crds::AgentRun;
use agentrun_crds::agent_run_status::{Approval, ApprovalState};
use agentrun_crds::budget::{Limit, Spent};
use agentrun_crds::names;
use agentrun_e2e::gateways::{Bed, Gateway, LiveRun};
use agentrun_protocol::routes::APPROVALS;
use agentrun_protocol::token::Audience;
use agentrun_scripted_model::{Script, Turn};
use anyhow::{Context, Result, bail, ensure};
use futures::future::{join_all, try_join_all};
use futures::{StreamExt, TryStreamExt};
use k8s_openapi::api::rbac::v1::{PolicyRule, Role, RoleBinding, RoleRef, Subject};
use kube::Api;
use kube::api::{ObjectMeta, PostParams};
use kube::runtime::watcher;
use serde_json::{Value, json};

const DECIDERS: usize = 5;
const EXECUTIONS: usize = 3;
const RUNS: usize = 10;
const KILLS: usize = 10;
const PATIENCE: Duration = Duration::from_secs(60);

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn each_approval_is_decided_once_and_consumed_at_most_once() {
    let _turn = super::turn::alone().await;
    body().await.unwrap();
}

async fn body() -> Result<()> {
    let rounds: usize = std::env::var("AGENTRUN_APPROVAL_ROUNDS").map_or(Ok(500), |text| text.parse())?;
    let bed = Bed::start(Script::new("", [Turn::say("yes")])).await?;
    let deciders = deciders(&bed).await?;
    let mut runs = Vec::new();
    for number in 0..RUNS {
        runs.push(bed.run(&format!("run-{number}"), Limit { requests: 10, ..Limit::default() }, Spent::default()).await?);
    }
    let histories = Histories::follow(&bed);
    let doors = Doors::open(&bed).await?;
    let (done, share) = (AtomicUsize::new(0), rounds.div_ceil(RUNS));
    let work = try_join_all(runs.iter().map(|run| async {
        let field = Field { bed: &bed, run, doors: &doors, deciders: &deciders };
        let mut sums = Sums::default();
        for number in 0..share {
            field.round(number, &mut sums).await.with_context(|| format!("{}, round {number}", run.name))?;
            done.fetch_add(1, Ordering::SeqCst);
        }
        let totals = bed.get(&run.name).await?.status.and_then(|status| status.approval_totals).context("totals")?;
        ensure!(
            (totals.asked, totals.allowed, totals.denied, totals.expired) == (share as i64, sums.allowed, sums.denied, 0),
            "{}: {totals:?}, seen {sums:?}",
            run.name
        );
        Ok(sums)
    }));
    let (sums, kills) = tokio::try_join!(work, doors.kill_as_it_goes(&bed, &done, share * RUNS))?;
    let allowed: i64 = sums.iter().map(|sums| sums.allowed).sum();
    println!("{} rounds, {allowed} allowed, {kills} gateways killed, seed {}", share * RUNS, doors.seed);
    ensure!(kills == KILLS, "only {kills} kills");
    ensure!(allowed > 0 && allowed < (share * RUNS) as i64, "chance decided always the same");
    tokio::time::timeout(PATIENCE, histories.complete(share * RUNS)).await.context("the watch is behind")?;
    histories.check(&runs, share)
}

/// People who may decide, by their tokens.
async fn deciders(bed: &Bed) -> Result<Vec<String>> {
    let metadata = || ObjectMeta { name: Some("approver".into()), ..ObjectMeta::default() };
    let rule = PolicyRule {
        api_groups: Some(vec![agentrun_crds::GROUP.into()]),
        resources: Some(vec!["agentruns".into()]),
        verbs: vec!["get".into(), "approve".into()],
        ..PolicyRule::default()
    };
    let role = Role { metadata: metadata(), rules: Some(vec![rule]) };
    Api::namespaced(bed.client.clone(), &bed.team).create(&PostParams::default(), &role).await?;
    let names: Vec<String> = (0..DECIDERS).map(|number| format!("person-{number}")).collect();
    let subject = |name: &String| Subject {
        kind: "ServiceAccount".into(),
        name: name.clone(),
        namespace: Some(bed.team.clone()),
        ..Subject::default()
    };
    let binding = RoleBinding {
        metadata: metadata(),
        role_ref: RoleRef { api_group: Some("rbac.authorization.k8s.io".into()), kind: "Role".into(), name: "approver".into() },
        subjects: Some(names.iter().map(subject).collect()),
    };
    Api::namespaced(bed.client.clone(), &bed.team).create(&PostParams::default(), &binding).await?;
    let mut tokens = Vec::new();
    for name in &names {
        bed.server.service_account(&bed.team, name).await?;
        tokens.push(bed.server.token(&bed.team, name, &[names::PEOPLE_AUDIENCE], None).await?);
    }
    Ok(tokens)
}

/// Two gateway processes, of which one may be away.
struct Doors {
    open: RwLock<[Door; 2]>,
    processes: Mutex<[Option<Gateway>; 2]>,
    chance: AtomicU64,
    seed: u64,
}

#[derive(Clone)]
struct Door {
    http: reqwest::Client,
    sandbox: String,
    people: String,
}

impl Door {
    fn of(gateway: &Gateway) -> Door {
        Door { http: gateway.http.clone(), sandbox: gateway.url.clone(), people: gateway.people_url.clone() }
    }
}

impl Doors {
    async fn open(bed: &Bed) -> Result<Doors> {
        let (a, b) = (bed.gateway("a").await?, bed.gateway("b").await?);
        let seed = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH)?.as_nanos() as u64;
        Ok(Doors {
            open: RwLock::new([Door::of(&a), Door::of(&b)]),
            processes: Mutex::new([Some(a), Some(b)]),
            chance: AtomicU64::new(seed),
            seed,
        })
    }

    /// One of so many, by chance.
    fn pick(&self, of: usize) -> usize {
        let mut z = self.chance.fetch_add(0x9e37_79b9_7f4a_7c15, Ordering::Relaxed);
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((z ^ (z >> 31)) % of as u64) as usize
    }

    fn any(&self) -> Door {
        self.open.read().unwrap_or_else(PoisonError::into_inner)[self.pick(2)].clone()
    }

    /// Send until a gateway has an answer of its own: what is refused for the moment, or not answered, is sent again.
    async fn send(&self, token: &str, call: impl Fn(&Door) -> reqwest::RequestBuilder) -> Result<(u16, Value)> {
        let sending = async {
            loop {
                if let Ok(answer) = call(&self.any()).bearer_auth(token).send().await {
                    let status = answer.status().as_u16();
                    if let Ok(body) = answer.json::<Value>().await
                        && !(status >= 500 || status == 429)
                    {
                        return (status, body);
                    }
                }
                tokio::time::sleep(Duration::from_millis(20)).await; // a client's pause before it tries again
            }
        };
        tokio::time::timeout(PATIENCE, sending).await.context("no answer in time")
    }

    /// Kill one or the other whenever another part of the rounds is done, and start it again.
    async fn kill_as_it_goes(&self, bed: &Bed, done: &AtomicUsize, rounds: usize) -> Result<usize> {
        for kill in 0..KILLS {
            while done.load(Ordering::SeqCst) < rounds * kill / KILLS {
                tokio::time::sleep(Duration::from_millis(5)).await; // rounds are only counted
            }
            let which = kill % 2;
            let process = self.processes.lock().unwrap_or_else(PoisonError::into_inner)[which].take();
            process.context("a gateway")?.crash()?;
            let again = bed.gateway(["a", "b"][which]).await?;
            self.open.write().unwrap_or_else(PoisonError::into_inner)[which] = Door::of(&again);
            self.processes.lock().unwrap_or_else(PoisonError::into_inner)[which] = Some(again);
        }
        Ok(KILLS)
    }
}

#[derive(Debug, Default)]
struct Sums {
    allowed: i64,
    denied: i64,
}

/// Who meets over one run.
struct Field<'a> {
    bed: &'a Bed,
    run: &'a LiveRun,
    doors: &'a Doors,
    deciders: &'a [String],
}

impl Field<'_> {
    async fn round(&self, number: usize, sums: &mut Sums) -> Result<()> {
        let action = json!({"tool": "run_command", "argv": ["echo", number.to_string()]});
        let token = self.bed.token(self.run, Audience::Approvals);
        let asked = self.doors.send(&token, |door| door.http.post(format!("{}{APPROVALS}", door.sandbox)).json(&json!({"action": action})));
        let (status, asked) = asked.await?;
        ensure!(status == 200, "asking: {status} {asked}");
        let id = asked["id"].as_i64().context("an id")?;
        ensure!(id == number as i64 + 1 && asked["state"] == "pending", "{asked}");

        let deciding = join_all(self.deciders.iter().map(|person| self.decide(person, id)));
        let mut changed = action.clone();
        changed["argv"][1] = format!("{number} ").into();
        let executions = (0..EXECUTIONS).map(|execution| self.execute(&token, id, &action, format!("{number}-{execution}")));
        let using = join_all(executions.chain([self.execute(&token, id, &changed, format!("{number}-changed"))]));
        let (decided, used) = tokio::join!(deciding, using);
        let decided = decided.into_iter().collect::<Result<Vec<_>>>()?;
        let used = used.into_iter().collect::<Result<Vec<_>>>()?;

        let run = self.bed.get(&self.run.name).await?;
        let record = run.status.iter().flat_map(|status| &status.approvals).find(|approval| approval.id == id).context("the record")?;
        ensure!(Some(record.digest.as_str()) == asked["digest"].as_str(), "another digest: {record:?}");
        let stands: Vec<usize> = (0..DECIDERS).filter(|person| decided[*person].0 == 200).collect();
        ensure!(stands.len() == 1, "decided by {stands:?}: {decided:?}");
        let by = format!("system:serviceaccount:{}:person-{}", self.bed.team, stands[0]);
        ensure!(record.decided_by.as_deref() == Some(&by), "{by} was told that they decided: {record:?}");
        for (status, body) in decided.iter().filter(|(status, _)| *status != 200) {
            ensure!(*status == 409 && body["error"]["code"] == "already_decided", "{status} {body}");
            ensure!(body["error"]["message"].as_str().is_some_and(|message| message.contains(&by)), "not told who decided: {body}");
        }

        let codes: Vec<&str> =
            used.iter().map(|(status, body)| if *status == 200 { "used" } else { body["error"]["code"].as_str().unwrap_or("") }).collect();
        ensure!(codes[EXECUTIONS] == "digest_mismatch", "an action of another digest: {codes:?}");
        let times = codes[..EXECUTIONS].iter().filter(|code| **code == "used").count();
        if record.state == ApprovalState::Denied {
            sums.denied += 1;
            ensure!(codes[..EXECUTIONS].iter().all(|code| *code == "approval_denied"), "denied, and then {codes:?}");
        } else {
            sums.allowed += 1;
            let by = codes.iter().position(|code| *code == "used").map(|execution| format!("{number}-{execution}"));
            ensure!(
                times == 1 && record.state == ApprovalState::Consumed && record.execution_id == by,
                "used {times} times: {codes:?} {record:?}"
            );
            ensure!(codes[..EXECUTIONS].iter().all(|code| ["used", "already_consumed"].contains(code)), "{codes:?}");
        }
        Ok(())
    }

    async fn decide(&self, person: &str, id: i64) -> Result<(u16, Value)> {
        let words = ["allow_once", "allow_session", "deny"];
        let decision = json!({"decision": words[self.doors.pick(words.len())]});
        let (namespace, name) = (&self.bed.team, &self.run.name);
        let path = format!("/v1/namespaces/{namespace}/runs/{name}/approvals/{id}");
        self.doors.send(person, |door| door.http.post(format!("{}{path}", door.people)).json(&decision)).await
    }

    /// Try to use it as soon as it is decided.
    async fn execute(&self, token: &str, id: i64, action: &Value, execution_id: String) -> Result<(u16, Value)> {
        let request = json!({"action": action, "executionId": execution_id});
        let mut hasty = self.doors.pick(4) == 0;
        for _ in 0..1_000 {
            if !std::mem::take(&mut hasty) {
                let waiting = self.doors.send(token, |door| door.http.get(format!("{}{APPROVALS}/{id}?wait=5", door.sandbox)));
                let (status, body) = waiting.await?;
                ensure!(status == 200, "waiting: {status} {body}");
            }
            let consume = self.doors.send(token, |door| door.http.post(format!("{}{APPROVALS}/{id}/consume", door.sandbox)).json(&request));
            let (status, body) = consume.await?;
            if body["error"]["code"] != "approval_pending" {
                return Ok((status, body));
            }
        }
        bail!("never decided")
    }
}

/// By run and number.
type Seen = Arc<Mutex<BTreeMap<(String, i64), Vec<Approval>>>>;

/// Every state that the API server has kept, of each approval.
struct Histories {
    seen: Seen,
    watching: tokio::task::JoinHandle<()>,
}

impl Histories {
    fn follow(bed: &Bed) -> Histories {
        let seen = Seen::default();
        let (runs, kept) = (Api::<AgentRun>::namespaced(bed.client.clone(), &bed.team), seen.clone());
        let watching = tokio::spawn(async move {
            let mut events = watcher(runs, watcher::Config::default()).boxed();
            while let Ok(Some(event)) = events.try_next().await {
                let (watcher::Event::Apply(run) | watcher::Event::InitApply(run)) = event else { continue };
                let name = run.metadata.name.clone().unwrap_or_default();
                let mut kept = kept.lock().unwrap_or_else(PoisonError::into_inner);
                for approval in run.status.into_iter().flat_map(|status| status.approvals) {
                    let history = kept.entry((name.clone(), approval.id)).or_default();
                    if history.last() != Some(&approval) {
                        history.push(approval);
                    }
                }
            }
        });
        Histories { seen, watching }
    }

    /// Wait until the watch has brought the end of so many.
    async fn complete(&self, count: usize) {
        let ended = |history: &Vec<Approval>| {
            history.last().is_some_and(|last| matches!(last.state, ApprovalState::Denied | ApprovalState::Consumed))
        };
        let all = || self.seen.lock().unwrap_or_else(PoisonError::into_inner).values().filter(|history| ended(history)).count() >= count;
        while !all() && !self.watching.is_finished() {
            tokio::time::sleep(Duration::from_millis(20)).await; // the watch only collects
        }
    }

    /// Pending, then one decision that stays, then at most one use.
    fn check(&self, runs: &[LiveRun], rounds: usize) -> Result<()> {
        ensure!(!self.watching.is_finished(), "the watch has ended early");
        let seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
        for run in runs {
            for id in 1..=rounds as i64 {
                let history = seen.get(&(run.name.clone(), id)).with_context(|| format!("nothing was seen of {} {id}", run.name))?;
                use ApprovalState::{Allowed, Consumed, Denied, Pending};
                let states: Vec<ApprovalState> = history.iter().map(|approval| approval.state).collect();
                let known: [&[ApprovalState]; 2] = [&[Pending, Denied], &[Pending, Allowed, Consumed]];
                ensure!(known.contains(&states.as_slice()), "{} {id}: {states:?}", run.name);
                let decided: Vec<_> =
                    history[1..].iter().map(|approval| (&approval.decided_by, &approval.decided_at, approval.scope)).collect();
                ensure!(decided.windows(2).all(|pair| pair[0] == pair[1]), "{} {id} was decided twice: {history:?}", run.name);
                ensure!(history.windows(2).all(|pair| pair[0].digest == pair[1].digest), "{} {id} changed: {history:?}", run.name);
            }
        }
        Ok(())
    }
}

impl Drop for Histories {
    fn drop(&mut self) {
        self.watching.abort();
    }
}
