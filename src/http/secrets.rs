//! Stored secrets: put, list, delete. A value goes in and never comes out.

use std::sync::Arc;

use axum::Json;
use axum::extract::{RawQuery, State};
use http::StatusCode;
use serde::Serialize;
use utoipa::ToSchema;

use super::Api;
use super::extract::{Checked, NamePath, SecretsWriter, asker};
use super::problem::ApiError;
use super::query::{NameCursor, Query, SecretCursor, encode};
use crate::commands::PutSecret;
use crate::run::time::Timestamp;
use crate::store::registry::SecretInfo;

/// What may be told of a stored secret.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub(super) struct SecretView {
    /// Its name in the tenant.
    name: String,
    /// Counts from 1; each put is one more.
    version: u32,
    /// Where it may be sent.
    hosts: Vec<String>,
    /// The id of the master key that it is sealed under.
    key_id: String,
    /// When the name was first put.
    created_at: Timestamp,
    /// When this version was put.
    updated_at: Timestamp,
}

/// A page of stored secrets, by name.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub(super) struct SecretPage {
    /// The secrets, without their values.
    data: Vec<SecretView>,
    /// Where the list goes on; null at its end.
    next_cursor: Option<String>,
}

/// List the tenant's stored secrets, by name.
#[utoipa::path(
    get, path = "/v1/secrets", operation_id = "secret_list", tag = "secrets", security(("bearer" = ["secrets:write"])),
    params(
        ("limit" = Option<u32>, Query, minimum = 1, maximum = 200, description = "Rows of a page (50)"),
        ("cursor" = Option<String>, Query, description = "The `next_cursor` of the page before"),
    ),
    responses((status = 200, description = "A page of secrets, without their values", body = SecretPage))
)]
pub(super) async fn secret_list(
    State(api): State<Arc<Api>>,
    SecretsWriter(caller): SecretsWriter,
    RawQuery(query): RawQuery,
) -> Result<Json<SecretPage>, ApiError> {
    let mut query = Query::parse(query.as_deref());
    let (limit, after) = (query.take_limit()?, query.take_cursor::<SecretCursor>()?);
    query.finish()?;
    let after = after.as_ref().map(|NameCursor(name)| name.as_str());
    let page = api.store.stored_secret_list(&caller.tenant, after, limit).await?;
    let last = page.last().filter(|_| page.more);
    let next_cursor = last.map(|secret| encode::<SecretCursor>(&NameCursor(secret.name.clone())));
    Ok(Json(SecretPage { data: page.into_iter().map(view).collect(), next_cursor }))
}

/// Store a secret, or a new version of it.
///
/// It is only ever sent to its hosts. Connections that carry the version before are replaced at their next use.
#[utoipa::path(
    put, path = "/v1/secrets/{name}", operation_id = "secret_put", tag = "secrets", request_body = PutSecret,
    security(("bearer" = ["secrets:write"])),
    params(("name" = String, Path, description = "`[A-Za-z0-9][A-Za-z0-9._-]{0,63}`")),
    responses((status = 204, description = "It is stored"))
)]
pub(super) async fn secret_put(
    State(api): State<Arc<Api>>,
    SecretsWriter(caller): SecretsWriter,
    NamePath(name): NamePath,
    body: Checked<PutSecret>,
) -> Result<StatusCode, ApiError> {
    api.commands.secret_put(&asker(&caller), &name, body.value).await?;
    Ok(StatusCode::NO_CONTENT)
}

/// Delete a stored secret.
///
/// Refused while registered servers are told it.
#[utoipa::path(
    delete, path = "/v1/secrets/{name}", operation_id = "secret_delete", tag = "secrets",
    security(("bearer" = ["secrets:write"])),
    params(("name" = String, Path, description = "Its name")),
    responses((status = 204, description = "It is gone"))
)]
pub(super) async fn secret_delete(
    State(api): State<Arc<Api>>,
    SecretsWriter(caller): SecretsWriter,
    NamePath(name): NamePath,
) -> Result<StatusCode, ApiError> {
    api.commands.secret_delete(&asker(&caller), &name).await?;
    Ok(StatusCode::NO_CONTENT)
}

fn view(secret: SecretInfo) -> SecretView {
    let SecretInfo { name, version, key_id, hosts, created_at, updated_at } = secret;
    SecretView { name, version, hosts, key_id, created_at, updated_at }
}
