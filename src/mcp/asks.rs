//! What servers ask of the run whose own connection it is: reads their questions in either era, hands them to the run
//! that drives the call, and writes the replies. Decides nothing; a question that nobody may answer, or that belongs to
//! no call that is out, is turned away here.

#![expect(deprecated, reason = "the newest revision of the protocol deprecates sampling, and servers use it")]

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use rmcp::RoleClient;
use rmcp::model::{
    CallToolRequestParams, ClientCapabilities, CreateMessageRequestParams, CreateMessageResult, CustomRequest,
    CustomResult, ElicitRequestParams, ElicitResult, ElicitationCapability, ErrorCode, ErrorData,
    FormElicitationCapability, SamplingCapability, UrlElicitationCapability,
};
use rmcp::service::{InboundStreamOrigin, RequestContext};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use tokio::sync::{mpsc, oneshot};
use url::Url;

use super::Offers;
use super::link::Link;
use crate::run::ask::{Ask, Questions, Reply, SampleMessage, SampleRequest};
use crate::run::ids::CallKey;
use crate::run::message::Role;
use crate::run::spec::FinishReason;
use crate::schema::Budget;
use crate::schema::form::{self, Form};

/// Longest question to a person, in bytes of JSON.
const QUESTION_MAX: usize = 16 * 1024;
/// Longest set of questions with what the server wants back, in bytes of JSON.
const QUESTIONS_MAX: usize = 256 * 1024;
/// The code for a request that was understood and refused.
const REFUSED: i32 = -1;

/// One question of a server about a call that is out.
#[derive(Debug)]
pub struct ServerAsk {
    /// The call.
    pub call: CallKey,
    /// What is asked.
    pub ask: Ask,
    /// Where the reply goes; closed when the server takes the question back.
    pub reply: oneshot::Sender<Result<Reply, AskRefusal>>,
}

/// Why a server gets no reply.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct AskRefusal(pub String);

/// Takes out of a question what nobody may see; `None` when it makes no sense without.
type Clean = dyn Fn(&Ask) -> Option<Ask> + Send + Sync;

/// Where questions about one call go.
#[derive(Clone)]
pub struct AskDoor {
    /// The call.
    pub call: CallKey,
    /// The run that drives it.
    sender: mpsc::Sender<ServerAsk>,
    clean: Arc<Clean>,
}

impl AskDoor {
    /// Questions about this call go to that run, once they are clean.
    pub fn new(
        call: CallKey,
        sender: mpsc::Sender<ServerAsk>,
        clean: impl Fn(&Ask) -> Option<Ask> + Send + Sync + 'static,
    ) -> Self {
        Self { call, sender, clean: Arc::new(clean) }
    }
}

impl fmt::Debug for AskDoor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("AskDoor").field(&self.call).finish()
    }
}

/// The replies to what a server answered a call with.
#[derive(Clone, Debug, PartialEq)]
pub struct Continuation {
    /// By the server's names of its questions.
    pub replies: BTreeMap<String, Reply>,
    /// What the server wants back untouched, when it sent that.
    pub state: Option<String>,
}

impl Continuation {
    pub(super) fn put_into(&self, params: CallToolRequestParams) -> CallToolRequestParams {
        let replies: BTreeMap<String, Value> =
            self.replies.iter().map(|(name, reply)| (name.clone(), written(reply))).collect();
        let params = if replies.is_empty() { params } else { params.with_input_responses(replies) };
        match &self.state {
            Some(state) => params.with_request_state(state.clone()),
            None => params,
        }
    }
}

/// A request for a sample, and its result, under names that are not deprecated.
pub(super) type SampleParams = CreateMessageRequestParams;
pub(super) type SampleResult = CreateMessageResult;

/// The side of a connection that servers ask.
pub(super) struct Asker {
    offers: Offers,
    client: Link,
}

impl Asker {
    pub(super) const fn new(offers: Offers, client: Link) -> Self {
        Self { offers, client }
    }

    /// What is declared: only what this connection serves.
    pub(super) fn capabilities(&self) -> ClientCapabilities {
        let mut declared = ClientCapabilities::builder().enable_tasks().build();
        if self.offers.elicitation {
            declared.elicitation = Some(
                ElicitationCapability::new()
                    .with_form(FormElicitationCapability::new())
                    .with_url(UrlElicitationCapability::new()),
            );
        }
        if self.offers.sampling {
            declared.sampling = Some(SamplingCapability::default());
        }
        declared
    }

