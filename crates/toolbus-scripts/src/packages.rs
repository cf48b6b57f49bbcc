//! The packages of scripts: which are allowed, and how they get into a folder that a script can read.

mod mask;
mod pip;
mod store;
#[cfg(test)]
mod tests;
mod tree;

use std::collections::HashMap;
use std::ffi::OsString;
use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use futures_util::FutureExt as _;
use futures_util::future::{BoxFuture, Shared, WeakShared};
use parking_lot::Mutex;
use tokio::time::timeout_at;
use toolbus_core::{Clock, lifecycle};
use toolbus_protocol::{Random, bounded};
use toolbus_sandbox::Sandbox;
use tracing::Instrument as _;
use tracing::field::Empty;

use self::pip::Pip;
use self::store::{PackageStore, key};
use crate::config::PackagesConfig;
use crate::interpreter::Interpreter;
use crate::requirement::{AllowedPackages, Requirement};

/// Puts packages into a folder.
pub trait Installer: Send + Sync + 'static {
    /// Returns a folder with these packages, for `PYTHONPATH`. It stays as it is for as long as the script may run.
    fn install<'a>(
        &'a self,
        packages: &'a [Requirement],
        deadline: Instant,
    ) -> BoxFuture<'a, Result<PathBuf, PackageError>>;
}

/// Reason why there is no such folder.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum PackageError {
    /// A package is not allowed. The text is for the caller.
    #[error("{0}")]
    Refused(String),
    /// pip ended with an error.
    #[error("pip install failed (exit {exit_code}):\n{stderr}")]
    Failed {
        /// pip's exit code.
        exit_code: i32,
        /// Message of pip, bounded and without credentials.
        stderr: String,
    },
    /// pip took too long.
    #[error("pip install timed out after {seconds}s")]
    TimedOut {
        /// The time that it had.
        seconds: u64,
    },
    /// The cache of packages or pip failed. The text is for an operator.
    #[error("{0}")]
    Unavailable(String),
}

/// Installs packages with pip, and keeps them. Cheap to clone.
#[derive(Debug, Clone)]
pub struct PackageCache {
    inner: Arc<CacheInner>,
}

type Installing = BoxFuture<'static, Result<PathBuf, PackageError>>;

struct CacheInner {
    allow: AllowedPackages,
    timeout: Duration,
    ttl: Duration,
    abi: String,
    pip: Pip,
    store: PackageStore,
    /// Installations under way, by request.
    running: Mutex<HashMap<String, WeakShared<Installing>>>,
}

impl std::fmt::Debug for CacheInner {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Inner").field("store", &self.store).finish_non_exhaustive()
    }
}

impl PackageCache {
    /// Opens the folder, and removes what was left half done. Packages stay for `lifetime`, the longest life of a
    /// process that has them, and for at least an hour after their last use. pip runs in the sandbox; without one it
    /// runs as the daemon does, which is for development alone.
    ///
    /// # Errors
    ///
    /// If the folder cannot be created or written to.
    pub fn open(
        config: &PackagesConfig,
        lifetime: Duration,
        interpreter: &Interpreter,
        sandbox: Option<&Sandbox>,
    ) -> io::Result<Self> {
        Self::open_with(config, lifetime, interpreter, sandbox, std::env::vars_os())
    }

    fn open_with(
        config: &PackagesConfig,
        lifetime: Duration,
        interpreter: &Interpreter,
        sandbox: Option<&Sandbox>,
        daemon: impl IntoIterator<Item = (OsString, OsString)>,
    ) -> io::Result<Self> {
        let most = config.max_cache.bytes();
        let store = PackageStore::open(&config.cache, most, lifetime, Clock::SYSTEM, Random::SYSTEM)?;
        let pip = Pip::new(interpreter, sandbox, config.index_url.as_ref(), config.max_size.bytes(), daemon);
        let (abi, running) = (format!("{} {}", interpreter.version, interpreter.abi), Mutex::default());
        let (allow, timeout, ttl) = (config.allowed(), config.timeout.get(), config.ttl.get());
        Ok(Self { inner: Arc::new(CacheInner { allow, timeout, ttl, abi, pip, store, running }) })
    }
}

