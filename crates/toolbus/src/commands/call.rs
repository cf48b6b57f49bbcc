//! `toolbus call`: one call over the bus, as an agent would make it.

use std::fs::{self, OpenOptions};
use std::io::{self, IsTerminal, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use anstyle::{AnsiColor, Style};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Map, Value, json};
use toolbus_core::caller::{AgentName, Caller};
use toolbus_core::milliseconds;
use toolbus_protocol::{
    Code, ContentBlock, EXECUTE_PYTHON_SCRIPT, Envelope, Properties, ToolError, ToolInvokeRequest, ToolInvokeResponse,
    TraceContext, header, llm_name, new_message_id, topic,
};

use super::arguments::{self, ArgumentsError};
use super::target::{RoleArgs, running};
use super::{Context, identity, load_whole, note, one_line, reported};
use crate::config::{BusUrl, Config, HumanDuration, Problems};
use crate::http::admin::client::{AdminClient, AdminClientError};
use crate::http::admin::view::{CallOutcome, CallRequest};
use crate::local_daemon::{LocalDaemon, LocalDaemonError};
use crate::terminal::OutputFormat;
use crate::terminal::{ignore_broken_pipe, printable};
use toolbus_client::{CallReply, Client, ClientError, Expectation, ReplyContent, Sender, SignedRequest, ToolProgress};

/// Time beyond the tool's budget in which the reply may still arrive.
const GRACE: Duration = Duration::from_secs(5);
/// Longest wait for the broker.
const CONNECT_TIME: Duration = Duration::from_secs(10);

/// Calls a tool over the bus, as an agent would, and prints its answer.
///
/// The exit code tells the outcome: 0 a result, 1 the tool did not succeed or its result cannot be written, 2 a mistake in
/// the command or the configuration, 3 refused, 4 failed, 5 timed out, 6 overloaded (try again), 7 no broker or no daemon.
#[derive(Debug, clap::Args)]
pub struct CallArgs {
    /// Name of the tool.
    name: String,
    /// The arguments: one JSON object, `-` to read one from standard input, or `key=value` pairs. A value that is JSON
    /// (a number, `true`, `[1,2]`) is taken as such, anything else as text; `key:=JSON` insists on JSON. `key=@FILE` is the
    /// text of a file, `key=@-` that of standard input; a text that begins with `@` is written `key:='"@text"'`.
    arguments: Vec<String>,
    /// Print the answer's body as JSON; the same as `--output json`.
    #[arg(long)]
    json: bool,
    /// Time that the tool gets, such as `5s` or `500ms`; without it, the daemon decides.
    #[arg(long, value_name = "DURATION")]
    timeout: Option<HumanDuration>,
    /// Call as this agent: the header `rb-source`. A daemon with `identity.source = "broker"` believes the login alone:
    /// there, use --bus-url with the login of the agent.
    #[arg(long = "as", value_name = "AGENT", value_parser = AgentName::parse)]
    agent: Option<AgentName>,
    #[command(flatten)]
    role: RoleArgs,
    /// MCP server that has the tool, where several tools have the name.
    #[arg(long, value_name = "NAME")]
    server: Option<String>,
    /// Session of the caller: calls of one session reach the same servers of tool sets.
    #[arg(long, value_name = "ID")]
    session: Option<String>,
    /// Show on standard error how far the tool is, where it reports that.
    #[arg(long)]
    progress: bool,
    /// Folder to save images, sounds and other files of the result in. No file is replaced.
    #[arg(long, value_name = "DIR")]
    save: Option<PathBuf>,
    /// Show both messages with their properties, and the trace id.
    #[arg(long, short)]
    verbose: bool,
}

