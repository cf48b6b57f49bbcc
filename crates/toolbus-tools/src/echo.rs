//! `echo`: returns its argument. For trying out a bus.

use serde_json::json;
use toolbus_core::failure::ToolFailure;
use toolbus_core::tool::{Effect, Executor, Tool, ToolCall, ToolDescriptor, ToolOutput};

use crate::arguments;

/// The tool `echo {text}`, of source `echo`. It changes nothing, and is treated as if it had this effect.
#[must_use]
pub fn tool(effect: Effect) -> Tool {
    let parameters = json!({
        "type": "object",
        "properties": { "text": { "type": "string", "description": "What to answer with" } },
        "required": ["text"],
        "additionalProperties": false,
    });
    let description = "Answers with the given text, unchanged.";
    Tool::new(ToolDescriptor::local("echo", "echo", description, effect, parameters), Echo)
}

struct Echo;

impl Executor for Echo {
    async fn execute(&self, call: ToolCall) -> Result<ToolOutput, ToolFailure> {
        arguments::text(&call.arguments, "text").map(ToolOutput::text)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;
    use toolbus_core::failure::Cause;
    use toolbus_core::tool::{Effect, Tool, ToolOutput};

    use crate::testing::run;

    fn tool() -> Tool {
        super::tool(Effect::ReadOnly)
    }

    #[tokio::test]
    async fn it_returns_its_text_unchanged() {
        for text in ["", "hello", "ä\u{0}\n{text}"] {
            assert_eq!(run(&tool(), json!({"text": text})).await, Ok(ToolOutput::text(text)));
        }
    }

    #[tokio::test]
    async fn it_names_a_missing_text() {
        let failure = run(&tool(), json!({})).await.unwrap_err();
        assert_eq!(failure.cause, Cause::InvalidArguments);
        assert!(failure.message.contains("`text`"), "{}", failure.message);
    }
}
