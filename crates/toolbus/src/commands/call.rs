//! `toolbus call`: one call over the bus, as an agent would make it.

use std::io::{self, IsTerminal, Read, Write};
use std::process::ExitCode;
use std::time::Duration;

use anstyle::{AnsiColor, Style};
use serde_json::{Map, Value, json};
use toolbus_protocol::{Code, Properties, ToolError, ToolInvokeResponse, TraceContext, new_message_id};

use super::Context;
use crate::client::{Answer, Client, ClientError, Content, Request};
use crate::config::HumanDuration;
use crate::session::{Session, SessionError};

/// Time beyond the tool's budget in which the answer may still arrive.
const GRACE: Duration = Duration::from_secs(5);
/// Longest wait for the broker.
const CONNECT_TIME: Duration = Duration::from_secs(10);
/// Largest JSON document that is read from standard input, in bytes.
const MAX_INPUT: u64 = 64 * 1024 * 1024;

/// Calls a tool over the bus, as an agent would, and prints its answer.
///
/// The exit code tells the outcome: 0 a result, 1 the tool did not succeed, 2 a mistake in the command or the
/// configuration, 3 refused, 4 failed, 5 timed out, 6 overloaded (try again), 7 no broker or no daemon.
#[derive(Debug, clap::Args)]
pub struct CallArgs {
    /// Name of the tool.
    name: String,
    /// The arguments: one JSON object, `-` to read one from standard input, or `key=value` pairs. A value that is JSON
    /// (a number, `true`, `[1,2]`) is taken as such, anything else as text; `key:=JSON` insists on JSON.
    arguments: Vec<String>,
    /// Print the answer's body as JSON.
    #[arg(long)]
    json: bool,
    /// Time that the tool gets, such as `5s` or `500ms`.
    #[arg(long, value_name = "DURATION")]
    timeout: Option<HumanDuration>,
    /// Show both messages with their properties, and the trace id.
    #[arg(long, short)]
    verbose: bool,
}

