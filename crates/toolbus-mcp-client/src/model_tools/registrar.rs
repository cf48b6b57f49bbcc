//! Servers that callers add and remove.
//!
//! What is registered is in the store, and nowhere else: so it holds until it is unregistered, and every change is of
//! one name at a time.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Instant;

use parking_lot::{Mutex, MutexGuard};
use serde::{Deserialize, Serialize};
use tokio_util::sync::CancellationToken;
use toolbus_core::Clock;
use toolbus_core::caller::Caller;
use toolbus_core::store::{Store, StoreError};
use toolbus_core::text::{excerpt, shown};
use tracing::Instrument;

use super::rules::{RegisteredTransport, RegistrationRules, RuleViolation};
use crate::servers::ServerControl;
use crate::spec::{ServerName, ServerOrigin, ServerSpec};

const NAMESPACE: &str = Registrar::NAMESPACE;
/// Most servers that are registered.
const MAX_SERVERS: usize = 50;
/// Most servers that one agent has registered, or all callers together that the policy has no section for.
const MAX_PER_AGENT: usize = 10;
/// Longest text of a server that is repeated, in characters.
const MAX_REASON: usize = 300;

/// Registers servers for callers.
pub struct Registrar {
    rules: RegistrationRules,
    store: Arc<dyn Store>,
    /// Whether the store outlives the process.
    is_lasting: bool,
    servers: Arc<dyn ServerControl>,
    pub(super) clock: Clock,
    /// Held while it is decided whether a change may begin.
    deciding: tokio::sync::Mutex<()>,
    /// The names that are being changed, and by whom.
    changing: Mutex<BTreeMap<Arc<str>, RegistrationOwner>>,
    /// The records that were taken over from the store or put there, by the names in lower case.
    known: Mutex<BTreeMap<String, Vec<u8>>>,
}

/// Reason why a server was not registered or unregistered. The texts are for callers.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum RegistrationRefusal {
    #[error("a name has 1 to 64 letters, digits, `.`, `_` and `-`, and is not `management`")]
    Name,
    #[error("{0}")]
    Rules(#[from] RuleViolation),
    #[error("the name is taken; choose another")]
    Taken,
    #[error("another change of this server is under way; try again when it has ended")]
    Busy,
    #[error("no more than {MAX_SERVERS} servers can be registered; an operator can remove one")]
    Full,
    #[error("no more than {MAX_PER_AGENT} servers can be registered by one agent; unregister one of yours first")]
    TooMany,
    #[error("{0}")]
    Server(String),
    #[error("it cannot be stored now; try again later")]
    Store,
    #[error("the call was given up")]
    GivenUp,
    #[error("you have registered no server of this name")]
    NotYours,
}

/// A name that is being changed, until this is dropped.
struct NameClaim {
    registrar: Arc<Registrar>,
    name: Arc<str>,
}

impl Registrar {
    /// Namespace of registered servers in the store: records by the names in lower case.
    pub const NAMESPACE: &str = "mcp.registered";

    /// Creates a registrar with these rules. `is_lasting` is whether the store outlives the process.
    #[must_use]
    pub fn new(
        rules: RegistrationRules,
        store: Arc<dyn Store>,
        is_lasting: bool,
        servers: Arc<dyn ServerControl>,
        clock: Clock,
    ) -> Self {
        let (deciding, changing, known) = Default::default();
        Self { rules, store, is_lasting, servers, clock, deciding, changing, known }
    }

