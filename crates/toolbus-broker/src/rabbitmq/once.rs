//! Connections that a command opens for its own time, and a broker's properties before any login.

use std::io;
use std::time::Duration;

use futures_util::{AsyncReadExt as _, AsyncWriteExt as _};
use lapin::protocol::{AMQPClass, connection, parse_class};
use lapin::tcp::AMQPUriTcpExt as _;
use lapin::types::{AMQPValue, FieldTable};
use lapin::uri::AMQPUri;
use lapin::{Connection, ConnectionProperties, Error};

use super::cause::{self, ACCESS_REFUSED};
use super::settings::Checked;

/// Longest wait for a broker's properties.
const GREETING_TIME: Duration = Duration::from_secs(5);
/// Bytes that begin AMQP 0-9-1.
const GREETING: &[u8] = b"AMQP\x00\x00\x09\x01";
/// Length of the head of a frame: type, channel and size.
const HEAD: usize = 7;
/// Largest first frame that is read, in bytes.
const MAX_FIRST: usize = 64 * 1024;
/// Longest name or version of a broker that is shown, in characters.
const MAX_SHOWN: usize = 40;

/// Reason for which no connection to a broker can be opened.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ConnectError {
    /// Nothing listens there, or something else than a broker.
    #[error("{0}")]
    Unreachable(String),
    /// The broker refuses the login.
    #[error("{0}")]
    Login(String),
    /// The broker refuses the virtual host.
    #[error("{0}")]
    VirtualHost(String),
}

/// Product and version of a broker, as it names them itself.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Product {
    /// Name of the product, such as `RabbitMQ`.
    pub name: String,
    /// Version, such as `3.10.8`.
    pub version: String,
}

/// Opens a connection; `purpose` is a part of its name.
pub(super) async fn open(endpoint: &AMQPUri, settings: &Checked, purpose: &str) -> Result<Connection, ConnectError> {
    let name = format!("{} {purpose}", settings.name);
    let properties = ConnectionProperties::default().with_connection_name(name.into());
    let unreachable = |error: &Error| ConnectError::Unreachable(cause::connecting(error));
    let runtime = lapin::runtime::default_runtime().map_err(|error| unreachable(&error))?;
    let connecting =
        Connection::connect_uri_with_config(endpoint.clone(), properties, settings.tls.clone(), runtime).await;
    match connecting {
        Ok(connection) => Ok(connection),
        Err(error) if cause::code(&error) == Some(ACCESS_REFUSED) => {
            Err(ConnectError::Login(cause::connecting(&error)))
        }
        Err(error) if cause::is_refusal(&error) => Err(ConnectError::VirtualHost(cause::connecting(&error))),
        Err(error) if cause::code(&error).is_some() => Err(unreachable(&error)),
        Err(error) => {
            let other = cause::other_protocol(endpoint).await;
            Err(other.map_or_else(|| unreachable(&error), ConnectError::Unreachable))
        }
    }
}

/// Returns product and version of a broker; `None` if it does not report them.
pub(super) async fn product(endpoint: &AMQPUri, settings: &Checked) -> Option<Product> {
    let greeting = tokio::time::timeout(GREETING_TIME, greet(endpoint, settings)).await;
    let properties = greeting.ok()?.ok()??;
    let text = |name: &str| match properties.inner().get(name)? {
        AMQPValue::LongString(text) => Some(String::from_utf8_lossy(text.as_bytes()).chars().take(MAX_SHOWN).collect()),
        _ => None,
    };
    Some(Product { name: text("product")?, version: text("version")? })
}

/// Reads the first method of a connection, which is closed again without a login.
async fn greet(endpoint: &AMQPUri, settings: &Checked) -> io::Result<Option<FieldTable>> {
    let runtime = lapin::runtime::default_runtime().map_err(io::Error::other)?;
    let mut stream = endpoint.connect_with_config_async(settings.tls.as_ref(), &runtime).await?;
    stream.write_all(GREETING).await?;
    stream.flush().await?;
    let mut head = [0; HEAD];
    stream.read_exact(&mut head).await?;
    let [_, _, _, size @ ..] = head;
    let size = usize::try_from(u32::from_be_bytes(size)).unwrap_or(usize::MAX);
    if size > MAX_FIRST {
        return Ok(None);
    }
    let mut method = vec![0; size];
    stream.read_exact(&mut method).await?;
    Ok(match parse_class(&*method) {
        Ok((_, AMQPClass::Connection(connection::AMQPMethod::Start(start)))) => Some(start.server_properties),
        _ => None,
    })
}
