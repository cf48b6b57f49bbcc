//! Single parts of an [`App`](super::App), also for commands that need no more than these.

use std::sync::Arc;

use toolbus_broker::embedded::Embedded;
use toolbus_broker::rabbitmq::RabbitMq;
use toolbus_core::bus::{Bus, Subscription};
use toolbus_core::policy::{Capacity, PolicyHandle};
use toolbus_core::redact::Redactor;
use toolbus_core::registry::Registry;

use super::{AppError, listen};
use crate::config::{Config, secrets};
use crate::families::{self, FamilyContext, Purpose};

/// The bus of the configuration. It connects in the background, however long that takes.
///
/// # Errors
///
/// If a URL or a certificate cannot be used.
pub fn bus(config: &Config) -> Result<Arc<dyn Bus>, AppError> {
    Ok(match config.bus.broker_settings() {
        None => Arc::new(Embedded::new()),
        Some(settings) => Arc::new(RabbitMq::start(settings)?),
    })
}

/// The policy of the configuration with every configured tool, for a description: nothing runs, and nothing ends the
/// sessions of its tool sets.
///
/// # Errors
///
/// If a tool cannot be built, or two tools have one name.
pub fn described(config: &Config) -> Result<PolicyHandle, AppError> {
    let policy = policy(config, Registry::new())?;
    let families = families::all(&FamilyContext::description(config, policy.clone()))?;
    policy.registry().register_all(families::plan(&families, config, &|_| None)?.tools)?;
    policy.refresh();
    Ok(policy)
}

/// The queues of a daemon with this configuration. Nothing is started.
///
/// # Errors
///
/// If a family of tools cannot be built, or rules contradict each other.
pub fn subscriptions(config: &Config) -> Result<Vec<Subscription>, AppError> {
    let policy = policy(config, Registry::new())?;
    let context = FamilyContext { purpose: Purpose::Daemon, ..FamilyContext::description(config, policy) };
    let queues = listen::all_queues(config, &families::all(&context)?);
    Ok(queues.into_iter().map(|(subscription, _)| subscription).collect())
}

/// The policy of the configuration for the tools of `registry`.
///
/// # Errors
///
/// If rules contradict each other.
pub fn policy(config: &Config, registry: Registry) -> Result<PolicyHandle, AppError> {
    let invoke = &config.invoke;
    let capacity = Capacity { max_in_flight: invoke.max_in_flight, max_waiting: invoke.max_waiting };
    Ok(PolicyHandle::new(registry, config.identity(), config.policy()?, capacity))
}

/// A redactor that knows the secrets of the configuration.
#[must_use]
pub fn redactor(config: &Config) -> Redactor {
    let redactor = Redactor::default();
    hide(&[config], &redactor);
    redactor
}

/// Replaces the secrets that `redactor` knows by those of `configs`.
pub(crate) fn hide(configs: &[&Config], redactor: &Redactor) {
    let of_exporter = secrets::of_exporter(|name| std::env::var(name).ok());
    let given = configs.iter().flat_map(|config| config.secrets()).map(|given| given.secret);
    redactor.configure(given.chain(of_exporter));
}
