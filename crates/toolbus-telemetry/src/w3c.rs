//! From the trace context of a message to that of a span, and back.

use std::str::FromStr;

use opentelemetry::trace::{SpanContext, SpanId, TraceFlags, TraceId, TraceState};
use toolbus_protocol::TraceContext;

/// The sender's span, as a remote parent.
pub(crate) fn remote(context: &TraceContext) -> Option<SpanContext> {
    let trace_id = TraceId::from_hex(context.trace_id()).ok()?;
    let span_id = SpanId::from_hex(context.span_id()).ok()?;
    let (_, flags) = context.traceparent().rsplit_once('-')?;
    let flags = TraceFlags::new(u8::from_str_radix(flags, 16).ok()?);
    // Vendor data that cannot be read is no reason to lose the parent.
    let state = context.tracestate().and_then(|state| TraceState::from_str(state).ok()).unwrap_or_default();
    let remote = SpanContext::new(trace_id, span_id, flags, true, state);
    remote.is_valid().then_some(remote)
}

/// What a message carries to continue `span`.
pub(crate) fn carried(span: &SpanContext) -> Option<TraceContext> {
    let flags = span.trace_flags().to_u8();
    let parent = format!("00-{}-{}-{flags:02x}", span.trace_id(), span.span_id());
    let state = span.trace_state().header();
    TraceContext::parse(&parent, Some(&state))
}

#[cfg(test)]
mod tests {
    use toolbus_protocol::TraceContext;

    use super::{carried, remote};

    #[test]
    fn a_context_survives_the_way_in_and_out() {
        for flags in ["00", "01", "03"] {
            let parent = format!("00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-{flags}");
            let context = TraceContext::parse(&parent, Some("vendor=1,other=2")).unwrap();
            assert_eq!(carried(&remote(&context).unwrap()), Some(context));
        }
    }

    #[test]
    fn unreadable_vendor_data_is_dropped_and_the_parent_kept() {
        let parent = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";
        let context = TraceContext::parse(parent, Some("no equals sign")).unwrap();
        assert_eq!(carried(&remote(&context).unwrap()), TraceContext::parse(parent, None));
    }
}
