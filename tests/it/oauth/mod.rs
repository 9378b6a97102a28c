//! Access tokens by OAuth's client credentials grant: how they are found, asked for, shared, renewed and kept secret.

mod discovery;
mod nodes;
mod real;
mod runs;
mod shared;

use std::sync::Arc;
use std::time::Duration;

use countersign::clock::SystemClock;
use countersign::net::{Egress, EgressAllow};
use countersign::oauth::{TokenParts, Tokens};
use countersign::secrets::KeyRing;
use countersign::store::Store;
use serde_json::{Value, json};
use tokio_util::task::TaskTracker;

const MASTER_KEY: &str = "k1:AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8=";

/// The tokens of one node.
pub(crate) fn tokens(store: &Arc<dyn Store>, keys: &str) -> Arc<Tokens> {
    let egress = Egress::new(EgressAllow::parse(["127.0.0.0/8", "localhost"]).unwrap());
    Tokens::new(TokenParts {
        client: egress.client(Duration::from_secs(5), None).unwrap(),
        keys: Arc::new(KeyRing::parse(keys).unwrap()),
        store: Arc::clone(store) as Arc<_>,
        clock: Arc::new(SystemClock),
        tasks: TaskTracker::new(),
    })
}

/// The auth of an entry, with these fields besides.
fn auth(more: Value) -> Value {
    let mut auth = json!({"scheme": "oauth-client-credentials", "client_id": "svc", "secret": "client"});
    auth.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    auth
}
