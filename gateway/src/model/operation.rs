//! What a client may ask for on the model routes: a dialect, and which of its calls.

use agentrun_crds::model_provider::Dialect;

/// One kind of call. The route decides it; but for Gemini, the body says whether the answer is to be streamed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Operation {
    /// OpenAI chat/completions.
    Chat,
    /// OpenAI Responses.
    Responses,
    /// OpenAI embeddings.
    Embeddings,
    /// Anthropic Messages.
    Messages,
    /// Anthropic's counting of tokens.
    CountTokens,
    /// Gemini generateContent.
    Generate,
    /// Gemini streamGenerateContent with `alt=sse`.
    GenerateEvents,
    /// The same as one JSON array, element by element.
    GenerateArray,
    /// Gemini countTokens.
    CountContents,
}

impl Operation {
    /// What a provider must speak to serve it.
    pub fn dialect(self) -> Dialect {
        match self {
            Operation::Chat => Dialect::OpenAIChat,
            Operation::Responses => Dialect::OpenAIResponses,
            Operation::Embeddings => Dialect::OpenAIEmbeddings,
            Operation::Messages | Operation::CountTokens => Dialect::AnthropicMessages,
            Operation::Generate | Operation::GenerateEvents | Operation::GenerateArray | Operation::CountContents => Dialect::Gemini,
        }
    }

    /// Whether providers bill nothing for it: it counts against no budget.
    pub fn is_free(self) -> bool {
        matches!(self, Operation::CountTokens | Operation::CountContents)
    }

    /// Whether it makes output tokens.
    pub fn generates(self) -> bool {
        !self.is_free() && self != Operation::Embeddings
    }

    /// Gemini's, by the word behind the model's name in the path; `events` if the query asks for them.
    pub fn of_gemini(word: &str, events: bool) -> Option<Operation> {
        match word {
            "generateContent" => Some(Operation::Generate),
            "streamGenerateContent" if events => Some(Operation::GenerateEvents),
            "streamGenerateContent" => Some(Operation::GenerateArray),
            "countTokens" => Some(Operation::CountContents),
            _ => None,
        }
    }
}

/// The route on which a run whose model speaks `dialect` makes its calls, for people.
pub fn route(dialect: Dialect) -> &'static str {
    match dialect {
        Dialect::OpenAIChat => "POST /v1/chat/completions",
        Dialect::OpenAIResponses => "POST /v1/responses",
        Dialect::OpenAIEmbeddings => "POST /v1/embeddings",
        Dialect::AnthropicMessages => "POST /v1/messages",
        Dialect::Gemini => "POST /v1beta/models/{model}:generateContent",
    }
}
