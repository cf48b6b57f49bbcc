//! Outcomes of calls that must not run twice, in Jepsen's words.

use serde_json::json;

use crate::message::Message;

/// Counts the calls of a test by what became of them.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Tally {
    /// Calls that were published, and confirmed by the broker.
    pub attempts: usize,
    /// Calls whose reply was their result.
    pub acknowledged: usize,
    /// Calls without a reply.
    pub lost: usize,
    /// Calls that ran twice, or have two replies.
    pub duplicated: usize,
    /// Calls whose reply has an unknown outcome.
    pub recovered: usize,
    /// Calls with any other reply.
    pub unexpected: usize,
}

impl Tally {
    /// Counts a call with its replies, how often it ran, and the result of a run.
    pub fn count(&mut self, id: &str, replies: &[Message], runs: usize, result: &str) {
        self.attempts += 1;
        let Some(first) = replies.first() else {
            println!("{id} ran {runs} times, and was never answered");
            self.lost += 1;
            return;
        };
        let is_same = |other: &Message| (other.message_id(), &other.data) == (first.message_id(), &first.data);
        if runs > 1 || !replies.iter().all(is_same) {
            println!("{id} ran {runs} times, and was answered {replies:?}");
            self.duplicated += 1;
        } else if runs == 1 && first.content() == result {
            self.acknowledged += 1;
        } else if is_unknown(first) {
            self.recovered += 1;
        } else {
            println!("{id} ran {runs} times, and was answered {first:?}");
            self.unexpected += 1;
        }
    }

    /// Prints the table, and checks that no call was lost, doubled, or had any other reply.
    ///
    /// # Panics
    ///
    /// If one was.
    pub fn check(&self, title: &str) {
        let Self { attempts, acknowledged, lost, duplicated, recovered, unexpected } = self;
        println!(
            "{title}\n| Attempts | Acknowledged | Lost | Duplicated | Recovered | Unexpected |\n|---|---|---|---|---|---|\n\
             | {attempts} | {acknowledged} | {lost} | {duplicated} | {recovered} | {unexpected} |"
        );
        assert_eq!((*lost, *duplicated, *unexpected), (0, 0, 0), "{self:?}");
        assert!(*acknowledged > attempts / 2, "{self:?}");
    }
}

/// Whether the reply has an unknown outcome: the call may have run.
#[must_use]
pub fn is_unknown(reply: &Message) -> bool {
    let body = reply.body();
    let failure = (body.get("code"), body.get("outcome"), body.get("isRetryable"));
    failure == (Some(&json!("execution_failed")), Some(&json!("unknown")), Some(&json!(false)))
}

/// The next of a sequence of numbers below `most`, by a seed.
///
/// # Panics
///
/// If `most` is 0.
pub fn random(state: &mut u64, most: usize) -> usize {
    *state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
    usize::try_from(*state >> 33).unwrap() % most
}
