//! Listeners: the HTTP port, and the Unix socket of the admin API. Both are opened when the daemon is built, and served
//! once it runs.

use std::convert::Infallible;
use std::fs::{DirBuilder, File, Metadata, Permissions, TryLockError};
use std::io;
use std::net::SocketAddr;
use std::os::unix::fs::{DirBuilderExt as _, FileTypeExt as _, MetadataExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use axum::body::{Body, HttpBody as _, to_bytes};
use axum::extract::State;
use axum::http::header::{ACCEPT, CACHE_CONTROL, CONTENT_LENGTH, CONTENT_TYPE};
use axum::http::{HeaderMap, StatusCode};
use axum::middleware::{from_fn_with_state, map_response_with_state};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use axum::{Json, Router};
use futures_util::FutureExt as _;
use futures_util::future::{OptionFuture, join};
use tokio::net::{TcpListener, UnixListener, UnixStream};
use tokio::runtime::{Builder, Handle};
use tokio::sync::oneshot;
use tokio::task::{JoinSet, spawn_blocking};
use tokio_util::sync::CancellationToken;
use toolbus_core::Clock;
use toolbus_core::redact::Redactor;
use toolbus_protocol::new_message_id;
use toolbus_telemetry::{MetricsFormat, MetricsText};

use super::auth::HttpAuth;
use super::entrance::Entrance;
use super::health::Health;
use super::slots::Slots;
use super::{auth, connections};
use crate::config::Config;

/// Largest response whose secrets are removed, in bytes: far more than any response has.
const MAX_REDACTED: usize = 64 * 1024 * 1024;

const NO_CONSOLE: &str = "The console is off. Set http.admin_token, and http.console to true where http.listen is no \
                          address of this machine alone; then restart the daemon.\n";

/// Mode of the socket: only the user of the daemon may use it.
const MODE: u32 = 0o600;
/// Longest wait for another daemon that is taking a socket of the same folder.
const LOCK_TIME: Duration = Duration::from_secs(5);
/// Time between two attempts to take the lock.
const LOCK_PAUSE: Duration = Duration::from_millis(20);
/// Longest wait for a process that may listen on an existing socket.
const CONNECT_TIME: Duration = Duration::from_secs(2);
/// Random characters of the name of the folder in which the socket is made.
const RANDOM: usize = 6;
/// Longest path that a client can connect to, in bytes: the limit of the system.
const MAX_PATH: usize = 107;

/// Reason why the HTTP server cannot listen, and which key to change.
#[derive(Debug, thiserror::Error)]
pub enum ListenError {
    /// Another program listens there.
    #[error("cannot listen on {0}: the port is in use. End the other program, or set http.listen to another port")]
    PortInUse(SocketAddr),
    /// The address belongs to no interface.
    #[error("cannot listen on {0}: this machine has no such address. Set http.listen to one that it has")]
    NoSuchAddress(SocketAddr),
    /// The port is reserved for the administrator.
    #[error("cannot listen on {0}: permission denied. Set http.listen to a port from 1024 on")]
    Forbidden(SocketAddr),
    /// Any other error of the system.
    #[error("cannot listen on {address} (http.listen): {source}")]
    Other {
        /// The address of the configuration.
        address: SocketAddr,
        /// The error of the system.
        source: io::Error,
    },
}

impl ListenError {
    fn new(address: SocketAddr, source: io::Error) -> Self {
        match source.kind() {
            io::ErrorKind::AddrInUse => Self::PortInUse(address),
            io::ErrorKind::AddrNotAvailable => Self::NoSuchAddress(address),
            io::ErrorKind::PermissionDenied => Self::Forbidden(address),
            _ => Self::Other { address, source },
        }
    }
}

/// Reason why the daemon cannot listen.
#[derive(Debug, thiserror::Error)]
pub enum ListenersError {
    /// The port.
    #[error(transparent)]
    Http(#[from] ListenError),
    /// The socket.
    #[error(transparent)]
    Socket(#[from] SocketError),
}

/// State behind the routes of the HTTP server.
pub struct HttpState {
    /// Health and status, without a token.
    pub health: Arc<Health>,
    /// The metrics, without a token; `None` if they are not offered.
    pub metrics: Option<MetricsText>,
    /// The admin API with its token check; `None` if it has no token.
    pub admin: Option<Router>,
    /// The console; `None` if it is not offered.
    pub console: Option<Router>,
    /// Admits requests to `/mcp`.
    pub auth: Arc<HttpAuth>,
    /// The MCP server.
    pub mcp: Router,
    /// Removes secrets from all responses but those of `/mcp`.
    pub redactor: Redactor,
}

/// The HTTP port and the admin socket.
pub struct Listeners {
    server: HttpServer,
    socket: Option<AdminSocket>,
}

impl Listeners {
    /// Takes the port, and the socket if one is configured.
    ///
    /// # Errors
    ///
    /// If either cannot be had.
    pub async fn bind(config: &Config) -> Result<Self, ListenersError> {
        let server = HttpServer::bind(config.http.listen).await?;
        let socket = match &config.daemon.socket {
            Some(path) => Some(AdminSocket::bind(path).await?),
            None => None,
        };
        Ok(Self { server, socket })
    }

    /// Serves `state` on the port and `admin` on the socket until `stop` is cancelled. Health probes and the socket
    /// have a thread of their own, and respond whatever the other threads do. The tasks end once the requests in
    /// progress have their responses.
    pub fn serve(self, state: HttpState, admin: Router, stop: &CancellationToken) -> JoinSet<()> {
        let Self { server, socket } = self;
        let (others, stop) = (Handle::current(), stop.clone());
        let serving = async move {
            let admin = redacted(admin, state.redactor.clone());
            let socket = OptionFuture::from(socket.map(|socket| socket.run(admin, stop.clone())));
            join(socket, server.run(state, others, stop.clone())).await;
        };
        let (ends, end) = oneshot::channel::<Infallible>();
        let run = move || {
            let _ends = ends;
            Builder::new_current_thread().enable_all().build().map(|own| own.block_on(serving))
        };
        let failed = |error| tracing::error!(%error, "HTTP: nothing is served: there is no thread for it");
        let run = move || run().unwrap_or_else(failed);
        if let Err(error) = thread::Builder::new().name("health".to_owned()).spawn(run) {
            failed(error);
        }
        let mut tasks = JoinSet::new();
        tasks.spawn(end.map(|_| ()));
        tasks
    }
}

/// A server that has taken its port, and serves once it is run.
#[derive(Debug)]
pub struct HttpServer {
    listener: TcpListener,
    address: SocketAddr,
}

impl HttpServer {
    /// Takes the port. Port 0 takes a free one; the real address is logged.
    ///
    /// # Errors
    ///
    /// If the port cannot be had; the text names the key to change.
    pub async fn bind(listen: SocketAddr) -> Result<Self, ListenError> {
        let listener = TcpListener::bind(listen).await.map_err(|source| ListenError::new(listen, source))?;
        let address = listener.local_addr().map_err(|source| ListenError::new(listen, source))?;
        tracing::info!(%address, "HTTP: listening");
        Ok(Self { listener, address })
    }

    /// The address that is listened on.
    #[must_use]
    pub const fn address(&self) -> SocketAddr {
        self.address
    }

    /// Serves until `stop` is cancelled, then lets requests in progress finish: health probes here, all other connections
    /// on the threads of `others`.
    pub async fn run(self, state: HttpState, others: Handle, stop: CancellationToken) {
        // Belongs to the thread that the port was taken on.
        let listener = match self.listener.into_std().and_then(TcpListener::from_std) {
            Ok(listener) => listener,
            Err(error) => return tracing::error!(%error, "HTTP: nothing is served: the port cannot be moved"),
        };
        let (routes, [probes, other_slots]) = (router(state), [0; 2].map(|_| Arc::new(Slots::new(Clock::SYSTEM))));
        let (entrance, handed) = Entrance::new(routes.clone(), probes, Arc::clone(&other_slots), stop.clone());
        let others = others.spawn(connections::serve(handed, other_slots, routes, stop));
        entrance.run(listener).await;
        // Its panics are those of its tasks, which it contains.
        let _ = others.await;
    }
}

/// Every route of the port, behind the check of the host.
pub(super) fn router(state: HttpState) -> Router {
    let HttpState { health, metrics, admin, console, auth, mcp, redactor } = state;
    let mcp = auth::guarded(Arc::clone(&auth), mcp);
    let open = Router::new()
        .route("/healthz", get(alive))
        .route("/livez", get(alive))
        .route("/readyz", get(ready))
        .route("/status", get(status))
        .with_state(health)
        .route("/metrics", get(scrape).with_state(metrics))
        .fallback(async || {
            (StatusCode::NOT_FOUND, "There are /healthz, /livez, /readyz, /status, /metrics, /mcp and /console.\n")
        });
    let with_admin = match admin {
        Some(admin) => open.nest("/v1", admin),
        None => open,
    };
    // The dispatcher has removed secrets from responses of the MCP server, and the console removes those of its pages.
    let console = console.unwrap_or_else(|| Router::new().fallback(async || (StatusCode::NOT_FOUND, NO_CONSOLE)));
    let all = redacted(with_admin, redactor).nest("/mcp", mcp).nest(super::console::PATH, console);
    all.layer(from_fn_with_state(auth, auth::check_host))
}

/// Responds while the process runs: a broker that is away is no reason to restart it.
async fn alive() -> impl IntoResponse {
    no_store("ok\n")
}

async fn ready(State(health): State<Arc<Health>>) -> impl IntoResponse {
    let readiness = health.readiness().public();
    let code = if readiness.ready { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE };
    (code, no_store(Json(readiness)))
}

async fn status(State(health): State<Arc<Health>>) -> impl IntoResponse {
    no_store(Json(health.status().public()))
}

async fn scrape(State(metrics): State<Option<MetricsText>>, headers: HeaderMap) -> Response {
    const OFF: &str = "Metrics are off. Set http.metrics to true, and restart the daemon.\n";
    let Some(metrics) = metrics else {
        return (StatusCode::NOT_FOUND, OFF).into_response();
    };
    let accept = headers.get(ACCEPT).and_then(|accept| accept.to_str().ok()).unwrap_or_default();
    let format = MetricsFormat::accepted(accept);
    match spawn_blocking(move || metrics.read(format)).await {
        Ok(text) => ([(CONTENT_TYPE, format.media_type())], no_store(text.to_string())).into_response(),
        // The process ends.
        Err(_) => StatusCode::SERVICE_UNAVAILABLE.into_response(),
    }
}

/// Adds `Cache-Control: no-store`.
fn no_store(response: impl IntoResponse) -> impl IntoResponse {
    ([(CACHE_CONTROL, "no-store")], response)
}

/// Removes secrets from the responses of `routes`, streams excepted.
fn redacted(routes: Router, redactor: Redactor) -> Router {
    routes.layer(map_response_with_state(redactor, redact))
}

async fn redact(State(redactor): State<Redactor>, response: Response) -> Response {
    if response.body().size_hint().exact().is_none() {
        return response;
    }
    let (mut head, body) = response.into_parts();
    let Ok(body) = to_bytes(body, MAX_REDACTED).await else {
        return StatusCode::INTERNAL_SERVER_ERROR.into_response();
    };
    match redactor.json(&body) {
        None => Response::from_parts(head, Body::from(body)),
        Some(clean) => {
            head.headers.remove(CONTENT_LENGTH);
            Response::from_parts(head, Body::from(clean))
        }
    }
}

/// Reason why there is no socket for operators, and the next step.
#[derive(Debug, thiserror::Error)]
pub enum SocketError {
    /// Another daemon has it.
    #[error(
        "another daemon answers on the socket `{}` (daemon.socket). Stop it, or set daemon.socket to another path",
        .0.display()
    )]
    InUse(PathBuf),
    /// Something else is there.
    #[error(
        "`{}` (daemon.socket) is there and is no socket. Move it away, or set daemon.socket to another path",
        .0.display()
    )]
    NoSocket(PathBuf),
    /// Another program holds the folder.
    #[error(
        "the folder of the socket `{}` (daemon.socket) is locked by another program. Try again, or set daemon.socket to \
         a path in a folder of the daemon's own",
        .0.display()
    )]
    Locked(PathBuf),
    /// Error of the system.
    #[error(
        "cannot make the socket `{}` (daemon.socket): {source}. Set daemon.socket to a short path in a folder that the \
         daemon may write to, or to \"none\"",
        .path.display()
    )]
    Other {
        /// The path of the configuration.
        path: PathBuf,
        /// Error of the system.
        source: io::Error,
    },
}

