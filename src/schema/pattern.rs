//! What a pattern costs to compile, in the steps of `cost`: a count over its text. Compiles and matches nothing.

const PATTERN: u64 = 400;
/// A class of ASCII, one of half of Unicode (each time, and once), and one by a property of Unicode.
const NARROW_CLASS: u64 = 15;
const WIDE_CLASS: u64 = 100;
const WIDE_CLASS_ONCE: u64 = 1_500;
const PROPERTY: u64 = 3_000;
/// What a pattern costs more that is to be matched in either case.
const EITHER_CASE: u64 = 10;

/// What one pattern costs. It is read as ECMAScript writes them, and what it does not know it takes for plain text.
pub(super) fn pattern_steps(pattern: &str) -> u64 {
    let mut reader = Reader { rest: pattern, once: PATTERN, levels: Vec::new(), level: Level::default() };
    while reader.step() {}
    let mut steps = reader.level.sum();
    for outer in reader.levels {
        steps = steps.saturating_add(outer.sum());
    }
    let steps = if has_either_case(pattern) { steps.saturating_mul(EITHER_CASE) } else { steps };
    steps.saturating_add(reader.once)
}

fn has_either_case(pattern: &str) -> bool {
    let flags = |group: &str| group.chars().take_while(|c| c.is_ascii_alphabetic() || *c == '-').any(|c| c == 'i');
    pattern.split("(?").skip(1).any(flags)
}

/// What stands between two parentheses.
#[derive(Default)]
struct Level {
    before: u64,
    /// What a quantifier that follows repeats.
    last: u64,
}

impl Level {
    const fn sum(&self) -> u64 {
        self.before.saturating_add(self.last)
    }

    const fn put(&mut self, atom: u64) {
        self.before = self.sum();
        self.last = atom;
    }
}

struct Reader<'a> {
    rest: &'a str,
    once: u64,
    levels: Vec<Level>,
    level: Level,
}

impl Reader<'_> {
    fn next(&mut self) -> Option<char> {
        let mut chars = self.rest.chars();
        let next = chars.next();
        self.rest = chars.as_str();
        next
    }

    fn step(&mut self) -> bool {
        let Some(sign) = self.next() else { return false };
        match sign {
            '\\' => {
                let atom = self.escaped();
                self.level.put(atom);
            }
            '[' => {
                let atom = self.class();
                self.level.put(atom);
            }
            '.' => {
                let atom = self.wide();
                self.level.put(atom);
            }
            '(' => self.levels.push(std::mem::take(&mut self.level)),
            ')' => {
                let group = self.level.sum().saturating_add(2);
                self.level = self.levels.pop().unwrap_or_default();
                self.level.put(group);
            }
            '*' | '+' | '?' => self.level.last = self.level.last.saturating_add(2),
            '{' => match self.copies() {
                Some(copies) => {
                    let repeated = self.level.last.max(1).saturating_add(1).saturating_mul(copies);
                    self.level.last = repeated;
                }
                None => self.level.put(2),
            },
            sign => self.level.put(u64::try_from(sign.len_utf8()).unwrap_or(4).saturating_add(1)),
        }
        true
    }

    fn wide(&mut self) -> u64 {
        self.once = self.once.saturating_add(WIDE_CLASS_ONCE);
        WIDE_CLASS
    }

    fn escaped(&mut self) -> u64 {
        let named = self.next();
        // `\p{…}` and `\u{…}` repeat nothing.
        if matches!(named, Some('p' | 'P' | 'u' | 'x'))
            && self.rest.starts_with('{')
            && let Some((_, rest)) = self.rest.split_once('}')
        {
            self.rest = rest;
        }
        match named {
            Some('d' | 'w') => NARROW_CLASS,
            Some('D' | 'W' | 's' | 'S') => self.wide(),
            Some('p' | 'P') => PROPERTY,
            _ => 2,
        }
    }

    /// `[…]`: it ends at the first bracket that is not escaped.
    fn class(&mut self) -> u64 {
        let (mut sum, mut is_wide) = (NARROW_CLASS, self.rest.starts_with('^'));
        while let Some(sign) = self.next() {
            match sign {
                ']' => break,
                '\\' => match self.next() {
                    Some('D' | 'W' | 's' | 'S') => is_wide = true,
                    Some('p' | 'P') => sum = sum.saturating_add(PROPERTY),
                    _ => {}
                },
                sign => is_wide |= !sign.is_ascii(),
            }
            sum = sum.saturating_add(1);
        }
        if is_wide { sum.saturating_add(self.wide()) } else { sum }
    }

    /// How many copies `{n}`, `{n,}` or `{n,m}` make; `None`: it is no quantifier, and nothing of it is read.
    fn copies(&mut self) -> Option<u64> {
        let (inside, rest) = self.rest.split_once('}')?;
        let (least, most) = inside.split_once(',').map_or((inside, None), |(least, most)| (least, Some(most)));
        let number = |text: &str| {
            let text = text.trim();
            let is_number = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
            is_number.then(|| text.parse::<u64>().unwrap_or(u64::MAX))
        };
        let copies = match most {
            None => number(least)?,
            Some(most) if most.trim().is_empty() => number(least)?.saturating_add(1),
            Some(most) => number(most)?.max(number(least).unwrap_or(0)),
        };
        self.rest = rest;
        Some(copies.max(1))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(pattern: &str, least: u64, most: u64) {
        let steps = pattern_steps(pattern) - PATTERN;
        assert!((least..=most).contains(&steps), "{pattern}: {steps}");
    }

    #[test]
    fn patterns_cost_what_they_repeat() {
        check("", 0, 0);
        check("abc", 6, 6);
        check("a{900}", 900, 3_000);
        check("a{2,900}", 900, 3_000);
        check("a{900,}", 900, 3_000);
        check("((a{30}){30}){30}", 27_000, 120_000);
        check("(((((a{999}){999}){999}){999}){999}){999}", 1 << 59, u64::MAX);
        check("(?:){1000}", 1_000, 8_000);
        check(r"\w{60}", 900, 1_000);
        check(r"\p{L}{3}", 9_000, 9_100);
        check(r"[\p{L}]{3}", 9_000, 9_100);
        check(r"[^a-z]{10}", 2_500, 2_800);
        check(r"\s{10}", 2_500, 2_600);
        check(".{10}", 2_500, 2_600);
        check(r"a\{900}", 0, 30);
        check("a{x}", 0, 30);
        check("(?i)ab{100}", 2_000, 5_000);
        check("a{900", 0, 30);
        check(")))((({{{[[[", 0, 100);
        check(&"(".repeat(100_000), 0, 10);
        check(r"^[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}$", 600, 1_200);
    }
}
