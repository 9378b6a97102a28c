//! Big values, kept once: what is cut out of the texts of a commit, and how a text that was read becomes whole again.
//! Knows JSON text, no SQL.
//!
//! **The rule.** In the text of an event, of a message, and of the arguments and the result of a call, a value is cut
//! out where its own text, less what is cut out inside it, is over 64 KiB. The innermost values are looked at first, so
//! one long text, list or object is found wherever it stands, and the same value in the result of a call, in the event
//! that tells it and in the message for the model is one blob. The whole of an event or a message is never cut out. So
//! no member of a row is much larger than the limit.
//!
//! In the place of the value stands `null`, and the column `blobs` of the row says what belongs there: JSON Pointer
//! (RFC 6901) to digest (SHA-256 of the value's JSON text) and length in bytes. A row without big values has no such
//! column and is exactly what it would be without this file. Texts are cut and joined as texts, so every digit stays.

use std::collections::{BTreeMap, HashMap, HashSet};

use serde::{Deserialize, Serialize};

use super::cut::{Joined, Walk};
use super::{StoreError, codec};
use crate::run::ids::RunUid;
use crate::run::json::sha256_hex;

/// Largest text of a value that stays in its row, in bytes.
pub(super) const LIMIT: usize = 64 * 1024;

/// What stands where a value was cut out.
pub(super) const NOTHING: &str = "null";

/// What belongs in one place of a text.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Blob {
    digest: String,
    bytes: usize,
}

/// By JSON Pointer.
pub(super) type Places = BTreeMap<String, Blob>;

/// What was cut out of the rows of one commit, each text once, by digest.
#[derive(Clone, Debug, Default)]
pub(super) struct Cuttings(BTreeMap<String, String>);

impl Cuttings {
    /// Cuts the big values out of a text whose place in its row is `root`. `None`: there are none.
    pub(super) fn cut(&mut self, root: &str, text: &str, places: &mut Places) -> Option<String> {
        if text.len() <= LIMIT {
            return None;
        }
        let mut walk = Walk::new(text, root);
        walk.value();
        if walk.found.is_empty() {
            return None;
        }
        let mut joined = Joined::new(text);
        for (place, range) in walk.found {
            let value = text.get(range.clone()).unwrap_or_default();
            let digest = sha256_hex(value);
            self.0.entry(digest.clone()).or_insert_with(|| value.to_owned());
            places.insert(place, Blob { digest, bytes: value.len() });
            joined.put(range, NOTHING);
        }
        Some(joined.finish())
    }

    /// Digests and texts.
    pub(super) fn iter(&self) -> impl Iterator<Item = (&str, &str)> {
        self.0.iter().map(|(digest, body)| (digest.as_str(), body.as_str()))
    }

    pub(super) fn len(&self) -> usize {
        self.0.len()
    }

    pub(super) fn bytes(&self) -> usize {
        self.0.values().map(String::len).sum()
    }
}

/// The column of a row; none where nothing was cut out.
pub(super) fn column(places: &Places) -> Result<Option<String>, StoreError> {
    if places.is_empty() { Ok(None) } else { codec::json_text("blobs", places).map(Some) }
}

/// The column as it was read.
pub(super) fn places(column: Option<&str>) -> Result<Places, StoreError> {
    column.map_or_else(|| Ok(Places::new()), |text| codec::texts("blobs", text))
}

/// A text as its row holds it, and what belongs in it.
#[derive(Clone, Debug)]
pub(super) struct Kept {
    text: String,
    root: &'static str,
    places: Places,
}

impl Kept {
    /// The only such text of its row.
    pub(super) fn alone(text: String, column: Option<&str>) -> Result<Self, StoreError> {
        Ok(Self { text, root: "", places: places(column)? })
    }

    /// One of several, with the row's blobs that stand below its place.
    pub(super) fn at(root: &'static str, text: String, row: &Places) -> Self {
        let is_inside =
            |place: &str| place.strip_prefix(root).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'));
        let inside = row.iter().filter(|(place, _)| is_inside(place));
        Self { text, root, places: inside.map(|(place, blob)| (place.clone(), blob.clone())).collect() }
    }

