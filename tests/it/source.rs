//! Reads this project's own files: the words of Rust source without comments and texts, and the modules they stand in.

use std::fs;
use std::path::{Path, PathBuf};

/// One word or sign of Rust source.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Token {
    /// An identifier or keyword, or one sign.
    pub(crate) text: String,
    /// From 1.
    pub(crate) line: usize,
}

/// One file, with its path below the root that was read.
#[derive(Clone, Debug)]
pub(crate) struct SourceFile {
    /// With `/` between the parts, e.g. `store/sqlite/runs.rs`.
    pub(crate) path: String,
    pub(crate) text: String,
}

impl SourceFile {
    pub(crate) fn made_up(path: &str, text: &str) -> Self {
        Self { path: path.to_owned(), text: text.to_owned() }
    }

    /// The parts of the module path: `store/mod.rs` is `[store]`, `clock.rs` is `[clock]`, `main.rs` is `[main]`.
    pub(crate) fn module(&self) -> Vec<&str> {
        let path = self.path.strip_suffix(".rs").unwrap_or(&self.path);
        let path = path.strip_suffix("/mod").unwrap_or(path);
        path.split('/').collect()
    }

    /// The first part of the module path: what the import table speaks of.
    pub(crate) fn area(&self) -> String {
        self.module().first().copied().unwrap_or_default().to_owned()
    }

    /// Whether the whole file is compiled for tests only: `tests.rs`, or a file in a folder `tests`.
    pub(crate) fn is_for_tests(&self) -> bool {
        self.module().contains(&"tests")
    }

    pub(crate) fn tokens(&self) -> Vec<Token> {
        tokens(&self.text)
    }
}

pub(crate) fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

pub(crate) fn read(path: &str) -> String {
    fs::read_to_string(root().join(path)).unwrap_or_else(|error| panic!("{path}: {error}"))
}

/// Every Rust file below a folder of the project, sorted by path.
pub(crate) fn rust_files(folder: &str) -> Vec<SourceFile> {
    let base = root().join(folder);
    let mut found = Vec::new();
    collect(&base, &base, &mut found);
    found.sort_by(|a, b| a.path.cmp(&b.path));
    assert!(!found.is_empty(), "no Rust file below {folder}");
    found
}

fn collect(base: &Path, folder: &Path, found: &mut Vec<SourceFile>) {
    for entry in fs::read_dir(folder).expect("a folder") {
        let path: PathBuf = entry.expect("an entry").path();
        if path.is_dir() {
            collect(base, &path, found);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            let below = path.strip_prefix(base).expect("below the base").to_string_lossy().replace('\\', "/");
            found.push(SourceFile { path: below, text: fs::read_to_string(&path).expect("UTF-8 source") });
        }
    }
}

/// The words and signs of a source; comments, texts, characters and lifetimes are left out.
pub(crate) fn tokens(source: &str) -> Vec<Token> {
    let chars: Vec<char> = source.chars().collect();
    let mut reader = Reader { chars, at: 0, line: 1 };
    let mut found = Vec::new();
    while let Some(sign) = reader.peek(0) {
        let line = reader.line;
        if let Some(text) = reader.word_or_sign(sign) {
            found.push(Token { text, line });
        }
    }
    found
}

struct Reader {
    chars: Vec<char>,
    at: usize,
    line: usize,
}

impl Reader {
    fn peek(&self, ahead: usize) -> Option<char> {
        self.chars.get(self.at + ahead).copied()
    }

    fn step(&mut self) -> Option<char> {
        let sign = self.peek(0)?;
        self.at += 1;
        self.line += usize::from(sign == '\n');
        Some(sign)
    }

    fn word_or_sign(&mut self, sign: char) -> Option<String> {
        match (sign, self.peek(1)) {
            ('/', Some('/')) => self.skip_line(),
            ('/', Some('*')) => self.skip_block(),
            ('"', _) => self.skip_text(),
            ('\'', _) => self.skip_char_or_lifetime(),
            _ if sign.is_alphanumeric() || sign == '_' => return self.word(),
            _ => {
                self.step();
                return (!sign.is_whitespace()).then(|| sign.to_string());
            }
        }
        None
    }

    fn word(&mut self) -> Option<String> {
        let mut word = String::new();
        while let Some(sign) = self.peek(0).filter(|sign| sign.is_alphanumeric() || *sign == '_') {
            word.push(sign);
            self.step();
        }
        if matches!(word.as_str(), "r" | "br" | "cr") && matches!(self.peek(0), Some('"' | '#')) {
            self.skip_raw_text();
            return None;
        }
        Some(word)
    }

    fn skip_line(&mut self) {
        while self.peek(0).is_some_and(|sign| sign != '\n') {
            self.step();
        }
    }

