//! Labels from closed sets, and attribute sets that are built once.

use std::sync::OnceLock;

use opentelemetry::KeyValue;
use toolbus_core::failure::{Cause, Status, error_type};
use toolbus_core::telemetry::CallEnd;
use toolbus_protocol::Code;

/// A tool's own report that it did not succeed.
const TOOL_ERROR: &str = "tool_error";
/// A refusal without a cause.
const OTHER: &str = "_OTHER";

/// Number of values of [`status_index`].
pub(crate) const STATUSES: usize = 2 + Code::ALL.len();
/// Number of values of [`ErrorLabel::index`].
pub(crate) const FAILURES: usize = 3 + Cause::ALL.len();

/// The index of a status among all statuses.
pub(crate) const fn status_index(status: Status) -> usize {
    match status {
        Status::Ok => 0,
        Status::Error => 1,
        Status::Refused(code) => 2 + code as usize,
    }
}

/// Value of `error.type` for a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ErrorLabel {
    /// Nothing: it has a result, or no end at all.
    None,
    ToolError,
    Cause(Cause),
    Other,
}

impl ErrorLabel {
    pub(crate) const fn of(end: Option<&CallEnd>) -> Self {
        match end {
            None | Some(CallEnd { status: Status::Ok, .. }) => Self::None,
            Some(CallEnd { status: Status::Error, .. }) => Self::ToolError,
            Some(CallEnd { cause: Some(cause), .. }) => Self::Cause(*cause),
            Some(_) => Self::Other,
        }
    }

    /// The index of this failure among all failures.
    pub(crate) const fn index(self) -> usize {
        match self {
            Self::None => 0,
            Self::ToolError => 1,
            Self::Other => 2,
            Self::Cause(cause) => 3 + cause as usize,
        }
    }

    /// The label's value.
    pub(crate) const fn as_str(self) -> Option<&'static str> {
        match self {
            Self::None => None,
            Self::ToolError => Some(TOOL_ERROR),
            Self::Other => Some(OTHER),
            Self::Cause(cause) => Some(error_type(cause)),
        }
    }

    pub(crate) fn attribute(self) -> Option<KeyValue> {
        self.as_str().map(|value| KeyValue::new("error.type", value))
    }
}

/// Attribute sets by index, each built when it is first needed.
#[derive(Debug)]
pub(crate) struct Prebuilt<const N: usize>([OnceLock<Box<[KeyValue]>>; N]);

impl<const N: usize> Default for Prebuilt<N> {
    fn default() -> Self {
        Self(std::array::from_fn(|_| OnceLock::new()))
    }
}

impl<const N: usize> Prebuilt<N> {
    /// The set at `index`; empty when there is no such index.
    pub(crate) fn get<I: IntoIterator<Item = KeyValue>>(&self, index: usize, build: impl FnOnce() -> I) -> &[KeyValue] {
        let slot = self.0.get(index);
        slot.map_or(&[], |slot| slot.get_or_init(|| build().into_iter().collect()))
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use opentelemetry::KeyValue;
    use toolbus_core::failure::{Cause, Status};
    use toolbus_core::telemetry::CallEnd;
    use toolbus_protocol::Code;

    use super::{ErrorLabel, FAILURES, Prebuilt, STATUSES, status_index};

    #[test]
    fn every_status_has_its_own_index() {
        let codes = Code::ALL.into_iter().map(Status::Refused);
        let indexes: HashSet<_> = codes.chain([Status::Ok, Status::Error]).map(status_index).collect();
        assert_eq!(indexes, (0..STATUSES).collect());
    }

    #[test]
    fn every_failure_has_its_own_index() {
        let causes = Cause::ALL.into_iter().map(ErrorLabel::Cause);
        let others = [ErrorLabel::None, ErrorLabel::ToolError, ErrorLabel::Other];
        let indexes: HashSet<_> = causes.chain(others).map(ErrorLabel::index).collect();
        assert_eq!(indexes, (0..FAILURES).collect());
    }

    #[test]
    fn only_a_call_without_success_has_an_error_type() {
        let refused = Status::Refused(Code::Timeout);
        let label = |status, cause| ErrorLabel::of(Some(&CallEnd { status, cause })).as_str();
        assert_eq!(label(Status::Ok, None), None);
        assert_eq!(label(Status::Error, None), Some("tool_error"));
        assert_eq!(label(refused, Some(Cause::Expired)), Some("expired"));
        assert_eq!(label(refused, None), Some("_OTHER"));
        assert_eq!(ErrorLabel::of(None).as_str(), None);
    }

    #[test]
    fn a_set_is_built_once() {
        let sets = Prebuilt::<1>::default();
        let first = sets.get(0, || [KeyValue::new("a", 1)]);
        assert_eq!(first, [KeyValue::new("a", 1)]);
        assert_eq!(sets.get(0, || -> [KeyValue; 1] { panic!("built again") }), first);
    }
}
