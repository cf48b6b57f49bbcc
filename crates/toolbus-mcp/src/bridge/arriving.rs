//! Tools that may still come: of servers that are being connected to, and of lazy ones.

use std::time::Instant;

use futures_util::future::{BoxFuture, join_all};
use toolbus_core::failure::ToolFailure;
use toolbus_core::policy::Effective;
use toolbus_core::{Arrivals, Route, Wanted};

use super::Bridge;
use super::member::Member;

impl Arrivals for Bridge {
    fn expect<'a>(
        &'a self,
        wanted: Wanted<'a>,
        effective: &'a Effective,
        latest: Instant,
    ) -> Option<BoxFuture<'a, ()>> {
        let (members, is_named) = match wanted.route {
            Route::Server(server) => (self.shared.member(server).into_iter().collect::<Vec<_>>(), true),
            Route::Name | Route::AnyServer => (self.members().into_values().collect(), false),
        };
        let arriving: Vec<_> =
            members.into_iter().filter(|member| !member.is_known() && may_use(member, wanted, effective)).collect();
        if arriving.is_empty() {
            return None;
        }
        Some(Box::pin(async move {
            let all = join_all(arriving.iter().map(|member| member.arrival(is_named)));
            let _ = tokio::time::timeout_at(latest.into(), all).await;
        }))
    }

    fn out_of_reach(&self, wanted: Wanted<'_>, effective: &Effective) -> Option<ToolFailure> {
        let Route::Server(server) = wanted.route else { return None };
        let member = self.shared.member(server).filter(|member| !member.is_known())?;
        may_use(&member, wanted, effective).then(|| member.out_of_reach()).flatten()
    }
}

/// Whether the caller could use the tool if the server had it. A caller starts nothing, waits for nothing, and learns of
/// nothing that it could not use.
fn may_use(member: &Member, wanted: Wanted<'_>, effective: &Effective) -> bool {
    let is_published = !matches!(wanted.route, Route::Server(_));
    let imagined = member.imagined(wanted.name, is_published);
    imagined.is_some_and(|descriptor| effective.admits(&descriptor))
}
