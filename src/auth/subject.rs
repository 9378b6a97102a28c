//! Who a token speaks for. Names are compared as they stand (RFC 7519: strings of claims are case-sensitive), so a name is
//! refused when it differs from another only by what nobody sees: a quorum would count one person twice.

use super::AuthError;
use crate::run::ids::Actor;

/// The actor that this `sub` names.
///
/// # Errors
/// `Unseen`, and `BadClaim` for what no actor can be called.
pub fn subject(text: &str) -> Result<Actor, AuthError> {
    if text.trim() != text || text.chars().any(is_unseen) {
        return Err(AuthError::Unseen);
    }
    // `system:…` names what the server did by itself; no token may speak in its name.
    let actor = Actor::parse(text).filter(|actor| !actor.as_str().starts_with("system:"));
    actor.ok_or_else(|| AuthError::BadClaim("sub".to_owned()))
}

/// Control and format characters (Unicode `Cc`, `Cf`), separators of lines and paragraphs (`Zl`, `Zp`), and whatever else
/// may be left out when text is shown (`Default_Ignorable_Code_Point`).
const fn is_unseen(c: char) -> bool {
    matches!(
        c,
        '\0'..='\u{1f}' | '\u{7f}'..='\u{9f}' | '\u{ad}' | '\u{34f}' | '\u{600}'..='\u{605}' | '\u{61c}'
            | '\u{6dd}' | '\u{70f}' | '\u{890}'..='\u{891}' | '\u{8e2}' | '\u{115f}'..='\u{1160}'
            | '\u{17b4}'..='\u{17b5}' | '\u{180b}'..='\u{180f}' | '\u{200b}'..='\u{200f}'
            | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{206f}' | '\u{3164}' | '\u{fe00}'..='\u{fe0f}'
            | '\u{feff}' | '\u{ffa0}' | '\u{fff0}'..='\u{fffb}' | '\u{110bd}' | '\u{110cd}'
            | '\u{13430}'..='\u{1343f}' | '\u{1bca0}'..='\u{1bca3}' | '\u{1d173}'..='\u{1d17a}'
            | '\u{e0000}'..='\u{e0fff}'
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_characters_that_do_not_show_are_those_of_unicode() {
        let known = regex::Regex::new(r"^[\p{Cc}\p{Cf}\p{Zl}\p{Zp}\p{Default_Ignorable_Code_Point}]$").unwrap();
        for c in '\0'..=char::MAX {
            assert_eq!(is_unseen(c), known.is_match(c.encode_utf8(&mut [0; 4])), "{:x}", u32::from(c));
        }
    }

    #[test]
    fn a_name_that_looks_like_another_names_nobody() {
        for good in ["alice", "Alice", "auth0|5f7c", "Ada Lovelace", "é", "e\u{301}", "https://issuer/users/7"] {
            assert_eq!(subject(good).unwrap().as_str(), good);
        }
        let unseen =
            ["alice ", " alice", "alice\u{a0}", "\u{3000}alice", " ", "al\u{200b}ice", "al\u{ad}ice", "alice\u{fe0f}"];
        for bad in unseen.into_iter().chain(["\u{202e}alice", "alice\0", "alice\n", "al\tice", "\u{feff}alice"]) {
            assert_eq!(subject(bad), Err(AuthError::Unseen), "{bad:?}");
        }
        for bad in ["", "system:timeout", &"x".repeat(256)] {
            assert_eq!(subject(bad), Err(AuthError::BadClaim("sub".to_owned())), "{bad:?}");
        }
    }
}
