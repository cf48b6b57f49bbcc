//! Steps 4 to 7 of a call: may this caller use this tool, so, now? Each ends the call or lets it pass.

mod explain;
mod tool_ref;

use std::sync::Arc;
use std::time::{Duration, Instant};

use serde_json::{Map, Value};

pub use self::explain::{Step, StepName};
pub use self::tool_ref::{Lookup, ToolRef};
use crate::arguments::Arguments;
use crate::caller::Caller;
use crate::failure::{Cause, ToolFailure};
use crate::log::shown;
use crate::policy::{AllowedTool, EffectiveTools, PolicyHandle};
use crate::rate::RateLimits;
use crate::recipients::{self, Outbound};
use crate::suggest::Suggestions;

/// The gates that a call passes before it may run.
pub struct Gates {
    access: PolicyHandle,
    arguments: Arguments,
    rates: RateLimits,
    suggestions: Suggestions,
}

impl Gates {
    /// Gates that keep what `access` says.
    #[must_use]
    pub fn new(access: PolicyHandle) -> Self {
        Self { access, arguments: Arguments::new(), rates: RateLimits::new(), suggestions: Suggestions::new() }
    }

    /// Who may use what.
    #[must_use]
    pub const fn access(&self) -> &PolicyHandle {
        &self.access
    }

    /// What the caller may use from here on until its call ends.
    #[must_use]
    pub fn enter(&self, caller: &Caller) -> EffectiveTools {
        let mut effective = self.access.effective(caller);
        self.access.begin_session(caller, &mut effective);
        effective
    }

