//! The significant words of a query.
//!
//! Descriptions of tools are short and seldom ask questions, so that words such as `what` and `there` would be the rarest
//! of a query, and count most.

/// Words without a meaning of their own, of English, German, French, Spanish and Portuguese; sorted.
const FUNCTION_WORDS: [&str; 256] = [
    "a", "aber", "al", "als", "am", "an", "and", "are", "as", "at", "au", "auch", "auf", "aus", "aux", "avec", "be",
    "been", "bei", "bin", "bis", "bitte", "but", "by", "can", "ce", "ces", "cette", "com", "como", "con", "could",
    "cuál", "da", "dans", "das", "dass", "de", "del", "dem", "den", "der", "des", "did", "die", "do", "doch", "does",
    "donde", "dos", "du", "dónde", "e", "ein", "eine", "einem", "einen", "einer", "eines", "el", "ela", "ele", "ella",
    "elle", "em", "en", "er", "es", "est", "esta", "este", "et", "eu", "for", "from", "für", "get", "gibt", "give",
    "habe", "haben", "had", "has", "hat", "have", "he", "her", "him", "his", "how", "i", "ich", "if", "ihr", "il",
    "im", "in", "into", "is", "isso", "ist", "it", "its", "ja", "je", "just", "já", "kann", "la", "las", "le", "les",
    "let", "leur", "like", "lo", "los", "ma", "make", "mas", "me", "mein", "meine", "mes", "meu", "meus", "mi", "mich",
    "mine", "minha", "mir", "mis", "mit", "mon", "my", "na", "nach", "nas", "ne", "need", "nicht", "no", "noch", "nos",
    "not", "nous", "nur", "não", "o", "ob", "oder", "of", "on", "one", "or", "os", "ou", "our", "out", "où", "par",
    "para", "pas", "pelo", "pero", "please", "por", "pour", "put", "quais", "qual", "quando", "que", "quel", "quelle",
    "quelles", "quels", "quero", "qui", "qué", "sa", "se", "ses", "seu", "she", "should", "si", "sich", "sie", "sin",
    "sind", "so", "some", "son", "su", "sua", "sur", "sus", "that", "the", "their", "them", "then", "there", "these",
    "they", "this", "those", "to", "um", "uma", "un", "una", "und", "une", "uns", "unser", "unsere", "up", "us", "vom",
    "von", "vous", "wann", "war", "was", "we", "welche", "welcher", "welches", "wenn", "wer", "were", "what", "when",
    "where", "which", "while", "who", "whom", "whose", "why", "wie", "will", "wir", "wird", "with", "wo", "would", "y",
    "you", "your", "zu", "zum", "zur", "à",
];
/// Words of a text that are looked at.
const MAX_WORDS: usize = 128;
/// Words of a query that are kept; search counts not many more.
const MAX_KEPT: usize = 24;
/// Shortest word that has other forms, in letters.
const MIN_INFLECTED: usize = 4;

/// The words of a text that are no function words, or all if there are no others; and after them other forms of English
/// words, so that `issues` finds `issue`.
pub(super) fn terms(text: &str) -> String {
    let words = text.split(|c: char| !c.is_alphanumeric()).filter(|word| !word.is_empty());
    let all: Vec<String> = words.take(MAX_WORDS).map(str::to_lowercase).collect();
    let mut kept: Vec<&str> =
        all.iter().map(String::as_str).filter(|word| FUNCTION_WORDS.binary_search(word).is_err()).collect();
    if kept.is_empty() {
        kept = all.iter().map(String::as_str).collect();
    }
    kept.truncate(MAX_KEPT);
    let mut terms = kept.join(" ");
    for form in kept.iter().flat_map(|word| other_forms(word)) {
        terms.push(' ');
        terms.push_str(&form);
    }
    terms
}

/// Singular or plural of an English word, and what it is without `ing` or `ed`. Some are no words, and are found nowhere.
fn other_forms(word: &str) -> Vec<String> {
    let is_inflected = word.len() >= MIN_INFLECTED && word.bytes().all(|c| c.is_ascii_lowercase());
    if !is_inflected {
        return Vec::new();
    }
    let with = |stem: &str, end: &str| format!("{stem}{end}");
    let mut forms = Vec::new();
    if let Some(stem) = word.strip_suffix("ies") {
        forms.push(with(stem, "y"));
    } else if let Some(stem) = word.strip_suffix('s').filter(|stem| !stem.ends_with('s')) {
        forms.push(stem.to_owned());
        forms.extend(stem.strip_suffix('e').map(str::to_owned));
    } else {
        forms.push(with(word, "s"));
    }
    let participle = word.strip_suffix("ing").or_else(|| word.strip_suffix("ed"));
    if let Some(stem) = participle.filter(|stem| stem.len() > 2) {
        forms.extend([stem.to_owned(), with(stem, "e")]);
    }
    forms
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn function_words_are_sorted_so_that_they_are_found() {
        assert!(FUNCTION_WORDS.is_sorted());
    }

    #[test]
    fn function_words_count_only_where_there_are_no_others() {
        assert_eq!(terms("What is the Weather?"), "weather weathers");
        assert_eq!(terms("What is it"), "what is it whats", "it may be the name of a tool");
        assert_eq!(terms("Wie ist das Wetter in Köln"), "wetter köln wetters");
        assert_eq!(terms(" … "), "");
    }

    #[test]
    fn english_words_are_found_in_other_forms() {
        let table: [(&str, &[&str]); 8] = [
            ("issues", &["issue", "issu"]),
            ("entities", &["entity"]),
            ("email", &["emails"]),
            ("merging", &["mergings", "merg", "merge"]),
            ("archived", &["archiveds", "archiv", "archive"]),
            ("class", &["classs"]),
            ("pod", &[]),
            ("файлы", &[]),
        ];
        for (word, forms) in table {
            assert_eq!(other_forms(word), forms, "{word}");
        }
    }

    #[test]
    fn a_long_text_is_read_from_its_beginning() {
        let text = (0..10_000).map(|number| format!("w{number}")).collect::<Vec<_>>().join(" ");
        assert_eq!(terms(&text).split(' ').count(), MAX_KEPT);
    }
}
