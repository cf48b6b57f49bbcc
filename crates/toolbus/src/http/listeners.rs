//! Everything that listens for operators: taken before the daemon starts, served once it runs.

use std::sync::Arc;

use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;
use toolbus_core::Gates;
use toolbus_core::policy::PolicyHandle;
use toolbus_core::redact::Redactor;
use toolbus_core::store::Store;
use toolbus_mcp_server::Door;
use toolbus_trust::pins::Pins;

use super::admin::{self, Admin, AdminSocket, DaemonAdmin, LoadError, McpAdmin, SocketError, Switches};
use super::redacted::redacted;
use super::{Entrance, Health, HttpError, HttpServer, Site};
use crate::config::Config;

/// The port and the socket, and what was switched off when the daemon last ran.
pub struct Doors {
    server: HttpServer,
    socket: Option<AdminSocket>,
    switches: Switches,
}

/// What is behind the doors.
pub struct Behind {
    /// How the daemon is.
    pub health: Arc<Health>,
    /// The daemon as a whole, for operators.
    pub daemon: DaemonAdmin,
    /// The gates that calls pass.
    pub gates: Arc<Gates>,
    /// MCP servers.
    pub servers: Arc<dyn McpAdmin>,
    /// What is pinned.
    pub pins: Pins,
    /// Who may enter the MCP door.
    pub entrance: Arc<Entrance>,
    /// The MCP door.
    pub door: Door,
    /// Removes secrets from what operators are told.
    pub redactor: Redactor,
}

/// Why an operator could not be answered, so that the daemon does not start.
#[derive(Debug, thiserror::Error)]
pub enum DoorsError {
    /// The port.
    #[error(transparent)]
    Http(#[from] HttpError),
    /// The socket.
    #[error(transparent)]
    Socket(#[from] SocketError),
    /// What is switched off.
    #[error(transparent)]
    Switches(#[from] LoadError),
}

impl Doors {
    /// Takes port and socket, and switches off what was off: to be called before `access` lets the first call pass.
    ///
    /// # Errors
    ///
    /// When one cannot be had, or it is not known what was switched off.
    pub async fn open(config: &Config, access: &PolicyHandle, store: Arc<dyn Store>) -> Result<Self, DoorsError> {
        let switches = Switches::load(store, access).await?;
        let server = HttpServer::bind(config.http.listen).await?;
        let socket = match &config.daemon.socket {
            Some(path) => Some(AdminSocket::bind(path).await?),
            None => None,
        };
        Ok(Self { server, socket, switches })
    }

    /// Serves until `stop` is cancelled; the tasks end once the requests in hand are answered.
    #[must_use]
    pub fn serve(self, config: &Config, behind: Behind, stop: &CancellationToken) -> JoinSet<()> {
        let Behind { health, daemon, gates, servers, pins, entrance, door, redactor } = behind;
        let admin = Arc::new(Admin::new(gates, self.switches).with_pins(pins).with_daemon(daemon));
        let token = config.http.admin_token.as_ref();
        let over_http = token.map(|token| admin::guarded(Arc::clone(&admin), Arc::clone(&servers), token.reveal()));
        let mut tasks = JoinSet::new();
        let site = Site {
            health,
            admin: over_http,
            entrance,
            door: toolbus_mcp_server::router(door.clone()),
            redactor: redactor.clone(),
        };
        tasks.spawn(door.run());
        tasks.spawn(self.server.run(site, stop.clone()));
        if let Some(socket) = self.socket {
            tasks.spawn(socket.run(redacted(admin::open(admin, servers), redactor), stop.clone()));
        }
        tasks
    }
}
