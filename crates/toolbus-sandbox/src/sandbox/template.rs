//! Templates, on the daemon's side.

use std::os::fd::AsFd as _;
use std::sync::Arc;

use super::spawner::Helper;
use super::{Made, Sandbox, SandboxError, Waiting};
use crate::plan::{Layers, Level, Plan};
use crate::wire::{self, FilterOptions, HelperMessage};

/// Longest message of a template that has ended, in bytes.
const LONGEST: usize = 512;

/// A confined program that runs no job, and forks a copy of itself for each.
///
/// It ends when this value and all of its forks are dropped.
#[derive(Debug)]
pub struct Template {
    made: Made,
    plan: Plan,
    sandbox: Sandbox,
}

impl Sandbox {
    /// Whether programs can be forked from templates: all layers are needed for that.
    #[must_use]
    pub fn can_fork(&self) -> bool {
        self.layers() == Layers::of(Level::Full)
    }

    /// Starts a template, and waits until it is ready. Its plan must say that it forks.
    ///
    /// # Errors
    ///
    /// If it cannot be started, does not become ready, or has threads or processes of its own then.
    pub async fn template(&self, plan: &Plan) -> Result<Template, SandboxError> {
        if !self.can_fork() || !plan.forks {
            return Err(SandboxError::Confinement("templates need all layers".to_owned()));
        }
        let mut made = self.shared.make(self.layers, plan).await?;
        made.start(plan).await?;
        made.wait_until_ready().await?;
        Ok(Template { made, plan: plan.clone(), sandbox: self.clone() })
    }
}

impl Template {
    /// Has it fork, and does not wait for that: errors of it are those of the run.
    ///
    /// # Errors
    ///
    /// If its watchdog has ended, or has too much to do.
    pub fn fork(self: &Arc<Self>) -> Result<Waiting, SandboxError> {
        let (helper, streams) = Helper::pair()?;
        let streams = streams.each_ref().map(|stream| stream.as_fd());
        let Self { made, plan, sandbox } = &**self;
        let options = FilterOptions::of(plan, sandbox.layers(), false, true);
        wire::send_streams(made.helper.socket.as_fd(), streams, options)?;
        let made = Made { helper, number: made.number, has_watchdog: false, user: None };
        Ok(Waiting {
            made,
            plan: plan.clone(),
            is_ready: false,
            sandbox: sandbox.clone(),
            template: Some(Arc::clone(self)),
        })
    }

    /// Whether the template has ended. Its forks may go on.
    #[must_use]
    pub fn is_gone(&self) -> bool {
        self.made.helper.is_gone_or_says()
    }

    /// Takes the reason for which the sandbox has ended the template after it was ready; `None` if it has not.
    #[must_use]
    pub fn misbehaved(&self) -> Option<String> {
        let mut said = [0; LONGEST];
        // Whatever the runtime has seen of it.
        let length = rustix::io::read(&self.made.helper.socket, &mut said).ok()?;
        match wire::receive(&mut said.get(..length)?).ok()?? {
            HelperMessage::Failed { why, .. } => Some(why),
            _ => None,
        }
    }
}
