//! One run: the job in, the output and the report out.

use std::io;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::UnixStream;
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

/// Reads the next message of the helper.
pub(super) async fn told(socket: &mut (impl AsyncRead + Unpin)) -> io::Result<HelperMessage> {
    let mut length = [0; 4];
    socket.read_exact(&mut length).await?;
    let mut body = vec![0; wire::length(length)?];
    socket.read_exact(&mut body).await?;
    Ok(serde_json::from_slice(&body)?)
}

/// Gives a program its job, and returns when all its processes have ended.
pub(super) async fn run(made: Made, limits: &Limits, job: Job) -> Result<Outcome, SandboxError> {
    let Made { helper: Helper { mut socket, stdout, stderr }, has_watchdog, .. } = made;
    let begun = now();
    let patience = job.time.saturating_add(GRACE);
    let outcome = async {
        send(&mut socket, &job).await;
        let too_much = Notify::new();
        let (stdout, stderr, report) = tokio::join!(
            drain(stdout, limits.output, &too_much),
            drain(stderr, limits.output, &too_much),
            report(&mut socket, has_watchdog, &too_much),
        );
        let elapsed = now() - begun;
        let (RunReport { mut ending, usage, artifacts: _, left_out, not_returned }, artifacts) = report?;
        if stdout.is_cut || stderr.is_cut {
            // Also if it had just ended by itself.
            ending = Ending::Stopped(Stop::Output);
        }
        Ok(Outcome { ending, stdout, stderr, artifacts, left_out, not_returned, usage, elapsed })
    };
    match timeout(patience, outcome).await {
        Ok(outcome) => outcome,
        // The helper ends everything when its socket is dropped.
        Err(_) => Err(SandboxError::Lost),
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
                HelperMessage::Made => has_watchdog = true,
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

/// Reads a stream to its end, and keeps its first `most` bytes.
async fn drain(mut stream: impl AsyncRead + Unpin, most: u64, too_much: &Notify) -> Stream {
    let most = usize::try_from(most).unwrap_or(usize::MAX);
    let (mut kept, mut is_cut, mut rest) = (BytesMut::new(), false, [0; 8192]);
    loop {
        let read = if kept.len() < most {
            let room = most - kept.len();
            (&mut stream).take(room as u64).read_buf(&mut kept).await
        } else {
            let read = stream.read(&mut rest).await;
            if !is_cut && matches!(read, Ok(count) if count > 0) {
                is_cut = true;
                too_much.notify_one();
            }
            read
        };
        if !matches!(read, Ok(count) if count > 0) {
            return Stream { bytes: Bytes::from(kept), is_cut };
        }
    }
}
