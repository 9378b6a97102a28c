//! Looks at an answer that has to keep a promise (the tool's output schema) or asks something: at the desk where such work
//! is done. An answer that came is never lost for want of a place there.

use serde_json::Value;

use super::attempt::Stage;
use super::outcome::Promised;
use super::pool::McpPool;
use crate::run::ids::TenantId;
use crate::schema::{Budget, Busy, Unusable};

impl McpPool {
    /// Judges the end of an attempt. `lost` is what is known when the judging itself breaks off.
    pub(super) async fn judged<T: Send + 'static>(
        &self,
        tenant: &TenantId,
        promised: Option<&Value>,
        stage: Stage,
        lost: T,
        judge: impl FnOnce(Stage, Option<Promised<'_>>) -> T + Send + 'static,
    ) -> T {
        let Stage::Answered(message) = &stage else { return judge(stage, None) };
        let asks = ["/result/resultType", "/result/result/resultType"];
        let asks = asks.iter().any(|at| message.pointer(at).is_some_and(|kind| kind == "input_required"));
        if promised.is_none() && !asks {
            return judge(stage, None);
        }
        let schemas = self.schemas();
        let schema = match promised {
            Some(schema) => Some(schemas.of(tenant, schema, &mut Budget::of_one()).await),
            None => None,
        };
        let Ok(place) = schemas.place(tenant).await else {
            return judge(stage, promised.map(|_| Promised::Unusable(Unusable::Busy(Busy))));
        };
        let judging = place.run(move |at| {
            let promised =
                schema.map(|schema| schema.map_or_else(Promised::Unusable, |schema| Promised::By(at, schema)));
            judge(stage, promised)
        });
        judging.await.unwrap_or(lost)
    }
}
