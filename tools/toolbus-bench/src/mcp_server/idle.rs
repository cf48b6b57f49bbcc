//! Many sessions in which nothing happens.

use std::fmt;

use crate::exchange::closed_loop;
use crate::http::OpenStream;
use crate::mcp_http::McpClient;
use crate::usage::Usage;
use futures_util::stream::{self, StreamExt as _, TryStreamExt as _};
use serde::Serialize;

use super::{Server, WARM_UP, sides};
use crate::error::MeasureError;

/// Sessions that are begun at a time.
const AT_A_TIME: usize = 16;

/// Resident memory of the daemon, in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Idle {
    pub(super) sessions: u32,
    /// After some calls, without the sessions.
    pub(super) before: u64,
    /// With the sessions, all their clients gone.
    pub(super) with_sessions: u64,
    /// With a stream open in each.
    pub(super) with_streams: u64,
}

impl Idle {
    /// In a daemon of its own: what another measurement left free would hide what sessions take.
    pub(super) async fn measure(sessions: u32) -> Result<Self, MeasureError> {
        let server = Server::start(None).await?;
        let endpoint = server.endpoint();
        let begin = |_| McpClient::initialize(endpoint);
        let mut callers = Vec::new();
        for number in 0..AT_A_TIME {
            callers.push(begin(number).await?.repeating(&sides::call())?);
        }
        closed_loop(&mut callers, WARM_UP).await?.flawless()?;
        drop(callers);

        let resident = || Ok::<_, MeasureError>(Usage::read(server.process())?.resident);
        let before = resident()?;
        let disconnected = |mut client: McpClient| {
            client.disconnect();
            client
        };
        let numbers = 0..usize::try_from(sessions).unwrap_or(usize::MAX);
        let begun = stream::iter(numbers).map(begin).buffer_unordered(AT_A_TIME).map_ok(disconnected);
        let clients: Vec<McpClient> = begun.try_collect().await?;
        let with_sessions = resident()?;
        let opened = stream::iter(&clients).map(McpClient::listen).buffer_unordered(AT_A_TIME);
        let streams: Vec<OpenStream> = opened.try_collect().await?;
        let with_streams = resident()?;
        if let Some(number) = streams.iter().position(OpenStream::is_over) {
            return Err(MeasureError::McpServer(format!("stream {number} of {sessions} was ended by the server")));
        }
        drop(streams);
        server.stop().await;
        Ok(Self { sessions, before, with_sessions, with_streams })
    }

    /// Returns the memory that the sessions take, in MiB.
    pub(super) fn of_sessions(&self) -> f64 {
        mib(self.with_sessions.saturating_sub(self.before))
    }
}

/// Bytes as MiB.
pub(super) fn mib(bytes: u64) -> f64 {
    bytes as f64 / f64::from(1 << 20)
}

impl fmt::Display for Idle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { sessions, before, with_sessions, with_streams } = *self;
        write!(
            f,
            "{sessions} idle sessions: memory {:.1} to {:.1} MiB, {:.1} MiB with a stream open in each",
            mib(before),
            mib(with_sessions),
            mib(with_streams)
        )
    }
}
