//! Logs and counters. Nothing here may carry a tenant's name, a token, or a payload.
//!
//! Counters, all `countersign_…`: `http_requests_total{method,route,status}`, `http_request_seconds{route}`,
//! `runs_finished_total{status}`, `calls_settled_total{stage}`, `model_requests_total{provider,outcome}`,
//! `journal_batch_commits`, `event_readers`; of MCP servers `mcp_connections{transport}`, `mcp_connects_total{transport}`,
//! `mcp_connect_failures_total{transport,kind}`, `mcp_breaker_openings_total`, `mcp_waiting`, `mcp_calls_total{outcome}`,
//! `mcp_call_seconds`.

use metrics::{Unit, describe_counter, describe_gauge, describe_histogram};
use metrics_exporter_prometheus::{Matcher, PrometheusBuilder, PrometheusHandle};
use tracing_subscriber::EnvFilter;

use crate::config::LogFormat;

/// What is logged unless the operator says otherwise: libraries that log payloads are kept to warnings.
const DEFAULT_FILTER: &str = "info,hyper=warn,hyper_util=warn,h2=warn,reqwest=warn,rustls=warn,sqlx=warn";

/// Libraries that log whole messages at levels that an operator may ask for: secrets would stand in them.
const NEVER_LOGGED: [&str; 2] = ["rmcp", "rig_core"];

/// Bounds of request times, in seconds.
const SECONDS: [f64; 11] = [0.001, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 5.0, 60.0];

/// Bounds of batch sizes, in commits.
const BATCH: [f64; 9] = [1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 128.0, 256.0];

/// Runs that ended, by terminal status.
pub const RUNS_FINISHED: &str = "countersign_runs_finished_total";
/// Calls that settled or whose outcome is unknown, by stage.
pub const CALLS_SETTLED: &str = "countersign_calls_settled_total";
/// Model requests, by provider and outcome (`ok` or an error's code).
pub const MODEL_REQUESTS: &str = "countersign_model_requests_total";
/// Commits that were stored in one transaction.
pub const JOURNAL_BATCH: &str = "countersign_journal_batch_commits";

/// Why logs or counters did not start.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TelemetryFault {
    /// The operator's filter does not read.
    #[error("RUST_LOG: {0}")]
    Filter(String),
    /// They were started before in this process.
    #[error("logs or counters cannot be started: {0}")]
    Started(String),
}

/// Writes logs to stderr from now on.
///
/// # Errors
/// `Filter`, `Started`.
pub fn start_logs(format: LogFormat, filter: Option<&str>) -> Result<(), TelemetryFault> {
    let filter = EnvFilter::try_new(without_payloads(filter.unwrap_or(DEFAULT_FILTER)));
    let filter = filter.map_err(|fault| TelemetryFault::Filter(fault.to_string()))?;
    let builder = tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr);
    let started = match format {
        LogFormat::Json => builder.json().flatten_event(true).with_current_span(false).with_span_list(false).try_init(),
        LogFormat::Text => builder.with_ansi(false).with_target(false).try_init(),
    };
    started.map_err(|fault| TelemetryFault::Started(fault.to_string()))
}

/// The operator's filter without what logs payloads, whatever it says of that.
fn without_payloads(filter: &str) -> String {
    let names_none = |directive: &&str| !NEVER_LOGGED.iter().any(|library| directive.trim().starts_with(library));
    let kept = filter.split(',').filter(names_none).map(str::to_owned);
    let off = NEVER_LOGGED.iter().map(|library| format!("{library}=off"));
    kept.chain(off).collect::<Vec<_>>().join(",")
}

/// Counts from now on. Call `run_upkeep` of the answer every few seconds: nobody else does.
///
/// # Errors
/// `Started`.
pub fn start_metrics() -> Result<PrometheusHandle, TelemetryFault> {
    let started = PrometheusBuilder::new()
        .set_buckets_for_metric(Matcher::Suffix("_seconds".to_owned()), &SECONDS)
        .and_then(|builder| builder.set_buckets_for_metric(Matcher::Suffix("_commits".to_owned()), &BATCH))
        .and_then(PrometheusBuilder::install_recorder);
    let handle = started.map_err(|fault| TelemetryFault::Started(fault.to_string()))?;
    describe_counter!("countersign_http_requests_total", "Requests by method, route and status");
    describe_histogram!("countersign_http_request_seconds", Unit::Seconds, "Time until an answer began, by route");
    describe_counter!(RUNS_FINISHED, "Runs that ended, by status");
    describe_counter!(CALLS_SETTLED, "Calls that settled or whose outcome is unknown, by stage");
    describe_counter!(MODEL_REQUESTS, "Model requests, by provider and outcome");
    describe_histogram!(JOURNAL_BATCH, Unit::Count, "Commits that were stored in one transaction");
    describe_histogram!("countersign_claim_seconds", Unit::Seconds, "Time that one look for due runs took");
    describe_histogram!("countersign_room_wait_seconds", Unit::Seconds, "Time that a run waited for room for a call");
    describe_gauge!("countersign_event_readers", "Open event streams");
    describe_mcp();
    Ok(handle)
}

fn describe_mcp() {
    describe_gauge!("countersign_mcp_connections", "Open connections to MCP servers, by transport");
    describe_counter!("countersign_mcp_connects_total", "Connections that were opened, by transport");
    describe_counter!(
        "countersign_mcp_connect_failures_total",
        "Connections that failed to open, by transport and kind"
    );
    describe_counter!("countersign_mcp_breaker_openings_total", "Times that a server was taken for down");
    describe_counter!("countersign_schema_busy_total", "Work on JSON Schemas that found no place in time");
    describe_gauge!("countersign_mcp_waiting", "Callers that wait for a free connection");
    describe_counter!("countersign_mcp_calls_total", "Calls of MCP tools, by outcome");
    describe_histogram!(
        "countersign_mcp_call_seconds",
        Unit::Seconds,
        "Time of a call of an MCP tool, with its retries"
    );
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_default_filter_reads() {
        assert!(EnvFilter::try_new(without_payloads(DEFAULT_FILTER)).is_ok());
    }

    #[test]
    fn what_logs_payloads_stays_off_whatever_the_operator_says() {
        assert_eq!(without_payloads("debug"), "debug,rmcp=off,rig_core=off");
        let asked = "info,rmcp=trace, rmcp::transport=debug,rig_core[span]=debug,sqlx=debug";
        assert_eq!(without_payloads(asked), "info,sqlx=debug,rmcp=off,rig_core=off");
        assert!(EnvFilter::try_new(without_payloads("x=nonsense")).is_err(), "a typing error is still told");
    }

    #[test]
    fn counters_are_printed_with_their_bounds() {
        let handle = start_metrics().unwrap();
        metrics::counter!(RUNS_FINISHED, "status" => "completed").increment(2);
        metrics::histogram!(JOURNAL_BATCH).record(3.0);
        let printed = handle.render();
        assert!(printed.contains("countersign_runs_finished_total{status=\"completed\"} 2"), "{printed}");
        assert!(printed.contains("countersign_journal_batch_commits_bucket{le=\"4\"} 1"), "{printed}");
        assert!(start_metrics().is_err());
    }
}
