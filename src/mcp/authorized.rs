//! Requests with a token that is good, and once more with another when the server refuses that one. A call alone is given
//! back instead: its next attempt is the run's to say.

use std::collections::HashMap;
use std::time::Duration;

use http::{HeaderMap, HeaderName, HeaderValue, Method, StatusCode};
use rmcp::transport::streamable_http_client::StreamableHttpError;

use super::attempt::{Attempt, HttpRefusal, Stage};
use super::bearer::{Pass, required};
use super::transport::TrackedClient;
use super::wire::{Fault, IDEMPOTENCY_KEY, Post, Posted, cancellation, describe, fault, headers_of};
use crate::failpoint;
use crate::net::Challenge;

impl TrackedClient {
    pub(super) async fn post_authorized(&self, post: &Post, mut headers: HeaderMap) -> Posted {
        let mut pass = match Pass::of(self.bearer(), &mut headers).await {
            Ok(pass) => pass,
            Err(why) => return Err(post.turn_away(Stage::NotConnected(why.clone()), why)),
        };
        loop {
            self.start(post, &mut headers)?;
            let result = self.send_in_time(post, headers.clone(), &pass).await;
            let Err(StreamableHttpError::AuthRequired(challenge)) = &result else { return result };
            if post.is_call() {
                return Err(refused_for_its_token(post, pass.renew(challenge, &mut headers).await));
            }
            post.recall();
            if let Err(why) = pass.renew(challenge, &mut headers).await {
                let refusal = HttpRefusal { status: 401, message: Some(why.clone()), ..HttpRefusal::default() };
                return Err(post.turn_away(Stage::Status(refusal), why));
            }
        }
    }

    pub(super) async fn get_authorized(&self, mut headers: HeaderMap) -> Result<reqwest::Response, Fault> {
        let mut pass = Pass::of(self.bearer(), &mut headers).await.map_err(fault)?;
        loop {
            let request = self.request(Method::GET).map_err(|refusal| fault(refusal.to_string()))?;
            let response = request.headers(headers.clone()).send().await;
            let response = response.map_err(|error| fault(describe(&error)))?;
            if !pass.may_help(response.status()) {
                return Ok(response);
            }
            let challenge = required(Challenge::of(response.headers()));
            pass.renew(&challenge, &mut headers).await.map_err(fault)?;
        }
    }

    /// Tells the server that a call is not wanted any more, without ending our own wait for its answer.
    pub(super) async fn cancel_call(&self, attempt: &Attempt, patience: Duration) {
        let Some(route) = attempt.route() else { return };
        self.mark_told(&route.id);
        let message = cancellation(&route.id);
        let mut headers = route.headers;
        headers.remove(IDEMPOTENCY_KEY);
        let telling = async {
            // The call may have been out for longer than its token was good.
            if let Err(fault) = Pass::of(self.bearer(), &mut headers).await {
                tracing::debug!(%fault, "a cancellation goes with the token of its call");
            }
            match self.request(Method::POST) {
                Ok(request) => request.headers(headers).body(message).send().await.map_err(|error| describe(&error)),
                Err(refusal) => Err(refusal.to_string()),
            }
        };
        failpoint::pass("mcp.cancel.before");
        match tokio::time::timeout(patience, telling).await {
            Ok(Ok(_)) => {}
            Ok(Err(fault)) => tracing::debug!(%fault, "a cancellation could not be sent"),
            Err(_elapsed) => tracing::debug!("a cancellation was not taken in time"),
        }
        failpoint::pass("mcp.cancel.after");
    }

    /// Ends the session at the server.
    pub(super) async fn delete(&self, session: &str, custom: HashMap<HeaderName, HeaderValue>) -> Result<(), Fault> {
        // The server forgot it; telling it so again only makes noise.
        if self.session_lost() {
            return Ok(());
        }
        // One that may not be dialled any more is told nothing.
        let Ok(request) = self.request(Method::DELETE) else { return Ok(()) };
        let mut headers = headers_of(custom, Some(session))?;
        Pass::of(self.bearer(), &mut headers).await.map_err(fault)?;
        match request.headers(headers).send().await {
            Ok(_any_status) => Ok(()),
            Err(error) => {
                tracing::debug!(fault = %describe(&error), "a session could not be ended");
                Ok(())
            }
        }
    }
}

/// A call that is refused for its token is not sent again from here: every attempt of a call is said before it leaves.
fn refused_for_its_token(post: &Post, renewed: Result<(), String>) -> Fault {
    let message = renewed.as_ref().err().cloned();
    let refusal = HttpRefusal { status: 401, renewed: renewed.is_ok(), message, ..HttpRefusal::default() };
    post.settle(Stage::Status(refusal));
    fault("the server refused the token")
}

impl Pass<'_> {
    /// Whether a refusal may be helped by another token.
    pub(super) fn may_help(&self, status: StatusCode) -> bool {
        status == StatusCode::UNAUTHORIZED && self.may_renew()
    }

    /// Whether a refusal is about the token, whatever its words are.
    pub(super) fn explains(&self, status: StatusCode, challenge: Option<&Challenge>) -> bool {
        status == StatusCode::UNAUTHORIZED && self.is_needed() && challenge.is_some()
    }
}
