//! Query parameters, limits and cursors. Cursors are opaque: they name the list that they belong to, and carry a check,
//! so that one that was made up, changed or taken from another list is refused.

use aws_lc_rs::digest;
use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use url::form_urlencoded;
use uuid::Uuid;

use super::problem::{ApiError, Flaw};
use crate::run::agent::AgentName;
use crate::run::ids::{CallKey, RunUid};
use crate::run::time::Timestamp;
use crate::store::{PlaceInTime, ReceiptPlace, RunCursor};

/// Rows of a page unless `limit` says otherwise.
const LIMIT_DEFAULT: u32 = 50;

/// Most rows of a page.
const LIMIT_MAX: u32 = 200;

/// Bytes of a cursor's check.
const CHECK_LEN: usize = 6;

/// The parameters of a request; what is not asked for by the end is refused, so a typing error never silently
/// widens a list.
pub(super) struct Query {
    pairs: Vec<(String, String)>,
    flaws: Vec<Flaw>,
}

impl Query {
    pub(super) fn parse(query: Option<&str>) -> Self {
        let pairs = form_urlencoded::parse(query.unwrap_or_default().as_bytes()).into_owned().collect();
        Self { pairs, flaws: Vec::new() }
    }

    /// Takes the only value of a parameter.
    pub(super) fn take(&mut self, name: &str) -> Option<String> {
        let (found, rest) = std::mem::take(&mut self.pairs).into_iter().partition(|(known, _)| known == name);
        self.pairs = rest;
        let mut found: Vec<(String, String)> = found;
        if found.len() > 1 {
            self.flaws.push(Flaw::of(name, "stands more than once"));
        }
        found.pop().map(|(_, value)| value)
    }

    /// Takes text as a column holds it.
    pub(super) fn take_text(&mut self, name: &str) -> Option<String> {
        let text = self.take(name)?;
        if text.chars().any(char::is_control) {
            self.flaws.push(Flaw::of(name, "must have no control characters"));
        }
        Some(text)
    }

    /// Takes every `name[key]=value`.
    pub(super) fn take_map(&mut self, name: &str) -> Vec<(String, String)> {
        let key = |known: &str| {
            let inner = known.strip_prefix(name)?.strip_prefix('[')?.strip_suffix(']')?;
            Some(inner.to_owned())
        };
        let (found, rest): (Vec<_>, Vec<_>) =
            std::mem::take(&mut self.pairs).into_iter().partition(|(known, _)| key(known).is_some());
        self.pairs = rest;
        found.into_iter().filter_map(|(known, value)| key(&known).map(|key| (key, value))).collect()
    }

    /// Takes one of these values.
    pub(super) fn take_one_of(&mut self, name: &str, values: &[&str]) -> Option<String> {
        let value = self.take(name)?.replace('_', "-");
        if !values.contains(&value.as_str()) {
            self.flaws.push(Flaw::of(name, format!("must be one of {}", values.join(", "))));
        }
        Some(value)
    }

    /// Takes a time.
    pub(super) fn take_time(&mut self, name: &str) -> Option<Timestamp> {
        let text = self.take(name)?;
        // A `+` that was not escaped arrives as a space.
        let time = Timestamp::parse(&text.replace(' ', "+"));
        if time.is_none() {
            self.flaws.push(Flaw::of(name, "must be an RFC 3339 time"));
        }
        time
    }

    /// Takes `limit`.
    pub(super) fn take_limit(&mut self) -> Result<u32, ApiError> {
        let Some(text) = self.take("limit") else { return Ok(LIMIT_DEFAULT) };
        let limit = text.parse().ok().filter(|limit| (1..=LIMIT_MAX).contains(limit));
        limit.ok_or_else(|| ApiError::InvalidCursor(format!("limit must be a whole number from 1 to {LIMIT_MAX}")))
    }

