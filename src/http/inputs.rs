//! Answers to what servers ask people.

use std::sync::Arc;

use axum::Json;
use axum::extract::State;

use super::Api;
use super::extract::{Checked, InputPath, Writer, asker, fetch};
use super::problem::ApiError;
use super::views::Run;
use crate::commands::AnswerInput;

/// Answer what a server asks.
///
/// `accept` gives the fields that the server asked for, checked against its schema; fields that are left out get their
/// defaults. `decline` and `cancel` tell the server that there will be none. The answer comes once it is stored, and is
/// told to the server once.
#[utoipa::path(
    post, path = "/v1/runs/{run_id}/inputs/{input_id}", operation_id = "input_answer", tag = "runs",
    request_body = AnswerInput, security(("bearer" = ["runs:write"])),
    params(
        ("run_id" = String, Path, description = "The run's name"),
        ("input_id" = String, Path, description = "The question, as in `pending.inputs`"),
    ),
    responses((status = 200, description = "The run as it stands with the answer", body = Run))
)]
pub(super) async fn input_answer(
    State(api): State<Arc<Api>>,
    Writer(caller): Writer,
    InputPath { run, input_id }: InputPath,
    body: Checked<AnswerInput>,
) -> Result<Json<Run>, ApiError> {
    let answered = api.commands.answer_input(&asker(&caller), &run, &input_id, body.value).await;
    answered.map_err(|error| ApiError::Command(error, Some(run.clone())))?;
    Ok(Json(Run::of(&api, &caller.tenant, fetch(&api, &caller, &run).await?)))
}