    /// Bytes of the whole text.
    pub(super) fn bytes(&self) -> usize {
        self.places.values().fold(self.text.len(), |sum, blob| sum.saturating_add(blob.bytes))
    }

    /// The text with every blob in its place.
    pub(super) fn whole(self, run: RunUid, bodies: &Bodies) -> Result<String, StoreError> {
        if self.places.is_empty() {
            return Ok(self.text);
        }
        let mut walk = Walk::new(&self.text, self.root);
        walk.wanted = Some(&self.places);
        walk.value();
        if walk.found.len() != self.places.len() {
            return Err(codec::corrupt("blobs", "a place is not in the text"));
        }
        let mut joined = Joined::new(&self.text);
        for (place, range) in walk.found {
            let digest = self.places.get(&place).map(|blob| &blob.digest);
            let body = digest.and_then(|digest| bodies.0.get(&(run, digest.clone())));
            joined.put(range, body.ok_or_else(|| codec::corrupt(MISSING, "is not there"))?);
        }
        Ok(joined.finish())
    }
}

/// Which blobs a page needs, each once.
#[derive(Debug, Default)]
pub(super) struct Wanted(HashSet<(RunUid, String)>);

impl Wanted {
    pub(super) fn add(&mut self, run: RunUid, kept: &Kept) {
        self.0.extend(kept.places.values().map(|blob| (run, blob.digest.clone())));
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (RunUid, &str)> {
        self.0.iter().map(|(run, digest)| (*run, digest.as_str()))
    }
}

/// Blobs that were read.
#[derive(Debug, Default)]
pub(super) struct Bodies(HashMap<(RunUid, String), String>);

impl Bodies {
    pub(super) fn insert(&mut self, run: RunUid, digest: String, body: String) {
        self.0.insert((run, digest), body);
    }
}

const MISSING: &str = "blob";

/// Reads once more when a blob was missing: somebody dropped the rows between the page and its blobs. The second
/// reading does not find the rows either, unless the blob is really lost.
pub(super) async fn once_more<T, F, Fut>(read: F) -> Result<T, StoreError>
where
    F: Fn() -> Fut + Send,
    Fut: Future<Output = Result<T, StoreError>> + Send,
{
    match read().await {
        Err(StoreError::Corrupt { what: MISSING, .. }) => read().await,
        result => result,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn uid() -> RunUid {
        RunUid(uuid::Uuid::from_u128(7))
    }

    fn bodies(cuttings: &Cuttings) -> Bodies {
        let mut bodies = Bodies::default();
        for (digest, body) in cuttings.iter() {
            bodies.insert(uid(), digest.to_owned(), body.to_owned());
        }
        bodies
    }

    /// Cuts, checks that it becomes whole again, and answers the places.
    #[track_caller]
    fn check(text: &str, wanted: &[&str]) -> Cuttings {
        let (mut cuttings, mut places) = (Cuttings::default(), Places::new());
        let cut = cuttings.cut("", text, &mut places);
        assert_eq!(places.keys().map(String::as_str).collect::<Vec<_>>(), wanted);
        let cut = cut.unwrap_or_else(|| text.to_owned());
        assert!(serde_json::from_str::<Value>(&cut).is_ok());
        let column = column(&places).unwrap();
        let kept = Kept::alone(cut, column.as_deref()).unwrap();
        assert!(kept.whole(uid(), &bodies(&cuttings)).unwrap() == text, "it is the same text again");
        cuttings
    }

    fn long(bytes: usize) -> String {
        "x".repeat(bytes)
    }

    #[test]
    fn the_innermost_big_value_is_cut_out_and_put_back_to_the_byte() {
        let at_limit = LIMIT - 2;
        check(&json!({"a": long(at_limit), "b": 1}).to_string(), &[]);
        check(&json!({"a": long(at_limit + 1), "b": null}).to_string(), &["/a"]);
        check(&json!({"a": {"b": [1, {"text": long(LIMIT)}]}, "c": long(LIMIT)}).to_string(), &["/a/b/1/text", "/c"]);
        check(&json!({"a/b": {"~": {"\u{0}\"": long(LIMIT)}}}).to_string(), &["/a~1b/~0/\u{0}\""]);
        check(&json!({"many": vec![long(10); 10_000]}).to_string(), &["/many"]);
        // Neither is over the limit, both together are.
        check(&json!({"a": {"b": long(40_000), "c": long(40_000)}}).to_string(), &["/a"]);
        // What is left of it is over the limit: all of it goes.
        check(&json!({"a": [long(LIMIT), long(40_000), long(40_000)]}).to_string(), &["/a"]);
        check(&json!({"a": [long(LIMIT), long(40_000), long(20_000)]}).to_string(), &["/a/0"]);
        // The whole text is never cut out.
        check(&json!({"a": long(40_000), "b": long(40_000)}).to_string(), &[]);
    }

    #[test]
    fn digits_and_escapes_stay_as_they_were_written() {
        let numbers = vec!["18446744073709551617,117.63331139400017,1E-999,-0.10"; 3_000].join(",");
        let text = format!(r#"{{"output":[{numbers}],"s":"\u0000\ud83d\ude00\\\"","e":{{}},"n":[]}}"#);
        check(&text, &["/output"]);
        let text = format!(r#"{{"t":"{}\\\"\u0000{}"}}"#, long(LIMIT), "\\\\".repeat(9));
        check(&text, &["/t"]);
    }

    #[test]
    fn the_same_value_is_kept_once() {
        let cuttings = check(&json!({"a": long(LIMIT), "b": [long(LIMIT)]}).to_string(), &["/a", "/b/0"]);
        assert_eq!((cuttings.len(), cuttings.bytes()), (1, LIMIT + 2));
    }

    #[test]
    fn the_texts_of_a_row_share_its_column() {
        let (mut cuttings, mut places) = (Cuttings::default(), Places::new());
        let (input, output) = (json!(long(LIMIT)).to_string(), json!({"text": long(LIMIT)}).to_string());
        let cut_input = cuttings.cut("/input", &input, &mut places).unwrap();
        let cut_output = cuttings.cut("/output", &output, &mut places).unwrap();
        assert_eq!((cut_input.as_str(), cut_output.as_str()), ("null", r#"{"text":null}"#));
        let bodies = bodies(&cuttings);
        for (root, cut, whole) in [("/input", cut_input, input), ("/output", cut_output, output)] {
            let kept = Kept::at(root, cut, &places);
            let mut wanted = Wanted::default();
            wanted.add(uid(), &kept);
            assert_eq!(wanted.iter().count(), 1);
            assert_eq!(kept.bytes(), whole.len() + "null".len());
            assert!(kept.whole(uid(), &bodies).unwrap() == whole);
        }
    }

    #[test]
    fn what_does_not_fit_is_corrupt_and_never_guessed() {
        let (mut cuttings, mut places) = (Cuttings::default(), Places::new());
        let cut = cuttings.cut("", &json!({"a": long(LIMIT)}).to_string(), &mut places).unwrap();
        let column = column(&places).unwrap();
        let kept = |text: &str| Kept::alone(text.to_owned(), column.as_deref()).unwrap();
        let is_corrupt =
            |kept: Kept, bodies: &Bodies| matches!(kept.whole(uid(), bodies), Err(StoreError::Corrupt { .. }));
        assert!(is_corrupt(kept(&cut), &Bodies::default()), "the blob is missing");
        for other in [r#"{"a":1}"#, r#"{"b":null}"#, "{", "[", r#"{"a"#, r#"{"a":"#, r#"["\"#, "[}", "[:", ""] {
            assert!(is_corrupt(kept(other), &bodies(&cuttings)), "{other}");
        }
        assert!(Kept::alone(cut, Some("7")).is_err());
    }
}
