//! Switches that operators have turned off, kept in the store, and shared by the daemons that share a store.

use std::collections::BTreeSet;
use std::sync::Arc;

use tokio::sync::Mutex;
use toolbus_core::policy::{PolicyHandle, Switch, SwitchError};
use toolbus_core::store::{Store, StoreError};

use super::view::ApiError;

/// The store's namespace of switches that are off: keys without values, as `kind/name`.
pub const NAMESPACE: &str = "disabled";

/// Keeps switches over restarts.
pub struct SwitchStore {
    store: Option<Arc<dyn Store>>,
    /// Whether other daemons use it, and this one follows it.
    is_shared: bool,
    /// Switches that are off and could not be stored. The lock lets one change run at a time, so that store and daemon
    /// cannot end up with different ones.
    changing: Mutex<BTreeSet<Switch>>,
}

/// Reason why the switches cannot be read; the daemon must run no calls then, as one of them may be switched off.
#[derive(Debug, thiserror::Error)]
pub enum LoadError {
    /// The store cannot be read.
    #[error("[store] what is switched off cannot be read: {0}")]
    Store(#[from] StoreError),
    /// The store holds something else.
    #[error("[store] `{key}` in `disabled` is no switch: {error}")]
    Unreadable {
        /// The key.
        key: String,
        /// Reason why the key is no switch.
        error: SwitchError,
    },
}

impl SwitchStore {
    /// Keeps switches in `store`, which other daemons may share. Nothing is read yet.
    #[must_use]
    pub fn new(store: Arc<dyn Store>, is_shared: bool) -> Self {
        Self { store: Some(store), is_shared, changing: Mutex::default() }
    }

    /// Keeps nothing.
    #[must_use]
    pub fn unkept() -> Self {
        Self { store: None, is_shared: false, changing: Mutex::default() }
    }

    /// Whether other daemons may change the store.
    pub(crate) const fn is_shared(&self) -> bool {
        self.is_shared
    }

    /// Applies the switches of the store, which other daemons may have changed. First stores those that could not be
    /// stored before.
    ///
    /// # Errors
    ///
    /// If the store cannot be used, or has an unreadable entry: then the others are off, and nothing is switched on.
    pub async fn follow(&self, policy: &PolicyHandle) -> Result<(), LoadError> {
        let mut unstored = self.changing.lock().await;
        let Some(store) = &self.store else { return Ok(()) };
        while let Some(switch) = unstored.first().cloned() {
            store.put(NAMESPACE, &key(&switch), Vec::new()).await?;
            unstored.remove(&switch);
        }
        let (mut off, mut refused) = (BTreeSet::new(), Ok(()));
        for key in store.list(NAMESPACE).await? {
            let (kind, name) = key.split_once('/').unwrap_or((&key, ""));
            match Switch::new(kind, name) {
                Ok(switch) => drop(off.insert(switch)),
                Err(error) => refused = Err(LoadError::Unreadable { key, error }),
            }
        }
        if refused.is_ok() {
            for switch in policy.disabled().iter().filter(|switch| !off.contains(switch)) {
                policy.enable(switch);
            }
        }
        for switch in off {
            let key = key(&switch);
            if let Err(error) = policy.disable(switch) {
                refused = Err(LoadError::Unreadable { key, error });
            }
        }
        refused
    }

    /// Whether something is off that could not be stored yet.
    pub async fn has_unstored(&self) -> bool {
        !self.changing.lock().await.is_empty()
    }

    /// Writes the switches of this daemon into a store that has lost them.
    ///
    /// # Errors
    ///
    /// If the store cannot be written.
    pub async fn write_again(&self, policy: &PolicyHandle) -> Result<(), StoreError> {
        let _one_at_a_time = self.changing.lock().await;
        let Some(store) = &self.store else { return Ok(()) };
        for switch in policy.disabled() {
            store.put(NAMESPACE, &key(&switch), Vec::new()).await?;
        }
        Ok(())
    }

