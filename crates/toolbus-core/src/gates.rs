//! Steps 4 to 7 of a call: may this caller use this tool, so, now? Each ends the call or lets it pass.
//!
//! A file holds what a gate needs: the rule as a configuration has it, the check, and its errors. [`Gates`] puts them
//! in order and applies each to one caller. The permit, step 8, is the dispatcher's to take.

pub(crate) mod arguments;
pub mod breaker;
mod compiled;
mod explain;
mod meter;
mod pace;
mod pattern_keyword;
pub(crate) mod permit;
pub mod rate;
mod rate_limits;
pub mod recipients;
mod resolve;

use std::sync::Arc;
use std::time::Instant;

use serde_json::{Map, Value};

use self::arguments::{Arguments, declared_beside};
use self::breaker::Breakers;
pub use self::explain::{ExplainedStep, StepName};
use self::rate_limits::RateLimits;
use self::resolve::Resolver;
pub(crate) use self::resolve::find;
use crate::Clock;
use crate::caller::Caller;
use crate::failure::{Cause, ToolFailure};
use crate::policy::{AllowedTool, EffectiveTools, Forced, PolicyHandle};
use crate::request::ToolRef;

/// The gates that a call passes before it may run.
pub struct Gates {
    policy: PolicyHandle,
    arguments: Arguments,
    rates: RateLimits,
    breakers: Breakers,
    resolver: Resolver,
    clock: Clock,
}

impl Gates {
    /// Gates that apply `policy`.
    #[must_use]
    pub fn new(policy: PolicyHandle) -> Self {
        Self::with_clock(policy, Clock::SYSTEM)
    }

    /// As [`Self::new`], by another clock.
    #[must_use]
    pub fn with_clock(policy: PolicyHandle, clock: Clock) -> Self {
        let (arguments, rates) = (Arguments::new(clock, policy.turns().clone()), RateLimits::new(clock.now()));
        Self { policy, arguments, rates, breakers: Breakers::new(clock), resolver: Resolver::new(clock), clock }
    }

    /// The policy for callers.
    #[must_use]
    pub const fn policy(&self) -> &PolicyHandle {
        &self.policy
    }

    /// Which tools and servers get no calls for now, because they fail again and again.
    #[must_use]
    pub const fn breakers(&self) -> &Breakers {
        &self.breakers
    }

    /// Returns the tools that the caller may use from here on until its call ends.
    #[must_use]
    pub fn enter(&self, caller: &Caller) -> EffectiveTools {
        let mut effective = self.policy.effective(caller);
        self.policy.begin_session(caller, &mut effective);
        effective
    }

    /// Step 4. The tool that the caller means. A tool that the caller may not see is refused like one that is not
    /// there.
    ///
    /// # Errors
    ///
    /// [`Cause::UnknownTool`], with the nearest names that the caller may see; [`Cause::UnknownServer`], with the
    /// servers that it may use; [`Cause::InvalidArguments`] when the tool needs a session and the caller has none.
    pub fn resolve<'a>(
        &self,
        effective: &'a EffectiveTools,
        caller: &Caller,
        wanted: ToolRef<'_>,
    ) -> Result<AllowedTool<'a>, ToolFailure> {
        self.resolver.resolve(effective, caller, wanted)
    }

    /// Checks again after waiting for a permit: the tool or the caller may have been disabled, or the tool quarantined,
    /// meanwhile.
    ///
    /// # Errors
    ///
    /// Those of [`Self::resolve`] for a tool that is not there.
    pub(crate) fn still_on(
        &self,
        caller: &Caller,
        allowed: AllowedTool<'_>,
        requested: ToolRef<'_>,
    ) -> Result<(), ToolFailure> {
        if self.policy.is_off(caller, &allowed.tool.descriptor) {
            return Err(self.resolver.not_found(&self.policy.effective(caller), requested));
        }
        Ok(())
    }

    /// Step 5. The arguments, with those that are set for the caller, valid against the tool's schema. Large ones wait
    /// for their turn among those of `sharer` and others.
    ///
    /// # Errors
    ///
    /// [`Cause::InvalidArguments`], naming what is wrong and never the values; [`Cause::Overloaded`] when too many
    /// wait; [`Cause::Expired`] at `deadline`.
    pub async fn arguments(
        &self,
        effective: &EffectiveTools,
        allowed: AllowedTool<'_>,
        text: Option<&str>,
        sharer: Arc<str>,
        deadline: Instant,
    ) -> Result<Map<String, Value>, ToolFailure> {
        let forced = effective.forced(allowed);
        let arguments = self.arguments.check_in_turn(allowed.tool, text, forced.clone(), sharer, deadline).await?;
        beside_forced(effective, allowed, forced.as_deref(), arguments)
    }

    /// Steps 6 and 7, with the breaker of the tool between them: what that refuses uses up no token.
    ///
    /// # Errors
    ///
    /// Those of [`Self::recipients`], [`Breakers::check`] and [`Self::rate`].
    pub(crate) fn admit(
        &self,
        effective: &EffectiveTools,
        allowed: AllowedTool<'_>,
        arguments: &Map<String, Value>,
    ) -> Result<(), ToolFailure> {
        self.recipients(effective, allowed, arguments)?;
        self.breakers.check(&allowed.tool.descriptor)?;
        self.rate(effective, allowed, self.clock.now())
    }

    /// Step 6. Whether the caller may address all recipients in the arguments.
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
        let parameters = allowed.tool.descriptor.parameters.as_deref();
        for (outbound, list) in effective.recipients(allowed) {
            let forced = effective.forced(allowed);
            let is_forced = |name: &str| forced.as_ref().is_some_and(|forced| forced.0.contains_key(name));
            recipients::check(outbound, list, parameters, is_forced, arguments)
                .map_err(|refused| ToolFailure::new(Cause::NotAllowed, refused.to_string()))?;
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
        let (binding, tool) = effective.rate_key(allowed);
        self.rates
            .take(binding, tool, rule.rate(), now)
            .map_err(|wait| rate::exceeded(&allowed.tool.descriptor.name, wait))
    }

    /// Takes one token of (agent, binding, `tool.list`).
    ///
    /// # Errors
    ///
    /// [`Cause::RateLimited`], with the time after which there is a token again.
    pub(crate) fn topic_rate(&self, effective: &EffectiveTools, topic: &str, now: Instant) -> Result<(), ToolFailure> {
        let Some(rule) = effective.topic_rate(topic) else { return Ok(()) };
        let (binding, key) = effective.topic_rate_key(topic);
        self.rates.take(binding, key, rule.rate(), now).map_err(|wait| rate::exceeded_on(topic, wait))
    }
}

/// Returns the arguments, unless they have some that nothing declares while others are set for the caller.
fn beside_forced(
    effective: &EffectiveTools,
    allowed: AllowedTool<'_>,
    forced: Option<&Forced>,
    arguments: Map<String, Value>,
) -> Result<Map<String, Value>, ToolFailure> {
    if let Some(forced) = forced {
        let is_recipient = |name: &str| effective.recipients(allowed).any(|(outbound, _)| outbound.reads(name));
        declared_beside(forced, allowed.tool, is_recipient, &arguments)?;
    }
    Ok(arguments)
}
