//! Messages to the server.

use std::io;

use serde::Serialize;
use tokio::io::{AsyncWrite, AsyncWriteExt as _};
use tokio::sync::mpsc;
use tokio::time::sleep;
use tokio_util::sync::CancellationToken;

use super::FLUSH;

/// Bytes that are written at once, unless one message is longer.
const BATCH: usize = 64 * 1024;
/// Memory that is kept between writes, in bytes.
const KEPT_BATCH: usize = 256 * 1024;

/// Writes until it is told to close, or until the server takes nothing any more.
pub(super) async fn write_lines(to: impl AsyncWrite + Unpin, messages: mpsc::Receiver<Vec<u8>>, closing: CancellationToken) {
    let too_late = async {
        closing.cancelled().await;
        sleep(FLUSH).await;
    };
    tokio::select! {
        // Why it failed is told by the server's end, which the reader sees.
        _ = write_batches(to, messages, &closing) => {}
        () = too_late => {}
    }
}

async fn write_batches(
    mut to: impl AsyncWrite + Unpin,
    mut messages: mpsc::Receiver<Vec<u8>>,
    closing: &CancellationToken,
) -> io::Result<()> {
    let mut lines = Vec::new();
    loop {
        let first = tokio::select! {
            biased;
            message = messages.recv() => message,
            () = closing.cancelled(), if !messages.is_closed() => {
                messages.close();
                continue;
            }
        };
        let Some(first) = first else { return Ok(()) };
        lines.extend_from_slice(&first);
        while lines.len() < BATCH
            && let Ok(next) = messages.try_recv()
        {
            lines.extend_from_slice(&next);
        }
        to.write_all(&lines).await?;
        to.flush().await?;
        lines.clear();
        lines.shrink_to(KEPT_BATCH);
    }
}

/// A message as it is written, with its end.
pub(in crate::transport) fn line(message: &impl Serialize) -> serde_json::Result<Vec<u8>> {
    let mut line = serde_json::to_vec(message)?;
    line.push(b'\n');
    Ok(line)
}
