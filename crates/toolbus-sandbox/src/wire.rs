//! The messages between the daemon and its helper over a socket: frames of JSON, each after its length, followed by the
//! bytes of the files that the frame announces.

use std::collections::BTreeMap;
use std::io::{self, IoSlice, IoSliceMut, Read, Write};
use std::mem::MaybeUninit;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::path::PathBuf;

use rustix::io::Errno;
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage, SendFlags,
    recvmsg, sendmsg,
};
use serde::{Deserialize, Serialize, de::DeserializeOwned};

use crate::outcome::{Ending, Stop, Usage};
use crate::plan::{Layers, Plan};

/// Largest frame, in bytes, without the files that follow.
pub(crate) const MAX_FRAME: usize = 4 * 1024 * 1024;
/// File descriptor on which a program learns that its job is there.
pub(crate) const GO: i32 = 3;
/// File descriptor on which a program reports that it is ready; of one that stays, also that it is done with a job.
pub(crate) const READY: i32 = 4;
/// File descriptor to which a program writes lines on its progress.
pub(crate) const PROGRESS: i32 = 5;

/// The sandbox to make; the program in it follows later.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct SandboxSpec {
    /// Distinguishes it from all others of the daemon.
    pub(crate) number: u64,
    pub(crate) plan: Plan,
    pub(crate) layers: Layers,
    /// User and group to run as; `None`: those of the daemon.
    pub(crate) user: Option<u32>,
    /// Parent of its work folder, unless that is in memory.
    pub(crate) base: PathBuf,
    /// `None`: there are no cgroups that the daemon may write to.
    pub(crate) cgroup: Option<CgroupSpec>,
}

/// Where the cgroups of runs are made.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct CgroupSpec {
    /// Folder of the daemon's in the hierarchy that limits memory.
    pub(crate) memory: PathBuf,
    /// The same in the hierarchy that counts CPU time; in version 2 it is one with the other.
    pub(crate) cpu: PathBuf,
}

/// What the daemon sends after that.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) enum DaemonMessage {
    /// The program to start.
    Start(ProgramSpec),
    /// The job. The bytes of its files and inputs follow, in order, then those of its standard input.
    Job(JobHeader),
    /// The program is to end at once, for this reason.
    Stop(Stop),
}

/// A program to start.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct ProgramSpec {
    pub(crate) program: PathBuf,
    pub(crate) args: Vec<String>,
    pub(crate) env: BTreeMap<String, String>,
}

/// A job, without the bytes.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub(crate) struct JobHeader {
    pub(crate) files: Vec<(String, u64)>,
    pub(crate) inputs: Vec<(String, u64)>,
    pub(crate) stdin: u64,
    pub(crate) time_ms: u64,
    pub(crate) cpu_ms: u64,
    pub(crate) stays: bool,
}

/// What the helper sends.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) enum HelperMessage {
    /// The watchdog has begun. Always the first message, unless that failed.
    Made,
    /// The program waits for its job.
    Ready,
    /// The run failed, and not the program.
    Failed {
        /// Why.
        why: String,
        /// Whether the program may have begun with its job.
        has_begun: bool,
    },
    /// A line that the program wrote on its progress.
    Progress(String),
    /// All its processes have ended, but for a program that stays. The bytes of artifacts follow, in order.
    Ended(RunReport),
}

/// How a run went.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct RunReport {
    pub(crate) ending: Ending,
    pub(crate) usage: Usage,
    pub(crate) artifacts: Vec<(String, u64)>,
    pub(crate) left_out: u64,
    pub(crate) not_returned: Vec<String>,
    /// Whether the program waits for another job.
    pub(crate) stays: bool,
}

/// A frame, ready to be sent.
pub(crate) fn frame(message: &impl Serialize) -> io::Result<Vec<u8>> {
    let body = serde_json::to_vec(message)?;
    let length = u32::try_from(body.len()).ok().filter(|length| *length as usize <= MAX_FRAME);
    let length = length.ok_or_else(|| io::Error::other("a message is too large"))?;
    let mut frame = Vec::with_capacity(body.len() + 4);
    frame.extend_from_slice(&length.to_be_bytes());
    frame.extend_from_slice(&body);
    Ok(frame)
}

/// The length that a frame begins with.
pub(crate) fn length(bytes: [u8; 4]) -> io::Result<usize> {
    let length = u32::from_be_bytes(bytes) as usize;
    if length > MAX_FRAME { Err(io::Error::other("a message is too large")) } else { Ok(length) }
}

/// Writes a frame.
pub(crate) fn send(to: &mut impl Write, message: &impl Serialize) -> io::Result<()> {
    to.write_all(&frame(message)?)
}

/// Reads a frame; `None` if the other side has closed.
pub(crate) fn receive<T: DeserializeOwned>(from: &mut impl Read) -> io::Result<Option<T>> {
    let mut bytes = [0; 4];
    match from.read_exact(&mut bytes) {
        Ok(()) => {}
        Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Ok(None),
        Err(error) => return Err(error),
    }
    let mut body = vec![0; length(bytes)?];
    from.read_exact(&mut body)?;
    Ok(Some(serde_json::from_slice(&body)?))
}

/// Of one watchdog: its socket to the daemon, and the program's standard output and standard error.
pub(crate) type Streams = [OwnedFd; 3];

/// Asks the spawner for a watchdog with these streams, over a socket of records. Does not wait.
pub(crate) fn send_streams(to: BorrowedFd<'_>, streams: [BorrowedFd<'_>; 3]) -> io::Result<()> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(3))];
    let mut ancillary = SendAncillaryBuffer::new(&mut space);
    if !ancillary.push(SendAncillaryMessage::ScmRights(&streams)) {
        return Err(io::Error::other("there is no room for descriptors"));
    }
    sendmsg(to, &[IoSlice::new(&[0])], &mut ancillary, SendFlags::NOSIGNAL | SendFlags::DONTWAIT)?;
    Ok(())
}

/// Receives what the daemon asks for; `None` if it has ended.
pub(crate) fn receive_streams(from: BorrowedFd<'_>) -> io::Result<Option<Streams>> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(3))];
    let mut ancillary = RecvAncillaryBuffer::new(&mut space);
    let mut byte = [0];
    let received = loop {
        match recvmsg(from, &mut [IoSliceMut::new(&mut byte)], &mut ancillary, RecvFlags::CMSG_CLOEXEC) {
            Err(Errno::INTR) => {}
            received => break received?,
        }
    };
    if received.bytes == 0 {
        return Ok(None);
    }
    let messages = ancillary.drain().filter_map(|message| match message {
        RecvAncillaryMessage::ScmRights(descriptors) => Some(descriptors),
        _ => None,
    });
    let streams = messages.flatten().collect::<Vec<_>>();
    streams.try_into().map(Some).map_err(|_| io::Error::other("a message without its descriptors"))
}
