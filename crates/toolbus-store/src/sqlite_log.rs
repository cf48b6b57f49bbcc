//! Distinguishes a write-ahead log whose last write was interrupted from one that was damaged later.
//!
//! SQLite ends a log at the first frame whose checksum is wrong, and drops what follows without a word. After a power loss
//! that is the one transaction that was being written, which was reported to no caller. A bit that changed further up takes
//! all later transactions with it, which were. The frames after the last whole transaction distinguish the two: of one
//! transaction, each page is there once (`cache_spill` is off), and the mark of its end is on the last frame.

use std::collections::BTreeSet;
use std::fs::File;
use std::io::{self, BufReader, ErrorKind, Read};
use std::path::Path;

/// First bytes of a log, whose checksums read words as little-endian; plus one, as big-endian.
const MAGIC: u32 = 0x377f_0682;
const HEADER: usize = 32;
const FRAME_HEADER: usize = 24;
/// Size of what a disk writes whole or not at all, in bytes.
const SECTOR: usize = 512;
/// Largest page of SQLite.
const MAX_PAGE: u32 = 65_536;
/// Bits of a log's 64 bits of salt that may have changed in a frame that still counts as its own. Frames that an earlier
/// use of the file left have other salts.
const CHANGED_BITS: u32 = 2;

/// Contents of a log.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum LogState {
    /// Whole transactions, or nothing.
    Whole,
    /// Whole transactions, and one that was being written.
    Torn,
    /// More than one transaction that cannot be read.
    Damaged,
}

/// Reads the log at `path`; one that does not exist is whole.
pub(crate) fn read(path: &Path) -> io::Result<LogState> {
    match File::open(path) {
        Ok(file) => Frames::read(BufReader::new(file)),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(LogState::Whole),
        Err(error) => Err(error),
    }
}

/// The frames after the last whole transaction.
#[derive(Debug, Default)]
struct Frames {
    pages: BTreeSet<u32>,
    has_end: bool,
    is_damaged: bool,
}

impl Frames {
    fn read(mut log: impl Read) -> io::Result<LogState> {
        let mut header = [0; HEADER];
        let length = fill(&mut log, &mut header)?;
        if length < HEADER {
            return Ok(if length == 0 { LogState::Whole } else { LogState::Torn });
        }
        let [magic, _, page, _, salt, more_salt, one, two] = words(&header);
        let (is_big, salt) = (magic == MAGIC + 1, u64::from(salt) << 32 | u64::from(more_salt));
        let mut sum = Sum { is_big, one: 0, two: 0 };
        sum.add(header.get(..HEADER - 8).unwrap_or_default());
        let is_header = magic & !1 == MAGIC && page <= MAX_PAGE && sum.is(one, two);
        if !is_header {
            // SQLite writes a header to the disk before the first frame.
            let mut more = [0];
            return Ok(if fill(&mut log, &mut more)? == 0 { LogState::Torn } else { LogState::Damaged });
        }
        let mut frame = vec![0; FRAME_HEADER + if page == 1 { MAX_PAGE } else { page } as usize];
        let (mut frames, mut is_chain, mut offset) = (Self::default(), true, HEADER);
        while fill(&mut log, &mut frame)? == frame.len() {
            let (of_frame, content) = frame.split_at(FRAME_HEADER);
            let [number, size, first_salt, second_salt, one, two] = words(of_frame);
            let has_salt = u64::from(first_salt) << 32 | u64::from(second_salt);
            sum.add(of_frame.get(..8).unwrap_or_default());
            sum.add(content);
            let is_sound = has_salt == salt && number != 0 && sum.is(one, two);
            // The next frame continues from this one's checksum, valid or not.
            sum = Sum { is_big, one, two };
            is_chain &= is_sound;
            // A disk writes a header that lies within a sector whole or not at all.
            let is_whole = offset % SECTOR <= SECTOR - FRAME_HEADER;
            if is_sound || (is_whole && (has_salt ^ salt).count_ones() <= CHANGED_BITS) {
                frames.add(number, size != 0);
            }
            if is_chain && size != 0 {
                frames = Self::default();
            }
            offset += frame.len();
        }
        Ok(match frames {
            Self { is_damaged: true, .. } => LogState::Damaged,
            Self { pages, .. } if pages.is_empty() => LogState::Whole,
            _ => LogState::Torn,
        })
    }

    /// Adds a frame of this log.
    fn add(&mut self, page: u32, is_end: bool) {
        self.is_damaged |= self.has_end || !self.pages.insert(page);
        self.has_end |= is_end;
    }
}

/// SQLite's checksum, which goes on from frame to frame.
struct Sum {
    is_big: bool,
    one: u32,
    two: u32,
}

impl Sum {
    fn add(&mut self, bytes: &[u8]) {
        for pair in bytes.as_chunks::<8>().0 {
            let [a, b, c, d, e, f, g, h] = *pair;
            let (first, second) = ([a, b, c, d], [e, f, g, h]);
            let word = |bytes| if self.is_big { u32::from_be_bytes(bytes) } else { u32::from_le_bytes(bytes) };
            let (first, second) = (word(first), word(second));
            self.one = self.one.wrapping_add(first).wrapping_add(self.two);
            self.two = self.two.wrapping_add(second).wrapping_add(self.one);
        }
    }

    fn is(&self, one: u32, two: u32) -> bool {
        (self.one, self.two) == (one, two)
    }
}

/// The words of a header, which are big-endian.
fn words<const N: usize>(bytes: &[u8]) -> [u32; N] {
    let mut words = bytes.as_chunks::<4>().0.iter().map(|word| u32::from_be_bytes(*word));
    std::array::from_fn(|_| words.next().unwrap_or_default())
}

/// Reads until the buffer is full or the log ends, and returns how much that was.
fn fill(log: &mut impl Read, buffer: &mut [u8]) -> io::Result<usize> {
    let mut length = 0;
    while let Some(rest) = buffer.get_mut(length..).filter(|rest| !rest.is_empty()) {
        match log.read(rest) {
            Ok(0) => break,
            Ok(more) => length += more,
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(length)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn other_bytes_are_a_torn_or_damaged_log() {
        assert_eq!(Frames::read([].as_slice()).unwrap(), LogState::Whole);
        assert_eq!(Frames::read([7; 31].as_slice()).unwrap(), LogState::Torn);
        assert_eq!(Frames::read([7; 32].as_slice()).unwrap(), LogState::Torn);
        assert_eq!(Frames::read([7; 33].as_slice()).unwrap(), LogState::Damaged);
    }

    #[test]
    fn frames_of_one_transaction_have_each_page_once_and_end_with_its_mark() {
        let read = |frames: &[(u32, bool)]| {
            let mut all = Frames::default();
            frames.iter().for_each(|(page, is_end)| all.add(*page, *is_end));
            all.is_damaged
        };
        assert!(!read(&[(1, false), (3, false), (2, true)]));
        assert!(read(&[(1, false), (1, false)]), "a page of two transactions");
        assert!(read(&[(1, true), (2, false)]), "a transaction after another one");
    }
}
