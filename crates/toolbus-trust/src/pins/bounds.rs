//! How much is kept of sources that nobody named, such as MCP servers that callers register: whoever may add some must not
//! fill the file for everybody.

use super::book::Book;
use super::record::{Record, Source};

/// Most sources that are gone and still kept.
const MAX_GONE: usize = 1_000;
/// Most bytes that they take.
const MAX_GONE_BYTES: usize = 8 << 20;
/// Most bytes of sources that are there, in a file that would be too large with all of them.
const MAX_UNNAMED_BYTES: usize = 32 << 20;
/// Bytes that a definition takes in the file besides itself, about.
const OVERHEAD: usize = 512;

impl Book {
    /// Forgets the oldest of the sources that are gone and that nobody named, where these are too many, or too large: those
    /// that went first.
    pub(super) fn forget_gone(&mut self) {
        let gone = self.record.sources.iter().filter(|(name, _)| !self.present.contains_key(*name));
        let gone = gone.filter(|(name, _)| !self.levels.name(name));
        let mut gone: Vec<_> =
            gone.map(|(name, source)| (self.last_seen.get(name), &source.since, name, source)).collect();
        gone.sort_by_key(|(last_seen, since, name, _)| std::cmp::Reverse((*last_seen, *since, *name)));
        let sizes = gone.into_iter().map(|(_, _, name, source)| (name, size(source)));
        for name in beyond(sizes, MAX_GONE, MAX_GONE_BYTES) {
            self.record.sources.remove(&name);
            self.last_seen.remove(&name);
            self.told.remove(&name);
            self.changes.remove(&name);
            self.is_unsaved = true;
        }
    }

    /// Leaves out of a record that is too large what was before, and of the sources that nobody named those that are gone,
    /// and the largest.
    pub(super) fn trimmed(&self, record: &Record) -> Record {
        let mut record = record.clone();
        record.sources.retain(|source, _| self.present.contains_key(source) || self.levels.name(source));
        let pins = record.sources.values_mut().flat_map(|source| source.tools.values_mut());
        pins.for_each(|pin| pin.before = None);
        let unnamed = record.sources.iter().filter(|(name, _)| !self.levels.name(name));
        let mut unnamed: Vec<_> = unnamed.map(|(name, source)| (name, size(source))).collect();
        unnamed.sort_by_key(|(_, size)| *size);
        for name in beyond(unnamed, usize::MAX, MAX_UNNAMED_BYTES) {
            record.sources.remove(&name);
        }
        record
    }
}

/// Those of these sources that find no room behind the ones before them.
fn beyond<'a>(sources: impl IntoIterator<Item = (&'a String, usize)>, number: usize, bytes: usize) -> Vec<String> {
    let (mut rooms, mut room) = (number, bytes);
    let mut finds_room = |size: usize| {
        let fits = rooms > 0 && size <= room;
        if fits {
            (rooms, room) = (rooms - 1, room - size);
        }
        fits
    };
    sources.into_iter().filter(|(_, size)| !finds_room(*size)).map(|(name, _)| name.clone()).collect()
}

/// What a source takes in the file, about.
fn size(source: &Source) -> usize {
    let of_tool = |(name, bytes): (&String, usize)| name.len() + bytes + OVERHEAD;
    let pinned = source.tools.iter().map(|(name, pin)| {
        let before = pin.before.as_ref().map_or(0, |before| before.definition.as_json().len());
        of_tool((name, pin.definition.as_json().len() + before))
    });
    let waiting = source.pending.iter().map(|(name, seen)| of_tool((name, seen.definition.as_json().len())));
    OVERHEAD + pinned.chain(waiting).sum::<usize>()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_finds_no_room_goes_and_what_is_smaller_stays() {
        let names = ["a", "b", "c", "d", "e"].map(str::to_owned);
        let sources = || names.iter().zip([3, 9, 4, 2, 1]);
        assert_eq!(beyond(sources(), 5, 9), ["b", "e"]);
        assert_eq!(beyond(sources(), 2, 100), ["c", "d", "e"]);
        assert_eq!(beyond(sources(), 5, 100), [""; 0]);
    }
}
