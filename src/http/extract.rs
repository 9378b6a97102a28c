//! What handlers take: callers by scope, run names, checked bodies. Who may call stands in a handler's argument list.

use std::sync::Arc;
use std::time::Duration;

use axum::extract::{FromRequest, FromRequestParts, Path, Request};
use bytes::Bytes;
use http::request::Parts;
use http::{HeaderMap, StatusCode, header};
use serde::de::DeserializeOwned;
use serde_json::Value;

use super::Api;
use super::mend::{self, StandIn};
use super::nulls;
use super::problem::{ApiError, Flaw};
use super::yaml::{self, YamlFault};
use tokio::time::timeout;

use crate::auth::{Caller, Scope};
use crate::commands::{
    AgentManifest, AnswerInput, Asker, CallResult, ClaimCalls, CreateRun, DecideApproval, DeployVersion, Fault,
    GiveResults, Given, HeldCall, Manifest, PutSecret, PutServer, ReconcileCall, RequestKey, ResumeRun,
    RollBackVersion,
};
use crate::run::ids::RunId;
use crate::run::json::{MAX_DEPTH, is_too_deep, parse_strict};
use crate::store::RunView;

/// Time for the body of a request.
const BODY_TIME: Duration = Duration::from_secs(30);

/// Longest `Idempotency-Key`.
const KEY_MAX: usize = 255;
/// How often a body is looked at again after what has not its form was taken out.
const MENDING_ROUNDS: usize = 3;

/// Callers by what they may do: a handler that takes one is called by nobody else.
macro_rules! callers {
    ($($(#[$doc:meta])* $caller:ident: $scope:ident),+ $(,)?) => {$(
        $(#[$doc])*
        pub(super) struct $caller(pub(super) Caller);

        impl FromRequestParts<Arc<Api>> for $caller {
            type Rejection = ApiError;

            async fn from_request_parts(parts: &mut Parts, api: &Arc<Api>) -> Result<Self, ApiError> {
                caller(&parts.headers, api, Scope::$scope).await.map(Self)
            }
        }
    )+};
}

callers! {
    /// A caller who may read runs.
    Reader: RunsRead,
    /// A caller who may create, resume and cancel runs.
    Writer: RunsWrite,
    /// A caller who administrates the tenant.
    Admin: Admin,
    /// A caller who may register MCP servers.
    McpWriter: McpWrite,
    /// A caller who may publish agents.
    AgentsWriter: AgentsWrite,
    /// A caller who may store secrets.
    SecretsWriter: SecretsWrite,
    /// A worker.
    Worker: Workers,
    /// A caller who may approve or deny calls.
    Approver: ApprovalsDecide,
}

/// Who asks, for a command.
pub(super) fn asker(caller: &Caller) -> Asker {
    let scopes = caller.scope_names.iter().cloned().collect();
    Asker { tenant: caller.tenant.clone(), actor: caller.actor.clone(), scopes }
}

/// The holder of the request's token, who must have this scope.
pub(super) async fn caller(headers: &HeaderMap, api: &Api, scope: Scope) -> Result<Caller, ApiError> {
    let token = bearer(headers).ok_or(ApiError::NoToken)?;
    let caller = api.verifier.verify(token, api.clock.now()).await.map_err(ApiError::Token)?;
    need(&caller, scope)?;
    Ok(caller)
}

/// Refuses a caller without this scope.
pub(super) fn need(caller: &Caller, scope: Scope) -> Result<(), ApiError> {
    if caller.may(scope) { Ok(()) } else { Err(ApiError::Forbidden(scope)) }
}

fn bearer(headers: &HeaderMap) -> Option<&str> {
    let (scheme, token) = headers.get(header::AUTHORIZATION)?.to_str().ok()?.trim().split_once(' ')?;
    scheme.eq_ignore_ascii_case("bearer").then(|| token.trim()).filter(|token| !token.is_empty())
}

/// The run that the address names. A name that no run can have is not there.
pub(super) struct RunPath(pub(super) RunId);

impl FromRequestParts<Arc<Api>> for RunPath {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, api: &Arc<Api>) -> Result<Self, ApiError> {
        let Path(id) = Path::<String>::from_request_parts(parts, api).await.map_err(|_undecodable| no_run())?;
        RunId::parse(id).map(Self).ok_or_else(no_run)
    }
}

/// The one name in the address, of a server, a secret, a worker or its call.
pub(super) struct NamePath(pub(super) String);

impl FromRequestParts<Arc<Api>> for NamePath {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, api: &Arc<Api>) -> Result<Self, ApiError> {
        let name = Path::<String>::from_request_parts(parts, api).await;
        name.map(|Path(name)| Self(name)).map_err(|_undecodable| ApiError::NotFound("there is nothing of this name"))
    }
}

