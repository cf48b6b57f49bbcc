use serde_json::{Map, Value};
use toolbus_protocol::{
    DEFAULT_SCRIPT_SECONDS, EXECUTE_PYTHON_SCRIPT, ParseError, ScriptInvokeRequest, ToolInvokeRequest,
};

use super::dialect::Body;

/// Reads a request for a script: a call of the tool that runs scripts, which from then on is one like any other.
pub(super) fn read(body: &[u8]) -> Result<Body, ParseError> {
    let ScriptInvokeRequest { tool_call_id, script, input_data, timeout_seconds, pip_packages } =
        ScriptInvokeRequest::parse_empty(body)?;
    // Of a time that is none, peers make the usual one.
    let seconds = timeout_seconds.filter(|seconds| *seconds > 0).unwrap_or(DEFAULT_SCRIPT_SECONDS);
    let missing = script.is_none().then_some("script");
    let arguments: Map<String, Value> = [
        ("script", script.map(Value::from)),
        ("input_data", input_data.map(Value::from)),
        ("timeout_seconds", Some(seconds.into())),
        ("pip_packages", pip_packages.map(Value::from)),
    ]
    .into_iter()
    .filter_map(|(name, value)| Some((name.to_owned(), value?)))
    .collect();
    let request = ToolInvokeRequest {
        tool_call_id,
        tool_name: EXECUTE_PYTHON_SCRIPT.to_owned(),
        arguments: Some(Value::from(arguments).to_string()),
        ..ToolInvokeRequest::default()
    };
    Ok(Body { request, missing })
}

#[cfg(test)]
mod tests {
    use insta::assert_snapshot;

    use super::*;

    fn arguments(body: &str) -> String {
        let Body { request, missing } = read(body.as_bytes()).unwrap();
        assert_eq!((&*request.tool_name, missing), (EXECUTE_PYTHON_SCRIPT, None));
        request.arguments.unwrap()
    }

    #[test]
    fn what_a_request_says_becomes_the_arguments_of_the_tool() {
        let body = r#"{"toolCallId":"c","script":"pass","inputData":"{}","timeoutSeconds":5,"pipPackages":["a","b"]}"#;
        assert_snapshot!(arguments(body), @r#"{"input_data":"{}","pip_packages":["a","b"],"script":"pass","timeout_seconds":5}"#);
        assert_eq!(read(body.as_bytes()).unwrap().request.tool_call_id.as_deref(), Some("c"));
    }

    #[test]
    fn what_a_request_leaves_out_is_no_argument_but_for_the_time() {
        let body = r#"{"script":"","inputData":null,"timeoutSeconds":null,"pipPackages":null}"#;
        assert_snapshot!(arguments(body), @r#"{"script":"","timeout_seconds":30}"#);
    }

    #[test]
    fn a_time_that_is_none_is_the_usual_one() {
        for seconds in [0, -1, i64::MIN] {
            let body = format!(r#"{{"script":"","timeoutSeconds":{seconds}}}"#);
            assert_eq!(arguments(&body), r#"{"script":"","timeout_seconds":30}"#);
        }
    }

    #[test]
    fn a_request_without_a_script_names_its_call_all_the_same() {
        let Body { request, missing } = read(br#"{"toolCallId":"c"}"#).unwrap();
        assert_eq!((request.tool_call_id.as_deref(), missing), (Some("c"), Some("script")));
    }
}
