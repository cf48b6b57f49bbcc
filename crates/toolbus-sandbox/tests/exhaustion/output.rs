//! Output of scripts: too much, in one line, in bytes that are no text, and after the script seems to have ended.

use std::time::Duration;

use toolbus_core::Clock;
use toolbus_sandbox::{Ending, Outcome, Stop};

use crate::fixture::{LIMITS, both, brief, ended, named, script, text, warm};

fn assert_cut(outcome: &Outcome) {
    assert_eq!(outcome.ending, Ending::Stopped(Stop::Output), "{outcome:?}");
    let kept = outcome.stdout.bytes.len().max(outcome.stderr.bytes.len()) as u64;
    assert_eq!(kept, LIMITS.output, "the beginning is kept, and nothing more");
}

#[tokio::test]
async fn a_gigabyte_of_lines_is_cut_and_ends_the_script() {
    let source = "
line = 'x' * 99 + '\\n'
for _ in range(10 << 20):
    print(line, end='')
import time
time.sleep(600)
";
    for outcomes in [both(script(source)).await, warm(script(source)).await] {
        outcomes.iter().for_each(assert_cut);
    }
}

#[tokio::test]
async fn output_without_a_newline_is_cut_and_ends_the_script() {
    let source = "
import os
while True:
    os.write(1, b'x' * 65536)
";
    both(script(source)).await.iter().for_each(assert_cut);
}

#[tokio::test]
async fn a_flood_of_errors_is_cut_and_ends_the_script() {
    let source = "
import sys
while True:
    sys.stderr.write('no! ' * 10000)
";
    both(script(source)).await.iter().for_each(assert_cut);
}

#[tokio::test]
async fn output_of_exactly_the_limit_is_whole() {
    for outcome in both(script("print('x' * 65536, end='')")).await {
        assert_eq!((outcome.ending, outcome.stdout.is_cut), (Ending::Exited(0), false));
        assert_eq!(outcome.stdout.bytes.len(), 65536);
    }
}

#[tokio::test]
async fn bytes_that_are_no_text_come_back_as_they_are() {
    let source = "
import sys
sys.stdout.buffer.write(bytes(range(256)) + b'\\xc3\\x28\\xed\\xa0\\x80\\xff\\xfe\\x1b[2J')
";
    let mut expected: Vec<u8> = (0..=255).collect();
    expected.extend(b"\xc3\x28\xed\xa0\x80\xff\xfe\x1b[2J");
    for outcome in both(script(source)).await {
        assert_eq!((outcome.ending, outcome.stdout.bytes.to_vec()), (Ending::Exited(0), expected.clone()));
    }
}

#[tokio::test]
async fn text_that_is_no_unicode_raises_as_it_does_elsewhere() {
    for outcome in both(script("print('\\ud800')")).await {
        assert_eq!((outcome.ending, text(&outcome.stdout)), (Ending::Exited(1), String::new()));
        assert!(text(&outcome.stderr).contains("surrogates not allowed"), "{outcome:?}");
    }
}

#[tokio::test]
async fn a_script_that_closes_its_output_and_stays_ends_with_its_time() {
    let source = "
print('said', flush=True)
for descriptor in range(3):
    os.close(descriptor)
time.sleep(600)
";
    let begun = Clock::SYSTEM.now();
    for outcome in both(brief(named("atk-lingers", source), 1500)).await {
        assert_eq!((outcome.ending, text(&outcome.stdout)), (Ending::Stopped(Stop::Time), "said\n".to_owned()));
    }
    assert!(Clock::SYSTEM.since(begun) < Duration::from_secs(60));
    ended("atk-lingers").await;
}

#[tokio::test]
async fn a_child_that_keeps_the_output_open_does_not_hold_up_the_end() {
    let source = "
import os, time
if os.fork() == 0:
    time.sleep(600)
print('ended', flush=True)
";
    let [full, less] = both(script(source)).await;
    assert_eq!((full.ending, text(&full.stdout)), (Ending::Exited(0), "ended\n".to_owned()));
    assert!(full.elapsed < Duration::from_secs(30), "{full:?}");
    assert_eq!(less.ending, Ending::Exited(1), "no children there: {less:?}");
}

#[tokio::test]
async fn output_that_a_script_cannot_write_is_its_own_trouble() {
    let source = "
import os
os.close(1)
print('lost', flush=True)
";
    for outcome in both(script(source)).await {
        assert_eq!(text(&outcome.stdout), "");
        assert!(text(&outcome.stderr).contains("Bad file descriptor"), "{outcome:?}");
        assert!(matches!(outcome.ending, Ending::Exited(1 | 120)), "{outcome:?}");
    }
}
