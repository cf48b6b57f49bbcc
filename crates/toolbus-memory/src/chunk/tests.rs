use proptest::prelude::*;
use unicode_segmentation::UnicodeSegmentation as _;

use super::markdown::Blocks;
use super::*;
use crate::outline::MAX_ROWS;

fn limits() -> ChunkLimits {
    ChunkLimits::new(20, 64)
}

fn parts<'t>(text: &'t str, chunked: &ChunkedText) -> Vec<&'t str> {
    chunked.chunks.iter().map(|chunk| text.get(chunk.range.clone()).unwrap()).collect()
}

fn cut(text: &str) -> Vec<&str> {
    parts(text, &chunk(text, limits()))
}

fn key(index: usize) -> String {
    format!("session/a/tool-x-1-chunk{index}")
}

#[test]
fn a_text_that_one_chunk_can_hold_is_one_chunk() {
    for text in ["", "a", "# a\n\ntext"] {
        assert_eq!(cut(text), [text]);
    }
    assert_eq!(chunk("", limits()).outline(key), "## Document Outline\n\n- **Part 0** → `session/a/tool-x-1-chunk0`\n");
}

#[test]
fn markdown_is_cut_before_the_highest_heading_that_is_far_enough() {
    let text =
        "# One\n\nten words of it, or so\n\n### Sub\n\ntext\n\n## Two\n\nand a few words more than fit into one\n";
    assert_eq!(cut(text).last(), Some(&"## Two\n\nand a few words more than fit into one\n"));
}

#[test]
fn small_sections_share_a_chunk_and_its_row_names_them() {
    let text = "# A\n\ntext\n\n# B\n\ntext\n\n# C\n\nmore of the text\n\n# D\n\nstill more of it, to fill one\n";
    let chunked = chunk(text, limits());
    let headings: Vec<&str> = chunked.chunks.iter().map(|chunk| &*chunk.heading).collect();
    assert_eq!(headings, ["A; B", "C; D"]);
}

#[test]
fn a_number_sign_in_fenced_code_cuts_nothing() {
    let text = "# A\n\nsome words of it\n\n```\n# not a heading\nx\n```\n\nand these are words after the code";
    assert_eq!(
        cut(text),
        ["# A\n\nsome words of it\n\n```\n# not a heading\nx\n```\n\n", "and these are words after the code"]
    );
}

#[test]
fn a_section_that_does_not_fit_is_cut_at_blank_lines_and_its_chunks_are_counted() {
    let text = format!("# A\n\n{}# B\n\nend of it", "nineteen characters\n\n".repeat(7));
    let chunked = chunk(&text, limits());
    let headings: Vec<&str> = chunked.chunks.iter().map(|chunk| &*chunk.heading).collect();
    assert_eq!(headings, ["A", "A (continued 1)", "A (continued 2); B"]);
    assert!(parts(&text, &chunked).iter().take(2).all(|part| part.ends_with("\n\n")));
}

#[test]
fn fenced_code_and_tables_are_whole_where_they_fit_even_after_a_short_chunk() {
    let code = "```\none line\n\nanother line\n\nand the third one, all of it\n```\n";
    let table = "| a | b |\n|---|---|\n| 1 | 2 |\n| 3 | 4 |\n| 5 | 6 |\n";
    for block in [code, table] {
        let text = format!("words\n\n{block}\nand after the block there are others\n");
        assert!(cut(&text).iter().any(|part| part.contains(block)), "{:?}", cut(&text));
    }
}

#[test]
fn code_that_does_not_fit_is_cut_at_the_ends_of_its_lines() {
    let text = format!("```\n{}```\n", "let a = 1;\n".repeat(20));
    let parts = cut(&text);
    assert!(parts.len() > 2);
    assert!(parts.iter().all(|part| part.ends_with('\n')));
}

