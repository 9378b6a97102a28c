//! Why secrets and master keys cannot be used. Names no value and no key material.

/// Why a secret could not be sealed or opened. Names no value.
#[derive(Debug, thiserror::Error)]
pub enum SecretError {
    /// The ring lacks the key that sealed it.
    #[error("secret {name:?} is sealed under the key {key_id:?}, which is not among the master keys")]
    UnknownKey {
        /// The secret's name.
        name: String,
        /// The missing key.
        key_id: String,
    },
    /// It was changed, cut, or belongs to another tenant, run, name or version.
    #[error("secret {name:?} does not open under the key {key_id:?}: it was changed or moved")]
    NotAuthentic {
        /// The secret's name.
        name: String,
        /// The key that was tried.
        key_id: String,
    },
    /// The cryptographic library refused.
    #[error("secret {name:?} could not be sealed")]
    NotSealed {
        /// The secret's name.
        name: String,
    },
}

/// Why master keys do not read. Names no key material.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum KeyRingFault {
    /// There is none.
    #[error("holds no key; the form is keyid:base64,… with keys of 32 bytes")]
    Empty,
    /// An entry without a colon, or with a key id that does not fit.
    #[error("entry {0} is not keyid:base64 (a key id has 1 to 64 of A-Z a-z 0-9 . _ -)")]
    Form(usize),
    /// An entry whose key is not 32 bytes of base64.
    #[error("the key {0:?} is not 32 bytes of base64")]
    Length(String),
    /// A key id that stands twice.
    #[error("the key id {0:?} stands twice")]
    Twice(String),
}
