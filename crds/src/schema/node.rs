//! One place of a schema, and what can be said of it. A path that does not exist is a bug and stops the process at once:
//! every test that asks for the definitions walks them all.

use serde_json::{Map, Value, json};

/// A node of an OpenAPI v3 schema.
pub struct Node<'a> {
    path: String,
    schema: &'a mut Map<String, Value>,
}

impl<'a> Node<'a> {
    /// The schema of a whole object; `name` is only for messages.
    pub fn root(name: &str, schema: &'a mut Value) -> Self {
        Node { path: name.to_owned(), schema: object(name, schema) }
    }

    /// Walk down: `spec.source.inline.files[].path`; `[]` is each item of a list, `{}` each value of a map.
    pub fn at(&mut self, path: &str) -> Node<'_> {
        let mut here = Node { path: self.path.clone(), schema: &mut *self.schema };
        for segment in path.split('.') {
            let name = segment.trim_end_matches("[]").trim_end_matches("{}");
            here = here.down(&format!(".{name}"), |schema| schema.get_mut("properties").and_then(|all| all.get_mut(name)));
            if segment.ends_with("[]") {
                here = here.down("[]", |schema| schema.get_mut("items"));
            } else if segment.ends_with("{}") {
                here = here.down("{}", |schema| schema.get_mut("additionalProperties"));
            }
        }
        here
    }

    /// Each item of this list.
    pub fn each(&mut self) -> Node<'_> {
        let path = self.path.clone();
        Node { path, schema: &mut *self.schema }.down("[]", |schema| schema.get_mut("items"))
    }

    fn down(self, step: &str, find: impl FnOnce(&mut Map<String, Value>) -> Option<&mut Value>) -> Node<'a> {
        let path = format!("{}{step}", self.path);
        match find(self.schema) {
            Some(schema) => Node { schema: object(&path, schema), path },
            None => unreachable!("the schema has no {path}"),
        }
    }

    /// The names of an object's fields.
    pub fn fields(&self) -> Vec<String> {
        self.schema.get("properties").and_then(Value::as_object).map(|all| all.keys().cloned().collect()).unwrap_or_default()
    }

    /// Characters (not bytes) of a string.
    pub fn chars(&mut self, least: usize, most: usize) -> &mut Self {
        self.set("minLength", (least > 0).then_some(least)).set("maxLength", Some(most))
    }

    /// The regular expression of a string that only our own processes write; people get a `rule` with a message.
    pub fn pattern(&mut self, pattern: &str) -> &mut Self {
        self.set("pattern", Some(pattern))
    }

    /// The closed list of a string's values.
    pub fn words<'w>(&mut self, words: impl Iterator<Item = &'w str>) -> &mut Self {
        self.set("enum", Some(words.collect::<Vec<_>>()))
    }

    /// Both ends included.
    pub fn range(&mut self, least: i64, most: i64) -> &mut Self {
        self.set("minimum", Some(least)).set("maximum", Some(most))
    }

    /// An integer that is never negative.
    pub fn natural(&mut self) -> &mut Self {
        self.set("minimum", Some(0))
    }

    /// A list that is replaced as a whole.
    pub fn list(&mut self, least: usize, most: usize) -> &mut Self {
        self.set("minItems", (least > 0).then_some(least)).set("maxItems", Some(most)).set("x-kubernetes-list-type", Some("atomic"))
    }

    /// A list of distinct scalars.
    pub fn list_set(&mut self, least: usize, most: usize) -> &mut Self {
        self.list(least, most).set("x-kubernetes-list-type", Some("set"))
    }

    /// A list whose items are told apart by one field.
    pub fn list_by(&mut self, key: &str, least: usize, most: usize) -> &mut Self {
        self.list(least, most).set("x-kubernetes-list-type", Some("map")).set("x-kubernetes-list-map-keys", Some([key]))
    }

    /// Entries of a map.
    pub fn entries(&mut self, most: usize) -> &mut Self {
        self.set("maxProperties", Some(most))
    }

    /// What the API server fills in.
    pub fn default(&mut self, value: impl Into<Value>) -> &mut Self {
        self.set("default", Some(value.into()))
    }

    /// A CEL rule; `message` says what is allowed, the API server puts the field's path before it.
    pub fn rule(&mut self, rule: impl Into<String>, message: impl Into<String>) -> &mut Self {
        self.push(json!({"rule": rule.into(), "message": message.into()}))
    }

    /// A rule that needs several fields but is about one of them.
    pub fn rule_on(&mut self, field: &str, rule: impl Into<String>, message: impl Into<String>) -> &mut Self {
        self.push(json!({"rule": rule.into(), "message": message.into(), "fieldPath": format!(".{field}")}))
    }

    /// A rule in which `oldSelf` is an optional, so that it also judges an item that was not there before.
    pub fn rule_from_birth(&mut self, rule: impl Into<String>, message: impl Into<String>) -> &mut Self {
        self.push(json!({"rule": rule.into(), "message": message.into(), "optionalOldSelf": true}))
    }

    fn push(&mut self, rule: Value) -> &mut Self {
        let rules = self.schema.entry("x-kubernetes-validations").or_insert_with(|| json!([]));
        rules.as_array_mut().expect("the rules of a schema are a list").push(rule);
        self
    }

    fn set(&mut self, keyword: &str, value: Option<impl serde::Serialize>) -> &mut Self {
        if let Some(value) = value {
            self.schema.insert(keyword.to_owned(), json!(value));
        }
        self
    }
}

fn object<'a>(path: &str, schema: &'a mut Value) -> &'a mut Map<String, Value> {
    match schema.as_object_mut() {
        Some(schema) => schema,
        None => unreachable!("the schema at {path} is no object"),
    }
}

/// Take `null` out of what is allowed. The API server then drops a null like an absent field; kept, it would satisfy
/// `has()` in a rule without being a value.
pub fn forbid_null(schema: &mut Value) {
    match schema {
        Value::Object(map) => {
            map.remove("nullable");
            if let Some(Value::Array(words)) = map.get_mut("enum") {
                words.retain(|word| !word.is_null());
            }
            if let Some(Value::Object(default)) = map.get_mut("default") {
                default.retain(|_, value| !value.is_null());
            }
            map.values_mut().for_each(forbid_null);
        }
        Value::Array(items) => items.iter_mut().for_each(forbid_null),
        _ => {}
    }
}
