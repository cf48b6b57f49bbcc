//! Ranks texts by a query: BM25, with a bonus for words that are adjacent in the query and in the text.
//!
//! Words are those of Unicode text segmentation, in lower case, so that any script can be searched. They are compared by a
//! hash of 32 bits.

use std::borrow::Borrow;
use std::collections::HashMap;
use std::hash::Hash;

use unicode_segmentation::UnicodeSegmentation as _;

/// Weight of the number of occurrences.
const K1: f64 = 1.5;
/// Weight of the length of a document.
const B: f64 = 0.75;
/// Weight of a pair of adjacent words, compared with a word.
const PAIR_WEIGHT: f64 = 2.0;
/// Different words of a query that count; further ones are ignored.
const MAX_QUERY_WORDS: usize = 32;
/// Positions of removed documents that an index keeps beside those of as many documents as it has.
const SPARE: usize = 64;

/// A word's hash.
type Word = u32;

/// The positions of the documents that match a query, the best first. Those that match equally stay in their order.
#[must_use]
pub fn rank<D: AsRef<str>>(query: &str, documents: &[D]) -> Vec<usize> {
    rank_with_scores(query, documents).into_iter().map(|(position, _)| position).collect()
}

/// The positions of the documents that match a query, with their scores, the best first. No score is zero.
#[must_use]
pub fn rank_with_scores<D: AsRef<str>>(query: &str, documents: &[D]) -> Vec<(usize, f64)> {
    rank_words(query, documents.iter().map(|document| TextWords::of(document.as_ref())))
}

/// The words of a text, for texts that are ranked again and again.
#[derive(Debug, Clone)]
pub struct TextWords(Box<[Word]>);

impl TextWords {
    /// Finds the words of a text.
    #[must_use]
    pub fn of(text: &str) -> Self {
        Self(words(text).collect())
    }

    /// The memory that they take, in bytes.
    #[must_use]
    pub fn size(&self) -> usize {
        size_of_val(&*self.0)
    }
}

/// Variant of [`rank_with_scores`] for texts whose words are known.
#[must_use]
pub fn rank_words(query: &str, documents: impl IntoIterator<Item = impl Borrow<TextWords>>) -> Vec<(usize, f64)> {
    let query = WordQuery::new(query);
    let mut counted = Counted::of(&query);
    let (mut number, mut total) = (0, 0);
    for (position, document) in documents.into_iter().enumerate() {
        let TextWords(words) = document.borrow();
        (number, total) = (position + 1, total + words.len());
        let mut counts = vec![0; query.words.len()];
        for word in words {
            let column = query.words.iter().position(|wanted| wanted == word);
            if let Some(count) = column.and_then(|column| counts.get_mut(column)) {
                *count += 1;
            }
        }
        counted.add(position, words, &counts);
    }
    counted.scores(number, total)
}

/// Documents whose words are kept, so that a search reads only what it needs.
#[derive(Debug)]
pub struct WordIndex<K> {
    /// Documents by their number; `None` for those that were removed.
    documents: Vec<Option<(K, Box<[Word]>)>>,
    numbers: HashMap<K, usize>,
    /// For each word, the numbers of the documents that have it, and how often.
    postings: HashMap<Word, Vec<(usize, u32)>>,
    /// Words of all documents.
    total: usize,
    size: usize,
}

impl<K> Default for WordIndex<K> {
    fn default() -> Self {
        Self { documents: Vec::new(), numbers: HashMap::new(), postings: HashMap::new(), total: 0, size: 0 }
    }
}

impl<K: Clone + Eq + Hash> WordIndex<K> {
    /// Adds a document, which replaces another one with its key.
    pub fn insert(&mut self, key: K, text: &str) {
        self.remove(&key);
        self.add(key, words(text).collect());
    }

