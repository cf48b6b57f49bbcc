//! Tools that are on their way: their servers are being connected to, or start when they are first called.

use std::time::Instant;

use futures_util::future::BoxFuture;

use crate::failure::ToolFailure;
use crate::policy::EffectiveTools;
use crate::request::ToolRef;

/// Knows whose tools may still come.
pub trait PendingTools: Send + Sync + 'static {
    /// Future to wait for before a tool is taken for missing: over when a server brought it, when the tools are known
    /// of all servers that may bring it and that the caller may use, or when those failed or take long; at the latest
    /// at `latest`. `None` when there is nothing to wait for.
    fn expect<'a>(
        &'a self,
        wanted: ToolRef<'a>,
        effective: &'a EffectiveTools,
        latest: Instant,
    ) -> Option<BoxFuture<'a, ()>>;

    /// Reason why a tool that was not found may be there all the same: what a server has that the caller may use is not
    /// known, because the caller names it and it cannot be reached, or because it is being connected to for the first
    /// time. None where the tool is not there.
    fn out_of_reach(&self, wanted: ToolRef<'_>, effective: &EffectiveTools) -> Option<ToolFailure>;
}

/// All tools are there from the start.
#[derive(Debug, Clone, Copy, Default)]
pub struct AllArrived;

impl PendingTools for AllArrived {
    fn expect<'a>(&'a self, _: ToolRef<'a>, _: &'a EffectiveTools, _: Instant) -> Option<BoxFuture<'a, ()>> {
        None
    }

    fn out_of_reach(&self, _: ToolRef<'_>, _: &EffectiveTools) -> Option<ToolFailure> {
        None
    }
}
