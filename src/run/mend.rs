//! JSON text that a strict reader refuses for a character alone, made readable: a server that answered has answered,
//! whatever one of its texts holds. Changes nothing that reads as it stands, and no structure.
//!
//! What is mended, each inside of texts only: half of a surrogate pair written as an escape, and bytes that are no
//! UTF-8, become U+FFFD; a control character that stands there bare becomes its escape. A mark of byte order before
//! the text goes.

use std::borrow::Cow;

/// What stands for a character that is none, as an escape.
const REPLACEMENT: &[u8] = b"\\ufffd";

/// The mark of byte order, in UTF-8.
const BOM: &[u8] = b"\xef\xbb\xbf";

/// The text as a strict reader takes it; borrowed where there is nothing to mend.
pub fn mended(text: &[u8]) -> Cow<'_, [u8]> {
    let text = text.strip_prefix(BOM).unwrap_or(text);
    if is_whole(text) {
        return Cow::Borrowed(text);
    }
    let valid = String::from_utf8_lossy(text);
    let mut mender = Mender { text: valid.as_bytes(), at: 0, out: Vec::with_capacity(text.len()) };
    mender.run();
    Cow::Owned(mender.out)
}

/// The same of a text.
pub fn mended_text(text: &str) -> Cow<'_, str> {
    let readable = mended(text.as_bytes());
    if readable.len() == text.len() && matches!(readable, Cow::Borrowed(_)) {
        return Cow::Borrowed(text);
    }
    Cow::Owned(String::from_utf8_lossy(&readable).into_owned())
}

/// Bytes that come in pieces, as text: what is no UTF-8 becomes U+FFFD, whatever the pieces.
#[derive(Debug, Default)]
pub struct Utf8Pieces {
    /// The beginning of a character whose rest has not come.
    begun: Vec<u8>,
}

impl Utf8Pieces {
    /// The next piece, up to the last whole character.
    pub fn push(&mut self, piece: &[u8]) -> Vec<u8> {
        let mut bytes = std::mem::take(&mut self.begun);
        bytes.extend_from_slice(piece);
        let mut text = Vec::with_capacity(bytes.len());
        let mut chunks = bytes.utf8_chunks().peekable();
        while let Some(chunk) = chunks.next() {
            text.extend_from_slice(chunk.valid().as_bytes());
            let odd = chunk.invalid();
            if chunks.peek().is_none() && std::str::from_utf8(odd).is_err_and(|fault| fault.error_len().is_none()) {
                self.begun = odd.to_vec();
            } else if !odd.is_empty() {
                text.extend_from_slice(char::REPLACEMENT_CHARACTER.encode_utf8(&mut [0; 4]).as_bytes());
            }
        }
        text
    }
}

/// Whether certainly nothing is to be mended: most texts, found out in one pass.
fn is_whole(text: &[u8]) -> bool {
    let escaped_surrogate = text.windows(3).any(|signs| matches!(signs, [b'\\', b'u', b'd' | b'D']));
    let control = text.iter().any(|byte| *byte < b' ');
    !escaped_surrogate && !control && std::str::from_utf8(text).is_ok()
}

struct Mender<'a> {
    text: &'a [u8],
    at: usize,
    out: Vec<u8>,
}

