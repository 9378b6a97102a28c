//! Agents: versions, deployments, rollbacks, and manifests that are only checked.

use std::sync::Arc;

use axum::Json;
use axum::extract::{FromRequestParts, Path, RawQuery, State};
use axum::response::{IntoResponse, Response};
use http::request::Parts;
use http::{HeaderValue, StatusCode, header};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use utoipa::ToSchema;

use super::Api;
use super::extract::{AgentsWriter, Checked, Manifested, Reader, asker};
use super::problem::ApiError;
use super::query::{AgentCursor, DeploymentCursor, Query, VersionCursor, encode};
use crate::commands::without_query;
use crate::run::agent::{AgentName, is_semver};
use crate::run::binding::Warning;
use crate::run::time::Timestamp;
use crate::store::agents::{Agent, AgentVersion, Deployment, Target};

/// An agent.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub(super) struct AgentView {
    /// Whose, within the tenant.
    namespace: String,
    /// What it is called there.
    name: String,
    /// The version of runs that name none; null: none is.
    active_version: Option<String>,
    /// When its first version was published.
    created_at: Timestamp,
    /// When something of it changed last.
    updated_at: Timestamp,
}

/// A page of agents, by name.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub(super) struct AgentPage {
    /// The agents.
    data: Vec<AgentView>,
    /// Where the list goes on; null at its end.
    next_cursor: Option<String>,
}

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

/// A version became the active one.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub(super) struct DeploymentView {
    /// Counts from 1 for each agent.
    number: u32,
    /// Which version.
    version: String,
    /// `deploy` or `rollback`.
    action: String,
    /// Who did it.
    actor: String,
    /// When.
    at: Timestamp,
}

/// A page of deployments, newest first.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub(super) struct DeploymentPage {
    /// The deployments.
    data: Vec<DeploymentView>,
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

/// Which version is to be active.
#[derive(Clone, Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct DeployVersion {
    /// A published one that is not deprecated.
    #[schema(max_length = 128)]
    version: String,
}

/// Which version is to be active again.
#[derive(Clone, Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct RollBackVersion {
    /// One that was active at some time; left out: the one before.
    #[schema(max_length = 128)]
    version: Option<String>,
}

/// The agent that the address names.
pub(super) struct AgentPath {
    namespace: String,
    name: String,
}

impl AgentPath {
    fn agent(&self) -> Result<AgentName, ApiError> {
        AgentName::parse(&self.namespace, &self.name).ok_or_else(no_agent)
    }

    fn parts(&self) -> (&str, &str) {
        (&self.namespace, &self.name)
    }
}

impl FromRequestParts<Arc<Api>> for AgentPath {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, api: &Arc<Api>) -> Result<Self, ApiError> {
        let path = Path::<(String, String)>::from_request_parts(parts, api).await;
        let Path((namespace, name)) = path.map_err(|_undecodable| no_agent())?;
        Ok(Self { namespace, name })
    }
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

fn no_agent() -> ApiError {
    ApiError::NotFound("there is no such agent")
}

fn no_version() -> ApiError {
    ApiError::NotFound("there is no such version of the agent")
}

/// List the tenant's agents, by name.
#[utoipa::path(
    get, path = "/v1/agents", operation_id = "agent_list", tag = "agents", security(("bearer" = ["runs:read"])),
    params(
        ("limit" = Option<u32>, Query, minimum = 1, maximum = 200, description = "Rows of a page (50)"),
        ("cursor" = Option<String>, Query, description = "The `next_cursor` of the page before"),
    ),
    responses((status = 200, description = "A page of agents", body = AgentPage))
)]
pub(super) async fn agent_list(
    State(api): State<Arc<Api>>,
    Reader(caller): Reader,
    RawQuery(query): RawQuery,
) -> Result<Json<AgentPage>, ApiError> {
    let mut query = Query::parse(query.as_deref());
    let (limit, after) = (query.take_limit()?, query.take_cursor::<AgentCursor>()?);
    query.finish()?;
    let page = api.store.agent_list(&caller.tenant, after.as_ref().map(|AgentCursor(name)| name), limit).await?;
    let last = page.last().filter(|_| page.more);
    let next_cursor = last.map(|agent| encode(&AgentCursor(agent.name.clone())));
    Ok(Json(AgentPage { data: page.into_iter().map(AgentView::from).collect(), next_cursor }))
}

/// Fetch an agent.
#[utoipa::path(
    get, path = "/v1/agents/{namespace}/{name}", operation_id = "agent_fetch", tag = "agents",
    security(("bearer" = ["runs:read"])),
    params(
        ("namespace" = String, Path, description = "Its namespace"),
        ("name" = String, Path, description = "Its name"),
    ),
    responses((status = 200, description = "The agent", body = AgentView))
)]
pub(super) async fn agent_fetch(
    State(api): State<Arc<Api>>,
    Reader(caller): Reader,
    path: AgentPath,
) -> Result<Json<AgentView>, ApiError> {
    let found = api.store.agent_fetch(&caller.tenant, &path.agent()?).await?;
    found.map(|agent| Json(agent.into())).ok_or_else(no_agent)
}