/// The receipt that the address names.
pub(super) struct ReceiptPath {
    /// The run.
    pub(super) run: RunId,
    /// The turn; `None` when it is no number.
    pub(super) turn: Option<u32>,
    /// The call's label.
    pub(super) call_id: String,
}

impl FromRequestParts<Arc<Api>> for ReceiptPath {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, api: &Arc<Api>) -> Result<Self, ApiError> {
        let path = Path::<(String, String, String)>::from_request_parts(parts, api).await;
        let Path((id, turn, call_id)) = path.map_err(|_undecodable| no_run())?;
        let run = RunId::parse(id).ok_or_else(no_run)?;
        Ok(Self { run, turn: turn.parse().ok(), call_id })
    }
}

/// The question that the address names.
pub(super) struct InputPath {
    /// The run.
    pub(super) run: RunId,
    /// The question.
    pub(super) input_id: String,
}

impl FromRequestParts<Arc<Api>> for InputPath {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, api: &Arc<Api>) -> Result<Self, ApiError> {
        let path = Path::<(String, String)>::from_request_parts(parts, api).await;
        let Path((id, input_id)) = path.map_err(|_undecodable| no_run())?;
        Ok(Self { run: RunId::parse(id).ok_or_else(no_run)?, input_id })
    }
}

/// One run of the caller's tenant.
pub(super) async fn fetch(api: &Api, caller: &Caller, id: &RunId) -> Result<RunView, ApiError> {
    api.store.run_fetch(&caller.tenant, id).await?.ok_or_else(no_run)
}

/// There is no such run in the caller's tenant.
pub(super) const fn no_run() -> ApiError {
    ApiError::NotFound("there is no such run")
}

/// A body that callers send.
pub(super) trait Body: DeserializeOwned {
    /// Name of its schema in the published document.
    const SCHEMA: &'static str;
    /// Whether an empty body means one without fields.
    const MAY_BE_EMPTY: bool;
}

/// Bodies by the names that their types have in the document.
macro_rules! bodies {
    (may be empty: $empty:literal; $($body:ident),+ $(,)?) => {$(
        impl Body for $body {
            const SCHEMA: &'static str = stringify!($body);
            const MAY_BE_EMPTY: bool = $empty;
        }
    )+};
}

bodies! { may be empty: false;
    ReconcileCall, AnswerInput, DecideApproval, PutSecret, ClaimCalls, HeldCall, CallResult, GiveResults, DeployVersion,
}
bodies! { may be empty: true; ResumeRun, RollBackVersion }

/// A body whose meaning is checked also where it has not its form, so that all faults are told at once.
pub(super) trait Declaration: DeserializeOwned {
    /// Name of its schema in the published document.
    const SCHEMA: &'static str;
    /// What stands in for members that must be there.
    const STAND_INS: &'static [StandIn];
}

impl Declaration for CreateRun {
    const SCHEMA: &'static str = "CreateRun";
    const STAND_INS: &'static [StandIn] = &[mend::INPUT, mend::MODEL];
}

impl Declaration for AgentManifest {
    const SCHEMA: &'static str = "AgentManifest";
    const STAND_INS: &'static [StandIn] = &[mend::MODEL];
}

