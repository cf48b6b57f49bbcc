use std::collections::BTreeMap;

use axum::Json;
use axum::Router;
use axum::extract::State;
use axum::http::{HeaderMap as RequestHeaders, StatusCode};
use axum::response::{IntoResponse as _, Response};
use axum::routing::{get, post};
use tokio::net::TcpListener;
use toolbus_outbound::egress::{EgressConfig, EgressRules};

use super::*;

/// An agent with a prepared card and prepared results, which records the requests.
#[derive(Default)]
struct Fake {
    card: Value,
    /// Results of each method, in the order of the calls; a number is a status, and a text the body.
    results: Mutex<BTreeMap<String, Vec<Value>>>,
    requests: Mutex<Vec<Value>>,
    headers: Mutex<Vec<RequestHeaders>>,
}

async fn fake_card(State(fake): State<Arc<Fake>>) -> Json<Value> {
    Json(fake.card.clone())
}

async fn fake_rpc(State(fake): State<Arc<Fake>>, headers: RequestHeaders, Json(request): Json<Value>) -> Response {
    fake.requests.lock().push(request.clone());
    fake.headers.lock().push(headers);
    let mut results = fake.results.lock();
    let next = results.get_mut(request["method"].as_str().unwrap()).filter(|left| !left.is_empty());
    let mut response = next
        .map(|left| left.remove(0))
        .unwrap_or_else(|| json!({"error": {"code": -32601, "message": "Method not found"}}));
    if let Some(status) = response.as_u64() {
        return StatusCode::from_u16(status.try_into().unwrap()).unwrap().into_response();
    }
    if let Some(text) = response.as_str() {
        return text.to_owned().into_response();
    }
    response["jsonrpc"] = "2.0".into();
    response["id"] = request["id"].clone();
    Json(response).into_response()
}

fn interface(version: &str) -> Value {
    json!({"url": "/rpc", "protocolBinding": "JSONRPC", "protocolVersion": version})
}

fn card(interfaces: Value) -> Value {
    json!({
        "name": "Research", "description": "Finds things", "version": "3", "capabilities": {},
        "supportedInterfaces": interfaces, "defaultInputModes": ["text/plain"],
        "skills": [{"id": "find", "name": "Find", "description": "Finds", "tags": ["web"]}],
    })
}

/// A served agent, and its client.
struct Site {
    fake: Arc<Fake>,
    agent: HttpAgent,
    egress: Egress,
    lists: HostLists,
}

impl Site {
    /// Serves an agent with this card and these results of its methods.
    async fn serving<const N: usize>(card: Value, results: [(&str, Vec<Value>); N]) -> Self {
        let results = BTreeMap::from(results.map(|(method, results)| (method.to_owned(), results)));
        let fake = Arc::new(Fake { card, results: results.into(), ..Fake::default() });
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let routes =
            Router::new().route("/agent/.well-known/agent-card.json", get(fake_card)).route("/rpc", post(fake_rpc));
        let routes = routes.with_state(Arc::clone(&fake));
        tokio_util::task::TaskTracker::new().spawn(async move { axum::serve(listener, routes).await.unwrap() });
        let headers = HeaderMap::from_iter([("x-api-key".parse().unwrap(), HeaderValue::from_static("s3cret"))]);
        let agent = HttpAgent::new(format!("http://{address}/agent").parse().unwrap(), headers);
        let allow_hosts = vec![address.to_string().parse().unwrap()];
        Self {
            fake,
            agent,
            egress: egress(EgressConfig { allow_hosts, ..EgressConfig::default() }),
            lists: HostLists::default(),
        }
    }

    fn exchange(&self) -> HttpExchange<'_> {
        HttpExchange { egress: &self.egress, lists: &self.lists, clock: Clock::SYSTEM }
    }
}

fn egress(config: EgressConfig) -> Egress {
    Egress::new(EgressRules::new(config, BTreeMap::new(), HostLists::default()), "test").unwrap()
}

/// The card of an agent that speaks as this daemon does.
fn ours() -> Value {
    card(json!([interface("1.0")]))
}

const TASK: HttpTask<'static> =
    HttpTask { id: "t1", context: Some("c1"), skill: "find", message: "Find it", on_behalf_of: "ana" };

