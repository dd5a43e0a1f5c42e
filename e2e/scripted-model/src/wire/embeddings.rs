//! OpenAI embeddings: one short vector for each input, which follows from its bytes.

use serde_json::{Value, json};

use super::{Part, tokens};

/// The answer to a body; its model stands in it.
pub fn answer(body: &Value) -> Part {
    let inputs: Vec<&Value> = body["input"].as_array().map_or_else(|| vec![&body["input"]], |list| list.iter().collect());
    let prompt = inputs.iter().map(|input| tokens(input.to_string().len() as u64)).sum::<u64>();
    let vector = |input: &Value| {
        let sum: u64 = input.to_string().bytes().map(u64::from).sum();
        json!([sum as f64 / 1e6, 0.5, -0.5])
    };
    let data: Vec<Value> = inputs
        .iter()
        .enumerate()
        .map(|(index, input)| json!({"object": "embedding", "index": index, "embedding": vector(input)}))
        .collect();
    let body = json!({"object": "list", "data": data, "model": body["model"], "usage": {"prompt_tokens": prompt, "total_tokens": prompt}});
    Part { bytes: body.to_string().into(), reports: Some((prompt as i64, 0)) }
}
