//! `openrouter-mcp`: an MCP server whose tools read an OpenRouter account. README.md says how to use it.

mod api;
mod http;
mod tools;

use std::io::{self, IsTerminal as _};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;

use clap::Parser;
use futures_util::FutureExt as _;
use tokio::signal::unix::{SignalKind, signal};
use tokio_util::sync::CancellationToken;
use toolbus_core::Clock;
use toolbus_core::events::Discard;
use toolbus_mcp_server::{McpServer, McpServerSettings};
use tracing_subscriber::EnvFilter;
use url::Url;

use crate::api::{Api, ApiKey};
use crate::http::HttpSettings;
use crate::tools::Tools;

/// Largest message of a client, in bytes.
const MAX_BODY: usize = 1024 * 1024;
/// Largest file with a key or a token, in bytes.
const MAX_SECRET_FILE: u64 = 4096;

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// An MCP server for reading an OpenRouter account: credits, keys, models, generations. It changes nothing.
///
/// It speaks over standard input and output, or with --listen over HTTP. The API key is in the variable
/// OPENROUTER_API_KEY, or in a file.
#[derive(Debug, Parser)]
#[command(version)]
struct OpenRouterArgs {
    /// Serve Streamable HTTP at http://ADDRESS/mcp instead of standard input and output.
    #[arg(long, value_name = "ADDRESS", env = "OPENROUTER_MCP_LISTEN")]
    listen: Option<SocketAddr>,
    /// File with the token that HTTP clients give as `Authorization: Bearer TOKEN`. Without it only addresses of this
    /// machine can be listened on.
    #[arg(long, value_name = "FILE", env = "OPENROUTER_MCP_TOKEN_FILE", requires = "listen")]
    token_file: Option<PathBuf>,
    /// Name, beside addresses and `localhost`, by which HTTP clients reach this server; may be repeated.
    #[arg(long, value_name = "NAME", env = "OPENROUTER_MCP_ALLOWED_HOSTS", value_delimiter = ',', requires = "listen")]
    allowed_host: Vec<String>,
    /// File with the API key of OpenRouter.
    #[arg(long, value_name = "FILE", env = "OPENROUTER_API_KEY_FILE")]
    api_key_file: Option<PathBuf>,
    /// The API key of OpenRouter: a variable alone, because others can see arguments.
    #[arg(skip = std::env::var("OPENROUTER_API_KEY").ok())]
    api_key: Option<String>,
    /// Where the API is.
    #[arg(long, value_name = "URL", env = "OPENROUTER_BASE_URL", default_value = api::BASE_URL)]
    base_url: Url,
}

fn main() -> ExitCode {
    let args = OpenRouterArgs::parse();
    let filter = EnvFilter::try_from_env("OPENROUTER_MCP_LOG").unwrap_or_else(|_| EnvFilter::new("info"));
    // Standard output belongs to the protocol.
    let log = tracing_subscriber::fmt().with_env_filter(filter).with_writer(io::stderr);
    log.with_ansi(io::stderr().is_terminal()).init();
    let served = tokio::runtime::Builder::new_current_thread().enable_all().build().and_then(|runtime| {
        let served = runtime.block_on(run(args));
        // A read of standard input may go on for ever.
        runtime.shutdown_background();
        served
    });
    match served {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("openrouter-mcp: {error}");
            ExitCode::FAILURE
        }
    }
}

async fn run(args: OpenRouterArgs) -> io::Result<()> {
    let key = match (&args.api_key_file, &args.api_key) {
        (Some(file), _) => read_secret(file)?,
        (None, Some(key)) => key.clone(),
        (None, None) => {
            let text = "there is no API key: set OPENROUTER_API_KEY, or give --api-key-file";
            return Err(io::Error::other(text));
        }
    };
    let key = ApiKey::parse(&key).map_err(io::Error::other)?;
    if !matches!(args.base_url.scheme(), "https" | "http") {
        return Err(io::Error::other("--base-url must begin with https:// or http://"));
    }
    let token = args.token_file.as_deref().map(read_secret).transpose()?;
    let stop = CancellationToken::new();
    let settings = McpServerSettings {
        name: "openrouter".to_owned(),
        version: env!("CARGO_PKG_VERSION").to_owned(),
        max_body: MAX_BODY,
        clock: Clock::SYSTEM,
    };
    let tools = Tools::new(Api::new(args.base_url, key).map_err(io::Error::other)?);
    let server = McpServer::new(settings, Arc::new(tools), Arc::new(Discard), stop.clone());
    let (mut terminate, mut interrupt) = (signal(SignalKind::terminate())?, signal(SignalKind::interrupt())?);
    let ended = async {
        tokio::select! {
            _ = terminate.recv() => {}
            _ = interrupt.recv() => {}
        }
        stop.cancel();
    };
    let serving = async {
        let served = match args.listen {
            None => {
                server.clone().serve(None, tokio::io::stdin(), tokio::io::stdout()).await;
                Ok(())
            }
            Some(listen) => {
                let settings = HttpSettings { listen, token, hosts: args.allowed_host };
                http::serve(server.clone(), settings, stop.clone()).await
            }
        };
        stop.cancel();
        served
    };
    // The last one ends the sessions.
    let (served, (), ()) = tokio::join!(serving, stop.run_until_cancelled(ended).map(|_| ()), server.clone().run());
    served
}

/// Reads a file with one secret.
fn read_secret(file: &Path) -> io::Result<String> {
    use io::Read as _;

    let mut text = String::new();
    let read = std::fs::File::open(file).and_then(|open| open.take(MAX_SECRET_FILE).read_to_string(&mut text));
    read.map_err(|error| io::Error::other(format!("{}: {error}", file.display())))?;
    match text.trim() {
        "" => Err(io::Error::other(format!("{}: the file is empty", file.display()))),
        secret => Ok(secret.to_owned()),
    }
}