#[test]
fn text_without_structure_is_cut_between_graphemes() {
    for grapheme in ["e\u{301}", "👩\u{200d}👩\u{200d}👧", "🇩🇪", "각", "日"] {
        let text = grapheme.repeat(90);
        for part in cut(&text) {
            let whole = part.graphemes(true).all(|found| found == grapheme);
            let joined = grapheme.contains('\u{200d}');
            assert!(whole || joined, "{grapheme:?} in {part:?}");
            assert!(part.starts_with(grapheme) && part.ends_with(grapheme), "{grapheme:?} in {part:?}");
        }
    }
}

#[test]
fn a_grapheme_longer_than_a_chunk_is_cut_all_the_same() {
    let text = "e".to_owned() + &"\u{301}".repeat(500);
    assert!(cut(&text).iter().all(|part| part.chars().count() <= 64));
}

#[test]
fn the_last_chunk_is_not_shorter_than_the_least_where_the_text_can_be_cut_elsewhere() {
    for length in 65..200 {
        let text = "x".repeat(length);
        assert!(cut(&text).iter().all(|part| part.len() >= 20), "{length}");
    }
}

#[test]
fn json_is_cut_at_elements_and_one_that_does_not_fit_at_its_own() {
    let text = r#"{"name": "a list", "items": [{"id": 1, "text": "some words"}, {"id": 2, "text": "other words"}], "next": null}"#;
    let chunked = chunk(text, limits());
    assert_eq!(
        parts(text, &chunked),
        [
            r#"{"name": "a list", "items": [{"id": 1, "text": "some words"}, "#,
            r#"{"id": 2, "text": "other words"}], "next": null}"#
        ]
    );
    let headings: Vec<&str> = chunked.chunks.iter().map(|chunk| &*chunk.heading).collect();
    assert_eq!(headings, ["$.name to $.items[0]", "$.items[1]"]);
}

#[test]
fn the_outline_nests_headings_and_the_table_escapes_them() {
    let text = "# A | B\n\nwords of the first\n\n## C\n\nwords of the second\n\n## D\n\nmore words, many of them\n";
    let chunked = chunk(text, limits());
    let outline = chunked.outline(|index| index.to_string());
    assert_eq!(outline, "## Document Outline\n\n- **A | B** → `0`\n  - **C** → `1`\n  - **D** → `1`\n");
    let table = chunked.table(|index| index.to_string(), usize::MAX);
    assert_eq!(table, "| # | Heading | Key |\n|---|---------|-----|\n| 0 | A \\| B | `0` |\n| 1 | C; D | `1` |\n");
}

#[test]
fn a_table_of_very_many_chunks_ends_and_the_outline_names_all() {
    let text = "x".repeat(64 * 300);
    let chunked = chunk(&text, limits());
    let count = chunked.chunks.len();
    let table = chunked.table(key, usize::MAX);
    assert!(table.ends_with(&format!("\n{} more chunks are in the outline.\n", count - MAX_ROWS)), "{table}");
    assert!(chunked.outline(key).contains(&format!("`{}`", key(count - 1))));
}

#[test]
fn headings_of_a_text_that_is_nothing_else_are_counted_after_the_first() {
    let text = "# a\n".repeat(5000);
    let outline = chunk(&text, ChunkLimits::new(2000, 8000)).outline(key);
    assert!(outline.ends_with("\n3000 more headings are not listed.\n"), "{outline}");
}

/// Every key that a text names.
fn keys(text: &str) -> Vec<String> {
    let named = text.split('`').filter(|part| part.starts_with("session/a/tool-x-1-chunk"));
    named.map(str::to_owned).collect()
}

