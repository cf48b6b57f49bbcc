//! The log of a pod, or the output of a program in it, to which the supervisor writes what comes of a script, a line for
//! each part.
//!
//! A script can write to it, too: every part is checked and limited.

use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use serde::Deserialize;
use toolbus_sandbox::{Artifact, Ending, Limits, Outcome, Stop, Stream, Watcher, Written};

/// Longest line that is read, in bytes.
const LONGEST_LINE: usize = 64 * 1024;
/// Longest beginning of the log that is kept of lines which are no parts, in bytes.
const LONGEST_OTHER: usize = 2000;
/// Most returned files, with that of the last value.
const MOST_FILES: usize = 64;
/// Longest name of a returned file, in bytes.
const LONGEST_NAME: usize = 200;
/// Most files that are named and not returned.
const MOST_NAMED: usize = 21;
/// Longest path of such a file, in bytes.
const LONGEST_PATH: usize = 1000;

/// Reads the log of one pod, from its beginning.
pub(crate) struct LogReader {
    limits: Limits,
    /// Bytes that may still come.
    left: u64,
    line: Vec<u8>,
    /// Whether the line is longer than may be, so that its rest is dropped.
    is_too_long: bool,
    stdout: StreamRead,
    stderr: StreamRead,
    files: Vec<(String, Vec<u8>)>,
    /// Bytes of files that may still come.
    files_left: u64,
    left_out: u64,
    is_ready: bool,
    has_begun: bool,
    is_too_much: bool,
    end: Option<ScriptEnd>,
    other: Vec<u8>,
}

#[derive(Default)]
struct StreamRead {
    bytes: Vec<u8>,
    is_cut: bool,
}

/// End of the script, as the supervisor reports it.
#[derive(Debug, Clone, Deserialize)]
struct ScriptEnd {
    stop: Option<Stop>,
    /// The exit code, or a signal's number below zero.
    code: i32,
    elapsed_ms: u64,
    left_out: u64,
    not_returned: Vec<String>,
}

impl LogReader {
    /// Reads at most so many bytes of a log.
    pub(crate) fn new(limits: Limits, most: u64) -> Self {
        Self {
            limits,
            left: most,
            line: Vec::new(),
            is_too_long: false,
            stdout: StreamRead::default(),
            stderr: StreamRead::default(),
            files: Vec::new(),
            files_left: limits.artifacts,
            left_out: 0,
            is_ready: false,
            has_begun: false,
            is_too_much: false,
            end: None,
            other: Vec::new(),
        }
    }

    /// Takes the next bytes. Returns whether more is wanted.
    pub(crate) fn take(&mut self, bytes: &[u8], watcher: Option<&Watcher>) -> bool {
        let length = bytes.len() as u64;
        if length > self.left {
            self.is_too_much = true;
            return false;
        }
        self.left -= length;
        for part in bytes.split_inclusive(|byte| *byte == b'\n') {
            let (part, ends) = part.strip_suffix(b"\n").map_or((part, false), |part| (part, true));
            if self.line.len() + part.len() <= LONGEST_LINE {
                self.line.extend_from_slice(part);
            } else {
                self.is_too_long = true;
            }
            if ends {
                let line = std::mem::take(&mut self.line);
                if !std::mem::take(&mut self.is_too_long) {
                    self.line(&line, watcher);
                }
            }
        }
        self.end.is_none()
    }

    /// Takes the standard error of the supervisor. Returns whether more is wanted.
    pub(crate) fn take_other(&mut self, bytes: &[u8]) -> bool {
        let length = bytes.len() as u64;
        self.is_too_much |= length > self.left;
        self.left = self.left.saturating_sub(length);
        let room = LONGEST_OTHER.saturating_sub(self.other.len());
        self.other.extend(bytes.iter().take(room));
        !self.is_too_much
    }

    /// Whether a program of a sandbox waits for its job.
    pub(crate) const fn is_ready(&self) -> bool {
        self.is_ready
    }

    /// Whether the supervisor has begun.
    pub(crate) const fn has_begun(&self) -> bool {
        self.has_begun
    }

    /// Whether nothing more can come of it.
    pub(crate) const fn is_over(&self) -> bool {
        self.end.is_some() || self.is_too_much
    }

    /// The beginning of output that is no part, which the image's program wrote instead.
    pub(crate) fn other(&self) -> String {
        String::from_utf8_lossy(&self.other).trim().to_owned()
    }

