//! The services that families are built from.

use std::sync::{Arc, OnceLock};

use futures_util::FutureExt as _;
use futures_util::future::{BoxFuture, ready};
use tokio::sync::OnceCell;
use toolbus_broker::embedded::Embedded;
use toolbus_core::bus::Bus;
use toolbus_core::failure::{Cause, ToolFailure};
use toolbus_core::policy::PolicyHandle;
use toolbus_core::redact::Redactor;
use toolbus_core::results::ResultBudget;
use toolbus_core::store::Store;
use toolbus_core::tool::ToolOutput;
use toolbus_core::{Clock, Dispatcher, Gates, InnerCall, Invoker};
use toolbus_memory::working_memory::WorkingMemory;
use toolbus_sandbox::Sandbox;
use toolbus_store::{OpenStore, VolatileMemory};
use toolbus_telemetry::Exporters;

use crate::config::Config;

/// Purpose of families.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Purpose {
    /// A daemon.
    Daemon,
    /// A command that takes calls for its own time.
    Command,
    /// A description of the tools: nothing is started or called.
    Description,
}

/// The services that families are built from.
pub(crate) struct FamilyContext<'a> {
    pub(crate) config: &'a Config,
    pub(crate) purpose: Purpose,
    /// Absent where nothing is recorded.
    pub(crate) exporters: Option<&'a Exporters>,
    pub(crate) redactor: Redactor,
    pub(crate) bus: Arc<dyn Bus>,
    pub(crate) store: Arc<dyn Store>,
    /// Working memory; absent where there is none.
    pub(crate) memory: Option<Arc<dyn WorkingMemory>>,
    /// Room for large results.
    pub(crate) budget: ResultBudget,
    /// Decide about calls, by the policy, whose registry has the tools.
    pub(crate) gates: Arc<Gates>,
    /// The sandbox of commands and scripts, once one of them needs it.
    pub(crate) sandbox: Arc<OnceCell<Sandbox>>,
    /// Makes calls of tools.
    pub(crate) invoker: DeferredInvoker,
}

/// A working memory for the time of a command, if there is a section for it.
pub(crate) fn volatile_memory(config: &Config) -> Option<Arc<dyn WorkingMemory>> {
    let section = config.memory.as_ref()?;
    Some(Arc::new(VolatileMemory::new(section.limits(), Clock::SYSTEM)))
}

impl<'a> FamilyContext<'a> {
    /// The services for a description of the tools of `policy`.
    pub(crate) fn description(config: &'a Config, policy: PolicyHandle) -> Self {
        Self {
            config,
            purpose: Purpose::Description,
            exporters: None,
            redactor: Redactor::default(),
            bus: Arc::new(Embedded::new()),
            store: OpenStore::in_memory().store,
            memory: volatile_memory(config),
            budget: config.results.budget(),
            gates: Arc::new(Gates::new(policy)),
            sandbox: Arc::default(),
            invoker: DeferredInvoker::default(),
        }
    }

    /// The policy for callers.
    pub(crate) fn policy(&self) -> &PolicyHandle {
        self.gates.policy()
    }

    /// The maker of calls of tools, for a family.
    pub(crate) fn invoker(&self) -> Arc<dyn Invoker> {
        Arc::new(self.invoker.clone())
    }
}

/// Makes calls once there is a dispatcher, which is built after the families. Cheap to clone.
#[derive(Clone, Default)]
pub(crate) struct DeferredInvoker(Arc<OnceLock<Dispatcher>>);

impl DeferredInvoker {
    /// Has this dispatcher make the calls; the first one stays.
    pub(crate) fn set(&self, dispatcher: Dispatcher) {
        let _ = self.0.set(dispatcher);
    }
}

impl Invoker for DeferredInvoker {
    fn invoke(&self, call: InnerCall) -> BoxFuture<'_, Result<ToolOutput, ToolFailure>> {
        match self.0.get() {
            Some(dispatcher) => dispatcher.invoke(call),
            None => ready(Err(ToolFailure::new(Cause::Unavailable, "Tools are not called here."))).boxed(),
        }
    }
}