/// Check a manifest without storing it.
#[utoipa::path(
    post, path = "/v1/agents/validate", operation_id = "agent_validate", tag = "agents",
    request_body(content((crate::commands::AgentManifest = "application/json"), (crate::commands::AgentManifest = "application/yaml"))),
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
    request_body(content((crate::commands::AgentManifest = "application/json"), (crate::commands::AgentManifest = "application/yaml"))),
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
    let published =
        api.commands.version_publish(&asker(&caller), path.agent.parts(), &path.version, manifest).await?;
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

/// List the deployments of an agent, newest first.
#[utoipa::path(
    get, path = "/v1/agents/{namespace}/{name}/deployments", operation_id = "deployment_list", tag = "agents",
    security(("bearer" = ["runs:read"])),
    params(
        ("namespace" = String, Path, description = "Its namespace"),
        ("name" = String, Path, description = "Its name"),
        ("limit" = Option<u32>, Query, minimum = 1, maximum = 200, description = "Rows of a page (50)"),
        ("cursor" = Option<String>, Query, description = "The `next_cursor` of the page before"),
    ),
    responses((status = 200, description = "A page of deployments", body = DeploymentPage))
)]
pub(super) async fn deployment_list(
    State(api): State<Arc<Api>>,
    Reader(caller): Reader,
    path: AgentPath,
    RawQuery(query): RawQuery,
) -> Result<Json<DeploymentPage>, ApiError> {
    let mut query = Query::parse(query.as_deref());
    let (limit, before) = (query.take_limit()?, query.take_cursor::<DeploymentCursor>()?);
    query.finish()?;
    let agent = known(&api, &caller.tenant, &path).await?;
    let before = before.map(|DeploymentCursor(number)| number);
    let page = api.store.deployment_list(&caller.tenant, &agent, before, limit).await?;
    let last = page.last().filter(|_| page.more);
    let next_cursor = last.map(|deployment| encode(&DeploymentCursor(deployment.number)));
    Ok(Json(DeploymentPage { data: page.into_iter().map(DeploymentView::from).collect(), next_cursor }))
}

/// Make a version the active one.
#[utoipa::path(
    post, path = "/v1/agents/{namespace}/{name}/deployments", operation_id = "deployment_create", tag = "agents",
    request_body = DeployVersion, security(("bearer" = ["agents:write"])),
    params(
        ("namespace" = String, Path, description = "Its namespace"),
        ("name" = String, Path, description = "Its name"),
    ),
    responses(
        (status = 200, description = "It was active already", body = DeploymentView),
        (status = 201, description = "It is active", body = DeploymentView),
    )
)]
pub(super) async fn deployment_create(
    State(api): State<Arc<Api>>,
    AgentsWriter(caller): AgentsWriter,
    path: AgentPath,
    body: Checked<DeployVersion>,
) -> Result<Response, ApiError> {
    let target = Target::Deploy(body.value.version);
    Ok(deployed(api.commands.deployment_add(&asker(&caller), path.parts(), target).await?))
}

/// Make the version active again that was active before, or another one that was.
#[utoipa::path(
    post, path = "/v1/agents/{namespace}/{name}/rollback", operation_id = "deployment_roll_back", tag = "agents",
    request_body = Option<RollBackVersion>, security(("bearer" = ["agents:write"])),
    params(
        ("namespace" = String, Path, description = "Its namespace"),
        ("name" = String, Path, description = "Its name"),
    ),
    responses(
        (status = 200, description = "It was active already", body = DeploymentView),
        (status = 201, description = "It is active again", body = DeploymentView),
    )
)]
pub(super) async fn deployment_roll_back(
    State(api): State<Arc<Api>>,
    AgentsWriter(caller): AgentsWriter,
    path: AgentPath,
    body: Checked<RollBackVersion>,
) -> Result<Response, ApiError> {
    let target = Target::RollBack(body.value.version);
    Ok(deployed(api.commands.deployment_add(&asker(&caller), path.parts(), target).await?))
}

/// The agent of the address, where there is one.
async fn known(api: &Api, tenant: &crate::run::ids::TenantId, path: &AgentPath) -> Result<AgentName, ApiError> {
    let agent = path.agent()?;
    let found = api.store.agent_fetch(tenant, &agent).await?;
    found.map(|_| agent).ok_or_else(no_agent)
}

fn deployed((deployment, is_new): (Deployment, bool)) -> Response {
    let status = if is_new { StatusCode::CREATED } else { StatusCode::OK };
    (status, Json(DeploymentView::from(deployment))).into_response()
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

impl From<Agent> for AgentView {
    fn from(agent: Agent) -> Self {
        let Agent { name: AgentName { namespace, name }, active, created_at, updated_at } = agent;
        Self { namespace, name, active_version: active, created_at, updated_at }
    }
}

impl From<Deployment> for DeploymentView {
    fn from(deployment: Deployment) -> Self {
        let Deployment { number, version, action, actor, at, before: _ } = deployment;
        Self { number, version, action, actor: actor.as_str().to_owned(), at }
    }
}
