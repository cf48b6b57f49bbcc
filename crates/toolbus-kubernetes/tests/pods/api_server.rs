//! An API server over real HTTP, with one node that runs the programs of pods as processes, or lets pods go through the
//! states that a test gives. `agent_sandbox.rs` has what agent-sandbox adds.

use std::collections::{BTreeMap, VecDeque};
use std::path::PathBuf;
use std::process::Stdio;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::body::{Body, Bytes};
use axum::extract::{Path, Query, State};
use axum::http::StatusCode;
use axum::response::{IntoResponse as _, Response};
use axum::routing::get;
use futures_util::stream;
use k8s_openapi::api::core::v1::Pod;
use parking_lot::Mutex;
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::io::AsyncReadExt as _;
use tokio::net::TcpListener;
use tokio::process::Command;
use tokio::sync::watch;
use tokio_util::task::{AbortOnDropHandle, TaskTracker};
use toolbus_testing::patience::eventually;

use crate::agent_sandbox;

pub(crate) const NAMESPACE: &str = "rockbot-scripts";

/// Name and value of the label that everything has which a daemon may sweep.
const MANAGED: (&str, &str) = ("app.kubernetes.io/managed-by", "toolbus");

/// What the node does with a pod, and agent-sandbox with a claim.
#[derive(Debug, Clone)]
pub(crate) enum Node {
    /// Runs the program of its container; gives it a sandbox of the warm pool.
    Runs,
    /// Gives it these states, one after another, and its container this log.
    States(Vec<Value>, Vec<u8>),
}

