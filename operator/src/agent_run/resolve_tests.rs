//! Rows: changes to a spec, policy and provider that fit together, and what comes of them.

use super::*;
use serde_json::{Value, json};

struct Given {
    spec: Value,
    policy: Value,
    provider: Option<Value>,
    template: Option<Value>,
    others: Vec<(String, Value)>,
    labels: Value,
}

fn given() -> Given {
    Given {
        spec: json!({
            "instruction": "Fix it.", "model": "small", "agent": {"image": "registry.test/tools:1"},
            "source": {"inline": {"files": [{"path": "a.py", "content": "x"}]}},
        }),
        policy: json!({
            "models": [{"name": "small", "provider": "groq", "model": "llama"}],
            "images": ["registry.test/tools:*", "exact:1"],
        }),
        provider: Some(json!({
            "dialect": "OpenAIChat", "url": "https://api.test/v1/chat/completions", "secretRef": {"name": "s", "key": "k"},
            "allowedNamespaces": {"matchLabels": {"agents": "yes"}},
            "models": [{"name": "llama", "pricePerMillion": {"input": "0.59", "output": "0.79"}}],
        })),
        template: None,
        others: Vec::new(),
        labels: json!({"agents": "yes"}),
    }
}

fn other(dialect: &str) -> Value {
    json!({
        "dialect": dialect, "url": "https://other.test/v1", "secretRef": {"name": "s", "key": "k"}, "allowedNamespaces": {},
        "models": [{"name": "m", "pricePerMillion": {"input": "3", "output": "15", "cachedInput": "0.3"}, "maxOutputTokens": 9}],
    })
}

#[test]
fn fallbacks_and_embeddings_are_frozen_with_the_model() {
    let with = |dialect: &str, embeddings: &str| {
        run(|g| {
            g.policy["models"][0]["fallbacks"] = json!([{"provider": "other", "model": "m"}, {"provider": "groq", "model": "llama"}]);
            g.policy["models"][0]["embeddings"] = json!({"name": "embed", "provider": "vectors", "model": "m"});
            g.others = vec![("other".into(), other(dialect)), ("vectors".into(), other(embeddings))];
        })
    };
    let resolved = with("OpenAIChat", "OpenAIEmbeddings").unwrap();
    assert_eq!(resolved.model.dialect, Some(Dialect::OpenAIChat));
    let fallbacks = serde_json::to_value(&resolved.model.fallbacks).unwrap();
    assert_eq!(
        fallbacks,
        json!([
            {"provider": "other", "model": "m", "maxOutputTokens": 9, "inputMicrosPerMillion": 3_000_000, "outputMicrosPerMillion": 15_000_000, "cachedInputMicrosPerMillion": 300_000},
            {"provider": "groq", "model": "llama", "maxOutputTokens": 4096, "inputMicrosPerMillion": 590_000, "outputMicrosPerMillion": 790_000},
        ])
    );
    let embeddings = resolved.embeddings.unwrap();
    assert_eq!((embeddings.name.as_str(), embeddings.provider.as_str()), ("embed", "vectors"));
    for (dialect, embeddings, says) in [("Gemini", "OpenAIEmbeddings", "speaks Gemini"), ("OpenAIChat", "OpenAIChat", "OpenAIEmbeddings")] {
        let refused = with(dialect, embeddings).unwrap_err();
        assert!(matches!(&refused, NotAccepted::Refused(r) if r.message.contains(says)), "{refused:?}");
    }
    let missing = run(|g| g.policy["models"][0]["fallbacks"] = json!([{"provider": "gone", "model": "m"}]));
    assert!(matches!(missing, Err(NotAccepted::Missing(r)) if r.message.contains("gone")));
}

#[test]
fn the_built_in_agent_speaks_one_dialect() {
    let refused = run(|g| g.provider.as_mut().unwrap()["dialect"] = json!("Gemini"));
    assert!(matches!(refused, Err(NotAccepted::Refused(r)) if r.message.contains("built-in agent")));
}

#[test]
fn writing_to_anthropics_cache_costs_twice_the_input_unless_said_otherwise() {
    for (dialect, given, expected) in [
        ("AnthropicMessages", Value::Null, Some(1_180_000)),
        ("AnthropicMessages", json!("0.7"), Some(700_000)),
        ("OpenAIChat", Value::Null, None),
    ] {
        let mut provider = other(dialect);
        provider["models"][0]["pricePerMillion"] = json!({"input": "0.59", "output": "1", "cacheWrite": given});
        let providers = [("other".to_owned(), serde_json::from_value(provider).unwrap())].into();
        let offered = serde_json::from_value(json!({"name": "a", "provider": "other", "model": "m"})).unwrap();
        let (model, _) = models(&offered, &providers, &BTreeMap::new(), true).unwrap();
        assert_eq!(model.cache_write_micros_per_million, expected, "{dialect} {given}");
    }
}

