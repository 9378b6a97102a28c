//! A look at a server: what it says of itself, and its tools. Calls nothing.

use std::sync::Arc;
use std::time::Duration;

use serde_json::Value;
use tokio::time::Instant;

use super::{McpFault, McpPool, McpTarget};
use crate::run::binding::ServedCatalog;
use crate::run::ids::TenantId;

/// What a server said of itself when somebody looked.
#[derive(Clone, Debug)]
pub struct Sighting {
    /// The protocol revision that was agreed on.
    pub protocol_version: String,
    /// The server's name, version and whatever else it says of itself.
    pub server_info: Value,
    /// What it can do.
    pub capabilities: Value,
    /// How long one listing of its tools took.
    pub latency: Duration,
    /// Its tools.
    pub catalog: Arc<ServedCatalog>,
}

impl McpPool {
    /// Looks at a server: what it says of itself, and its tools as they are now. Connects if needed.
    ///
    /// # Errors
    /// What went wrong, in words without secrets.
    pub async fn sight(&self, tenant: &TenantId, target: &McpTarget) -> Result<Sighting, McpFault> {
        // First over whatever connection there is: one that died unnoticed is replaced by this.
        self.catalog(tenant, target, Duration::ZERO).await?;
        let patience = Duration::from_millis(target.timeouts.connect_ms);
        let lease = self.lease(tenant, target).await?;
        let began = Instant::now();
        let read = lease.connection().tools((&self.schemas(), tenant), &target.told, Duration::ZERO, patience).await;
        let catalog = read.map_err(|fault| target.clean(fault))?.catalog;
        let latency = began.elapsed();
        let sighting = lease.connection().sighting(catalog, latency);
        let mut sighting = sighting.map_err(|fault| target.clean(fault))?;
        let told = target.told.now();
        told.value(&mut sighting.server_info);
        told.value(&mut sighting.capabilities);
        if let Some(clean) = told.catalog(&sighting.catalog) {
            sighting.catalog = Arc::new(clean);
        }
        Ok(sighting)
    }
}
