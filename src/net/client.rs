//! A client whose every request is judged before it begins.

use http::Method;
use url::Url;

use super::{Egress, EgressRefusal};

/// An HTTP client that dials only what is let through. Its clones share connections.
#[derive(Clone, Debug)]
pub struct EgressClient {
    pub(super) http: reqwest::Client,
    egress: Egress,
}

impl EgressClient {
    pub(super) fn new(http: reqwest::Client, egress: Egress) -> Self {
        Self { http, egress }
    }

    /// Begins a request to an address that may be dialled.
    ///
    /// # Errors
    /// Why it may not; nothing was dialled.
    pub fn request(&self, method: Method, url: &Url) -> Result<reqwest::RequestBuilder, EgressRefusal> {
        self.egress.check(url)?;
        Ok(self.http.request(method, url.clone()))
    }

    /// Judges an address without dialling it.
    ///
    /// # Errors
    /// Why it may not be dialled.
    pub fn check(&self, url: &Url) -> Result<(), EgressRefusal> {
        self.egress.check(url)
    }
}
