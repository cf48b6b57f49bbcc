//! Runs the supervisor in the pod of a sandbox, which runs already.

use std::convert::Infallible;
use std::future::pending;
use std::time::Duration;

use futures_util::FutureExt as _;
use futures_util::future::{BoxFuture, Fuse, FusedFuture as _};
use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Status;
use kube::api::{AttachParams, AttachedProcess};
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};
use tokio::sync::Notify;
use tokio::time::timeout;
use toolbus_sandbox::Watcher;

use crate::failure::{ApiFailure, shortened};
use crate::log::LogReader;
use crate::pod::{CONTAINER, SUPERVISOR, WORK};
use crate::state::PodEnd;
use crate::watch::{Objects, request};

/// Reports that it is ready, on a line of its own, and takes the supervisor from its input: in the command it would be
/// a part of the address.
const LOADER: &str =
    "import os, sys; os.write(1, b'\\nr\\n'); exec(sys.stdin.buffer.read(int(sys.stdin.buffer.readline())))";
/// Bytes that are sent or read at a time.
const PART: usize = 16 * 1024;
/// Time in which the end of a program is known after the end of its output.
const LAST_WORDS: Duration = Duration::from_secs(5);
/// Words of a container runtime about a program that is not there.
const NO_PROGRAM: [&str; 2] = ["executable file not found", "no such file or directory"];

/// A supervisor that waits for its job, or runs it.
pub(crate) struct ScriptExec {
    input: Box<dyn AsyncWrite + Send + Unpin>,
    stdout: Box<dyn AsyncRead + Send + Unpin>,
    stderr: Box<dyn AsyncRead + Send + Unpin>,
    status: Fuse<BoxFuture<'static, Option<Status>>>,
    ended: Option<Status>,
    /// Ends with this.
    _process: AttachedProcess,
}

impl ScriptExec {
    /// Starts a supervisor. As long as it has no job, it runs nothing.
    pub(crate) async fn start(pods: &Objects<Pod>, pod: &str, python: &str) -> Result<Self, ApiFailure> {
        let about = pods.about_part("create", "pods/exec");
        let params = AttachParams {
            container: Some(CONTAINER.to_owned()),
            stdin: true,
            max_stdin_buf_size: Some(PART),
            max_stdout_buf_size: Some(PART),
            ..AttachParams::default()
        };
        let command = [python, "-I", "-c", LOADER, WORK];
        let mut process = request(about, pods.api.exec(pod, command, &params)).await?;
        let (Some(input), Some(stdout), Some(stderr), Some(status)) =
            (process.stdin(), process.stdout(), process.stderr(), process.take_status())
        else {
            let message = "the connection to the sandbox has no streams".to_owned();
            return Err(ApiFailure::Retryable { message, wait: None });
        };
        let (stdout, stderr) = (Box::new(stdout), Box::new(stderr));
        let status = status.boxed().fuse();
        Ok(Self { input: Box::new(input), stdout, stderr, status, ended: None, _process: process })
    }

    /// Sends the job when the program is ready, and reads what comes of it to its end, or as far as it is wanted.
    pub(crate) async fn run(&mut self, job: &str, log: &mut LogReader, watcher: Option<&Watcher>) {
        let Self { input, stdout, stderr, status, ended, .. } = self;
        let ready = Notify::new();
        let reading = async {
            let (mut output, mut other) = (vec![0; PART], vec![0; PART]);
            let (mut has_output, mut has_other) = (true, true);
            while has_output || has_other {
                let is_wanted = tokio::select! {
                    biased;
                    read = stdout.read(&mut output), if has_output => {
                        let new = output.get(..read.unwrap_or_default()).unwrap_or_default();
                        has_output = !new.is_empty();
                        let is_wanted = log.take(new, watcher);
                        if log.is_ready() {
                            ready.notify_one();
                        }
                        is_wanted
                    }
                    read = stderr.read(&mut other), if has_other => {
                        let new = other.get(..read.unwrap_or_default()).unwrap_or_default();
                        has_other = !new.is_empty();
                        log.take_other(new)
                    }
                    // Output that has arrived is read before. Streams of a connection that was lost do not end.
                    end = &mut *status => {
                        *ended = end;
                        ended.is_some()
                    }
                };
                if !is_wanted {
                    return;
                }
            }
        };
        let sending = async {
            // Input for a program that has ended may end the connection before its status has come.
            ready.notified().await;
            // A failure to send shows in the output.
            let _ = send(input, job).await;
            pending::<Infallible>().await
        };
        tokio::select! {
            biased;
            () = reading => {}
            never = sending => match never {},
        }
    }

    /// Returns how the supervisor ended without a result; `None`: the connection was lost.
    pub(crate) async fn end(&mut self) -> Option<PodEnd> {
        if !self.status.is_terminated() {
            self.ended = timeout(LAST_WORDS, &mut self.status).await.ok().flatten();
        }
        let status = self.ended.take()?;
        let message = status.message.unwrap_or_default();
        let causes = status.details.and_then(|details| details.causes).unwrap_or_default();
        let has_code = causes.iter().any(|cause| cause.reason.as_deref() == Some("ExitCode"));
        let is_of_node = !has_code && !NO_PROGRAM.iter().any(|text| message.contains(text));
        let reason = if message.is_empty() { "its program has ended".to_owned() } else { shortened(&message) };
        Some(PodEnd { ending: None, reason, is_of_node, is_rejected: false })
    }
}

/// Sends the supervisor and its job. The input stays open: not every connection can close it alone.
async fn send(input: &mut (dyn AsyncWrite + Send + Unpin), job: &str) -> std::io::Result<()> {
    for part in [SUPERVISOR, job] {
        input.write_all(format!("{}\n", part.len()).as_bytes()).await?;
        input.write_all(part.as_bytes()).await?;
    }
    input.flush().await
}
