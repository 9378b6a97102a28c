//! Writes lines to a process, one at a time, and knows how much of one was taken. Knows nothing of what they say.

use bytes::Bytes;
use tokio::io::AsyncWriteExt as _;
use tokio::process::ChildStdin;
use tokio_util::sync::CancellationToken;

/// Why a message was not written.
#[derive(Debug, thiserror::Error)]
pub(in crate::mcp) enum PipeFault {
    /// It has no JSON form.
    #[error("a message cannot be written as JSON")]
    Unwritable,
    /// The call was given up, or may not leave any more.
    #[error("the call was given up before it was sent, or may not leave any more")]
    Withdrawn,
    /// The process is gone, or has closed its input.
    #[error("the process takes no input any more")]
    Closed,
}

/// The process's input. A line that was begun is finished before the next, whoever began it.
pub(super) struct Input {
    pipe: Option<ChildStdin>,
    rest: Bytes,
}

impl Input {
    pub(super) fn new(pipe: ChildStdin) -> Self {
        Self { pipe: Some(pipe), rest: Bytes::new() }
    }

    /// Closes the pipe.
    pub(super) fn close(&mut self) {
        self.pipe = None;
    }

    /// How much of the line that was begun is not written.
    pub(super) fn left(&self) -> usize {
        self.rest.len()
    }

    /// Puts a line where it is to be written from; answers its length.
    pub(super) fn begin(&mut self, text: &str) -> usize {
        self.rest = Bytes::from(format!("{text}\n"));
        self.rest.len()
    }

    /// Writes what is left of the line that was begun. What was not written stays when this future is dropped.
    pub(super) async fn finish(&mut self, gone: &CancellationToken) -> Result<(), PipeFault> {
        let Some(pipe) = self.pipe.as_mut().filter(|_| !gone.is_cancelled()) else { return Err(PipeFault::Closed) };
        while !self.rest.is_empty() {
            let written = tokio::select! {
                written = pipe.write_buf(&mut self.rest) => written,
                () = gone.cancelled() => return Err(PipeFault::Closed),
            };
            if !matches!(written, Ok(1..)) {
                gone.cancel();
                return Err(PipeFault::Closed);
            }
        }
        Ok(())
    }
}
