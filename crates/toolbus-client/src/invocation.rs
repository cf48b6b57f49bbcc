//! Whole exchanges with a daemon: a call with its progress and its end, the list of tools, a ping.

use std::sync::Arc;
use std::time::{Duration, Instant};

use serde::de::DeserializeOwned;
use serde_json::{Map, Value};
use tokio::sync::mpsc;
use toolbus_bus::Clock;
use toolbus_protocol::{
    Ping, Pong, ToolCancelRequest, ToolInvokeRequest, ToolListRequest, ToolListResponse, ToolProgress, header,
    message_type, new_message_id, topic,
};

use crate::{CallReply, Client, ClientError, Expectation, Expected, Received};

/// Time beyond the budget of a call in which its reply may still arrive.
const GRACE: Duration = Duration::from_secs(5);

/// A call that was sent. Dropping it leaves the call running at the daemon; [`Self::cancel`] ends it.
pub struct Invocation<'a> {
    client: &'a Client,
    id: String,
    expected: Expected,
    reports: mpsc::Receiver<ToolProgress>,
    budget: Duration,
    until: Instant,
}

impl Client {
    /// Sends a call whose tool gets at most `budget`.
    ///
    /// # Errors
    ///
    /// If the broker does not take the request within `budget`, or no daemon listens.
    pub async fn invoke(
        &self,
        tool: &str,
        arguments: &Map<String, Value>,
        budget: Duration,
    ) -> Result<Invocation<'_>, ClientError> {
        let id = new_message_id();
        let body = ToolInvokeRequest {
            tool_call_id: Some(id.clone()),
            tool_name: tool.to_owned(),
            arguments: Some(serde_json::to_string(arguments).unwrap_or_default()),
            ..ToolInvokeRequest::default()
        };
        let mut request = self.sign(self.call(&body, Some(budget), None));
        let wanted = (header::on_the_wire(header::PROGRESS), "1".to_owned());
        Arc::make_mut(&mut request.properties).headers.push(wanted);
        let (expectation, reports) = Expectation::with_progress();
        let expected = self.expect(&request, expectation);
        let published = tokio::time::timeout(budget, self.publish(&request)).await;
        published.map_err(|_| ClientError::NoReply(budget))??;
        Ok(Invocation { client: self, id, expected, reports, budget, until: Clock::SYSTEM.now() + budget + GRACE })
    }

    /// Lists the tools that the caller may use.
    ///
    /// # Errors
    ///
    /// If no daemon replies within `patience`, or it refuses.
    pub async fn list(&self, request: &ToolListRequest, patience: Duration) -> Result<ToolListResponse, ClientError> {
        let kinds = (message_type::TOOL_LIST_REQUEST, message_type::TOOL_LIST_RESPONSE);
        self.query(&self.control(topic::TOOL_LIST), kinds, request, patience).await
    }

    /// Asks a daemon for its name, version and load.
    ///
    /// # Errors
    ///
    /// If no daemon replies within `patience`.
    pub async fn ping(&self, patience: Duration) -> Result<Pong, ClientError> {
        self.query(&self.control(topic::TOOL_PING), (message_type::PING, message_type::PONG), &Ping {}, patience).await
    }

    async fn query<T: DeserializeOwned>(
        &self,
        topic: &str,
        (request_type, reply_type): (&str, &str),
        body: &impl serde::Serialize,
        patience: Duration,
    ) -> Result<T, ClientError> {
        let request = self.sign(self.ask(topic, request_type, body));
        self.exchange(&request, patience).await?.read(reply_type)
    }
}

impl Invocation<'_> {
    /// The call's id, by which it can be cancelled.
    #[must_use]
    pub fn id(&self) -> &str {
        &self.id
    }

    /// The next progress report; `None` once the reply has come.
    pub async fn progress(&mut self) -> Option<ToolProgress> {
        tokio::time::timeout_at(self.until.into(), self.reports.recv()).await.ok().flatten()
    }

    /// Waits for the reply, at most until a few seconds after the budget of the call.
    ///
    /// # Errors
    ///
    /// If no readable reply arrives in time. A reported failure of the tool or the daemon is no error: see
    /// [`ReplyContent`](crate::ReplyContent).
    pub async fn response(mut self) -> Result<CallReply, ClientError> {
        let received = tokio::time::timeout_at(self.until.into(), self.expected.received()).await;
        CallReply::read(received.map_err(|_| ClientError::NoReply(self.budget + GRACE))??)
    }

    /// Requests that the daemon cancels the call. Its reply states whether it did; see [`Self::response`].
    ///
    /// # Errors
    ///
    /// If the broker does not take the request, or no daemon listens.
    pub async fn cancel(&self) -> Result<(), ClientError> {
        let body = ToolCancelRequest { tool_call_id: self.id.clone() };
        let message = self.client.tell(topic::TOOL_CANCEL, message_type::TOOL_CANCEL_REQUEST, &body);
        self.client.publish(&self.client.sign(message)).await
    }
}

