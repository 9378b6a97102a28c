//! Where a sealed value belongs: what it is bound to as its associated data, so that it opens nowhere else.

use crate::run::ids::{RunUid, TenantId};

/// A run-scoped secret has one version: it never changes.
const RUN_SECRET_VERSION: u32 = 1;

/// Where a run's secret belongs.
pub(super) fn place(tenant: &TenantId, run: RunUid, name: &str) -> Vec<u8> {
    let version = RUN_SECRET_VERSION.to_string();
    joined(&[
        b"countersign/run-secret",
        tenant.as_str().as_bytes(),
        run.0.as_bytes(),
        name.as_bytes(),
        version.as_bytes(),
    ])
}

/// Where a version of a stored secret belongs.
pub(super) fn stored_place(tenant: &TenantId, name: &str, version: u32) -> Vec<u8> {
    let version = version.to_string();
    joined(&[b"countersign/stored-secret", tenant.as_str().as_bytes(), name.as_bytes(), version.as_bytes()])
}

/// Unambiguous: every part stands behind its length.
pub(super) fn joined(parts: &[&[u8]]) -> Vec<u8> {
    let mut out = Vec::new();
    for part in parts {
        out.extend_from_slice(&u64::try_from(part.len()).unwrap_or(u64::MAX).to_be_bytes());
        out.extend_from_slice(part);
    }
    out
}