    /// Takes `cursor`.
    pub(super) fn take_cursor<T: Cursor>(&mut self) -> Result<Option<T>, ApiError> {
        let Some(text) = self.take("cursor") else { return Ok(None) };
        let bad = || ApiError::InvalidCursor("the cursor is not one of this list".to_owned());
        decode(&text).ok_or_else(bad).map(Some)
    }

    /// Refuses what is left.
    pub(super) fn finish(mut self) -> Result<(), ApiError> {
        self.flaws.extend(self.pairs.iter().map(|(name, _)| Flaw::of(name, "is not a known parameter")));
        if self.flaws.is_empty() { Ok(()) } else { Err(ApiError::Invalid(self.flaws)) }
    }
}

/// A place in a list.
pub(super) trait Cursor: Sized {
    /// Which list.
    const LIST: u8;
    /// The place as bytes.
    fn bytes(&self) -> Vec<u8>;
    /// The reverse of `bytes`.
    fn read(bytes: &[u8]) -> Option<Self>;
}

impl Cursor for RunCursor {
    const LIST: u8 = b'r';

    fn bytes(&self) -> Vec<u8> {
        [self.created_at.as_millis().to_be_bytes().as_slice(), self.uid.0.as_bytes()].concat()
    }

    fn read(bytes: &[u8]) -> Option<Self> {
        let (at, uid) = bytes.split_at_checked(8)?;
        let created_at = Timestamp::from_millis(i64::from_be_bytes(at.try_into().ok()?));
        Some(Self { created_at, uid: RunUid(Uuid::from_slice(uid).ok()?) })
    }
}

/// The next message's position.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct MessageCursor(pub(super) u32);

impl Cursor for MessageCursor {
    const LIST: u8 = b'm';

    fn bytes(&self) -> Vec<u8> {
        self.0.to_be_bytes().to_vec()
    }

    fn read(bytes: &[u8]) -> Option<Self> {
        bytes.try_into().ok().map(u32::from_be_bytes).map(Self)
    }
}

/// The last receipt's turn and position.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct ReceiptCursor(pub(super) u32, pub(super) u32);

impl Cursor for ReceiptCursor {
    const LIST: u8 = b'c';

    fn bytes(&self) -> Vec<u8> {
        [self.0.to_be_bytes(), self.1.to_be_bytes()].concat()
    }

    fn read(bytes: &[u8]) -> Option<Self> {
        let (turn, position) = bytes.split_at_checked(4)?;
        let number = |bytes: &[u8]| bytes.try_into().ok().map(u32::from_be_bytes);
        Some(Self(number(turn)?, number(position)?))
    }
}

/// The last undecided call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct UndecidedCursor(pub(super) ReceiptPlace);

impl Cursor for UndecidedCursor {
    const LIST: u8 = b'u';

    fn bytes(&self) -> Vec<u8> {
        place_bytes(&self.0)
    }

    fn read(bytes: &[u8]) -> Option<Self> {
        read_place(bytes).map(Self)
    }
}

/// The last receipt of a list across runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct FoundCursor(pub(super) ReceiptPlace);

impl Cursor for FoundCursor {
    const LIST: u8 = b'f';

    fn bytes(&self) -> Vec<u8> {
        place_bytes(&self.0)
    }

    fn read(bytes: &[u8]) -> Option<Self> {
        read_place(bytes).map(Self)
    }
}

fn place_bytes(place: &ReceiptPlace) -> Vec<u8> {
    let ReceiptPlace { at, uid, key } = place;
    let (turn, position) = (key.turn.to_be_bytes(), key.position.to_be_bytes());
    [at.as_millis().to_be_bytes().as_slice(), uid.0.as_bytes(), &turn, &position].concat()
}

