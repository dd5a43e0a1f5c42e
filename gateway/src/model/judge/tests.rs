//! What each dialect refuses and lets through; chat's own rows are beside `Call`.

use agentrun_crds::model_provider::OutputLimit;
use bytes::Bytes;
use proptest::prelude::*;

use super::*;
use crate::model::call::Call;

const TEXT: &str = r#"{"role":"user","content":"x"}"#;

fn messages(extra: &str) -> (Operation, String) {
    (Operation::Messages, format!(r#"{{"model":"demo","max_tokens":9,"messages":[{TEXT}],{extra}}}"#))
}

fn block(block: &str) -> (Operation, String) {
    (Operation::Messages, format!(r#"{{"model":"demo","messages":[{{"role":"user","content":[{block}]}}]}}"#))
}

fn responses(extra: &str) -> (Operation, String) {
    (Operation::Responses, format!(r#"{{"model":"demo","input":"x",{extra}}}"#))
}

fn item(item: &str) -> (Operation, String) {
    (Operation::Responses, format!(r#"{{"model":"demo","input":[{item}]}}"#))
}

fn gemini(extra: &str) -> (Operation, String) {
    (Operation::Generate, format!(r#"{{"contents":[{{"parts":[{{"text":"x"}}]}}],{extra}}}"#))
}

fn part(part: &str) -> (Operation, String) {
    (Operation::Generate, format!(r#"{{"contents":[{{"parts":[{part}]}}]}}"#))
}

fn embeddings(rest: &str) -> (Operation, String) {
    (Operation::Embeddings, format!(r#"{{"model":"demo",{rest}}}"#))
}

fn parse((operation, body): &(Operation, String)) -> Result<Call, BodyError> {
    Call::parse(*operation, Bytes::copy_from_slice(body.as_bytes()), "demo")
}

#[test]
fn what_the_body_does_not_show_is_refused_with_its_field() {
    for (call, code, name) in [
        (messages(r#""mcp_servers":[{}]"#), "unsupported_field", "mcp_servers"),
        (messages(r#""MCPServers":[{}]"#), "unsupported_field", "MCPServers"),
        (messages(r#""container":"c""#), "unsupported_field", "container"),
        (messages(r#""service_tier":"priority""#), "unsupported_value", "service_tier"),
        (messages(r#""speed":"fast""#), "unsupported_value", "speed"),
        (messages(r#""inference_geo":"us""#), "unsupported_value", "inference_geo"),
        (messages(r#""Speed":"fast""#), "unsupported_field", "Speed"),
        (messages(r#""maxTokens":100000"#), "duplicate_field", "body.maxTokens"),
        (messages(r#""tools":[{"type":"web_search_20250305","name":"web_search"}]"#), "unsupported_tool", "tools[0].type"),
        (messages(r#""tools":[{"name":"a"},{"type":"code_execution_20250825"}]"#), "unsupported_tool", "tools[1].type"),
        (messages(r#""tools":[{"type":7}]"#), "unsupported_tool", "tools[0].type"),
        (
            messages(r#""context_management":{"edits":[{"type":"compact_20260112"}]}"#),
            "unsupported_value",
            "context_management.edits[0].type",
        ),
        (messages(r#""thinking":{"budget_tokens":-1}"#), "invalid_field", "thinking.budget_tokens"),
        (messages(r#""system":[{"type":"image","source":{}}]"#), "unsupported_content", "system[0]"),
        (messages(r#""model":"demo""#), "duplicate_field", "body.model"),
        (block(r#"{"type":"image","source":{"type":"base64","data":"x"}}"#), "unsupported_content", "messages[0].content[0]"),
        (block(r#"{"type":"document","source":{"type":"url","url":"x"}}"#), "unsupported_content", "messages[0].content[0].source"),
        (block(r#"{"type":"document","source":{"type":"file","file_id":"x"}}"#), "unsupported_content", "messages[0].content[0].source"),
        (block(r#"{"type":"container_upload","file_id":"f"}"#), "unsupported_content", "messages[0].content[0]"),
        (block(r#"{"type":"server_tool_use"}"#), "unsupported_content", "messages[0].content[0]"),
        (block(r#"{"type":"text","text":"x","file_id":"f"}"#), "unsupported_field", "messages[0].content[0].file_id"),
        (
            block(r#"{"type":"tool_result","content":[{"type":"text","text":"x"},{"type":"image"}]}"#),
            "unsupported_content",
            "messages[0].content[0].content[1]",
        ),
        (responses(r#""previous_response_id":"r""#), "unsupported_field", "previous_response_id"),
        (responses(r#""previousResponseId":"r""#), "unsupported_field", "previousResponseId"),
        (responses(r#""conversation":{"id":"c"}"#), "unsupported_field", "conversation"),
        (responses(r#""prompt":{"id":"p"}"#), "unsupported_field", "prompt"),
        (responses(r#""background":true"#), "unsupported_value", "background"),
        (responses(r#""store":true"#), "unsupported_value", "store"),
        (responses(r#""store":"no""#), "invalid_field", "store"),
        (responses(r#""service_tier":"priority""#), "unsupported_value", "service_tier"),
        (responses(r#""context_management":[{"type":"compaction"}]"#), "unsupported_field", "context_management"),
        (responses(r#""max_tokens":9"#), "unsupported_field", "max_tokens"),
        (responses(r#""max_output_tokens":0"#), "invalid_field", "max_output_tokens"),
        (responses(r#""tools":[{"type":"function"},{"type":"file_search"}]"#), "unsupported_tool", "tools[1].type"),
        (responses(r#""tools":[{"type":"code_interpreter","container":{"type":"auto"}}]"#), "unsupported_tool", "tools[0].type"),
        (responses(r#""tools":[{"type":"mcp","server_url":"x"}]"#), "unsupported_tool", "tools[0].type"),
        (
            responses(r#""tools":[{"type":"namespace","tools":[{"type":"image_generation"}]}]"#),
            "unsupported_tool",
            "tools[0].tools[0].type",
        ),
        (item(r#"{"type":"item_reference","id":"i"}"#), "unsupported_content", "input[0]"),
        (item(r#"{"id":"i"}"#), "unsupported_content", "input[0]"),
        (item(r#"{"type":"reasoning","id":"rs","summary":[]}"#), "unsupported_content", "input[0]"),
        (item(r#"{"type":"web_search_call","id":"i"}"#), "unsupported_content", "input[0]"),
        (item(r#"{"role":"user","content":[{"type":"input_image","image_url":"x"}]}"#), "unsupported_content", "input[0].content[0]"),
        (
            item(r#"{"role":"user","content":[{"type":"input_text","text":"x","file_id":"f"}]}"#),
            "unsupported_field",
            "input[0].content[0].file_id",
        ),
        (
            item(r#"{"type":"function_call_output","call_id":"c","output":[{"type":"input_file","file_id":"f"}]}"#),
            "unsupported_content",
            "input[0].output[0]",
        ),
        (gemini(r#""cachedContent":"c""#), "unsupported_field", "cachedContent"),
        (gemini(r#""cached_content":"c""#), "unsupported_field", "cached_content"),
        (gemini(r#""tools":[{"googleSearch":{}}]"#), "unsupported_tool", "tools[0].googleSearch"),
        (gemini(r#""tools":{"code_execution":{}}"#), "unsupported_tool", "tools[0].code_execution"),
        (gemini(r#""tools":[{"functionDeclarations":[],"url_context":{}}]"#), "unsupported_tool", "tools[0].url_context"),
        (gemini(r#""generationConfig":{"candidateCount":2}"#), "unsupported_value", "generationConfig.candidateCount"),
        (gemini(r#""generation_config":{"candidate_count":2}"#), "unsupported_value", "generationConfig.candidate_count"),
        (
            gemini(r#""generationConfig":{"responseModalities":["TEXT","IMAGE"]}"#),
            "unsupported_value",
            "generationConfig.responseModalities",
        ),
        (gemini(r#""generationConfig":{"speechConfig":{}}"#), "unsupported_field", "generationConfig.speechConfig"),
        (gemini(r#""generationConfig":{"maxOutputTokens":"9"}"#), "invalid_field", "generationConfig.maxOutputTokens"),
        (
            gemini(r#""generationConfig":{"maxOutputTokens":9,"max_output_tokens":99999}"#),
            "duplicate_field",
            "generationConfig.max_output_tokens",
        ),
        (gemini(r#""generationConfig":{},"generation_config":{"maxOutputTokens":99999}"#), "duplicate_field", "body.generation_config"),
        (gemini(r#""generationConfig":{"MaxOutputTokens":9}"#), "unsupported_field", "MaxOutputTokens"),
        (gemini(r#""serviceTier":"PRIORITY""#), "unsupported_value", "serviceTier"),
        (gemini(r#""systemInstruction":{"parts":[{"fileData":{}}]}"#), "unsupported_content", "systemInstruction.parts[0].fileData"),
        (part(r#"{"inlineData":{"mimeType":"image/png","data":"x"}}"#), "unsupported_content", "contents[0].parts[0].inlineData"),
        (part(r#"{"text":"x","file_data":{}}"#), "unsupported_content", "contents[0].parts[0].file_data"),
        (part(r#"{"executableCode":{}}"#), "unsupported_content", "contents[0].parts[0].executableCode"),
        (
            part(r#"{"functionResponse":{"name":"n","response":{},"parts":[{"inlineData":{}}]}}"#),
            "unsupported_content",
            "contents[0].parts[0].functionResponse.parts",
        ),
        (embeddings(r#""input":[]"#), "invalid_field", "input"),
        (embeddings(r#""input":{"image":"x"}"#), "invalid_field", "input"),
        (embeddings(r#""input":[["a"]]"#), "invalid_field", "input"),
        (embeddings(r#""dimensions":3"#), "missing_field", "input"),
    ] {
        match parse(&call) {
            Err(BodyError::Field { code: got, field, .. }) => assert_eq!((got, &*field), (code, name), "{}", call.1),
            other => panic!("{}: {other:?}", call.1),
        }
    }
}

#[test]
fn what_agents_send_passes_with_nothing_but_the_splices() {
    for (call, sent) in [
        (
            messages(
                r#""tools":[{"name":"Bash","input_schema":{}},{"type":"bash_20250124","name":"bash"},{"name":"d","defer_loading":true}],"future":{"x":1}"#,
            ),
            r#"{"model":"up","max_tokens":7,"messages":[{"role":"user","content":"x"}],"tools":[{"name":"Bash","input_schema":{}},{"type":"bash_20250124","name":"bash"},{"name":"d","defer_loading":true}],"future":{"x":1}}"#,
        ),
        (
            block(r#"{"type":"tool_result","tool_use_id":"t","content":[{"type":"tool_reference","tool_name":"d"}]}"#),
            r#"{"max_tokens":7,"model":"up","messages":[{"role":"user","content":[{"type":"tool_result","tool_use_id":"t","content":[{"type":"tool_reference","tool_name":"d"}]}]}]}"#,
        ),
        (
            responses(
                r#""store":null,"tools":[{"type":"web_search","external_web_access":true} , {"type":"function"}, {"type":"web_search"},{"type":"namespace","tools":[{"type":"function"}]}]"#,
            ),
            r#"{"max_output_tokens":7,"model":"up","input":"x","store":false,"tools":[{"type":"function"},{"type":"namespace","tools":[{"type":"function"}]}]}"#,
        ),
        (
            responses(r#""store":false,"max_output_tokens":5,"tools":[{"type":"web_search"}]"#),
            r#"{"model":"up","input":"x","store":false,"max_output_tokens":7,"tools":[]}"#,
        ),
        (
            item(
                r#"{"type":"reasoning","id":"rs","summary":[],"encrypted_content":"e"},{"type":"function_call","call_id":"c","name":"n","arguments":"{}"},{"type":"function_call_output","call_id":"c","output":"x"}"#,
            ),
            r#"{"store":false,"max_output_tokens":7,"model":"up","input":[{"type":"reasoning","id":"rs","summary":[],"encrypted_content":"e"},{"type":"function_call","call_id":"c","name":"n","arguments":"{}"},{"type":"function_call_output","call_id":"c","output":"x"}]}"#,
        ),
        (
            gemini(r#""generation_config":{"thinkingConfig":{"thinkingBudget":8000}}"#),
            r#"{"contents":[{"parts":[{"text":"x"}]}],"generation_config":{"maxOutputTokens":7,"thinkingConfig":{"thinkingBudget":6}}}"#,
        ),
        (
            gemini(r#""generationConfig":null,"cachedContent":null"#),
            r#"{"contents":[{"parts":[{"text":"x"}]}],"generationConfig":{"maxOutputTokens":7},"cachedContent":null}"#,
        ),
        (
            part(r#"{"functionCall":{"name":"n"},"thoughtSignature":"s"},{"functionResponse":{"name":"n","response":{"parts":["x"]}}}"#),
            r#"{"generationConfig":{"maxOutputTokens":7},"contents":[{"parts":[{"functionCall":{"name":"n"},"thoughtSignature":"s"},{"functionResponse":{"name":"n","response":{"parts":["x"]}}}]}]}"#,
        ),
        (embeddings(r#""input":["a","b"],"dimensions":3"#), r#"{"model":"up","input":["a","b"],"dimensions":3}"#),
        (embeddings(r#""input":[1,2,3]"#), r#"{"model":"up","input":[1,2,3]}"#),
    ] {
        let rendered = parse(&call).unwrap_or_else(|error| panic!("{}: {error}", call.1)).render("up", OutputLimit::MaxTokens, 7);
        assert_eq!(std::str::from_utf8(&rendered).unwrap(), sent);
    }
}

#[test]
fn a_reference_to_a_tool_is_reserved_at_the_size_of_the_tools() {
    let tools = format!(r#""tools":[{{"name":"d","description":"{}"}}]"#, "x".repeat(5000));
    let plain = parse(&messages(&tools)).unwrap().input_tokens();
    let call = messages(&tools).1.replace(r#""content":"x""#, r#""content":[{"type":"tool_reference"},{"type":"tool_reference"}]"#);
    assert!(parse(&(Operation::Messages, call)).unwrap().input_tokens() > plain + 10_000);
}

proptest! {
    #[test]
    fn no_bytes_crash_it(bytes in prop::collection::vec(any::<u8>(), 0..200), which in 0usize..9) {
        let all = [
            Operation::Chat, Operation::Responses, Operation::Embeddings, Operation::Messages, Operation::CountTokens,
            Operation::Generate, Operation::GenerateEvents, Operation::GenerateArray, Operation::CountContents,
        ];
        let _ = Call::parse(all[which], Bytes::from(bytes), "demo");
    }
}