impl Declaration for PutServer {
    const SCHEMA: &'static str = "PutServer";
    const STAND_INS: &'static [StandIn] = &[];
}

/// A declaration as far as it could be read, and its bytes for the digest that is kept with an `Idempotency-Key`.
pub(super) struct Declared<T> {
    /// What it says, and what is wrong with its form.
    pub(super) given: Given<T>,
    /// As it came.
    pub(super) bytes: Bytes,
}

impl<T: Declaration> FromRequest<Arc<Api>> for Declared<T> {
    type Rejection = ApiError;

    async fn from_request(request: Request, api: &Arc<Api>) -> Result<Self, ApiError> {
        let is_json = is_json(request.headers());
        let bytes = read(request, api).await?;
        if !is_json {
            return Err(ApiError::UnsupportedMediaType);
        }
        let reading = || given(api, parse_strict(utf8(&bytes)?).map_err(ApiError::MalformedJson)?, Vec::new());
        let given = api.commands.dispatch.bulk().work(bytes.len(), reading).await?;
        Ok(Self { given, bytes })
    }
}

/// A checked body.
pub(super) struct Checked<T> {
    /// What it says.
    pub(super) value: T,
}

impl<T: Body> FromRequest<Arc<Api>> for Checked<T> {
    type Rejection = ApiError;

    async fn from_request(request: Request, api: &Arc<Api>) -> Result<Self, ApiError> {
        let is_json = is_json(request.headers());
        let bytes = read(request, api).await?;
        if bytes.is_empty() && T::MAY_BE_EMPTY {
            return check(api, b"{}").await.map(|value| Self { value });
        }
        if !is_json {
            return Err(ApiError::UnsupportedMediaType);
        }
        check(api, &bytes).await.map(|value| Self { value })
    }
}

/// A checked manifest, in JSON or YAML.
pub(super) struct Manifested(pub(super) Manifest);

impl FromRequest<Arc<Api>> for Manifested {
    type Rejection = ApiError;

    async fn from_request(request: Request, api: &Arc<Api>) -> Result<Self, ApiError> {
        let (is_json, is_yaml) = (is_json(request.headers()), is_yaml(request.headers()));
        let bytes = read(request, api).await?;
        if !is_json && !is_yaml {
            return Err(ApiError::UnsupportedMediaType);
        }
        let reading = || {
            let text = utf8(&bytes)?;
            let given = if is_yaml { read_yaml(text)? } else { parse_strict(text).map_err(ApiError::MalformedJson)? };
            let said = if is_yaml { nulls::flaws(&given) } else { Vec::new() };
            let read = self::given(api, given.clone(), said)?;
            Ok(Self(Manifest { given, read }))
        };
        api.commands.dispatch.bulk().work(bytes.len(), reading).await
    }
}

fn read_yaml(text: &str) -> Result<Value, ApiError> {
    yaml::read(text).map_err(|fault| match fault {
        YamlFault::Malformed(says) => ApiError::MalformedJson(says),
        YamlFault::NotTaken(says) => ApiError::Invalid(vec![Flaw::at("", says)]),
    })
}

async fn check<T: Body>(api: &Api, bytes: &[u8]) -> Result<T, ApiError> {
    let reading = || checked(api, parse_strict(utf8(bytes)?).map_err(ApiError::MalformedJson)?);
    api.commands.dispatch.bulk().work(bytes.len(), reading).await
}

fn utf8(bytes: &[u8]) -> Result<&str, ApiError> {
    std::str::from_utf8(bytes).map_err(|fault| ApiError::MalformedJson(fault.to_string()))
}

fn checked<T: Body>(api: &Api, body: Value) -> Result<T, ApiError> {
    let flaws = flaws(api, T::SCHEMA, &body)?;
    if flaws.is_empty() { typed(body) } else { Err(ApiError::Invalid(flaws)) }
}

