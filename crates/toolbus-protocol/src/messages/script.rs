use serde::de::MapAccess;
use serde::{Serialize, Serializer};

use super::fields::{MessageFields, optional_text, read_fields};
use crate::json::ParseError;

/// The tool that a [`ScriptInvokeRequest`] calls.
pub const EXECUTE_PYTHON_SCRIPT: &str = "execute_python_script";
/// Seconds that a script may take, where its caller does not say.
pub const DEFAULT_SCRIPT_SECONDS: i64 = 30;

/// A request to run a Python script.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct ScriptInvokeRequest {
    /// The caller's id of this call, by which alone peers know the reply.
    pub tool_call_id: Option<String>,
    /// The script's text.
    pub script: Option<String>,
    /// Data that the script may read as its input.
    pub input_data: Option<String>,
    /// Seconds that the script may take; 30 when absent, or not more than 0.
    #[serde(serialize_with = "or_default")]
    pub timeout_seconds: Option<i64>,
    /// Packages to install before it runs.
    pub pip_packages: Option<Vec<String>>,
}

impl ScriptInvokeRequest {
    /// Reads a body: field names in any case, unknown fields ignored, a field named twice refused.
    ///
    /// # Errors
    ///
    /// If the body is not UTF-8, not JSON, not an object, too deep, or without a script.
    pub fn parse(body: &[u8]) -> Result<Self, ParseError> {
        let request = Self::parse_empty(body)?;
        if request.script.is_none() {
            return Err(ParseError::Missing("script"));
        }
        Ok(request)
    }

    /// Reads a body like [`Self::parse`], also one without a script: for code that refuses such a request, and names the
    /// call when doing so.
    ///
    /// # Errors
    ///
    /// If the body is not UTF-8, not JSON, not an object, or too deep.
    pub fn parse_empty(body: &[u8]) -> Result<Self, ParseError> {
        read_fields(body)
    }
}

/// Peers read a number here, never a null.
fn or_default<S: Serializer>(seconds: &Option<i64>, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_i64(seconds.unwrap_or(DEFAULT_SCRIPT_SECONDS))
}

impl MessageFields for ScriptInvokeRequest {
    const NAMES: &'static [&'static str] = &["toolCallId", "script", "inputData", "timeoutSeconds", "pipPackages"];

    fn read<'de, A: MapAccess<'de>>(&mut self, name: &str, fields: &mut A) -> Result<(), A::Error> {
        match name {
            "toolCallId" => self.tool_call_id = optional_text(fields)?,
            "script" => self.script = fields.next_value()?,
            "inputData" => self.input_data = fields.next_value()?,
            "timeoutSeconds" => self.timeout_seconds = fields.next_value()?,
            "pipPackages" => self.pip_packages = fields.next_value()?,
            _ => {}
        }
        Ok(())
    }
}

/// Outcome of a script. No other form of reply exists: where there is no result, the exit code is -1 and `stderr` says
/// why.
#[derive(Debug, Clone, Default, PartialEq, Eq, serde::Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema), schemars(transform = with_is_success))]
#[serde(rename_all = "camelCase")]
pub struct ScriptInvokeResponse {
    /// Id of the call.
    pub tool_call_id: String,
    /// Text that the script wrote to its standard output; null when nothing.
    pub output: Option<String>,
    /// Text that the script wrote to its standard error; null when nothing.
    pub stderr: Option<String>,
    /// Exit code of the script.
    pub exit_code: i32,
    /// Milliseconds that it took.
    pub elapsed_ms: u64,
}

#[cfg(feature = "schema")]
fn with_is_success(schema: &mut schemars::Schema) {
    let field = serde_json::json!({"type": "boolean", "description": "Whether the exit code is 0."});
    if let Some(fields) = schema.get_mut("properties").and_then(serde_json::Value::as_object_mut) {
        fields.insert("isSuccess".to_owned(), field);
    }
    if let Some(required) = schema.get_mut("required").and_then(serde_json::Value::as_array_mut) {
        required.push("isSuccess".into());
    }
}

impl ScriptInvokeResponse {
    /// The exit code of a script that was not run, or did not come to its own end.
    pub const NOT_RUN: i32 = -1;

    /// Whether the script succeeded. It travels as `isSuccess`, and is ignored when read.
    #[must_use]
    pub const fn is_success(&self) -> bool {
        self.exit_code == 0
    }
}

impl Serialize for ScriptInvokeResponse {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        use serde::ser::SerializeStruct as _;
        let mut response = serializer.serialize_struct("ScriptInvokeResponse", 6)?;
        response.serialize_field("toolCallId", &self.tool_call_id)?;
        response.serialize_field("output", &self.output)?;
        response.serialize_field("stderr", &self.stderr)?;
        response.serialize_field("exitCode", &self.exit_code)?;
        response.serialize_field("isSuccess", &self.is_success())?;
        response.serialize_field("elapsedMs", &self.elapsed_ms)?;
        response.end()
    }
}
