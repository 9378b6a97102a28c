//! Approval tokens: proof that a voter has seen the very approval that they vote on.
//!
//! `v1.BODY.MAC`: BODY is base64url of a JSON object, MAC is HMAC-SHA256 of `v1.BODY` by a key of the deployment, which
//! the body names. A token binds tenant, run, call and the digest of the arguments; it grants nothing by itself.

use aws_lc_rs::hmac;
use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use serde::{Deserialize, Serialize};
use uuid::Uuid;

use super::{Asker, CommandError, Commands};
use crate::run::approval::{Approval, ApprovalStatus};
use crate::run::ids::{CallId, RunId, TenantId};
use crate::run::time::Timestamp;

const VERSION: &str = "v1";
const PURPOSE: &str = "approval";

/// What a token says.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Body {
    key_id: String,
    tenant: TenantId,
    run: RunId,
    approval: Uuid,
    turn: u32,
    call_id: CallId,
    input_digest: String,
    issued_at: Timestamp,
}

impl Commands {
    /// The token of an approval that waits for votes; `None` for one that does not.
    pub fn approval_token(&self, tenant: &TenantId, approval: &Approval) -> Option<String> {
        if approval.status != ApprovalStatus::Pending {
            return None;
        }
        let (key_id, key) = self.keys.named_signing_keys(PURPOSE).into_iter().next()?;
        let body = Body {
            key_id,
            tenant: tenant.clone(),
            run: approval.run_id.clone(),
            approval: approval.id,
            turn: approval.turn,
            call_id: approval.call_id.clone(),
            input_digest: approval.input_digest.clone(),
            issued_at: self.clock.now(),
        };
        let signed = format!("{VERSION}.{}", URL_SAFE_NO_PAD.encode(serde_json::to_vec(&body).ok()?));
        let mac = URL_SAFE_NO_PAD.encode(hmac::sign(&key, signed.as_bytes()));
        Some(format!("{signed}.{mac}"))
    }

    /// Takes a token only for the approval as it stands.
    pub(super) fn check_token(
        &self,
        asker: &Asker,
        token: Option<&str>,
        approval: &Approval,
    ) -> Result<(), CommandError> {
        let Some(token) = token else { return Ok(()) };
        let Some(body) = self.open_token(token) else {
            return Err(CommandError::TokenRefused("the approval token does not verify"));
        };
        let same = body.tenant == asker.tenant
            && body.run == approval.run_id
            && body.approval == approval.id
            && body.turn == approval.turn
            && body.call_id == approval.call_id;
        if !same {
            return Err(CommandError::TokenRefused("the approval token belongs to another approval"));
        }
        if body.input_digest != approval.input_digest {
            return Err(CommandError::TokenRefused("the arguments changed since the approval token was issued"));
        }
        Ok(())
    }

    fn open_token(&self, token: &str) -> Option<Body> {
        let (signed, mac) = token.rsplit_once('.')?;
        let body = signed.strip_prefix(VERSION)?.strip_prefix('.')?;
        let body: Body = serde_json::from_slice(&URL_SAFE_NO_PAD.decode(body).ok()?).ok()?;
        let mac = URL_SAFE_NO_PAD.decode(mac).ok()?;
        let keys = self.keys.named_signing_keys(PURPOSE);
        let (_, key) = keys.into_iter().find(|(id, _)| *id == body.key_id)?;
        hmac::verify(&key, signed.as_bytes(), &mac).ok()?;
        Some(body)
    }
}