    /// Removes a document.
    pub fn remove(&mut self, key: &K) {
        let Some(number) = self.numbers.remove(key) else { return };
        let removed = self.documents.get_mut(number).and_then(Option::take);
        self.total -= removed.map_or(0, |(_, words)| words.len());
        if self.documents.len() > 2 * self.numbers.len() + SPARE {
            let kept = std::mem::take(self).documents;
            kept.into_iter().flatten().for_each(|(key, words)| self.add(key, words));
        }
    }

    /// The keys of the documents that match a query, with their scores, the best first. No score is zero. Documents that
    /// match equally are in the order in which they were added.
    #[must_use]
    pub fn search(&self, query: &str) -> Vec<(&K, f64)> {
        let query = WordQuery::new(query);
        let width = query.words.len();
        let mut occurrences = vec![0_u32; width * self.documents.len()];
        for (column, word) in query.words.iter().enumerate() {
            for (number, count) in self.postings.get(word).into_iter().flatten() {
                if let Some(counter) = occurrences.get_mut(number * width + column) {
                    *counter = *count;
                }
            }
        }
        let mut counted = Counted::of(&query);
        for (counts, document) in occurrences.chunks_exact(width.max(1)).zip(&self.documents) {
            if let Some((key, words)) = document.as_ref().filter(|_| counts.iter().any(|count| *count > 0)) {
                counted.add(key, words, counts);
            }
        }
        counted.scores(self.numbers.len(), self.total)
    }

    /// The number of documents.
    #[must_use]
    pub fn len(&self) -> usize {
        self.numbers.len()
    }

    /// Whether there is no document.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.numbers.is_empty()
    }

    /// About the memory that the index takes, in bytes.
    #[must_use]
    pub const fn size(&self) -> usize {
        self.size
    }

    fn add(&mut self, key: K, words: Box<[Word]>) {
        /// Bytes of a document, of a word in the map, and of the occurrence of a word in a document.
        const SIZES: (usize, usize, usize) = (128, 96, 16);
        let number = self.documents.len();
        let mut sorted = words.to_vec();
        sorted.sort_unstable();
        for run in sorted.chunk_by(|one, other| one == other) {
            let Some(word) = run.first() else { continue };
            let known = self.postings.len();
            self.postings.entry(*word).or_default().push((number, u32::try_from(run.len()).unwrap_or(u32::MAX)));
            self.size += SIZES.2 + SIZES.1 * (self.postings.len() - known);
        }
        self.total += words.len();
        self.size += SIZES.0 + size_of_val(&*words);
        self.numbers.insert(key.clone(), number);
        self.documents.push(Some((key, words)));
    }
}

/// A query, in words.
struct WordQuery {
    words: Vec<Word>,
    /// Adjacent words, as positions in `words`.
    pairs: Vec<(usize, usize)>,
}

/// Occurrences of the words and pairs of a query in documents.
struct Counted<'q, T> {
    query: &'q WordQuery,
    /// Documents, and their lengths in words.
    documents: Vec<(T, usize)>,
    /// Of each document the number of each word, and of each pair.
    counts: Vec<u32>,
}

impl WordQuery {
    fn new(text: &str) -> Self {
        let mut query = Self { words: Vec::new(), pairs: Vec::new() };
        let mut before = None;
        for word in words(text) {
            let position = match query.words.iter().position(|known| *known == word) {
                Some(position) => position,
                None if query.words.len() == MAX_QUERY_WORDS => break,
                None => {
                    query.words.push(word);
                    query.words.len() - 1
                }
            };
            if let Some(pair) = before.map(|before| (before, position)).filter(|pair| !query.pairs.contains(pair)) {
                query.pairs.push(pair);
            }
            before = Some(position);
        }
        query
    }
}

impl<'q, T> Counted<'q, T> {
    const fn of(query: &'q WordQuery) -> Self {
        Self { query, documents: Vec::new(), counts: Vec::new() }
    }

