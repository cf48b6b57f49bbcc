//! Instances that sessions have, and their factories.

use std::any::Any;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;

use futures_util::FutureExt;
use futures_util::future::BoxFuture;

use crate::failure::ToolFailure;
use crate::tool::{AnyExecutor, Executor};

/// Whose session it is. Two are the same when `owner` and `session` are.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct SessionKey {
    /// The caller's name as logs show it. A caller that is unknown chooses its own, so that it keeps nothing apart.
    pub agent: Arc<str>,
    /// Key of the caller, distinct from all others.
    pub owner: Arc<str>,
    /// The caller's id of the session: text of outsiders.
    pub session: Arc<str>,
}

/// Builds what runs the calls of a session.
pub trait SessionFactory: Send + Sync + 'static {
    /// Instance that the factory builds.
    type Instance: Instance;

    /// Builds one. Runs in a task of its own and is dropped when it takes too long; whatever it began must end then.
    ///
    /// # Errors
    ///
    /// If it cannot be built: every call that waits for it ends with that failure, and the next call tries again.
    fn start(&self, key: SessionKey) -> impl Future<Output = Result<Self::Instance, ToolFailure>> + Send;
}

/// Runs the calls of one session until it is stopped.
///
/// Calls have the tool's name within the set, and a token that is cancelled when the session ends.
pub trait Instance: Executor {
    /// Ends whatever the instance holds. Called once, when no call runs any more; dropped when it takes too long.
    fn stop(&self) -> impl Future<Output = ()> + Send;

    /// Whether the instance is of no further use: its session ends then, and the next call begins another. Called after
    /// each call.
    fn is_over(&self) -> bool {
        false
    }
}

/// An instance of any type.
pub(super) trait AnyInstance: AnyExecutor {
    /// See [`Instance::stop`].
    fn stop_boxed(self: Arc<Self>) -> BoxFuture<'static, ()>;
    /// See [`Instance::is_over`].
    fn is_over(&self) -> bool;
}

/// Payload of a start or a stop that panicked.
pub(super) type Panic = Box<dyn Any + Send>;

/// The outcome of a start.
pub(super) type Started = Result<Arc<dyn AnyInstance>, ToolFailure>;

/// A factory of any type.
pub(super) trait AnyFactory: Send + Sync + 'static {
    /// See [`SessionFactory::start`].
    fn start_boxed(self: Arc<Self>, key: SessionKey) -> BoxFuture<'static, Started>;
}

impl<I: Instance> AnyInstance for I {
    fn stop_boxed(self: Arc<Self>) -> BoxFuture<'static, ()> {
        Box::pin(async move { self.stop().await })
    }

    fn is_over(&self) -> bool {
        Instance::is_over(self)
    }
}

impl<F: SessionFactory> AnyFactory for F {
    fn start_boxed(self: Arc<Self>, key: SessionKey) -> BoxFuture<'static, Started> {
        Box::pin(async move {
            let instance = self.start(key).await?;
            Ok(Arc::new(instance) as Arc<dyn AnyInstance>)
        })
    }
}

/// A future whose panic is a value.
pub(super) fn contained<T>(future: BoxFuture<'static, T>) -> impl Future<Output = Result<T, Panic>> + Send {
    AssertUnwindSafe(future).catch_unwind()
}
