//! Another proxy: what it is called, where it listens, and how it is started.

use std::io;
use std::process::Stdio;
use std::str::FromStr;

use crate::mcp_http::McpEndpoint;
use tokio::process::{Child, Command};

use super::tree;
use crate::daemon::free_address;
use crate::error::MeasureError;
use crate::errors::Errors;

/// A proxy that others wrote: `NAME[@PATH]=COMMAND`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct PeerCommand {
    pub(super) name: String,
    pub(super) path: String,
    pub(super) command: String,
}

/// A proxy that runs.
pub(super) struct RunningPeer {
    child: Child,
    errors: Errors,
    endpoint: McpEndpoint,
}

impl FromStr for PeerCommand {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let (name, command) = text.split_once('=').ok_or("expected NAME[@PATH]=COMMAND")?;
        let (name, path) = name.split_once('@').unwrap_or((name, "/mcp"));
        if name.is_empty() || command.trim().is_empty() || !path.starts_with('/') {
            return Err("expected NAME[@PATH]=COMMAND, with a path that begins with /");
        }
        Ok(Self { name: name.to_owned(), path: path.to_owned(), command: command.to_owned() })
    }
}

impl PeerCommand {
    /// Starts it with a port to listen on and the server to be in front of.
    pub(super) async fn start(&self, server: &str) -> Result<RunningPeer, MeasureError> {
        let address = free_address().await?;
        let mut shell = Command::new("sh");
        shell.args(["-c", &self.command]).env("PORT", address.port().to_string()).env("SERVER", server);
        shell.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped()).kill_on_drop(true);
        let mut child = shell.spawn()?;
        let errors = Errors::of(&mut child);
        Ok(RunningPeer { child, errors, endpoint: McpEndpoint { address, path: self.path.clone(), token: None } })
    }
}

impl RunningPeer {
    pub(super) const fn endpoint(&self) -> &McpEndpoint {
        &self.endpoint
    }

    pub(super) fn process(&self) -> u32 {
        self.child.id().unwrap_or_default()
    }

    /// Fails where it has ended, with its output.
    pub(super) async fn lives(&mut self, name: &str) -> Result<(), MeasureError> {
        match self.child.try_wait()? {
            None => Ok(()),
            Some(status) => {
                let words = self.errors.last_words().await;
                Err(MeasureError::McpServer(format!("{name} ended ({status}): {words}")))
            }
        }
    }
}

impl Drop for RunningPeer {
    /// Nothing that it started may stay.
    fn drop(&mut self) {
        let below = tree::below(self.process());
        let _ = self.child.start_kill();
        for process in below {
            let _ = end(process);
        }
    }
}

fn end(process: u32) -> io::Result<()> {
    let process = i32::try_from(process).ok().and_then(rustix::process::Pid::from_raw);
    let process = process.ok_or_else(|| io::Error::other("no process has that number"))?;
    Ok(rustix::process::kill_process(process, rustix::process::Signal::KILL)?)
}

#[cfg(test)]
mod tests {
    use toolbus_testing::patience;

    use super::*;

    #[test]
    fn a_peer_is_a_name_a_path_and_a_command_line() {
        let peer = |text: &str| text.parse::<PeerCommand>().map(|peer| (peer.name, peer.path, peer.command));
        let of = |name: &str, path: &str, command: &str| Ok((name.to_owned(), path.to_owned(), command.to_owned()));
        assert_eq!(peer("a b=run --x=1 $PORT"), of("a b", "/mcp", "run --x=1 $PORT"));
        assert_eq!(peer("a@/=run"), of("a", "/", "run"));
        for wrong in ["", "a", "=run", "a=", "a= ", "a@x=run", "@/=run"] {
            assert!(peer(wrong).is_err(), "{wrong}");
        }
    }

    #[tokio::test]
    async fn a_peer_that_ends_reports_why_and_its_processes_end_with_it() {
        let peer: PeerCommand = "a=echo no $SERVER on ${PORT:+a port} >&2; exit 3".parse().unwrap();
        let mut failed = peer.start("server").await.unwrap();
        let error = patience::eventually("its end", async || failed.lives("a").await.err()).await.to_string();
        assert!(error.contains("a ended (exit status: 3): no server on a port"), "{error}");

        let peer: PeerCommand = "a=sleep 1003 & wait".parse().unwrap();
        let mut running = peer.start("server").await.unwrap();
        running.lives("a").await.unwrap();
        let top = running.process();
        let below = patience::eventually("a child", async || tree::below(top).first().copied()).await;
        drop(running);
        let is_gone = async || (tree::resident(below, &[]) == 0).then_some(());
        patience::eventually("its end", is_gone).await;
    }
}
