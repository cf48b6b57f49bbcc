//! Answers that come later, perhaps after other messages.

mod call;
mod listen;

use bytes::Bytes;

pub(crate) use call::CallFlow;
pub(crate) use listen::ListenFlow;

use crate::observe::Started;

/// An answer that comes later.
pub(crate) enum Flow {
    /// The result of a call.
    Call(CallFlow),
    /// News, until nobody listens any more.
    Listen(ListenFlow),
}

/// What comes next.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Step {
    /// A message before the answer.
    Interim(Bytes),
    /// The answer.
    Last(Bytes),
    /// There is no answer, because nobody wants it any more.
    Nothing,
}

impl Flow {
    /// What comes next. Nothing comes after [`Step::Last`] and [`Step::Nothing`].
    pub(crate) async fn next(&mut self) -> Step {
        match self {
            Self::Call(call) => call.next().await,
            Self::Listen(listen) => listen.next().await,
        }
    }

    /// Has what is under way go on, however seldom somebody asks for the next step.
    pub(crate) fn detach(&mut self) {
        match self {
            Self::Call(call) => call.detach(),
            Self::Listen(_) => {}
        }
    }

    pub(crate) fn observed(mut self, started: Box<dyn Started>) -> Self {
        match &mut self {
            Self::Call(call) => call.started = Some(started),
            Self::Listen(listen) => listen.started = Some(started),
        }
        self
    }
}
