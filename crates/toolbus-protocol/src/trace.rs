/// A W3C trace context as it travels in message headers.
///
/// Source: <https://www.w3.org/TR/trace-context/>; a peer reads version `00` only.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TraceContext {
    traceparent: String,
    tracestate: Option<String>,
}

/// Longest `tracestate` that is carried on, in bytes (the specification's recommended minimum).
const MAX_TRACESTATE: usize = 512;

/// The flag of a sender that records; the others are of no concern here.
const SAMPLED: u8 = 1;

impl TraceContext {
    /// Reads a context; anything malformed is no context, never an error.
    #[must_use]
    pub fn parse(traceparent: &str, tracestate: Option<&str>) -> Option<Self> {
        is_traceparent(traceparent).then(|| Self {
            traceparent: traceparent.to_owned(),
            tracestate: tracestate
                .filter(|state| !state.is_empty() && state.len() <= MAX_TRACESTATE && is_printable(state))
                .map(str::to_owned),
        })
    }

    /// `00-{trace id}-{span id}-{flags}`.
    #[must_use]
    pub fn traceparent(&self) -> &str {
        &self.traceparent
    }

    /// Vendor data, carried on unread.
    #[must_use]
    pub fn tracestate(&self) -> Option<&str> {
        self.tracestate.as_deref()
    }

    /// The 32 hexadecimal digits of the trace id.
    #[must_use]
    pub fn trace_id(&self) -> &str {
        self.traceparent.get(3..35).unwrap_or_default()
    }

    /// The 16 hexadecimal digits of the span id.
    #[must_use]
    pub fn span_id(&self) -> &str {
        self.traceparent.get(36..52).unwrap_or_default()
    }

    /// Whether the sender recorded this trace.
    #[must_use]
    pub fn is_sampled(&self) -> bool {
        let flags = self.traceparent.get(53..).and_then(|digits| u8::from_str_radix(digits, 16).ok());
        flags.is_some_and(|flags| flags & SAMPLED != 0)
    }
}

fn is_printable(text: &str) -> bool {
    text.bytes().all(|byte| (0x20..0x7f).contains(&byte))
}

fn is_traceparent(text: &str) -> bool {
    let mut parts = text.split('-');
    let well_formed = parts.next() == Some("00")
        && parts.next().is_some_and(|id| is_hex_id(id, 32))
        && parts.next().is_some_and(|id| is_hex_id(id, 16))
        && parts.next().is_some_and(|flags| flags.len() == 2 && flags.bytes().all(is_hex));
    well_formed && parts.next().is_none()
}

fn is_hex_id(text: &str, length: usize) -> bool {
    text.len() == length && text.bytes().all(is_hex) && text.bytes().any(|byte| byte != b'0')
}

fn is_hex(byte: u8) -> bool {
    byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte)
}

#[cfg(test)]
mod tests {
    use super::TraceContext;

    const GOOD: &str = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";

    #[test]
    fn a_valid_context_is_read() {
        let context = TraceContext::parse(GOOD, Some("vendor=1")).unwrap();
        assert_eq!(context.trace_id(), "0af7651916cd43dd8448eb211c80319c");
        assert_eq!(context.span_id(), "b7ad6b7169203331");
        assert_eq!(context.tracestate(), Some("vendor=1"));
        assert!(context.is_sampled());
    }

    #[test]
    fn one_flag_alone_decides_whether_a_trace_is_recorded() {
        for (flags, recorded) in [("00", false), ("01", true), ("02", false), ("03", true), ("ff", true)] {
            let parent = GOOD.replace("-01", &format!("-{flags}"));
            assert_eq!(TraceContext::parse(&parent, None).unwrap().is_sampled(), recorded, "{flags}");
        }
    }

    #[test]
    fn a_malformed_context_is_no_context() {
        let bad = [
            "",
            "garbage",
            "01-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
            "00-0af7651916cd43dd-b7ad6b7169203331-01",
            "00-00000000000000000000000000000000-b7ad6b7169203331-01",
            "00-0af7651916cd43dd8448eb211c80319c-0000000000000000-01",
            "00-0AF7651916CD43DD8448EB211C80319C-b7ad6b7169203331-01",
            "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01-extra",
        ];
        for text in bad {
            assert_eq!(TraceContext::parse(text, None), None, "{text}");
        }
    }

    #[test]
    fn an_unusable_tracestate_is_dropped_and_the_parent_kept() {
        let context = TraceContext::parse(GOOD, Some(&"x".repeat(600))).unwrap();
        assert_eq!(context.tracestate(), None);
    }
}