    pub(super) async fn sample(
        &self,
        params: SampleParams,
        context: RequestContext<RoleClient>,
    ) -> Result<SampleResult, ErrorData> {
        typed(self.ask(SAMPLE, &untyped(&params)?, context).await?)
    }

    pub(super) async fn elicit(
        &self,
        params: ElicitRequestParams,
        context: RequestContext<RoleClient>,
    ) -> Result<ElicitResult, ErrorData> {
        typed(self.ask(ELICIT, &untyped(&params)?, context).await?)
    }

    /// A request that the library does not know; a question among them has a form that it does not take.
    pub(super) async fn custom(
        &self,
        request: CustomRequest,
        context: RequestContext<RoleClient>,
    ) -> Result<CustomResult, ErrorData> {
        let method = match request.method.as_str() {
            SAMPLE => SAMPLE,
            ELICIT => ELICIT,
            _ => return Err(ErrorData::new(ErrorCode::METHOD_NOT_FOUND, request.method, None)),
        };
        self.ask(method, &request.params.unwrap_or_default(), context).await.map(CustomResult::new)
    }

    async fn ask(&self, method: &str, params: &Value, context: RequestContext<RoleClient>) -> Result<Value, ErrorData> {
        match method {
            ELICIT if !self.offers.elicitation => return Ok(written(&Reply::decline())),
            SAMPLE if !self.offers.sampling => {
                return Err(ErrorData::new(ErrorCode::METHOD_NOT_FOUND, "sampling is not offered", None));
            }
            _ => {}
        }
        let ask = read(method, params, &mut Budget::of_forms()).map_err(|why| ErrorData::invalid_params(why, None))?;
        let origin = match context.extensions.get::<InboundStreamOrigin>() {
            Some(InboundStreamOrigin::OutboundRequest(id)) => Some(id.clone().into_json_value()),
            Some(InboundStreamOrigin::Unassociated) | None => None,
        };
        let Some(door) = self.client.door_of(origin.as_ref()) else {
            return Err(refused("no call of the run is out that this could be about"));
        };
        let ask = (door.clean)(&ask).ok_or_else(|| refused("the question repeats a secret and cannot be shown"))?;
        let (reply, replied) = oneshot::channel();
        let asked = ServerAsk { call: door.call, ask, reply };
        if door.sender.send(asked).await.is_err() {
            return Err(refused("the run has ended"));
        }
        // Dropped when the server takes its question back, which the run hears of.
        let replied = tokio::select! {
            () = context.ct.cancelled() => return Err(refused("the request was cancelled")),
            replied = replied => replied,
        };
        match replied {
            Ok(Ok(reply)) => Ok(written(&reply)),
            Ok(Err(refusal)) => Err(refused(&refusal.0)),
            Err(_gone) if method == ELICIT => Ok(written(&Reply::cancel())),
            Err(_gone) => Err(refused("the call ended before there was an answer")),
        }
    }
}

fn refused(why: &str) -> ErrorData {
    ErrorData::new(ErrorCode(REFUSED), why.to_owned(), None)
}

fn untyped<T: Serialize>(params: &T) -> Result<Value, ErrorData> {
    serde_json::to_value(params).map_err(|_unprintable| ErrorData::invalid_params("the request cannot be read", None))
}

fn typed<T: DeserializeOwned>(result: Value) -> Result<T, ErrorData> {
    serde_json::from_value(result).map_err(|_unreadable| ErrorData::internal_error("the reply cannot be sent", None))
}

const SAMPLE: &str = "sampling/createMessage";
const ELICIT: &str = "elicitation/create";
const ROOTS: &str = "roots/list";