impl Mender<'_> {
    fn run(&mut self) {
        let mut quoted = false;
        while let Some(byte) = self.text.get(self.at).copied() {
            match byte {
                b'"' => quoted = !quoted,
                b'\\' if quoted => {
                    self.escape();
                    continue;
                }
                0..b' ' if quoted => {
                    self.out.extend_from_slice(format!("\\u{byte:04x}").as_bytes());
                    self.at = self.at.saturating_add(1);
                    continue;
                }
                _ => {}
            }
            self.copy(1);
        }
    }

    /// One escape, or the two that make a character.
    fn escape(&mut self) {
        match self.surrogate(self.at) {
            Some(0xd800..=0xdbff) if matches!(self.surrogate(self.at.saturating_add(6)), Some(0xdc00..=0xdfff)) => {
                self.copy(12);
            }
            Some(_) => {
                self.out.extend_from_slice(REPLACEMENT);
                self.at = self.at.saturating_add(6);
            }
            None => self.copy(2),
        }
    }

    /// The half of a pair that is escaped at a place.
    fn surrogate(&self, at: usize) -> Option<u16> {
        let escape = self.text.get(at..at.saturating_add(6))?.strip_prefix(b"\\u")?;
        let digits =
            std::str::from_utf8(escape).ok().filter(|text| text.bytes().all(|sign| sign.is_ascii_hexdigit()))?;
        u16::from_str_radix(digits, 16).ok().filter(|unit| (0xd800..=0xdfff).contains(unit))
    }

    fn copy(&mut self, bytes: usize) {
        let end = self.at.saturating_add(bytes).min(self.text.len());
        self.out.extend_from_slice(self.text.get(self.at..end).unwrap_or_default());
        self.at = end;
    }
}

#[cfg(test)]
mod tests {
    use serde_json::Value;

    use super::*;

    #[track_caller]
    fn reads(text: &[u8], value: &str) {
        let mended = mended(text);
        let read: Value = serde_json::from_slice(&mended).unwrap_or_else(|fault| panic!("{fault}: {mended:?}"));
        assert_eq!(read, Value::from(value), "{:?}", String::from_utf8_lossy(text));
    }

    #[test]
    fn field_a015_half_a_pair_is_replaced_and_a_whole_one_stays() {
        reads(br#""a\ud800b""#, "a\u{fffd}b");
        reads(br#""\uDC00""#, "\u{fffd}");
        reads(br#""\ud83d\ude00\ud83d""#, "\u{1f600}\u{fffd}");
        reads(br#""\ud800\ud83d\ude00""#, "\u{fffd}\u{1f600}");
        reads(br#""\ud800\u0041""#, "\u{fffd}A");
        // A backslash before it makes it no escape.
        reads(br#""\\ud800""#, "\\ud800");
        reads(br#""\\\ud800\"""#, "\\\u{fffd}\"");
    }

    #[test]
    fn bytes_that_are_no_text_and_bare_control_characters_are_made_readable() {
        reads(b"\"a\xff\xc3\"", "a\u{fffd}\u{fffd}");
        reads(b"\"a\x00\tb\nc\"", "a\0\tb\nc");
        reads(b"\xef\xbb\xbf\"a\"", "a");
    }

    #[test]
    fn what_reads_as_it_stands_is_not_touched() {
        for text in [r#"{"a":"\ud83d\ude00","b":[1.0,"x\n"]}"#, "{\n\t\"a\": \"b\"\r\n}", "[18446744073709551617]"] {
            assert_eq!(mended(text.as_bytes()).as_ref(), text.as_bytes());
        }
        assert!(matches!(mended(br#"{"a":"b"}"#), Cow::Borrowed(_)));
        assert!(matches!(mended_text(r#"{"a":"b"}"#), Cow::Borrowed(_)));
    }

    #[test]
    fn pieces_are_cut_inside_of_characters_and_make_the_same_text() {
        let whole = "a\u{e4}\u{4e16}\u{1f600}".as_bytes();
        let bad = [whole, b"\xff\xf0\x9f(", whole].concat();
        for cut in 0..=bad.len() {
            let mut pieces = Utf8Pieces::default();
            let text = [pieces.push(&bad[..cut]), pieces.push(&bad[cut..])].concat();
            assert_eq!(text, String::from_utf8_lossy(&bad).as_bytes(), "{cut}");
        }
    }

    #[test]
    fn what_is_no_json_stays_none() {
        for text in [&b"{\"a\":"[..], b"\"\\ud8", b"\"\\u", b"<html>\xff", b"\"\\"] {
            assert!(serde_json::from_slice::<Value>(&mended(text)).is_err(), "{text:?}");
        }
    }
}
