//! Keeps secrets: sealed at rest, opened only where they are sent. No value is ever printed.

use std::collections::HashMap;

use secrecy::SecretString;

/// The opened secrets of one run, by the caller's names.
pub type RunSecrets = HashMap<String, SecretString>;
