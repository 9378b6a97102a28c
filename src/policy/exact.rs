//! Which numbers the expression language holds as they are written. It has integers of 64 bits and doubles, and would round
//! the rest without a word: an amount of 1000.0000000000000001 would not be over 1000.

/// Integers up to here are doubles, too.
const DOUBLE_INT_MAX: u64 = 1 << 53;

/// What an expression has of numbers that are compared by rounding, in what is written in it and in what it looks at.
#[derive(Clone, Debug, Default)]
pub(super) struct Numbers {
    /// It has doubles.
    pub(super) doubles: bool,
    /// It turns texts or integers into doubles.
    pub(super) converts: bool,
    /// It has a text that would be rounded as a double.
    pub(super) rounded: bool,
    /// It has an integer that a double cannot hold.
    pub(super) beyond: Option<String>,
}

impl Numbers {
    /// Notes an integer.
    pub(super) fn int(&mut self, int: u64, written: impl FnOnce() -> String) {
        if self.beyond.is_none() && !holds_int(int) {
            self.beyond = Some(written());
        }
    }

    /// # Errors
    /// A comparison could round an integer, as the language compares integers with doubles as doubles.
    pub(super) fn check(&self) -> Result<(), String> {
        if self.rounded && self.converts {
            return Err("a number in a text has more digits than are compared".to_owned());
        }
        match &self.beyond {
            Some(int) if self.doubles || self.converts => {
                Err(format!("the integer {int} cannot be compared with numbers with a point without rounding it"))
            }
            Some(_) | None => Ok(()),
        }
    }
}

fn holds_int(int: u64) -> bool {
    // Its odd part has at most 53 bits.
    int == 0 || (int >> int.trailing_zeros()) <= DOUBLE_INT_MAX
}

/// The double that a decimal is, and `None` where it is none: the double, written as briefly as it can be told from others,
/// has the very digits of the decimal. Decimals that are doubles in this sense keep their order.
pub(super) fn double(text: &str) -> Option<f64> {
    let double = text.parse::<f64>().ok().filter(|double| double.is_finite())?;
    (decimal(text)? == decimal(&format!("{double:e}"))?).then_some(double)
}

/// Whether this is a decimal that would be rounded.
pub(super) fn is_rounded(text: &str) -> bool {
    let text = text.trim();
    text.parse::<f64>().is_ok_and(f64::is_finite) && double(text).is_none()
}

/// The digits that count, and the power of ten of the last one.
fn decimal(text: &str) -> Option<(String, i64)> {
    let text = text.trim_start_matches(['-', '+']);
    let (digits, exponent) = text.split_once(['e', 'E']).unwrap_or((text, "0"));
    let (whole, part) = digits.split_once('.').unwrap_or((digits, ""));
    let all = format!("{whole}{part}");
    let counted = all.trim_matches('0');
    if counted.is_empty() {
        return Some((String::new(), 0));
    }
    let zeros = all.len() - all.trim_end_matches('0').len();
    let last = i64::try_from(zeros).ok()?.checked_sub(i64::try_from(part.len()).ok()?)?;
    Some((counted.to_owned(), exponent.parse::<i64>().ok()?.checked_add(last)?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_decimal_is_the_double_that_is_written_with_its_digits() {
        for exact in [
            "19.99",
            "0.1",
            "1000.0",
            "1e3",
            "1.50",
            "0.0",
            "-0.0",
            "-19.99",
            "117.63331139400017",
            "1E+2",
            "0.30000000000000004",
            "1.7976931348623157e308",
            "5e-324",
            "100000000000000000000.0",
            "0.000001",
            "12.30e-1",
        ] {
            assert_eq!(double(exact), Some(exact.parse().unwrap()), "{exact}");
            assert!(!is_rounded(exact), "{exact}");
        }
        for rounded in [
            "1000.0000000000000001",
            "0.10000000000000001",
            "9007199254740993.0",
            "1e-400",
            "0.1000000000000000055511151231257827",
            "999.99999999999999999",
            "-1000.0000000000000001",
        ] {
            assert_eq!(double(rounded), None, "{rounded}");
            assert!(is_rounded(rounded), "{rounded}");
        }
        assert_eq!((double("1e400"), is_rounded("abc"), is_rounded("NaN")), (None, false, false));
        for (int, holds) in
            [(0, true), (1 << 53, true), ((1 << 53) + 1, false), ((1 << 53) + 2, true), (u64::MAX, false)]
        {
            assert_eq!(holds_int(int), holds, "{int}");
        }
    }
}
