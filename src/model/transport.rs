//! Carries a request to a provider and bounds what comes back. It knows HTTP and nothing of models.

use bytes::Bytes;
use futures::StreamExt as _;
use http::{HeaderMap, Request, Response, StatusCode, header};
use rig_core::http_client::{
    BoxedStream, Error, HttpClientExt, LazyBody, MultipartForm, Result as HttpResult, StreamingResponse,
};
use url::Url;

use crate::net::EgressClient;

use crate::run::mend::mended;

/// The most bytes of one streamed turn; longer than any model writes.
const MAX_STREAM_BYTES: usize = 32 * 1024 * 1024;

/// The most bytes that are read of an answer that is no stream: enough for every error text.
const MAX_ERROR_BYTES: usize = 64 * 1024;

/// The library's view of our HTTP client. Redirects, time limits and the address check are the client's own.
#[derive(Clone, Debug)]
pub(super) struct Transport {
    client: EgressClient,
}

/// The provider streamed more than a turn can hold.
#[derive(Clone, Copy, Debug, thiserror::Error)]
#[error("the answer is longer than {} MiB", MAX_STREAM_BYTES / (1024 * 1024))]
pub(super) struct TooLong;

/// The library wants to make a kind of request that no turn needs.
#[derive(Clone, Copy, Debug, thiserror::Error)]
#[error("a request that is not streamed")]
struct Unmade;

impl Transport {
    pub(super) fn new(client: EgressClient) -> Self {
        Self { client }
    }
}

impl HttpClientExt for Transport {
    fn send<T, U>(
        &self,
        _request: Request<T>,
    ) -> impl Future<Output = HttpResult<Response<LazyBody<U>>>> + Send + 'static
    where
        T: Into<Bytes> + Send,
        U: From<Bytes> + Send + 'static,
    {
        std::future::ready(Err(Error::instance(Unmade)))
    }

    fn send_multipart<U>(
        &self,
        _request: Request<MultipartForm>,
    ) -> impl Future<Output = HttpResult<Response<LazyBody<U>>>> + Send + 'static
    where
        U: From<Bytes> + Send + 'static,
    {
        std::future::ready(Err(Error::instance(Unmade)))
    }

    async fn send_streaming<T>(&self, request: Request<T>) -> HttpResult<StreamingResponse>
    where
        T: Into<Bytes> + Send,
    {
        let (parts, body) = request.into_parts();
        let body: Bytes = body.into();
        let url = Url::parse(&parts.uri.to_string()).map_err(Error::instance)?;
        let request = self.client.request(parts.method, &url).map_err(Error::instance)?;
        let answer = request.headers(parts.headers).body(body).send().await.map_err(transport_error)?;
        if answer.status() != StatusCode::OK || !is_event_stream(answer.headers()) {
            return Err(whole_answer(answer).await);
        }
        let mut response = Response::builder().status(answer.status());
        if let Some(headers) = response.headers_mut() {
            headers.clone_from(answer.headers());
        }
        Ok(response.body(bounded(answer))?)
    }
}

/// A failure without an answer. The address is left out: it may hold a query string.
fn transport_error(error: reqwest::Error) -> Error {
    Error::instance(error.without_url())
}

/// Whether the answer is a stream; some gateways name no content type at all.
fn is_event_stream(headers: &HeaderMap) -> bool {
    headers.get(header::CONTENT_TYPE).is_none_or(|value| {
        value.to_str().is_ok_and(|text| text.trim_start().to_ascii_lowercase().starts_with("text/event-stream"))
    })
}

/// An answer that is no stream, kept as an error with its status (also 200), headers and the start of its body.
async fn whole_answer(answer: reqwest::Response) -> Error {
    let status = answer.status();
    let headers = answer.headers().clone();
    let mut body = Vec::new();
    let mut chunks = answer.bytes_stream();
    while body.len() < MAX_ERROR_BYTES {
        match chunks.next().await {
            Some(Ok(chunk)) => body.extend_from_slice(&chunk),
            // The status says what happened; a body that breaks off only shortens the text.
            Some(Err(_)) | None => break,
        }
    }
    body.truncate(MAX_ERROR_BYTES);
    Error::non_success_with_details(status, headers, String::from_utf8_lossy(&body).into_owned())
}

#[expect(clippy::result_large_err, reason = "the error type is the library's")]
fn bounded(answer: reqwest::Response) -> BoxedStream {
    let (mut left, mut lines) = (MAX_STREAM_BYTES, Lines::default());
    let chunks = answer.bytes_stream().map(Some).chain(futures::stream::iter([None]));
    Box::pin(chunks.map(move |chunk| {
        let Some(chunk) = chunk else { return Ok(lines.rest()) };
        let chunk = chunk.map_err(transport_error)?;
        left = left.checked_sub(chunk.len()).ok_or_else(|| Error::instance(TooLong))?;
        Ok(lines.push(&chunk))
    }))
}

/// The lines of a stream, each made readable: a turn is not lost for half a character.
#[derive(Default)]
struct Lines(Vec<u8>);

impl Lines {
    /// The lines that this chunk ends.
    fn push(&mut self, chunk: &[u8]) -> Bytes {
        let Some(end) = chunk.iter().rposition(|byte| *byte == b'\n').map(|at| at.saturating_add(1)) else {
            self.0.extend_from_slice(chunk);
            return Bytes::new();
        };
        let (ended, begun) = chunk.split_at(end);
        let mut whole = std::mem::replace(&mut self.0, begun.to_vec());
        whole.extend_from_slice(ended);
        whole.split_inclusive(|byte| *byte == b'\n').flat_map(|line| mended(line).into_owned()).collect()
    }

    /// What comes after the last line.
    fn rest(&mut self) -> Bytes {
        Bytes::from(std::mem::take(&mut self.0))
    }
}
