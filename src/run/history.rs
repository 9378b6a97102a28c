//! The one place that assembles what a provider is sent. The history is always valid: every call has exactly one
//! result, results stand in call order right behind their turn.

use std::collections::{HashMap, HashSet};

use serde_json::Value;

use super::binding::BoundTool;
use super::dialect::any_object;
use super::envelope::Envelope;
use super::given::results;
use super::ids::CallId;
use super::message::{Content, Message, Role};
use super::spec::ModelSpec;
use super::structured::demand;
use super::view::ViewLimits;

/// Everything that one model request says.
#[derive(Clone, Debug, PartialEq)]
pub struct Prompt {
    /// The system prompt.
    pub instructions: Option<String>,
    /// The conversation, oldest first.
    pub messages: Vec<Message>,
    /// The tools on offer; sent with every request, also the last.
    pub tools: Vec<ToolOffer>,
}

/// One tool as the model is told of it.
#[derive(Clone, Debug, PartialEq)]
pub struct ToolOffer {
    /// The offered name.
    pub name: String,
    /// What it does.
    pub description: Option<String>,
    /// JSON Schema of its arguments.
    pub input_schema: Value,
}

/// The prompt of the next turn: the same for the same stored run, whoever asks.
pub fn prompt(envelope: &Envelope) -> Prompt {
    let tools = envelope.binding.tools.iter().map(offer_of).collect();
    let mut messages = with_unique_ids(&envelope.messages);
    forget_old_pictures(&mut messages);
    let demand = envelope.spec.output_schema.as_ref().map(demand);
    let instructions = match (envelope.spec.instructions.clone(), demand) {
        (Some(instructions), Some(demand)) => Some(format!("{instructions}\n\n{demand}")),
        (instructions, demand) => instructions.or(demand),
    };
    Prompt { instructions, messages, tools }
}

/// The conversation of a run that has ended, for one with that model that goes on with it: each call has one result, also
/// where the run ended before there was any, and no label stands for two calls.
pub fn carried(run: &Envelope, model: &ModelSpec) -> Vec<(Role, Vec<Content>)> {
    let mut messages: Vec<(Role, Vec<Content>)> =
        with_unique_ids(&run.messages).into_iter().map(|message| (message.role, message.content)).collect();
    if let Some((Role::Assistant, said)) = messages.last() {
        let open = open_results(run, said);
        if !open.is_empty() {
            messages.push((Role::Tool, open));
        }
    }
    let before = &run.spec.model;
    let is_same = (before.provider, &before.name, before.address()) == (model.provider, &model.name, model.address());
    for content in messages.iter_mut().flat_map(|(_, said)| said) {
        if let Content::Reasoning { native, .. } = content {
            // What one model signed another refuses.
            *native = native.take().filter(|_| is_same);
        }
    }
    messages
}

/// The results of calls that had none when their run ended, under the labels that the calls have in the history.
fn open_results(run: &Envelope, said: &[Content]) -> Vec<Content> {
    let labels = said.iter().filter_map(|content| match content {
        Content::ToolCall { call_id, tool, .. } => Some((call_id, tool)),
        Content::Text { .. }
        | Content::Image { .. }
        | Content::File { .. }
        | Content::Reasoning { .. }
        | Content::ToolResult { .. } => None,
    });
    let mut known = results(&run.id, &run.calls, ViewLimits::default()).into_iter();
    let result = |(label, tool): (&CallId, &String)| match known.next() {
        Some(Content::ToolResult { output, is_error, pictures, .. }) => {
            Content::ToolResult { call_id: label.clone(), tool: tool.clone(), output, is_error, pictures }
        }
        _ => Content::ToolResult {
            call_id: label.clone(),
            tool: tool.clone(),
            output: "The run ended before this call was sent.".into(),
            is_error: true,
            pictures: Vec::new(),
        },
    };
    labels.map(result).collect()
}

/// Most pictures of results in one request, and the most bytes of their base64: providers refuse more. The newest are
/// shown; of the others the text still says what they were.
const PICTURES_MAX: usize = 20;
const PICTURE_BYTES_MAX: usize = 15 * 1024 * 1024;

fn forget_old_pictures(messages: &mut [Message]) {
    let (mut count, mut bytes) = (0_usize, 0_usize);
    for content in messages.iter_mut().rev().flat_map(|message| message.content.iter_mut().rev()) {
        let Content::ToolResult { pictures, .. } = content else { continue };
        let size = pictures.iter().fold(0_usize, |sum, picture| sum.saturating_add(picture.data.len()));
        count = count.saturating_add(pictures.len());
        bytes = bytes.saturating_add(size);
        if count > PICTURES_MAX || bytes > PICTURE_BYTES_MAX {
            pictures.clear();
        }
    }
}

fn offer_of(tool: &BoundTool) -> ToolOffer {
    let name = tool.name.clone();
    if let Some(told) = &tool.offer.told {
        return ToolOffer { name, description: told.description.clone(), input_schema: told.input_schema.clone() };
    }
    let input_schema = if tool.input_schema.is_null() { any_object() } else { tool.input_schema.clone() };
    ToolOffer { name, description: tool.description.clone(), input_schema }
}

/// Labels are unique inside a turn; some providers want them unique in the whole history. A label that an earlier turn
/// used gets its turn's number, the same on the call and on its result.
fn with_unique_ids(messages: &[Message]) -> Vec<Message> {
    let mut labels: HashMap<(CallId, u32), CallId> = HashMap::new();
    let mut taken: HashSet<CallId> = HashSet::new();
    let mut rename = |call_id: &mut CallId, turn: u32| {
        let label = labels.entry((call_id.clone(), turn)).or_insert_with(|| {
            let (mut label, mut nth) = (call_id.clone(), 1_u32);
            while !taken.insert(label.clone()) {
                let again = if nth > 1 { format!("~{nth}") } else { String::new() };
                label = CallId::new(format!("{call_id}~t{turn}{again}"));
                nth = nth.saturating_add(1);
            }
            label
        });
        *call_id = label.clone();
    };
    let mut messages = messages.to_vec();
    for message in &mut messages {
        let turn = message.turn;
        for content in &mut message.content {
            match content {
                Content::ToolCall { call_id, .. } | Content::ToolResult { call_id, .. } => rename(call_id, turn),
                Content::Text { .. } | Content::Image { .. } | Content::File { .. } | Content::Reasoning { .. } => {}
            }
        }
    }
    messages
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn field_a024_an_id_that_repeats_in_a_later_turn_is_unique_in_what_a_provider_gets() {
        let pair = |turn: u32| {
            let call_id = CallId::new("call_1");
            let call = Content::ToolCall { call_id: call_id.clone(), tool: "t".into(), input: json!({}) };
            let result = Content::ToolResult {
                call_id,
                tool: "t".into(),
                output: json!("ok"),
                is_error: false,
                pictures: Vec::new(),
            };
            [(Role::Assistant, call), (Role::Tool, result)].map(|(role, content)| Message {
                position: 0,
                turn,
                role,
                content: vec![content],
            })
        };
        let history: Vec<Message> = pair(1).into_iter().chain(pair(2)).collect();
        let ids: Vec<String> = with_unique_ids(&history)
            .iter()
            .flat_map(|message| &message.content)
            .map(|content| match content {
                Content::ToolCall { call_id, .. } | Content::ToolResult { call_id, .. } => call_id.to_string(),
                other => panic!("{other:?}"),
            })
            .collect();
        assert_eq!(ids, ["call_1", "call_1", "call_1~t2", "call_1~t2"]);
    }
}
