//! Reads a page of tools as the server wrote it, one tool at a time: a bad one is set aside with a reason, and the
//! others stay. The protocol library would refuse the whole page. Knows no connection.

use std::sync::Arc;

use serde_json::{Map, Value};

use super::params;
use crate::run::binding::{Hints, ServedCatalog, ServedTool};
use crate::run::json::has_control;
use crate::schema::{AtDesk, Budget, Schemas};
use crate::secrets::Redactor;

/// Longest name of a tool, in bytes. The specification asks for 128 at most.
const NAME_MAX: usize = 512;
/// Largest tool, in bytes of JSON: description, schemas and all.
const TOOL_MAX: usize = 256 * 1024;

/// One page, read.
#[derive(Debug, Default, PartialEq)]
pub(super) struct Page {
    pub(super) read: ServedCatalog,
    pub(super) next: Option<String>,
}

/// How the pages of one catalog are read.
pub(super) struct Reader {
    pub(super) schemas: Arc<Schemas>,
    /// Whether arguments may have to be sent as headers too.
    pub(super) has_header_params: bool,
    /// What the server was told.
    pub(super) told: Redactor,
    /// What the schemas of the pages that are left may cost.
    pub(super) budget: Budget,
}

/// A page with tools that are not read yet.
pub(super) struct Unread {
    listed: std::vec::IntoIter<Value>,
    pub(super) page: Page,
    /// Its size in bytes of JSON.
    pub(super) bytes: usize,
}

impl Unread {
    /// The result of a listing.
    ///
    /// # Errors
    /// Why it is no page of tools at all.
    pub(super) fn of(mut result: Value) -> Result<Self, &'static str> {
        let bytes = result.to_string().len();
        let Some(Value::Array(listed)) = result.get_mut("tools").map(Value::take) else {
            return Err("its answer is no list of tools");
        };
        let next = match result.get_mut("nextCursor").map(Value::take) {
            // Some servers say "no more" with an empty text.
            None | Some(Value::Null) => None,
            Some(Value::String(next)) => Some(next).filter(|next| !next.is_empty()),
            Some(_) => return Err("the cursor of its next page is no text"),
        };
        Ok(Self { listed: listed.into_iter(), page: Page { next, ..Page::default() }, bytes })
    }

    pub(super) fn is_read(&self) -> bool {
        self.listed.as_slice().is_empty()
    }
}

impl Reader {
    /// Reads tools of a page until others should have the desk.
    pub(super) fn read_on(&mut self, at: &AtDesk, unread: &mut Unread) {
        for tool in unread.listed.by_ref() {
            match self.tool(at, tool) {
                Ok(tool) => unread.page.read.tools.push(tool),
                Err(why) => unread.page.read.unnamed.push(why),
            }
            if at.is_due() {
                return;
            }
        }
    }

    /// One tool, usable or not; or why it cannot even be named.
    fn tool(&mut self, at: &AtDesk, listed: Value) -> Result<ServedTool, String> {
        let size = listed.to_string().len();
        let Value::Object(mut listed) = listed else { return Err("a tool that is no object".to_owned()) };
        let name = name_of(&listed)?;
        let mut tool = ServedTool { name, ..ServedTool::default() };
        match listed.remove("description") {
            None | Some(Value::Null) => {}
            Some(Value::String(text)) => tool.description = Some(text),
            Some(_) => tool.notes.push("its description is no text and was left out".to_owned()),
        }
        tool.hints = hints(listed.get("annotations"));
        tool.input_schema = listed.remove("inputSchema").unwrap_or_default();
        tool.unusable = if size > TOOL_MAX {
            Some(format!("it is larger than {TOOL_MAX} bytes"))
        } else {
            self.fault_of_input(at, &tool.input_schema).map(|why| format!("its input schema {why}"))
        };
        match listed.remove("outputSchema").filter(|schema| !schema.is_null()) {
            Some(schema) if tool.unusable.is_none() => match self.fault_of_output(at, &schema) {
                None => tool.output_schema = Some(schema),
                Some(why) => tool.notes.push(format!("its output schema {why}, so its results are not checked")),
            },
            Some(_) | None => {}
        }
        Ok(tool)
    }