    fn line(&mut self, line: &[u8], watcher: Option<&Watcher>) {
        // Nothing follows the end but what others than the supervisor write.
        if self.end.is_none() && self.part(line, watcher).is_none() {
            let room = LONGEST_OTHER.saturating_sub(self.other.len());
            self.other.extend(line.iter().chain(b"\n").take(room));
        }
    }

    /// Takes a part, if it is one.
    fn part(&mut self, line: &[u8], watcher: Option<&Watcher>) -> Option<()> {
        let text = std::str::from_utf8(line).ok()?;
        let (kind, data) = text.split_once(' ').unwrap_or((text, ""));
        let data = STANDARD.decode(data).ok()?;
        match kind {
            "r" => self.is_ready = true,
            "b" => self.has_begun = true,
            "o" => {
                let is_new = self.stdout.add(&data, self.limits.output);
                if let Some(watcher) = watcher.filter(|_| is_new) {
                    watcher(Written::Stdout(&data));
                }
            }
            "e" => {
                self.stderr.add(&data, self.limits.output);
            }
            "p" => {
                if let (Some(watcher), Ok(line)) = (watcher, std::str::from_utf8(&data)) {
                    watcher(Written::Progress(line));
                }
            }
            "f" => {
                let name = String::from_utf8(data).ok().filter(|name| is_name(name))?;
                if self.files.len() < MOST_FILES {
                    self.files.push((name, Vec::new()));
                }
            }
            "d" => {
                let (_, file) = self.files.last_mut()?;
                if let Some(left) = self.files_left.checked_sub(data.len() as u64) {
                    self.files_left = left;
                    file.extend_from_slice(&data);
                } else {
                    self.files.pop();
                    self.left_out += 1;
                }
            }
            "x" => self.end = Some(serde_json::from_slice(&data).ok()?),
            _ => return None,
        }
        Some(())
    }

    /// The outcome, if the log has the end of the script, or it is known otherwise: `ending`, after `elapsed`.
    pub(crate) fn outcome(self, ending: Option<Ending>, elapsed: Duration) -> Option<Outcome> {
        let end = self.end;
        let is_cut = self.stdout.is_cut || self.stderr.is_cut || self.is_too_much;
        let of_log = end.as_ref().map(|end| match (end.stop, end.code) {
            (Some(stop), _) => Ending::Stopped(stop),
            (None, code @ 0..) => Ending::Exited(code),
            (None, signal) => Ending::Signalled(signal.saturating_neg()),
        });
        let ending = if is_cut { Some(Ending::Stopped(Stop::Output)) } else { of_log.or(ending) }?;
        let elapsed_in_pod = end.as_ref().map(|end| Duration::from_millis(end.elapsed_ms).min(elapsed));
        // Files come after the end of the script: without it the last one may not be whole.
        let files = if end.is_some() { self.files } else { Vec::new() };
        let stream = |stream: StreamRead| Stream { bytes: stream.bytes.into(), is_cut: stream.is_cut };
        Some(Outcome {
            ending,
            stdout: stream(self.stdout),
            stderr: stream(self.stderr),
            artifacts: files.into_iter().map(|(name, bytes)| Artifact { name, bytes: Bytes::from(bytes) }).collect(),
            left_out: self.left_out + end.as_ref().map_or(0, |end| end.left_out.min(1_000_000)),
            not_returned: end.map(|end| end.not_returned).map(named).unwrap_or_default(),
            usage: None,
            elapsed: elapsed_in_pod.unwrap_or(elapsed),
        })
    }
}

impl StreamRead {
    /// Adds what may be. Returns whether that is all.
    fn add(&mut self, data: &[u8], most: u64) -> bool {
        let room = usize::try_from(most).unwrap_or(usize::MAX).saturating_sub(self.bytes.len());
        self.bytes.extend(data.iter().take(room));
        self.is_cut |= data.len() > room;
        data.len() <= room
    }
}

/// Checks whether the text is the name of a file: one part of a path.
fn is_name(name: &str) -> bool {
    !name.is_empty() && name.len() <= LONGEST_NAME && !name.contains(['/', '\0']) && name != "." && name != ".."
}

fn named(names: Vec<String>) -> Vec<String> {
    names.into_iter().filter(|name| name.len() <= LONGEST_PATH).take(MOST_NAMED).collect()
}

