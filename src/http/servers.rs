//! Registered MCP servers: put, fetch, list, delete, probe.

use std::collections::BTreeMap;
use std::sync::Arc;

use axum::Json;
use axum::extract::{RawQuery, State};
use axum::response::{IntoResponse, Response};
use http::{HeaderValue, StatusCode, header};
use serde::Serialize;
use serde_json::Value;
use utoipa::ToSchema;

use super::Api;
use super::extract::{Declared, McpWriter, NamePath, Reader, asker};
use super::problem::ApiError;
use super::query::{NameCursor, Query, ServerCursor, encode};
use crate::commands::{Probe, PutServer, without_query};
use crate::run::binding::{CatalogRecord, ServedTool, Warning};
use crate::run::policy::Policy;
use crate::run::spec::{McpAuth, PerTool, Replay, SideEffectClass, Timeouts};
use crate::run::time::Timestamp;
use crate::store::registry::RegisteredServer;

/// A registered MCP server.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub(super) struct ServerView {
    /// Its name in the tenant.
    name: String,
    /// Counts from 1; each put is one more.
    version: u32,
    /// How it is spoken to: `streamable_http`.
    transport: &'static str,
    /// Its address; a query is hidden, since it may hold a secret.
    url: String,
    /// The prefix of its tools, when one was given.
    namespace: Option<String>,
    /// How it is told who asks, and by which secret.
    auth: Option<McpAuth>,
    /// Sent with every request.
    headers: BTreeMap<String, String>,
    /// Only these tools; null: all.
    tools: Option<Vec<String>>,
    /// Stricter input schemas, by the server's tool name.
    #[schema(value_type = Object)]
    input_schemas: BTreeMap<String, Value>,
    /// Which tools are safe to repeat.
    replay: Option<PerTool<Replay>>,
    /// What the tools may do to the world.
    side_effect_class: Option<PerTool<SideEffectClass>>,
    /// Whether the server is believed about the effects of tools whose class is not declared here.
    trust_annotations: bool,
    /// Whether a run needs it.
    required: bool,
    /// Time limits.
    timeouts: Timeouts,
    /// Rules for its calls in every run.
    policies: Vec<Policy>,
    /// When the name was first put.
    created_at: Timestamp,
    /// When this version was put.
    updated_at: Timestamp,
}

/// A page of registered servers, by name. A page may be short of its limit; the list ends where `next_cursor` is null.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub(super) struct ServerPage {
    /// The servers.
    data: Vec<ServerView>,
    /// Where the list goes on; null at its end.
    next_cursor: Option<String>,
}

/// What a server said when somebody looked.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub(super) struct ProbeView {
    /// The server's name in the tenant.
    server: String,
    /// The protocol revision that was agreed on.
    protocol_version: String,
    /// Its name, version and whatever else it says of itself.
    #[schema(value_type = Object)]
    server_info: Value,
    /// What it says it can do.
    #[schema(value_type = Object)]
    capabilities: Value,
    /// How long one listing of its tools took, in milliseconds.
    latency_ms: u64,
    /// The record of its tools, as a run with this server alone would have it.
    catalog: CatalogRecord,
    /// Its tools as it lists them.
    tools: Vec<ProbedTool>,
    /// Listed tools that it lacks.
    warnings: Vec<Warning>,
}

/// A tool as its server lists it.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub(super) struct ProbedTool {
    /// The server's own name.
    name: String,
    /// What the server says it does.
    description: Option<String>,
    /// JSON Schema of its arguments, whole.
    #[schema(value_type = Object)]
    input_schema: Value,
    /// JSON Schema of its structured result.
    #[schema(value_type = Option<Object>)]
    output_schema: Option<Value>,
    /// Why it cannot be offered to any model.
    unusable: Option<String>,
}

impl From<&ServedTool> for ProbedTool {
    fn from(tool: &ServedTool) -> Self {
        Self {
            name: tool.name.clone(),
            description: tool.description.clone(),
            input_schema: tool.input_schema.clone(),
            output_schema: tool.output_schema.clone(),
            unusable: tool.unusable.clone(),
        }
    }
}

/// List the tenant's registered MCP servers, by name.
#[utoipa::path(
    get, path = "/v1/mcp-servers", operation_id = "server_list", tag = "mcp", security(("bearer" = ["runs:read"])),
    params(
        ("limit" = Option<u32>, Query, minimum = 1, maximum = 200, description = "Rows of a page (50)"),
        ("cursor" = Option<String>, Query, description = "The `next_cursor` of the page before"),
    ),
    responses((status = 200, description = "A page of servers", body = ServerPage))
)]
pub(super) async fn server_list(
    State(api): State<Arc<Api>>,
    Reader(caller): Reader,
    RawQuery(query): RawQuery,
) -> Result<Json<ServerPage>, ApiError> {
    let mut query = Query::parse(query.as_deref());
    let (limit, after) = (query.take_limit()?, query.take_cursor::<ServerCursor>()?);
    query.finish()?;
    let after = after.as_ref().map(|NameCursor(name)| name.as_str());
    let page = api.store.server_list(&caller.tenant, after, limit).await?;
    let last = page.last().filter(|_| page.more);
    let next_cursor = last.map(|server| encode::<ServerCursor>(&NameCursor(server.name.clone())));
    Ok(Json(ServerPage { data: page.into_iter().map(ServerView::from).collect(), next_cursor }))
}

