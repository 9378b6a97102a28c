//! The `countersign` command.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Parser, Subcommand};
use countersign::cli;

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// A control plane for AI-agent runs that never does a thing twice without saying so.
#[derive(Parser)]
#[command(version, arg_required_else_help = true)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Start everything on SQLite in one folder, with a demo MCP server and scripted models.
    Dev {
        /// Where the HTTP server listens.
        #[arg(long, default_value = "127.0.0.1:8080")]
        listen: SocketAddr,
        /// Where the database and the keys are kept.
        #[arg(long, default_value = ".countersign")]
        data: PathBuf,
        /// A TOML file that declares MCP servers.
        #[arg(long)]
        config: Option<PathBuf>,
    },
    /// Start a production server; every setting that is one value comes from the environment, see `config`.
    Serve {
        /// A TOML file that declares MCP servers.
        #[arg(long)]
        config: Option<PathBuf>,
        /// Refuse to start on an old schema instead of bringing it up to date.
        #[arg(long)]
        no_migrate: bool,
    },
    /// Bring the database's schema up to date, and nothing else.
    Migrate,
    /// Look after stored secrets.
    #[command(subcommand)]
    Secrets(Secrets),
    /// Print the `OpenAPI` document.
    Openapi,
    /// Print a token signed with the configured shared secret.
    Token(cli::TokenArguments),
    /// Print every setting, secrets redacted.
    Config,
    /// Started by the server itself: ends the processes of MCP servers when it is killed.
    #[command(hide = true)]
    StdioGuard,
}

#[derive(Subcommand)]
enum Secrets {
    /// Seal every stored secret anew under the first master key, beside running servers; the other keys can go then.
    Rotate,
}

fn main() -> ExitCode {
    match run(Arguments::parse().command) {
        Ok(()) => ExitCode::SUCCESS,
        // For whoever started it: what is wrong, and never where in the code that was found out.
        Err(fault) => {
            eprintln!("Error: {}", cli::explained(&fault));
            ExitCode::FAILURE
        }
    }
}

fn run(command: Command) -> anyhow::Result<()> {
    match command {
        Command::Dev { listen, data, config } => cli::dev(listen, &data, config.as_deref()),
        Command::Serve { config, no_migrate } => cli::serve(!no_migrate, config.as_deref()),
        Command::Migrate => cli::migrate(),
        Command::Secrets(Secrets::Rotate) => cli::rotate_secrets(),
        Command::Openapi => cli::openapi(),
        Command::Token(arguments) => cli::token(&arguments),
        Command::Config => cli::config(),
        Command::StdioGuard => cli::stdio_guard(),
    }
}