    /// Lifetime of a registration, as text for the caller.
    pub(super) const fn lasting(&self) -> &'static str {
        match self.is_lasting {
            true => "It stays until you unregister it, also when the daemon restarts.",
            false => "It is gone when the daemon ends: register it again then.",
        }
    }

    /// Everything that was registered, to start it again. What the rules do not allow any more is forgotten.
    pub async fn restore(&self) -> Vec<ServerSpec> {
        let keys = self.store.list(NAMESPACE).await.unwrap_or_else(|error| {
            tracing::error!(%error, "could not read which MCP servers were registered");
            Vec::new()
        });
        let mut specs = Vec::new();
        for key in keys {
            let Ok(Some(stored)) = self.store.get(NAMESPACE, &key).await else { continue };
            match self.restored(&key, &stored) {
                Ok(spec) => specs.push(spec),
                Err(reason) => {
                    tracing::warn!(server = shown(&key), reason, "forgot a registered MCP server");
                    if let Err(error) = self.store.delete(NAMESPACE, &key).await {
                        tracing::error!(%error, "could not forget a registered MCP server");
                    }
                }
            }
        }
        specs
    }

    /// Applies changes of other daemons in the store: starts the servers that they have registered, and removes those
    /// that they have unregistered. Servers that the rules do not allow are left out. Returns false if a server is
    /// being changed here, so that the store has to be read again.
    ///
    /// # Errors
    ///
    /// If the store cannot be read. Nothing is removed then.
    pub async fn follow(&self) -> Result<bool, StoreError> {
        // No change begins meanwhile; servers with changes under way are skipped.
        let _one_at_a_time = self.deciding.lock().await;
        let busy: Vec<Arc<str>> = self.changing().keys().cloned().collect();
        let is_busy = |key: &str| busy.iter().any(|name| **name == *key);
        let mut stored = BTreeMap::new();
        for key in self.store.list(NAMESPACE).await? {
            if let Some(record) = self.store.get(NAMESPACE, &key).await? {
                stored.insert(key, record);
            }
        }
        stored.retain(|key, _| !is_busy(key));
        let mut known = self.known.lock().clone();
        known.retain(|key, _| !is_busy(key));
        for (key, record) in &stored {
            if known.remove(key).is_some_and(|before| before == *record) {
                continue;
            }
            match self.restored(key, record) {
                // It connects in its own time.
                Ok(spec) => drop(self.servers.add(spec, self.clock.now()).await),
                Err(reason) => {
                    tracing::warn!(server = shown(key), reason, "left out an MCP server that was registered elsewhere");
                    self.remove_named(key).await;
                }
            }
        }
        for key in known.keys() {
            self.remove_named(key).await;
        }
        let mut known = self.known.lock();
        known.retain(|key, _| is_busy(key));
        known.extend(stored);
        Ok(busy.is_empty())
    }

    /// Writes the servers that are registered here into a store that has lost them.
    ///
    /// # Errors
    ///
    /// If the store cannot be written.
    pub async fn write_again(&self) -> Result<(), StoreError> {
        let _one_at_a_time = self.deciding.lock().await;
        let known = self.known.lock().clone();
        for (key, record) in known {
            self.store.replace(NAMESPACE, &key, None, record).await?;
        }
        Ok(())
    }

    fn restored(&self, key: &str, stored: &[u8]) -> Result<ServerSpec, String> {
        let record = RegistrationRecord::parse(stored).ok_or("its record cannot be read")?;
        let spec = record.spec(&self.rules).map_err(|refusal| refusal.to_string())?;
        if **spec.name.folded() != *key {
            return Err("its record is of another name".to_owned());
        }
        match self.servers.origin(key) {
            Some(ServerOrigin::Configuration) => Err("a server of its name is configured".to_owned()),
            Some(ServerOrigin::Registration) | None => Ok(spec),
        }
    }

    /// Registers a server and waits until it is connected, at most until `latest`; gives the number of its tools. On
    /// failure everything is as before.
    pub(super) async fn register(
        self: &Arc<Self>,
        caller: &Caller,
        name: &str,
        target: RegisteredTransport,
        latest: Instant,
        given_up: CancellationToken,
    ) -> Result<usize, RegistrationRefusal> {
        let time = self.clock.since_epoch().as_secs();
        let record = RegistrationRecord { server: name.to_owned(), target, owner: RegistrationOwner::of(caller), time };
        let spec = record.spec(&self.rules)?;
        let registrar = Arc::clone(self);
        finished(async move { registrar.put(record, spec, latest, given_up).await }).await
    }

    /// Removes a server that this caller has registered.
    pub(super) async fn unregister(self: &Arc<Self>, caller: &Caller, name: &str) -> Result<(), RegistrationRefusal> {
        let name = ServerName::parse(name).map_err(|_| RegistrationRefusal::NotYours)?;
        let owner = RegistrationOwner::of(caller);
        let registrar = Arc::clone(self);
        finished(async move { registrar.take_away(&name, &owner).await }).await
    }

    async fn put(
        self: Arc<Self>,
        record: RegistrationRecord,
        spec: ServerSpec,
        latest: Instant,
        given_up: CancellationToken,
    ) -> Result<usize, RegistrationRefusal> {
        let name = spec.name.clone();
        let (_claim, previous) = self.may_register(&name, &record.owner).await?;
        let added = tokio::select! {
            biased;
            () = given_up.cancelled() => Err(RegistrationRefusal::GivenUp),
            added = self.servers.add(spec, latest) => added.map_err(|reason| RegistrationRefusal::Server(excerpt(&reason, MAX_REASON))),
        };
        let kept = match added {
            Ok(tools) => self.keep(&name, &record, previous.as_deref()).await.map(|()| tools.len()),
            Err(refusal) => Err(refusal),
        };
        match &kept {
            Ok(tools) => {
                tracing::info!(server = %name, agent = shown(&record.owner.name), tools, "registered an MCP server")
            }
            Err(_) => self.undo(&name, previous).await,
        }
        kept
    }

    async fn take_away(
        self: Arc<Self>,
        name: &ServerName,
        owner: &RegistrationOwner,
    ) -> Result<(), RegistrationRefusal> {
        let _claim = {
            let _one_at_a_time = self.deciding.lock().await;
            let record = self.stored(name.folded()).await?.and_then(|stored| RegistrationRecord::parse(&stored));
            record.filter(|record| record.owner.name == owner.name).ok_or(RegistrationRefusal::NotYours)?;
            self.claim(name, owner)?
        };
        self.store.delete(NAMESPACE, name.folded()).await.map_err(not_stored)?;
        self.known.lock().remove(&**name.folded());
        self.remove(name).await;
        tracing::info!(server = %name, agent = shown(&owner.name), "unregistered an MCP server");
        Ok(())
    }

    /// Whether the owner may register this name now; with the record of what it has registered by that name before.
    async fn may_register(
        self: &Arc<Self>,
        name: &ServerName,
        owner: &RegistrationOwner,
    ) -> Result<(NameClaim, Option<Vec<u8>>), RegistrationRefusal> {
        let _one_at_a_time = self.deciding.lock().await;
        // The reply does not depend on the owner of the name, or on whether the caller may see it.
        let mut owners = self.owners().await?;
        let is_taken = match (owners.get(name.folded()), self.servers.origin(name.as_str())) {
            (_, Some(ServerOrigin::Configuration)) => true,
            (Some(known), _) => known.name != owner.name,
            (None, origin) => origin.is_some(),
        };
        if is_taken {
            return Err(RegistrationRefusal::Taken);
        }
        let claim = self.claim(name, owner)?;
        owners.remove(name.folded());
        if owners.len() >= MAX_SERVERS {
            return Err(RegistrationRefusal::Full);
        }
        if owners.values().filter(|known| known.share == owner.share).count() >= MAX_PER_AGENT {
            return Err(RegistrationRefusal::TooMany);
        }
        let previous = self.stored(name.folded()).await?;
        // Another daemon may have been faster since.
        let is_foreign =
            |stored: &Vec<u8>| RegistrationRecord::parse(stored).is_some_and(|known| known.owner.name != owner.name);
        if previous.as_ref().is_some_and(is_foreign) { Err(RegistrationRefusal::Taken) } else { Ok((claim, previous)) }
    }

    /// The owners of names: registered ones, and those being registered.
    async fn owners(&self) -> Result<BTreeMap<Arc<str>, RegistrationOwner>, RegistrationRefusal> {
        let mut owners = BTreeMap::new();
        for key in self.store.list(NAMESPACE).await.map_err(not_stored)? {
            if let Some(record) = self.stored(&key).await?.and_then(|stored| RegistrationRecord::parse(&stored)) {
                owners.insert(key.into(), record.owner);
            }
        }
        owners.extend(self.changing().iter().map(|(name, owner)| (Arc::clone(name), owner.clone())));
        Ok(owners)
    }

    async fn stored(&self, key: &str) -> Result<Option<Vec<u8>>, RegistrationRefusal> {
        self.store.get(NAMESPACE, key).await.map_err(not_stored)
    }

    /// Stores a record unless another daemon has stored one meanwhile; on a failure, the previous record is restored
    /// as far as possible.
    async fn keep(
        &self,
        name: &ServerName,
        record: &RegistrationRecord,
        previous: Option<&[u8]>,
    ) -> Result<(), RegistrationRefusal> {
        let bytes = record.to_bytes();
        let error = match self.store.replace(NAMESPACE, name.folded(), previous, bytes.clone()).await {
            Ok(true) => {
                self.known.lock().insert(name.folded().to_string(), bytes);
                return Ok(());
            }
            Ok(false) => return Err(RegistrationRefusal::Busy),
            Err(error) => error,
        };
        let undone = match previous {
            Some(previous) => {
                self.store.replace(NAMESPACE, name.folded(), Some(&bytes), previous.to_vec()).await.map(drop)
            }
            None => self.store.delete(NAMESPACE, name.folded()).await.map(drop),
        };
        if let Err(error) = undone {
            tracing::error!(server = %name, %error, "a registered MCP server may be in the store or not");
        }
        Err(not_stored(error))
    }

    async fn undo(&self, name: &ServerName, previous: Option<Vec<u8>>) {
        let previous = previous.and_then(|stored| RegistrationRecord::parse(&stored)?.spec(&self.rules).ok());
        match previous {
            // It connects in its own time.
            Some(spec) => drop(self.servers.add(spec, self.clock.now()).await),
            None => self.remove(name).await,
        }
    }

    /// Removes a server, unless an operator has configured one of its name meanwhile.
    async fn remove(&self, name: &ServerName) {
        if self.servers.origin(name.as_str()) == Some(ServerOrigin::Registration) {
            self.servers.remove(name).await;
        }
    }

    async fn remove_named(&self, key: &str) {
        if let Ok(name) = ServerName::parse(key) {
            self.remove(&name).await;
        }
    }

    fn claim(self: &Arc<Self>, name: &ServerName, owner: &RegistrationOwner) -> Result<NameClaim, RegistrationRefusal> {
        let mut changing = self.changing();
        if changing.contains_key(name.folded()) {
            return Err(RegistrationRefusal::Busy);
        }
        changing.insert(Arc::clone(name.folded()), owner.clone());
        Ok(NameClaim { registrar: Arc::clone(self), name: Arc::clone(name.folded()) })
    }

    fn changing(&self) -> MutexGuard<'_, BTreeMap<Arc<str>, RegistrationOwner>> {
        self.changing.lock()
    }
}