    /// Why no call can be checked against this schema. A missing one allows every object.
    fn fault_of_input(&mut self, at: &AtDesk, schema: &Value) -> Option<String> {
        let object = match schema {
            Value::Null => return None,
            Value::Object(object) => object,
            Value::Bool(_) | Value::Number(_) | Value::String(_) | Value::Array(_) => {
                return Some("is no object".to_owned());
            }
        };
        let takes_objects = object.get("type").is_none_or(|kind| match kind {
            Value::Array(kinds) => kinds.iter().any(|kind| kind == "object"),
            kind => kind == "object" || !kind.is_string(),
        });
        if !takes_objects {
            return Some("takes no object".to_owned());
        }
        if self.has_header_params
            && let Some(why) = params::fault_of(schema)
        {
            return Some(format!("cannot be followed: {why}"));
        }
        self.fault_of(at, schema)
    }

    fn fault_of_output(&mut self, at: &AtDesk, schema: &Value) -> Option<String> {
        if schema.is_object() { self.fault_of(at, schema) } else { Some("is no object".to_owned()) }
    }

    fn fault_of(&mut self, at: &AtDesk, schema: &Value) -> Option<String> {
        self.schemas
            .of_here(at, schema, &mut self.budget)
            .err()
            .map(|why| self.told.torn(&why.to_string()).into_owned())
    }
}

/// What a server claims of a tool; a claim that is none counts for nothing.
fn hints(annotations: Option<&Value>) -> Hints {
    let claim = |name: &str| annotations.and_then(|claims| claims.get(name)).and_then(Value::as_bool);
    Hints {
        read_only: claim("readOnlyHint"),
        destructive: claim("destructiveHint"),
        idempotent: claim("idempotentHint"),
    }
}

/// A name that can stand in a record, in a receipt and in a warning.
fn name_of(listed: &Map<String, Value>) -> Result<String, String> {
    let Some(name) = listed.get("name").filter(|name| !name.is_null()) else {
        return Err("a tool without a name".to_owned());
    };
    match name {
        Value::String(name) if name.trim().is_empty() => Err("a tool whose name is empty".to_owned()),
        Value::String(name) if name.len() > NAME_MAX => {
            Err(format!("a tool whose name is longer than {NAME_MAX} bytes"))
        }
        Value::String(name) if has_control(name) => Err("a tool whose name has control characters".to_owned()),
        Value::String(name) => Ok(name.clone()),
        _ => Err("a tool whose name is no text".to_owned()),
    }
}

