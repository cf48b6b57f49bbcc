//! Inputs for code that reads bytes of others: any bytes, and samples of what is expected, changed at some positions.

use std::fmt;

use proptest::prelude::*;
use proptest::test_runner::{TestRng, TestRunner};

/// More bytes than an input has that is from no sample, and more changes than one has that is.
const MAX_BYTES: usize = 400;
const MAX_CHANGES: usize = 10;
/// Bytes that mean something in JSON, patterns, lines and tables of AMQP.
const SYNTAX: &[u8] = b"{}[]\",:\\/\0\n\r\t *?#$-+.eE09FSxtuln\x7f\x80\xff";

/// An input, shown as text with escapes.
#[derive(Clone)]
struct MutatedBytes(Vec<u8>);

impl fmt::Debug for MutatedBytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "b\"{}\"", self.0.escape_ascii())
    }
}

impl MutatedBytes {
    fn new(samples: &[&[u8]], random: &mut TestRng) -> Self {
        let mut below = |bound: usize| random.next_u32() as usize % bound.max(1);
        let byte = |below: &mut dyn FnMut(usize) -> usize| match below(2) {
            0 => below(256) as u8,
            _ => SYNTAX.get(below(SYNTAX.len())).copied().unwrap_or_default(),
        };
        if below(5) == 0 {
            return Self((0..below(MAX_BYTES)).map(|_| byte(&mut below)).collect());
        }
        let mut bytes = samples.get(below(samples.len())).copied().unwrap_or_default().to_vec();
        for _ in 0..below(MAX_CHANGES) {
            let offset = below(bytes.len() + 1);
            match below(12) {
                0 => bytes.truncate(offset.max(1)),
                1 | 2 => drop(bytes.drain(offset.saturating_sub(3)..offset)),
                3 => bytes.extend_from_within(..offset),
                4..=6 => bytes.insert(offset, byte(&mut below)),
                _ => bytes.iter_mut().skip(offset).take(1).for_each(|old| *old = byte(&mut below)),
            }
        }
        Self(bytes)
    }
}

/// Calls `check`, which panics on a failure, with `count` inputs, or with as many as `PROPTEST_CASES` sets.
///
/// # Panics
///
/// With the first input that fails.
pub fn check_inputs(samples: &'static [&'static [u8]], count: u32, check: fn(&[u8])) {
    let default = ProptestConfig { failure_persistence: None, ..ProptestConfig::default() };
    let config = match std::env::var_os("PROPTEST_CASES") {
        Some(_) => default,
        None => ProptestConfig { cases: count, ..default },
    };
    let inputs = Just(()).prop_perturb(|(), mut random| MutatedBytes::new(samples, &mut random));
    let checked = TestRunner::new(config).run(&inputs, |input| {
        check(&input.0);
        Ok(())
    });
    assert!(checked.is_ok(), "{}", checked.map_or_else(|error| error.to_string(), |()| String::new()));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    #[should_panic(expected = "input: b\"ab")]
    fn an_input_that_fails_is_shown_as_text() {
        check_inputs(&[b"ab"], 1_000, |bytes| assert!(!bytes.starts_with(b"ab")));
    }
}
