//! The published document: OpenAPI 3.1, made from the routes and types themselves.
//!
//! `openapi/openapi.json` is its committed text; a test keeps both equal.

use serde_json::{Map, Value, json};
use utoipa::OpenApi;

use super::{
    admin, agents, approvals, events, inputs, probes, problem, records, runs, secrets, servers, tickets, versions,
    workers,
};
use crate::run::event::Event;

#[derive(OpenApi)]
#[openapi(
    info(
        title = "Countersign",
        description = "A control plane for agent runs that never does a thing twice without saying so.",
    ),
    servers((url = "/", description = "This server")),
    paths(
        runs::run_create, runs::run_list, runs::run_fetch, runs::run_resume, runs::run_cancel, runs::run_delete,
        approvals::approval_list, approvals::run_approval_list, approvals::approval_fetch,
        approvals::approval_decide, approvals::call_approval_decide,
        inputs::input_answer, records::message_list, records::receipt_list, records::receipt_fetch, records::envelope_fetch,
        records::receipt_search, admin::reconciliation_list, admin::call_reconcile, admin::audit_list,
        workers::results_give, workers::calls_claim, workers::lease_beat, workers::call_settle, workers::call_reject,
        events::event_list, events::event_watch, tickets::ticket_create,
        servers::server_list, servers::server_fetch, servers::server_put, servers::server_delete,
        servers::server_probe, agents::agent_list, agents::agent_fetch, versions::agent_validate, versions::version_list,
        versions::version_fetch, versions::version_publish, versions::version_deprecate, agents::deployment_list,
        agents::deployment_create, agents::deployment_roll_back, secrets::secret_list, secrets::secret_put, secrets::secret_delete,
        probes::health, probes::readiness, probes::metrics, probes::document,
    ),
    components(schemas(problem::Problem, Event)),
    tags(
        (name = "runs", description = "Runs and what they leave"),
        (name = "approvals", description = "Calls that wait for votes"),
        (name = "admin", description = "Calls whose outcome nobody knows, and the audit"),
        (name = "mcp", description = "Registered MCP servers"),
        (name = "agents", description = "Agents, their versions, and which of them is active"),
        (name = "secrets", description = "Stored secrets, and where they may be sent"),
        (name = "workers", description = "Workers that carry out calls"),
        (name = "events", description = "Events as they happen"),
        (name = "server", description = "The server itself"),
    )
)]
struct Document;

/// The published document.
pub fn document() -> Value {
    let mut document = serde_json::to_value(Document::openapi()).unwrap_or_default();
    let schemes = json!({
        "bearer": { "type": "http", "scheme": "bearer", "bearerFormat": "JWT",
            "description": "A JSON Web Token; the scopes of an operation are those that its token needs." },
        "ticket": { "type": "apiKey", "in": "query", "name": "ticket",
            "description": "A stream ticket, for the events of one run." },
    });
    if let Some(components) = document.get_mut("components").and_then(Value::as_object_mut) {
        components.insert("securitySchemes".to_owned(), schemes);
        if let Some(schemas) = components.get_mut("schemas").and_then(Value::as_object_mut) {
            schemas.values_mut().for_each(omit_boolean_schemas);
            take_aliases(schemas);
            refuse_unknown_fields(schemas);
            leave_out_null(schemas);
            name_payload(schemas);
        }
    }
    for operation in operations(&mut document) {
        add_problems(operation);
        leave_out_null_body(operation);
        // Said, where it would otherwise look forgotten.
        operation.entry("security").or_insert_with(|| json!([]));
    }
    document
}

/// The text of the document, with a line end.
pub fn print(document: &Value) -> String {
    let mut text = serde_json::to_string_pretty(document).unwrap_or_default();
    text.push('\n');
    text
}

fn operations(document: &mut Value) -> impl Iterator<Item = &mut Map<String, Value>> {
    let paths = document.get_mut("paths").and_then(Value::as_object_mut).into_iter().flat_map(Map::values_mut);
    let methods = paths.filter_map(Value::as_object_mut).flat_map(Map::iter_mut);
    methods
        .filter(|(name, _)| matches!(name.as_str(), "get" | "post" | "put" | "delete"))
        .filter_map(|(_, operation)| operation.as_object_mut())
}

