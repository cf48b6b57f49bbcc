//! `toolbus dlq`: the dead letters of the daemon's queues, on the broker of the configuration.

mod letter;
mod report;
mod selection;

use std::io::{self, IsTerminal as _, Write as _};
use std::process::ExitCode;

use toolbus_broker::rabbitmq::{DeadLetterError, DeadLetterQueue, ReplayOutcome};
use toolbus_config::expected;

use self::letter::WholeLetter;
use self::report::{DlqOutcome, LeftLetter, LetterList, ProgressLine, letters, table};
use self::selection::LetterFilter;
use super::{Context, MISTAKE, as_json, one_line, reported};
use crate::app;
use crate::config::Config;
use crate::dead_letters::{Letter, LetterBroker, LetterQueue, letter_queues, reasons};
use crate::terminal::{OutputFormat, ignore_broken_pipe, is_yes, printable};

/// Letters that `list` shows without --limit.
const LISTED: usize = 100;
/// Letters that `show` shows without --limit.
const SHOWN: usize = 10;
/// Letters that are left after a replay, shown with their reason.
const MAX_LEFT: usize = 20;

/// Shows, replays and removes dead letters: messages that could not be answered or delivered.
///
/// Works on the broker of the configuration, whether or not a daemon runs. A letter is removed only by `drop`, and by
/// `replay` once the broker has confirmed that a queue has it again.
#[derive(Debug, clap::Args)]
pub struct DlqArgs {
    #[command(subcommand)]
    action: DlqAction,
}

#[derive(Debug, clap::Subcommand)]
enum DlqAction {
    /// List dead letters, the oldest first
    List(LetterFilter),
    /// Show dead letters whole: properties, headers and body
    Show(LetterFilter),
    /// Put requests back into the queue that they came from, and send replies again
    ///
    /// A request keeps its ids, its reply address and its headers: one that was answered before gets the same reply, and
    /// is not run again. Its time begins anew.
    Replay {
        #[command(flatten)]
        selection: LetterFilter,
        /// Only tell what would be replayed.
        #[arg(long)]
        dry_run: bool,
    },
    /// Remove dead letters for ever; asks first
    Drop {
        #[command(flatten)]
        selection: LetterFilter,
        /// Only tell what would be removed.
        #[arg(long)]
        dry_run: bool,
        /// Do not ask.
        #[arg(long)]
        yes: bool,
    },
}

impl DlqAction {
    fn selection(&self) -> &LetterFilter {
        match self {
            Self::List(selection) | Self::Show(selection) => selection,
            Self::Replay { selection, .. } | Self::Drop { selection, .. } => selection,
        }
    }
}

/// Refuses a reason that no letter has: else a typing error would look like an empty queue.
fn check_reason(reason: &str) -> Result<(), DlqError> {
    let known = reasons();
    if known.contains(&reason) {
        return Ok(());
    }
    Err(DlqError::Usage(format!(
        "no letter is dead for the reason `{}`: {}",
        one_line(reason),
        expected(reason, &known)
    )))
}

/// Reason why the command failed.
#[derive(Debug, thiserror::Error)]
pub enum DlqError {
    /// The command cannot be run like this.
    #[error("{0}")]
    Usage(String),
    /// The operator did not confirm the removal.
    #[error("nothing was removed")]
    Declined,
    /// The broker.
    #[error(transparent)]
    Broker(#[from] DeadLetterError),
    /// Nothing can be printed.
    #[error("cannot write: {0}")]
    Output(#[from] io::Error),
}

impl DlqError {
    /// Prints the error, and returns its exit code.
    pub(crate) fn report(&self) -> u8 {
        reported(self);
        if matches!(self, Self::Usage(_)) { MISTAKE } else { 1 }
    }
}

/// Runs the command. Exit code 1 if a letter could not be replayed.
///
/// # Errors
///
/// If there is no broker, it refuses something, or nothing can be printed.
pub async fn run(args: DlqArgs, context: &Context) -> Result<ExitCode, DlqError> {
    let config = &context.config;
    let Some(settings) = config.bus.broker_settings() else {
        let text = "the embedded bus keeps no dead letters: give the broker of the daemon with --config or --bus-url";
        return Err(DlqError::Usage(text.to_owned()));
    };
    if let Some(reason) = &args.action.selection().reason {
        check_reason(reason)?;
    }
    let broker = LetterBroker::connect(config, settings).await?;
    let work = DlqWork { broker: &broker, config, output: context.output };
    let done = match args.action {
        DlqAction::List(selection) => work.list(&selection).await,
        DlqAction::Show(selection) => work.show(&selection).await,
        DlqAction::Replay { selection, dry_run: true } | DlqAction::Drop { selection, dry_run: true, .. } => {
            work.list(&LetterFilter { limit: Some(selection.limit.unwrap_or(usize::MAX)), ..selection }).await
        }
        DlqAction::Replay { selection, dry_run: false } => work.replay(&selection).await,
        DlqAction::Drop { selection, dry_run: false, yes } => work.drop(&selection, yes).await,
    };
    broker.close().await;
    done
}

/// Context of every action.
struct DlqWork<'a> {
    broker: &'a LetterBroker<'a>,
    config: &'a Config,
    output: OutputFormat,
}

impl DlqWork<'_> {
    /// Opens the selected queues; without a name, those that exist.
    async fn queues(&self, selection: &LetterFilter) -> Result<Vec<(LetterQueue, DeadLetterQueue<'_>)>, DlqError> {
        let queues = letter_queues(self.config, selection.queue.as_deref()).map_err(DlqError::Usage)?;
        Ok(self.broker.open(queues).await?)
    }

