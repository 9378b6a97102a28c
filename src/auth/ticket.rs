//! Stream tickets: what a browser's `EventSource`, which can send no header, shows instead of a token.
//!
//! A ticket is signed, so any node takes it, and keeps no state. It opens the events of one run, for reading. Its first
//! use must come soon after it was made; a later use must be a reconnect, which shows itself by the number of the last
//! event that was read.

use aws_lc_rs::hmac;
use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use serde::{Deserialize, Serialize};

use super::Caller;
use crate::run::ids::{Actor, RunId, RunUid, TenantId};
use crate::run::time::Timestamp;

/// How soon a ticket must be used first, in milliseconds.
const FIRST_USE_MS: i64 = 60_000;

/// How long a ticket is good at most, in milliseconds.
const LIFE_MS: i64 = 3_600_000;

/// Longest ticket that is looked at, in bytes.
const TICKET_MAX: usize = 4096;

/// What a ticket says.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Ticket {
    /// Whose run it is.
    pub tenant: TenantId,
    /// Who may read it.
    pub actor: Actor,
    /// The run's name.
    pub run: RunId,
    /// The run itself: a run that is created again under the same name is another one.
    pub uid: RunUid,
    /// When the ticket was made.
    pub made_at: Timestamp,
    /// When it ends; a stream opened with it ends then.
    pub expires_at: Timestamp,
}

/// Why a ticket is not taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TicketRefusal {
    /// Not signed by this deployment, or changed.
    #[error("the ticket does not verify")]
    Invalid,
    /// Too old.
    #[error("the ticket has expired")]
    Expired,
    /// Its first use comes too late.
    #[error("the ticket was not used within 60 seconds")]
    Late,
}

/// Makes and verifies tickets.
pub struct Tickets(Vec<hmac::Key>);

impl Tickets {
    /// With the deployment's keys: the first signs, all of them verify.
    pub const fn new(keys: Vec<hmac::Key>) -> Self {
        Self(keys)
    }

    /// A ticket for one run; `None` when there is no key.
    pub fn make(&self, caller: &Caller, run: &RunId, uid: RunUid, now: Timestamp) -> Option<(String, Timestamp)> {
        let expires_at = caller.expires_at.min(now.plus_millis(LIFE_MS));
        let ticket = Ticket {
            tenant: caller.tenant.clone(),
            actor: caller.actor.clone(),
            run: run.clone(),
            uid,
            made_at: now,
            expires_at,
        };
        let body = URL_SAFE_NO_PAD.encode(serde_json::to_vec(&ticket).ok()?);
        let mac = URL_SAFE_NO_PAD.encode(hmac::sign(self.0.first()?, body.as_bytes()));
        Some((format!("{body}.{mac}"), expires_at))
    }

    /// What a ticket says.
    ///
    /// # Errors
    /// Why it is not taken.
    pub fn read(&self, text: &str, is_reconnect: bool, now: Timestamp) -> Result<Ticket, TicketRefusal> {
        let ticket = self.open(text).ok_or(TicketRefusal::Invalid)?;
        if now >= ticket.expires_at {
            return Err(TicketRefusal::Expired);
        }
        if !is_reconnect && now.millis_since(ticket.made_at) > FIRST_USE_MS {
            return Err(TicketRefusal::Late);
        }
        Ok(ticket)
    }

    fn open(&self, text: &str) -> Option<Ticket> {
        let (body, mac) = text.split_once('.').filter(|_| text.len() <= TICKET_MAX)?;
        let mac = URL_SAFE_NO_PAD.decode(mac).ok()?;
        self.0.iter().find(|key| hmac::verify(key, body.as_bytes(), &mac).is_ok())?;
        serde_json::from_slice(&URL_SAFE_NO_PAD.decode(body).ok()?).ok()
    }
}