/// The questions of a result that is `input_required`.
///
/// # Errors
/// What is wrong with them, for people.
pub(super) fn questions(result: &Value) -> Result<Questions, String> {
    let state = match result.get("requestState") {
        None | Some(Value::Null) => None,
        Some(Value::String(state)) => Some(state.clone()),
        Some(_) => return Err("its state is not a text".to_owned()),
    };
    let requests = result.get("inputRequests").filter(|requests| !requests.is_null());
    let size = requests.map_or(0, |requests| requests.to_string().len()) + state.as_ref().map_or(0, String::len);
    if size > QUESTIONS_MAX {
        return Err(format!("the questions are larger than {QUESTIONS_MAX} bytes"));
    }
    let (mut asks, mut budget) = (BTreeMap::new(), Budget::of_forms());
    if let Some(requests) = requests {
        let requests = requests.as_object().ok_or("the questions are not an object")?;
        for (name, request) in requests {
            let method = request.get("method").and_then(Value::as_str).unwrap_or_default();
            let params = request.get("params").unwrap_or(&Value::Null);
            asks.insert(name.clone(), read(method, params, &mut budget)?);
        }
    }
    Ok(Questions { asks, state })
}

fn read(method: &str, params: &Value, budget: &mut Budget) -> Result<Ask, String> {
    match method {
        SAMPLE => read_sample(params).map(|request| Ask::Sample(Box::new(request))),
        ELICIT => read_question(params, budget),
        ROOTS => Ok(Ask::Roots),
        _ => Err("one of the questions is of an unknown kind".to_owned()),
    }
}

fn read_question(params: &Value, budget: &mut Budget) -> Result<Ask, String> {
    if params.to_string().len() > QUESTION_MAX {
        return Err(format!("a question is larger than {QUESTION_MAX} bytes"));
    }
    let message = params.get("message").and_then(Value::as_str).unwrap_or_default().to_owned();
    match params.get("mode").and_then(Value::as_str) {
        None | Some("form") => {
            let schema = params.get("requestedSchema").cloned().unwrap_or_else(form::empty);
            Form::read(&schema, budget).map_err(|why| format!("the form {why}"))?;
            Ok(Ask::Form { message, schema })
        }
        Some("url") => {
            let url = params.get("url").and_then(Value::as_str).unwrap_or_default();
            let parsed = Url::parse(url).map_err(|fault| format!("the page to visit has no address: {fault}"))?;
            if !matches!(parsed.scheme(), "https" | "http") {
                return Err("the page to visit is not on the web".to_owned());
            }
            Ok(Ask::Url { message, url: url.to_owned() })
        }
        Some(_) => Err("people are asked by a form or a page only".to_owned()),
    }
}

fn read_sample(params: &Value) -> Result<SampleRequest, String> {
    let given = |name: &str| params.get(name).filter(|value| !value.is_null());
    if given("tools").is_some_and(|tools| tools.as_array().is_none_or(|tools| !tools.is_empty()))
        || given("toolChoice").is_some()
    {
        return Err("sampling with tools is not supported".to_owned());
    }
    let messages = given("messages").and_then(Value::as_array).ok_or("a sample needs messages")?;
    let messages = messages.iter().map(read_message).collect::<Result<Vec<_>, _>>()?;
    if messages.is_empty() {
        return Err("a sample needs messages".to_owned());
    }
    let max_tokens = given("maxTokens").and_then(Value::as_u64).filter(|most| *most > 0);
    let stop = given("stopSequences").and_then(Value::as_array).into_iter().flatten();
    Ok(SampleRequest {
        system: given("systemPrompt").and_then(Value::as_str).map(str::to_owned),
        messages,
        max_tokens: max_tokens.ok_or("a sample needs maxTokens of at least 1")?,
        temperature: given("temperature").and_then(Value::as_number).cloned(),
        stop: stop.filter_map(Value::as_str).map(str::to_owned).collect(),
    })
}

fn read_message(message: &Value) -> Result<SampleMessage, String> {
    let role = match message.get("role").and_then(Value::as_str) {
        Some("user") => Role::User,
        Some("assistant") => Role::Assistant,
        _ => return Err("the messages of a sample are of the user or the assistant".to_owned()),
    };
    let blocks = match message.get("content") {
        Some(Value::Array(blocks)) => blocks.iter().collect(),
        Some(block) => vec![block],
        None => Vec::new(),
    };
    let text = |block: &Value| match block.get("type").and_then(Value::as_str) {
        Some("text") => Ok(block.get("text").and_then(Value::as_str).unwrap_or_default().to_owned()),
        _ => Err("only text can be sampled from".to_owned()),
    };
    let texts = blocks.into_iter().map(text).collect::<Result<Vec<_>, _>>()?;
    Ok(SampleMessage { role, text: texts.join("\n") })
}