    /// SwitchStore something off or on again; whether that changed anything. Where one half fails, it is off.
    pub(super) async fn set(&self, policy: &PolicyHandle, switch: &Switch, off: bool) -> Result<bool, ApiError> {
        let mut unstored = self.changing.lock().await;
        if off {
            let changed = policy.disable(switch.clone()).map_err(ApiError::conflict)?;
            // The switch counts as unstored before it is written: if the client closes its connection during the write,
            // the server drops this future, and `follow` must not enable the tool again.
            unstored.insert(switch.clone());
            if let Err(error) = self.keep(switch).await {
                let but = match self.is_shared {
                    true => "in this daemon, and will be in the others when the store is there again",
                    false => "now, but will be on after a restart",
                };
                return Err(ApiError::internal(format!("{switch} is off {but}: {error}")));
            }
            unstored.remove(switch);
            Ok(changed)
        } else {
            self.forget(switch).await.map_err(|error| ApiError::internal(format!("{switch} is still off: {error}")))?;
            unstored.remove(switch);
            Ok(policy.enable(switch))
        }
    }

    async fn keep(&self, switch: &Switch) -> Result<(), StoreError> {
        match &self.store {
            Some(store) => store.put(NAMESPACE, &key(switch), Vec::new()).await,
            None => Ok(()),
        }
    }

