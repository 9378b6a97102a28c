//! Waits for a run to end or to wait for somebody. Hears of it from the hub, whichever node drives the run.

use std::time::Duration;

use tokio::time::{Instant, sleep, sleep_until};

use super::Api;
use super::extract::no_run;
use super::problem::ApiError;
use crate::auth::Caller;
use crate::run::status::Status;
use crate::store::RunView;
use crate::store::hub::Heard;

/// The run when it has ended or waits for somebody, or as it stands after `wait`, or when the server stops.
pub(super) async fn until_settled(
    api: &Api,
    caller: &Caller,
    mut view: RunView,
    wait: Duration,
) -> Result<RunView, ApiError> {
    let deadline = Instant::now() + wait;
    let mut subscription = api.hub.subscribe(&caller.tenant, view.uid);
    loop {
        // Read after subscribing: what was committed before is seen here, what comes later is heard.
        view = api
            .store
            .run_fetch(&caller.tenant, &view.id)
            .await?
            .filter(|now| now.uid == view.uid)
            .ok_or_else(no_run)?;
        if is_settled(view.head.status) {
            return Ok(view);
        }
        subscription.reached(view.head.last_seq);
        loop {
            tokio::select! {
                heard = subscription.next() => match heard {
                    Heard::Event(event) if !matches!(event.kind.as_str(), "run-status" | "result") => {}
                    Heard::Event(_) | Heard::Lagged => break,
                },
                () = sleep_until(deadline) => return Ok(view),
                () = api.stopping.cancelled() => return Ok(view),
            }
        }
        // A lagging reader would otherwise read as fast as it lags.
        sleep(Duration::from_millis(5)).await;
    }
}

const fn is_settled(status: Status) -> bool {
    match status {
        Status::Queued | Status::Running => false,
        Status::Suspended(_) | Status::Completed | Status::Stopped(_) | Status::Failed | Status::Cancelled => true,
    }
}
