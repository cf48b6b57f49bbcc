//! The tools: their definitions, and how each is run.

use std::sync::Arc;

use futures_util::FutureExt as _;
use futures_util::future::{BoxFuture, ready};
use serde::Deserialize;
use serde_json::{Value, json};
use tokio::sync::watch;
use toolbus_core::caller::{AgentName, Caller};
use toolbus_core::failure::{Cause, Effect, ToolFailure};
use toolbus_core::listing::ListedTool;
use toolbus_core::tool::ToolOutput;
use toolbus_mcp_server::{Backend, BackendCall, CallerListing, Document, Unavailable};

use crate::api::{Api, Right};

/// Longest identifier that a tool takes, in characters.
const MAX_IDENTIFIER: usize = 128;

/// A tool that reads the account.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum AccountTool {
    Credits,
    KeyInfo,
    Models,
    Keys,
    Key,
    Generation,
}

impl AccountTool {
    /// All of them, sorted by name.
    const ALL: [Self; 6] = [Self::Key, Self::KeyInfo, Self::Credits, Self::Generation, Self::Keys, Self::Models];

    const fn name(self) -> &'static str {
        match self {
            Self::Credits => "get_credits",
            Self::KeyInfo => "get_api_key_info",
            Self::Models => "list_models",
            Self::Keys => "list_api_keys",
            Self::Key => "get_api_key",
            Self::Generation => "get_generation",
        }
    }

    const fn description(self) -> &'static str {
        match self {
            Self::Credits => {
                "Returns the credits that the OpenRouter account has bought and used, in US dollars. Needs a management \
                 key."
            }
            Self::KeyInfo => {
                "Returns label, limit, usage and rights of the OpenRouter API key that this server uses. Works with any \
                 key."
            }
            Self::Models => {
                "Lists the models of OpenRouter with context length, prices and parameters. The list has hundreds of \
                 entries."
            }
            Self::Keys => {
                "Lists API keys of the OpenRouter account with name, hash, limit and usage: the first page of those of \
                 its default workspace; never the keys themselves. Needs a management key."
            }
            Self::Key => "Returns name, limit and usage of one OpenRouter API key by its hash. Needs a management key.",
            Self::Generation => {
                "Returns model, tokens, cost and timing of one earlier request to OpenRouter by its generation id. A \
                 generation can be read some seconds after it ended."
            }
        }
    }

    /// Name and description of its argument.
    const fn argument(self) -> Option<(&'static str, &'static str)> {
        match self {
            Self::Key => Some(("keyHash", "Hash of the key, as `list_api_keys` lists it.")),
            Self::Generation => Some(("generationId", "Id of the generation, such as `gen-1234567890`.")),
            _ => None,
        }
    }

    fn parameters(self) -> Value {
        let properties = self.argument().map_or(json!({}), |(name, description)| {
            json!({name: {"type": "string", "description": description, "pattern": format!("^[A-Za-z0-9_-]{{1,{MAX_IDENTIFIER}}}$")}})
        });
        let required: Vec<&str> = self.argument().into_iter().map(|(name, _)| name).collect();
        json!({"type": "object", "properties": properties, "required": required, "additionalProperties": false})
    }

    fn listed(self) -> ListedTool {
        ListedTool {
            name: self.name().into(),
            llm_name: self.name().into(),
            title: None,
            description: self.description().to_owned(),
            parameters: Some(Arc::new(self.parameters())),
            output_schema: None,
            source: "openrouter".into(),
            effect: Effect::ReadOnly,
            model_hints: None,
        }
    }

    fn find(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|tool| tool.name() == name)
    }

    async fn call(self, api: &Api, arguments: Option<&str>) -> Result<String, ToolFailure> {
        let id = self.read(arguments)?;
        let nothing_there = "OpenRouter has nothing there: is the base URL that of the API?";
        let (any, management) = (Right::AnyKey, Right::ManagementKey);
        match self {
            Self::Credits => api.get(&["credits"], None, management, nothing_there).await,
            Self::KeyInfo => api.get(&["key"], None, any, nothing_there).await,
            Self::Models => api.get(&["models"], None, any, nothing_there).await,
            Self::Keys => api.get(&["keys"], None, management, nothing_there).await,
            Self::Key => {
                let text = "No API key of the account has this hash. `list_api_keys` lists the hashes.";
                api.get(&["keys", &id], None, management, text).await
            }
            Self::Generation => {
                let text = "No generation of this key has this id. A new one can be read after some seconds.";
                api.get(&["generation"], Some(("id", &id)), any, text).await
            }
        }
    }

    /// Reads the argument; empty for a tool without one.
    fn read(self, arguments: Option<&str>) -> Result<String, ToolFailure> {
        #[derive(Deserialize)]
        #[serde(transparent)]
        struct Arguments(serde_json::Map<String, Value>);

        let Arguments(given) = serde_json::from_str(arguments.unwrap_or("{}"))
            .map_err(|_| ToolFailure::invalid("The arguments are no JSON object."))?;
        let expected = self.argument().map(|(name, _)| name);
        if given.keys().any(|name| Some(name.as_str()) != expected) {
            let takes = expected.map_or("no argument".to_owned(), |name| format!("the argument `{name}` alone"));
            return Err(ToolFailure::invalid(format!("`{}` takes {takes}.", self.name())));
        }
        let Some(name) = expected else { return Ok(String::new()) };
        let fits = |text: &&str| {
            (1..=MAX_IDENTIFIER).contains(&text.len())
                && text.bytes().all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'-'))
        };
        let value = given.get(name).and_then(Value::as_str).filter(fits);
        value.map(str::to_owned).ok_or_else(|| {
            ToolFailure::invalid(format!(
                "`{name}` must be a string of 1 to {MAX_IDENTIFIER} ASCII letters, digits, underscores and hyphens."
            ))
        })
    }
}

