//! The demo MCP server of `dev`: four tools that show what a run can meet, and a ledger of what was really done.
//! The only place that speaks the server's half of the protocol.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use axum::Router;
use parking_lot::Mutex;
use rmcp::handler::server::ServerHandler;
use rmcp::model::{
    CallToolRequestParams, CallToolResponse, CallToolResult, ContentBlock, ErrorData, Implementation, JsonObject,
    ListToolsResult, PaginatedRequestParams, ServerCapabilities, ServerConfig, Tool,
};
use rmcp::service::{RequestContext, RoleServer};
use rmcp::transport::streamable_http_server::session::local::LocalSessionManager;
use rmcp::transport::streamable_http_server::{StreamableHttpServerConfig, StreamableHttpService};
use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;

/// Entries that the ledger keeps.
const LEDGER_MAX: usize = 10_000;
/// Longest wait of `slow`.
const SLOW_MAX: Duration = Duration::from_mins(10);

/// What the demo tools did, newest last.
#[derive(Clone, Debug, Default)]
pub struct DemoLedger {
    entries: Arc<Mutex<VecDeque<DemoEntry>>>,
    received: Arc<AtomicUsize>,
}

/// One executed call.
#[derive(Clone, Debug, PartialEq)]
pub struct DemoEntry {
    /// The tool.
    pub tool: String,
    /// Its arguments.
    pub arguments: JsonObject,
    /// The idempotency key that came in `_meta`.
    pub idempotency_key: Option<String>,
}

impl DemoLedger {
    /// Everything that was done, oldest first.
    pub fn entries(&self) -> Vec<DemoEntry> {
        self.entries.lock().iter().cloned().collect()
    }

    /// How often a tool was executed.
    pub fn count(&self, tool: &str) -> usize {
        self.entries.lock().iter().filter(|entry| entry.tool == tool).count()
    }

    /// How many calls arrived, executed or not.
    pub fn received(&self) -> usize {
        self.received.load(Ordering::SeqCst)
    }

    fn write(&self, entry: DemoEntry) {
        let mut entries = self.entries.lock();
        if entries.len() >= LEDGER_MAX {
            entries.pop_front();
        }
        entries.push_back(entry);
    }
}

/// The server at `/mcp`, to be served on a loopback port; its sessions end with `stop`.
pub fn router(ledger: DemoLedger, stop: CancellationToken) -> Router {
    let config = StreamableHttpServerConfig::default().with_cancellation_token(stop);
    let sessions = Arc::new(LocalSessionManager::default());
    let service = StreamableHttpService::new(move || Ok(DemoServer { ledger: ledger.clone() }), sessions, config);
    Router::new().route_service("/mcp", service)
}

struct DemoServer {
    ledger: DemoLedger,
}

impl ServerHandler for DemoServer {
    fn get_info(&self) -> ServerConfig {
        ServerConfig::new(ServerCapabilities::builder().enable_tools().build())
            .with_server_info(Implementation::new("countersign-demo", env!("CARGO_PKG_VERSION")))
    }

    async fn list_tools(
        &self,
        _page: Option<PaginatedRequestParams>,
        _context: RequestContext<RoleServer>,
    ) -> Result<ListToolsResult, ErrorData> {
        Ok(ListToolsResult::with_all_items(tools()))
    }

    async fn call_tool(
        &self,
        call: CallToolRequestParams,
        context: RequestContext<RoleServer>,
    ) -> Result<CallToolResponse, ErrorData> {
        self.ledger.received.fetch_add(1, Ordering::SeqCst);
        let arguments = call.arguments.unwrap_or_default();
        let key = context.meta.get("countersign/idempotency-key").and_then(Value::as_str).map(str::to_owned);
        let done = |tool: &str| {
            let entry = DemoEntry { tool: tool.to_owned(), arguments: arguments.clone(), idempotency_key: key.clone() };
            self.ledger.write(entry);
        };
        let result = match call.name.as_ref() {
            "charge" => {
                let amount = number(&arguments, "amount")?;
                done("charge");
                text(format!("charged {amount}"))
            }
            "lookup_order" => {
                let order = arguments.get("order_id").and_then(Value::as_str).unwrap_or("A-1");
                done("lookup_order");
                text(format!("Order {order}: 1 lamp, paid, not shipped."))
            }
            "slow" => {
                let millis = number(&arguments, "ms")?.as_u64().unwrap_or(0);
                let wait = Duration::from_millis(millis).min(SLOW_MAX);
                tokio::select! {
                    () = context.ct.cancelled() => CallToolResult::error(vec![ContentBlock::text("cancelled")]),
                    () = tokio::time::sleep(wait) => {
                        done("slow");
                        text(format!("waited {} ms", wait.as_millis()))
                    }
                }
            }
            "fail" => CallToolResult::error(vec![ContentBlock::text("The card was declined.")]),
            other => return Err(ErrorData::invalid_params(format!("unknown tool '{other}'"), None)),
        };
        Ok(result.into())
    }
}

fn text(text: String) -> CallToolResult {
    CallToolResult::success(vec![ContentBlock::text(text)])
}

fn number(arguments: &JsonObject, name: &str) -> Result<serde_json::Number, ErrorData> {
    match arguments.get(name) {
        Some(Value::Number(number)) => Ok(number.clone()),
        _ => Err(ErrorData::invalid_params(format!("'{name}' must be a number"), None)),
    }
}

fn tools() -> Vec<Tool> {
    let object = |properties: Value, required: &[&str]| -> JsonObject {
        let mut schema = JsonObject::new();
        schema.insert("type".to_owned(), json!("object"));
        schema.insert("properties".to_owned(), properties);
        schema.insert("required".to_owned(), json!(required));
        schema
    };
    vec![
        Tool::new("charge", "Charge the card on file.", object(json!({ "amount": { "type": "number" } }), &["amount"])),
        Tool::new(
            "lookup_order",
            "Look up an order.",
            object(json!({ "order_id": { "type": "string", "description": "The order's number." } }), &[]),
        ),
        Tool::new(
            "slow",
            "Wait before answering.",
            object(
                json!({ "ms": { "type": "integer", "minimum": 0, "description": "Milliseconds to wait." } }),
                &["ms"],
            ),
        ),
        Tool::new("fail", "Always fail.", object(json!({}), &[])),
    ]
}