/// Fetch a registered MCP server.
#[utoipa::path(
    get, path = "/v1/mcp-servers/{name}", operation_id = "server_fetch", tag = "mcp",
    security(("bearer" = ["runs:read"])),
    params(("name" = String, Path, description = "Its name")),
    responses((status = 200, description = "The server", body = ServerView))
)]
pub(super) async fn server_fetch(
    State(api): State<Arc<Api>>,
    Reader(caller): Reader,
    NamePath(name): NamePath,
) -> Result<Json<ServerView>, ApiError> {
    // No text column holds it, so nothing has this name.
    let found = if name.contains('\0') { None } else { api.store.server_fetch(&caller.tenant, &name).await? };
    let (server, _secret) = found.ok_or(ApiError::NotFound("there is no such MCP server"))?;
    Ok(Json(server.into()))
}

/// Register an MCP server, or replace its registration.
///
/// Runs name it by `server`. Those that are bound to it keep what was declared of its tools; where it is and what it is
/// told they take from here at their next use of it, and calls that are out go on.
#[utoipa::path(
    put, path = "/v1/mcp-servers/{name}", operation_id = "server_put", tag = "mcp", request_body = PutServer,
    security(("bearer" = ["mcp:write"])),
    params(("name" = String, Path, description = "`[a-z][a-z0-9-]{0,31}`")),
    responses(
        (status = 200, description = "The registration was replaced", body = ServerView),
        (status = 201, description = "It is registered", body = ServerView,
            headers(("Location" = String, description = "Its address"))),
    )
)]
pub(super) async fn server_put(
    State(api): State<Arc<Api>>,
    McpWriter(caller): McpWriter,
    NamePath(name): NamePath,
    body: Declared<PutServer>,
) -> Result<Response, ApiError> {
    let server = api.commands.server_put(&asker(&caller), &name, body.given).await?;
    let is_new = server.version == 1;
    let mut response = Json(ServerView::from(server)).into_response();
    if is_new {
        *response.status_mut() = StatusCode::CREATED;
        if let Ok(address) = HeaderValue::from_str(&format!("/v1/mcp-servers/{name}")) {
            response.headers_mut().insert(header::LOCATION, address);
        }
    }
    Ok(response)
}

/// Delete the registration of an MCP server.
///
/// Runs that are bound to it cannot reach it any more.
#[utoipa::path(
    delete, path = "/v1/mcp-servers/{name}", operation_id = "server_delete", tag = "mcp",
    security(("bearer" = ["mcp:write"])),
    params(("name" = String, Path, description = "Its name")),
    responses((status = 204, description = "It is gone"))
)]
pub(super) async fn server_delete(
    State(api): State<Arc<Api>>,
    McpWriter(caller): McpWriter,
    NamePath(name): NamePath,
) -> Result<StatusCode, ApiError> {
    api.commands.server_delete(&asker(&caller), &name).await?;
    Ok(StatusCode::NO_CONTENT)
}

/// Connect to a registered MCP server and say what it says of itself.
///
/// Lists its tools and calls none.
#[utoipa::path(
    post, path = "/v1/mcp-servers/{name}/probe", operation_id = "server_probe", tag = "mcp",
    security(("bearer" = ["mcp:write"])),
    params(("name" = String, Path, description = "Its name")),
    responses((status = 200, description = "What it said", body = ProbeView))
)]
pub(super) async fn server_probe(
    State(api): State<Arc<Api>>,
    McpWriter(caller): McpWriter,
    NamePath(name): NamePath,
) -> Result<Json<ProbeView>, ApiError> {
    let Probe { sighting, record, warnings } = api.commands.server_probe(&asker(&caller), &name).await?;
    Ok(Json(ProbeView {
        server: name,
        protocol_version: sighting.protocol_version,
        server_info: sighting.server_info,
        capabilities: sighting.capabilities,
        latency_ms: u64::try_from(sighting.latency.as_millis()).unwrap_or(u64::MAX),
        catalog: record,
        tools: sighting.catalog.tools.iter().map(ProbedTool::from).collect(),
        warnings,
    }))
}

impl From<RegisteredServer> for ServerView {
    fn from(server: RegisteredServer) -> Self {
        let RegisteredServer { name, version, registration, created_at, updated_at } = server;
        let entry = registration.entry;
        Self {
            name,
            version,
            transport: "streamable_http",
            url: entry.url.as_deref().map(without_query).unwrap_or_default(),
            namespace: entry.namespace,
            auth: entry.auth,
            headers: entry.headers,
            tools: entry.tools,
            input_schemas: entry.input_schemas,
            replay: entry.replay,
            side_effect_class: entry.side_effect_class,
            trust_annotations: entry.trust_annotations,
            required: entry.required,
            timeouts: entry.timeouts,
            policies: entry.policies,
            created_at,
            updated_at,
        }
    }
}
