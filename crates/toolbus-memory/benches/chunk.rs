//! Cost of cutting long results, in CPU time, so that a machine with other work gives the same figures: `cargo bench -p
//! toolbus-memory --bench chunk`.

#![expect(clippy::unwrap_used, reason = "a measurement that cannot be made should fail")]

use std::fmt::Write as _;
use std::time::Duration;

use toolbus_memory::chunk::{ChunkLimits, chunk};

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

/// Text without structure: cut between graphemes.
fn one_line(size: usize) -> String {
    "日本語 e\u{301} words ".repeat(size / 22)
}

/// Makes a text of at least so many bytes.
type MakeText = fn(usize) -> String;

/// CPU time of this thread.
fn cpu() -> Duration {
    let text = std::fs::read_to_string("/proc/thread-self/schedstat").unwrap();
    Duration::from_nanos(text.split(' ').next().unwrap().parse().unwrap())
}

fn main() {
    let texts: [(&str, MakeText); 3] =
        [("Markdown", documentation), ("JSON", api), ("one line without structure", one_line)];
    println!("| text | size | mean | MB/s |");
    for (name, make) in texts {
        // The kernel counts CPU time in ticks of some milliseconds, so that single runs are too short.
        for (size, runs) in [(100_000, 2000), (1_000_000, 200), (50_000_000, 4)] {
            let text = make(size);
            let began = cpu();
            for _ in 0..runs {
                std::hint::black_box(chunk(std::hint::black_box(&text), limits()));
            }
            let mean = (cpu() - began).as_secs_f64() / f64::from(runs);
            #[expect(clippy::cast_precision_loss, reason = "sizes are far below 2^52")]
            let speed = text.len() as f64 / mean / 1e6;
            println!("| {name} | {} KB | {:.2} ms | {speed:.0} |", size / 1000, mean * 1e3);
        }
    }
}