impl Received {
    /// Reads a body of this type.
    ///
    /// # Errors
    ///
    /// If the message is an error of the daemon, of another type, or no JSON of this shape.
    pub fn read<T: DeserializeOwned>(&self, message_type: &str) -> Result<T, ClientError> {
        let unreadable = |error: serde_json::Error| ClientError::Unreadable(error.to_string());
        match self.properties.message_type.as_deref() {
            Some(found) if found == message_type => serde_json::from_slice(&self.body).map_err(unreadable),
            Some(message_type::TOOL_ERROR) => {
                Err(ClientError::Tool(serde_json::from_slice(&self.body).map_err(unreadable)?))
            }
            other => Err(ClientError::Unreadable(format!("unexpected type {:?}", other.unwrap_or_default()))),
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;
    use toolbus_broker::embedded::Embedded;
    use toolbus_bus::{Bus, Delivery, Outgoing, Ownership, Subscription, Target};
    use toolbus_protocol::{AgentName, Envelope};

    use super::*;
    use crate::{ReplyContent, Sender};

    const PATIENCE: Duration = Duration::from_secs(30);

    /// A client for the agent ana, and the other end of its bus.
    async fn connected() -> (Client, Embedded, mpsc::Receiver<Delivery>) {
        let bus = Embedded::new();
        let topics = [topic::TOOL_INVOKE, topic::TOOL_LIST, topic::TOOL_PING, topic::TOOL_CANCEL];
        let requests = bus.consume(Subscription {
            queue: "daemon".to_owned(),
            topics: topics.map(str::to_owned).into(),
            prefetch: 10,
            max_body: usize::MAX,
            ownership: Ownership::Replica,
            is_inbox: false,
        });
        let agent = Some(AgentName::parse("ana").unwrap());
        let client = Client::connect(Arc::new(bus.connect()), topic::TOOL_INVOKE, PATIENCE).await.unwrap();
        (client.signed_by(Sender { agent, ..Sender::default() }), bus, requests)
    }

    /// Takes the next request, and sends a reply of this type.
    async fn reply(bus: &Embedded, requests: &mut mpsc::Receiver<Delivery>, kind: &str, body: &Value) {
        let request = requests.recv().await.unwrap();
        send(bus, &request, kind, body).await;
        // One that is dropped would be delivered again.
        request.settle.acknowledge().await;
    }

    async fn send(bus: &Embedded, request: &Delivery, kind: &str, body: &Value) {
        let envelope = Envelope {
            message_type: kind.to_owned(),
            correlation_id: request.properties.correlation_id.clone().unwrap(),
            ..Envelope::default()
        };
        let message = Outgoing {
            target: Target::Queue(request.properties.reply_to.clone().unwrap()),
            mandatory: true,
            proven: false,
            properties: envelope.into_properties().into(),
            body: body.to_string().into(),
        };
        bus.publish(&message).await.unwrap();
    }

    #[tokio::test(start_paused = true)]
    async fn a_call_has_progress_and_a_response() {
        let (client, bus, mut requests) = connected().await;
        let arguments = Map::from_iter([("text".to_owned(), json!("hi"))]);
        let mut call = client.invoke("echo", &arguments, Duration::from_secs(1)).await.unwrap();
        let request = requests.recv().await.unwrap();
        let headers = ["rb-source", "rb-rb-timeout-ms", "rb-rb-progress"].map(|name| request.properties.header(name));
        assert_eq!(headers, [Some("ana"), Some("1000"), Some("1")]);
        let report = json!({"toolCallId": call.id(), "toolName": "echo", "progress": 1.0, "message": "half"});
        send(&bus, &request, message_type::TOOL_PROGRESS, &report).await;
        assert_eq!(call.progress().await.unwrap().message.as_deref(), Some("half"));
        let body = json!({"toolCallId": call.id(), "toolName": "echo", "content": "hi", "isError": false});
        send(&bus, &request, message_type::TOOL_INVOKE_RESPONSE, &body).await;
        assert!(call.progress().await.is_none());
        let ReplyContent::Result(result) = call.response().await.unwrap().content else { panic!("no result") };
        assert_eq!(result.content.as_deref(), Some("hi"));
    }

    #[tokio::test(start_paused = true)]
    async fn a_call_is_cancelled_by_its_id_and_given_up_after_its_budget() {
        let (client, _bus, mut requests) = connected().await;
        let call = client.invoke("echo", &Map::new(), Duration::from_secs(1)).await.unwrap();
        requests.recv().await.unwrap().settle.acknowledge().await;
        call.cancel().await.unwrap();
        let cancel = requests.recv().await.unwrap();
        assert_eq!(&*cancel.routing_key, topic::TOOL_CANCEL);
        assert_eq!(serde_json::from_slice::<Value>(&cancel.body).unwrap(), json!({"toolCallId": call.id()}));
        let error = call.response().await.unwrap_err();
        assert_eq!(error.to_string(), "no answer came within 6.0s");
    }

    #[tokio::test(start_paused = true)]
    async fn a_client_lists_tools_and_reads_the_pong_of_a_daemon() {
        let (client, bus, mut requests) = connected().await;
        let listed = json!({"agent": "ana", "version": "1", "tools": [{"name": "echo"}]});
        let wanted = ToolListRequest::default();
        let (list, ()) = tokio::join!(
            client.list(&wanted, PATIENCE),
            reply(&bus, &mut requests, message_type::TOOL_LIST_RESPONSE, &listed)
        );
        assert_eq!(list.unwrap().tools, [json!({"name": "echo"})]);
        let pong = json!({"name": "toolbus", "version": "1", "configDigest": "", "roles": ["invoke"],
            "uptimeSeconds": 1, "inFlight": 0, "tools": 1});
        let (pong, ()) = tokio::join!(client.ping(PATIENCE), reply(&bus, &mut requests, message_type::PONG, &pong));
        assert_eq!(pong.unwrap().name, "toolbus");
        let refused = json!({"toolCallId": "", "toolName": "", "code": "not_allowed", "message": "No."});
        let (pong, ()) =
            tokio::join!(client.ping(PATIENCE), reply(&bus, &mut requests, message_type::TOOL_ERROR, &refused));
        assert_eq!(pong.unwrap_err().to_string(), "not_allowed: No.");
    }
}