    /// Adds a document that has each word of the query so often.
    fn add(&mut self, document: T, words: &[Word], counts: &[u32]) {
        let query = self.query;
        let has = |column: usize| counts.get(column).is_some_and(|count| *count > 0);
        self.documents.push((document, words.len()));
        self.counts.extend_from_slice(counts);
        self.counts.extend(query.pairs.iter().map(|(first, second)| {
            match (query.words.get(*first), query.words.get(*second)) {
                (Some(one), Some(other)) if has(*first) && has(*second) => pairs_in(words, *one, *other),
                _ => 0,
            }
        }));
    }

    /// The scores of those that match, the best first; `number` and `total` are those of all documents and of their words.
    fn scores(self, number: usize, total: usize) -> Vec<(T, f64)> {
        let width = self.query.words.len() + self.query.pairs.len();
        let number = number as f64;
        let average = if total == 0 { 1.0 } else { total as f64 / number };
        let mut having = vec![0_u32; width];
        for counts in self.counts.chunks_exact(width.max(1)) {
            having.iter_mut().zip(counts).for_each(|(having, count)| *having += u32::from(*count > 0));
        }
        let weights = having.iter().enumerate().map(|(column, having)| {
            let rarity = ((number - f64::from(*having) + 0.5) / (f64::from(*having) + 0.5)).ln_1p();
            if column < self.query.words.len() { rarity } else { PAIR_WEIGHT * rarity }
        });
        let weights: Vec<f64> = weights.collect();
        let scored = self.documents.into_iter().zip(self.counts.chunks_exact(width.max(1)));
        let scored = scored.map(|((document, length), counts)| {
            let norm = K1 * (1.0 - B + B * length as f64 / average);
            let each = counts.iter().zip(&weights).filter(|(count, _)| **count > 0);
            let score = each.map(|(count, weight)| {
                let count = f64::from(*count);
                weight * count * (K1 + 1.0) / (count + norm)
            });
            (document, score.sum())
        });
        let mut scores: Vec<(T, f64)> = scored.filter(|(_, score)| *score > 0.0).collect();
        scores.sort_by(|(_, one), (_, other)| other.total_cmp(one));
        scores
    }
}

/// Number of times that two words are side by side in a text.
fn pairs_in(text: &[Word], first: Word, second: Word) -> u32 {
    let (mut number, mut rest) = (0, text);
    while let [one, tail @ ..] = rest {
        let is_pair = *one == first && tail.first() == Some(&second);
        number += u32::from(is_pair);
        // An occurrence ends where the next one begins.
        rest = if is_pair { tail.get(1..).unwrap_or_default() } else { tail };
    }
    number
}

/// The words of a text. Names such as `web_search` and `example.com` are several words.
fn words(text: &str) -> impl Iterator<Item = Word> + '_ {
    let parts = text.unicode_words().flat_map(|word| word.split(['_', '.', ':', '\'', '’']));
    parts.filter(|part| !part.is_empty()).map(hash)
}

