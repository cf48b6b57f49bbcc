//! Dead letters of the queues of a daemon, for operators: messages that could not be processed or delivered.

mod broker;
mod letter;
mod queues;

pub(crate) use self::broker::LetterBroker;
pub(crate) use self::letter::{Letter, reasons};
#[cfg(test)]
pub(crate) use self::queues::QUEUES;
pub(crate) use self::queues::{LetterQueue, letter_queues};