    async fn list(&self, selection: &LetterFilter) -> Result<ExitCode, DlqError> {
        let limit = selection.limit.unwrap_or(LISTED);
        let (mut letters, mut more) = (Vec::new(), 0);
        for (_, mut queue) in self.queues(selection).await? {
            let progress = ProgressLine::of(&queue, "read");
            while let Some(dead) = queue.next().await? {
                progress.step();
                let letter = Letter::read(queue.origin(), &dead);
                match selection.takes(&letter) {
                    true if letters.len() < limit => letters.push(letter),
                    true => more += 1,
                    false => {}
                }
            }
            queue.end().await?;
        }
        let text = match self.output {
            OutputFormat::Json => as_json(&LetterList { letters, more }),
            OutputFormat::Table => table(&letters, more),
        };
        ignore_broken_pipe(writeln!(io::stdout(), "{text}"))?;
        Ok(ExitCode::SUCCESS)
    }

    async fn show(&self, selection: &LetterFilter) -> Result<ExitCode, DlqError> {
        let redactor = app::redactor(self.config);
        let (limit, mut shown) = (selection.limit.unwrap_or(SHOWN), Vec::new());
        for (_, mut queue) in self.queues(selection).await? {
            while shown.len() < limit
                && let Some(dead) = queue.next().await?
            {
                let letter = Letter::read(queue.origin(), &dead);
                if selection.takes(&letter) {
                    shown.push(WholeLetter::new(letter, &dead));
                }
            }
            queue.end().await?;
        }
        let text = match self.output {
            OutputFormat::Json => as_json(&shown),
            OutputFormat::Table if shown.is_empty() => "no dead letter".to_owned(),
            OutputFormat::Table => shown.iter().map(WholeLetter::in_words).collect::<Vec<_>>().join("\n\n"),
        };
        ignore_broken_pipe(writeln!(io::stdout(), "{}", printable(&redactor.text(&text))))?;
        Ok(ExitCode::SUCCESS)
    }

    async fn replay(&self, selection: &LetterFilter) -> Result<ExitCode, DlqError> {
        let mut left = selection.limit.unwrap_or(usize::MAX);
        let mut outcome = DlqOutcome { replayed: Some(0), ..DlqOutcome::default() };
        for (letter_queue, mut queue) in self.queues(selection).await? {
            let progress = ProgressLine::of(&queue, "replayed");
            while left > 0
                && let Some(dead) = queue.next().await?
            {
                progress.step();
                let letter = Letter::read(queue.origin(), &dead);
                if !selection.takes(&letter) {
                    continue;
                }
                left -= 1;
                match self.broker.replay(&mut queue, &letter_queue, &letter, &dead).await? {
                    ReplayOutcome::Routed => *outcome.replayed.get_or_insert(0) += 1,
                    ReplayOutcome::Left(reason) => {
                        outcome.failed += 1;
                        if outcome.failures.len() < MAX_LEFT {
                            outcome.failures.push(LeftLetter {
                                queue: letter_queue.queue.clone(),
                                id: letter.id,
                                reason,
                            });
                        }
                    }
                }
            }
            queue.end().await?;
        }
        self.report(&outcome)
    }

    async fn drop(&self, selection: &LetterFilter, yes: bool) -> Result<ExitCode, DlqError> {
        let limit = selection.limit.unwrap_or(usize::MAX);
        let mut queues = self.queues(selection).await?;
        let (mut chosen, mut names) = (Vec::new(), Vec::new());
        for (index, (_, queue)) in queues.iter_mut().enumerate() {
            let progress = ProgressLine::of(queue, "read");
            let before = chosen.len();
            while chosen.len() < limit
                && let Some(dead) = queue.next().await?
            {
                progress.step();
                if selection.takes(&Letter::read(queue.origin(), &dead)) {
                    chosen.push((index, dead.number()));
                }
            }
            if chosen.len() > before {
                names.push(queue.name().to_owned());
            }
        }
        // While the operator decides, the broker holds the letters that were read: exactly these are removed.
        let count = chosen.len();
        if count > 0 && !yes {
            let question = format!("Remove {} of {} for ever? [y/N] ", letters(count), names.join(", "));
            if !(io::stdin().is_terminal() && io::stderr().is_terminal()) {
                let text =
                    "nothing was removed, because there is no terminal to ask on: look with --dry-run, then give --yes";
                return Err(DlqError::Usage(text.to_owned()));
            }
            if !is_yes(&one_line(&question), &mut io::stdin().lock(), &mut io::stderr())? {
                return Err(DlqError::Declined);
            }
        }
        for (index, number) in chosen {
            if let Some((_, queue)) = queues.get_mut(index) {
                queue.remove(number).await?;
            }
        }
        for (_, queue) in queues {
            queue.end().await?;
        }
        self.report(&DlqOutcome { dropped: Some(count), ..DlqOutcome::default() })
    }

    fn report(&self, outcome: &DlqOutcome) -> Result<ExitCode, DlqError> {
        let text = match self.output {
            OutputFormat::Json => as_json(outcome),
            OutputFormat::Table => outcome.in_words(),
        };
        ignore_broken_pipe(writeln!(io::stdout(), "{text}"))?;
        Ok(if outcome.failed > 0 { ExitCode::FAILURE } else { ExitCode::SUCCESS })
    }
}
