//! Cost of looking for secrets in a text that has none: 16 KiB, for 1 to 10 000 secrets; and in one that is full of the
//! common beginning of all secrets.
//!
//! `cargo bench -p toolbus-core --bench redact`. Nothing may be allocated.

use divan::counter::BytesCount;
use divan::{AllocProfiler, Bencher};
use toolbus_core::redact::Redactor;
use toolbus_core::secret::Secret;
use toolbus_protocol::Random;

#[global_allocator]
static ALLOCATOR: AllocProfiler = AllocProfiler::system();

const BYTES: usize = 16 * 1024;
const NUMBERS: [usize; 5] = [0, 1, 20, 100, 10_000];

fn redactor(secrets: usize) -> Redactor {
    let redactor = Redactor::default();
    redactor.configure((0..secrets).map(|_| Secret::new(Random::SYSTEM.id())));
    redactor
}

fn look(bencher: Bencher<'_, '_>, redactor: &Redactor, piece: &str) {
    let text = piece.repeat(BYTES / piece.len());
    let bencher = bencher.counter(BytesCount::of_str(&text));
    bencher.bench(|| redactor.bytes(divan::black_box(text.as_bytes())));
}

#[divan::bench(args = NUMBERS)]
fn json(bencher: Bencher<'_, '_>, secrets: usize) {
    look(
        bencher,
        &redactor(secrets),
        r#"{"id":4217,"name":"an item of the list","url":"https://example.org/4217?q=a"},"#,
    );
}

#[divan::bench(args = NUMBERS)]
fn prose(bencher: Bencher<'_, '_>, secrets: usize) {
    look(bencher, &redactor(secrets), "The quick brown fox jumps over the lazy dog, and is told of it in a log. ");
}

/// JSON Web Tokens begin alike.
#[divan::bench(args = NUMBERS)]
fn beginnings(bencher: Bencher<'_, '_>, secrets: usize) {
    let beginning = "eyJhbGciOiJIUzI1NiJ9.";
    let redactor = Redactor::default();
    redactor.configure((0..secrets).map(|_| Secret::new(format!("{beginning}{}", Random::SYSTEM.id()))));
    look(bencher, &redactor, beginning);
}

#[divan::bench(args = NUMBERS)]
fn making_ready(bencher: Bencher<'_, '_>, secrets: usize) {
    bencher.bench(|| redactor(secrets));
}

fn main() {
    divan::main();
}
