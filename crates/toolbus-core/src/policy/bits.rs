//! Sets of small numbers, as words of bits.

/// A set of numbers of tools.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Bits(Vec<u64>);

/// Where a number is: its word, and its bit in that.
const fn position(number: u32) -> (usize, u64) {
    ((number / u64::BITS) as usize, 1 << (number % u64::BITS))
}

impl Bits {
    pub(crate) fn contains(&self, number: u32) -> bool {
        let (word, bit) = position(number);
        self.0.get(word).is_some_and(|found| found & bit != 0)
    }

    pub(crate) fn insert(&mut self, number: u32) {
        let (word, bit) = position(number);
        if word >= self.0.len() {
            self.0.resize(word + 1, 0);
        }
        if let Some(found) = self.0.get_mut(word) {
            *found |= bit;
        }
    }

    /// Adds every number of `other`.
    pub(crate) fn add(&mut self, other: &Self) {
        if self.0.len() < other.0.len() {
            self.0.resize(other.0.len(), 0);
        }
        self.0.iter_mut().zip(&other.0).for_each(|(word, other)| *word |= other);
    }

    /// Keeps what `other` has, too.
    pub(crate) fn keep(&mut self, other: &Self) {
        self.0.truncate(other.0.len());
        self.0.iter_mut().zip(&other.0).for_each(|(word, other)| *word &= other);
    }

    /// Takes every number of `other` away.
    pub(crate) fn remove(&mut self, other: &Self) {
        self.0.iter_mut().zip(&other.0).for_each(|(word, other)| *word &= !other);
    }

    pub(crate) fn count(&self) -> usize {
        self.0.iter().map(|word| word.count_ones() as usize).sum()
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = u32> {
        (0..).step_by(u64::BITS as usize).zip(&self.0).flat_map(|(first, word)| {
            (0..u64::BITS).filter(move |bit| word & (1 << bit) != 0).map(move |bit| first + bit)
        })
    }
}

impl FromIterator<u32> for Bits {
    fn from_iter<I: IntoIterator<Item = u32>>(numbers: I) -> Self {
        let mut bits = Self::default();
        numbers.into_iter().for_each(|number| bits.insert(number));
        bits
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn bits_are_a_set(left: BTreeSet<u8>, right: BTreeSet<u8>) {
            let bits = |numbers: &BTreeSet<u8>| numbers.iter().map(|number| u32::from(*number)).collect::<Bits>();
            let numbers = |bits: &Bits| bits.iter().map(|number| u8::try_from(number).unwrap()).collect::<BTreeSet<_>>();
            let changed = |change: fn(&mut Bits, &Bits)| {
                let mut bits_of_left = bits(&left);
                change(&mut bits_of_left, &bits(&right));
                numbers(&bits_of_left)
            };
            prop_assert_eq!(bits(&left).count(), left.len());
            prop_assert!((0..=255).all(|number| bits(&left).contains(u32::from(number)) == left.contains(&number)));
            prop_assert_eq!(changed(Bits::add), &left | &right);
            prop_assert_eq!(changed(Bits::keep), &left & &right);
            prop_assert_eq!(changed(Bits::remove), &left - &right);
        }
    }
}
