//! What cutting long results costs: `cargo bench -p toolbus-memory --bench chunk`.

use std::fmt::Write as _;

use divan::counter::BytesCount;
use toolbus_memory::chunk::{ChunkLimits, chunk};

fn main() {
    divan::main();
}

/// The limits of results by default.
fn limits() -> ChunkLimits {
    ChunkLimits::new(20_000, 64_000)
}

/// Documentation as projects have it: headings, paragraphs, lists, code, and a table now and then.
fn documentation(size: usize) -> String {
    let mut text = String::new();
    for chapter in 0.. {
        if text.len() >= size {
            break;
        }
        let _ = writeln!(text, "# Chapter {chapter}: how `serve` *starts*\n");
        for section in 0..6 {
            let _ =
                writeln!(text, "## {chapter}.{section} [Connections](https://example.com/{section}) and channels\n");
            for paragraph in 0..4 {
                text.push_str(
                    "The daemon opens one connection for what it consumes and one for what it publishes, because a broker \
                     that\nblocks a publisher must not stop acknowledgements. Each has a **supervisor**, which opens it \
                     again after a\nfailure with `backoff`, and closes channels whose [consumer](https://example.com/a) \
                     was cancelled by the broker.\n\n",
                );
                let _ = writeln!(text, "- first of {paragraph}: a short item\n- second, with `code` in it\n- third\n");
            }
            text.push_str("```python\n# not a heading\nfor name in names:\n    print(name)\n\n\n# nor this\n```\n\n");
            if section == 3 {
                text.push_str("| Key | Meaning |\n|---|---|\n");
                for row in 0..10 {
                    let _ = writeln!(text, "| `key{row}` | what it *means* for a call that waits |");
                }
                text.push('\n');
            }
        }
    }
    text
}

/// A page of results of an API.
fn api(size: usize) -> String {
    let mut text = "{\"items\": [\n".to_owned();
    for id in 0.. {
        if text.len() >= size {
            break;
        }
        let comma = if id == 0 { "" } else { ",\n" };
        let _ = write!(
            text,
            "{comma}  {{\"id\": {id}, \"title\": \"An item with a \\\"title\\\"\", \"labels\": [\"a\", \"b\"], \
             \"user\": {{\"login\": \"ana\", \"id\": 7}}, \"body\": \"Some words of it.\"}}"
        );
    }
    text.push_str("\n], \"next\": null}");
    text
}

#[divan::bench(args = [100_000, 1_000_000, 50_000_000])]
fn markdown(bencher: divan::Bencher<'_, '_>, size: usize) {
    let text = documentation(size);
    bencher.counter(BytesCount::of_str(&text)).bench_local(|| chunk(&text, limits()));
}

#[divan::bench(args = [100_000, 1_000_000])]
fn json(bencher: divan::Bencher<'_, '_>, size: usize) {
    let text = api(size);
    bencher.counter(BytesCount::of_str(&text)).bench_local(|| chunk(&text, limits()));
}

/// Text without structure: cut between graphemes.
#[divan::bench(args = [1_000_000])]
fn one_line(bencher: divan::Bencher<'_, '_>, size: usize) {
    let text = "日本語 e\u{301} words ".repeat(size / 22);
    bencher.counter(BytesCount::of_str(&text)).bench_local(|| chunk(&text, limits()));
}