impl Drop for NameClaim {
    fn drop(&mut self) {
        self.registrar.changing().remove(&self.name);
    }
}

/// Makes a change in a task of its own: what was begun is kept or undone, also where the caller is gone meanwhile.
#[expect(clippy::disallowed_methods, reason = "awaited here; without the caller it ends by itself")]
async fn finished<T: Send + 'static>(
    change: impl Future<Output = Result<T, RegistrationRefusal>> + Send + 'static,
) -> Result<T, RegistrationRefusal> {
    tokio::spawn(change.in_current_span()).await.unwrap_or(Err(RegistrationRefusal::GivenUp))
}

fn not_stored(error: StoreError) -> RegistrationRefusal {
    tracing::error!(%error, "could not keep which MCP servers are registered");
    RegistrationRefusal::Store
}

/// The share of all callers that the policy has no section for. No name of an agent has a colon.
const NO_SECTION: &str = ":everybody";

/// One registered server.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct RegistrationRecord {
    server: String,
    #[serde(flatten)]
    target: RegisteredTransport,
    #[serde(flatten)]
    owner: RegistrationOwner,
    /// Seconds since 1970.
    time: u64,
}

/// The caller that registered a server.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct RegistrationOwner {
    /// The unique owner key of the caller.
    #[serde(rename = "agent")]
    name: Arc<str>,
    /// The quota that the server counts against.
    share: Arc<str>,
}

impl RegistrationOwner {
    fn of(caller: &Caller) -> Self {
        let share = if caller.has_section { Arc::clone(&caller.owner) } else { NO_SECTION.into() };
        Self { name: Arc::clone(&caller.owner), share }
    }
}

impl RegistrationRecord {
    fn parse(stored: &[u8]) -> Option<Self> {
        serde_json::from_slice(stored).ok()
    }

    fn to_bytes(&self) -> Vec<u8> {
        // Strings and a number under string keys always serialise.
        serde_json::to_vec(self).unwrap_or_default()
    }

    /// The server, if the rules allow it.
    fn spec(&self, rules: &RegistrationRules) -> Result<ServerSpec, RegistrationRefusal> {
        let name = ServerName::parse(&self.server).map_err(|_| RegistrationRefusal::Name)?;
        // Narrower than configured names, so that no two names look alike.
        if !self.server.bytes().all(|c| c.is_ascii_alphanumeric() || matches!(c, b'.' | b'_' | b'-')) {
            return Err(RegistrationRefusal::Name);
        }
        Ok(ServerSpec::new(name, rules.transport(&self.target)?, ServerOrigin::Registration))
    }
}
