//! Who may enter: names of this server, pages of browsers, and tokens. Everything that the MCP door answers passes here
//! first.

use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::extract::{DefaultBodyLimit, Request, State};
use axum::http::Method;
use axum::http::request::Parts;
use axum::middleware::{Next, from_fn_with_state};
use axum::response::Response;
use tokio_util::sync::CancellationToken;
use toolbus_core::audit::Audit;
use toolbus_mcp_server::{Entry, Keeper, Visitor};

use super::answers::Answers;
use super::bodies::Bodies;
use super::connections::Link;
use super::origin;
use super::refusal::Refusal;
use super::throttle::Attempts;
use crate::config::http::Open;
use crate::config::{Config, HttpConfig};

/// How long a wrong token waits for its answer: as long as a client may hold a connection by saying nothing, so that
/// guessing holds up others no more than silence does.
pub(super) const PENALTY: Duration = Duration::from_secs(2);
/// Parameters of a URL in which a token is looked for.
const TOKENS_IN_URLS: [&str; 6] = ["token", "access_token", "api_key", "apikey", "key", "authorization"];

/// Who may enter, which changes with the configuration.
pub struct Entrance {
    keeper: Keeper,
    names: RwLock<Arc<Names>>,
    attempts: Attempts,
    bodies: Bodies,
    answers: Answers,
}

/// Names that are no address.
#[derive(Debug, Default)]
pub(super) struct Names {
    /// Of this server.
    pub(super) hosts: Vec<String>,
    /// Of pages that may use the door.
    pub(super) origins: Vec<String>,
}

impl Entrance {
    /// Lets in whom `config` says. What visitors have open ends with `stop`.
    #[must_use]
    pub fn new(config: &Config, audit: Arc<dyn Audit>, stop: CancellationToken) -> Arc<Self> {
        let entrance = Self {
            keeper: Keeper::new(stop),
            names: RwLock::default(),
            attempts: Attempts::new(audit),
            bodies: Bodies::new(config.max_door_body()),
            answers: Answers::default(),
        };
        entrance.replace(&config.http);
        Arc::new(entrance)
    }

    /// Lets in whom `config` says, from now on.
    pub fn replace(&self, config: &HttpConfig) {
        let tokens = config.each_token().map(|(agent, token)| ((**agent).clone(), token.reveal()));
        self.keeper.replace(tokens, config.open != Open::No);
        let names = Names { hosts: config.allowed_hosts.clone(), origins: config.allowed_origins.clone() };
        *self.names.write().unwrap_or_else(PoisonError::into_inner) = Arc::new(names);
    }

    pub(super) fn names(&self) -> Arc<Names> {
        Arc::clone(&self.names.read().unwrap_or_else(PoisonError::into_inner))
    }
}

/// Puts the entrance in front of a door. What comes through has a [`Visitor`], and a body that is there as a whole.
pub(super) fn guarded(entrance: Arc<Entrance>, door: Router) -> Router {
    // Bodies are bounded here.
    door.layer(DefaultBodyLimit::disable()).layer(from_fn_with_state(entrance, check))
}

async fn check(State(entrance): State<Arc<Entrance>>, request: Request, next: Next) -> Response {
    let (mut parts, body) = request.into_parts();
    let page = match origin::page(&parts.headers, &entrance.names()) {
        Ok(page) => page,
        Err(refusal) => return refusal.answer(body).await,
    };
    if parts.method == Method::OPTIONS && page.is_some() && origin::is_preflight(&parts.headers) {
        return origin::preflight(page, &parts.headers);
    }
    let answer = match entrance.admit(&parts).await {
        Err(refusal) => refusal.answer(body).await,
        Ok(visitor) => match entrance.bodies.read(body, &parts.headers).await {
            Err((refusal, rest)) => refusal.answer(rest).await,
            Ok(whole) => {
                let token = visitor.token;
                parts.extensions.insert::<Visitor>(visitor);
                let answer = next.run(Request::from_parts(parts, Body::from(whole.bytes))).await;
                drop(whole.room);
                entrance.answers.counted(answer, token).await
            }
        },
    };
    origin::readable(page, answer)
}

impl Entrance {
    /// Who this is, if it may enter; its connection has a place for it then.
    async fn admit(&self, parts: &Parts) -> Result<Visitor, Refusal> {
        let link = parts.extensions.get::<Arc<Link>>();
        let visitor = match self.keeper.judge(&parts.headers) {
            Entry::Closed => return Err(Refusal::closed()),
            _ if has_token(parts.uri.query()) => return Err(Refusal::in_url()),
            Entry::Visitor(visitor) => visitor,
            Entry::NoToken => return Err(Refusal::no_token()),
            Entry::Unreadable => return Err(Refusal::unreadable()),
            Entry::Wrong => {
                self.attempts.tell(link.and_then(|link| link.remote()));
                return Err(match slowed(link).await {
                    true => Refusal::wrong_token(),
                    false => Refusal::too_many_attempts(),
                });
            }
        };
        if let Some(link) = link {
            let has_place = match visitor.token {
                Some(token) => link.vouch(Some(token)).await,
                None => link.welcome().await,
            };
            if !has_place {
                return Err(Refusal::full());
            }
            link.take_any_time();
        }
        Ok(visitor)
    }
}

/// Tells a client of the door that it asks for another host.
pub(super) async fn misdirected(text: &str, body: Body) -> Response {
    Refusal::misdirected(text).answer(body).await
}

/// Waits as whoever gave a wrong token does. Whether there was room to wait.
pub(super) async fn slowed(link: Option<&Arc<Link>>) -> bool {
    let has_room = link.is_none_or(|link| link.slow_down());
    if has_room {
        tokio::time::sleep(PENALTY).await;
    }
    has_room
}

/// Whether a URL has what looks like a token.
fn has_token(query: Option<&str>) -> bool {
    query.unwrap_or_default().split('&').any(|part| {
        let name = part.split('=').next().unwrap_or_default();
        TOKENS_IN_URLS.iter().any(|known| known.eq_ignore_ascii_case(name))
    })
}
