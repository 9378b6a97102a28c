//! Problems: every answer that is not what was asked for, as `application/problem+json` (RFC 9457).
//!
//! One match says which status and code an error has; nothing else in the program knows a status code.

use axum::response::{IntoResponse, Response};
use http::{HeaderValue, StatusCode, header};
use serde::Serialize;
use serde_json::{Map, Value};
use utoipa::ToSchema;

use super::links::{self, Link};
use super::refused;
use crate::auth::{AuthError, Scope, TicketRefusal};
use crate::commands::{CommandError, Fault};
use crate::run::ids::RunId;
use crate::store::StoreError;

/// When to ask again after an overload, in seconds.
const RETRY_AFTER_S: u32 = 1;

/// Why a request was not answered as asked.
#[derive(Debug)]
pub(super) enum ApiError {
    /// No token where one is needed.
    NoToken,
    /// A token that is not taken.
    Token(AuthError),
    /// A ticket that is not taken.
    Ticket(TicketRefusal),
    /// A ticket of another run.
    TicketOfAnotherRun,
    /// A token without this scope.
    Forbidden(Scope),
    /// Nothing is there, or it is another tenant's.
    NotFound(&'static str),
    /// The route has no such method.
    MethodNotAllowed,
    /// Nothing that the caller takes can be given.
    NotAcceptable(&'static str),
    /// A body that is not JSON.
    MalformedJson(String),
    /// A cursor, an event number or a limit that cannot be.
    InvalidCursor(String),
    /// A body, query or header that cannot mean anything.
    Invalid(Vec<Flaw>),
    /// A body of another kind.
    UnsupportedMediaType,
    /// A body over the limit, in bytes.
    PayloadTooLarge(usize),
    /// A body that stopped coming.
    BodyUnread,
    /// An actor with as many open streams as it may have.
    TooManyStreams(usize),
    /// A command that was refused, and the run that it was about.
    Command(CommandError, Option<RunId>),
    /// The store could not do it.
    Store(StoreError),
    /// A defect.
    Internal(&'static str),
}

/// One fault of a request, where it is.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, ToSchema)]
pub(super) struct Flaw {
    /// JSON Pointer into the body.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub(super) pointer: Option<String>,
    /// Name of a query parameter or header.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub(super) parameter: Option<String>,
    /// What is wrong there.
    pub(super) detail: String,
}

impl Flaw {
    pub(super) fn at(pointer: impl Into<String>, detail: impl Into<String>) -> Self {
        Self { pointer: Some(pointer.into()), parameter: None, detail: detail.into() }
    }

    pub(super) fn of(parameter: impl Into<String>, detail: impl Into<String>) -> Self {
        Self { pointer: None, parameter: Some(parameter.into()), detail: detail.into() }
    }
}

/// A problem document (RFC 9457). Further members depend on the code.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub(super) struct Problem {
    /// `urn:countersign:problem:CODE`.
    #[serde(rename = "type")]
    kind: String,
    /// The kind of problem, for people.
    title: &'static str,
    /// The HTTP status.
    status: u16,
    /// This very problem, for people.
    detail: String,
    /// The request's id.
    instance: String,
    /// For programs.
    code: &'static str,
    /// Every fault of a request.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schema(required = false)]
    errors: Vec<Flaw>,
    /// Requests that resolve it.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schema(required = false)]
    links: Vec<Link>,
    /// Members of this code.
    #[serde(flatten)]
    #[schema(ignore)]
    members: Map<String, Value>,
    #[serde(skip)]
    #[schema(ignore)]
    retry_after_s: Option<u32>,
    #[serde(skip)]
    #[schema(ignore)]
    challenge: Option<HeaderValue>,
}

impl Problem {
    pub(super) fn new(status: StatusCode, code: &'static str, title: &'static str, detail: impl Into<String>) -> Self {
        Self {
            kind: format!("urn:countersign:problem:{code}"),
            title,
            status: status.as_u16(),
            detail: detail.into(),
            instance: String::new(),
            code,
            errors: Vec::new(),
            links: Vec::new(),
            members: Map::new(),
            retry_after_s: None,
            challenge: None,
        }
    }

    pub(super) fn with(mut self, name: &str, value: impl Into<Value>) -> Self {
        self.members.insert(name.to_owned(), value.into());
        self
    }

    fn flawed(mut self, errors: Vec<Flaw>) -> Self {
        self.errors = errors;
        self
    }

    pub(super) fn linked(mut self, links: Vec<Link>) -> Self {
        self.links = links;
        self
    }

    fn challenged(mut self, challenge: &str) -> Self {
        self.challenge = HeaderValue::from_str(challenge).ok();
        self
    }

    /// The code, for logs.
    pub(super) const fn code(&self) -> &'static str {
        self.code
    }

    /// The answer, with the request's id in it. Headers that the answer had already are kept.
    pub(super) fn render(mut self, request_id: &str, headers: http::HeaderMap) -> Response {
        request_id.clone_into(&mut self.instance);
        let status = StatusCode::from_u16(self.status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
        // A problem is made of text and JSON only: it always prints.
        let body = serde_json::to_vec(&self).unwrap_or_default();
        let mut response = (status, body).into_response();
        *response.headers_mut() = headers;
        let kind = HeaderValue::from_static("application/problem+json");
        response.headers_mut().insert(header::CONTENT_TYPE, kind);
        response.headers_mut().remove(header::CONTENT_LENGTH);
        if let Some(seconds) = self.retry_after_s {
            response.headers_mut().insert(header::RETRY_AFTER, seconds.into());
        }
        if let Some(challenge) = self.challenge {
            response.headers_mut().insert(header::WWW_AUTHENTICATE, challenge);
        }
        response
    }
}

impl IntoResponse for ApiError {
    /// The problem travels beside an empty answer until the outermost layer, which knows the request's id.
    fn into_response(self) -> Response {
        let problem = self.problem();
        let mut response = StatusCode::from_u16(problem.status).unwrap_or_default().into_response();
        response.extensions_mut().insert(problem);
        response
    }
}

impl From<StoreError> for ApiError {
    fn from(error: StoreError) -> Self {
        Self::Store(error)
    }
}

impl From<CommandError> for ApiError {
    fn from(error: CommandError) -> Self {
        Self::Command(error, None)
    }
}

impl ApiError {
    pub(super) fn problem(self) -> Problem {
        match self {
            Self::NoToken => unauthenticated("a bearer token is needed", r#"Bearer realm="countersign""#),
            Self::Token(AuthError::KeysUnavailable) => overloaded(AuthError::KeysUnavailable.to_string()),
            Self::Token(error) => refused_token(error.to_string()),
            Self::Ticket(refusal) => refused_token(refusal.to_string()),
            Self::TicketOfAnotherRun => refused_token("the ticket is for another run".to_owned()),
            Self::Forbidden(scope) => forbidden(scope),
            Self::NotFound(what) => Problem::new(StatusCode::NOT_FOUND, "not-found", "Not found", what),
            Self::MethodNotAllowed => Problem::new(
                StatusCode::METHOD_NOT_ALLOWED,
                "method-not-allowed",
                "Method not allowed",
                "this address does not take this method; see the Allow header",
            ),
            Self::NotAcceptable(given) => {
                Problem::new(StatusCode::NOT_ACCEPTABLE, "not-acceptable", "Not acceptable", given)
            }
            Self::MalformedJson(detail) => {
                Problem::new(StatusCode::BAD_REQUEST, "malformed-json", "The body is not JSON", detail)
            }
            Self::InvalidCursor(detail) => {
                Problem::new(StatusCode::BAD_REQUEST, "invalid-cursor", "Invalid cursor or limit", detail)
            }
            Self::Invalid(flaws) => invalid(flaws),
            Self::UnsupportedMediaType => Problem::new(
                StatusCode::UNSUPPORTED_MEDIA_TYPE,
                "unsupported-media-type",
                "Unsupported media type",
                "the body must be application/json",
            ),
            Self::PayloadTooLarge(limit) => Problem::new(
                StatusCode::PAYLOAD_TOO_LARGE,
                "payload-too-large",
                "The body is too large",
                format!("the body may have {limit} bytes"),
            ),
            Self::BodyUnread => {
                Problem::new(StatusCode::BAD_REQUEST, "malformed-json", "The body is not JSON", "the body was cut")
            }
            Self::TooManyStreams(limit) => too_many_streams(limit),
            Self::Command(error, run) => of_command(error, run.as_ref()),
            Self::Store(error) => of_store(&error),
            Self::Internal(cause) => internal(cause),
        }
    }
}

fn unauthenticated(detail: impl Into<String>, challenge: &str) -> Problem {
    Problem::new(StatusCode::UNAUTHORIZED, "unauthenticated", "Not authenticated", detail).challenged(challenge)
}

fn refused_token(detail: String) -> Problem {
    let challenge = format!(r#"Bearer realm="countersign", error="invalid_token", error_description="{detail}""#);
    unauthenticated(detail, &challenge)
}

fn forbidden(scope: Scope) -> Problem {
    let scope = scope.code();
    let detail = format!("the token lacks the scope '{scope}'");
    let challenge = format!(r#"Bearer realm="countersign", error="insufficient_scope", scope="{scope}""#);
    Problem::new(StatusCode::FORBIDDEN, "forbidden", "Not allowed", detail)
        .with("required_scope", scope)
        .challenged(&challenge)
}

fn invalid(flaws: Vec<Flaw>) -> Problem {
    let detail = match flaws.as_slice() {
        [one] => {
            let place = one.pointer.as_deref().or(one.parameter.as_deref()).unwrap_or_default();
            format!("{place} {}", one.detail).trim().to_owned()
        }
        several => format!("{} faults", several.len()),
    };
    Problem::new(StatusCode::UNPROCESSABLE_ENTITY, "validation-failed", "The request is not valid", detail)
        .flawed(flaws)
}

fn overloaded(detail: impl Into<String>) -> Problem {
    let mut problem = Problem::new(StatusCode::SERVICE_UNAVAILABLE, "overloaded", "Temporarily not available", detail);
    problem.retry_after_s = Some(RETRY_AFTER_S);
    problem
}

fn too_many_streams(limit: usize) -> Problem {
    let detail = format!("{limit} event streams of this actor are open: close some, or follow GET /v1/events");
    let mut problem = Problem::new(StatusCode::TOO_MANY_REQUESTS, "rate-limited", "Too many open streams", detail);
    problem.retry_after_s = Some(RETRY_AFTER_S);
    problem
}

/// A defect: its cause is logged here, once, and never told.
pub(super) fn internal(cause: &str) -> Problem {
    tracing::error!(cause, "a request failed by a defect");
    Problem::new(StatusCode::INTERNAL_SERVER_ERROR, "internal", "Internal error", "the server failed; see its log")
}

fn of_store(error: &StoreError) -> Problem {
    match error {
        StoreError::Unavailable(_) => {
            tracing::warn!(%error, "the database does not answer");
            overloaded("the database does not answer")
        }
        StoreError::Newer { .. } => {
            tracing::warn!(%error, "a later version has been here");
            overloaded("a later version of the server is needed for this; ask again")
        }
        StoreError::Rejected(_) | StoreError::Corrupt { .. } | StoreError::Misconfigured(_) => {
            internal(&error.to_string())
        }
    }
}

pub(super) fn conflict(code: &'static str, title: &'static str, detail: impl Into<String>) -> Problem {
    Problem::new(StatusCode::CONFLICT, code, title, detail)
}

fn of_command(error: CommandError, run: Option<&RunId>) -> Problem {
    match error {
        CommandError::Invalid(faults) => {
            invalid(faults.into_iter().map(|Fault { pointer, detail }| Flaw::at(pointer, detail)).collect())
        }
        CommandError::At { pointer, why } => {
            let problem = of_command(*why, run);
            let flaw = Flaw::at(pointer, problem.detail.clone());
            problem.flawed(vec![flaw])
        }
        CommandError::NotFound => ApiError::NotFound("there is no such run").problem(),
        CommandError::CallNotFound => ApiError::NotFound("there is no such receipt").problem(),
        CommandError::Missing(what) => ApiError::NotFound(what).problem(),
        CommandError::SecretInUse(servers) => {
            let detail = format!("registered servers are told it: {}", servers.join(", "));
            conflict("secret-in-use", "The secret is in use", detail).with("servers", servers)
        }
        CommandError::NameDeclared => {
            conflict("name-declared", "The name is taken", "the operator declares a server of this name for everybody")
        }
        CommandError::NotEvaluated(why) => overloaded(&why),
        CommandError::VersionExists => {
            conflict("version-exists", "The version exists", "it is published with other content, and never changes")
        }
        CommandError::VersionDeprecated(version) => {
            let detail = format!("version {version} is deprecated: no new runs are made of it");
            conflict("version-deprecated", "The version is deprecated", detail)
        }
        CommandError::NothingBefore => {
            conflict("nothing-before", "Nothing to go back to", "no other version was active before")
        }
        CommandError::NotLookedUp(_) => overloaded("the database does not answer"),
        CommandError::InputNotFound => ApiError::NotFound("there is no such input").problem(),
        CommandError::RunExists => conflict("run-exists", "The id is taken", "a run of this id exists")
            .linked(run.map(links::to_run).into_iter().collect()),
        CommandError::KeyReused => Problem::new(
            StatusCode::UNPROCESSABLE_ENTITY,
            "idempotency-key-reused",
            "The Idempotency-Key was used before",
            "the Idempotency-Key was used with another body",
        ),
        CommandError::ApprovalDecided(approval) => {
            let detail = format!("the approval is {}", approval.status.code());
            conflict("already-decided", "The approval is decided", detail)
                .linked(vec![links::to_run(&approval.run_id)])
                .with("approval", serde_json::to_value(*approval).unwrap_or_default())
        }
        CommandError::TokenRefused(detail) => {
            Problem::new(StatusCode::FORBIDDEN, "approval-token-refused", "Another approval token", detail)
        }
        CommandError::Refused(refusal) => refused::of_refusal(refusal, run),
        CommandError::Unreachable(unreachable) => {
            let detail = unreachable.to_string();
            Problem::new(StatusCode::BAD_GATEWAY, "mcp-unreachable", "An MCP server cannot be read", detail)
                .with("server", unreachable.server)
                .linked(run.map(links::resume).into_iter().collect())
        }
        CommandError::Store(error) => of_store(&error),
        CommandError::Interrupted => ApiError::Internal("a command was interrupted").problem(),
        CommandError::Contended => overloaded("the run changes faster than the request can be decided"),
    }
}
