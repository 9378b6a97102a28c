//! Finds big values in JSON text as `serde_json` prints it, and puts other pieces in their place. Texts are walked and
//! joined as texts, so every digit stays. What is cut out and why is `blobs`.

use std::ops::Range;

use super::blobs::{LIMIT, NOTHING, Places};

/// A text with other pieces in some places.
pub(super) struct Joined<'a> {
    text: &'a str,
    out: String,
    copied: usize,
}

impl<'a> Joined<'a> {
    pub(super) const fn new(text: &'a str) -> Self {
        Self { text, out: String::new(), copied: 0 }
    }

    /// Ranges come in order.
    pub(super) fn put(&mut self, range: Range<usize>, piece: &str) {
        self.out.push_str(self.text.get(self.copied..range.start).unwrap_or_default());
        self.out.push_str(piece);
        self.copied = range.end;
    }

    pub(super) fn finish(mut self) -> String {
        self.out.push_str(self.text.get(self.copied..).unwrap_or_default());
        self.out
    }
}

/// Walks through JSON text as `serde_json` prints it, and finds values: those to cut, or those `wanted`.
pub(super) struct Walk<'a> {
    text: &'a str,
    at: usize,
    place: String,
    pub(super) wanted: Option<&'a Places>,
    pub(super) found: Vec<(String, Range<usize>)>,
}

impl<'a> Walk<'a> {
    pub(super) fn new(text: &'a str, root: &str) -> Self {
        Self { text, at: 0, place: root.to_owned(), wanted: None, found: Vec::new() }
    }

    fn peek(&self) -> Option<u8> {
        self.text.as_bytes().get(self.at).copied()
    }

    /// One value; answers how many of its bytes are cut out.
    pub(super) fn value(&mut self) -> usize {
        let (start, found) = (self.at, self.found.len());
        let cut_inside = match self.peek() {
            Some(b'{') => self.members(),
            Some(b'[') => self.items(),
            Some(b'"') => self.skip_text(),
            _ => self.skip_word(),
        };
        let range = start..self.at;
        match self.wanted {
            Some(wanted) => {
                if self.text.get(range.clone()) == Some(NOTHING) && wanted.contains_key(&self.place) {
                    self.found.push((self.place.clone(), range));
                }
                0
            }
            None if range.len().saturating_sub(cut_inside) > LIMIT && !self.place.is_empty() => {
                // All of it goes, also what was cut out inside.
                self.found.truncate(found);
                let bytes = range.len();
                self.found.push((self.place.clone(), range));
                bytes
            }
            None => cut_inside,
        }
    }

    fn members(&mut self) -> usize {
        let mut cut = 0;
        self.at += 1;
        while let Some(sign) = self.peek() {
            match sign {
                b'"' => {
                    let start = self.at;
                    self.skip_text();
                    let key = self.text.get(start..self.at).and_then(|key| serde_json::from_str(key).ok());
                    let key: String = key.unwrap_or_default();
                    self.at += 1; // the colon
                    cut += self.child(&key.replace('~', "~0").replace('/', "~1"));
                }
                b'}' => {
                    self.at += 1;
                    break;
                }
                _ => self.at += 1,
            }
        }
        cut
    }

    fn items(&mut self) -> usize {
        let (mut cut, mut nth) = (0, 0_usize);
        self.at += 1;
        while let Some(sign) = self.peek() {
            match sign {
                b']' => {
                    self.at += 1;
                    break;
                }
                b',' => self.at += 1,
                _ => {
                    let start = self.at;
                    cut += self.child(&nth.to_string());
                    nth += 1;
                    // Text that is no JSON must not hold the walk up.
                    self.at = self.at.max(start + 1);
                }
            }
        }
        cut
    }

    fn child(&mut self, step: &str) -> usize {
        let length = self.place.len();
        self.place.push('/');
        self.place.push_str(step);
        let cut = self.value();
        self.place.truncate(length);
        cut
    }

    fn skip_text(&mut self) -> usize {
        self.at += 1;
        while let Some(sign) = self.peek() {
            self.at += if sign == b'\\' { 2 } else { 1 };
            if sign == b'"' {
                break;
            }
        }
        0
    }

    fn skip_word(&mut self) -> usize {
        while self.peek().is_some_and(|sign| !matches!(sign, b',' | b']' | b'}')) {
            self.at += 1;
        }
        0
    }
}
