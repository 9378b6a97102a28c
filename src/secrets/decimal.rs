//! Compares a number with a secret of digits: a server that repeats one may do so as a number, in its own notation.

use zeroize::Zeroizing;

/// So many digits a number keeps that went through the arithmetic of most languages; a longer one is rounded there.
const EXACT: usize = 15;
const ROUNDED: usize = 17;

/// A number as its digits and where its point stands, without sign.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Decimal {
    digits: Zeroizing<String>,
    point: i64,
}

impl Decimal {
    /// Reads `-12.50e3` and the like.
    pub(super) fn read(text: &str) -> Option<Self> {
        let text = text.strip_prefix(['-', '+']).unwrap_or(text);
        let (mantissa, exponent) = text.split_once(['e', 'E']).unwrap_or((text, "0"));
        let (whole, part) = mantissa.split_once('.').unwrap_or((mantissa, ""));
        let is_number = !whole.is_empty() && whole.bytes().chain(part.bytes()).all(|byte| byte.is_ascii_digit());
        if !is_number {
            return None;
        }
        let all = Zeroizing::new(format!("{whole}{part}"));
        let digits = all.trim_start_matches('0');
        let zeros = i64::try_from(all.len() - digits.len()).ok()?;
        let point = i64::try_from(whole.len()).ok()?.checked_add(exponent.parse().ok()?)?.checked_sub(zeros)?;
        Some(Self { digits: Zeroizing::new(digits.trim_end_matches('0').to_owned()), point })
    }

    /// Whether the other is the same, as far as a number can tell.
    pub(super) fn is_told_by(&self, other: &Self) -> bool {
        let exact = |decimal: &Self| decimal.digits.get(..EXACT).unwrap_or(&decimal.digits).to_owned();
        self.point == other.point
            && (self.digits == other.digits
                || (self.digits.len() >= ROUNDED && Zeroizing::new(exact(self)) == Zeroizing::new(exact(other))))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_is_told_apart_by_its_digits_and_its_size() {
        let told =
            |secret: &str, number: &str| Decimal::read(secret).unwrap().is_told_by(&Decimal::read(number).unwrap());
        for same in ["4111111111111111", "4.111111111111111e15", "4111111111111111.0", "-4111111111111111"] {
            assert!(told("4111111111111111", same), "{same}");
        }
        assert!(told("0012345678", "12345678") && told("12345678901234567890", "12345678901234567000"));
        for other in ["4111111111111112", "41111111111111110", "411111111111111", "0"] {
            assert!(!told("4111111111111111", other), "{other}");
        }
        for none in ["", "e5", "1e", "1.2.3", "12a", "1e99999999999999999999"] {
            assert_eq!(Decimal::read(none), None, "{none}");
        }
    }
}
