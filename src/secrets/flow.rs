//! Takes secrets out of text that comes in pieces: one that is cut by a border between two pieces is found too.

use super::redact::{REDACTED, Redactor};

/// One text while it comes. The same text comes out whatever its pieces are.
#[derive(Debug)]
pub struct Flow {
    redactor: Redactor,
    /// The end of what came, as far as a secret could begin there.
    held: String,
}

impl Flow {
    /// Of a text that has not begun.
    pub const fn new(redactor: Redactor) -> Self {
        Self { redactor, held: String::new() }
    }

    /// The next piece, as far as it is certain that no secret stands there.
    pub fn push(&mut self, piece: &str) -> String {
        self.held.push_str(piece);
        self.pass(false)
    }

    /// What is left, once no more comes.
    pub fn finish(&mut self) -> String {
        self.pass(true)
    }

    /// From the left; secrets that overlap are one.
    fn pass(&mut self, is_whole: bool) -> String {
        let text = std::mem::take(&mut self.held);
        if self.redactor.is_empty() {
            return text;
        }
        let mut clean = String::with_capacity(text.len());
        let mut rest = text.as_str();
        while let Some(next) = rest.chars().next() {
            let Some(taken) = self.taken(rest, is_whole) else {
                rest.clone_into(&mut self.held);
                break;
            };
            match taken {
                0 => clean.push(next),
                _ => clean.push_str(REDACTED),
            }
            rest = rest.get(taken.max(next.len_utf8())..).unwrap_or_default();
        }
        clean
    }

    /// How much of the text is secrets, from its beginning on; `None`: what comes next may decide.
    fn taken(&self, text: &str, is_whole: bool) -> Option<usize> {
        let (mut end, mut at) = (0, 0);
        loop {
            let (longest, may_go_on) = self.redactor.at_start_of(text.get(at..).unwrap_or_default());
            if may_go_on && !is_whole {
                return None;
            }
            end = end.max(at + longest.unwrap_or(0));
            at += text.get(at..).and_then(|rest| rest.chars().next()).map_or(1, char::len_utf8);
            if at >= end {
                return Some(end);
            }
        }
    }
}

impl Redactor {
    /// A whole text as a flow of it reads.
    pub fn flowed(&self, text: &str) -> String {
        let mut flow = Flow::new(self.clone());
        flow.held.push_str(text);
        flow.finish()
    }
}

#[cfg(test)]
mod tests {
    use secrecy::SecretString;

    use super::*;

    fn redactor(values: &[&str]) -> Redactor {
        let values: Vec<SecretString> = values.iter().map(|value| SecretString::from(*value)).collect();
        Redactor::of(&values)
    }

    #[test]
    fn a_secret_is_found_wherever_the_text_is_cut() {
        let redactor = redactor(&["canary-12", "canary-1234", "canäry-\u{1f600}"]);
        for (text, clean) in [
            ("say canary-12!", "say [redacted]!"),
            ("canary-1234canary-123", "[redacted][redacted]3"),
            ("canary-canary-12", "canary-[redacted]"),
            ("canäry-\u{1f600} canäry-", "[redacted] canäry-"),
            ("nothing here", "nothing here"),
            ("", ""),
        ] {
            assert_eq!(redactor.flowed(text), clean);
            let cuts: Vec<usize> = (0..=text.len()).filter(|at| text.is_char_boundary(*at)).collect();
            for first in &cuts {
                for second in cuts.iter().filter(|second| *second >= first) {
                    let mut flow = Flow::new(redactor.clone());
                    let mut out = String::new();
                    for piece in [text.get(..*first), text.get(*first..*second), text.get(*second..)] {
                        out.push_str(&flow.push(piece.unwrap()));
                    }
                    out.push_str(&flow.finish());
                    assert_eq!(out, clean, "{first} {second}");
                }
            }
        }
    }

    #[test]
    fn what_cannot_be_a_secret_is_not_held_back() {
        let mut flow = Flow::new(redactor(&["canary-12"]));
        assert_eq!(flow.push("hello "), "hello ");
        assert_eq!(flow.push("can"), "");
        assert_eq!(flow.push("dy"), "candy");
        assert_eq!(flow.finish(), "");
    }
}
