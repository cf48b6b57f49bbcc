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

use crate::outcome::{Ending, Stop, Unplaced, Usage};
use crate::plan::{Layers, Plan};

/// Largest frame, in bytes, without the files that follow.
pub(crate) const MAX_FRAME: usize = 4 * 1024 * 1024;
/// File descriptor on which a program learns that its job is there.
pub(crate) const GO: i32 = 3;
/// File descriptor on which a program reports that it is ready; of one that stays, also that it is done with a job.
pub(crate) const READY: i32 = 4;
/// File descriptor to which a program writes lines on its progress.
pub(crate) const PROGRESS: i32 = 5;

/// Users that the forks of a template have in turn, where the daemon may change users.
pub(crate) const USERS_OF_FORKS: u32 = 31;

/// The sandbox to make; the program in it follows later.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct SandboxSpec {
    /// Distinguishes it from all others of the daemon.
    pub(crate) number: u64,
    pub(crate) plan: Plan,
    pub(crate) layers: Layers,
    /// User and group to run as; `None`: those of the daemon. The forks of a template have the next [`USERS_OF_FORKS`].
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

/// Messages that the daemon sends after the specification.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) enum DaemonMessage {
    /// The program to start. The bytes of its standard input follow.
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
    pub(crate) stdin: u64,
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

/// Messages that the helper sends.
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
    /// The job is not begun with. A program that has had a job before waits for another one.
    Unplaced(Unplaced),
    /// A line that the program wrote on its progress.
    Progress(String),
    /// All its processes have ended, but for a program that stays. The bytes of artifacts follow, in order.
    Ended(RunReport),
}

/// Report on a run.
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

/// Calls that a system call filter allows besides the common ones.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct FilterOptions {
    pub(crate) has_namespaces: bool,
    /// Whether all memory of the program is counted, also what no process shows.
    pub(crate) counts_all: bool,
    /// Modes, owners and times of files, where it sees no files of others.
    pub(crate) metadata: bool,
    /// Modes and times, where it sees files of others, and no other files are its user's.
    pub(crate) own_metadata: bool,
    pub(crate) network: bool,
    /// Whether the program is a template.
    pub(crate) forks: bool,
}

impl FilterOptions {
    /// Those of a sandbox.
    pub(crate) const fn of(plan: &Plan, layers: Layers, has_user: bool, counts_all: bool) -> Self {
        let has_namespaces = layers.namespaces;
        Self {
            has_namespaces,
            counts_all,
            metadata: has_namespaces && plan.metadata,
            own_metadata: !has_namespaces && plan.metadata && has_user,
            network: plan.network,
            forks: plan.forks,
        }
    }

    /// As one byte.
    pub(crate) fn bits(self) -> u8 {
        let Self { has_namespaces, counts_all, metadata, own_metadata, network, forks } = self;
        let flags = [has_namespaces, counts_all, metadata, own_metadata, network, forks];
        flags.into_iter().rev().fold(0, |bits, flag| bits << 1 | u8::from(flag))
    }

    /// Of a byte.
    pub(crate) fn from_bits(bits: u8) -> Self {
        let [has_namespaces, counts_all, metadata, own_metadata, network, forks] =
            [1, 2, 4, 8, 16, 32].map(|bit| bits & bit != 0);
        Self { has_namespaces, counts_all, metadata, own_metadata, network, forks }
    }
}

/// Of one watchdog: its socket to the daemon, and the program's standard output and standard error.
pub(crate) type Streams = [OwnedFd; 3];

/// Asks the spawner for a watchdog with these streams, over a socket of records, which most likely needs a filter with these
/// options. Does not wait.
pub(crate) fn send_streams(to: BorrowedFd<'_>, streams: [BorrowedFd<'_>; 3], filter: FilterOptions) -> io::Result<()> {
    send_descriptors(to, &[filter.bits()], &streams, SendFlags::DONTWAIT)
}

/// Receives what the daemon asks for; `None` if it has ended.
pub(crate) fn receive_streams(from: BorrowedFd<'_>) -> io::Result<Option<(Streams, FilterOptions)>> {
    let mut bits = [0];
    let Some((_, streams)) = receive_descriptors(from, &mut bits)? else { return Ok(None) };
    let streams = streams.try_into().map_err(|_| io::Error::other("a message without its descriptors"))?;
    let [bits] = bits;
    Ok(Some((streams, FilterOptions::from_bits(bits))))
}

/// Most descriptors in one message.
const MOST_DESCRIPTORS: usize = 16;

/// Sends bytes with descriptors.
pub(crate) fn send_descriptors(
    to: BorrowedFd<'_>,
    bytes: &[u8],
    descriptors: &[BorrowedFd<'_>],
    flags: SendFlags,
) -> io::Result<()> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MOST_DESCRIPTORS))];
    let mut ancillary = SendAncillaryBuffer::new(&mut space);
    if !ancillary.push(SendAncillaryMessage::ScmRights(descriptors)) {
        return Err(io::Error::other("there is no room for descriptors"));
    }
    sendmsg(to, &[IoSlice::new(bytes)], &mut ancillary, SendFlags::NOSIGNAL | flags)?;
    Ok(())
}

/// Receives bytes, and their number, with descriptors; `None` if the other side has closed.
pub(crate) fn receive_descriptors(from: BorrowedFd<'_>, bytes: &mut [u8]) -> io::Result<Option<(usize, Vec<OwnedFd>)>> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MOST_DESCRIPTORS))];
    let mut ancillary = RecvAncillaryBuffer::new(&mut space);
    let received = loop {
        match recvmsg(from, &mut [IoSliceMut::new(bytes)], &mut ancillary, RecvFlags::CMSG_CLOEXEC) {
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
    Ok(Some((received.bytes, messages.flatten().collect())))
}