/// The Unix socket for operators, which only the daemon's own user may open.
#[derive(Debug)]
pub struct AdminSocket {
    listener: UnixListener,
    file: SocketFile,
}

/// The file of a socket; removed when dropped, as long as it is still this one.
#[derive(Debug)]
struct SocketFile {
    path: PathBuf,
    identity: (u64, u64),
}

impl AdminSocket {
    /// Takes the socket. A socket that a dead daemon left is replaced.
    ///
    /// # Errors
    ///
    /// If another daemon listens there, the path is something else than a socket, or the system refuses.
    pub async fn bind(path: &Path) -> Result<Self, SocketError> {
        let refused = |source| SocketError::Other { path: path.to_owned(), source };
        if path.as_os_str().len() > MAX_PATH {
            return Err(refused(io::Error::other(format!("the path has more than {MAX_PATH} bytes"))));
        }
        // Held until the socket is at its path: of two daemons that start at once, the second finds the first.
        let _lock = lock(path).await?;
        match std::fs::symlink_metadata(path) {
            Ok(found) if !found.file_type().is_socket() => return Err(SocketError::NoSocket(path.to_owned())),
            Ok(_) if has_listener(path).await.map_err(refused)? => return Err(SocketError::InUse(path.to_owned())),
            Ok(_) => tracing::info!(path = %path.display(), "admin: replacing the socket of a daemon that is gone"),
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => return Err(refused(error)),
        }
        let socket = Self::make(path).map_err(refused)?;
        tracing::info!(path = %path.display(), "admin: listening");
        Ok(socket)
    }

