//! A small REST backend that counts its requests, and responds when the test lets it.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use axum::Router;
use axum::extract::{Path, RawQuery, State};
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::any;
use tokio::net::TcpListener;
use tokio::sync::watch;
use tokio::task::JoinSet;
use toolbus_testing::patience::eventually;

/// Time that `/work` takes.
const WORK: Duration = Duration::from_millis(30);
/// Largest response of `/bytes`.
const MAX_BYTES: usize = 256 * 1024 * 1024;

/// A running backend; it ends when dropped.
///
/// * `/weather/{city}`: the weather, at once;
/// * `/work?id=…`: takes a short while;
/// * `/gate?id=…`: responds once [`Backend::open`] was called;
/// * `/status/{code}`: that status;
/// * `/bytes/{count}`: that many bytes; `/garbage`: bytes that are no text.
pub struct Backend {
    base: String,
    seen: Seen,
    gate: watch::Sender<bool>,
    _server: JoinSet<()>,
}

/// Requests that were made, by id.
#[derive(Clone, Default)]
struct Seen(Arc<Mutex<HashMap<String, Vec<HeaderMap>>>>);

#[derive(Clone)]
struct Shared {
    seen: Seen,
    gate: watch::Receiver<bool>,
}

impl Backend {
    /// Starts on a free port.
    ///
    /// # Panics
    ///
    /// When no port can be bound.
    pub async fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let base = format!("http://{}", listener.local_addr().unwrap());
        let (gate, opened) = watch::channel(false);
        let seen = Seen::default();
        let routes = Router::new()
            .route("/weather/{city}", any(weather))
            .route("/work", any(work))
            .route("/gate", any(wait))
            .route("/status/{code}", any(status))
            .route("/bytes/{count}", any(bytes))
            .route("/garbage", any(async || [0xff_u8, 0xfe, 0xfd]))
            .with_state(Shared { seen: seen.clone(), gate: opened });
        let mut server = JoinSet::new();
        server.spawn(async move { drop(axum::serve(listener, routes).await) });
        Self { base, seen, gate, _server: server }
    }

    /// Configuration of a tool here, which changes something unless overridden by `more`, further keys of its section.
    #[must_use]
    pub fn endpoint(&self, name: &str, path: &str, parameters: &str, more: &str) -> String {
        let effect = if more.contains("effect = ") { "" } else { "effect = \"effectful\"\n" };
        self.endpoint_by_default(name, path, parameters, &format!("{effect}{more}"))
    }

    /// Configuration of a tool here, with the effect that its method has by default.
    #[must_use]
    pub fn endpoint_by_default(&self, name: &str, path: &str, parameters: &str, more: &str) -> String {
        let base = &self.base;
        format!(
            "[[rest.endpoints]]\nname = \"{name}\"\ndescription = \"A tool of the tests\"\nurl = \"{base}{path}\"\n\
             parameters = '{parameters}'\n{more}\n"
        )
    }

    /// The port.
    #[must_use]
    pub fn port(&self) -> String {
        self.base.rsplit(':').next().unwrap_or_default().to_owned()
    }

    /// A tool of one text argument `id`, such as one of `/gate?id={id}`. Its time is as long as that of its call: what a
    /// test does while a call waits, such as `rabbitmqctl`, takes longer than the default on a busy machine.
    #[must_use]
    pub fn tool(&self, name: &str, path: &str, more: &str) -> String {
        let parameters = r#"{"type":"object","properties":{"id":{"type":"string"}},"required":["id"]}"#;
        let timeout = if more.contains("timeout = ") { "" } else { "timeout = \"60s\"\n" };
        self.endpoint(name, path, parameters, &format!("{timeout}{more}"))
    }

    /// Lets every request to `/gate` get its response, now and from now on.
    pub fn open(&self) {
        self.gate.send_replace(true);
    }

    /// Counts the requests for this id.
    #[must_use]
    pub fn count(&self, id: &str) -> usize {
        self.seen.lock().get(id).map_or(0, Vec::len)
    }

    /// Requests in all.
    #[must_use]
    pub fn total(&self) -> usize {
        self.seen.lock().values().map(Vec::len).sum()
    }

    /// The headers of the last request for this id.
    #[must_use]
    pub fn headers(&self, id: &str) -> HeaderMap {
        self.seen.lock().get(id).and_then(|all| all.last().cloned()).unwrap_or_default()
    }

    /// Waits until a request with this id has come.
    pub async fn wait_for(&self, id: &str) {
        eventually(&format!("a request for {id} at the backend"), async || (self.count(id) > 0).then_some(())).await;
    }
}

impl Seen {
    fn lock(&self) -> MutexGuard<'_, HashMap<String, Vec<HeaderMap>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn note(&self, id: &str, headers: HeaderMap) {
        self.lock().entry(id.to_owned()).or_default().push(headers);
    }
}

/// The id in a query; tests choose ids that need no escaping.
fn id(query: Option<String>) -> String {
    let pairs = query.unwrap_or_default();
    pairs.split('&').find_map(|pair| pair.strip_prefix("id=")).unwrap_or_default().to_owned()
}

async fn weather(Path(city): Path<String>, State(shared): State<Shared>, headers: HeaderMap) -> Response {
    shared.seen.note(&city, headers);
    let body = serde_json::json!({"city": city, "sky": "clear"}).to_string();
    ([(header::CONTENT_TYPE, "application/json")], body).into_response()
}

async fn work(RawQuery(query): RawQuery, State(shared): State<Shared>, headers: HeaderMap) -> String {
    let id = id(query);
    shared.seen.note(&id, headers);
    tokio::time::sleep(WORK).await;
    format!("worked for {id}")
}

async fn wait(RawQuery(query): RawQuery, State(mut shared): State<Shared>, headers: HeaderMap) -> String {
    let id = id(query);
    shared.seen.note(&id, headers);
    // A backend that ends lets go of everyone.
    drop(shared.gate.wait_for(|open| *open).await);
    format!("passed {id}")
}

async fn status(Path(code): Path<u16>) -> (StatusCode, &'static str) {
    (StatusCode::from_u16(code).unwrap_or(StatusCode::BAD_REQUEST), "as asked")
}

async fn bytes(Path(count): Path<usize>) -> Vec<u8> {
    vec![b'x'; count.min(MAX_BYTES)]
}
