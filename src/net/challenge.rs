//! What a server says that it wants when it refuses a request: the `Bearer` challenge of `WWW-Authenticate` (RFC 6750,
//! RFC 9728).

use http::{HeaderMap, header};

/// A server's `Bearer` challenge. Its texts are the server's: none of them is shown unchecked.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Challenge {
    /// Where the server describes itself.
    pub resource_metadata: Option<String>,
    /// The kind of refusal, e.g. `insufficient_scope`.
    pub error: Option<String>,
    /// The scopes that would do.
    pub scope: Option<String>,
}

impl Challenge {
    /// The first `Bearer` challenge of an answer.
    pub fn of(headers: &HeaderMap) -> Option<Self> {
        let lines = headers.get_all(header::WWW_AUTHENTICATE).iter();
        lines.filter_map(|line| line.to_str().ok()).find_map(Self::parse)
    }

    fn parse(line: &str) -> Option<Self> {
        let mut challenge = None;
        for part in parts(line) {
            let (scheme, parameter) = match part.split_once('=') {
                // `Scheme name=value` begins a challenge; `name=value` goes on with it.
                Some((name, _)) if name.contains(' ') => part.split_once(' ')?,
                Some(_) => ("", part),
                None => (part, ""),
            };
            match (scheme.trim(), &mut challenge) {
                ("", _) => {}
                (scheme, None) if scheme.eq_ignore_ascii_case("bearer") => challenge = Some(Self::default()),
                (_, None) => continue,
                (_, Some(_)) => break,
            }
            if let Some(challenge) = &mut challenge {
                challenge.take(parameter);
            }
        }
        challenge
    }

    fn take(&mut self, parameter: &str) {
        let Some((name, value)) = parameter.split_once('=') else { return };
        let value = unquoted(value.trim());
        match name.trim().to_ascii_lowercase().as_str() {
            "resource_metadata" => self.resource_metadata = Some(value),
            "error" => self.error = Some(value),
            "scope" => self.scope = Some(value),
            _ => {}
        }
    }
}

/// The parts between commas that stand outside of quotes.
fn parts(line: &str) -> impl Iterator<Item = &str> {
    let (mut is_quoted, mut is_escaped) = (false, false);
    line.split(move |c| {
        let ends = c == ',' && !is_quoted;
        is_quoted ^= c == '"' && !is_escaped;
        is_escaped = c == '\\' && is_quoted && !is_escaped;
        ends
    })
    .map(str::trim)
    .filter(|part| !part.is_empty())
}

fn unquoted(value: &str) -> String {
    let Some(inner) = value.strip_prefix('"').and_then(|rest| rest.strip_suffix('"')) else { return value.to_owned() };
    let mut is_escaped = false;
    inner
        .chars()
        .filter(|c| {
            is_escaped = *c == '\\' && !is_escaped;
            !is_escaped
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(lines: &[&str], wanted: Option<[Option<&str>; 3]>) {
        let mut headers = HeaderMap::new();
        for line in lines {
            headers.append(header::WWW_AUTHENTICATE, line.parse().unwrap());
        }
        let found = Challenge::of(&headers).map(|found| [found.resource_metadata, found.error, found.scope]);
        assert_eq!(found, wanted.map(|texts| texts.map(|text| text.map(str::to_owned))), "{lines:?}");
    }

    #[test]
    fn the_bearer_challenge_is_found_among_others() {
        let url = "https://a.example/.well-known/x?a=b,c";
        check(&[&format!("Bearer resource_metadata=\"{url}\"")], Some([Some(url), None, None]));
        check(&["bearer"], Some([None, None, None]));
        check(
            &["Bearer realm=\"a, b\", error=\"insufficient_scope\",scope=\"x y\" , resource_metadata=m"],
            Some([Some("m"), Some("insufficient_scope"), Some("x y")]),
        );
        check(
            &["Basic realm=\"Bearer error=no\"", "Bearer error=invalid_token"],
            Some([None, Some("invalid_token"), None]),
        );
        check(&["Basic realm=x, Bearer error=a, DPoP error=b"], Some([None, Some("a"), None]));
        check(&["Bearer error=\"a \\\"b\\\" \\\\c\""], Some([None, Some("a \"b\" \\c"), None]));
        check(&["Basic realm=\"x\""], None);
        check(&[], None);
    }
}
