//! Work of families for the rest of a daemon: state that others read, and messages beside calls.

use std::borrow::Cow;
use std::sync::Arc;

use tokio::task::JoinSet;
use toolbus_core::bus::Subscription;
use toolbus_core::{ControlHandler, ControlService, Dispatcher, HintSource, PendingTools};
use toolbus_mcp_client::model_tools::Registrar;
use toolbus_mcp_server::Resources;

use super::AppServers;
use crate::config::Config;
use crate::http::admin::FamilyViews;
use crate::http::{RemoteSetHealth, ScriptStatus};

/// Prefetch of queues of control requests.
pub(crate) const CONTROL_PREFETCH: u16 = 64;

/// State of families that others read.
#[derive(Default)]
pub(crate) struct Contributions {
    /// The MCP servers of this process.
    pub(crate) servers: Option<AppServers>,
    /// Adds servers for callers.
    pub(crate) registrar: Option<Arc<Registrar>>,
    /// Tools that are not listed yet.
    pub(crate) pending: Option<Arc<dyn PendingTools>>,
    /// Hints at tools.
    pub(crate) hints: Option<Arc<dyn HintSource>>,
    /// Documents for MCP clients.
    pub(crate) resources: Option<Arc<dyn Resources>>,
    /// The state of the runner of scripts.
    pub(crate) scripts: Option<Box<dyn Fn() -> Option<ScriptStatus> + Send + Sync>>,
    /// State that operators see.
    pub(crate) views: FamilyViews,
    /// The tool sets whose tools other daemons list.
    pub(crate) remote: Option<Box<dyn Fn() -> Vec<RemoteSetHealth> + Send + Sync>>,
}

/// A queue, and the kind of its messages.
pub(crate) type Queue = (Subscription, Takes);

/// Kind of messages of a queue.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Takes {
    Calls,
    Requests,
}

/// Work of a process while it takes calls.
pub(crate) struct Work<'a> {
    pub(crate) config: &'a Config,
    pub(crate) dispatcher: &'a Dispatcher,
    /// Stopped when the consumers have stopped.
    pub(crate) background: &'a mut JoinSet<()>,
    handlers: Vec<(Cow<'static, str>, Arc<dyn ControlHandler>)>,
}

impl<'a> Work<'a> {
    pub(crate) const fn new(config: &'a Config, dispatcher: &'a Dispatcher, background: &'a mut JoinSet<()>) -> Self {
        Self { config, dispatcher, background, handlers: Vec::new() }
    }

    /// Has the requests of `topic` handled.
    pub(crate) fn handle(&mut self, topic: impl Into<Cow<'static, str>>, handler: Arc<dyn ControlHandler>) {
        self.handlers.push((topic.into(), handler));
    }

    /// Adds the handlers to `control`.
    pub(crate) fn control(self, control: ControlService) -> ControlService {
        self.handlers.into_iter().fold(control, |control, (topic, handler)| control.with(topic, handler))
    }
}

/// Largest body of a call, in bytes.
pub(crate) fn max_body(config: &Config) -> usize {
    usize::try_from(config.invoke.max_body.bytes()).unwrap_or(usize::MAX)
}
