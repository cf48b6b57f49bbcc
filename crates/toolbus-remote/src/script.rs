//! Scripts at RockBot's scripts manager, or at another daemon that takes its messages.

use std::sync::Arc;
use std::time::Duration;

use serde_json::Value;
use toolbus_client::SignedRequest;
use toolbus_core::Clock;
use toolbus_core::failure::ToolFailure;
use toolbus_core::tool::{Effect, Executor, ToolCall, ToolOutput};
use toolbus_protocol::{ScriptInvokeRequest, message_type, new_message_id, topic};

use crate::RemoteDaemons;
use crate::calling::{RemoteCall, connected};
use crate::remote::{next_hop, unreachable};

/// Seconds of a script without `timeout_seconds`.
const DEFAULT_SECONDS: u64 = 30;
/// Most seconds of a script, as RockBot's agents limit it.
pub const MAX_SCRIPT_SECONDS: u64 = 300;
/// Time beyond the script's in which its reply may arrive, as RockBot's agents wait.
pub const SCRIPT_GRACE: Duration = Duration::from_secs(10);

/// Runs the calls of a tool for scripts elsewhere. Its arguments are those of `execute_python_script`.
pub struct RemoteScripts {
    daemons: RemoteDaemons,
    name: Arc<str>,
}

impl RemoteDaemons {
    /// Returns what runs scripts at the program that takes them from `script.invoke`. `name` is the tool's name here.
    #[must_use]
    pub fn scripts(&self, name: Arc<str>) -> RemoteScripts {
        RemoteScripts { daemons: self.clone(), name }
    }
}

impl RemoteScripts {
    fn request(&self, call: &ToolCall, id: &str, hops: (String, String)) -> (SignedRequest, Duration) {
        let client = self.daemons.client();
        let text = |name: &str| call.arguments.get(name).and_then(Value::as_str).map(str::to_owned);
        let wanted = call.arguments.get("timeout_seconds").and_then(Value::as_u64).unwrap_or(DEFAULT_SECONDS);
        // What the call leaves, so that the reply of a script that takes its whole time still gets here.
        let left = call.remaining().saturating_sub(SCRIPT_GRACE).as_secs();
        let seconds = wanted.clamp(1, MAX_SCRIPT_SECONDS).min(left.max(1));
        let packages = call.arguments.get("pip_packages").and_then(Value::as_array);
        let packages = packages.map(|all| all.iter().filter_map(Value::as_str).map(str::to_owned).collect());
        let body = ScriptInvokeRequest {
            tool_call_id: Some(id.to_owned()),
            script: text("script"),
            input_data: text("input_data"),
            timeout_seconds: i64::try_from(seconds).ok(),
            pip_packages: packages,
        };
        let mut request = client.ask(topic::SCRIPT_INVOKE, message_type::SCRIPT_INVOKE_REQUEST, &body);
        let properties = Arc::make_mut(&mut request.properties);
        // The manager's reply names the call alone.
        properties.correlation_id = Some(id.to_owned());
        properties.headers.push(hops);
        (request, Duration::from_secs(seconds))
    }
}

impl Executor for RemoteScripts {
    async fn execute(&self, call: ToolCall) -> Result<ToolOutput, ToolFailure> {
        let hops = next_hop(&self.name, &call.caller)?;
        let client = self.daemons.client();
        let away = |failure| unreachable(&self.name, failure);
        connected(client, &call.cancelled, call.deadline).await.map_err(away)?;
        let (id, sender) = (new_message_id(), self.daemons.sender(&call.caller));
        let (request, time) = self.request(&call, &id, hops);
        let reply = RemoteCall {
            client,
            request: sender.sign(request),
            sender: &sender,
            id: &id,
            from: None,
            effect: Effect::Effectful,
            progress: None,
            cancelled: &call.cancelled,
            until: call.deadline.min(Clock::SYSTEM.now() + time + SCRIPT_GRACE),
        };
        let reply = reply.run().await.map_err(away)?;
        reply.ok_or_else(|| ToolCall { tool: Arc::clone(&self.name), ..call }.timed_out(Some(time + SCRIPT_GRACE)))
    }
}
