//! Reads answers, never more of them than a limit.

use bytes::Bytes;
use futures::stream::{self, BoxStream, StreamExt as _};
use rmcp::transport::streamable_http_client::SseError;
use sse_stream::{Sse, SseStream};

use super::outline::START;
use crate::bulk::{Held, Hold, Piece, SMALL, Share, aside};
use crate::run::mend::Utf8Pieces;

/// Why a body could not be read.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum BodyFault {
    /// Larger than the limit; how it begins.
    TooLarge(Vec<u8>),
    /// The connection broke.
    Broken,
}

/// Reads a whole body, and what is held for it.
pub(super) async fn read(
    response: reqwest::Response,
    max: usize,
    share: &Share,
) -> Result<(Vec<u8>, Option<Hold>), BodyFault> {
    let announced = response.content_length().and_then(|bytes| usize::try_from(bytes).ok());
    let most = announced.map_or(max, |bytes| bytes.min(max));
    let (mut whole, mut piece) = (Vec::new(), Piece::new(share.clone()));
    let mut chunks = response.bytes_stream();
    while let Some(chunk) = chunks.next().await {
        let chunk = chunk.map_err(|_broken| BodyFault::Broken)?;
        if whole.len().saturating_add(chunk.len()) > max {
            whole.extend(chunk.iter().take(START.saturating_sub(whole.len())));
            whole.truncate(START);
            return Err(BodyFault::TooLarge(whole));
        }
        whole.extend_from_slice(&chunk);
        piece.grow(whole.len(), most).await;
    }
    let hold = piece.whole(whole.len());
    Ok((whole, hold))
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

/// The events of a stream. `observe` sees each before it is handed on, with what is held for it, may change it, and ends
/// the stream where it says `false`. Of a
/// single event above `max` bytes only the beginning is handed on; `overflow` gets it first, and ends the stream by
/// answering `true`.
pub(super) fn events(
    response: reqwest::Response,
    (max, share): (usize, &Share),
    observe: impl Fn(&mut Sse, Option<Hold>) -> bool + Send + 'static,
    overflow: impl Fn(&[u8]) -> bool + Send + Sync + 'static,
) -> BoxStream<'static, Result<Sse, SseError>> {
    let held = Held::default();
    let reader = EventReader {
        chunks: response.bytes_stream().boxed(),
        gate: EventGate::new(max),
        text: Utf8Pieces::default(),
        share: share.clone(),
        held: held.clone(),
    };
    let chunks = stream::unfold((reader, overflow), |(mut reader, overflow)| async {
        let chunk = reader.next(&overflow).await?;
        Some((chunk, (reader, overflow)))
    });
    let events = SseStream::from_bytes_stream(chunks);
    events
        .map(move |event| {
            let mut event = event?;
            let bytes = event.data.as_ref().map_or(0, String::len);
            let hold = if bytes > SMALL { held.take() } else { None };
            let is_readable = aside(bytes, || observe(&mut event, hold));
            if is_readable { Ok(event) } else { Err(SseError::Body(Box::new(StreamFault::TooLarge))) }
        })
        .boxed()
}

/// The chunks of a stream as far as they belong to events.
struct EventReader {
    chunks: BoxStream<'static, reqwest::Result<Bytes>>,
    gate: EventGate,
    text: Utf8Pieces,
    share: Share,
    /// The bytes of the event that is being read.
    held: Held,
}

impl EventReader {
    async fn next(&mut self, overflow: &impl Fn(&[u8]) -> bool) -> Option<Result<Bytes, StreamFault>> {
        if self.gate.event > SMALL && self.held.bytes() == 0 {
            self.held.put(Some(self.share.clone().hold(self.gate.max).await));
        }
        let chunk = self.chunks.next().await?.map_err(|_broken| StreamFault::Broken);
        // One byte that is no text would end the stream, and with it what it answers.
        Some(chunk.and_then(|chunk| self.gate.pass(&chunk, overflow)).map(|kept| Bytes::from(self.text.push(&kept))))
    }
}

