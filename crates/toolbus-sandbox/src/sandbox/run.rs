//! One run: the job in, the output and the report out.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::UnixStream;
use tokio::net::unix::pipe::Receiver;
use tokio::sync::Notify;
use tokio::time::timeout;

use super::spawner::Helper;
use super::{Made, SandboxError, lost};
use crate::now;
use crate::outcome::{Artifact, Ending, Outcome, Stop, Stream};
use crate::plan::{Job, Limits};
use crate::wire::{self, DaemonMessage, HelperMessage, JobHeader, RunReport};

/// Time that a helper has beyond the program's, to end it and to report.
const GRACE: Duration = Duration::from_secs(10);
/// Bytes of a stream that are read at a time.
const PART: usize = 8192;

/// Reads the next message of the helper.
pub(super) async fn told(socket: &mut (impl AsyncRead + Unpin)) -> io::Result<HelperMessage> {
    let mut length = [0; 4];
    socket.read_exact(&mut length).await?;
    let mut body = vec![0; wire::length(length)?];
    socket.read_exact(&mut body).await?;
    Ok(serde_json::from_slice(&body)?)
}

/// Output that a program writes while it runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Written<'a> {
    /// A part of its standard output, in order.
    Stdout(&'a [u8]),
    /// A line on its progress, without its end: to the file descriptor that `TOOLBUS_PROGRESS_FD` names.
    Progress(&'a str),
}

/// Sees what a program writes, as soon as it has been read. Must not wait.
pub type Watcher = Arc<dyn Fn(Written<'_>) + Send + Sync>;

/// Gives a program its job, and returns when all its processes have ended, with whether the program itself stays.
pub(super) async fn run(
    made: &mut Made,
    limits: &Limits,
    job: &Job,
    watcher: Option<&Watcher>,
) -> Result<(Outcome, bool), SandboxError> {
    let Made { helper: Helper { socket, stdout, stderr }, has_watchdog, .. } = made;
    let begun = now();
    let patience = job.time.saturating_add(GRACE);
    let outcome = async {
        send(socket, job).await;
        let too_much = Notify::new();
        let (mut out, mut err) = (StreamBuffer::new(limits.output), StreamBuffer::new(limits.output));
        let report = tokio::select! {
            report = report(socket, *has_watchdog, &too_much, watcher) => report,
            () = async {
                tokio::join!(out.read(stdout, &too_much, watcher), err.read(stderr, &too_much, None));
                // Both have ended, and the report is still to come.
                std::future::pending::<()>().await;
            } => Err(SandboxError::Lost),
        };
        // What was written before the report is in the pipes.
        out.read_rest(stdout);
        err.read_rest(stderr);
        let (stdout, stderr) = (Stream::from(out), Stream::from(err));
        let elapsed = now() - begun;
        let (RunReport { mut ending, usage, artifacts: _, left_out, not_returned, mut stays }, artifacts) = report?;
        if stdout.is_cut || stderr.is_cut {
            // Also if it had just ended by itself.
            ending = Ending::Stopped(Stop::Output);
            stays = false;
        }
        let usage = Some(usage);
        Ok((Outcome { ending, stdout, stderr, artifacts, left_out, not_returned, usage, elapsed }, stays))
    };
    match timeout(patience, outcome).await {
        Ok(outcome) => outcome,
        // Its time was over long ago, and what it holds takes the kernel long to take down. The helper ends everything
        // when its socket is dropped.
        Err(_) => Ok((Outcome::without_output(Ending::Stopped(Stop::Time), now() - begun), false)),
    }
}

/// Sends the job. A helper that has ended has sent the reason, which is read next.
async fn send(socket: &mut UnixStream, job: &Job) {
    let milliseconds = |time: Duration| u64::try_from(time.as_millis()).unwrap_or(u64::MAX);
    let named =
        |files: &[(String, Bytes)]| files.iter().map(|(name, bytes)| (name.clone(), bytes.len() as u64)).collect();
    let head = JobHeader {
        files: named(&job.files),
        inputs: named(&job.inputs),
        stdin: job.stdin.len() as u64,
        time_ms: milliseconds(job.time),
        cpu_ms: milliseconds(job.cpu),
        stays: job.stays,
    };
    let sent = async {
        socket.write_all(&wire::frame(&DaemonMessage::Job(head))?).await?;
        for bytes in job.files.iter().chain(&job.inputs).map(|(_, bytes)| bytes).chain([&job.stdin]) {
            socket.write_all(bytes).await?;
        }
        Ok::<_, io::Error>(())
    };
    let _ = sent.await;
}

/// Waits for the report, and stops the helper when there is too much output.
async fn report(
    socket: &mut UnixStream,
    mut has_watchdog: bool,
    too_much: &Notify,
    watcher: Option<&Watcher>,
) -> Result<(RunReport, Vec<Artifact>), SandboxError> {
    // Half a message must not be lost: the halves of the socket are used at the same time.
    let (mut from, mut to) = socket.split();
    let stop = async {
        too_much.notified().await;
        if let Ok(frame) = wire::frame(&DaemonMessage::Stop(Stop::Output)) {
            let _ = to.write_all(&frame).await;
        }
        std::future::pending::<()>().await;
    };
    let read = async {
        let report = loop {
            match told(&mut from).await.map_err(|_| lost(has_watchdog))? {
                HelperMessage::Ended(report) => break report,
                HelperMessage::Failed { why, has_begun: false } => return Err(SandboxError::Confinement(why)),
                HelperMessage::Failed { why, has_begun: true } => return Err(SandboxError::Interrupted(why)),
                HelperMessage::Unplaced(unplaced) => return Err(unplaced.into()),
                HelperMessage::Made => has_watchdog = true,
                HelperMessage::Progress(line) => {
                    if let Some(watcher) = watcher {
                        watcher(Written::Progress(&line));
                    }
                }
                // The job was sent before the program was ready.
                HelperMessage::Ready => {}
            }
        };
        let files = async {
            let mut artifacts = Vec::new();
            for (name, length) in &report.artifacts {
                let mut bytes = vec![0; usize::try_from(*length).map_err(io::Error::other)?];
                from.read_exact(&mut bytes).await?;
                artifacts.push(Artifact { name: name.clone(), bytes: bytes.into() });
            }
            Ok::<_, io::Error>(artifacts)
        };
        let artifacts = files.await.map_err(|_| SandboxError::Lost)?;
        Ok((report, artifacts))
    };
    tokio::select! {
        read = read => read,
        () = stop => Err(SandboxError::Lost),
    }
}

/// Bytes that were read of one stream.
struct StreamBuffer {
    kept: BytesMut,
    /// Most bytes that are kept.
    most: usize,
    is_cut: bool,
}

impl StreamBuffer {
    fn new(most: u64) -> Self {
        Self { kept: BytesMut::new(), most: usize::try_from(most).unwrap_or(usize::MAX), is_cut: false }
    }

    /// Reads to the end. What was read stays when the future is dropped.
    async fn read(&mut self, stream: &mut Receiver, too_much: &Notify, watcher: Option<&Watcher>) {
        let mut rest = [0; PART];
        loop {
            let (before, room) = (self.kept.len(), self.most - self.kept.len());
            let read = match room {
                0 => stream.read(&mut rest).await,
                room => (&mut *stream).take(room as u64).read_buf(&mut self.kept).await,
            };
            if !matches!(read, Ok(1..)) {
                return;
            }
            if room == 0 && !self.is_cut {
                self.is_cut = true;
                too_much.notify_one();
            }
            if let (Some(watcher), Some(new @ [_, ..])) = (watcher, self.kept.get(before..)) {
                watcher(Written::Stdout(new));
            }
        }
    }

    /// Reads what is there already.
    fn read_rest(&mut self, stream: &Receiver) {
        let mut part = [0; PART];
        // Whatever the runtime has seen of the pipe: it may have become readable since.
        while let (false, Ok(length @ 1..)) = (self.is_cut, rustix::io::read(stream, &mut part)) {
            let read = part.get(..length).unwrap_or_default();
            let (kept, more) = read.split_at(length.min(self.most - self.kept.len()));
            self.kept.extend_from_slice(kept);
            self.is_cut |= !more.is_empty();
        }
    }
}

impl From<StreamBuffer> for Stream {
    fn from(StreamBuffer { kept, is_cut, .. }: StreamBuffer) -> Self {
        Self { bytes: Bytes::from(kept), is_cut }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::Plan;

    #[tokio::test(start_paused = true)]
    async fn a_program_that_takes_long_to_end_has_timed_out() {
        // The other ends are open, and say nothing.
        let (helper, _streams) = Helper::pair().unwrap();
        let mut made = Made { helper, number: 0, has_watchdog: true, user: None };
        let job = Job { time: Duration::from_secs(1), ..Job::default() };
        let (outcome, stays) = run(&mut made, &Plan::least().limits, &job, None).await.unwrap();
        assert_eq!((outcome.ending, stays), (Ending::Stopped(Stop::Time), false));
    }
}