/// Why no call was made, or no answer came.
#[derive(Debug, thiserror::Error)]
pub enum CallError {
    /// The arguments are no object.
    #[error("{0}")]
    Arguments(String),
    /// The bus could not be set up.
    #[error(transparent)]
    Session(#[from] SessionError),
    /// There is no answer.
    #[error(transparent)]
    Client(#[from] ClientError),
    /// Nothing can be printed.
    #[error("cannot write: {0}")]
    Output(#[from] io::Error),
}

impl CallError {
    /// The exit code that tells this outcome.
    #[must_use]
    pub fn exit_code(&self) -> u8 {
        match self {
            Self::Arguments(_) | Self::Session(_) | Self::Output(_) => 2,
            Self::Client(ClientError::NoAnswer(_)) => 5,
            Self::Client(_) => 7,
        }
    }
}

/// Makes the call.
///
/// # Errors
///
/// When the command is mistaken, the bus cannot be reached, or no answer comes.
pub async fn run(args: CallArgs, context: &Context) -> Result<ExitCode, CallError> {
    let arguments = parse(&args.arguments)?;
    let budget = args.timeout.unwrap_or(context.config.invoke.default_timeout).get();
    let session = Session::open(&context.config)?;
    let outcome = exchange(&args, arguments.as_ref(), budget, &session, context).await;
    session.close().await;
    let answer = outcome?;
    print(&args, &answer)?;
    Ok(ExitCode::from(exit_code(&answer.content)))
}

async fn exchange(
    args: &CallArgs,
    arguments: Option<&Map<String, Value>>,
    budget: Duration,
    session: &Session,
    context: &Context,
) -> Result<Answer, CallError> {
    let topic = context.config.invoke.topics.first().map_or(toolbus_protocol::topic::TOOL_INVOKE, String::as_str);
    let client = Client::connect(session.bus(), topic, CONNECT_TIME).await?;
    let request = client.request(&args.name, arguments, budget, new_trace());
    if args.verbose {
        show_request(topic, &request)?;
    }
    let answer = client.send(&request, budget.saturating_add(GRACE)).await?;
    if args.verbose {
        show_message("answer", &answer.properties, &answer.body)?;
    }
    Ok(answer)
}

/// A trace of our own, so that the call can be found wherever the daemon's traces go.
fn new_trace() -> Option<TraceContext> {
    let (trace, span) = (new_message_id(), new_message_id());
    TraceContext::parse(&format!("00-{trace}-{}-01", span.get(..16)?), None)
}

fn parse(words: &[String]) -> Result<Option<Map<String, Value>>, CallError> {
    match words {
        [] => Ok(None),
        [dash] if dash == "-" => {
            let mut text = String::new();
            io::stdin().take(MAX_INPUT).read_to_string(&mut text)?;
            object(&text).map(Some)
        }
        [text] if text.trim_start().starts_with('{') => object(text).map(Some),
        pairs => pairs.iter().map(|pair| parse_pair(pair)).collect::<Result<_, _>>().map(Some),
    }
}

fn object(text: &str) -> Result<Map<String, Value>, CallError> {
    toolbus_protocol::parse_object(text.as_bytes())
        .map_err(|error| CallError::Arguments(format!("the arguments are not usable: {error}")))
}

fn parse_pair(pair: &str) -> Result<(String, Value), CallError> {
    let Some((key, value)) = pair.split_once('=') else {
        let text = format!("`{pair}` is neither a JSON object nor key=value");
        return Err(CallError::Arguments(text));
    };
    match key.strip_suffix(':') {
        Some(key) => match serde_json::from_str(value) {
            Ok(value) => Ok((key.to_owned(), value)),
            Err(error) => Err(CallError::Arguments(format!("the value of `{key}` is not JSON: {error}"))),
        },
        None => {
            let value = serde_json::from_str(value).unwrap_or_else(|_| Value::String(value.to_owned()));
            Ok((key.to_owned(), value))
        }
    }
}

fn exit_code(content: &Content) -> u8 {
    match content {
        Content::Result(result) => u8::from(result.is_error),
        Content::Error(error) => match error.code {
            Code::ToolNotFound | Code::InvalidArguments | Code::NotAllowed => 3,
            Code::ExecutionFailed | Code::Cancelled | Code::AuthRequired => 4,
            Code::Timeout => 5,
            Code::Overloaded | Code::RateLimited => 6,
        },
    }
}

fn print(args: &CallArgs, answer: &Answer) -> io::Result<()> {
    let mut out = anstream::stdout().lock();
    if args.json {
        let body: Value = serde_json::from_slice(&answer.body).unwrap_or_default();
        return writeln!(out, "{body:#}");
    }
    match &answer.content {
        Content::Result(result) => print_result(&mut out, result),
        Content::Error(error) => print_error(error),
    }
}

fn print_result(out: &mut impl Write, result: &ToolInvokeResponse) -> io::Result<()> {
    let text = result.content.as_deref().unwrap_or_default();
    if result.is_error {
        let red = AnsiColor::Red.on_default();
        return writeln!(anstream::stderr(), "{red}the tool did not succeed:{red:#} {text}");
    }
    out.write_all(text.as_bytes())?;
    if !text.ends_with('\n') && (io::stdout().is_terminal() || !text.is_empty()) {
        writeln!(out)?;
    }
    Ok(())
}

fn print_error(error: &ToolError) -> io::Result<()> {
    let mut err = anstream::stderr().lock();
    let red = AnsiColor::Red.on_default();
    writeln!(err, "{red}{}:{red:#} {}", error.code, error.message)?;
    let wait = error.retry_after_ms.map(|wait| format!(" after {wait} ms")).unwrap_or_default();
    if error.is_retryable {
        writeln!(err, "the same call may succeed later{wait}")?;
    }
    Ok(())
}

fn show_request(topic: &str, request: &Request) -> io::Result<()> {
    let dimmed = Style::new().dimmed();
    writeln!(anstream::stderr(), "{dimmed}topic {topic}{dimmed:#}")?;
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
        writeln!(err, "{dimmed}  {name:<15} {}{dimmed:#}", value.as_deref().unwrap_or("-"))?;
    }
    for (name, value) in &properties.headers {
        writeln!(err, "{dimmed}  {name:<15} {value}{dimmed:#}")?;
    }
    let body: Value = serde_json::from_slice(body).unwrap_or_else(|_| json!(String::from_utf8_lossy(body)));
    writeln!(err, "{dimmed}  {body}{dimmed:#}")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(words: &[&str]) -> Value {
        let words: Vec<String> = words.iter().map(ToString::to_string).collect();
        parse(&words).unwrap().map_or(Value::Null, Value::Object)
    }

    #[test]
    fn arguments_are_an_object_or_pairs() {
        assert_eq!(parsed(&[]), Value::Null);
        assert_eq!(parsed(&[r#"{"a": 1}"#]), json!({"a": 1}));
        assert_eq!(
            parsed(&["city=Bogotá", "days=3", "exact=true", "zip:=\"0123\"", "note=a=b", "empty="]),
            json!({"city": "Bogotá", "days": 3, "exact": true, "zip": "0123", "note": "a=b", "empty": ""})
        );
    }

    #[test]
    fn mistakes_are_told() {
        let refused = |word: &str| parse(&[word.to_owned()]).unwrap_err().to_string();
        insta::assert_snapshot!(refused("city"), @"`city` is neither a JSON object nor key=value");
        insta::assert_snapshot!(refused("{city"), @"the arguments are not usable: key must be a string at line 1 column 2");
        insta::assert_snapshot!(refused("days:=x"), @"the value of `days` is not JSON: expected value at line 1 column 1");
    }

    #[test]
    fn the_exit_code_tells_the_outcome() {
        let error = |code| {
            let text = String::new();
            Content::Error(ToolError {
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
}
