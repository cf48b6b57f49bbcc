//! Usage that neither the living processes of a program nor its folder show.

use std::collections::{HashMap, HashSet};
use std::fs;
use std::mem::MaybeUninit;
use std::path::Path;

use rustix::fs::{AtFlags, CWD, Dir, FileType, Mode, OFlags, Stat, openat, stat, statat};
use rustix::process::Pid;

use crate::outcome::Usage;

/// Returns what all ended children have used, with their own children.
#[expect(unsafe_code, reason = "there is no safe interface to getrusage")]
pub(super) fn of_children() -> Usage {
    let mut usage = MaybeUninit::<libc::rusage>::zeroed();
    // SAFETY: the pointer is to memory of the right size, and zeroes are a valid value of it.
    let usage = unsafe {
        libc::getrusage(libc::RUSAGE_CHILDREN, usage.as_mut_ptr());
        usage.assume_init()
    };
    let microseconds = |time: libc::timeval| u64::try_from(time.tv_sec * 1_000_000 + time.tv_usec).unwrap_or_default();
    Usage {
        cpu_us: microseconds(usage.ru_utime) + microseconds(usage.ru_stime),
        peak_memory: u64::try_from(usage.ru_maxrss).unwrap_or_default() * 1024,
    }
}

/// Bytes of files that a process has removed and still has open, or mapped from a folder. What is only mapped, and
/// cannot be looked at, counts as `largest`. Nothing, where this process may not look at that one.
pub(super) fn unlinked_bytes(program: Pid, folder: &Path, largest: u64) -> u64 {
    let proc = format!("/proc/{}", program.as_raw_nonzero());
    let mut found: HashMap<(u64, u64), u64> = HashMap::new();
    let mut take = |stat: Stat| {
        if stat.st_nlink == 0 && FileType::from_raw_mode(stat.st_mode) == FileType::RegularFile {
            found.insert((stat.st_dev, stat.st_ino), u64::try_from(stat.st_blocks).unwrap_or_default() * 512);
        }
    };
    let flags = OFlags::DIRECTORY | OFlags::CLOEXEC;
    if let Ok(descriptors) = openat(CWD, format!("{proc}/fd"), flags, Mode::empty()) {
        for entry in Dir::read_from(&descriptors).into_iter().flatten().flatten() {
            let _ = statat(&descriptors, entry.file_name(), AtFlags::empty()).map(&mut take);
        }
    }
    let mut hidden: HashSet<&str> = HashSet::new();
    let maps = fs::read_to_string(format!("{proc}/maps")).unwrap_or_default();
    for line in maps.lines().filter(|line| line.ends_with(" (deleted)")) {
        // Its addresses, rights, offset, device and inode, and then a path that may have blanks in it.
        let Some(path) = line.find('/').and_then(|at| line.get(at..)) else { continue };
        let fields: Vec<&str> = line.split_ascii_whitespace().take(5).collect();
        let [addresses, _, _, _, inode] = fields[..] else { continue };
        if !Path::new(path).starts_with(folder) {
            continue;
        }
        match stat(format!("{proc}/map_files/{addresses}")) {
            Ok(stat) => take(stat),
            Err(_) => {
                hidden.insert(inode);
            }
        }
    }
    hidden.retain(|inode| !found.keys().any(|(_, known)| known.to_string() == **inode));
    found.values().sum::<u64>() + hidden.len() as u64 * largest
}