/// The tools, for any client: access is checked where they are served.
#[derive(Debug)]
pub(crate) struct Tools {
    api: Api,
    /// Never changes.
    changes: watch::Sender<u64>,
}

impl Tools {
    pub(crate) fn new(api: Api) -> Self {
        Self { api, changes: watch::Sender::new(0) }
    }
}

impl Backend for Tools {
    fn caller(&self, agent: Option<AgentName>, session: Arc<str>) -> Caller {
        Caller { session: Some(session), ..agent.map_or_else(Caller::unknown, Caller::agent) }
    }

    fn list<'a>(&'a self, _: &'a Caller) -> BoxFuture<'a, Result<CallerListing, Unavailable>> {
        ready(Ok(CallerListing { tools: AccountTool::ALL.map(AccountTool::listed).to_vec() })).boxed()
    }

    fn documents<'a>(&'a self, _: &'a Caller) -> BoxFuture<'a, Result<Vec<Document>, Unavailable>> {
        ready(Ok(Vec::new())).boxed()
    }

    fn fingerprints<'a>(&'a self, _: &'a Caller) -> BoxFuture<'a, (u64, u64)> {
        ready((0, 0)).boxed()
    }

    fn tool(&self, _: &Caller, name: &str) -> Option<Arc<str>> {
        AccountTool::find(name).map(|tool| tool.name().into())
    }

    fn call(&self, call: BackendCall) -> BoxFuture<'static, Result<ToolOutput, ToolFailure>> {
        let api = self.api.clone();
        async move {
            let unknown = || ToolFailure::new(Cause::UnknownTool, "There is no tool of this name.");
            let tool = AccountTool::find(&call.tool).ok_or_else(unknown)?;
            let cancelled = || ToolFailure::new(Cause::Cancelled, "The call was cancelled.");
            let running = tool.call(&api, call.arguments.as_deref());
            let ended = call.cancelled.run_until_cancelled(running).await.ok_or_else(cancelled)?;
            if let Err(failure) = &ended {
                tracing::warn!(tool = tool.name(), error = failure.message, detail = failure.detail, "a call failed");
            }
            ended.map(|text| ToolOutput { content: Some(text), ..ToolOutput::default() })
        }
        .boxed()
    }

    fn changes(&self) -> watch::Receiver<u64> {
        self.changes.subscribe()
    }

    fn end_session(&self, _: &Caller) {}
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tools_are_sorted_by_name() {
        assert!(AccountTool::ALL.map(AccountTool::name).is_sorted());
    }

    #[test]
    fn an_argument_is_checked_before_anything_is_sent() {
        assert_eq!(AccountTool::Key.read(Some(r#"{"keyHash":"f01d-_A"}"#)).unwrap(), "f01d-_A");
        assert_eq!(AccountTool::Credits.read(None).unwrap(), "");
        let refused = |tool: AccountTool, arguments: &str| tool.read(Some(arguments)).unwrap_err().message;
        let text = "`keyHash` must be a string of 1 to 128 ASCII letters, digits, underscores and hyphens.";
        let long = json!({"keyHash": "a".repeat(129)}).to_string();
        for arguments in ["{}", r#"{"keyHash":7}"#, r#"{"keyHash":""}"#, r#"{"keyHash":"../credits"}"#, &long] {
            assert_eq!(refused(AccountTool::Key, arguments), text, "{arguments}");
        }
        assert_eq!(refused(AccountTool::Key, r#"{"hash":"a"}"#), "`get_api_key` takes the argument `keyHash` alone.");
        assert_eq!(refused(AccountTool::Credits, r#"{"a":1}"#), "`get_credits` takes no argument.");
        assert_eq!(refused(AccountTool::Credits, "[]"), "The arguments are no JSON object.");
    }
}
