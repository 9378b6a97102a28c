//! The stream on which a server of the older era says what no request asked for.

use std::collections::HashMap;
use std::sync::Arc;

use futures::stream::BoxStream;
use http::{HeaderName, HeaderValue};
use rmcp::transport::streamable_http_client::StreamableHttpError;

use super::transport::{SseEvent, TrackedClient};
use super::wire::{EVENT_STREAM, Fault, LAST_EVENT, fault, headers_of, is_kind};

impl TrackedClient {
    /// Opens the stream, or goes on with it behind an event.
    pub(super) async fn listen(
        &self,
        session: Option<Arc<str>>,
        last_event: Option<String>,
        custom: HashMap<HeaderName, HeaderValue>,
    ) -> Result<BoxStream<'static, SseEvent>, Fault> {
        let is_first = last_event.is_none();
        if self.is_flooded() || !self.listening().turn(last_event.as_deref()).await {
            return Err(StreamableHttpError::ServerDoesNotSupportSse);
        }
        let mut headers = headers_of(custom, session.as_deref())?;
        if let Some(event) = last_event {
            let value =
                HeaderValue::try_from(event).map_err(|_invalid| fault("an event id that no header can carry"))?;
            headers.insert(LAST_EVENT, value);
        }
        let response = self.get_authorized(headers).await;
        if !response.as_ref().is_ok_and(|response| response.status().is_success()) {
            self.ears().closed();
        }
        let response = response?;
        let status = response.status();
        // A client error does not go away by asking again; the library ends the stream on this error only.
        if status.is_client_error() || (status.is_success() && !is_kind(response.headers(), EVENT_STREAM)) {
            return Err(StreamableHttpError::ServerDoesNotSupportSse);
        }
        if !status.is_success() {
            return Err(fault(format!("the server answered HTTP {} to a stream request", status.as_u16())));
        }
        if is_first {
            self.ears().opened();
        }
        Ok(self.events(response, None, false))
    }
}