/// Every operation can answer problems, and every answer has the request's id.
fn add_problems(operation: &mut Map<String, Value>) {
    let content = json!({ "application/problem+json": { "schema": { "$ref": "#/components/schemas/Problem" } } });
    let Some(responses) = operation.get_mut("responses").and_then(Value::as_object_mut) else { return };
    let problems = [("4XX", "The request cannot be answered as asked"), ("5XX", "The server cannot answer now")];
    for (status, description) in problems {
        responses.insert(status.to_owned(), json!({ "description": description, "content": content.clone() }));
    }
    for response in responses.values_mut().filter_map(Value::as_object_mut) {
        let headers = response.entry("headers").or_insert_with(|| json!({}));
        if let Some(headers) = headers.as_object_mut() {
            let id = json!({ "description": "The request's id", "schema": { "type": "string" } });
            headers.insert("X-Request-Id".to_owned(), id);
        }
    }
}

/// A body that may be left out may still not be `null`.
fn leave_out_null_body(operation: &mut Map<String, Value>) {
    let Some(body) = operation.get_mut("requestBody").and_then(Value::as_object_mut) else { return };
    let Some(schema) = body.get_mut("content").and_then(|content| content.pointer_mut("/application~1json/schema"))
    else {
        return;
    };
    if let Some([given, null]) = schema.get("oneOf").and_then(Value::as_array).map(Vec::as_slice)
        && null.get("type").is_some_and(|kind| kind == "null")
    {
        let given = given.clone();
        *schema = given;
        body.insert("required".to_owned(), Value::Bool(false));
    }
}

/// Some generators know no boolean schemas: `true` is written `{}`. `additionalProperties: false` is known by all.
fn omit_boolean_schemas(schema: &mut Value) {
    match schema {
        Value::Object(object) => {
            for (name, member) in object.iter_mut() {
                if matches!(name.as_str(), "additionalProperties" | "items") && *member == Value::Bool(true) {
                    *member = json!({});
                }
                omit_boolean_schemas(member);
            }
        }
        Value::Array(items) => items.iter_mut().for_each(omit_boolean_schemas),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {}
    }
}

/// Names that are taken besides the ones that are answered.
fn take_aliases(schemas: &mut Map<String, Value>) {
    let providers = schemas.get_mut("Provider").and_then(|schema| schema.get_mut("enum")).and_then(Value::as_array_mut);
    if let Some(providers) = providers {
        providers.push("openai-compatible".into());
    }
}
/// Variants of request types: derived schemas of enums do not say that unknown fields are refused.
fn refuse_unknown_fields(schemas: &mut Map<String, Value>) {
    for name in ["McpAuth", "InputPart", "RetryCall"] {
        let variants = schemas.get_mut(name).and_then(|schema| schema.get_mut("oneOf")).and_then(Value::as_array_mut);
        for variant in variants.into_iter().flatten().filter_map(Value::as_object_mut) {
            if variant.get("type").is_some_and(|kind| kind == "object") {
                variant.insert("additionalProperties".to_owned(), Value::Bool(false));
            }
        }
    }
}

/// Events leave absent fields out; they never hold `null`.
fn leave_out_null(schemas: &mut Map<String, Value>) {
    for name in ["EventBody", "Part", "Warning", "RunOutput"] {
        if let Some(schema) = schemas.get_mut(name) {
            strip_null(schema);
        }
    }
}

fn strip_null(schema: &mut Value) {
    match schema {
        Value::Object(object) => {
            if let Some(Value::Array(kinds)) = object.get("type")
                && let [kind, Value::String(null)] = kinds.as_slice()
                && null == "null"
            {
                let kind = kind.clone();
                object.insert("type".to_owned(), kind);
            }
            if let Some(Value::Array(forms)) = object.get_mut("oneOf") {
                forms.retain(|form| form.get("type").is_none_or(|kind| kind != "null"));
            }
            object.values_mut().for_each(strip_null);
        }
        Value::Array(items) => items.iter_mut().for_each(strip_null),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {}
    }
}

/// Says what the text of a server-sent event holds.
fn name_payload(schemas: &mut Map<String, Value>) {
    let data = schemas.get_mut("SentEvent").and_then(|schema| schema.pointer_mut("/properties/data"));
    if let Some(data) = data.and_then(Value::as_object_mut) {
        data.insert("contentSchema".to_owned(), json!({ "$ref": "#/components/schemas/Event" }));
    }
}