fn run(change: impl FnOnce(&mut Given)) -> Result<Resolved, NotAccepted> {
    let mut given = given();
    change(&mut given);
    let mut providers: BTreeMap<String, ModelProviderSpec> = BTreeMap::new();
    for (name, value) in given.provider.map(|provider| ("groq".to_owned(), provider)).into_iter().chain(given.others) {
        providers.insert(name, serde_json::from_value(value).unwrap());
    }
    let template = given.template.map(|value| serde_json::from_value(value).unwrap());
    resolve(
        &serde_json::from_value(given.spec).unwrap(),
        &serde_json::from_value(given.policy).unwrap(),
        &providers,
        template.as_ref(),
        &serde_json::from_value(given.labels).unwrap(),
    )
}

#[test]
fn defaults_and_ceilings() {
    // limits of run, limits of policy -> steps, wall, requests, input, output, cost
    type Row = (Value, Value, (i64, i64, i64, Option<i64>, Option<i64>, Option<i64>));
    let rows: Vec<Row> = vec![
        (json!({}), json!({}), (50, 1800, 100, None, None, None)),
        (json!({"maxSteps": 12}), json!({}), (12, 1800, 14, None, None, None)),
        (json!({}), json!({"maxSteps": 20, "wallTime": "10m", "budget": {"requests": 30}}), (20, 600, 30, None, None, None)),
        (json!({"maxSteps": 12}), json!({"budget": {"requests": 5, "cost": "5.00"}}), (12, 1800, 5, None, None, Some(5_000_000))),
        (
            json!({"maxSteps": 100, "wallTime": "2h", "budget": {"requests": 7, "inputTokens": 8, "outputTokens": 9, "cost": "0.50"}}),
            json!({"budget": {"requests": 7, "inputTokens": 80, "outputTokens": 9, "cost": "0.5"}}),
            (100, 7200, 7, Some(8), Some(9), Some(500_000)),
        ),
        (json!({"wallTime": "24h"}), json!({"wallTime": "48h"}), (50, 86_400, 100, None, None, None)),
    ];
    for (limits, policy, expected) in rows {
        let resolved = run(|g| {
            g.spec["limits"] = limits.clone();
            g.policy["limits"] = policy;
        })
        .unwrap_or_else(|e| panic!("{limits}: {e:?}"));
        let b = resolved.budget;
        let found = (resolved.max_steps, resolved.wall_time_seconds, b.requests, b.input_tokens, b.output_tokens, b.cost_micros);
        assert_eq!(found, expected, "{limits}");
    }
}

#[test]
fn what_is_frozen() {
    let resolved = run(|g| {
        g.policy["requiredChecks"] = json!([{"name": "lint", "argv": ["ruff"]}]);
        g.policy["checks"] = json!([["python3", "-m", "unittest", "*"]]);
        g.policy["sandbox"] = json!({"hostUsers": "Shared", "runtimeClassName": "", "memory": "2Gi"});
        g.spec["checks"] = json!([
            {"name": "unit", "argv": ["python3", "-m", "unittest"]},
            {"name": "lint", "argv": ["ruff"]},
        ]);
    })
    .unwrap();
    let names: Vec<&str> = resolved.checks.iter().map(|check| check.name.as_str()).collect();
    assert_eq!(names, ["lint", "unit"]);
    assert_eq!(resolved.model.input_micros_per_million, Some(590_000));
    assert_eq!((resolved.model.model.as_str(), resolved.model.max_output_tokens), ("llama", 4096));
    assert_eq!((resolved.cpu.as_str(), resolved.memory.as_str(), resolved.workspace.as_str()), ("1", "2Gi", "1Gi"));
    assert_eq!(resolved.runtime_class_name, None);
    assert_eq!(resolved.startup_deadline_seconds, 300);
    assert_eq!(resolved.policy_sha256.len(), 64);
    assert_eq!(resolved.allowed_paths, ["**"]);
}

#[test]
fn images_match_by_name_or_prefix() {
    for (image, default, fine) in [
        ("registry.test/tools:2", None, true),
        ("exact:1", None, true),
        ("exact:12", None, false),
        ("registry.test/tools", None, false),
        ("evil/registry.test/tools:1", None, false),
        ("other:1", Some("other:1"), true),
    ] {
        let result = run(|g| {
            g.spec["agent"]["image"] = json!(image);
            g.policy["defaultImage"] = json!(default);
        });
        assert_eq!(result.is_ok(), fine, "{image}");
    }
    let resolved = run(|g| {
        g.spec["agent"] = json!({});
        g.policy["defaultImage"] = json!("default:1");
    });
    assert_eq!(resolved.unwrap().image, "default:1");
}