/// The resource and the name of an object.
pub(crate) type Key = (&'static str, String);

/// A response that takes the place of the right one.
#[derive(Debug, Clone)]
pub(crate) struct Refusal {
    pub(crate) code: u16,
    pub(crate) reason: &'static str,
    pub(crate) message: &'static str,
    pub(crate) retry_after: Option<u32>,
    /// Whether the request is obeyed nevertheless.
    pub(crate) is_obeyed: bool,
}

pub(crate) const fn refusal(code: u16, reason: &'static str, message: &'static str) -> Refusal {
    Refusal { code, reason, message, retry_after: None, is_obeyed: false }
}

#[derive(Default)]
struct Cluster {
    version: u64,
    objects: BTreeMap<Key, FakeObject>,
    /// Resource, type and object of each event, by its version.
    events: Vec<(u64, &'static str, &'static str, Value)>,
    /// Verbs of all requests.
    requests: Vec<String>,
    refusals: BTreeMap<&'static str, VecDeque<Refusal>>,
    node: Option<Node>,
    created: Vec<Value>,
    deleted: Vec<String>,
    /// Events after which a watch is cut off, once for each.
    watch_cuts: VecDeque<usize>,
    /// Bytes after which a log that is followed is cut off, once for each.
    log_cuts: VecDeque<usize>,
    /// Bytes of output after which the connection to a program is cut off, once for each.
    exec_cuts: VecDeque<usize>,
    /// Whether nothing is answered.
    is_silent: bool,
}

struct FakeObject {
    object: Value,
    log: Vec<u8>,
    has_ended: bool,
    /// Programs that end with it.
    processes: Vec<AbortOnDropHandle<()>>,
}

#[derive(Clone)]
pub(crate) struct Shared {
    cluster: Arc<Mutex<Cluster>>,
    changed: watch::Sender<u64>,
    /// Where sandboxes have their files.
    pub(crate) folder: Arc<TempDir>,
}

/// The server, which ends with this.
pub(crate) struct ApiServer {
    shared: Shared,
    _server: AbortOnDropHandle<()>,
}

impl ApiServer {
    pub(crate) async fn start(node: Node) -> Self {
        let cluster = Cluster { node: Some(node), ..Cluster::default() };
        let folder = Arc::new(tempfile::tempdir().unwrap());
        let (cluster, changed) = (Arc::new(Mutex::new(cluster)), watch::Sender::new(0));
        let shared = Shared { cluster, changed, folder };
        let pods = "/api/v1/namespaces/{namespace}/pods";
        let router = routes("pods", pods)
            .route(&format!("{pods}/{{name}}/log"), get(log))
            .route(&format!("{pods}/{{name}}/exec"), get(agent_sandbox::exec))
            .merge(routes(
                "sandboxclaims",
                "/apis/extensions.agents.x-k8s.io/v1beta1/namespaces/{namespace}/sandboxclaims",
            ))
            .merge(routes("sandboxes", "/apis/agents.x-k8s.io/v1beta1/namespaces/{namespace}/sandboxes"))
            .with_state(shared.clone());
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let server = TaskTracker::new().spawn(async move { axum::serve(listener, router).await.unwrap() });
        let kubeconfig = json!({
            "apiVersion": "v1",
            "kind": "Config",
            "current-context": "test",
            "contexts": [{"name": "test", "context": {"cluster": "test", "user": "test"}}],
            "clusters": [{"name": "test", "cluster": {"server": format!("http://{address}")}}],
            "users": [{"name": "test", "user": {"token": "t0ken"}}],
        });
        std::fs::write(shared.folder.path().join("kubeconfig"), kubeconfig.to_string()).unwrap();
        Self { shared, _server: AbortOnDropHandle::new(server) }
    }

    pub(crate) fn kubeconfig(&self) -> PathBuf {
        self.shared.folder.path().join("kubeconfig")
    }

    /// Refuses the next requests of this verb.
    pub(crate) fn refuse(&self, verb: &'static str, refusals: impl IntoIterator<Item = Refusal>) {
        self.shared.cluster.lock().refusals.entry(verb).or_default().extend(refusals);
    }

    pub(crate) fn cut_watches(&self, after: &[usize]) {
        self.shared.cluster.lock().watch_cuts.extend(after);
    }

    pub(crate) fn cut_logs(&self, after: &[usize]) {
        self.shared.cluster.lock().log_cuts.extend(after);
    }

    pub(crate) fn cut_execs(&self, after: &[usize]) {
        self.shared.cluster.lock().exec_cuts.extend(after);
    }

    pub(crate) fn be_silent(&self) {
        self.shared.cluster.lock().is_silent = true;
    }

    /// Adds an object, as if another had made it.
    pub(crate) fn add(&self, resource: &'static str, object: Value) {
        let name = object["metadata"]["name"].as_str().unwrap().to_owned();
        self.shared.change(&(resource, name), "ADDED", |_| Some(object));
    }

    /// Deletes a pod, as if another had.
    pub(crate) fn remove(&self, name: &str) {
        self.shared.delete(&("pods", name.to_owned()));
    }

    pub(crate) fn pods(&self) -> Vec<String> {
        self.names("pods")
    }

    /// The objects of a resource.
    pub(crate) fn names(&self, resource: &str) -> Vec<String> {
        let cluster = self.shared.cluster.lock();
        cluster.objects.keys().filter(|(of, _)| *of == resource).map(|(_, name)| name.clone()).collect()
    }

    pub(crate) fn created(&self) -> Vec<Value> {
        self.shared.cluster.lock().created.clone()
    }

    /// How often this verb was used; with a resource behind it, of another than pods.
    pub(crate) fn requests(&self, verb: &str) -> usize {
        self.shared.cluster.lock().requests.iter().filter(|request| *request == verb).count()
    }

    /// Waits until nothing is left.
    pub(crate) async fn is_empty(&self) {
        eventually("nothing to be left", async || self.shared.cluster.lock().objects.is_empty().then_some(())).await;
    }
}

/// What is served of a resource.
fn routes(resource: &'static str, path: &str) -> Router<Shared> {
    let all = get(move |shared, query| list(resource, shared, query))
        .post(move |shared, path, body| create(resource, shared, path, body));
    let one = get(move |shared, path| read(resource, shared, path))
        .delete(move |shared, path, body| delete(resource, shared, path, body));
    Router::new().route(path, all).route(&format!("{path}/{{name}}"), one)
}

/// How tests name a verb: with its resource, but for pods.
fn of_resource(verb: &str, resource: &str) -> String {
    if resource == "pods" { verb.to_owned() } else { format!("{verb} {resource}") }
}

impl Shared {
    /// Counts a request, and responds to it in place of what it asks for, if it has to.
    pub(crate) async fn begin(&self, verb: &str) -> Option<Refusal> {
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

    /// Changes an object, and tells those who watch.
    pub(crate) fn change(&self, key: &Key, event: &'static str, change: impl FnOnce(Option<Value>) -> Option<Value>) {
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

    pub(crate) fn set_status(&self, key: &Key, status: &Value) {
        self.change(key, "MODIFIED", |object| {
            let mut object = object?;
            object["status"] = status.clone();
            Some(object)
        });
    }

    /// Deletes an object, and what it owns.
    fn delete(&self, key: &Key) -> Option<Value> {
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
    pub(crate) fn run_with(&self, key: &Key, program: impl Future<Output = ()> + Send + 'static) -> bool {
        let mut cluster = self.cluster.lock();
        let Some(known) = cluster.objects.get_mut(key) else { return false };
        known.processes.push(AbortOnDropHandle::new(TaskTracker::new().spawn(program)));
        true
    }

    /// Bytes after which the next connection to a program is cut off.
    pub(crate) fn exec_cut(&self) -> usize {
        self.cluster.lock().exec_cuts.pop_front().unwrap_or(usize::MAX)
    }

    fn add_log(&self, key: &Key, bytes: &[u8]) {
        if let Some(pod) = self.cluster.lock().objects.get_mut(key) {
            pod.log.extend_from_slice(bytes);
        }
        self.changed.send_modify(|count| *count += 1);
    }

    fn end_log(&self, key: &Key) {
        if let Some(pod) = self.cluster.lock().objects.get_mut(key) {
            pod.has_ended = true;
        }
        self.changed.send_modify(|count| *count += 1);
    }

    /// Does with a new pod what the node does.
    async fn start_pod(self, key: Key, object: Value, node: Node) {
        match node {
            Node::Runs => self.run(&key, &object).await,
            Node::States(states, log) => {
                self.add_log(&key, &log);
                for status in states {
                    let is_ended = matches!(status["phase"].as_str(), Some("Succeeded" | "Failed"));
                    self.set_status(&key, &status);
                    if is_ended {
                        self.end_log(&key);
                    }
                }
            }
        }
    }

    /// Runs the program of a pod's container.
    async fn run(&self, key: &Key, object: &Value) {
        self.set_status(key, &json!({"phase": "Pending"}));
        let container = &object["spec"]["containers"][0];
        let work = tempfile::tempdir().unwrap();
        let text = |value: &Value| value.as_str().unwrap().replace("/work", work.path().to_str().unwrap());
        let [command, args] = ["command", "args"].map(|key| container[key].as_array().unwrap().clone());
        let words: Vec<String> = command.iter().chain(&args).map(text).collect();
        let variables = container["env"].as_array().unwrap().iter();
        let variables = variables.map(|variable| [&variable["name"], &variable["value"]].map(|v| v.as_str().unwrap()));
        // As in a container, the supervisor is the first process of a PID namespace, which ends with it.
        let mut child = Command::new("unshare")
            .args(["--user", "--map-current-user", "--pid", "--fork", "--kill-child", "--"])
            .args(&words)
            .env_clear()
            .env("PATH", "/usr/bin:/bin")
            .envs(variables.map(|[name, value]| (name.to_owned(), value.to_owned())))
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .kill_on_drop(true)
            .spawn()
            .unwrap();
        self.set_status(key, &running());
        let mut stdout = child.stdout.take().unwrap();
        let mut bytes = vec![0; 4096];
        while let Ok(read @ 1..) = stdout.read(&mut bytes).await {
            self.add_log(key, &bytes[..read]);
        }
        let code = child.wait().await.unwrap().code().unwrap_or(137);
        self.end_log(key);
        self.set_status(key, &ended(code, if code == 0 { "Completed" } else { "Error" }));
    }
}

/// The status of a pod whose container has ended.
pub(crate) fn ended(code: i32, reason: &str) -> Value {
    let phase = if code == 0 { "Succeeded" } else { "Failed" };
    let state = json!({"terminated": {"exitCode": code, "reason": reason}});
    json!({"phase": phase, "containerStatuses": container_status(state)})
}

pub(crate) fn running() -> Value {
    json!({"phase": "Running", "containerStatuses": container_status(json!({"running": {}}))})
}

pub(crate) fn waiting(reason: &str, message: &str) -> Value {
    let state = json!({"waiting": {"reason": reason, "message": message}});
    json!({"phase": "Pending", "containerStatuses": container_status(state)})
}

fn container_status(state: Value) -> Value {
    json!([{"name": "script", "image": "", "imageID": "", "ready": false, "restartCount": 0, "state": state}])
}

pub(crate) fn failure(refusal: &Refusal) -> Response {
    let details = refusal.retry_after.map(|seconds| json!({"retryAfterSeconds": seconds}));
    let body = json!({"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure", "code": refusal.code,
        "reason": refusal.reason, "message": refusal.message, "details": details.unwrap_or_else(|| json!({}))});
    (StatusCode::from_u16(refusal.code).unwrap(), body.to_string()).into_response()
}

pub(crate) fn missing() -> Response {
    failure(&refusal(404, "NotFound", "not found"))
}

async fn create(
    resource: &'static str,
    State(shared): State<Shared>,
    Path(namespace): Path<String>,
    body: Bytes,
) -> Response {
    let refused = shared.begin(&of_resource("create", resource)).await;
    if let Some(refusal) = refused.as_ref().filter(|refusal| !refusal.is_obeyed) {
        return failure(refusal);
    }
    let posted: Value = serde_json::from_slice(&body).unwrap();
    // What the schema does not know would be lost on the way.
    match resource {
        "pods" => {
            let known: Pod = serde_json::from_value(posted.clone()).unwrap();
            assert_eq!(serde_json::to_value(&known).unwrap(), posted, "the pod is not of the schema");
        }
        _ => agent_sandbox::check(&posted),
    }
    assert_eq!(namespace, NAMESPACE);
    let key = (resource, posted["metadata"]["name"].as_str().unwrap().to_owned());
    let node = {
        let mut cluster = shared.cluster.lock();
        if cluster.objects.contains_key(&key) {
            return failure(&refusal(409, "AlreadyExists", "the object already exists"));
        }
        cluster.created.push(posted.clone());
        cluster.node.clone().unwrap()
    };
    shared.change(&key, "ADDED", |_| Some(posted.clone()));
    let object = shared.cluster.lock().objects[&key].object.clone();
    if resource == "pods" {
        shared.run_with(&key, shared.clone().start_pod(key.clone(), posted, node));
    } else {
        agent_sandbox::bind(&shared, &key, node);
    }
    match refused {
        Some(refusal) => failure(&refusal),
        None => (StatusCode::CREATED, object.to_string()).into_response(),
    }
}

async fn list(
    resource: &'static str,
    State(shared): State<Shared>,
    Query(query): Query<BTreeMap<String, String>>,
) -> Response {
    if query.get("watch").is_some_and(|watch| watch == "true") {
        return watch_objects(resource, shared, &query).await;
    }
    if let Some(refusal) = shared.begin(&of_resource("list", resource)).await {
        return failure(&refusal);
    }
    assert_eq!(query["labelSelector"], format!("{}={}", MANAGED.0, MANAGED.1));
    let cluster = shared.cluster.lock();
    let is_managed = |object: &&Value| object["metadata"]["labels"][MANAGED.0].as_str() == Some(MANAGED.1);
    let of_resource = cluster.objects.iter().filter(|((of, _), _)| *of == resource);
    let items: Vec<&Value> = of_resource.map(|(_, known)| &known.object).filter(is_managed).collect();
    let version = cluster.version.to_string();
    json!({"kind": "List", "apiVersion": "v1", "metadata": {"resourceVersion": version}, "items": items})
        .to_string()
        .into_response()
}

async fn watch_objects(resource: &'static str, shared: Shared, query: &BTreeMap<String, String>) -> Response {
    if let Some(refusal) = shared.begin(&of_resource("watch", resource)).await {
        return failure(&refusal);
    }
    let name = query["fieldSelector"].strip_prefix("metadata.name=").unwrap().to_owned();
    let seen: u64 = query["resourceVersion"].parse().unwrap();
    let cut = shared.cluster.lock().watch_cuts.pop_front().unwrap_or(usize::MAX);
    let changed = shared.changed.subscribe();
    let events =
        stream::unfold((shared, name, seen, changed, cut), move |(shared, name, seen, mut changed, left)| async move {
            if left == 0 {
                return None;
            }
            loop {
                changed.borrow_and_update();
                let next = {
                    let cluster = shared.cluster.lock();
                    let is_next = |(version, of, _, object): &&(u64, &'static str, &'static str, Value)| {
                        *version > seen && *of == resource && object["metadata"]["name"].as_str() == Some(&name)
                    };
                    cluster.events.iter().find(is_next).cloned()
                };
                if let Some((version, _, event, object)) = next {
                    let line = format!("{}\n", json!({"type": event, "object": object}));
                    return Some((Ok::<_, std::io::Error>(line), (shared, name, version, changed, left - 1)));
                }
                changed.changed().await.ok()?;
            }
        });
    Body::from_stream(events).into_response()
}

async fn read(
    resource: &'static str,
    State(shared): State<Shared>,
    Path((_, name)): Path<(String, String)>,
) -> Response {
    if let Some(refusal) = shared.begin(&of_resource("get", resource)).await {
        return failure(&refusal);
    }
    let cluster = shared.cluster.lock();
    cluster.objects.get(&(resource, name)).map_or_else(missing, |known| known.object.to_string().into_response())
}

async fn delete(
    resource: &'static str,
    State(shared): State<Shared>,
    Path((_, name)): Path<(String, String)>,
    body: Bytes,
) -> Response {
    if let Some(refusal) = shared.begin(&of_resource("delete", resource)).await {
        return failure(&refusal);
    }
    let options: Value = serde_json::from_slice(&body).unwrap();
    assert_eq!((&options["gracePeriodSeconds"], &options["propagationPolicy"]), (&json!(0), &json!("Background")));
    shared.delete(&(resource, name)).map_or_else(missing, |object| object.to_string().into_response())
}

async fn log(
    State(shared): State<Shared>,
    Path((_, name)): Path<(String, String)>,
    Query(query): Query<BTreeMap<String, String>>,
) -> Response {
    if let Some(refusal) = shared.begin("log").await {
        return failure(&refusal);
    }
    let follow = query.get("follow").is_some_and(|follow| follow == "true");
    let most: usize = query["limitBytes"].parse().unwrap();
    let cut = if follow { shared.cluster.lock().log_cuts.pop_front() } else { None };
    let key: Key = ("pods", name);
    if !shared.cluster.lock().objects.contains_key(&key) {
        return missing();
    }
    let changed = shared.changed.subscribe();
    let parts = stream::unfold((shared, key, 0, changed), move |(shared, key, at, mut changed)| async move {
        loop {
            changed.borrow_and_update();
            let (part, is_over) = {
                let cluster = shared.cluster.lock();
                let pod = cluster.objects.get(&key)?;
                let end = pod.log.len().min(most).min(cut.unwrap_or(most));
                (pod.log[at..end].to_vec(), pod.has_ended || !follow || end == most || Some(end) == cut)
            };
            if !part.is_empty() {
                let at = at + part.len();
                return Some((Ok(part), (shared, key, at, changed)));
            }
            if is_over {
                let is_cut = cut == Some(at);
                // The connection breaks, once.
                let error = std::io::Error::other("cut off");
                return is_cut.then(|| (Err(error), (shared, ("pods", "gone".to_owned()), 0, changed)));
            }
            changed.changed().await.ok()?;
        }
    });
    Body::from_stream(parts).into_response()
}

/// A time that is long enough for what is to happen, on a busy machine.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);