/// `found`: what is wrong with it besides.
fn given<T: Declaration>(api: &Api, mut body: Value, found: Vec<Flaw>) -> Result<Given<T>, ApiError> {
    let mut told = flaws(api, T::SCHEMA, &body)?;
    told.extend(found);
    if told.is_empty() {
        return typed::<T>(body).map(Given::from);
    }
    let (mut places, mut left) = (Vec::new(), told.clone());
    for _ in 0..MENDING_ROUNDS {
        if !mend::mend_all(&mut body, &left, T::STAND_INS, &mut places) {
            break;
        }
        left = flaws(api, T::SCHEMA, &body)?;
    }
    let value = if left.is_empty() { typed(body).ok() } else { None };
    let Some(value) = value else { return Err(ApiError::Invalid(told)) };
    let faults = told.into_iter().map(|flaw| Fault::at(flaw.pointer.unwrap_or_default(), flaw.detail)).collect();
    Ok(Given::mended(value, faults, places))
}

fn flaws(api: &Api, schema: &str, body: &Value) -> Result<Vec<Flaw>, ApiError> {
    if is_too_deep(body) {
        return Err(ApiError::Invalid(vec![Flaw::at("", format!("is nested deeper than {MAX_DEPTH} levels"))]));
    }
    Ok(api.schemas.flaws(schema, body))
}

/// What the schema lets through and the type does not is told without a place, and without the value.
fn typed<T: DeserializeOwned>(body: Value) -> Result<T, ApiError> {
    serde_json::from_value(body)
        .map_err(|_says_values| ApiError::Invalid(vec![Flaw::at("", "has none of the allowed forms")]))
}

/// The media type of a body, without its parameters.
fn essence(headers: &HeaderMap) -> String {
    let kind = headers.get(header::CONTENT_TYPE).and_then(|kind| kind.to_str().ok()).unwrap_or_default();
    kind.split(';').next().unwrap_or_default().trim().to_ascii_lowercase()
}

fn is_yaml(headers: &HeaderMap) -> bool {
    let essence = essence(headers);
    matches!(essence.as_str(), "application/yaml" | "application/x-yaml" | "text/yaml" | "text/x-yaml")
        || (essence.starts_with("application/") && essence.ends_with("+yaml"))
}

fn is_json(headers: &HeaderMap) -> bool {
    let essence = essence(headers);
    essence == "application/json" || (essence.starts_with("application/") && essence.ends_with("+json"))
}

async fn read(request: Request, api: &Api) -> Result<Bytes, ApiError> {
    use axum::response::IntoResponse as _;
    let max = api.settings.max_body_bytes;
    let declared = request.headers().get(header::CONTENT_LENGTH).and_then(|length| length.to_str().ok()?.parse().ok());
    if declared.is_some_and(|declared: u64| u64::try_from(max).is_ok_and(|max| declared > max)) {
        return Err(ApiError::PayloadTooLarge(max));
    }
    let body = timeout(BODY_TIME, Bytes::from_request(request, &()));
    let Ok(body) = body.await else { return Err(ApiError::BodyUnread) };
    body.map_err(|rejection| match rejection.into_response().status() {
        StatusCode::PAYLOAD_TOO_LARGE => ApiError::PayloadTooLarge(max),
        _ => ApiError::BodyUnread,
    })
}

/// The request's `Idempotency-Key`, with the digest of its body.
pub(super) fn request_key(headers: &HeaderMap, api: &Api, body: &[u8]) -> Result<Option<RequestKey>, ApiError> {
    const NAME: &str = "Idempotency-Key";
    let mut given = headers.get_all(NAME).iter();
    let Some(value) = given.next() else { return Ok(None) };
    let key = value.to_str().unwrap_or_default();
    let fits = (1..=KEY_MAX).contains(&key.len()) && key.chars().all(|c| c.is_ascii_graphic());
    if !fits || given.next().is_some() {
        let flaw = Flaw::of(NAME, "must be one value of 1 to 255 visible ASCII characters");
        return Err(ApiError::Invalid(vec![flaw]));
    }
    Ok(Some(RequestKey { key: key.to_owned(), body_digest: api.commands.keys.body_digest(body) }))
}
