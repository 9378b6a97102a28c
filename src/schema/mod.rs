//! The one place where JSON Schemas are compiled and values are checked by them: those of tools, of forms, of requests.
//!
//! Schemas come from servers and tenants, and so do the values. So all of it is bounded: what a schema costs is counted
//! before it is compiled (`cost`), and so is the sum of a set of schemas (`Budget`); a check counts its looks
//! (`counted`); compiled schemas are kept by what they weigh (`cache`); and whatever takes more than a moment is done at
//! the desk, where tenants take turns (`desk`). Knows nothing of tools, servers and runs.

mod cache;
mod compiled;
mod cost;
mod counted;
mod desk;
pub mod form;
mod inline;
mod pattern;

use std::sync::Arc;

use aws_lc_rs::digest;
use parking_lot::Mutex;
use serde_json::Value;

pub use compiled::{FAULT_MAX, Flaw, Schema};
pub use desk::{AtDesk, Busy, Place};

use crate::run::ids::TenantId;
use cache::{Digest, Kept};
use desk::Desk;

/// Most steps of all schemas of one catalog, or of one request.
const SET_STEPS: u64 = 3_000_000;

/// What the schemas of one set may cost together. It is charged for what is known already too, so that what is taken of a
/// set does not depend on who came before.
#[derive(Debug)]
pub struct Budget(u64);

impl Budget {
    /// That of one catalog, or of one request.
    pub const fn of_set() -> Self {
        Self(SET_STEPS)
    }

    /// That of one schema that was taken before.
    pub const fn of_one() -> Self {
        Self(cost::STEPS_MAX)
    }

    fn spend(&mut self, steps: u64) -> Result<(), Unusable> {
        match self.0.checked_sub(steps) {
            Some(left) => {
                self.0 = left;
                Ok(())
            }
            None => Err(Unusable::Fault("takes too long to compile together with the other schemas".into())),
        }
    }
}

/// Why a schema cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Unusable {
    /// It never can; says why, in words that follow "it".
    #[error("{0}")]
    Fault(Arc<str>),
    /// Not now.
    #[error(transparent)]
    Busy(#[from] Busy),
}

/// The schemas of a node.
#[derive(Default)]
pub struct Schemas {
    kept: Mutex<Kept>,
    desk: Desk,
}

impl Schemas {
    /// The compiled form of a schema.
    ///
    /// # Errors
    /// Why there is none.
    pub async fn of(
        self: &Arc<Self>,
        tenant: &TenantId,
        schema: &Value,
        budget: &mut Budget,
    ) -> Result<Arc<Schema>, Unusable> {
        let key = charge(schema, budget)?;
        if let Some(known) = self.kept.lock().find(&key) {
            return known.map_err(Unusable::Fault);
        }
        let (schemas, schema) = (Arc::clone(self), schema.clone());
        self.place(tenant).await?.run(move |_| schemas.compile(key, &schema)).await?
    }

    /// The same at the desk.
    ///
    /// # Errors
    /// Why there is none; never that the node is busy.
    pub fn of_here(&self, _at: &AtDesk, schema: &Value, budget: &mut Budget) -> Result<Arc<Schema>, Unusable> {
        let key = charge(schema, budget)?;
        if let Some(known) = self.kept.lock().find(&key) {
            return known.map_err(Unusable::Fault);
        }
        self.compile(key, schema)
    }

    fn compile(&self, key: Digest, schema: &Value) -> Result<Arc<Schema>, Unusable> {
        let compiled = Schema::compile(schema).map(Arc::new).map_err(Arc::from);
        self.kept.lock().keep(key, compiled.clone());
        compiled.map_err(Unusable::Fault)
    }

    /// What is wrong with a value, at most `max` flaws.
    ///
    /// # Errors
    /// The node is busy.
    pub async fn flaws(
        &self,
        tenant: &TenantId,
        schema: &Arc<Schema>,
        value: &Value,
        max: usize,
    ) -> Result<Vec<Flaw>, Busy> {
        if let Some(flaws) = schema.flaws_at_once(value, max) {
            return Ok(flaws);
        }
        let (schema, value) = (Arc::clone(schema), value.clone());
        self.place(tenant).await?.run(move |at| schema.flaws_here(at, &value, max)).await
    }

    /// A place for work that is done at the desk.
    ///
    /// # Errors
    /// There was none in time.
    pub async fn place(&self, tenant: &TenantId) -> Result<Place<'_>, Busy> {
        self.desk.place(tenant).await
    }
}

impl Schema {
    /// What is wrong with a value, at most `max` flaws; at the desk.
    pub fn flaws_here(&self, _at: &AtDesk, value: &Value, max: usize) -> Vec<Flaw> {
        self.flaws(value, max)
    }
}

/// Charges a schema, and says by which name it is kept.
fn charge(schema: &Value, budget: &mut Budget) -> Result<Digest, Unusable> {
    let cost = cost::of(schema).map_err(|why| Unusable::Fault(why.into()))?;
    budget.spend(cost.steps)?;
    let mut key = [0; 32];
    key.copy_from_slice(digest::digest(&digest::SHA256, schema.to_string().as_bytes()).as_ref());
    Ok(key)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[tokio::test]
    async fn a_schema_is_compiled_once_and_charged_each_time() {
        let (schemas, tenant) = (Arc::new(Schemas::default()), TenantId::parse("acme").unwrap());
        let schema = json!({ "type": "string" });
        let mut budget = Budget::of_set();
        let first = schemas.of(&tenant, &schema, &mut budget).await.unwrap();
        let spent = SET_STEPS - budget.0;
        assert!(Arc::ptr_eq(&first, &schemas.of(&tenant, &schema, &mut budget).await.unwrap()));
        assert_eq!(budget.0, SET_STEPS - 2 * spent);
        let why = schemas.of(&tenant, &json!({ "type": 7 }), &mut budget).await.err().unwrap();
        assert!(why.to_string().contains("is no JSON Schema"), "{why}");
        let mut little = Budget(spent);
        assert!(schemas.of(&tenant, &schema, &mut little).await.is_ok());
        let why = schemas.of(&tenant, &schema, &mut little).await.err().unwrap();
        assert!(why.to_string().contains("together with the other schemas"), "{why}");
    }

    #[tokio::test]
    async fn a_value_is_checked_at_once_or_at_the_desk_with_the_same_end() {
        let (schemas, tenant) = (Arc::new(Schemas::default()), TenantId::parse("acme").unwrap());
        let schema = json!({ "items": { "type": "integer" } });
        let schema = schemas.of(&tenant, &schema, &mut Budget::of_one()).await.unwrap();
        for length in [3, 3_000] {
            let mut items = vec![json!(1); length];
            let value = Value::from(items.clone());
            assert_eq!(schema.flaws_at_once(&value, 5).is_some(), length == 3);
            assert_eq!(schemas.flaws(&tenant, &schema, &value, 5).await, Ok(vec![]));
            items[1] = json!("x");
            let flaws = schemas.flaws(&tenant, &schema, &Value::from(items), 5).await.unwrap();
            assert_eq!((flaws.len(), flaws[0].pointer.as_str()), (1, "/1"));
        }
    }
}