fn task(state: &str, artifacts: Value) -> Value {
    let message = json!({"messageId": "m", "role": "ROLE_AGENT", "parts": [{"text": "Looking"}]});
    json!({"id": "remote-1", "contextId": "c1", "status": {"state": state, "message": message}, "artifacts": artifacts})
}

#[tokio::test]
async fn a_task_is_given_looked_at_and_cancelled_as_version_1_has_it() {
    let results = [
        ("SendMessage", vec![json!({"result": {"task": task("TASK_STATE_WORKING", json!([]))}})]),
        (
            "GetTask",
            // It is away for a moment.
            vec![
                json!(503),
                json!(503),
                json!({"result": task("TASK_STATE_COMPLETED", json!([
                    {"artifactId": "a", "name": "list", "parts": [{"text": "Here"}, {"data": {"n": 1}}, {"url": "https://x.example/f"}]},
                ]))}),
            ],
        ),
        ("CancelTask", vec![json!({"result": task("TASK_STATE_CANCELED", json!([]))})]),
    ];
    let site = Site::serving(ours(), results).await;
    let (Site { fake, agent, .. }, exchange) = (&site, site.exchange());

    let begun = agent.start(&exchange, TASK).await.unwrap();
    assert_eq!((begun.remote.as_deref(), begun.note.as_deref()), (Some("remote-1"), Some("Looking")));
    assert_eq!(begun.result.state, AgentTaskState::Working);
    let mut wait = Duration::from_millis(1);
    let done = agent.look_later(&exchange, "t1", "remote-1", &mut wait).await.unwrap().result;
    assert_eq!(wait, Duration::from_millis(8));
    assert_eq!((done.state, &*done.task_id), (AgentTaskState::Completed, "t1"));
    assert_eq!(done.text(), "Looking\n\nHere\n\n{\"n\":1}\n\nhttps://x.example/f");
    assert_eq!(agent.cancel(&exchange, "remote-1").await.unwrap(), AgentTaskState::Canceled);
    assert_eq!(agent.last_card().unwrap().skills[0].id, "find");

    insta::assert_snapshot!(serde_json::to_string(&fake.requests.lock()[0]).unwrap(), @r#"{"id":1,"jsonrpc":"2.0","method":"SendMessage","params":{"configuration":{"acceptedOutputModes":["text/plain","application/json"],"returnImmediately":true},"message":{"contextId":"c1","messageId":"t1","metadata":{"onBehalfOf":"ana","skill":"find"},"parts":[{"text":"Find it"}],"role":"ROLE_USER"}}}"#);
    let params = |call: usize| fake.requests.lock()[call]["params"].clone();
    assert_eq!(params(1), json!({"id": "remote-1", "historyLength": 0}));
    assert_eq!(params(4), json!({"id": "remote-1"}));
    let headers = fake.headers.lock().pop().unwrap();
    assert_eq!((&headers["a2a-version"], &headers["x-api-key"]), (&"1.0".parse().unwrap(), &"s3cret".parse().unwrap()));
}

#[tokio::test]
async fn an_agent_may_respond_with_a_message() {
    let response = json!({"result": {"message": {"messageId": "m", "role": "ROLE_AGENT", "parts": [{"text": "42"}]}}});
    let site = Site::serving(ours(), [("SendMessage", vec![response])]).await;
    let progress = site.agent.start(&site.exchange(), TASK).await.unwrap();
    assert_eq!((progress.remote, progress.result.state), (None, AgentTaskState::Completed));
    assert_eq!(progress.result.text(), "42");
}

/// Starts a task at an agent with this card and this result, and returns the text of the error.
async fn refused(card: Value, result: Value) -> String {
    let site = Site::serving(card, [("SendMessage", vec![result])]).await;
    site.agent.start(&site.exchange(), TASK).await.err().unwrap().to_string()
}

#[tokio::test]
async fn an_agent_of_another_version_or_binding_or_host_is_refused_with_advice() {
    let old = json!({"name": "Old", "url": "http://a/", "protocolVersion": "0.3.0", "skills": []});
    let update = "and this daemon speaks 1.0: the agent has to be updated";
    assert_eq!(refused(old, json!({})).await, format!("it speaks A2A 0.3.0, {update}"));
    assert_eq!(refused(card(json!([interface("0.3")])), json!({})).await, format!("it speaks A2A 0.3, {update}"));
    let grpc = json!([{"url": "/rpc", "protocolBinding": "GRPC", "protocolVersion": "1.0"}]);
    assert_eq!(
        refused(card(grpc), json!({})).await,
        "its card has no interface `JSONRPC`, the one that this daemon speaks"
    );
    let other = json!([{"url": "http://evil.example/", "protocolBinding": "JSONRPC", "protocolVersion": "1.0"}]);
    assert_eq!(
        refused(card(other), json!({})).await,
        "its card leads to another host, `evil.example`; set `a2a.agents.url` to the agent itself"
    );
}

#[test]
fn a_task_that_was_not_surely_refused_may_have_begun() {
    let of = |status: u16| HttpAgentError::Status(StatusCode::from_u16(status).unwrap());
    let rpc = |code: i64| HttpAgentError::Rpc(code, String::new());
    let malformed = HttpAgentError::Malformed(String::new());
    let unsure = [HttpAgentError::Late, HttpAgentError::Lost, HttpAgentError::TooLarge, malformed];
    let unsure = unsure.into_iter().chain([500, 502, 504].map(of)).chain([-32603, -32006, -32000].map(rpc));
    for error in unsure {
        assert!(error.may_have_begun(), "{error}");
    }
    for error in [429, 503, 400].map(of).into_iter().chain([-32700, -32602, -32005, -32004].map(rpc)) {
        assert!(!error.may_have_begun(), "{error}");
    }
}

/// Looks at a task; returns what is found, and how many of the agent's results are left.
async fn looked(results: Vec<Value>) -> (Result<AgentTaskState, String>, usize) {
    let site = Site::serving(ours(), [("GetTask", results)]).await;
    let mut wait = Duration::ZERO;
    let found = site.agent.look_later(&site.exchange(), "t1", "remote-1", &mut wait).await;
    let left = site.fake.results.lock()["GetTask"].len();
    (found.map(|progress| progress.result.state).map_err(|error| error.to_string()), left)
}

#[tokio::test]
async fn a_failed_look_is_followed_by_another_unless_it_is_refused() {
    let done = json!({"result": task("TASK_STATE_COMPLETED", json!([]))});
    let passing = [json!(500), json!(503), json!("{\"result\": {"), json!({"error": {"code": -32603, "message": "x"}})];
    let results = passing.into_iter().chain([done.clone()]).collect();
    assert_eq!(looked(results).await, (Ok(AgentTaskState::Completed), 0));
    let large = json!("x".repeat(MAX_BODY + 1));
    for refused in [json!(404), json!({"error": {"code": -32001, "message": "No such task"}}), large] {
        let (found, left) = looked(vec![refused.clone(), done.clone()]).await;
        assert!(found.is_err() && left == 1, "{found:?}");
    }
    let (found, left) = looked(vec![json!(500); 12]).await;
    assert_eq!((found.unwrap_err(), left), ("it answered with HTTP status 500 Internal Server Error".to_owned(), 1));
}

#[tokio::test]
async fn an_error_or_a_malformed_response_is_an_error_with_the_reason() {
    let error = json!({"error": {"code": -32602, "message": "No such skill\n"}});
    assert_eq!(refused(ours(), error).await, "it refused with error -32602: No such skill\\n");
    let nothing = "its response is not what A2A 1.0 has: there is neither a message nor a task";
    assert_eq!(refused(ours(), json!({"result": {}})).await, nothing);
    let state = json!({"result": {"task": task("TASK_STATE_DANCING", json!([]))}});
    assert_eq!(
        refused(ours(), state).await,
        "its response is not what A2A 1.0 has: `TASK_STATE_DANCING` is no state of a task"
    );
    let lost = refused(json!({"name": 1}), json!({})).await;
    assert!(lost.starts_with("its response is not what A2A 1.0 has: invalid type"), "{lost}");
}

#[tokio::test]
async fn an_agent_at_an_address_that_is_not_public_is_not_reached_without_an_exception() {
    let site = Site { egress: egress(EgressConfig::default()), ..Site::serving(ours(), []).await };
    let error = site.agent.refresh(&site.exchange()).await.unwrap_err();
    assert_eq!(error.to_string(), "it may not be reached: the address of `127.0.0.1` is not public but loopback");
    assert!(!error.is_retryable());
}