    /// Makes the socket in a folder that no other user may enter, and moves it to its path once its mode is right:
    /// there is no moment at which another user could open it.
    fn make(path: &Path) -> io::Result<Self> {
        let name: String = new_message_id().chars().take(RANDOM).collect();
        let folder = folder(path).join(format!(".{name}"));
        DirBuilder::new().mode(0o700).create(&folder)?;
        let made = || {
            let fresh = folder.join("s");
            let listener = UnixListener::bind(&fresh)?;
            let moved = std::fs::set_permissions(&fresh, Permissions::from_mode(MODE))
                .and_then(|()| std::fs::symlink_metadata(&fresh))
                .and_then(|found| std::fs::rename(&fresh, path).map(|()| identity(&found)));
            let identity = moved.inspect_err(|_| drop(std::fs::remove_file(&fresh)))?;
            Ok(Self { listener, file: SocketFile { path: path.to_owned(), identity } })
        };
        let socket = made();
        // Empty by now; if it stays, it is harmless.
        let _ = std::fs::remove_dir(&folder);
        socket
    }

    /// Serves until `stop` is cancelled, lets requests in hand finish, and removes the socket.
    pub async fn run(self, routes: Router, stop: CancellationToken) {
        let Self { listener, file } = self;
        match listener.into_std().and_then(UnixListener::from_std) {
            Ok(listener) => {
                connections::serve(listener, Arc::new(Slots::new(Clock::SYSTEM)), routes, stop).await;
            }
            Err(error) => tracing::error!(%error, "admin: nothing is served: the socket cannot be moved"),
        }
        drop(file);
    }
}

