//! The sub-commands: read the settings, build the server, wait for the signal.

use std::io::Write as _;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use clap::Args;
use secrecy::ExposeSecret;
use tokio::net::TcpListener;
use tokio::signal::unix::{SignalKind, signal};
use tokio_util::sync::CancellationToken;

use crate::app::{App, Grants, Server};
use crate::auth::{Grant, Scope, mint, parse_ttl, subject};
use crate::clock::{Clock, SystemClock};
use crate::config::{self, Config};
use crate::http::{ConnectionLimits, openapi};
use crate::mcp::{demo, stand_guard};
use crate::run::ids::{Actor, TenantId};
use crate::secrets::rotate::rotate;
use crate::telemetry;

/// How often the counters fold what they measured.
const UPKEEP: Duration = Duration::from_secs(5);

/// Which token is printed.
#[derive(Args, Debug)]
pub struct TokenArguments {
    /// Whose things its holder may touch.
    #[arg(long)]
    tenant: String,
    /// Who holds it.
    #[arg(long)]
    sub: String,
    /// What it allows, separated by spaces, e.g. "runs:read runs:write".
    #[arg(long)]
    scope: String,
    /// How long it is good: 90s, 15m, 1h, 7d.
    #[arg(long, default_value = "1h")]
    ttl: String,
    /// Of a worker: the identity that it runs under.
    #[arg(long)]
    workload_identity: Option<String>,
    /// Of a worker: the digest of the image that it runs.
    #[arg(long)]
    image_digest: Option<String>,
}

/// Starts the whole product on SQLite and says how to use it.
///
/// # Errors
/// With the part that does not work.
pub fn dev(listen: SocketAddr, data: &Path, file: Option<&Path>) -> anyhow::Result<()> {
    let config = with_file(Config::dev(data, listen, &config::process_env)?, file)?;
    telemetry::start_logs(config.log, config.log_filter.as_deref())?;
    runtime()?.block_on(async {
        let stop = CancellationToken::new();
        let demo = demo_listener(data).await?;
        let at = demo.local_addr()?;
        let served = axum::serve(demo, demo::router(demo::DemoLedger::default(), stop.clone()));
        let demo_stop = stop.clone();
        let demo = async move { served.with_graceful_shutdown(async move { demo_stop.cancelled().await }).await };
        let (server, served) = tokio::join!(start_and_greet(&config, (data, at), stop), demo);
        served.context("the demo MCP server")?;
        server
    })
}

/// The port of the demo MCP server, kept in the folder: the folder's runs look for their server at the address that they
/// were made with, also after a restart. Another one is taken when somebody else has it meanwhile.
async fn demo_listener(data: &Path) -> anyhow::Result<TcpListener> {
    let file = data.join("demo-port");
    let kept = std::fs::read_to_string(&file).ok().and_then(|text| text.trim().parse::<u16>().ok());
    if let Some(port) = kept
        && let Ok(listener) = TcpListener::bind((Ipv4Addr::LOCALHOST, port)).await
    {
        return Ok(listener);
    }
    TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.context("a port for the demo MCP server")
}

/// Keeps the port. Only a server that has started does, and so has the folder to itself: one that is refused moves nothing.
fn keep_demo_port(data: &Path, demo: SocketAddr) -> anyhow::Result<()> {
    let file = data.join("demo-port");
    std::fs::write(&file, demo.port().to_string()).with_context(|| file.display().to_string())
}

async fn start_and_greet(
    config: &Config,
    (data, demo): (&Path, SocketAddr),
    stop: CancellationToken,
) -> anyhow::Result<()> {
    let _stops_the_demo = stop.drop_guard();
    let server = start(config, true).await?;
    keep_demo_port(data, demo)?;
    greet(config, server.address(), &format!("http://{demo}/mcp"))?;
    server.run_until(asked_to_stop()?).await
}

/// Starts a production server.
///
/// # Errors
/// With the setting or the part that does not work.
pub fn serve(migrate: bool, file: Option<&Path>) -> anyhow::Result<()> {
    let mut config = with_file(Config::from_env(&config::process_env)?, file)?;
    telemetry::start_logs(config.log, config.log_filter.as_deref())?;
    let files = config::raise_open_files();
    tracing::info!(files, "open files that this process may have");
    let cut = config.fit_open_files(files);
    for warning in config.warnings.iter().chain(&cut).chain(&config::unknown_variables()) {
        tracing::warn!("{warning}");
    }
    #[cfg(debug_assertions)]
    arm_failpoints()?;
    runtime()?.block_on(async {
        let server = start(&config, migrate).await?;
        tracing::info!(address = %server.address(), "ready");
        server.run_until(asked_to_stop()?).await
    })
}

/// The settings with what the file declares. This program itself stands guard over the processes that come of it.
fn with_file(config: Config, file: Option<&Path>) -> anyhow::Result<Config> {
    let Some(file) = file else { return Ok(config) };
    let mut config = config.with_file(file)?;
    config.stdio_guard = Some(std::env::current_exe().context("the path of this program")?);
    Ok(config)
}