fn texts() -> impl Strategy<Value = String> {
    let line = prop_oneof![
        "# [a-z|]{0,8}",
        "## [a-z*]{0,8}",
        "### \\PC{0,12}",
        Just("```".to_owned()),
        Just("| a | b |\n|---|---|\n| 1 | 2 |".to_owned()),
        Just("<!--".to_owned()),
        Just(String::new()),
        "[a-z ]{0,90}",
        "\\PC{0,40}",
        "[\u{301}\u{200d}👩🇩\r\n]{0,60}",
        Just(r#"{"a": [1, {"b": "c, d"}], "e": "f"}"#.to_owned()),
    ];
    prop_oneof![
        4 => prop::collection::vec(line, 0..60).prop_map(|lines| lines.join("\n")),
        1 => ".{0,300}",
        1 => any::<Vec<u8>>().prop_map(|bytes| String::from_utf8_lossy(&bytes).into_owned()),
        1 => documents(),
    ]
}

fn documents() -> impl Strategy<Value = String> {
    let string = "[a-z,\\[{ ]{0,80}".prop_map(|text| format!("{text:?}"));
    let leaf = prop_oneof![any::<i32>().prop_map(|number| number.to_string()), string];
    leaf.prop_recursive(5, 60, 8, |inner| {
        let fields = prop::collection::vec(("[a-z ]{0,6}", inner.clone()), 0..8);
        prop_oneof![
            prop::collection::vec(inner, 0..8).prop_map(|items| format!("[{}]", items.join(", "))),
            fields.prop_map(|fields| {
                let fields: Vec<String> = fields.iter().map(|(key, value)| format!("{key:?}: {value}")).collect();
                format!("{{{}}}", fields.join(",\n"))
            }),
        ]
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    #[test]
    fn chunks_are_the_text_their_sizes_hold_and_every_key_exists(text in texts(), min in 0_usize..80, max in 0_usize..200) {
        let limits = ChunkLimits::new(min, max);
        let chunked = chunk(&text, limits);
        let parts = parts(&text, &chunked);
        prop_assert_eq!(parts.concat(), &text[..]);
        let lengths: Vec<usize> = parts.iter().map(|part| part.chars().count()).collect();
        prop_assert!(lengths.iter().all(|length| *length <= limits.max()), "{lengths:?}");
        prop_assert!(lengths.iter().all(|length| *length > 0) || text.is_empty());
        let short = |length: &usize| *length < limits.min();
        let may_be_short = text.contains("```") || text.contains('|');
        prop_assert!(may_be_short || !lengths.iter().rev().skip(1).any(short), "{lengths:?}");
        let existing: Vec<String> = (0..parts.len()).map(key).collect();
        let mut outlined = keys(&chunked.outline(key));
        outlined.dedup();
        prop_assert_eq!(&outlined, &existing);
        let shown: Vec<String> = existing.into_iter().take(MAX_ROWS).collect();
        prop_assert_eq!(keys(&chunked.table(key, usize::MAX)), shown);
    }

    #[test]
    fn no_cut_is_within_a_grapheme_unless_it_is_longer_than_a_chunk(text in texts()) {
        let chunked = chunk(&text, ChunkLimits::new(30, 120));
        let boundaries: Vec<usize> = text.grapheme_indices(true).map(|(at, _)| at).chain([text.len()]).collect();
        for chunk in chunked.chunks.iter().skip(1) {
            let at = chunk.range.start;
            let next = boundaries.partition_point(|found| *found < at);
            let around = &text[boundaries[next.saturating_sub(1)]..boundaries[next]];
            prop_assert!(boundaries[next] == at || around.chars().count() > 60, "{at} in {around:?}");
        }
    }
}

#[test]
fn cutting_a_markdown_text_takes_time_in_proportion_to_its_length() {
    // Processor time of this thread, in ns: other processes do not count.
    let spent = || {
        let times = std::fs::read_to_string("/proc/thread-self/schedstat").unwrap();
        times.split(' ').next().unwrap().parse::<u64>().unwrap()
    };
    for (lines, end) in [("<div>\n# x\n", ""), ("- a\n* b\n", "<div>\n"), ("<div>\n\n x\n", "")] {
        let [short, long] = [2, 16].map(|mib| {
            let text = lines.repeat(mib * 1024 * 1024 / lines.len()) + end;
            let before = spent();
            let marks = Blocks::new(&text).count();
            (spent() - before, marks)
        });
        assert!(long.0 < short.0 * 20, "{lines:?}: {short:?} {long:?}");
    }
}
