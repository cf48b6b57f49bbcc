use futures_util::FutureExt as _;
use futures_util::future::BoxFuture;
use toolbus_core::caller::Identity;
use toolbus_core::policy::{Capacity, Policy};
use toolbus_core::registry::Registry;
use toolbus_store::Memory;

use super::*;

fn access() -> PolicyHandle {
    let capacity = Capacity { max_in_flight: 1, max_waiting: 1 };
    PolicyHandle::new(Registry::new(), Identity::default(), Policy::default(), capacity)
}

fn tool(name: &str) -> Switch {
    Switch::new("tool", name).unwrap()
}

/// A store that has lost its medium.
struct Broken;

impl Broken {
    fn fails<T: Send + 'static>() -> BoxFuture<'static, Result<T, StoreError>> {
        async { Err(StoreError::Failed("the disk is full".to_owned())) }.boxed()
    }
}

impl Store for Broken {
    fn get<'a>(&'a self, _: &'a str, _: &'a str) -> BoxFuture<'a, Result<Option<Vec<u8>>, StoreError>> {
        Self::fails()
    }

    fn put<'a>(&'a self, _: &'a str, _: &'a str, _: Vec<u8>) -> BoxFuture<'a, Result<(), StoreError>> {
        Self::fails()
    }

    fn delete<'a>(&'a self, _: &'a str, _: &'a str) -> BoxFuture<'a, Result<bool, StoreError>> {
        Self::fails()
    }

    fn list<'a>(&'a self, _: &'a str) -> BoxFuture<'a, Result<Vec<String>, StoreError>> {
        Self::fails()
    }
}

#[tokio::test]
async fn what_was_off_is_off_again_and_what_was_on_again_is_on() {
    let store: Arc<dyn Store> = Arc::new(Memory::default());
    let first = access();
    let switches = SwitchStore::load(Arc::clone(&store), &first).await.unwrap();
    for name in ["a/b c", "echo"] {
        assert!(switches.set(&first, &tool(name), true).await.unwrap());
    }
    assert!(switches.set(&first, &tool("echo"), false).await.unwrap());
    let second = access();
    SwitchStore::load(store, &second).await.unwrap();
    assert_eq!(second.disabled(), [tool("a/b c")]);
}

#[tokio::test]
async fn a_store_that_holds_something_else_stops_the_start() {
    let store: Arc<dyn Store> = Arc::new(Memory::default());
    store.put(NAMESPACE, "everything", Vec::new()).await.unwrap();
    let error = SwitchStore::load(store, &access()).await.err().unwrap();
    assert!(matches!(error, LoadError::Unreadable { .. }), "{error}");
    assert!(matches!(SwitchStore::load(Arc::new(Broken), &access()).await, Err(LoadError::Store(_))));
}

#[tokio::test]
async fn what_cannot_be_kept_is_off_all_the_same() {
    let access = access();
    let switches = SwitchStore { store: Some(Arc::new(Broken)), changing: Mutex::default() };
    let error = switches.set(&access, &tool("echo"), true).await.unwrap_err();
    assert_eq!(access.disabled(), [tool("echo")]);
    assert!(error.to_string().contains("the disk is full"), "{error}");
    assert!(switches.set(&access, &tool("echo"), false).await.is_err());
    assert_eq!(access.disabled(), [tool("echo")]);
}