fn read_place(bytes: &[u8]) -> Option<ReceiptPlace> {
    let (at, rest) = bytes.split_at_checked(8)?;
    let (uid, rest) = rest.split_at_checked(16)?;
    let (turn, position) = rest.split_at_checked(4)?;
    let number = |bytes: &[u8]| bytes.try_into().ok().map(u32::from_be_bytes);
    Some(ReceiptPlace {
        at: Timestamp::from_millis(i64::from_be_bytes(at.try_into().ok()?)),
        uid: RunUid(Uuid::from_slice(uid).ok()?),
        key: CallKey { turn: number(turn)?, position: number(position)? },
    })
}

/// The last row of the audit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct AuditCursor(pub(super) PlaceInTime);

impl Cursor for AuditCursor {
    const LIST: u8 = b'a';

    fn bytes(&self) -> Vec<u8> {
        [self.0.at.as_millis().to_be_bytes().as_slice(), self.0.id.as_bytes()].concat()
    }

    fn read(bytes: &[u8]) -> Option<Self> {
        let (at, id) = bytes.split_at_checked(8)?;
        let at = Timestamp::from_millis(i64::from_be_bytes(at.try_into().ok()?));
        Some(Self(PlaceInTime { at, id: Uuid::from_slice(id).ok()? }))
    }
}

/// The last approval.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct ApprovalCursor(pub(super) PlaceInTime);

impl Cursor for ApprovalCursor {
    const LIST: u8 = b'p';

    fn bytes(&self) -> Vec<u8> {
        AuditCursor(self.0).bytes()
    }

    fn read(bytes: &[u8]) -> Option<Self> {
        AuditCursor::read(bytes).map(|AuditCursor(place)| Self(place))
    }
}

/// The last name of a list by name; `LIST` tells secrets from servers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct NameCursor<const LIST: u8>(pub(super) String);

/// The last secret.
pub(super) type SecretCursor = NameCursor<b's'>;

/// The last MCP server.
pub(super) type ServerCursor = NameCursor<b'v'>;

impl<const LIST: u8> Cursor for NameCursor<LIST> {
    const LIST: u8 = LIST;

    fn bytes(&self) -> Vec<u8> {
        self.0.as_bytes().to_vec()
    }

    fn read(bytes: &[u8]) -> Option<Self> {
        let name = std::str::from_utf8(bytes).ok()?;
        (!name.contains('\0')).then(|| Self(name.to_owned()))
    }
}

/// The last version of an agent.
pub(super) struct VersionCursor(pub(super) String);

impl Cursor for VersionCursor {
    const LIST: u8 = b'w';

    fn bytes(&self) -> Vec<u8> {
        self.0.as_bytes().to_vec()
    }

    fn read(bytes: &[u8]) -> Option<Self> {
        NameCursor::<b'w'>::read(bytes).map(|NameCursor(version)| Self(version))
    }
}

/// The last agent.
pub(super) struct AgentCursor(pub(super) AgentName);

impl Cursor for AgentCursor {
    const LIST: u8 = b'g';

    fn bytes(&self) -> Vec<u8> {
        self.0.to_string().into_bytes()
    }

    fn read(bytes: &[u8]) -> Option<Self> {
        let (namespace, name) = std::str::from_utf8(bytes).ok()?.split_once('/')?;
        AgentName::parse(namespace, name).map(Self)
    }
}

/// The last deployment's number.
pub(super) struct DeploymentCursor(pub(super) u32);

impl Cursor for DeploymentCursor {
    const LIST: u8 = b'd';

    fn bytes(&self) -> Vec<u8> {
        self.0.to_be_bytes().to_vec()
    }

    fn read(bytes: &[u8]) -> Option<Self> {
        bytes.try_into().ok().map(u32::from_be_bytes).map(Self)
    }
}

/// The last event's number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct EventCursor(pub(super) i64);

impl Cursor for EventCursor {
    const LIST: u8 = b'e';

    fn bytes(&self) -> Vec<u8> {
        self.0.to_be_bytes().to_vec()
    }

