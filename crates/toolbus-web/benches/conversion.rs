//! Speed at which pages become Markdown, beside the parser alone: `cargo bench -p toolbus-web`.

#![expect(clippy::unwrap_used, reason = "a measurement that cannot be made should fail")]

use std::hint::black_box;
use std::time::Duration;

use divan::Bencher;
use divan::counter::BytesCount;
use html5ever::tendril::{StrTendril, TendrilSink as _};
use html5ever::{ParseOpts, parse_document};
use markup5ever_rcdom::RcDom;
use toolbus_web::html::{HtmlLimits, PagePart, convert};
use url::Url;

const PAGES: [&str; 6] =
    ["rust-book", "rust-platforms", "node-string-decoder", "zlib-how", "v8-blog", "wikimedia-maps"];

fn page(name: &str) -> String {
    std::fs::read_to_string(format!("{}/tests/pages/{name}.html", env!("CARGO_MANIFEST_DIR"))).unwrap()
}

fn main() {
    divan::main();
}

#[divan::bench(args = PAGES)]
fn markdown(bencher: Bencher<'_, '_>, name: &str) {
    let (html, url) = (page(name), Url::parse("https://site.example/").unwrap());
    bencher.counter(BytesCount::of_str(&html)).bench_local(|| {
        convert(black_box(&html), &url, PagePart::Article, &HtmlLimits::new(Duration::from_secs(60), usize::MAX))
    });
}

/// The parser of the library alone, into its own tree.
#[divan::bench(args = PAGES)]
fn parser_alone(bencher: Bencher<'_, '_>, name: &str) {
    let html = page(name);
    bencher.counter(BytesCount::of_str(&html)).bench_local(|| {
        parse_document(RcDom::default(), ParseOpts::default()).one(StrTendril::from_slice(black_box(&html)))
    });
}