#[derive(Debug, thiserror::Error)]
enum StreamFault {
    #[error("the connection broke")]
    Broken,
    #[error("an event is over a limit")]
    TooLarge,
}

/// Lets the bytes of events through, of each up to a limit. Comments, which keep a connection alive for hours and
/// belong to no event, end here.
struct EventGate {
    max: usize,
    /// Bytes since the last empty line, which ends an event.
    event: usize,
    /// How the event begins.
    start: Vec<u8>,
    is_outgrown: bool,
    at_line_start: bool,
    in_comment: bool,
}

impl EventGate {
    fn new(max: usize) -> Self {
        Self { max, event: 0, start: Vec::new(), is_outgrown: false, at_line_start: true, in_comment: false }
    }

    fn pass(&mut self, chunk: &[u8], overflow: &impl Fn(&[u8]) -> bool) -> Result<Vec<u8>, StreamFault> {
        let mut kept = Vec::with_capacity(chunk.len().saturating_add(1));
        for &byte in chunk {
            let was_outgrown = self.is_outgrown;
            self.take(byte, &mut kept);
            if self.is_outgrown && !was_outgrown && overflow(&self.start) {
                return Err(StreamFault::TooLarge);
            }
        }
        Ok(kept)
    }

    fn take(&mut self, byte: u8, kept: &mut Vec<u8>) {
        if self.in_comment || (self.at_line_start && byte == b':') {
            self.in_comment = byte != b'\n';
            return;
        }
        if byte == b'\n' && self.at_line_start {
            // An event that was cut off ends in the middle of a line.
            kept.extend_from_slice(if self.is_outgrown { b"\n\n" } else { b"\n" });
            self.event = 0;
            self.start.clear();
            self.is_outgrown = false;
            return;
        }
        if byte != b'\r' {
            self.at_line_start = byte == b'\n';
            self.event = self.event.saturating_add(usize::from(byte != b'\n'));
        }
        self.is_outgrown |= self.event > self.max;
        if !self.is_outgrown {
            kept.push(byte);
            if self.start.len() < START {
                self.start.push(byte);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What a gate of 9 bytes lets through, and how often it met a larger event.
    #[track_caller]
    fn check(chunks: &[&str], kept: &str, outgrown: usize) {
        let mut gate = EventGate::new(9);
        let times = std::cell::Cell::new(0);
        let count = |_: &[u8]| {
            times.set(times.get() + 1);
            false
        };
        let passed: Vec<u8> = chunks.iter().flat_map(|chunk| gate.pass(chunk.as_bytes(), &count).unwrap()).collect();
        assert_eq!((String::from_utf8(passed).unwrap().as_str(), times.get()), (kept, outgrown), "{chunks:?}");
    }

    #[test]
    fn events_pass_comments_end_and_of_a_large_event_only_the_beginning_passes() {
        check(&["data: abc\n\n"], "data: abc\n\n", 0);
        check(&["data: abc\r\n\r\n", "data: abc\n\n"], "data: abc\r\n\r\ndata: abc\n\n", 0);
        check(&[": ping", " pong\n", ": ping\n\n", "data: a\n\n"], "\ndata: a\n\n", 0);
        check(&["data: abc", "d\ndata: e\n", "\ndata: f\n\n"], "data: abc\n\ndata: f\n\n", 1);
        check(&["data:", " a\n", ": a long comment\n", "data: b\n\n"], "data: a\nda\n\n", 1);
    }

    #[test]
    fn a_stream_ends_where_its_large_event_was_the_answer() {
        let mut gate = EventGate::new(9);
        let ends = |start: &[u8]| start == b"data: abc";
        assert!(gate.pass(b"data: a\n\ndata: abc", &ends).is_ok());
        assert!(gate.pass(b"d", &ends).is_err());
    }
}
