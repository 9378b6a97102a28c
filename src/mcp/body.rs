//! Reads answers, never more of them than a limit.

use bytes::Bytes;
use futures::stream::{BoxStream, StreamExt as _};
use rmcp::transport::streamable_http_client::SseError;
use sse_stream::{Sse, SseStream};

/// Why a body could not be read.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum BodyFault {
    /// Larger than the limit.
    TooLarge,
    /// The connection broke.
    Broken,
}

/// Reads a whole body.
pub(super) async fn read(response: reqwest::Response, max: usize) -> Result<Vec<u8>, BodyFault> {
    let mut whole = Vec::new();
    let mut chunks = response.bytes_stream();
    while let Some(chunk) = chunks.next().await {
        let chunk = chunk.map_err(|_broken| BodyFault::Broken)?;
        if whole.len().saturating_add(chunk.len()) > max {
            return Err(BodyFault::TooLarge);
        }
        whole.extend_from_slice(&chunk);
    }
    Ok(whole)
}

/// Reads the beginning of a body, as far as it comes.
pub(super) async fn prefix(response: reqwest::Response, max: usize) -> Vec<u8> {
    let mut start = Vec::new();
    let mut chunks = response.bytes_stream();
    while let Some(Ok(chunk)) = chunks.next().await {
        let room = max.saturating_sub(start.len());
        start.extend(chunk.iter().take(room));
        if start.len() >= max {
            break;
        }
    }
    start
}

/// The events of a stream. `observe` sees each before it is handed on, and ends the stream where it says `false`. A
/// single event above `max` bytes ends the stream after `overflow` was told.
pub(super) fn events(
    response: reqwest::Response,
    max: usize,
    observe: impl Fn(&Sse) -> bool + Send + 'static,
    overflow: impl Fn() + Send + 'static,
) -> BoxStream<'static, Result<Sse, SseError>> {
    let mut gauge = EventGauge::default();
    let chunks = response.bytes_stream().map(move |chunk| -> Result<Bytes, StreamFault> {
        let chunk = chunk.map_err(|_broken| StreamFault::Broken)?;
        if gauge.longest_after(&chunk) > max {
            overflow();
            return Err(StreamFault::TooLarge);
        }
        Ok(chunk)
    });
    let events = SseStream::from_bytes_stream(chunks);
    events
        .map(move |event| {
            let event = event?;
            if observe(&event) { Ok(event) } else { Err(SseError::Body(Box::new(StreamFault::TooLarge))) }
        })
        .boxed()
}

#[derive(Debug, thiserror::Error)]
enum StreamFault {
    #[error("the connection broke")]
    Broken,
    #[error("an event is over a limit")]
    TooLarge,
}

/// Counts the bytes since the last empty line, which ends an event.
#[derive(Default)]
struct EventGauge {
    event: usize,
    line: usize,
    comment: bool,
}

impl EventGauge {
    /// Takes one chunk; the largest size that an event in it has reached.
    fn longest_after(&mut self, chunk: &[u8]) -> usize {
        let mut longest = 0;
        for &byte in chunk {
            match byte {
                b'\n' => {
                    if self.line == 0 {
                        self.event = 0;
                    } else if self.comment {
                        // Comments keep a connection alive for hours and belong to no event.
                        self.event = self.event.saturating_sub(self.line);
                    }
                    (self.line, self.comment) = (0, false);
                }
                b'\r' => {}
                other => {
                    self.comment |= self.line == 0 && other == b':';
                    self.line += 1;
                    self.event += 1;
                    longest = longest.max(self.event);
                }
            }
        }
        longest
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(chunks: &[&str], longest: usize) {
        let mut gauge = EventGauge::default();
        let seen = chunks.iter().map(|chunk| gauge.longest_after(chunk.as_bytes())).max();
        assert_eq!(seen, Some(longest), "{chunks:?}");
    }

    #[test]
    fn the_gauge_measures_events_and_forgets_comments() {
        check(&["data: a\n\n"], 7);
        check(&["data: a\n\ndata: abc\n\n"], 9);
        check(&["data:", " a\n", "data: b\n\n"], 14);
        check(&["data: a\r\n\r\n", "id: 1\r\n\r\n"], 7);
        check(&[": ping\n", ": ping\n", ": ping\n\n", "data: a\n\n"], 7);
    }
}
