//! One request to an authorization server, or to what describes one: through the egress rules, without redirects,
//! bounded in size.

use http::{HeaderMap, Method, StatusCode, header};
use serde_json::{Map, Value};
use url::Url;

use super::OauthFault;
use crate::net::{EgressClient, describe};

/// Largest answer that is read, in bytes.
const ANSWER_MAX: usize = 256 * 1024;

/// Sends requests.
pub(super) struct Exchange {
    pub(super) client: EgressClient,
}

/// What came back.
pub(super) struct Reply {
    pub(super) status: StatusCode,
    body: Vec<u8>,
}

impl Reply {
    /// The body as a JSON object.
    pub(super) fn object(&self) -> Option<Map<String, Value>> {
        serde_json::from_slice(&self.body).ok()
    }
}

/// What was asked, in the words of a fault: what it is, and its host.
pub(super) fn place(what: &str, url: &Url) -> String {
    format!("{what} at {}", url.host_str().unwrap_or_default())
}

pub(super) fn unreachable(what: &str, url: &Url, why: String) -> OauthFault {
    OauthFault::Unreachable { place: place(what, url), why }
}

impl Exchange {
    /// Begins a request, if the address may be dialled.
    pub(super) fn request(&self, what: &str, method: Method, url: &Url) -> Result<reqwest::RequestBuilder, OauthFault> {
        self.client.request(method, url).map_err(|refusal| unreachable(what, url, refusal.to_string()))
    }

    /// Sends a request and reads the answer.
    pub(super) async fn send(
        &self,
        what: &str,
        url: &Url,
        request: reqwest::RequestBuilder,
    ) -> Result<Reply, OauthFault> {
        let mut answer = self.begin(what, url, request.header(header::ACCEPT, "application/json")).await?;
        let mut body = Vec::new();
        while let Some(chunk) = answer.chunk().await.map_err(|error| unreachable(what, url, describe(&error)))? {
            if body.len().saturating_add(chunk.len()) > ANSWER_MAX {
                return Err(OauthFault::Unusable { place: place(what, url), why: "answers without end".to_owned() });
            }
            body.extend_from_slice(&chunk);
        }
        Ok(Reply { status: answer.status(), body })
    }

    /// Sends a request and reads no more of the answer than its head.
    pub(super) async fn head_of(
        &self,
        what: &str,
        url: &Url,
        request: reqwest::RequestBuilder,
    ) -> Result<HeaderMap, OauthFault> {
        Ok(self.begin(what, url, request).await?.headers().clone())
    }

    async fn begin(
        &self,
        what: &str,
        url: &Url,
        request: reqwest::RequestBuilder,
    ) -> Result<reqwest::Response, OauthFault> {
        request.send().await.map_err(|error| unreachable(what, url, describe(&error)))
    }

    /// Reads a document; `None` where there is none.
    pub(super) async fn document(&self, what: &str, url: &Url) -> Result<Option<Map<String, Value>>, OauthFault> {
        let reply = self.send(what, url, self.request(what, Method::GET, url)?).await?;
        if reply.status.is_server_error() {
            return Err(unreachable(what, url, format!("HTTP {}", reply.status.as_u16())));
        }
        if !reply.status.is_success() {
            return Ok(None);
        }
        let unusable = || OauthFault::Unusable { place: place(what, url), why: "is no JSON object".to_owned() };
        reply.object().ok_or_else(unusable).map(Some)
    }
}
