//! Reads lines of bounded length from a pipe. Knows nothing of what they say.

use tokio::io::{AsyncRead, AsyncReadExt as _};

use crate::bulk::{Hold, Piece, Share};
use crate::mcp::outline::START;

/// One line, without its end.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Line {
    /// All of it.
    Whole(Vec<u8>),
    /// It is longer than lines may be; this is how it begins. The rest is passed over.
    TooLong(Vec<u8>),
}

impl Line {
    /// How much of it was kept, in bytes.
    pub(super) fn len(&self) -> usize {
        match self {
            Self::Whole(text) | Self::TooLong(text) => text.len(),
        }
    }
}

/// The lines of a pipe. What was read stays when a future of `next` is dropped.
pub(super) struct Lines<R> {
    pipe: R,
    read: Vec<u8>,
    /// So much of `read` holds no end of a line.
    seen: usize,
    max: usize,
    /// So much of a line that is too long is passed over at most.
    pass_over: usize,
    /// So much of one was passed over.
    passed_over: Option<usize>,
    has_ended: bool,
    /// What a long line takes; `None`: lines are short.
    piece: Option<Piece>,
}

impl<R: AsyncRead + Unpin> Lines<R> {
    /// Lines of at most `max` bytes. When one is longer, `pass_over` bytes of it may follow until it ends.
    pub(super) fn new(pipe: R, max: usize, pass_over: usize) -> Self {
        let (read, passed_over, has_ended) = (Vec::new(), None, false);
        Self { pipe, read, seen: 0, max, pass_over, passed_over, has_ended, piece: None }
    }

    /// The same, where a long line waits until it may be read on.
    pub(super) fn shared(pipe: R, max: usize, pass_over: usize, share: Share) -> Self {
        Self { piece: Some(Piece::new(share)), ..Self::new(pipe, max, pass_over) }
    }

    /// What is held for the line that came last.
    pub(super) fn take_hold(&mut self, line: &Line) -> Option<Hold> {
        self.piece.as_mut()?.whole(line.len())
    }

    /// The next line; `None` once the pipe is closed, or floods us without an end of a line.
    pub(super) async fn next(&mut self) -> Option<Line> {
        loop {
            if let Some(line) = self.take() {
                return Some(line);
            }
            if self.has_ended || self.passed_over.is_some_and(|bytes| bytes > self.pass_over) {
                self.has_ended = true;
                return None;
            }
            if let Some(piece) = &mut self.piece {
                piece.grow(self.read.len(), self.max).await;
            }
            match self.pipe.read_buf(&mut self.read).await {
                Ok(1..) => {}
                // What came before the end counts as a line.
                Ok(0) => {
                    self.has_ended = true;
                    let rest = std::mem::take(&mut self.read);
                    let is_line = !rest.is_empty() && self.passed_over.is_none();
                    return is_line.then_some(Line::Whole(rest));
                }
                Err(error) => {
                    tracing::debug!(%error, "a pipe of a process broke");
                    self.has_ended = true;
                    return None;
                }
            }
        }
    }

    /// A line of what was read.
    fn take(&mut self) -> Option<Line> {
        loop {
            let end = self.read.get(self.seen..)?.iter().position(|byte| *byte == b'\n').map(|at| self.seen + at);
            match (end, self.passed_over) {
                (Some(end), Some(_)) => {
                    self.cut(end);
                    self.passed_over = None;
                }
                (None, Some(bytes)) => {
                    self.passed_over = Some(bytes.saturating_add(self.read.len()));
                    self.read.clear();
                    self.seen = 0;
                    return None;
                }
                (Some(end), None) => {
                    let mut line = self.cut(end);
                    return Some(if line.len() > self.max {
                        line.truncate(START);
                        Line::TooLong(line)
                    } else {
                        Line::Whole(line)
                    });
                }
                (None, None) if self.read.len() > self.max => {
                    self.passed_over = Some(self.read.len());
                    let mut start = std::mem::take(&mut self.read);
                    start.truncate(START);
                    self.seen = 0;
                    return Some(Line::TooLong(start));
                }
                (None, None) => {
                    self.seen = self.read.len();
                    return None;
                }
            }
        }
    }

    /// Takes what stands before the end of a line.
    fn cut(&mut self, end: usize) -> Vec<u8> {
        let rest = self.read.split_off(end + 1);
        let mut line = std::mem::replace(&mut self.read, rest);
        self.seen = 0;
        line.truncate(end);
        if line.last() == Some(&b'\r') {
            line.pop();
        }
        line
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    async fn lines(text: &[u8], max: usize) -> Vec<Line> {
        let mut lines = Lines::new(text, max, 1_000_000);
        let mut found = Vec::new();
        while let Some(line) = lines.next().await {
            found.push(line);
        }
        found
    }

    fn whole(text: &str) -> Line {
        Line::Whole(text.as_bytes().to_vec())
    }

    #[tokio::test]
    async fn lines_end_with_any_kind_of_end_and_the_last_needs_none() {
        assert_eq!(lines(b"one\r\n\ntwo\nthree", 10).await, [whole("one"), whole(""), whole("two"), whole("three")]);
        assert_eq!(lines(b"", 10).await, []);
    }

    #[tokio::test]
    async fn a_line_that_is_too_long_is_named_once_and_the_next_one_reads() {
        let text = format!("{}\nnext\n", "x".repeat(50_000));
        let found = lines(text.as_bytes(), 10_000).await;
        assert_eq!(found, [Line::TooLong(vec![b'x'; START]), whole("next")]);
    }

    #[tokio::test]
    async fn a_line_without_an_end_ends_the_reading() {
        let mut lines = Lines::new(tokio::io::repeat(b'x'), 10_000, 50_000);
        assert_eq!(lines.next().await, Some(Line::TooLong(vec![b'x'; START])));
        assert_eq!(lines.next().await, None);
        assert_eq!(lines.next().await, None);
    }

    #[tokio::test]
    async fn what_was_read_stays_when_nobody_waits_for_it_any_more() {
        let (mut ours, theirs) = tokio::io::duplex(64);
        let mut lines = Lines::new(theirs, 100, 100);
        tokio::io::AsyncWriteExt::write_all(&mut ours, b"ha").await.unwrap();
        assert!(futures::FutureExt::now_or_never(lines.next()).is_none());
        tokio::io::AsyncWriteExt::write_all(&mut ours, b"lf\n").await.unwrap();
        assert_eq!(lines.next().await, Some(whole("half")));
    }
}