#[test]
fn each_refusal_names_its_field() {
    type Change = Box<dyn FnOnce(&mut Given)>;
    let rows: Vec<(Reason, &str, Change)> = vec![
        (Reason::InvalidSpec, "spec.instruction", Box::new(|g| g.spec["instruction"] = json!(""))),
        (Reason::PolicyDenied, "spec.model", Box::new(|g| g.spec["model"] = json!("huge"))),
        (Reason::PolicyDenied, "spec.model", Box::new(|g| g.labels = json!({"agents": "no"}))),
        (
            Reason::PolicyDenied,
            "spec.model",
            Box::new(|g| {
                g.provider.as_mut().unwrap().as_object_mut().unwrap().remove("allowedNamespaces");
            }),
        ),
        (Reason::PolicyDenied, "spec.model", Box::new(|g| g.policy["models"][0]["model"] = json!("gone"))),
        (Reason::PolicyDenied, "spec.agent.image", Box::new(|g| g.spec["agent"]["image"] = json!("evil:1"))),
        (Reason::PolicyDenied, "spec.agent.image", Box::new(|g| g.spec["agent"] = json!({}))),
        (
            Reason::PolicyDenied,
            "spec.checks[0].argv",
            Box::new(|g| {
                g.policy["checks"] = json!([["python3", "-m", "pytest"]]);
                g.spec["checks"] = json!([{"name": "unit", "argv": ["python3", "-m", "pytest", "-q"]}]);
            }),
        ),
        (
            Reason::PolicyDenied,
            "spec.checks[0].argv",
            Box::new(|g| {
                g.policy["checks"] = json!([["*"], []]);
                g.spec["checks"] = json!([{"name": "unit", "argv": ["sh"]}]);
            }),
        ),
        (
            Reason::PolicyDenied,
            "spec.checks[0].name",
            Box::new(|g| {
                g.policy["requiredChecks"] = json!([{"name": "unit", "argv": ["a"]}]);
                g.spec["checks"] = json!([{"name": "unit", "argv": ["b"]}]);
            }),
        ),
        (Reason::PolicyDenied, "spec.limits.maxSteps", Box::new(|g| g.spec["limits"] = json!({"maxSteps": 101}))),
        (Reason::PolicyDenied, "spec.limits.wallTime", Box::new(|g| g.spec["limits"] = json!({"wallTime": "3h"}))),
        (
            Reason::PolicyDenied,
            "spec.limits.budget.requests",
            Box::new(|g| {
                g.policy["limits"] = json!({"budget": {"requests": 5}});
                g.spec["limits"] = json!({"budget": {"requests": 6}});
            }),
        ),
        (
            Reason::PolicyDenied,
            "spec.limits.budget.outputTokens",
            Box::new(|g| {
                g.policy["limits"] = json!({"budget": {"outputTokens": 5}});
                g.spec["limits"] = json!({"budget": {"outputTokens": 6}});
            }),
        ),
        (
            Reason::PolicyDenied,
            "spec.limits.budget.cost",
            Box::new(|g| {
                g.policy["limits"] = json!({"budget": {"cost": "0.49"}});
                g.spec["limits"] = json!({"budget": {"cost": "0.5"}});
            }),
        ),
        (
            Reason::PolicyDenied,
            "spec.limits.budget.cost",
            Box::new(|g| {
                g.provider.as_mut().unwrap()["models"] = json!([{"name": "llama"}]);
                g.policy["limits"] = json!({"budget": {"cost": "1"}});
            }),
        ),
        (Reason::PolicyDenied, "AgentPolicy default: spec.limits.wallTime", Box::new(|g| g.policy["limits"] = json!({"wallTime": "x"}))),
    ];
    for (reason, field, change) in rows {
        match run(change) {
            Err(NotAccepted::Refused(refusal)) => {
                assert_eq!(refusal.reason, reason, "{}", refusal.message);
                assert!(refusal.message.starts_with(field), "{field} is not named in {}", refusal.message);
            }
            other => panic!("{field}: {other:?}"),
        }
    }
}

#[test]
fn a_missing_provider_may_still_come() {
    assert!(matches!(run(|g| g.provider = None), Err(NotAccepted::Missing(r)) if r.message.contains("groq")));
}
