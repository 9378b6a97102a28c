//! Versions of agents: published once, shown, deprecated; and manifests that are only checked.

use std::sync::Arc;

use axum::Json;
use axum::extract::{FromRequestParts, Path, RawQuery, State};
use axum::response::{IntoResponse, Response};
use http::request::Parts;
use http::{HeaderValue, StatusCode, header};
use serde::Serialize;
use serde_json::Value;
use utoipa::ToSchema;

use super::Api;
use super::agents::{AgentPath, known, no_agent};
use super::extract::{AgentsWriter, Manifested, Reader, asker};
use super::problem::ApiError;
use super::query::{Query, VersionCursor, encode};
use crate::commands::{AgentManifest, without_query};
use crate::run::agent::is_semver;
use crate::run::binding::Warning;
use crate::run::time::Timestamp;
use crate::store::agents::AgentVersion;

/// A published version of an agent.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub(super) struct AgentVersionView {
    /// Whose, within the tenant.
    namespace: String,
    /// The agent.
    name: String,
    /// By semver.org.
    version: String,
    /// SHA-256 of the manifest's canonical JSON.
    digest: String,
    /// What was published; queries of addresses are hidden, since they may hold secrets.
    #[schema(value_type = Object)]
    manifest: Value,
    /// Who published it.
    published_by: String,
    /// When.
    published_at: Timestamp,
    /// Since when no new runs are made of it.
    deprecated_at: Option<Timestamp>,
    /// What a person should know of the manifest; told when it is published.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schema(required = false)]
    warnings: Vec<Warning>,
}

/// A page of versions, by their text.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub(super) struct AgentVersionPage {
    /// The versions.
    data: Vec<AgentVersionView>,
    /// Where the list goes on; null at its end.
    next_cursor: Option<String>,
}

/// A manifest that could be published.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub(super) struct ValidationView {
    /// `true`: what is not valid is answered with a problem.
    valid: bool,
    /// SHA-256 of its canonical JSON.
    digest: String,
    /// What a person should know of it.
    warnings: Vec<Warning>,
}

/// The version that the address names.
pub(super) struct VersionPath {
    agent: AgentPath,
    version: String,
}

impl FromRequestParts<Arc<Api>> for VersionPath {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, api: &Arc<Api>) -> Result<Self, ApiError> {
        let path = Path::<(String, String, String)>::from_request_parts(parts, api).await;
        let Path((namespace, name, version)) = path.map_err(|_undecodable| no_agent())?;
        Ok(Self { agent: AgentPath { namespace, name }, version })
    }
}

fn no_version() -> ApiError {
    ApiError::NotFound("there is no such version of the agent")
}

/// Check a manifest without storing it.
#[utoipa::path(
    post, path = "/v1/agents/validate", operation_id = "agent_validate", tag = "agents",
    request_body(content((AgentManifest = "application/json"), (AgentManifest = "application/yaml"))),
    security(("bearer" = ["agents:write"])),
    responses((status = 200, description = "It could be published", body = ValidationView))
)]
pub(super) async fn agent_validate(
    State(api): State<Arc<Api>>,
    AgentsWriter(caller): AgentsWriter,
    Manifested(manifest): Manifested,
) -> Result<Json<ValidationView>, ApiError> {
    let validated = api.commands.agent_validate(&asker(&caller), manifest).await?;
    Ok(Json(ValidationView { valid: true, digest: validated.digest, warnings: validated.warnings }))
}

/// List the versions of an agent, by their text.
#[utoipa::path(
    get, path = "/v1/agents/{namespace}/{name}/versions", operation_id = "version_list", tag = "agents",
    security(("bearer" = ["runs:read"])),
    params(
        ("namespace" = String, Path, description = "Its namespace"),
        ("name" = String, Path, description = "Its name"),
        ("limit" = Option<u32>, Query, minimum = 1, maximum = 200, description = "Rows of a page (50)"),
        ("cursor" = Option<String>, Query, description = "The `next_cursor` of the page before"),
    ),
    responses((status = 200, description = "A page of versions", body = AgentVersionPage))
)]
pub(super) async fn version_list(
    State(api): State<Arc<Api>>,
    Reader(caller): Reader,
    path: AgentPath,
    RawQuery(query): RawQuery,
) -> Result<Json<AgentVersionPage>, ApiError> {
    let mut query = Query::parse(query.as_deref());
    let (limit, after) = (query.take_limit()?, query.take_cursor::<VersionCursor>()?);
    query.finish()?;
    let agent = known(&api, &caller.tenant, &path).await?;
    let after = after.as_ref().map(|VersionCursor(version)| version.as_str());
    let page = api.store.version_list(&caller.tenant, &agent, after, limit).await?;
    let last = page.last().filter(|_| page.more);
    let next_cursor = last.map(|version| encode(&VersionCursor(version.version.clone())));
    let data = page.into_iter().map(|version| version_view(version, Vec::new())).collect();
    Ok(Json(AgentVersionPage { data, next_cursor }))
}

