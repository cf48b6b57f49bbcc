//! The objects of the emulated cluster, and its settings for tests.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use parking_lot::Mutex;
use serde_json::Value;
use tempfile::TempDir;
use tokio::sync::watch;
use tokio_util::task::{AbortOnDropHandle, TaskTracker};

/// Behaviour of the node with a pod, and of agent-sandbox with a claim.
#[derive(Debug, Clone)]
pub enum Node {
    /// Runs the program of its container; gives it a sandbox of the warm pool.
    Runs,
    /// Gives it these states, one after another, and its container this log.
    States(Vec<Value>, Vec<u8>),
}

/// The resource and the name of an object.
pub(super) type Key = (&'static str, String);

/// A response that replaces the right one.
#[derive(Debug, Clone)]
pub struct ApiRefusal {
    /// HTTP code of the response.
    pub code: u16,
    /// The reason, in one word.
    pub reason: &'static str,
    /// Description of what is wrong.
    pub message: &'static str,
    /// Seconds after which the client should retry.
    pub retry_after: Option<u32>,
    /// Whether the request is obeyed nevertheless.
    pub is_obeyed: bool,
}

/// A response with this code, reason and message.
#[must_use]
pub const fn refusal(code: u16, reason: &'static str, message: &'static str) -> ApiRefusal {
    ApiRefusal { code, reason, message, retry_after: None, is_obeyed: false }
}

#[derive(Default)]
pub(super) struct Cluster {
    pub(super) version: u64,
    pub(super) objects: BTreeMap<Key, FakeObject>,
    /// Resource, type and object of each event, by its version.
    pub(super) events: Vec<(u64, &'static str, &'static str, Value)>,
    /// Verbs of all requests.
    pub(super) requests: Vec<String>,
    pub(super) refusals: BTreeMap<&'static str, VecDeque<ApiRefusal>>,
    pub(super) node: Option<Node>,
    pub(super) created: Vec<Value>,
    pub(super) deleted: Vec<String>,
    /// Events after which a watch is cut off, once for each.
    pub(super) watch_cuts: VecDeque<usize>,
    /// Bytes after which a log that is followed is cut off, once for each.
    pub(super) log_cuts: VecDeque<usize>,
    /// Bytes of output after which the connection to a program is cut off, once for each.
    pub(super) exec_cuts: VecDeque<usize>,
    /// Whether no request gets a response.
    pub(super) is_silent: bool,
}

pub(super) struct FakeObject {
    pub(super) object: Value,
    pub(super) log: Vec<u8>,
    pub(super) has_ended: bool,
    /// Programs that end with it.
    pub(super) processes: Vec<AbortOnDropHandle<()>>,
}

#[derive(Clone)]
pub(super) struct Shared {
    pub(super) cluster: Arc<Mutex<Cluster>>,
    pub(super) changed: watch::Sender<u64>,
    /// Folder of the sandboxes' files.
    pub(super) folder: Arc<TempDir>,
}

impl Shared {
    /// Counts a request, and returns the refusal that replaces its response, if there is one.
    pub(super) async fn begin(&self, verb: &str) -> Option<ApiRefusal> {
        let (refusal, is_silent) = {
            let mut cluster = self.cluster.lock();
            cluster.requests.push(verb.to_owned());
            (cluster.refusals.get_mut(verb).and_then(VecDeque::pop_front), cluster.is_silent)
        };
        if is_silent {
            std::future::pending::<()>().await;
        }
        refusal
    }

    /// Changes an object, and notifies watches.
    pub(super) fn change(&self, key: &Key, event: &'static str, change: impl FnOnce(Option<Value>) -> Option<Value>) {
        let mut cluster = self.cluster.lock();
        let Some(mut object) = change(cluster.objects.get(key).map(|known| known.object.clone())) else { return };
        cluster.version += 1;
        let version = cluster.version;
        object["metadata"]["resourceVersion"] = version.to_string().into();
        cluster.events.push((version, key.0, event, object.clone()));
        match cluster.objects.get_mut(key) {
            Some(known) => known.object = object,
            None => {
                let new = FakeObject { object, log: Vec::new(), has_ended: false, processes: Vec::new() };
                cluster.objects.insert(key.clone(), new);
            }
        }
        drop(cluster);
        self.changed.send_modify(|count| *count += 1);
    }

    pub(super) fn set_status(&self, key: &Key, status: &Value) {
        self.change(key, "MODIFIED", |object| {
            let mut object = object?;
            object["status"] = status.clone();
            Some(object)
        });
    }

    /// Deletes an object, and what it owns.
    pub(super) fn delete(&self, key: &Key) -> Option<Value> {
        let mut cluster = self.cluster.lock();
        let deleted = cluster.objects.remove(key)?;
        cluster.version += 1;
        let version = cluster.version;
        cluster.deleted.push(key.1.clone());
        cluster.events.push((version, key.0, "DELETED", deleted.object.clone()));
        let is_owned = |known: &FakeObject| known.object["metadata"]["ownerReferences"][0]["name"] == *key.1;
        let owned: Vec<Key> =
            cluster.objects.iter().filter(|(_, known)| is_owned(known)).map(|(key, _)| key.clone()).collect();
        drop(cluster);
        self.changed.send_modify(|count| *count += 1);
        for key in owned {
            self.delete(&key);
        }
        Some(deleted.object)
    }

    /// Lets a program run as long as an object exists. Returns whether it does.
    pub(super) fn run_with(&self, key: &Key, program: impl Future<Output = ()> + Send + 'static) -> bool {
        let mut cluster = self.cluster.lock();
        let Some(known) = cluster.objects.get_mut(key) else { return false };
        known.processes.push(AbortOnDropHandle::new(TaskTracker::new().spawn(program)));
        true
    }

    /// Bytes after which the next connection to a program is cut off.
    pub(super) fn exec_cut(&self) -> usize {
        self.cluster.lock().exec_cuts.pop_front().unwrap_or(usize::MAX)
    }

    pub(super) fn add_log(&self, key: &Key, bytes: &[u8]) {
        if let Some(pod) = self.cluster.lock().objects.get_mut(key) {
            pod.log.extend_from_slice(bytes);
        }
        self.changed.send_modify(|count| *count += 1);
    }

    pub(super) fn end_log(&self, key: &Key) {
        if let Some(pod) = self.cluster.lock().objects.get_mut(key) {
            pod.has_ended = true;
        }
        self.changed.send_modify(|count| *count += 1);
    }
}