/// Reason why no call was made, or no reply came.
#[derive(Debug, thiserror::Error)]
pub enum CallCommandError {
    /// The arguments cannot be sent.
    #[error(transparent)]
    Arguments(#[from] ArgumentsError),
    /// No daemon would take the call for one of the agent of --as.
    #[error("{0}")]
    Identity(String),
    /// The configuration cannot be used where the call runs in this process.
    #[error("the configuration has mistakes\n{0}")]
    Configuration(#[from] Problems),
    /// The bus could not be set up.
    #[error(transparent)]
    LocalDaemon(#[from] LocalDaemonError),
    /// No reply came.
    #[error(transparent)]
    Client(#[from] ClientError),
    /// The running daemon does not respond.
    #[error(transparent)]
    Daemon(#[from] AdminClientError),
    /// The folder of --save.
    #[error("the folder `{}` of --save cannot be used: {error}", folder.display())]
    Folder {
        /// The folder.
        folder: PathBuf,
        /// Why.
        error: io::Error,
    },
    /// Nothing can be printed.
    #[error("cannot write: {0}")]
    Output(#[from] io::Error),
}

impl CallArgs {
    /// The caller and its identity.
    fn sender(&self, login: Option<String>) -> Sender {
        let RoleArgs { binding, profile } = self.role.clone();
        Sender { agent: self.agent.clone(), login, binding, profile, ..Sender::default() }
    }

    /// The caller, as a daemon of this configuration identifies it; `None` if it takes no call of this sender.
    fn seen(&self, config: &Config) -> Option<Caller> {
        let login = config.bus.url.login();
        let mut properties = Properties::default();
        properties.headers.push((header::SOURCE.to_owned(), toolbus_client::SOURCE.to_owned()));
        self.sender(login.clone()).introduce(&mut properties);
        config.identity().identify(login.as_deref(), &Envelope::read(&properties), topic_of(config))
    }
}

impl CallCommandError {
    /// The exit code of this outcome.
    #[must_use]
    pub fn exit_code(&self) -> u8 {
        match self {
            Self::Arguments(_)
            | Self::Identity(_)
            | Self::Configuration(_)
            | Self::LocalDaemon(_)
            | Self::Folder { .. } => 2,
            // The tool may have run.
            Self::Output(_) => 1,
            Self::Client(ClientError::NoReply(_)) => 5,
            Self::Daemon(AdminClientError::TimedOut(..)) => 5,
            Self::Daemon(AdminClientError::Refused(_)) => 2,
            Self::Client(_) | Self::Daemon(_) => 7,
        }
    }
}

/// Makes the call.
///
/// # Errors
///
/// If the command is mistaken, the bus cannot be reached, or no reply comes.
pub async fn run(args: CallArgs, context: &Context) -> Result<ExitCode, CallCommandError> {
    let is_json = args.json || context.output == OutputFormat::Json;
    match reply_of(&args, context).await {
        Ok(reply) => {
            let printed = ignore_broken_pipe(print(&args, is_json, &reply));
            let ReplyContent::Result(result) = &reply.content else {
                if let Err(error) = printed {
                    reported(format!("the call was refused or failed, and the answer cannot be written: {error}"));
                }
                let is_refused = !is_json && is_refusal(&reply.content);
                let shown = is_refused.then(|| identity::shown(args.seen(&context.config).as_ref(), &context.config));
                if let Some(shown) = shown.flatten() {
                    note(&shown);
                }
                return Ok(ExitCode::from(exit_code(&reply.content)));
            };
            let kept = keep_blocks(result, &args.name, args.save.as_deref());
            let written = printed.map_err(|error| format!("its result cannot be written: {error}"));
            let saved = kept.map_err(|error| format!("its files cannot be saved: {error}"));
            let problems: Vec<String> = [written, saved].into_iter().filter_map(Result::err).collect();
            if problems.is_empty() {
                return Ok(ExitCode::from(exit_code(&reply.content)));
            }
            // A script must not take it for a call that was not made, and repeat it.
            Ok(ExitCode::from(reported(format!("the tool ran, and {}", problems.join(", and ")))))
        }
        Err(error) if is_json => {
            let text = json!({"error": error.to_string()});
            if let Err(unwritten) = ignore_broken_pipe(writeln!(io::stdout(), "{text:#}")) {
                reported(format!("{error}; and this cannot be written: {unwritten}"));
            }
            Ok(ExitCode::from(error.exit_code()))
        }
        Err(error) => Err(error),
    }
}

async fn reply_of(args: &CallArgs, context: &Context) -> Result<CallReply, CallCommandError> {
    let arguments = arguments::parse(&args.arguments)?;
    if let Some(folder) = &args.save {
        // Before the call, which must not be made again because its files cannot be written.
        take(folder).map_err(|error| CallCommandError::Folder { folder: folder.clone(), error })?;
    }
    if context.config.bus.url == BusUrl::Embedded
        && !args.progress
        && context.sources.overrides.is_empty()
        && let Ok(daemon) = running(context.config.daemon.socket.clone(), &context.sources).await
    {
        note(&format!("the running daemon makes this call: {daemon}"));
        return by_daemon(args, arguments.as_ref(), &daemon, context).await;
    }
    identity::check(args.agent.as_ref(), args.seen(&context.config).as_ref(), &context.config)
        .map_err(CallCommandError::Identity)?;
    let mut config = match context.config.bus.url {
        // The call runs here, with every secret that it may use.
        BusUrl::Embedded => load_whole(&context.sources)?,
        BusUrl::Amqp(_) => context.config.clone(),
    };
    if args.name == EXECUTE_PYTHON_SCRIPT && config.bus.url == BusUrl::Embedded && context.sources.files.is_empty() {
        // No other process could run it, and no configuration forbids it.
        config.script.get_or_insert_default();
    }
    let session = LocalDaemon::open(&config, config.pin_file(&context.sources)).await?;
    let outcome = exchange(args, arguments.as_ref(), &session, context).await;
    session.close().await;
    outcome
}

/// The reply of a running daemon, over its socket.
async fn by_daemon(
    args: &CallArgs,
    arguments: Option<&Map<String, Value>>,
    daemon: &AdminClient,
    context: &Context,
) -> Result<CallReply, CallCommandError> {
    let RoleArgs { binding, profile } = args.role.clone();
    let budget = args.timeout.map(HumanDuration::get);
    let request = CallRequest {
        agent: args.agent.as_ref().map(ToString::to_string),
        tool: args.name.clone(),
        arguments: arguments.and_then(|fields| serde_json::value::to_raw_value(fields).ok()),
        server: args.server.clone(),
        binding,
        profile,
        session: args.session.clone(),
        timeout_ms: budget.map(milliseconds),
    };
    let patience = budget.unwrap_or(context.config.invoke.max_timeout.get()).saturating_add(GRACE);
    let (body, content) = match daemon.post_within(patience, "/v1/call", &request).await? {
        CallOutcome::Result(result) => (serde_json::to_vec(&result), ReplyContent::Result(result)),
        CallOutcome::Error(error) => (serde_json::to_vec(&error), ReplyContent::Error(error)),
    };
    Ok(CallReply { properties: Arc::default(), body: body.unwrap_or_default().into(), content })
}

async fn exchange(
    args: &CallArgs,
    arguments: Option<&Map<String, Value>>,
    session: &LocalDaemon,
    context: &Context,
) -> Result<CallReply, CallCommandError> {
    let client = Client::connect(session.bus(), topic_of(&context.config), CONNECT_TIME).await?;
    let queue = format!("{}.invoke", context.config.queue_prefix());
    if session.bus().consumer_count(&queue).await == Some(0) {
        return Err(ClientError::NoDaemon(queue).into());
    }
    let budget = args.timeout.map(HumanDuration::get);
    let patience = budget.unwrap_or(context.config.invoke.max_timeout.get()).saturating_add(GRACE);
    let sender = args.sender(context.config.bus.url.login());
    let body = ToolInvokeRequest {
        tool_call_id: Some(new_message_id()),
        tool_name: args.name.clone(),
        arguments: arguments.map(|fields| serde_json::to_string(fields).unwrap_or_default()),
        session_id: args.session.clone(),
        batch_id: None,
    };
    let mut request = client.call(&body, budget, new_trace());
    let wanted = [(header::MCP_SERVER, args.server.clone()), (header::PROGRESS, args.progress.then(|| "1".to_owned()))];
    let wanted = wanted.into_iter().filter_map(|(name, value)| Some((header::on_the_wire(name), value?)));
    Arc::make_mut(&mut request.properties).headers.extend(wanted);
    let request = sender.sign(request);
    if args.verbose {
        ignore_broken_pipe(show_request(&request))?;
    }
    let replying = async {
        match args.progress {
            false => Ok(client.send(&request, patience).await?),
            true => followed(&client, &request, patience).await,
        }
    };
    let reply = tokio::select! {
        biased;
        reply = replying => reply?,
        reason = blocked(&client) => return Err(ClientError::Blocked(reason).into()),
    };
    if args.verbose {
        ignore_broken_pipe(show_message("answer", &reply.properties, &reply.body))?;
    }
    Ok(reply)
}

/// Waits until the broker takes no messages, and returns why.
async fn blocked(client: &Client) -> String {
    let mut state = client.state();
    let blocked = match state.wait_for(|state| state.blocked.is_some()).await {
        Ok(state) => state.blocked.clone(),
        Err(_) => None,
    };
    match blocked {
        Some(reason) => reason,
        // The bus was closed, and the call ends by that.
        None => std::future::pending().await,
    }
}

/// Where calls for a daemon of this configuration go.
fn topic_of(config: &Config) -> &str {
    config.invoke.topics.first().map_or(topic::TOOL_INVOKE, String::as_str)
}

/// The reply to a request, after reports of progress on standard error.
async fn followed(client: &Client, request: &SignedRequest, patience: Duration) -> Result<CallReply, CallCommandError> {
    let (expectation, mut reports) = Expectation::with_progress();
    let mut expected = client.expect(request, expectation);
    let exchange = async {
        client.publish(request).await?;
        expected.received().await
    };
    let limited = tokio::time::timeout(patience, exchange);
    tokio::pin!(limited);
    let received = loop {
        tokio::select! {
            biased;
            Some(report) = reports.recv() => ignore_broken_pipe(show_progress(&report))?,
            received = &mut limited => break received,
        }
    };
    Ok(CallReply::read(received.unwrap_or(Err(ClientError::NoReply(patience)))?)?)
}

fn show_progress(report: &ToolProgress) -> io::Result<()> {
    let ToolProgress { progress, total, message, .. } = report;
    let total = total.map(|total| format!(" of {total}")).unwrap_or_default();
    let message = message.as_deref().map(|text| format!(": {}", one_line(text))).unwrap_or_default();
    writeln!(anstream::stderr(), "progress {progress}{total}{message}")
}

/// A trace of our own, so that the call can be found wherever the daemon's traces go.
fn new_trace() -> Option<TraceContext> {
    let (trace, span) = (new_message_id(), new_message_id());
    TraceContext::parse(&format!("00-{trace}-{}-01", span.get(..16)?), None)
}

/// Whether another caller might not have been refused.
fn is_refusal(content: &ReplyContent) -> bool {
    matches!(content, ReplyContent::Error(ToolError { code: Code::ToolNotFound | Code::NotAllowed, .. }))
}

fn exit_code(content: &ReplyContent) -> u8 {
    match content {
        ReplyContent::Result(result) => u8::from(result.is_error),
        ReplyContent::Error(error) => match error.code {
            Code::ToolNotFound | Code::InvalidArguments | Code::NotAllowed => 3,
            Code::ExecutionFailed | Code::Cancelled | Code::AuthRequired => 4,
            Code::Timeout => 5,
            Code::Overloaded | Code::RateLimited => 6,
        },
    }
}

fn print(args: &CallArgs, is_json: bool, reply: &CallReply) -> io::Result<()> {
    // Not through `anstream`: it would remove bytes from the result.
    let mut out = io::stdout().lock();
    if is_json {
        let body: Value = serde_json::from_slice(&reply.body).unwrap_or_default();
        return writeln!(out, "{body:#}");
    }
    match &reply.content {
        ReplyContent::Result(result) => print_result(&mut out, result),
        ReplyContent::Error(error) => print_error(error, arguments::hint(&args.arguments, error.code, &error.message)),
    }
}

fn print_result(out: &mut impl Write, result: &ToolInvokeResponse) -> io::Result<()> {
    let text = result.content.as_deref().unwrap_or_default();
    if result.is_error {
        let red = AnsiColor::Red.on_default();
        return writeln!(anstream::stderr(), "{red}the tool did not succeed:{red:#} {}", printable(text));
    }
    if !io::stdout().is_terminal() {
        out.write_all(text.as_bytes())?;
        return out.flush();
    }
    out.write_all(printable(text).as_bytes())?;
    if text.ends_with('\n') { Ok(()) } else { writeln!(out) }
}

fn print_error(error: &ToolError, hint: Option<String>) -> io::Result<()> {
    let mut err = anstream::stderr().lock();
    let red = AnsiColor::Red.on_default();
    writeln!(err, "{red}{}:{red:#} {}", error.code, printable(&error.message))?;
    if let Some(hint) = hint {
        writeln!(err, "hint: {hint}")?;
    }
    let wait = error.retry_after_ms.map(|wait| format!(" after {wait} ms")).unwrap_or_default();
    if error.is_retryable {
        writeln!(err, "the same call may succeed later{wait}")?;
    }
    Ok(())
}

fn show_request(request: &SignedRequest) -> io::Result<()> {
    let dimmed = Style::new().dimmed();
    writeln!(anstream::stderr(), "{dimmed}topic {}{dimmed:#}", request.topic)?;
    show_message("request", &request.properties, &request.body)
}

fn show_message(title: &str, properties: &Properties, body: &[u8]) -> io::Result<()> {
    let mut err = anstream::stderr().lock();
    let (bold, dimmed) = (Style::new().bold(), Style::new().dimmed());
    let envelope = toolbus_protocol::Envelope::read(properties);
    writeln!(err, "{bold}{title}{bold:#}")?;
    if let Some(trace) = &envelope.trace {
        writeln!(err, "{dimmed}  trace id        {}{dimmed:#}", trace.trace_id())?;
    }
    let named = [
        ("message id", &properties.message_id),
        ("type", &properties.message_type),
        ("correlation id", &properties.correlation_id),
        ("reply to", &properties.reply_to),
    ];
    for (name, value) in named {
        writeln!(err, "{dimmed}  {name:<15} {}{dimmed:#}", printable(value.as_deref().unwrap_or("-")))?;
    }
    for (name, value) in &properties.headers {
        writeln!(err, "{dimmed}  {name:<15} {}{dimmed:#}", printable(value))?;
    }
    let body: Value = serde_json::from_slice(body).unwrap_or_else(|_| json!(String::from_utf8_lossy(body)));
    writeln!(err, "{dimmed}  {body}{dimmed:#}")
}

/// Most files of one name and different numbers.
const MAX_FILES: usize = 100_000;
/// Endings of files, by MIME type; another type has `bin`.
const ENDINGS: [(&str, &str); 12] = [
    ("application/json", "json"),
    ("application/pdf", "pdf"),
    ("application/zip", "zip"),
    ("audio/mpeg", "mp3"),
    ("audio/ogg", "ogg"),
    ("audio/wav", "wav"),
    ("image/gif", "gif"),
    ("image/jpeg", "jpg"),
    ("image/png", "png"),
    ("image/svg+xml", "svg"),
    ("image/webp", "webp"),
    ("text/csv", "csv"),
];

/// Saves the binary parts of a result in `folder`, and prints their paths on standard error; without one, that there
/// are some.
///
/// # Errors
///
/// If a part cannot be saved.
fn keep_blocks(result: &ToolInvokeResponse, tool: &str, folder: Option<&Path>) -> io::Result<()> {
    let blocks = result.content_blocks.iter().flatten();
    let binary: Vec<(&ContentBlock, &str)> = blocks.filter_map(|block| Some((block, block.data.as_deref()?))).collect();
    let Some(folder) = folder else {
        let kinds = binary.iter().map(|(block, _)| kind(block)).collect::<Vec<_>>().join(", ");
        return match binary.len() {
            0 => Ok(()),
            count => ignore_broken_pipe(writeln!(
                anstream::stderr(),
                "not shown: {count} files ({kinds}); --save DIR keeps them"
            )),
        };
    };
    for (block, data) in binary {
        let bytes = STANDARD.decode(data).map_err(|_| io::Error::other(format!("the {} is no Base64", kind(block))))?;
        let path = save(folder, tool, ending(block), &bytes)?;
        let reported = format!("saved {} ({}, {} bytes)", path.display(), kind(block), bytes.len());
        ignore_broken_pipe(writeln!(anstream::stderr(), "{reported}"))?;
    }
    Ok(())
}

/// Makes a folder, if there is none, and tries whether files can be made in it.
fn take(folder: &Path) -> io::Result<()> {
    fs::create_dir_all(folder)?;
    let file = folder.join(format!(".toolbus-{}", new_message_id()));
    fs::File::create_new(&file)?;
    fs::remove_file(file)
}

/// Writes a new file, with the first number that no other has.
fn save(folder: &Path, tool: &str, ending: &str, bytes: &[u8]) -> io::Result<PathBuf> {
    fs::create_dir_all(folder)?;
    let name = llm_name(tool);
    for number in 1..=MAX_FILES {
        let path = folder.join(format!("{name}-{number}.{ending}"));
        match OpenOptions::new().write(true).create_new(true).open(&path) {
            Ok(mut file) => return file.write_all(bytes).map(|()| path),
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
            Err(error) => return Err(io::Error::new(error.kind(), format!("`{}`: {error}", path.display()))),
        }
    }
    Err(io::Error::other(format!("`{}` has {MAX_FILES} files of this name", folder.display())))
}

fn ending(block: &ContentBlock) -> &'static str {
    let mime_type = block.mime_type.as_deref().unwrap_or_default();
    ENDINGS.iter().find(|(known, _)| *known == mime_type).map_or("bin", |(_, ending)| ending)
}

/// Type of a content block, as it may be shown.
fn kind(block: &ContentBlock) -> String {
    one_line(block.mime_type.as_deref().unwrap_or(&block.kind))
}

#[cfg(test)]
mod tests {
    use clap::Parser as _;
    use toolbus_protocol::header;

    use super::*;

    #[derive(clap::Parser)]
    struct Cli {
        #[command(flatten)]
        args: CallArgs,
    }

    #[test]
    fn a_call_states_its_caller_and_identity() {
        let introduced = |words: &[&str]| {
            let args = Cli::parse_from([&["call", "echo"], words].concat()).args;
            let mut properties = Properties::default();
            properties.headers.push((header::SOURCE.to_owned(), "toolbus-cli".to_owned()));
            args.sender(None).introduce(&mut properties);
            let pairs = properties.headers.iter().map(|(name, value)| format!("{name}={value}"));
            pairs.collect::<Vec<_>>().join(" ")
        };
        assert_eq!(introduced(&[]), "rb-source=toolbus-cli");
        assert_eq!(
            introduced(&["--as", "ana", "--profile", "subagent", "--binding", "whatsapp:sales"]),
            "rb-source=ana rb-rb-tool-profile=subagent rb-rb-binding=whatsapp:sales"
        );
        assert!(Cli::try_parse_from(["call", "echo", "--as", "a b"]).is_err());
    }

    #[test]
    fn the_exit_code_is_that_of_the_outcome() {
        let error = |code| {
            let text = String::new();
            ReplyContent::Error(ToolError {
                tool_call_id: text.clone(),
                tool_name: text.clone(),
                code,
                message: text,
                is_retryable: false,
                retry_after_ms: None,
                outcome: None,
            })
        };
        let codes: Vec<u8> = Code::ALL.into_iter().map(|code| exit_code(&error(code))).collect();
        assert_eq!(codes, [3, 3, 5, 4, 3, 6, 6, 4, 4]);
    }

    fn result(mime_type: &str, data: &str) -> ToolInvokeResponse {
        let block = ContentBlock {
            kind: "image".to_owned(),
            data: Some(data.to_owned()),
            mime_type: Some(mime_type.to_owned()),
            ..ContentBlock::default()
        };
        ToolInvokeResponse {
            tool_call_id: "1".to_owned(),
            tool_name: "shot".to_owned(),
            content: None,
            content_blocks: Some(vec![block]),
            is_error: false,
        }
    }

    #[test]
    fn images_are_saved_under_names_of_the_callers_own_and_replace_nothing() {
        let folder = tempfile::tempdir().unwrap();
        let into = folder.path().join("new");
        for text in ["b25l", "dHdv"] {
            keep_blocks(&result("image/png", text), "../shot/it", Some(&into)).unwrap();
        }
        keep_blocks(&result("../../x", "b25l"), "shot", Some(&into)).unwrap();
        let name = llm_name("../shot/it");
        let read = |name: &str| fs::read(into.join(name)).unwrap();
        assert_eq!(
            (read(&format!("{name}-1.png")), read(&format!("{name}-2.png"))),
            (b"one".to_vec(), b"two".to_vec())
        );
        assert_eq!(read("shot-1.bin"), b"one");
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1);
        assert!(keep_blocks(&result("image/png", "%"), "shot", Some(&into)).is_err());
        keep_blocks(&result("image/png", "%"), "shot", None).unwrap();
    }
}
