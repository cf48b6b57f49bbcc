//! The process that forks the watchdogs, on the daemon's side.

use std::io;
use std::os::fd::{AsFd as _, OwnedFd};
use std::os::unix::process::CommandExt as _;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};

use parking_lot::Mutex;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};
use rustix::pipe::{PipeFlags, pipe_with};
use tokio::net::UnixStream;
use tokio::net::unix::pipe::Receiver;

use crate::helper::SANDBOX;
use crate::wire::{self, FilterOptions};

/// Starts the spawner when it is needed, and again if it has ended.
#[derive(Debug)]
pub(super) struct Spawner {
    helper: PathBuf,
    running: Mutex<Option<Running>>,
}

/// One spawner. Ends when this is dropped, after its watchdogs.
#[derive(Debug)]
struct Running {
    /// `None` while it is dropped.
    socket: Option<OwnedFd>,
    process: Option<Child>,
}

/// The daemon's ends of the streams of one watchdog. It ends when this is dropped.
#[derive(Debug)]
pub(super) struct Helper {
    pub(super) socket: UnixStream,
    pub(super) stdout: Receiver,
    pub(super) stderr: Receiver,
}

impl Spawner {
    /// Uses this executable.
    pub(super) const fn new(helper: PathBuf) -> Self {
        Self { helper, running: Mutex::new(None) }
    }

    /// Makes a watchdog. Does not wait for it.
    pub(super) fn watchdog(&self, filter: FilterOptions) -> io::Result<Helper> {
        let (helper, streams) = Helper::pair()?;
        let streams = streams.each_ref().map(|stream| stream.as_fd());
        let mut running = self.running.lock();
        let asked = running.as_ref().is_some_and(|running| running.ask(streams, filter).is_ok());
        if !asked {
            // It was not needed before, or was killed.
            *running = None;
            running.insert(Running::start(&self.helper)?).ask(streams, filter)?;
        }
        Ok(helper)
    }
}

impl Running {
    fn start(helper: &PathBuf) -> io::Result<Self> {
        let (socket, theirs) = socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)?;
        let mut command = Command::new(helper);
        command.arg0("toolbus").arg(SANDBOX).env_clear().current_dir("/");
        command.stdin(Stdio::from(theirs)).stdout(Stdio::null()).stderr(Stdio::null());
        Ok(Self { process: Some(command.spawn()?), socket: Some(socket) })
    }

    fn ask(&self, streams: [std::os::fd::BorrowedFd<'_>; 3], filter: FilterOptions) -> io::Result<()> {
        let socket = self.socket.as_ref().ok_or(io::ErrorKind::NotConnected)?;
        wire::send_streams(socket.as_fd(), streams, filter)
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.socket = None;
        if let Some(mut process) = self.process.take() {
            // It waits for its watchdogs, which end in their own time.
            std::thread::spawn(move || process.wait());
        }
    }
}

impl Helper {
    /// Both ends.
    pub(super) fn pair() -> io::Result<(Self, wire::Streams)> {
        let (ours, theirs) = std::os::unix::net::UnixStream::pair()?;
        ours.set_nonblocking(true)?;
        let (stdout, to_stdout) = pipe_with(PipeFlags::CLOEXEC)?;
        let (stderr, to_stderr) = pipe_with(PipeFlags::CLOEXEC)?;
        let helper = Self {
            socket: UnixStream::from_std(ours)?,
            stdout: Receiver::from_owned_fd(stdout)?,
            stderr: Receiver::from_owned_fd(stderr)?,
        };
        Ok((helper, [theirs.into(), to_stdout, to_stderr]))
    }

    /// Whether all processes of the sandbox have ended.
    pub(super) fn is_gone(&self) -> bool {
        self.has(PollFlags::empty())
    }

    /// Whether they have ended, or something was said that is not read yet.
    pub(super) fn is_gone_or_says(&self) -> bool {
        self.has(PollFlags::IN)
    }

    fn has(&self, event: PollFlags) -> bool {
        let mut socket = [PollFd::from_borrowed_fd(self.socket.as_fd(), event)];
        let polled = poll(&mut socket, Some(&Timespec::default()));
        !matches!(polled, Ok(0))
    }
}
