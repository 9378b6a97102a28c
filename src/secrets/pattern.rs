//! Finds one secret in a text in whichever way it is written there: as it is, with some or all of its characters
//! escaped as JSON, addresses and web pages do, or, itself or within something longer, in base64 or hexadecimal.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD_NO_PAD;
use zeroize::Zeroizing;

/// Longest name or number of a character in a web page that is read.
const ENTITY_MAX: usize = 10;

/// Most escapes of a backslash in a row that are looked through: a text that was escaped six times over has as many. More of
/// them are passed one by one, so that a long row of them is not looked through again from each of its places.
const BACKSLASHES_MAX: usize = 64;

/// Shortest text in base64 or hexadecimal that is looked for, in bytes.
const ENCODED_MIN: usize = 8;

/// One way of writing a secret.
pub(super) struct Pattern(Zeroizing<Vec<char>>);

/// What stands at a place of a text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Found {
    /// Something else.
    Nothing,
    /// The secret; it takes so many bytes.
    Whole(usize),
    /// So many characters of its beginning; then the text ends.
    Beginning(usize),
}

/// What stands in the place of one character.
enum Step {
    No,
    Taken(usize),
    /// The text ends before it is known.
    End,
}

impl Pattern {
    /// Every way of writing a value that is no shorter than that.
    pub(super) fn all_of(value: &str, shortest: usize) -> Vec<Self> {
        let lower = Zeroizing::new(hex::encode(value));
        let mut texts: Vec<Zeroizing<String>> = vec![Zeroizing::new(lower.to_ascii_uppercase()), lower];
        for offset in 0..3 {
            let plain = Zeroizing::new(within_base64(value.as_bytes(), offset));
            texts.push(Zeroizing::new(plain.replace('+', "-").replace('/', "_")));
            texts.push(plain);
        }
        // Of a short value so little is left that it occurs by chance.
        texts.retain(|text| text.len() >= ENCODED_MIN);
        texts.push(Zeroizing::new(bare(value, shortest)));
        texts.sort_by(|one, other| one.as_str().cmp(other));
        texts.dedup();
        texts.into_iter().map(|text| Self(Zeroizing::new(text.chars().collect()))).collect()
    }

    /// The byte that it begins with where that is not escaped.
    pub(super) fn first_byte(&self) -> u8 {
        let mut bytes = [0; 4];
        self.0.first().map_or(0, |first| first.encode_utf8(&mut bytes).as_bytes().first().copied().unwrap_or(0))
    }

    /// Looks at the beginning of a text.
    pub(super) fn at_start_of(&self, text: &str) -> Found {
        // What escapes nothing belongs to what stands before.
        let slashes = text.bytes().take(BACKSLASHES_MAX).take_while(|byte| *byte == b'\\').count();
        let escapes = |rest: &str| rest.starts_with(['u', 'x', '"', '\'', '/']);
        if slashes > 0 && !text.get(slashes..).is_some_and(escapes) {
            return Found::Nothing;
        }
        let mut taken = 0;
        for (at, wanted) in self.0.iter().enumerate() {
            match step(text.get(taken..).unwrap_or_default(), *wanted) {
                Step::No => return Found::Nothing,
                Step::Taken(bytes) => taken += bytes,
                Step::End => return Found::Beginning(at),
            }
        }
        Found::Whole(taken)
    }
}

/// Texts in which a backslash of the secret may be doubled, and one before a quote may be none of it, are compared without
/// backslashes; unless little else is left.
fn bare(value: &str, shortest: usize) -> String {
    let bare: String = value.chars().filter(|c| *c != '\\').collect();
    if bare.len() >= shortest { bare } else { value.to_owned() }
}

/// What base64 makes of the bytes when so many others stand before them, without what depends on what is around them.
fn within_base64(bytes: &[u8], offset: usize) -> String {
    let shifted = Zeroizing::new([vec![0; offset], bytes.to_vec()].concat());
    let (skipped, whole) = ((offset * 8).div_ceil(6), shifted.len() * 8 / 6);
    let encoded = Zeroizing::new(STANDARD_NO_PAD.encode(&*shifted));
    encoded.get(skipped..whole).unwrap_or_default().to_owned()
}

/// Whether the text begins with that character, however it is written.
fn step(text: &str, wanted: char) -> Step {
    if wanted == '\\' {
        return text.chars().next().map_or(Step::End, |next| if next == '\\' { Step::Taken(1) } else { Step::No });
    }
    let bare = past_backslashes(text);
    let slashes = text.len() - bare.len();
    let Some(next) = bare.chars().next() else { return Step::End };
    let escaped = match next {
        'u' if text.starts_with('\\') => utf16_escape(bare, wanted),
        'x' if text.starts_with('\\') => hex_escape(bare, 'x', wanted),
        '%' => hex_escape(bare, '%', wanted),
        '&' => entity(bare, wanted),
        '+' if wanted == ' ' => Step::Taken(1),
        _ => Step::No,
    };
    match escaped {
        Step::Taken(bytes) => Step::Taken(slashes + bytes),
        Step::End if next != wanted => Step::End,
        Step::End | Step::No if next == wanted => Step::Taken(slashes + next.len_utf8()),
        Step::End | Step::No => Step::No,
    }
}

