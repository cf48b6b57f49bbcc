//! As many scripts as there can be.

use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::broker::load::Sample;
use futures_util::future::try_join_all;
use tokio_util::task::AbortOnDropHandle;
use toolbus_scripts::tool::ScriptTool;

use super::programs::Program;
use super::subject;
use crate::error::MeasureError;

/// Work that callers repeat.
#[derive(Clone)]
pub(super) enum Work {
    /// Starting the interpreter.
    Plain(Arc<Program>),
    /// Calling the tool.
    Tool(Arc<ScriptTool>),
}

impl Work {
    /// A closed loop: each of the callers, a task of its own as calls are in a daemon, begins anew when it has its reply,
    /// for about this long.
    pub(super) async fn run(&self, callers: usize, time: Duration) -> Result<Sample, MeasureError> {
        let started = Instant::now();
        let tasks = (0..callers).map(|_| {
            let work = self.clone();
            AbortOnDropHandle::new(tokio::spawn(async move {
                let mut latencies = Vec::new();
                while started.elapsed() < time {
                    let begun = Instant::now();
                    work.once().await?;
                    latencies.push(begun.elapsed());
                }
                Ok::<_, MeasureError>(latencies)
            }))
        });
        let ended = try_join_all(tasks).await.map_err(io::Error::other)?;
        let latencies = ended.into_iter().collect::<Result<Vec<_>, _>>()?.concat();
        Ok(Sample { latencies, elapsed: started.elapsed() })
    }

    async fn once(&self) -> Result<(), MeasureError> {
        match self {
            Self::Plain(program) => program.run().await,
            Self::Tool(tool) => subject::call(tool).await,
        }
    }
}
