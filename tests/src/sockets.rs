//! A look at the sockets of a child process, through the system.

use std::fs;
use std::net::SocketAddr;

use rustix::net::{getpeername, sockopt::tcp_nodelay};
use rustix::process::{Pid, PidfdFlags, PidfdGetfdFlags, pidfd_getfd, pidfd_open};

/// Whether TCP_NODELAY is on, for each connection of the process to `peer`.
///
/// # Panics
///
/// When the system does not let a parent look (it needs Linux 5.6).
#[must_use]
pub fn nodelay(pid: u32, peer: SocketAddr) -> Vec<bool> {
    let process = Pid::from_raw(i32::try_from(pid).unwrap()).unwrap();
    let process = pidfd_open(process, PidfdFlags::empty()).unwrap();
    let descriptors = fs::read_dir(format!("/proc/{pid}/fd")).unwrap().flatten();
    let numbers = descriptors.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    let copies = numbers.filter_map(|number| pidfd_getfd(&process, number, PidfdGetfdFlags::empty()).ok());
    let to_peer = copies.filter(|copy| {
        let address = getpeername(copy).ok().flatten();
        address.is_some_and(|address| SocketAddr::try_from(address) == Ok(peer))
    });
    to_peer.map(|socket| tcp_nodelay(socket).unwrap()).collect()
}