    fn skip_block(&mut self) {
        let mut depth = 0_usize;
        loop {
            match (self.peek(0), self.peek(1)) {
                (Some('/'), Some('*')) => depth += 1,
                (Some('*'), Some('/')) => depth -= 1,
                (None, _) => return,
                _ => {
                    self.step();
                    continue;
                }
            }
            self.step();
            self.step();
            if depth == 0 {
                return;
            }
        }
    }

    fn skip_text(&mut self) {
        self.step();
        while let Some(sign) = self.step() {
            match sign {
                '\\' => {
                    self.step();
                }
                '"' => return,
                _ => {}
            }
        }
    }

    fn skip_raw_text(&mut self) {
        let mut hashes = 0;
        while self.peek(0) == Some('#') {
            hashes += 1;
            self.step();
        }
        if self.peek(0) != Some('"') {
            return; // a raw identifier: its word comes next
        }
        self.step();
        while let Some(sign) = self.step() {
            if sign == '"' && (0..hashes).all(|ahead| self.peek(ahead) == Some('#')) {
                self.at += hashes;
                return;
            }
        }
    }

    fn skip_char_or_lifetime(&mut self) {
        self.step();
        if self.peek(0) == Some('\\') {
            self.step();
            self.step();
            while self.step().is_some_and(|sign| sign != '\'') {}
        } else if self.peek(1) == Some('\'') {
            self.step();
            self.step();
        } else {
            self.word();
        }
    }
}

/// What stands around a token: how many inline modules, and whether one of them is compiled for tests only.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Place {
    pub(crate) inline_modules: usize,
    pub(crate) in_tests: bool,
}

/// The place of every token.
pub(crate) fn places(tokens: &[Token]) -> Vec<Place> {
    let text = |at: usize| tokens.get(at).map_or("", |token| token.text.as_str());
    let mut open: Vec<Option<bool>> = Vec::new(); // per brace: the module's "for tests", when it is a module
    let mut places = Vec::with_capacity(tokens.len());
    for (at, token) in tokens.iter().enumerate() {
        if token.text == "{" {
            let module = at >= 2 && text(at - 2) == "mod";
            open.push(module.then(|| is_for_tests(tokens, at - 2)));
        }
        places.push(Place {
            inline_modules: open.iter().flatten().count(),
            in_tests: open.iter().flatten().any(|for_tests| *for_tests),
        });
        if token.text == "}" {
            open.pop();
        }
    }
    places
}

/// Whether `#[cfg(test)]` stands right before the `mod` at this token.
fn is_for_tests(tokens: &[Token], module: usize) -> bool {
    let end = if module > 0 && tokens[module - 1].text == "pub" { module - 1 } else { module };
    let before: Vec<&str> = tokens[..end].iter().map(|token| token.text.as_str()).collect();
    before.ends_with(&["#", "[", "cfg", "(", "test", ")", "]"])
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(source: &str) -> Vec<String> {
        tokens(source).into_iter().map(|token| token.text).collect()
    }

    #[test]
    fn comments_texts_characters_and_lifetimes_are_no_words() {
        assert_eq!(words("a // b\n c /* d /* e */ f */ g"), ["a", "c", "g"]);
        assert_eq!(words(r##"x "a \" b" y r#"c " d"# z b"e""##), ["x", "y", "z", "b"]);
        assert_eq!(words(r"p '\'' q '{' r 'life s '\u{1F600}' t"), ["p", "q", "r", "s", "t"]);
        assert_eq!(words("crate::run::{ids}"), ["crate", ":", ":", "run", ":", ":", "{", "ids", "}"]);
    }

    #[test]
    fn a_token_knows_its_line_and_its_modules() {
        let found = tokens("mod a {\n fn b() {}\n}\n#[cfg(test)]\nmod tests { c }");
        let places = places(&found);
        let place_of = |text: &str| {
            let at = found.iter().position(|token| token.text == text).expect("it is there");
            (found[at].line, places[at].inline_modules, places[at].in_tests)
        };
        assert_eq!(place_of("b"), (2, 1, false));
        assert_eq!(place_of("c"), (5, 1, true));
    }

    #[test]
    fn a_file_knows_its_module() {
        assert_eq!(SourceFile::made_up("store/sqlite/runs.rs", "").module(), ["store", "sqlite", "runs"]);
        assert_eq!(SourceFile::made_up("store/mod.rs", "").module(), ["store"]);
        assert_eq!(SourceFile::made_up("clock.rs", "").area(), "clock");
        assert!(SourceFile::made_up("auth/tests.rs", "").is_for_tests());
        assert!(SourceFile::made_up("run/apply/tests/turns.rs", "").is_for_tests());
        assert!(!SourceFile::made_up("run/apply/turn.rs", "").is_for_tests());
    }
}
