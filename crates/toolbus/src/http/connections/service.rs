use std::convert::Infallible;
use std::panic::AssertUnwindSafe;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use axum::Router;
use axum::body::{Body, Bytes};
use axum::http::header::CONNECTION;
use axum::http::{HeaderValue, Request, Response, StatusCode};
use axum::response::IntoResponse as _;
use futures_util::FutureExt as _;
use futures_util::future::BoxFuture;
use hyper::body::{Body as HttpBody, Frame, Incoming, SizeHint};
use hyper_util::service::TowerToHyperService;

use super::state::Link;

/// The routes, which find the link of their connection among the extensions of each request.
pub(super) struct Service {
    routes: TowerToHyperService<Router>,
    link: Arc<Link>,
}

impl Service {
    pub(super) fn new(routes: Router, link: Arc<Link>) -> Self {
        Self { routes: TowerToHyperService::new(routes), link }
    }
}

impl hyper::service::Service<Request<Incoming>> for Service {
    type Response = Response<Answer>;
    type Error = Infallible;
    type Future = BoxFuture<'static, Result<Self::Response, Infallible>>;

    fn call(&self, mut request: Request<Incoming>) -> Self::Future {
        let link = Arc::clone(&self.link);
        link.begin();
        request.extensions_mut().insert(Arc::clone(&link));
        let answer = AssertUnwindSafe(self.routes.call(request)).catch_unwind();
        async move {
            let answer = match answer.await {
                Ok(Ok(answer)) => answer,
                Ok(Err(never)) => match never {},
                Err(_) => {
                    tracing::error!("HTTP: a request made its handler panic");
                    failed()
                }
            };
            Ok(answer.map(|body| Answer { body, link }))
        }
        .boxed()
    }
}

fn failed() -> Response<Body> {
    let close = [(CONNECTION, HeaderValue::from_static("close"))];
    (StatusCode::INTERNAL_SERVER_ERROR, close, "The daemon could not answer this; its log has more.\n").into_response()
}

/// The body of an answer, which tells its link when there is no more of it.
pub(super) struct Answer {
    body: Body,
    link: Arc<Link>,
}

impl Drop for Answer {
    fn drop(&mut self) {
        self.link.answered();
    }
}

impl HttpBody for Answer {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        Pin::new(&mut self.body).poll_frame(cx)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}