/// Stands guard over the processes of MCP servers until standard input closes, then ends those that are left.
///
/// # Errors
/// When standard input does not read.
pub fn stdio_guard() -> anyhow::Result<()> {
    Ok(stand_guard(std::io::stdin().lock())?)
}

#[cfg(debug_assertions)]
fn arm_failpoints() -> anyhow::Result<()> {
    if let Some(plan) = Config::failpoints_from_env(&config::process_env)? {
        crate::failpoint::arm(plan).context("COUNTERSIGN_FAILPOINT_LOG")?;
    }
    Ok(())
}

async fn start(config: &Config, migrate: bool) -> anyhow::Result<Server> {
    let listener =
        TcpListener::bind(config.listen).await.with_context(|| format!("COUNTERSIGN_LISTEN: {}", config.listen))?;
    let counters = telemetry::start_metrics()?;
    let app = App::start(config, Arc::new(SystemClock), migrate).await?;
    app.every(UPKEEP, {
        let counters = counters.clone();
        move || counters.run_upkeep()
    });
    let most = usize::try_from(config.max_connections).unwrap_or(usize::MAX);
    let connection = ConnectionLimits { most, ..ConnectionLimits::default() };
    let grants = Grants { connection, ..Grants::default() };
    Server::start(config, app, listener, Arc::new(move || counters.render()), grants)
}

/// Brings the schema up to date.
///
/// # Errors
/// The store's.
pub fn migrate() -> anyhow::Result<()> {
    let url = Config::database_from_env(&config::process_env)?;
    runtime()?.block_on(async {
        let store = crate::store::open(url.expose_secret(), true).await.context("COUNTERSIGN_DATABASE_URL")?;
        store.close().await;
        print("The schema is up to date.\n")
    })
}

/// Seals every stored secret anew under the first master key.
///
/// # Errors
/// The store's; secrets that do not open, after all others were done.
pub fn rotate_secrets() -> anyhow::Result<()> {
    let env = &config::process_env;
    let (url, keys) = (Config::database_from_env(env)?, Config::keys_from_env(env)?);
    let rotated = runtime()?.block_on(async {
        let store = crate::store::open(url.expose_secret(), false).await.context("COUNTERSIGN_DATABASE_URL")?;
        let rotated = rotate(&*store, &keys).await;
        store.close().await;
        rotated.context("COUNTERSIGN_DATABASE_URL")
    })?;
    let first = keys.first_id();
    print(&format!("{} secrets were sealed anew under the key {first:?}.\n", rotated.resealed))?;
    if rotated.forgotten > 0 {
        print(&format!("{} access tokens under other keys were forgotten.\n", rotated.forgotten))?;
    }
    if rotated.left.is_empty() {
        return print(&format!("Every stored secret is under {first:?} now.\n"));
    }
    let left: Vec<String> = rotated.left.iter().map(|(why, count)| format!("{count} {why}")).collect();
    anyhow::bail!("some secrets are not under {first:?}: {}", left.join("; "))
}

/// Prints the `OpenAPI` document.
///
/// # Errors
/// When it does not print, or names what keeps `serve` from starting.
pub fn openapi() -> anyhow::Result<()> {
    print(&openapi::print(&openapi::document()))
}

/// Prints a token.
///
/// # Errors
/// With the argument or setting that does not fit.
pub fn token(arguments: &TokenArguments) -> anyhow::Result<()> {
    let settings = Config::auth_from_env(&config::process_env)?;
    known_scopes(&arguments.scope)?;
    let grant = Grant {
        tenant: TenantId::parse(arguments.tenant.as_str()).context("--tenant is no name")?,
        actor: subject(&arguments.sub).context("--sub is no name")?,
        scope: arguments.scope.clone(),
        ttl_s: parse_ttl(&arguments.ttl).context("--ttl is no duration like 90s, 15m, 1h or 7d")?,
        workload_identity: arguments.workload_identity.clone(),
        image_digest: arguments.image_digest.clone(),
    };
    print(&format!("{}\n", mint(&settings, &grant, SystemClock.now())?))
}

/// A token with a misspelt scope would be refused only where it is used.
fn known_scopes(scope: &str) -> anyhow::Result<()> {
    let known = || Scope::ALL.iter().map(|scope| scope.code()).collect::<Vec<_>>().join(", ");
    match scope.split_whitespace().find(|name| Scope::from_code(name).is_none()) {
        Some(name) => anyhow::bail!("--scope: {name} is none of {}", known()),
        None => Ok(()),
    }
}

