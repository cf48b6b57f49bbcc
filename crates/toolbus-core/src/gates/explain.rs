//! The gates, walked without running anything.

use std::fmt::Write;

use super::{Gates, beside_forced, rate};
use crate::caller::Caller;
use crate::failure::ToolFailure;
use crate::policy::{Because, EffectiveTools, listed};
use crate::request::ToolRef;

/// Decision of one step on a call.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ExplainedStep {
    /// The step.
    pub name: StepName,
    /// Whether the step lets the call pass.
    pub passes: bool,
    /// Why, for an operator.
    pub text: String,
    /// The message for the caller, if the step refuses.
    pub message: Option<String>,
}

/// A step that can refuse a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StepName {
    /// The caller.
    Caller,
    /// The name, in the caller's set of tools.
    Resolve,
    /// The arguments, against the tool's schema.
    Arguments,
    /// Whom the call addresses.
    Recipients,
    /// Whether the tool failed again and again; a step only where it refuses.
    Breaker,
    /// Rate of the tool's calls.
    RateLimit,
    /// Number of the agent's calls under way.
    Permit,
}

impl StepName {
    /// Name of the step.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Caller => "caller",
            Self::Resolve => "resolve",
            Self::Arguments => "arguments",
            Self::Recipients => "recipients",
            Self::Breaker => "breaker",
            Self::RateLimit => "rate limit",
            Self::Permit => "permit",
        }
    }
}

fn pass(name: StepName, text: String) -> ExplainedStep {
    ExplainedStep { name, passes: true, text, message: None }
}

fn refuse(name: StepName, text: String, failure: ToolFailure) -> ExplainedStep {
    ExplainedStep { name, passes: false, text, message: Some(failure.message) }
}

impl Gates {
    /// Walks the steps of a call up to the first that refuses. Nothing runs, and no token is taken.
    #[must_use]
    pub fn explain(&self, caller: &Caller, name: &str, arguments: Option<&str>) -> Vec<ExplainedStep> {
        let mut steps = Vec::new();
        self.walk(caller, name, arguments, &mut steps);
        steps
    }

    fn walk(&self, caller: &Caller, name: &str, arguments: Option<&str>, steps: &mut Vec<ExplainedStep>) {
        let effective = self.policy.effective(caller);
        let profile = effective.profile();
        let count = effective.names().count();
        steps.push(pass(
            StepName::Caller,
            format!("agent {}, profile {profile}, {count} tools", effective.section_name()),
        ));

        let explanation = effective.explain(name);
        let mut because = explanation.because.to_string();
        let others = effective.shadowed_at(&explanation.tool);
        if !others.is_empty() && !matches!(explanation.because, Because::Absent(..)) {
            let others = listed(&others);
            let _ = write!(because, "; {others} also has a tool of this name, which is called by its server");
        }
        let allowed = match self.resolve(&effective, caller, ToolRef::named(name)) {
            Ok(allowed) => allowed,
            // The name may be in order, and the session be what is missing.
            Err(failure) if explanation.is_in => {
                steps.push(refuse(StepName::Resolve, failure.message.clone(), failure));
                return;
            }
            Err(failure) => {
                steps.push(refuse(StepName::Resolve, because, failure));
                return;
            }
        };
        steps.push(pass(StepName::Resolve, because));

        let forced = effective.forced(allowed);
        let checked = self.arguments.check(allowed.tool, arguments, forced.as_deref());
        let arguments = match checked.and_then(|them| beside_forced(&effective, allowed, forced.as_deref(), them)) {
            Ok(arguments) => arguments,
            Err(failure) => {
                steps.push(refuse(StepName::Arguments, failure.message.clone(), failure));
                return;
            }
        };
        let forced = forced.map(|forced| forced.0.keys().cloned().collect::<Vec<_>>().join(", "));
        let set = forced.map_or_else(String::new, |names| format!("; set by the policy: {names}"));
        steps.push(pass(StepName::Arguments, format!("valid{set}")));

        if let Err(failure) = self.recipients(&effective, allowed, &arguments) {
            steps.push(refuse(StepName::Recipients, failure.message.clone(), failure));
            return;
        }
        let lists = effective.recipients(allowed).count();
        let addressed = match (allowed.channels(), lists) {
            (0, _) => "the call has no recipients".to_owned(),
            (_, 0) => "unrestricted: the agent has no outbound_allowlist for this channel".to_owned(),
            _ => "every recipient is allowed".to_owned(),
        };
        steps.push(pass(StepName::Recipients, addressed));

        if let Err(failure) = self.breakers.check(&allowed.tool.descriptor) {
            let wait = failure.retry_after.unwrap_or_default().as_millis();
            let text = format!("the breaker is open; the next trial is in {wait} ms");
            steps.push(refuse(StepName::Breaker, text, failure));
            return;
        }

        let Some(rule) = effective.rate(allowed) else {
            steps.push(pass(StepName::RateLimit, "not limited".to_owned()));
            steps.push(permit(&effective));
            return;
        };
        let (binding, tool) = effective.rate_key(allowed);
        let limit = format!("`{}`: {}", rule.pattern(), rule.rate());
        match self.rates.peek(binding, tool, rule.rate(), self.clock.now()) {
            Ok(()) => steps.push(pass(StepName::RateLimit, limit)),
            Err(wait) => {
                let text = format!("{limit}; the next call is let through in {} ms", wait.as_millis() + 1);
                steps.push(refuse(StepName::RateLimit, text, rate::exceeded(&allowed.tool.descriptor.name, wait)));
                return;
            }
        }
        steps.push(permit(&effective));
    }
}

fn permit(effective: &EffectiveTools) -> ExplainedStep {
    let (max_in_flight, max_queued) = effective.limits();
    pass(StepName::Permit, format!("at most {max_in_flight} calls of the agent run and {max_queued} wait"))
}
