//! What servers ask of the run whose own connection it is: hands their questions (`questions` reads them) to the run
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

use super::Offers;
use super::link::Link;
use super::questions::{ELICIT, SAMPLE, read};
use crate::run::ask::{Ask, Reply};
use crate::run::ids::CallKey;
use crate::run::spec::FinishReason;
use crate::schema::Budget;

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
        // A question that was taken back does not stay in front of the door.
        let taken = tokio::select! {
            () = context.ct.cancelled() => return Err(refused("the request was cancelled")),
            taken = door.sender.send(asked) => taken,
        };
        if taken.is_err() {
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
