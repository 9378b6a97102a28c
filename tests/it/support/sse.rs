//! Reads server-sent events of a real server.

use std::time::Duration;

use futures::StreamExt as _;
use futures::stream::BoxStream;
use serde_json::Value;
use tokio::time::timeout;

/// An open stream.
pub(crate) struct Events {
    pieces: BoxStream<'static, reqwest::Result<bytes::Bytes>>,
    text: String,
}

impl Events {
    /// Of this answer, once its first frame is there: from then on nothing is missed.
    pub(crate) async fn of(answer: reqwest::Response) -> Self {
        assert_eq!(answer.status(), 200);
        let mut events = Self { pieces: answer.bytes_stream().boxed(), text: String::new() };
        assert_eq!(events.frame().await.as_deref(), Some("retry: 1000"));
        events
    }

    async fn frame(&mut self) -> Option<String> {
        loop {
            if let Some((frame, rest)) = self.text.split_once("\n\n") {
                let (frame, rest) = (frame.to_owned(), rest.to_owned());
                self.text = rest;
                return Some(frame);
            }
            let piece = timeout(Duration::from_secs(30), self.pieces.next()).await.expect("the stream goes on or ends");
            self.text.push_str(std::str::from_utf8(&piece?.unwrap()).unwrap());
        }
    }

    /// The next event; `None` at the end of the stream.
    pub(crate) async fn next(&mut self) -> Option<Value> {
        loop {
            let frame = self.frame().await?;
            if let Some(data) = frame.lines().find_map(|line| line.strip_prefix("data: ")) {
                return Some(serde_json::from_str(data).unwrap());
            }
        }
    }

    /// All events up to and with the first of this type.
    pub(crate) async fn until(&mut self, kind: &str) -> Vec<Value> {
        let mut events = Vec::new();
        loop {
            let event = self.next().await.unwrap_or_else(|| panic!("the stream ends before {kind}: {events:?}"));
            let found = event["type"] == kind;
            events.push(event);
            if found {
                return events;
            }
        }
    }
}