/// Fetch a version of an agent.
#[utoipa::path(
    get, path = "/v1/agents/{namespace}/{name}/versions/{version}", operation_id = "version_fetch", tag = "agents",
    security(("bearer" = ["runs:read"])),
    params(
        ("namespace" = String, Path, description = "Its namespace"),
        ("name" = String, Path, description = "Its name"),
        ("version" = String, Path, description = "The version"),
    ),
    responses((status = 200, description = "The version", body = AgentVersionView))
)]
pub(super) async fn version_fetch(
    State(api): State<Arc<Api>>,
    Reader(caller): Reader,
    path: VersionPath,
) -> Result<Json<AgentVersionView>, ApiError> {
    let agent = path.agent.agent()?;
    if !is_semver(&path.version) {
        return Err(no_version());
    }
    let found = api.store.version_fetch(&caller.tenant, &agent, &path.version).await?;
    Ok(Json(version_view(found.ok_or_else(no_version)?, Vec::new())))
}

/// Publish a version of an agent, which never changes after that.
///
/// The same content again is answered like the first time; other content is refused. Publishing makes nothing active.
#[utoipa::path(
    put, path = "/v1/agents/{namespace}/{name}/versions/{version}", operation_id = "version_publish", tag = "agents",
    request_body(content((AgentManifest = "application/json"), (AgentManifest = "application/yaml"))),
    security(("bearer" = ["agents:write"])),
    params(
        ("namespace" = String, Path, description = "`[A-Za-z0-9][A-Za-z0-9._-]{0,63}`"),
        ("name" = String, Path, description = "`[A-Za-z0-9][A-Za-z0-9._-]{0,63}`"),
        ("version" = String, Path, description = "By semver.org"),
    ),
    responses(
        (status = 200, description = "This very content was published before", body = AgentVersionView),
        (status = 201, description = "It is published", body = AgentVersionView,
            headers(("Location" = String, description = "Its address"))),
    )
)]
pub(super) async fn version_publish(
    State(api): State<Arc<Api>>,
    AgentsWriter(caller): AgentsWriter,
    path: VersionPath,
    Manifested(manifest): Manifested,
) -> Result<Response, ApiError> {
    let published = api.commands.version_publish(&asker(&caller), path.agent.parts(), &path.version, manifest).await?;
    let AgentPath { namespace, name } = path.agent;
    let address = format!("/v1/agents/{namespace}/{name}/versions/{}", path.version);
    let mut response = Json(version_view(published.version, published.warnings)).into_response();
    if published.is_new {
        *response.status_mut() = StatusCode::CREATED;
        if let Ok(address) = HeaderValue::from_str(&address) {
            response.headers_mut().insert(header::LOCATION, address);
        }
    }
    Ok(response)
}

/// Let no new runs be made of a version. Those that are made of it go on.
#[utoipa::path(
    post, path = "/v1/agents/{namespace}/{name}/versions/{version}/deprecate", operation_id = "version_deprecate",
    tag = "agents", security(("bearer" = ["agents:write"])),
    params(
        ("namespace" = String, Path, description = "Its namespace"),
        ("name" = String, Path, description = "Its name"),
        ("version" = String, Path, description = "The version"),
    ),
    responses((status = 200, description = "The version", body = AgentVersionView))
)]
pub(super) async fn version_deprecate(
    State(api): State<Arc<Api>>,
    AgentsWriter(caller): AgentsWriter,
    path: VersionPath,
) -> Result<Json<AgentVersionView>, ApiError> {
    let version = api.commands.version_deprecate(&asker(&caller), path.agent.parts(), &path.version).await?;
    Ok(Json(version_view(version, Vec::new())))
}

fn version_view(version: AgentVersion, warnings: Vec<Warning>) -> AgentVersionView {
    let AgentVersion { agent, version, digest, mut manifest, published_by, published_at, deprecated_at } = version;
    for entry in manifest.get_mut("mcp").and_then(Value::as_array_mut).into_iter().flatten() {
        if let Some(Value::String(url)) = entry.get_mut("url") {
            *url = without_query(url);
        }
    }
    AgentVersionView {
        namespace: agent.namespace,
        name: agent.name,
        version,
        digest,
        manifest,
        published_by: published_by.as_str().to_owned(),
        published_at,
        deprecated_at,
        warnings,
    }
}