impl Drop for SocketFile {
    fn drop(&mut self) {
        if std::fs::symlink_metadata(&self.path).is_ok_and(|found| identity(&found) == self.identity) {
            let _ = std::fs::remove_file(&self.path);
        }
    }
}

/// Identity of a file, which differs from that of a later file of the same name.
fn identity(found: &Metadata) -> (u64, u64) {
    (found.dev(), found.ino())
}

/// The folder of a path; the working directory for a mere name.
fn folder(path: &Path) -> &Path {
    path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."))
}

/// Locks the folder of a socket: a lock leaves no file behind, and ends with the process that holds it.
async fn lock(path: &Path) -> Result<File, SocketError> {
    let refused = |source| SocketError::Other { path: path.to_owned(), source };
    let folder = File::open(folder(path)).map_err(refused)?;
    let started = Clock::SYSTEM.now();
    loop {
        match folder.try_lock() {
            Ok(()) => return Ok(folder),
            Err(TryLockError::WouldBlock) if Clock::SYSTEM.since(started) < LOCK_TIME => {
                tokio::time::sleep(LOCK_PAUSE).await
            }
            Err(TryLockError::WouldBlock) => return Err(SocketError::Locked(path.to_owned())),
            Err(TryLockError::Error(error)) => return Err(refused(error)),
        }
    }
}

/// Whether a process accepts connections there. A process that accepts none in time may be busy, and counts as alive.
async fn has_listener(path: &Path) -> io::Result<bool> {
    match tokio::time::timeout(CONNECT_TIME, UnixStream::connect(path)).await {
        Err(_) | Ok(Ok(_)) => Ok(true),
        Ok(Err(error)) => match error.kind() {
            io::ErrorKind::ConnectionRefused | io::ErrorKind::NotFound => Ok(false),
            io::ErrorKind::WouldBlock => Ok(true),
            _ => Err(error),
        },
    }
}

#[cfg(test)]
mod tests {
    use std::io::{Read as _, Write as _};

    use tokio::sync::watch;
    use toolbus_core::bus::BusState;
    use toolbus_core::registry::Registry;

