use toolbus_protocol::{EXECUTE_PYTHON_SCRIPT, ParseError, ToolInvokeRequest, message_type, topic};

use super::script;

/// The form in which a tool is asked for, and in which its caller is answered.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) enum Dialect {
    /// The request names its tool.
    #[default]
    Tool,
    /// The request is for one tool, which runs scripts.
    Script,
}

/// What a body says, whatever its form.
pub(super) struct Body {
    pub(super) request: ToolInvokeRequest,
    /// A member without which the request cannot be used.
    pub(super) missing: Option<&'static str>,
}

impl Dialect {
    /// The form that is spoken on a topic.
    pub(super) fn of(topic: &str) -> Self {
        if topic == topic::SCRIPT_INVOKE { Self::Script } else { Self::Tool }
    }

    /// The type of its requests.
    pub(super) const fn request_type(self) -> &'static str {
        match self {
            Self::Tool => message_type::TOOL_INVOKE_REQUEST,
            Self::Script => message_type::SCRIPT_INVOKE_REQUEST,
        }
    }

    /// Reads a body, also one in which something is missing, because its refusal names the call.
    pub(super) fn read(self, body: &[u8]) -> Result<Body, ParseError> {
        match self {
            Self::Tool => {
                let request = ToolInvokeRequest::parse_unnamed(body)?;
                let missing = request.tool_name.is_empty().then_some("toolName");
                Ok(Body { request, missing })
            }
            Self::Script => script::read(body),
        }
    }

    /// What is known of a request whose body is not.
    pub(super) fn unread(self) -> ToolInvokeRequest {
        let tool_name = match self {
            Self::Tool => String::new(),
            Self::Script => EXECUTE_PYTHON_SCRIPT.to_owned(),
        };
        ToolInvokeRequest { tool_name, ..ToolInvokeRequest::default() }
    }
}