/// The hash of a word in lower case: FNV-1a, folded.
fn hash(word: &str) -> Word {
    let mut hash = 0xcbf2_9ce4_8422_2325_u64;
    let mut add = |byte: u8| hash = (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
    if word.is_ascii() {
        word.bytes().for_each(|byte| add(byte.to_ascii_lowercase()));
    } else {
        let mut bytes = [0; 4];
        word.chars().flat_map(char::to_lowercase).for_each(|c| c.encode_utf8(&mut bytes).bytes().for_each(&mut add));
    }
    (hash ^ hash >> 32) as Word
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const PANTRY: [&str; 4] = [
        "the broker confirms every message",
        "a message of the broker, and another message",
        "nothing of interest",
        "confirms of a publisher",
    ];

    #[test]
    fn documents_that_match_better_come_first_and_others_are_left_out() {
        assert_eq!(rank("message", &PANTRY), [1, 0]);
        assert_eq!(rank("confirms message", &PANTRY).first(), Some(&0), "both words");
        assert!(rank("absent", &PANTRY).is_empty());
        assert!(rank("", &PANTRY).is_empty() && rank("…", &PANTRY).is_empty());
        assert!(rank::<&str>("message", &[]).is_empty());
        assert!(rank("message", &["", "…"]).is_empty());
    }

    #[test]
    fn scores_are_those_of_bm25() {
        let documents = ["red fox", "red red dog", "blue"];
        let scores = rank_with_scores("red", &documents);
        let rarity = (1.0_f64 + (3.0 - 2.0 + 0.5) / (2.0 + 0.5)).ln();
        let expected = |count: f64, length: f64| rarity * count * 2.5 / (count + 1.5 * (0.25 + 0.75 * length / 2.0));
        let [(first, one), (second, other)] = scores[..] else { panic!("{scores:?}") };
        assert_eq!((first, second), (1, 0));
        assert!((one - expected(2.0, 3.0)).abs() < 1e-12 && (other - expected(1.0, 2.0)).abs() < 1e-12, "{scores:?}");
    }

    #[test]
    fn adjacent_words_count_twice_as_much_again() {
        let documents = ["tool of the search", "search tool of the"];
        assert_eq!(rank("search tool", &documents), [1, 0]);
        let [(_, near), (_, far)] = rank_with_scores("search tool", &documents)[..] else { panic!("two") };
        // Rarer than either word, and alone in its document.
        assert!(near > far * 2.0, "{near} {far}");
        assert_eq!(rank("a a", &["a a a a", "b"]), [0]);
    }

    #[test]
    fn words_of_any_script_are_found_in_any_case() {
        let documents =
            ["Überraschung für ΣΊΣΥΦΟΣ", "東京の天気は晴れです", "наша Погода сегодня", "call web_search.now"];
        for (query, expected) in
            [("überraschung", 0), ("天気", 1), ("погода", 2), ("search", 3), ("Web Search", 3), ("NOW", 3)]
        {
            assert_eq!(rank(query, &documents), [expected], "{query}");
        }
    }

    #[test]
    fn equal_documents_stay_in_their_order() {
        assert_eq!(rank("x", &["x", "y", "x", "x"]), [0, 2, 3]);
    }

    #[test]
    fn a_query_of_very_many_words_counts_its_first_ones() {
        let query: String = (0..1000).map(|number| format!("w{number} ")).collect();
        assert_eq!(rank(&query, &["w999", "w0"]), [1]);
    }

    #[test]
    fn an_index_forgets_removed_and_replaced_documents() {
        let mut index = WordIndex::default();
        for number in 0..1000 {
            index.insert(number, "the same text");
            index.insert(number, if number % 2 == 0 { "even" } else { "odd" });
        }
        assert!(index.search("same").is_empty());
        (0..999).for_each(|number| index.remove(&number));
        index.remove(&7);
        assert_eq!(index.search("odd").into_iter().map(|(key, _)| *key).collect::<Vec<_>>(), [999]);
        assert_eq!(index.len(), 1);
        assert!(index.documents.len() <= 2 + SPARE && index.size() < 100_000, "{}", index.size());
    }

    proptest! {
        #[test]
        fn an_index_ranks_as_the_plain_function(
            texts in prop::collection::vec("[a-e ]{0,30}", 0..12),
            gone in prop::collection::vec(0_usize..12, 0..4),
            query in "[a-f ]{0,12}",
        ) {
            let mut index = WordIndex::default();
            texts.iter().enumerate().for_each(|(number, text)| index.insert(number, text));
            gone.iter().for_each(|number| index.remove(number));
            let (kept, texts): (Vec<_>, Vec<_>) = texts.iter().enumerate().filter(|(n, _)| !gone.contains(n)).unzip();
            let plain = rank_with_scores(&query, &texts).into_iter().map(|(at, score)| (kept[at], score));
            let indexed = index.search(&query).into_iter().map(|(key, score)| (*key, score));
            prop_assert_eq!(plain.collect::<Vec<_>>(), indexed.collect::<Vec<_>>());
        }

        #[test]
        fn no_text_and_no_query_panics(query: String, documents: Vec<String>) {
            let scores = rank_with_scores(&query, &documents);
            prop_assert!(scores.iter().all(|(_, score)| score.is_finite() && *score > 0.0));
        }
    }
}