    use super::*;
    use crate::http::tests::{http_state, sources};

    #[tokio::test]
    async fn a_probe_is_answered_while_the_thread_of_everything_else_is_blocked() {
        let server = HttpServer::bind(SocketAddr::from(([127, 0, 0, 1], 0))).await.unwrap();
        let (address, stop) = (server.address(), CancellationToken::new());
        let health = Arc::new(Health::new(sources(watch::channel(BusState::default()).1, Registry::new())));
        let mut serving = Listeners { server, socket: None }.serve(http_state(health), Router::new(), &stop);
        // Blocks the only thread of this runtime.
        let mut stream = std::net::TcpStream::connect(address).unwrap();
        stream.write_all(b"GET /livez HTTP/1.1\r\nHost: localhost\r\n\r\n").unwrap();
        let mut response = String::new();
        stream.read_to_string(&mut response).unwrap();
        assert!(response.starts_with("HTTP/1.1 200 OK") && response.ends_with("ok\n"), "{response}");
        stop.cancel();
        serving.join_next().await.unwrap().unwrap();
    }

    fn mode(path: &Path) -> u32 {
        std::fs::symlink_metadata(path).unwrap().permissions().mode() & 0o777
    }

    fn names(folder: &Path) -> Vec<String> {
        let names = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().file_name());
        names.map(|name| name.into_string().unwrap()).collect()
    }

    #[tokio::test]
    async fn the_socket_is_the_users_own_and_goes_with_the_server() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("toolbus.sock");
        let socket = AdminSocket::bind(&path).await.unwrap();
        assert_eq!((mode(&path), names(folder.path())), (MODE, vec!["toolbus.sock".to_owned()]));
        let stop = CancellationToken::new();
        stop.cancel();
        socket.run(Router::new(), stop).await;
        assert!(names(folder.path()).is_empty());
    }

    #[tokio::test]
    async fn a_socket_that_a_dead_daemon_left_is_replaced() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("s");
        drop(std::os::unix::net::UnixListener::bind(&path).unwrap());
        let socket = AdminSocket::bind(&path).await.unwrap();
        assert!(UnixStream::connect(&path).await.is_ok());
        assert_eq!(mode(&path), MODE);
        drop(socket);
    }

    #[tokio::test]
    async fn a_socket_with_a_listener_is_left_alone() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("s");
        let first = AdminSocket::bind(&path).await.unwrap();
        let error = AdminSocket::bind(&path).await.unwrap_err();
        assert!(matches!(error, SocketError::InUse(_)) && error.to_string().contains("daemon.socket"), "{error}");
        assert!(UnixStream::connect(&path).await.is_ok());
        drop(first);
    }

    #[tokio::test]
    async fn one_of_several_daemons_that_start_at_once_gets_the_socket_of_a_dead_one() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("s");
        drop(std::os::unix::net::UnixListener::bind(&path).unwrap());
        let (a, b, c) = tokio::join!(AdminSocket::bind(&path), AdminSocket::bind(&path), AdminSocket::bind(&path));
        assert_eq!([a, b, c].iter().filter(|bound| bound.is_ok()).count(), 1);
    }

    #[tokio::test]
    async fn files_that_are_no_socket_are_left_alone() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("notes.txt");
        std::fs::write(&path, "mine").unwrap();
        let link = folder.path().join("link");
        std::os::unix::fs::symlink(&path, &link).unwrap();
        for path in [&path, &link] {
            let error = AdminSocket::bind(path).await.unwrap_err();
            assert!(matches!(error, SocketError::NoSocket(_)), "{error}");
        }
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "mine");
    }

    #[tokio::test]
    async fn a_server_removes_no_socket_but_its_own() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("s");
        let socket = AdminSocket::bind(&path).await.unwrap();
        // Kept aside, so that its number is not given to the next file.
        std::fs::rename(&path, folder.path().join("aside")).unwrap();
        let other = AdminSocket::bind(&path).await.unwrap();
        drop(socket);
        assert!(UnixStream::connect(&path).await.is_ok());
        drop(other);
    }

    #[tokio::test]
    async fn an_impossible_path_is_reported_with_the_key_to_change() {
        let folder = tempfile::tempdir().unwrap();
        for path in [folder.path().join("absent/s"), folder.path().join("x".repeat(200))] {
            let error = AdminSocket::bind(&path).await.unwrap_err();
            assert!(
                matches!(error, SocketError::Other { .. }) && error.to_string().contains("daemon.socket"),
                "{error}"
            );
        }
        assert!(names(folder.path()).is_empty());
    }
}