/// What follows the backslashes, some of which may be escaped themselves.
fn past_backslashes(mut text: &str) -> &str {
    let mut left = BACKSLASHES_MAX;
    loop {
        let slashes = text.bytes().take(left).take_while(|byte| *byte == b'\\').count();
        let rest = text.get(slashes..).unwrap_or_default();
        left = left.saturating_sub(slashes.max(1));
        let mut digits = rest.strip_prefix('%').unwrap_or_default();
        while let Some(inner) = digits.strip_prefix("25") {
            digits = inner;
        }
        let is_escape = rest.len() < text.len();
        let after = digits.strip_prefix("5c").or_else(|| digits.strip_prefix("5C"));
        let after = after.or_else(|| rest.strip_prefix("&#92;").or_else(|| rest.strip_prefix("&#x5c;")));
        let escape = || rest.strip_prefix("u005c").or_else(|| rest.strip_prefix("u005C"));
        match after.or_else(|| escape().filter(|_| is_escape)) {
            Some(after) if left > 0 => text = after,
            Some(_) | None => return rest,
        }
    }
}

/// `\u0041`, of which a character outside of the basic plane takes two; the backslash is passed already.
fn utf16_escape(text: &str, wanted: char) -> Step {
    let (mut units, mut taken) = ([0; 2], 0);
    for unit in wanted.encode_utf16(&mut units) {
        let rest = text.get(taken..).unwrap_or_default();
        let digits = rest.trim_start_matches('\\').strip_prefix('u');
        let Some(digits) = digits else { return if rest.is_empty() { Step::End } else { Step::No } };
        match number(digits, 4) {
            Digits::Are(code) if code == u32::from(*unit) => taken += rest.len() - digits.len() + 4,
            Digits::Are(_) | Digits::None => return Step::No,
            Digits::End => return Step::End,
        }
    }
    Step::Taken(taken)
}

/// `%41` or `\x41`, once for each byte; a percent sign may itself be written `%25`.
fn hex_escape(text: &str, mark: char, wanted: char) -> Step {
    let (mut bytes, mut taken) = ([0; 4], 0);
    for byte in wanted.encode_utf8(&mut bytes).bytes() {
        let rest = text.get(taken..).unwrap_or_default();
        let Some(mut digits) = rest.trim_start_matches('\\').strip_prefix(mark) else {
            return if rest.is_empty() { Step::End } else { Step::No };
        };
        let is_doubled = |inner: &&str| mark == '%' && (byte != b'%' || inner.starts_with("25"));
        while let Some(inner) = digits.strip_prefix("25").filter(is_doubled) {
            digits = inner;
        }
        match number(digits, 2) {
            Digits::Are(code) if code == u32::from(byte) => taken += rest.len() - digits.len() + 2,
            Digits::Are(_) | Digits::None => return Step::No,
            Digits::End => return Step::End,
        }
    }
    Step::Taken(taken)
}

/// `&quot;`, `&#34;`, `&#x22;`.
fn entity(text: &str, wanted: char) -> Step {
    let Some(length) = text.bytes().take(ENTITY_MAX).position(|byte| byte == b';') else {
        return if text.len() < ENTITY_MAX { Step::End } else { Step::No };
    };
    let name = text.get(1..length).unwrap_or_default();
    let meant = match name {
        "amp" => Some('&'),
        "lt" => Some('<'),
        "gt" => Some('>'),
        "quot" => Some('"'),
        "apos" => Some('\''),
        _ => name.strip_prefix('#').and_then(|code| {
            let read = match code.strip_prefix(['x', 'X']) {
                Some(hex) => u32::from_str_radix(hex, 16),
                None => code.parse(),
            };
            char::from_u32(read.ok()?)
        }),
    };
    if meant == Some(wanted) { Step::Taken(length + 1) } else { Step::No }
}

/// What stands where a number is looked for.
enum Digits {
    Are(u32),
    None,
    /// The text ends before they do.
    End,
}

/// A number of so many hexadecimal digits.
fn number(text: &str, digits: usize) -> Digits {
    if text.len() < digits && text.bytes().all(|byte| byte.is_ascii_hexdigit()) {
        return Digits::End;
    }
    let text = text.get(..digits).filter(|text| text.bytes().all(|byte| byte.is_ascii_hexdigit()));
    text.and_then(|text| u32::from_str_radix(text, 16).ok()).map_or(Digits::None, Digits::Are)
}