/// Prints every setting, and the names that are none.
///
/// # Errors
/// When it does not print, or names what keeps `serve` from starting.
pub fn config() -> anyhow::Result<()> {
    let mut text = Config::report(&config::process_env);
    for warning in config::unknown_variables().into_iter().chain(Config::unfitting(&config::process_env)) {
        text.extend(["\n", warning.as_str(), "\n"]);
    }
    print(&text)?;
    // Scripts look at the exit code: `serve` would not start with this.
    Config::from_env(&config::process_env)?;
    Ok(())
}

/// Prints to standard output; a reader that went away is no fault.
///
/// # Errors
/// Every other failure to write.
pub fn print(text: &str) -> anyhow::Result<()> {
    let mut out = std::io::stdout().lock();
    match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
        Err(fault) if fault.kind() == std::io::ErrorKind::BrokenPipe => Ok(()),
        written => Ok(written?),
    }
}

fn greet(config: &Config, address: SocketAddr, demo_url: &str) -> anyhow::Result<()> {
    let grant = Grant {
        tenant: TenantId::parse("dev").context("the tenant of dev")?,
        actor: Actor::parse("developer").context("the actor of dev")?,
        scope: "admin".to_owned(),
        ttl_s: 7 * 24 * 60 * 60,
        workload_identity: None,
        image_digest: None,
    };
    let token = mint(&config.auth, &grant, SystemClock.now())?;
    let body = format!(
        r#"{{"id":"charge-demo","model":{{"provider":"scripted","name":"demo","script":[{{"tool_calls":[{{"name":"charge","arguments":{{"amount":5}}}}]}},{{"text":"Charged 5."}}]}},"input":"Charge 5.","mcp":[{{"url":"{demo_url}"}}]}}"#
    );
    print(&format!(
        "Countersign is ready.\n\n  Overview  http://{address}/\n  API docs  http://{address}/docs\n  Demo MCP  {demo_url}\n\
         \nA token for the tenant \"dev\", good for 7 days:\n\n  export TOKEN={token}\n\
         \nRun the first example (the answer comes when the run is done):\n\n  \
         curl -sS http://{address}/v1/runs -H \"Authorization: Bearer $TOKEN\" -H 'Content-Type: application/json' \
         -H 'Prefer: wait=10' -d '{body}'\n\nStop with Ctrl-C.\n"
    ))
}

fn runtime() -> anyhow::Result<tokio::runtime::Runtime> {
    tokio::runtime::Builder::new_multi_thread().enable_all().build().context("starting the runtime")
}

/// Resolves at SIGTERM or Ctrl-C.
fn asked_to_stop() -> anyhow::Result<impl Future<Output = ()> + Send> {
    let mut terminate = signal(SignalKind::terminate()).context("SIGTERM")?;
    let mut interrupt = signal(SignalKind::interrupt()).context("SIGINT")?;
    Ok(async move {
        tokio::select! {
            _ = terminate.recv() => {}
            _ = interrupt.recv() => {}
        }
    })
}

/// What went wrong with the causes of it, each said once: many repeat what they come of.
pub fn explained(fault: &anyhow::Error) -> String {
    fault.chain().fold(String::new(), |mut text, cause| {
        let said = cause.to_string();
        if !text.contains(&said) {
            if !text.is_empty() {
                text.push_str(": ");
            }
            text.push_str(&said);
        }
        text
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_misspelt_scope_is_refused_with_the_names_that_there_are() {
        assert!(known_scopes("runs:read  runs:write admin").is_ok());
        let refused = known_scopes("runs:read run:write").unwrap_err().to_string();
        assert!(refused.starts_with("--scope: run:write is none of runs:read, runs:write, "), "{refused}");
    }

    #[test]
    fn what_went_wrong_is_said_once_with_its_causes_and_without_where_that_was_found_out() {
        let refused = || std::io::Error::new(std::io::ErrorKind::ConnectionRefused, "refused");
        let repeats = anyhow::Error::new(refused()).context("the database is not available: refused");
        assert_eq!(explained(&repeats.context("URL")), "URL: the database is not available: refused");
        assert_eq!(explained(&anyhow::Error::new(refused()).context("URL")), "URL: refused");
    }

    #[tokio::test]
    async fn the_demo_server_keeps_its_port_over_restarts_and_moves_only_when_it_is_taken() {
        let folder = tempfile::tempdir().unwrap();
        let first = demo_listener(folder.path()).await.unwrap();
        let address = first.local_addr().unwrap();
        keep_demo_port(folder.path(), address).unwrap();
        let refused = demo_listener(folder.path()).await.unwrap();
        assert_ne!(refused.local_addr().unwrap(), address);
        drop((first, refused));
        let again = demo_listener(folder.path()).await.unwrap();
        assert_eq!(again.local_addr().unwrap(), address, "one that did not start moved nothing");
        let beside = demo_listener(folder.path()).await.unwrap().local_addr().unwrap();
        keep_demo_port(folder.path(), beside).unwrap();
        drop(again);
        assert_eq!(demo_listener(folder.path()).await.unwrap().local_addr().unwrap(), beside);
    }
}