    fn read(bytes: &[u8]) -> Option<Self> {
        bytes.try_into().ok().map(i64::from_be_bytes).filter(|seq| *seq >= 0).map(Self)
    }
}

/// A cursor as callers get it.
pub(super) fn encode<T: Cursor>(cursor: &T) -> String {
    let mut bytes = vec![T::LIST];
    bytes.extend(cursor.bytes());
    let check = check(&bytes);
    bytes.extend(check);
    URL_SAFE_NO_PAD.encode(bytes)
}

fn decode<T: Cursor>(text: &str) -> Option<T> {
    let bytes = URL_SAFE_NO_PAD.decode(text).ok()?;
    let (body, given) = bytes.split_at_checked(bytes.len().checked_sub(CHECK_LEN)?)?;
    let place = body.strip_prefix(&[T::LIST])?;
    (check(body) == given).then(|| T::read(place)).flatten()
}

fn check(bytes: &[u8]) -> Vec<u8> {
    digest::digest(&digest::SHA256, bytes).as_ref().iter().copied().take(CHECK_LEN).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cursor_reads_back_in_its_own_list_only() {
        let text = encode(&EventCursor(7));
        assert_eq!(decode::<EventCursor>(&text), Some(EventCursor(7)));
        assert_eq!(decode::<MessageCursor>(&text), None);
        assert_eq!(decode::<ReceiptCursor>(&encode(&ReceiptCursor(3, 4))), Some(ReceiptCursor(3, 4)));
        let run = RunCursor { created_at: Timestamp::from_millis(5), uid: RunUid(Uuid::from_u128(9)) };
        assert_eq!(decode::<RunCursor>(&encode(&run)), Some(run));
        let key = CallKey { turn: 3, position: 4 };
        let found = FoundCursor(ReceiptPlace { at: run.created_at, uid: run.uid, key });
        assert_eq!(decode::<FoundCursor>(&encode(&found)), Some(found));
        assert_eq!(decode::<UndecidedCursor>(&encode(&found)), None);
        let row = AuditCursor(PlaceInTime { at: run.created_at, id: run.uid.0 });
        assert_eq!(decode::<AuditCursor>(&encode(&row)), Some(row));
        let name = NameCursor::<b's'>("orders_token".to_owned());
        assert_eq!(decode::<SecretCursor>(&encode(&name)), Some(name.clone()));
        assert_eq!(decode::<ServerCursor>(&encode(&name)), None);
        let mut bytes = URL_SAFE_NO_PAD.decode(&text).unwrap();
        for at in 0..bytes.len() {
            bytes[at] ^= 1;
            assert_eq!(decode::<EventCursor>(&URL_SAFE_NO_PAD.encode(&bytes)), None, "byte {at}");
            bytes[at] ^= 1;
        }
        for bad in ["", "x", "7", "====", "ZXZlbnQ"] {
            assert_eq!(decode::<EventCursor>(bad), None, "{bad}");
        }
    }

    #[test]
    fn parameters_that_nobody_asks_for_are_refused() {
        let mut query =
            Query::parse(Some("limit=20&metadata[order]=7&metadata%5Bb%5D=x&sttaus=failed&status=a&status=b"));
        assert_eq!(query.take_limit().unwrap(), 20);
        let pairs = [("order", "7"), ("b", "x")].map(|(a, b)| (a.to_owned(), b.to_owned()));
        assert_eq!(query.take_map("metadata"), pairs);
        assert!(query.take("status").is_some());
        let Err(ApiError::Invalid(flaws)) = query.finish() else { panic!("taken") };
        let named: Vec<_> = flaws.iter().filter_map(|flaw| flaw.parameter.as_deref()).collect();
        assert_eq!(named, ["status", "sttaus"]);
        for bad in ["0", "201", "-1", "x", ""] {
            assert!(Query::parse(Some(&format!("limit={bad}"))).take_limit().is_err(), "{bad}");
        }
    }
}