impl Installer for PackageCache {
    fn install<'a>(
        &'a self,
        packages: &'a [Requirement],
        deadline: Instant,
    ) -> BoxFuture<'a, Result<PathBuf, PackageError>> {
        async move {
            let begun = Clock::SYSTEM.now();
            let admitted =
                self.inner.allow.admit(packages).map_err(|error| PackageError::Refused(error.to_string()))?;
            if let Some(set) = self.inner.find(&admitted).await? {
                return Ok(set);
            }
            let installing = CacheInner::share(&self.inner, admitted);
            let seconds = deadline.saturating_duration_since(begun).as_secs();
            timeout_at(deadline.into(), installing).await.unwrap_or(Err(PackageError::TimedOut { seconds }))
        }
        .boxed()
    }
}

impl CacheInner {
    /// By what a request is known: packages, interpreter and where they come from.
    fn request(&self, admitted: &[Requirement]) -> String {
        let packages = admitted.iter().map(Requirement::as_str);
        key(&packages.chain([self.abi.as_str(), self.pip.source()]).collect::<Vec<_>>())
    }

    /// Finds the set that was installed for this before. Versions that are named stay the same; others may be
    /// superseded.
    async fn find(&self, admitted: &[Requirement]) -> Result<Option<PathBuf>, PackageError> {
        let ttl = (!admitted.iter().all(Requirement::is_pinned)).then_some(self.ttl);
        let (store, request) = (self.store.clone(), self.request(admitted));
        blocking(move || Ok(store.find(&request, ttl))).await
    }

    /// Installs once for all concurrent equal requests. Continues as long as one of them waits.
    fn share(this: &Arc<Self>, admitted: Vec<Requirement>) -> Shared<Installing> {
        let request = this.request(&admitted);
        let mut running = this.running.lock();
        running.retain(|_, installing| installing.upgrade().is_some());
        if let Some(installing) = running.get(&request).and_then(WeakShared::upgrade) {
            return installing;
        }
        let installing = Arc::clone(this).make(admitted).boxed().shared();
        running.extend(installing.downgrade().map(|weak| (request, weak)));
        installing
    }

    async fn make(self: Arc<Self>, admitted: Vec<Requirement>) -> Result<PathBuf, PackageError> {
        // Another installation may have ended meanwhile.
        if let Some(set) = self.find(&admitted).await? {
            return Ok(set);
        }
        let packages = admitted.iter().map(Requirement::as_str).collect::<Vec<_>>().join(" ");
        let span = tracing::info_span!(
            target: lifecycle::TARGET,
            "install packages",
            toolbus.script.packages = bounded(&packages),
            otel.status_description = Empty
        );
        let installing = async { lifecycle::checked(&span, self.make_anew(&admitted).await) };
        installing.instrument(span.clone()).await
    }

    async fn make_anew(self: &Arc<Self>, admitted: &[Requirement]) -> Result<PathBuf, PackageError> {
        let begun = Clock::SYSTEM.now();
        let store = self.store.clone();
        let build = blocking(move || Ok(store.build()?)).await?;
        self.pip.install(admitted, &build, self.timeout).await?;
        let (this, request) = (Arc::clone(self), self.request(admitted));
        let (set, installed) = blocking(move || {
            let (bytes, installed) = pip::installed(&build.target())?;
            this.pip.check_size(bytes)?;
            let set = this.store.keep(&build, &request, &[&this.abi, this.pip.source()], &installed)?;
            this.store.trim();
            Ok((set, installed))
        })
        .await?;
        tracing::info!(
            packages = installed.join(" "),
            elapsed_ms = Clock::SYSTEM.since(begun).as_millis(),
            "packages were installed"
        );
        Ok(set)
    }
}

/// Reason why work on the disk came to nothing.
enum InstallFailure {
    System(io::Error),
    Package(PackageError),
}

impl From<io::Error> for InstallFailure {
    fn from(error: io::Error) -> Self {
        Self::System(error)
    }
}

impl From<PackageError> for InstallFailure {
    fn from(error: PackageError) -> Self {
        Self::Package(error)
    }
}

/// Does what takes time on the disk, beside everything else.
async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, InstallFailure> + Send + 'static,
) -> Result<T, PackageError> {
    let unavailable = |error: &dyn std::error::Error| {
        PackageError::Unavailable(format!("the folder of packages (script.packages.cache) cannot be used: {error}"))
    };
    match tokio::task::spawn_blocking(work).await {
        Ok(Ok(value)) => Ok(value),
        Ok(Err(InstallFailure::Package(error))) => Err(error),
        Ok(Err(InstallFailure::System(error))) => Err(unavailable(&error)),
        Err(error) => Err(unavailable(&error)),
    }
}