    /// Step 4. The tool that the caller means. A tool that the caller may not see gets the answer of one that is not there.
    ///
    /// # Errors
    ///
    /// [`Cause::UnknownTool`], with the nearest names that the caller may see; [`Cause::UnknownServer`], with the servers
    /// that it may use; [`Cause::InvalidArguments`] when the tool needs a session and the caller has none.
    pub fn resolve<'a>(
        &self,
        effective: &'a EffectiveTools,
        caller: &Caller,
        wanted: ToolRef<'_>,
    ) -> Result<AllowedTool<'a>, ToolFailure> {
        let Some(allowed) = wanted.find(effective) else { return Err(self.not_found(effective, wanted)) };
        let member = allowed.tool.descriptor.toolset.as_ref();
        if member.is_some_and(|member| member.needs_session) && caller.session.is_none() {
            let text = format!("Tool '{}' works within a session. Give the call a sessionId.", shown(wanted.name));
            return Err(ToolFailure::new(Cause::InvalidArguments, text));
        }
        Ok(allowed)
    }

    /// Whether nobody has switched the tool or the caller off, or the tool was held back, while the call waited; else the answer is that of step 4.
    pub(crate) fn still_on(
        &self,
        caller: &Caller,
        allowed: AllowedTool<'_>,
        asked: ToolRef<'_>,
    ) -> Result<(), ToolFailure> {
        if self.access.is_off(caller, &allowed.tool.descriptor) {
            return Err(self.not_found(&self.access.effective(caller), asked));
        }
        Ok(())
    }

    fn not_found(&self, effective: &EffectiveTools, wanted: ToolRef<'_>) -> ToolFailure {
        let name = wanted.name;
        if let Lookup::Server(server) = wanted.route {
            return tool_ref::not_at_server(effective, server, name);
        }
        // A call of any server's tool is, if the tool is none of these servers', for another one.
        let cause = match wanted.route {
            Lookup::AnyServer => Cause::UnknownServer,
            _ => Cause::UnknownTool,
        };
        if effective.lacks_toolset(name) {
            return ToolFailure::new(cause, format!("Toolset not found for {}", shown(name)));
        }
        let near = self.suggestions.near(effective.section_number(), name, effective.names());
        let mut text = match wanted.route {
            Lookup::Name => format!("Tool '{}' is not registered.", shown(name)),
            _ => format!("Tool '{}' not found on any connected MCP server.", shown(name)),
        };
        if !near.is_empty() {
            let offered: Vec<String> = near.iter().map(|name| format!("'{name}'")).collect();
            text = format!("{text} Did you mean {}?", offered.join(" or "));
        }
        ToolFailure::new(cause, text)
    }

    /// Step 5. The arguments, with those that are set for the caller, valid against the tool's schema. Large ones wait for
    /// their turn among those of `sharer` and others.
    ///
    /// # Errors
    ///
    /// [`Cause::InvalidArguments`], naming what is wrong and never the values; [`Cause::Overloaded`] when too many wait;
    /// [`Cause::Expired`] at `deadline`.
    pub async fn arguments(
        &self,
        effective: &EffectiveTools,
        allowed: AllowedTool<'_>,
        text: Option<&str>,
        sharer: Arc<str>,
        deadline: Instant,
    ) -> Result<Map<String, Value>, ToolFailure> {
        self.arguments.check_in_turn(allowed.tool, text, effective.forced(allowed), sharer, deadline).await
    }

    /// Step 6. Whether the caller may address everybody whom the arguments name.
    ///
    /// # Errors
    ///
    /// [`Cause::NotAllowed`], naming where the recipient stands that is refused.
    pub fn recipients(
        &self,
        effective: &EffectiveTools,
        allowed: AllowedTool<'_>,
        arguments: &Map<String, Value>,
    ) -> Result<(), ToolFailure> {
        for (outbound, list) in effective.recipients(allowed) {
            undeclared(effective, allowed, outbound, arguments)?;
            if let Err(refused) = list.check(outbound, arguments) {
                return Err(ToolFailure::new(Cause::NotAllowed, refused.to_string()));
            }
        }
        Ok(())
    }

    /// Step 7. Takes one token of (agent, binding, tool).
    ///
    /// # Errors
    ///
    /// [`Cause::RateLimited`], with the time after which there is a token again.
    pub fn rate(&self, effective: &EffectiveTools, allowed: AllowedTool<'_>, now: Instant) -> Result<(), ToolFailure> {
        let Some(rule) = effective.rate(allowed) else { return Ok(()) };
        let (cell, tool) = effective.rate_key(allowed);
        self.rates.take(cell, tool, rule.rate(), now).map_err(|wait| too_often(allowed, wait))
    }

    /// Takes one token of (agent, binding, `tool.list`).
    ///
    /// # Errors
    ///
    /// [`Cause::RateLimited`], with the time after which there is a token again.
    pub(crate) fn listing_rate(&self, effective: &EffectiveTools, now: Instant) -> Result<(), ToolFailure> {
        let Some(rule) = effective.listing_rate() else { return Ok(()) };
        let (cell, listing) = effective.listing_rate_key();
        self.rates.take(cell, listing, rule.rate(), now).map_err(|wait| {
            let text = "The tools were listed too often. Try again later.";
            ToolFailure::new(Cause::RateLimited, text).with_retry_after(wait)
        })
    }
}

fn too_often(allowed: AllowedTool<'_>, wait: Duration) -> ToolFailure {
    let text = format!("Tool '{}' was called too often. Try again later.", allowed.tool.descriptor.name);
    ToolFailure::new(Cause::RateLimited, text).with_retry_after(wait)
}

/// Refuses arguments that neither the tool's schema nor the policy declares: nobody has said that they hold no recipient.
fn undeclared(
    effective: &EffectiveTools,
    allowed: AllowedTool<'_>,
    outbound: &Outbound,
    arguments: &Map<String, Value>,
) -> Result<(), ToolFailure> {
    let declared = allowed.tool.descriptor.parameters.as_deref().map(recipients::declared).unwrap_or_default();
    let forced = effective.forced(allowed);
    let is_forced = |name: &String| forced.as_ref().is_some_and(|forced| forced.0.contains_key(name));
    let is_known = |name: &String| declared.contains(name.as_str()) || outbound.reads(name) || is_forced(name);
    match arguments.keys().find(|name| !is_known(name)) {
        None => Ok(()),
        Some(name) => {
            let text = format!(
                "The tool's parameters do not declare the argument `{}`, which might name a recipient. Leave it out.",
                shown(name)
            );
            Err(ToolFailure::new(Cause::NotAllowed, text))
        }
    }
}