    async fn forget(&self, switch: &Switch) -> Result<(), StoreError> {
        match &self.store {
            Some(store) => store.delete(NAMESPACE, &key(switch)).await.map(drop),
            None => Ok(()),
        }
    }
}

fn key(switch: &Switch) -> String {
    format!("{}/{}", switch.kind(), switch.name())
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt as _;
    use toolbus_core::caller::Identity;
    use toolbus_core::policy::{Capacity, Policy};
    use toolbus_core::registry::Registry;
    use toolbus_store::MemoryStore;
    use toolbus_testing::faulty_store::{FaultyStore, StoreFault};

    use super::*;

    /// A store that cannot be reached yet.
    fn away() -> Arc<FaultyStore<MemoryStore>> {
        let store = FaultyStore::default();
        store.set(StoreFault::Away);
        Arc::new(store)
    }

    fn policy() -> PolicyHandle {
        let capacity = Capacity { max_in_flight: 1, max_waiting: 1 };
        PolicyHandle::new(Registry::new(), Identity::default(), Policy::default(), capacity)
    }

    fn tool(name: &str) -> Switch {
        Switch::new("tool", name).unwrap()
    }

    #[tokio::test]
    async fn stored_switches_are_restored() {
        let store: Arc<dyn Store> = Arc::new(MemoryStore::default());
        let first = policy();
        let switches = SwitchStore::new(Arc::clone(&store), false);
        for name in ["a/b c", "echo"] {
            assert!(switches.set(&first, &tool(name), true).await.unwrap());
        }
        assert!(switches.set(&first, &tool("echo"), false).await.unwrap());
        let second = policy();
        SwitchStore::new(store, false).follow(&second).await.unwrap();
        assert_eq!(second.disabled(), [tool("a/b c")]);
    }

    #[tokio::test]
    async fn a_store_that_holds_something_else_stops_the_start() {
        let store: Arc<dyn Store> = Arc::new(MemoryStore::default());
        for key in ["everything", "tool/echo"] {
            store.put(NAMESPACE, key, Vec::new()).await.unwrap();
        }
        let policy = policy();
        policy.disable(tool("pay")).unwrap();
        let error = SwitchStore::new(store, false).follow(&policy).await.err().unwrap();
        assert!(matches!(error, LoadError::Unreadable { .. }), "{error}");
        assert_eq!(policy.disabled(), [tool("echo"), tool("pay")], "in doubt, tools are off");
        assert!(matches!(SwitchStore::new(away(), false).follow(&policy).await, Err(LoadError::Store(_))));
    }

    #[tokio::test]
    async fn a_switch_that_cannot_be_stored_is_off_all_the_same() {
        let of_replicas = SwitchStore::new(away(), true).set(&policy(), &tool("echo"), true).await;
        insta::assert_snapshot!(of_replicas.unwrap_err(), @"tool echo is off in this daemon, and will be in the others when the store is there again: the store failed: it is away");
        let policy = policy();
        let switches = SwitchStore::new(away(), false);
        let error = switches.set(&policy, &tool("echo"), true).await.unwrap_err();
        assert_eq!((policy.disabled(), switches.has_unstored().await), (vec![tool("echo")], true));
        insta::assert_snapshot!(error, @"tool echo is off now, but will be on after a restart: the store failed: it is away");
        assert!(switches.set(&policy, &tool("echo"), false).await.is_err());
        assert_eq!(policy.disabled(), [tool("echo")]);
    }

    #[tokio::test]
    async fn unstored_switches_are_stored_when_the_store_is_back() {
        let (store, policy) = (away(), policy());
        let switches = SwitchStore::new(store.clone(), true);
        for name in ["echo", "time"] {
            assert!(switches.set(&policy, &tool(name), true).await.is_err());
        }
        assert!(switches.follow(&policy).await.is_err());
        assert!(switches.has_unstored().await);
        assert_eq!(policy.disabled(), [tool("echo"), tool("time")]);
        store.set(None);
        assert!(switches.set(&policy, &tool("time"), false).await.unwrap());
        switches.follow(&policy).await.unwrap();
        assert!(!switches.has_unstored().await);
        assert_eq!(store.kept.list(NAMESPACE).await.unwrap(), ["tool/echo"]);
        assert_eq!(policy.disabled(), [tool("echo")]);
    }

    /// Otherwise the tool would be on again once the store is there, although its operator saw it off.
    #[tokio::test]
    async fn a_switch_is_stored_after_its_operator_has_disconnected() {
        let (store, policy) = (away(), policy());
        let switches = SwitchStore::new(store.clone(), true);
        store.set(StoreFault::Silent);
        let switch = tool("pay");
        assert!(switches.set(&policy, &switch, true).now_or_never().is_none());
        store.set(None);
        switches.follow(&policy).await.unwrap();
        assert_eq!(
            (policy.disabled(), store.kept.list(NAMESPACE).await.unwrap()),
            (vec![switch], vec!["tool/pay".to_owned()])
        );
    }

    #[tokio::test]
    async fn switches_of_another_daemon_are_taken_over() {
        let store: Arc<dyn Store> = Arc::new(MemoryStore::default());
        let [(one, first), (other, second)] = [(); 2].map(|()| (SwitchStore::new(Arc::clone(&store), true), policy()));
        assert!(one.set(&first, &tool("echo"), true).await.unwrap());
        assert!(other.set(&second, &tool("time"), true).await.unwrap());
        other.follow(&second).await.unwrap();
        assert_eq!(second.disabled(), [tool("echo"), tool("time")]);
        assert!(other.set(&second, &tool("echo"), false).await.unwrap());
        one.follow(&first).await.unwrap();
        assert_eq!(first.disabled(), [tool("time")]);
    }

    #[tokio::test]
    async fn an_unreadable_store_switches_nothing_on_and_an_emptied_one_gets_the_switches_again() {
        let policy = policy();
        policy.disable(tool("echo")).unwrap();
        assert!(SwitchStore::new(away(), false).follow(&policy).await.is_err());
        assert_eq!(policy.disabled(), [tool("echo")]);
        let empty: Arc<dyn Store> = Arc::new(MemoryStore::default());
        let switches = SwitchStore::new(Arc::clone(&empty), true);
        switches.write_again(&policy).await.unwrap();
        switches.follow(&policy).await.unwrap();
        assert_eq!(policy.disabled(), [tool("echo")]);
        assert_eq!(empty.list(NAMESPACE).await.unwrap(), ["tool/echo"]);
    }
}
