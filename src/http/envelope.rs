//! All of a run in one document, however large its results are: the lists are written page by page, as fast as the caller
//! reads. A fault of the store after the beginning cuts the document off, so that no half of it reads as the whole.

use std::sync::Arc;

use axum::body::Body;
use axum::response::{IntoResponse as _, Response};
use bytes::Bytes;
use futures::Stream;
use http::{HeaderValue, header};
use serde::Serialize;

use super::Api;
use super::bindings::BindingRevision;
use super::problem::ApiError;
use super::receipts::Receipt;
use super::views::{EnvelopeView, MessageView, Run};
use crate::auth::Caller;
use crate::run::binding::Binding;
use crate::store::{FoundCall, RunView, StoreError};

/// Rows that are read at once; a page of large ones holds fewer.
const PAGE: u32 = 200;

/// How the document goes on after its messages when both lists are empty, and how each list ends.
const EMPTY: &str = "],\"receipts\":[]}";
const RECEIPTS: &str = "],\"receipts\":[";
const END: &str = "]}";

/// The document.
///
/// # Errors
/// The store's, as long as nothing is written.
pub(super) async fn envelope(api: Arc<Api>, caller: Caller, run: RunView) -> Result<Response, ApiError> {
    let bindings = every_binding(&api, &caller, &run).await?;
    let shown = Run::of(&api, &caller.tenant, run.clone());
    let view = EnvelopeView { run: shown, bindings, messages: Vec::new(), receipts: Vec::new() };
    let text = serde_json::to_string(&view).map_err(|fault| unshown("run", &fault))?;
    let head = text.strip_suffix(EMPTY).map(str::to_owned).ok_or_else(|| unshown("run", &"its lists come last"))?;
    let pages = Pages { api, caller, run, at: Place::Messages(0), is_first: true };
    let body = futures::stream::once(async move { Ok(Bytes::from(head)) });
    let body = Body::from_stream(futures::StreamExt::chain(body, pages.pieces()));
    let kind = (header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
    Ok(([kind], body).into_response())
}

/// What is written next.
enum Place {
    /// Messages from this position.
    Messages(u32),
    /// Receipts after this turn and position.
    Receipts(Option<(u32, u32)>),
    /// Nothing.
    End,
}

struct Pages {
    api: Arc<Api>,
    caller: Caller,
    run: RunView,
    at: Place,
    /// Whether nothing of the list is written.
    is_first: bool,
}

impl Pages {
    fn pieces(self) -> impl Stream<Item = Result<Bytes, StoreError>> {
        futures::stream::try_unfold(self, |mut pages| async move {
            let piece = pages.next().await?;
            Ok(piece.map(|piece| (Bytes::from(piece), pages)))
        })
    }

    async fn next(&mut self) -> Result<Option<String>, StoreError> {
        let (tenant, uid) = (&self.caller.tenant, self.run.uid);
        match self.at {
            Place::Messages(from) => {
                let page = self.api.store.message_list(tenant, uid, from, PAGE).await?;
                let Some(last) = page.last().map(|message| message.position) else {
                    (self.at, self.is_first) = (Place::Receipts(None), true);
                    return Ok(Some(RECEIPTS.to_owned()));
                };
                self.at = Place::Messages(last.saturating_add(1));
                self.list(page.into_iter().map(MessageView::from)).map(Some)
            }
            Place::Receipts(after) => {
                let page = self.api.store.receipt_list(tenant, uid, after, PAGE).await?;
                let Some(last) = page.last().map(|call| (call.key.turn, call.key.position)) else {
                    self.at = Place::End;
                    return Ok(Some(END.to_owned()));
                };
                self.at = Place::Receipts(Some(last));
                let (run_id, ended) = (self.run.id.clone(), self.run.head.status.is_terminal());
                let found = move |call| Receipt::new(FoundCall { run_id: run_id.clone(), uid, ended, call });
                self.list(page.into_iter().map(found)).map(Some)
            }
            Place::End => Ok(None),
        }
    }

    /// Some of a list, as it stands in the document.
    fn list<T: Serialize>(&mut self, items: impl Iterator<Item = T>) -> Result<String, StoreError> {
        let mut text = String::new();
        for item in items {
            if !std::mem::take(&mut self.is_first) {
                text.push(',');
            }
            text += &serde_json::to_string(&item).map_err(|fault| unshown("row", &fault))?;
        }
        Ok(text)
    }
}

fn unshown(what: &'static str, fault: &impl ToString) -> StoreError {
    StoreError::Corrupt { what, detail: fault.to_string() }
}

async fn every_binding(api: &Api, caller: &Caller, run: &RunView) -> Result<Vec<BindingRevision>, ApiError> {
    let (mut all, mut before) = (Vec::new(), None::<Binding>);
    loop {
        let after = before.as_ref().map_or(0, |binding| binding.revision);
        let page = api.store.binding_list(&caller.tenant, run.uid, after, PAGE).await?;
        if page.is_empty() {
            return Ok(all);
        }
        for binding in page {
            all.push(BindingRevision::new(binding.clone(), before.as_ref()));
            before = Some(binding);
        }
    }
}
