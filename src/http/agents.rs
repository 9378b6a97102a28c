//! Agents: which version of each is active, and which were.

use std::sync::Arc;

use axum::Json;
use axum::extract::{FromRequestParts, Path, RawQuery, State};
use axum::response::{IntoResponse, Response};
use http::StatusCode;
use http::request::Parts;
use serde::Serialize;
use utoipa::ToSchema;

use super::Api;
use super::extract::{AgentsWriter, Checked, Reader, asker};
use super::problem::ApiError;
use super::query::{AgentCursor, DeploymentCursor, Query, encode};
use crate::commands::{DeployVersion, RollBackVersion};
use crate::run::agent::AgentName;
use crate::run::ids::TenantId;
use crate::run::time::Timestamp;
use crate::store::agents::{Agent, Deployment, Target};

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

/// The agent that the address names.
pub(super) struct AgentPath {
    /// Whose, within the tenant.
    pub(super) namespace: String,
    /// What it is called there.
    pub(super) name: String,
}

impl AgentPath {
    pub(super) fn agent(&self) -> Result<AgentName, ApiError> {
        AgentName::parse(&self.namespace, &self.name).ok_or_else(no_agent)
    }

    pub(super) fn parts(&self) -> (&str, &str) {
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

pub(super) fn no_agent() -> ApiError {
    ApiError::NotFound("there is no such agent")
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
pub(super) async fn known(api: &Api, tenant: &TenantId, path: &AgentPath) -> Result<AgentName, ApiError> {
    let agent = path.agent()?;
    let found = api.store.agent_fetch(tenant, &agent).await?;
    found.map(|_| agent).ok_or_else(no_agent)
}

fn deployed((deployment, is_new): (Deployment, bool)) -> Response {
    let status = if is_new { StatusCode::CREATED } else { StatusCode::OK };
    (status, Json(DeploymentView::from(deployment))).into_response()
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
