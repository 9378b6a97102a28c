//! What a process writes to stderr: read, so that it never blocks, and shown at `debug` only, without its secrets.

use std::sync::Arc;

use tokio::process::ChildStderr;

use super::StdioServer;
use super::lines::{Line, Lines};
use crate::secrets::Redactor;

/// Longest line that is looked at, in bytes.
const ERROR_LINE_MAX: usize = 4 * 1024;
/// Lines that are logged of one process.
const ERROR_LINES_MAX: usize = 200;
/// Shorter values are no secrets, and blotting them out would make the text unreadable.
const SECRET_MIN: usize = 4;

/// The error output of one process.
pub(super) struct Errors {
    server: Arc<StdioServer>,
    lines: Option<Lines<ChildStderr>>,
    logged: usize,
}

impl Errors {
    pub(super) fn new(server: &Arc<StdioServer>, pipe: ChildStderr) -> Self {
        let lines = Some(Lines::new(pipe, ERROR_LINE_MAX, usize::MAX));
        Self { server: Arc::clone(server), lines, logged: 0 }
    }

    /// Reads one line; never ends once there are no more.
    pub(super) async fn read_on(&mut self) {
        let Some(lines) = &mut self.lines else { return std::future::pending().await };
        let Some(line) = lines.next().await else {
            self.lines = None;
            return;
        };
        self.logged = self.logged.saturating_add(1);
        if self.logged <= ERROR_LINES_MAX && tracing::enabled!(tracing::Level::DEBUG) {
            let text = redacted(&self.server, &line);
            tracing::debug!(server = %self.server.name, text, "an MCP server says");
        }
    }
}

/// A line without the values that the operator gave the process to keep.
fn redacted(server: &StdioServer, line: &Line) -> String {
    let told = Redactor::of_at_least(SECRET_MIN, server.env.iter().map(|(_, value)| value));
    match line {
        Line::Whole(text) => told.text(&String::from_utf8_lossy(text)).into_owned(),
        Line::TooLong(start) => told.torn(&String::from_utf8_lossy(start)).into_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_process_says_is_shown_without_its_secrets() {
        let env = vec![("TOKEN".to_owned(), "hunter22".into()), ("MODE".to_owned(), "a".into())];
        let server = StdioServer { name: "s".to_owned(), command: String::new(), args: Vec::new(), env, cwd: None };
        let whole = Line::Whole(b"a bad token: hunter22!".to_vec());
        assert_eq!(redacted(&server, &whole), "a bad token: [redacted]!");
        assert_eq!(redacted(&server, &Line::TooLong(b"a bad token: hunter".to_vec())), "a bad token: [redacted]");
    }
}