/// A reply as it stands on the wire, in both eras.
fn written(reply: &Reply) -> Value {
    match reply {
        Reply::Input { action, content: Some(content) } => json!({ "action": action.code(), "content": content }),
        Reply::Input { action, content: None } => json!({ "action": action.code() }),
        Reply::Sample(sample) => json!({
            "role": "assistant",
            "content": { "type": "text", "text": sample.text },
            "model": sample.model,
            "stopReason": match sample.finish_reason {
                FinishReason::Stop | FinishReason::ToolCalls => "endTurn",
                FinishReason::Length => "maxTokens",
                FinishReason::ContentFilter => "contentFilter",
            },
        }),
        Reply::Roots => json!({ "roots": [] }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn questions_are_read_whole_and_their_state_is_kept_as_it_is() {
        let asked = questions(&json!({
            "resultType": "input_required",
            "requestState": "\u{0}ä\n==",
            "inputRequests": {
                "a": { "method": ELICIT, "params": { "message": "m", "requestedSchema": { "type": "object" } } },
                "b": { "method": ELICIT, "params": { "mode": "url", "message": "v", "url": "https://a.example/x" } },
                "c": { "method": ROOTS },
                "d": { "method": SAMPLE, "params": {
                    "messages": [{ "role": "user", "content": { "type": "text", "text": "hi" } }], "maxTokens": 7 } },
            },
        }))
        .unwrap();
        assert_eq!(asked.state.as_deref(), Some("\u{0}ä\n=="));
        assert_eq!(asked.asks["a"], Ask::Form { message: "m".into(), schema: json!({ "type": "object" }) });
        assert_eq!(asked.asks["b"], Ask::Url { message: "v".into(), url: "https://a.example/x".into() });
        assert_eq!(asked.asks["c"], Ask::Roots);
        assert!(matches!(&asked.asks["d"], Ask::Sample(request) if request.max_tokens == 7));
        assert_eq!(questions(&json!({})).unwrap(), Questions::default());
    }

    #[test]
    fn a_question_that_cannot_be_put_says_why() {
        let one = |method: &str, params: Value| {
            let requests = json!({ "a": { "method": method, "params": params } });
            questions(&json!({ "inputRequests": requests })).unwrap_err()
        };
        let sample = |more: Value| {
            let mut params = json!({ "messages": [{ "role": "user", "content": [{ "type": "text", "text": "hi" }] }],
                "maxTokens": 7 });
            params.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
            one(SAMPLE, params)
        };
        assert!(one("tools/list", json!({})).contains("unknown kind"));
        assert!(one(ELICIT, json!({ "requestedSchema": { "type": 7 } })).contains("JSON Schema"));
        assert!(one(ELICIT, json!({ "mode": "url", "url": "javascript:alert(1)" })).contains("on the web"));
        assert!(one(ELICIT, json!({ "message": "x".repeat(QUESTION_MAX) })).contains("larger than"));
        assert!(sample(json!({ "tools": [{ "name": "t" }] })).contains("tools"));
        assert!(sample(json!({ "maxTokens": 0 })).contains("maxTokens"));
        assert!(sample(json!({ "messages": [{ "role": "user", "content": { "type": "image" } }] })).contains("text"));
        assert!(questions(&json!({ "requestState": 7 })).unwrap_err().contains("state"));
        assert!(questions(&json!({ "requestState": "x".repeat(QUESTIONS_MAX + 1) })).unwrap_err().contains("larger"));
    }

    #[test]
    fn a_continuation_says_only_what_was_asked() {
        let params = || CallToolRequestParams::new("t");
        let wire = |continuation: Continuation| serde_json::to_value(continuation.put_into(params())).unwrap();
        let replies = BTreeMap::from([("a".to_owned(), Reply::decline()), ("c".to_owned(), Reply::Roots)]);
        let whole = wire(Continuation { replies, state: Some("s".to_owned()) });
        assert_eq!(whole["inputResponses"], json!({ "a": { "action": "decline" }, "c": { "roots": [] } }));
        assert_eq!(whole["requestState"], "s");
        let bare = wire(Continuation { replies: BTreeMap::new(), state: None });
        assert!(bare.get("inputResponses").is_none() && bare.get("requestState").is_none());
    }
}
