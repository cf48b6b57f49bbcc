//! Sides, measured in turn within rounds.

use std::io;

use crate::figures::{Figures, SideSummary};
use indicatif::{ProgressBar, ProgressStyle};
use tokio_util::task::AbortOnDropHandle;

use crate::error::MeasureError;
use toolbus::signals::Signals;

/// Has every side measured once in each round.
pub(crate) struct Rounds<'a, S> {
    sides: &'a [S],
    rounds: u16,
    bar: &'a ProgressBar,
    summaries: Vec<SideSummary>,
    measured: usize,
}

impl<'a, S> Rounds<'a, S> {
    pub(crate) fn new(sides: &'a [S], rounds: u16, bar: &'a ProgressBar) -> Self {
        Self { sides, rounds, bar, summaries: vec![SideSummary::default(); sides.len()], measured: 0 }
    }

    /// The side that is to be measured now; absent: all were, in every round.
    pub(crate) fn turn(&self) -> Option<&'a S> {
        self.sides.get(self.index()?)
    }

    /// Takes what that side's turn measured.
    pub(crate) fn add(&mut self, figures: Figures) {
        if let Some(summary) = self.index().and_then(|index| self.summaries.get_mut(index)) {
            summary.add(figures);
        }
        self.measured += 1;
        self.bar.inc(1);
    }

    /// The medians of each side over the rounds.
    pub(crate) fn medians(self) -> impl Iterator<Item = (&'a S, Figures)> {
        self.sides.iter().zip(self.summaries).filter_map(|(side, summary)| Some((side, summary.median()?)))
    }

    /// Index of the next side: the first one changes every round, so that no side always finds the machine warm.
    fn index(&self) -> Option<usize> {
        let (round, index) = (self.measured.checked_div(self.sides.len())?, self.measured % self.sides.len());
        let index = if round % 2 == 1 { self.sides.len() - 1 - index } else { index };
        (round < usize::from(self.rounds)).then_some(index)
    }
}

/// Measures in a task, where calls are in a daemon, too: what waits outside of the workers has a thread of its own, which
/// would have to be woken for each response. An interrupt ends the measurement, and with it all that it started.
pub(crate) async fn in_a_task<T: Send + 'static>(
    measure: impl Future<Output = Result<T, MeasureError>> + Send + 'static,
) -> Result<T, MeasureError> {
    let mut signals = Signals::listen()?;
    let measured = AbortOnDropHandle::new(tokio::spawn(measure));
    tokio::select! {
        report = measured => report.map_err(io::Error::other)?,
        _ = signals.stop() => Err(MeasureError::Interrupted),
    }
}

/// Shows how many measurements there were.
pub(crate) fn progress(measurements: u64) -> ProgressBar {
    let bar = ProgressBar::new(measurements).with_message("measuring");
    if let Ok(style) = ProgressStyle::with_template("{msg} {bar:32} {pos}/{len}, {eta} left") {
        bar.set_style(style);
    }
    bar
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::figures::tests::row;

    #[test]
    fn sides_take_turns_in_changing_order_and_the_median_of_each_counts() {
        let bar = ProgressBar::hidden();
        let mut rounds = Rounds::new(&['a', 'b', 'c'], 3, &bar);
        let mut order = String::new();
        while let Some(side) = rounds.turn() {
            order.push(*side);
            rounds.add(row("any", 1, order.len() as f64, 1.0).figures);
        }
        assert_eq!((&*order, bar.position()), ("abccbaabc", 9));
        let rates: Vec<_> = rounds.medians().map(|(side, figures)| (*side, figures.calls_per_second)).collect();
        assert_eq!(rates, [('a', 6.0), ('b', 5.0), ('c', 4.0)]);
    }

    #[test]
    fn without_sides_or_rounds_nothing_is_measured() {
        let bar = ProgressBar::hidden();
        assert!(Rounds::<char>::new(&[], 3, &bar).turn().is_none());
        let rounds = Rounds::new(&['a'], 0, &bar);
        assert!(rounds.turn().is_none() && rounds.medians().next().is_none());
    }
}