/// A page without what the protocol library cannot read or need not know, so that it still learns of the good tools.
pub(super) fn readable(message: &Value) -> Value {
    let mut message = message.clone();
    if let Some(result) = message.get_mut("result").and_then(Value::as_object_mut) {
        result.retain(|name, _| name == "tools");
    }
    if let Some(Value::Array(tools)) = message.pointer_mut("/result/tools") {
        tools.retain_mut(|tool| {
            let Value::Object(tool) = tool else { return false };
            tool.retain(|name, _| matches!(name.as_str(), "name" | "inputSchema"));
            tool.get("name").is_some_and(Value::is_string) && tool.get("inputSchema").is_some_and(Value::is_object)
        });
    }
    message
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn read(tool: Value) -> ServedCatalog {
        let good = json!({ "name": "good", "inputSchema": { "type": "object" } });
        let mut unread = Unread::of(json!({ "tools": [tool, good] })).unwrap();
        let (told, budget) = (Redactor::default(), Budget::of_set());
        let mut reader = Reader { schemas: Arc::default(), has_header_params: true, told, budget };
        while !unread.is_read() {
            reader.read_on(&AtDesk::for_tests(), &mut unread);
        }
        let mut read = unread.page.read;
        assert_eq!(read.tools.pop().map(|tool| (tool.name, tool.unusable)), Some(("good".to_owned(), None)));
        read
    }

    #[track_caller]
    fn check_unusable(member: &str, value: Value, why: &str) {
        let mut tool = json!({ "name": "bad", "inputSchema": { "type": "object" } });
        tool[member] = value;
        let read = read(tool);
        let said = read.tools[0].unusable.as_deref().unwrap_or("nothing");
        assert!(said.contains(why), "{said}");
    }

    #[test]
    fn a_tool_whose_calls_cannot_be_checked_is_set_aside_and_the_others_stay() {
        for (schema, why) in [
            (json!("object"), "is no object"),
            (json!(true), "is no object"),
            (json!([]), "is no object"),
            (json!({ "type": "string" }), "takes no object"),
            (json!({ "type": ["null", "array"] }), "takes no object"),
            (json!({ "type": 7 }), "is no JSON Schema"),
            (json!({ "properties": [] }), "is no JSON Schema"),
            (json!({ "properties": { "a": { "$ref": "#/$defs/Gone" } } }), "Gone"),
            (json!({ "properties": { "a": { "$ref": "https://example.com/a.json" } } }), "is no JSON Schema"),
            (json!({ "properties": { "a": { "x-mcp-header": "" } } }), "x-mcp-header"),
            ((0..70).fold(json!({}), |inner, _| json!({ "not": inner })), "nested deeper than 64"),
        ] {
            check_unusable("inputSchema", schema, why);
        }
        check_unusable("description", "x".repeat(1 << 20).into(), "larger than");
        check_unusable("anything", "x".repeat(1 << 20).into(), "larger than");
    }

    #[test]
    fn the_schemas_of_a_catalog_are_bounded_together_and_what_is_over_is_told() {
        let tool = |n: usize| {
            let parts: Map<String, Value> =
                (0..100).map(|p| (format!("p{p}"), json!({ "pattern": format!("{n}x{p}a{{900}}") }))).collect();
            json!({ "name": format!("t{n}"), "inputSchema": { "type": "object", "properties": parts } })
        };
        let mut tools: Vec<Value> = (0..60).map(tool).collect();
        tools.push(json!({ "name": "plain", "inputSchema": { "type": "object" } }));
        let mut unread = Unread::of(json!({ "tools": tools })).unwrap();
        let mut reader = Reader { schemas: Arc::default(), has_header_params: true, budget: Budget::of_set() };
        let (mut slices, began) = (0, std::time::Instant::now());
        while !unread.is_read() {
            reader.read_on(&AtDesk::for_tests(), &mut unread);
            slices += 1;
        }
        assert!(slices > 1 && began.elapsed() < std::time::Duration::from_secs(10), "{slices}, {:?}", began.elapsed());
        let set_aside: Vec<&str> = unread.page.read.tools.iter().filter_map(|tool| tool.unusable.as_deref()).collect();
        assert!((20..60).contains(&set_aside.len()), "{}", set_aside.len());
        assert!(set_aside.iter().all(|why| why.contains("together with the other schemas")), "{set_aside:?}");
        let last = unread.page.read.tools.last().unwrap();
        assert_eq!((last.name.as_str(), last.unusable.as_ref()), ("plain", None));
    }

    #[test]
    fn a_tool_that_cannot_be_named_is_told_and_the_others_stay() {
        for (tool, why) in [
            (json!(null), "no object"),
            (json!("x"), "no object"),
            (json!({}), "without a name"),
            (json!({ "name": null }), "without a name"),
            (json!({ "name": 7 }), "no text"),
            (json!({ "name": " " }), "is empty"),
            (json!({ "name": "a\u{0}b" }), "control characters"),
            (json!({ "name": "a\nb" }), "control characters"),
            (json!({ "name": "a\u{202e}b" }), "control characters"),
            (json!({ "name": "x".repeat(513) }), "longer than 512"),
        ] {
            let read = read(tool.clone());
            assert!(read.tools.is_empty() && read.unnamed[0].contains(why), "{tool}: {read:?}");
        }
    }

    #[test]
    fn what_the_protocol_lets_be_left_out_is_left_out() {
        let tool = |tool: Value| read(tool).tools.remove(0);
        for listed in [json!({ "name": "a" }), json!({ "name": "a", "inputSchema": null, "description": null })] {
            assert_eq!(tool(listed), ServedTool { name: "a".to_owned(), ..ServedTool::default() });
        }
        let odd = tool(json!({
            "name": "a", "description": 7, "outputSchema": { "type": 7 }, "annotations": "none", "title": [], "x": {},
            "icons": 5, "_meta": 5, "execution": 5,
        }));
        assert_eq!((odd.unusable, odd.description, odd.output_schema), (None, None, None));
        assert!(odd.notes[0].contains("description") && odd.notes[1].contains("results are not checked"));
    }

    #[test]
    fn a_page_is_a_list_of_tools_or_nothing() {
        let page = |result| Unread::of(result).map(|unread| unread.page.next);
        for bad in [json!(null), json!({}), json!({ "tools": null }), json!({ "tools": {} })] {
            assert!(page(bad.clone()).is_err(), "{bad}");
        }
        assert!(page(json!({ "tools": [], "nextCursor": 7 })).is_err());
        for end in [
            json!({ "tools": [] }),
            json!({ "tools": [], "nextCursor": null }),
            json!({ "tools": [], "nextCursor": "" }),
        ] {
            assert_eq!(page(end), Ok(None));
        }
        assert_eq!(page(json!({ "tools": [], "nextCursor": "2" })), Ok(Some("2".to_owned())));
    }
}
