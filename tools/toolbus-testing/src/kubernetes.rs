//! An API server of Kubernetes over real HTTP, with one node that runs the programs of pods as processes, or lets pods go
//! through the states that a test gives, and with the claims of agent-sandbox.

#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "a test fails by panicking, also in what stands for a cluster"
)]

mod agent_sandbox;
mod cluster;
mod node;

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;

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
use tokio::net::TcpListener;
use tokio::sync::watch;
use tokio_util::task::{AbortOnDropHandle, TaskTracker};

pub use agent_sandbox::{bound, ready};
pub use cluster::{ApiRefusal, Node, refusal};
use cluster::{Cluster, Key, Shared};
pub use node::{ended, running, waiting};

use crate::patience::eventually;

/// The only namespace.
const NAMESPACE: &str = "rockbot-scripts";

/// Name and value of the label that everything has which a daemon may sweep.
const MANAGED: (&str, &str) = ("app.kubernetes.io/managed-by", "toolbus");

/// The server, which ends with this.
pub struct ApiServer {
    shared: Shared,
    _server: AbortOnDropHandle<()>,
}

impl ApiServer {
    /// Starts it with such a node.
    pub async fn start(node: Node) -> Self {
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

    /// The kubeconfig of the cluster.
    pub fn kubeconfig(&self) -> PathBuf {
        self.shared.folder.path().join("kubeconfig")
    }

    /// Refuses the next requests of this verb.
    pub fn refuse(&self, verb: &'static str, refusals: impl IntoIterator<Item = ApiRefusal>) {
        self.shared.cluster.lock().refusals.entry(verb).or_default().extend(refusals);
    }

    /// Cuts off the next watches after so many events each.
    pub fn cut_watches(&self, after: &[usize]) {
        self.shared.cluster.lock().watch_cuts.extend(after);
    }

    /// Cuts off the next logs after so many bytes each.
    pub fn cut_logs(&self, after: &[usize]) {
        self.shared.cluster.lock().log_cuts.extend(after);
    }

    /// Cuts off the next connections to programs after so many bytes each.
    pub fn cut_execs(&self, after: &[usize]) {
        self.shared.cluster.lock().exec_cuts.extend(after);
    }

    /// Responds to nothing any more.
    pub fn be_silent(&self) {
        self.shared.cluster.lock().is_silent = true;
    }

    /// Adds an object, as if another had made it.
    pub fn add(&self, resource: &'static str, object: Value) {
        let name = object["metadata"]["name"].as_str().unwrap().to_owned();
        self.shared.change(&(resource, name), "ADDED", |_| Some(object));
    }

    /// Deletes a pod, as if another had.
    pub fn remove(&self, name: &str) {
        self.shared.delete(&("pods", name.to_owned()));
    }

    /// The pods that there are.
    pub fn pods(&self) -> Vec<String> {
        self.names("pods")
    }

    /// The objects of a resource.
    pub fn names(&self, resource: &str) -> Vec<String> {
        let cluster = self.shared.cluster.lock();
        cluster.objects.keys().filter(|(of, _)| *of == resource).map(|(_, name)| name.clone()).collect()
    }

    /// Returns the objects that have been created by requests.
    pub fn created(&self) -> Vec<Value> {
        self.shared.cluster.lock().created.clone()
    }

    /// Counts the uses of this verb; with a resource behind it, of another than pods.
    pub fn requests(&self, verb: &str) -> usize {
        self.shared.cluster.lock().requests.iter().filter(|request| *request == verb).count()
    }

    /// Waits until nothing is left.
    pub async fn is_empty(&self) {
        eventually("nothing to be left", async || self.shared.cluster.lock().objects.is_empty().then_some(())).await;
    }
}

/// Builds the routes that serve a resource.
fn routes(resource: &'static str, path: &str) -> Router<Shared> {
    let all = get(move |shared, query| list(resource, shared, query))
        .post(move |shared, path, body| create(resource, shared, path, body));
    let one = get(move |shared, path| read(resource, shared, path))
        .delete(move |shared, path, body| delete(resource, shared, path, body));
    Router::new().route(path, all).route(&format!("{path}/{{name}}"), one)
}

/// Returns the name that tests give a verb: with its resource, but for pods.
fn of_resource(verb: &str, resource: &str) -> String {
    if resource == "pods" { verb.to_owned() } else { format!("{verb} {resource}") }
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
        shared.run_with(&key, node::start(shared.clone(), key.clone(), posted, node));
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
    let name = |object: &Value| object["metadata"]["name"].as_str().unwrap().to_owned();
    let is_next = |object: &&Value| query.get("continue").is_none_or(|last| name(object) > *last);
    let mut items = of_resource.map(|(_, known)| &known.object).filter(is_managed).filter(is_next);
    let page: Vec<&Value> = items.by_ref().take(query["limit"].parse().unwrap()).collect();
    let more = items.next().and(page.last()).map(|last| name(last)).unwrap_or_default();
    let metadata = json!({"resourceVersion": cluster.version.to_string(), "continue": more});
    json!({"kind": "List", "apiVersion": "v1", "metadata": metadata, "items": page}).to_string().into_response()
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

fn failure(refusal: &ApiRefusal) -> Response {
    let details = refusal.retry_after.map(|seconds| json!({"retryAfterSeconds": seconds}));
    let body = json!({"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure", "code": refusal.code,
        "reason": refusal.reason, "message": refusal.message, "details": details.unwrap_or_else(|| json!({}))});
    (StatusCode::from_u16(refusal.code).unwrap(), body.to_string()).into_response()
}

fn missing() -> Response {
    failure(&refusal(404, "NotFound", "not found"))
}
