//! Paths of the gateway's sandbox listener (TLS, bearer run tokens). The people listener's paths are the gateway's own.

/// POST `exchange::ExchangeRequest` → `exchange::ExchangeResponse`. No bearer token.
pub const EXCHANGE: &str = "/sandbox/v1/exchange";
/// POST, empty, any live run token → `exchange::RenewResponse` for the same audience.
pub const RENEW: &str = "/sandbox/v1/renew";
/// GET, events token → `job::Job`.
pub const JOB: &str = "/sandbox/v1/job";
/// POST `event::AppendRequest`, events token → `event::AppendResponse`.
pub const EVENTS: &str = "/sandbox/v1/events";
/// PUT bytes to `/sandbox/v1/blobs/sha256:<hex>`, events token → 204. The digest is verified. Repeating is harmless.
pub const BLOBS: &str = "/sandbox/v1/blobs";
/// POST `result::ArtifactRequest`, events token → 204: names a blob as an artifact of the run.
pub const ARTIFACTS: &str = "/sandbox/v1/artifacts";
/// POST `result::SandboxResult`, events token → `result::ResultResponse`. Once an attempt; the same body again is harmless.
pub const RESULT: &str = "/sandbox/v1/result";
/// POST `approval::AskRequest`, approvals token → `approval::ApprovalAnswer`.
/// GET `<APPROVALS>/{id}?wait=<seconds>` → the same, as soon as it is decided or the wait is over.
/// POST `approval::ConsumeRequest` to `<APPROVALS>/{id}/consume` → the same, `consumed`.
pub const APPROVALS: &str = "/sandbox/v1/approvals";
/// GET, events token → the bytes of the run's uploaded source archive (tar); 503 until it has been uploaded.
pub const SOURCE: &str = "/sandbox/v1/source";
/// POST an OpenAI chat/completions body, model token.
pub const CHAT_COMPLETIONS: &str = "/v1/chat/completions";
/// POST an Anthropic Messages body, model token.
pub const MESSAGES: &str = "/v1/messages";
/// POST the same to have its tokens counted, model token.
pub const COUNT_TOKENS: &str = "/v1/messages/count_tokens";
/// POST an OpenAI Responses body, model token.
pub const RESPONSES: &str = "/v1/responses";
/// POST an OpenAI embeddings body, model token.
pub const EMBEDDINGS: &str = "/v1/embeddings";
/// GET, model token: the models that the run may use; below it one by name.
pub const MODELS: &str = "/v1/models";
/// GET, model token: the same as Gemini lists them; below it one by name, and POST a body to `{model}:generateContent`,
/// `{model}:streamGenerateContent` and `{model}:countTokens`.
pub const GEMINI_MODELS: &str = "/v1beta/models";