#[cfg(test)]
mod tests {
    use toolbus_testing::mutation::check_inputs;

    use super::*;

    const LIMITS: Limits =
        Limits { memory: 0, disk: 0, files: 0, file_size: 0, open_files: 0, processes: 0, output: 8, artifacts: 8 };
    const TIME: Duration = Duration::from_secs(1);
    /// Each part, more than may be, names of no files, ends of every kind, and lines that are no parts.
    const LOGS: &[&[u8]] = &[
        b"b\no b2sK\ne ZXJy\np eyJwcm9ncmVzcyI6MX0=\nf YS50eHQ=\nd eHl6\nd eHl6\n\
          x eyJzdG9wIjpudWxsLCJjb2RlIjowLCJlbGFwc2VkX21zIjo1LCJsZWZ0X291dCI6MSwibm90X3JldHVybmVkIjpbImEiXX0=\n",
        b"b\no eHh4eHh4eHh4eHg=\nf Li4=\nd eA==\nf YS9i\nf YQ==\nd eHh4eHh4eHh4eHg=\n\
          x eyJzdG9wIjoidGltZSIsImNvZGUiOi05LCJlbGFwc2VkX21zIjo1LCJsZWZ0X291dCI6MCwibm90X3JldHVybmVkIjpbXX0=\no eA==\n",
        b"Traceback (most recent call last):\n\xff\nx {}\nx e30=\no !\nq eA==\n",
    ];

    fn read(parts: &[&[u8]]) -> LogReader {
        let mut log = LogReader::new(LIMITS, 1 << 20);
        for part in parts {
            log.take(part, None);
        }
        log
    }

    #[test]
    fn any_bytes_of_a_log_are_a_result_within_limits_however_they_are_cut() {
        check_inputs(LOGS, 3_000, |bytes| {
            let offset = bytes.first().map_or(0, |first| usize::from(*first) % (bytes.len() + 1));
            let (head, tail) = bytes.split_at(offset);
            let (whole, cut) = (read(&[bytes]), read(&[head, tail]));
            assert!(whole.other().len() <= 3 * LONGEST_OTHER);
            let ending = Some(Ending::Stopped(Stop::Time));
            let outcome = whole.outcome(ending, TIME).unwrap();
            assert_eq!(Some(&outcome), cut.outcome(ending, TIME).as_ref(), "cut at {offset}");
            assert!(outcome.stdout.bytes.len() <= 8 && outcome.stderr.bytes.len() <= 8 && outcome.elapsed <= TIME);
            assert!(outcome.artifacts.iter().map(|file| file.bytes.len()).sum::<usize>() <= 8);
            assert!(outcome.artifacts.iter().all(|file| is_name(&file.name)));
        });
    }

    #[test]
    fn a_log_with_the_end_of_the_script_is_a_result() {
        let outcomes: Vec<_> = LOGS.iter().map(|log| read(&[log]).outcome(None, TIME)).collect();
        let [Some(exited), Some(stopped), None] = &*outcomes else { panic!("{outcomes:?}") };
        assert_eq!(
            (exited.ending, &*exited.stdout.bytes, &*exited.stderr.bytes),
            (Ending::Exited(0), &b"ok\n"[..], &b"err"[..])
        );
        assert_eq!((exited.left_out, exited.elapsed), (1, Duration::from_millis(5)));
        let [file] = &*exited.artifacts else { panic!("{exited:?}") };
        assert_eq!((&*file.name, &*file.bytes), ("a.txt", &b"xyzxyz"[..]));
        // More than may be printed counts before the time; a file that is too large does not come back.
        assert_eq!((stopped.ending, stopped.stdout.is_cut), (Ending::Stopped(Stop::Output), true));
        assert_eq!((&*stopped.artifacts, stopped.left_out), (&[][..], 1));
    }

    #[test]
    fn a_log_that_is_too_long_is_too_much_output() {
        let mut log = LogReader::new(LIMITS, 100);
        assert!(log.take(b"b\no b2sK\n", None));
        assert!(!log.take(&[b'x'; 100], None));
        let outcome = log.outcome(None, TIME).unwrap();
        assert_eq!((outcome.ending, &*outcome.stdout.bytes), (Ending::Stopped(Stop::Output), &b"ok\n"[..]));
    }
}
