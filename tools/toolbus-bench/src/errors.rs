//! Output of a side on its standard error.

use std::collections::VecDeque;
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncReadExt};
use tokio::process::Child;
use tokio::task::JoinHandle;

/// Most that is kept, in bytes: the end shows why a side stopped.
const MAX_KEPT: usize = 4096;
/// Longest wait for the end of the output of a side that has ended; a child of its own may keep it open.
const END_TIME: Duration = Duration::from_secs(2);

/// Reads it as it comes, so that a side which warns a lot is never held up by a full pipe.
pub(crate) struct Errors(JoinHandle<String>);

impl Errors {
    pub(crate) fn of(child: &mut Child) -> Self {
        let stderr = child.stderr.take();
        Self(tokio::spawn(async move {
            match stderr {
                Some(stderr) => tail(stderr).await,
                None => String::new(),
            }
        }))
    }

    /// The end of what a side wrote that has ended.
    pub(crate) async fn last_words(&mut self) -> String {
        match tokio::time::timeout(END_TIME, &mut self.0).await {
            Ok(Ok(text)) => text,
            _ => String::new(),
        }
    }
}

impl Drop for Errors {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// Reads to the end and keeps the last [`MAX_KEPT`] bytes.
async fn tail(mut source: impl AsyncRead + Unpin) -> String {
    let mut kept = VecDeque::with_capacity(2 * MAX_KEPT);
    let mut buffer = [0; MAX_KEPT];
    while let Ok(count @ 1..) = source.read(&mut buffer).await {
        kept.extend(buffer.get(..count).unwrap_or_default());
        kept.drain(..kept.len().saturating_sub(MAX_KEPT));
    }
    String::from_utf8_lossy(kept.make_contiguous()).trim().to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn the_end_of_a_long_output_is_kept() {
        let text = format!("{}the reason\n", "x".repeat(1_000_000));
        let kept = tail(text.as_bytes()).await;
        assert!(kept.ends_with("xthe reason") && kept.len() < MAX_KEPT, "{}", kept.len());
        assert_eq!(tail(&b" short \n"[..]).await, "short");
    }
}
