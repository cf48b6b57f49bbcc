//! Messages of a peer, byte for byte: frames of channel 1, and bodies.

/// A request on `tool.invoke`: method and content header.
pub(crate) const REQUEST: &str = "
    01 00 01 00 00 00 1b 00 3c 00 28 00 00 07 72 6f 63 6b 62 6f 74 0b 74 6f 6f 6c 2e 69 6e 76 6f 6b 65 00 ce
    02 00 01 00 00 00 b8 00 3c 00 00 00 00 00 00 00 00 00 98 b6 e0 10 61 70 70 6c 69 63 61 74 69 6f
    6e 2f 6a 73 6f 6e 00 00 00 16 09 72 62 2d 73 6f 75 72 63 65 53 00 00 00 07 52 6f 63 6b 42 6f 74
    02 20 35 62 30 66 33 63 31 65 39 61 37 64 34 63 32 66 38 65 36 62 31 61 32 64 33 63 34 66 35 30
    36 31 13 74 6f 6f 6c 2e 72 65 73 75 6c 74 2e 52 6f 63 6b 42 6f 74 20 30 66 38 66 61 64 35 62 64
    39 63 62 34 36 39 66 61 31 36 35 37 30 38 36 37 37 32 38 39 35 30 65 00 00 00 00 69 9f 74 67 1f
    52 6f 63 6b 42 6f 74 2e 54 6f 6f 6c 73 2e 54 6f 6f 6c 49 6e 76 6f 6b 65 52 65 71 75 65 73 74 ce
";

/// A result.
pub(crate) const RESULT: &str = "
    01 00 01 00 00 00 23 00 3c 00 28 00 00 07 72 6f 63 6b 62 6f 74 13 74 6f 6f 6c 2e 72 65 73 75 6c 74 2e 52 6f 63 6b 42 6f 74 00 ce
    02 00 01 00 00 00 a9 00 3c 00 00 00 00 00 00 00 00 00 86 b6 e0 10 61 70 70 6c 69 63 61 74 69 6f
    6e 2f 6a 73 6f 6e 00 00 00 19 09 72 62 2d 73 6f 75 72 63 65 53 00 00 00 0a 74 6f 6f 6c 2d 61 67
    65 6e 74 02 20 35 62 30 66 33 63 31 65 39 61 37 64 34 63 32 66 38 65 36 62 31 61 32 64 33 63 34
    66 35 30 36 31 00 20 37 63 39 65 36 36 37 39 37 34 32 35 34 30 64 65 39 34 34 62 65 30 37 66 63
    31 66 39 30 61 65 37 00 00 00 00 69 9f 74 68 20 52 6f 63 6b 42 6f 74 2e 54 6f 6f 6c 73 2e 54 6f
    6f 6c 49 6e 76 6f 6b 65 52 65 73 70 6f 6e 73 65 ce
";

/// A refusal: content header alone.
pub(crate) const ERROR: &str = "
    02 00 01 00 00 00 a0 00 3c 00 00 00 00 00 00 00 00 00 9a b6 e0 10 61 70 70 6c 69 63 61 74 69 6f
    6e 2f 6a 73 6f 6e 00 00 00 19 09 72 62 2d 73 6f 75 72 63 65 53 00 00 00 0a 74 6f 6f 6c 2d 61 67
    65 6e 74 02 20 35 62 30 66 33 63 31 65 39 61 37 64 34 63 32 66 38 65 36 62 31 61 32 64 33 63 34
    66 35 30 36 31 00 20 37 63 39 65 36 36 37 39 37 34 32 35 34 30 64 65 39 34 34 62 65 30 37 66 63
    31 66 39 30 61 65 39 00 00 00 00 69 9f 74 68 17 52 6f 63 6b 42 6f 74 2e 54 6f 6f 6c 73 2e 54 6f
    6f 6c 45 72 72 6f 72 ce
";

/// A request with every header that a peer sets.
pub(crate) const MCP_REQUEST: &str = "
    01 00 01 00 00 00 1f 00 3c 00 28 00 00 07 72 6f 63 6b 62 6f 74 0f 74 6f 6f 6c 2e 69 6e 76 6f 6b 65 2e 6d 63 70 00 ce
    02 00 01 00 00 01 34 00 3c 00 00 00 00 00 00 00 00 00 78 b6 e0 10 61 70 70 6c 69 63 61 74 69 6f
    6e 2f 6a 73 6f 6e 00 00 00 92 09 72 62 2d 73 6f 75 72 63 65 53 00 00 00 07 52 6f 63 6b 42 6f 74
    13 72 62 2d 72 62 2d 63 6f 6e 74 65 6e 74 2d 74 72 75 73 74 53 00 00 00 0c 74 6f 6f 6c 2d 72 65
    71 75 65 73 74 13 72 62 2d 72 62 2d 74 6f 6f 6c 2d 70 72 6f 76 69 64 65 72 53 00 00 00 03 6d 63
    70 10 72 62 2d 72 62 2d 74 69 6d 65 6f 75 74 2d 6d 73 53 00 00 00 05 36 30 30 30 30 10 72 62 2d
    72 62 2d 6d 63 70 2d 73 65 72 76 65 72 53 00 00 00 0a 66 69 6c 65 73 79 73 74 65 6d 02 20 35 62
    30 66 33 63 31 65 39 61 37 64 34 63 32 66 38 65 36 62 31 61 32 64 33 63 34 66 35 30 36 31 13 74
    6f 6f 6c 2e 72 65 73 75 6c 74 2e 52 6f 63 6b 42 6f 74 20 30 66 38 66 61 64 35 62 64 39 63 62 34
    36 39 66 61 31 36 35 37 30 38 36 37 37 32 38 39 35 30 65 00 00 00 00 69 9f 74 67 1f 52 6f 63 6b
    42 6f 74 2e 54 6f 6f 6c 73 2e 54 6f 6f 6c 49 6e 76 6f 6b 65 52 65 71 75 65 73 74 ce
";

/// A reply with headers: content header alone.
pub(crate) const MCP_RESULT: &str = "
    02 00 01 00 00 00 f1 00 3c 00 00 00 00 00 00 00 00 00 50 b6 e0 10 61 70 70 6c 69 63 61 74 69 6f
    6e 2f 6a 73 6f 6e 00 00 00 61 09 72 62 2d 73 6f 75 72 63 65 53 00 00 00 12 6d 63 70 2d 62 72 69
    64 67 65 2e 52 6f 63 6b 42 6f 74 13 72 62 2d 72 62 2d 63 6f 6e 74 65 6e 74 2d 74 72 75 73 74 53
    00 00 00 0b 74 6f 6f 6c 2d 6f 75 74 70 75 74 13 72 62 2d 72 62 2d 74 6f 6f 6c 2d 70 72 6f 76 69
    64 65 72 53 00 00 00 03 6d 63 70 02 20 35 62 30 66 33 63 31 65 39 61 37 64 34 63 32 66 38 65 36
    62 31 61 32 64 33 63 34 66 35 30 36 31 00 20 37 63 39 65 36 36 37 39 37 34 32 35 34 30 64 65 39
    34 34 62 65 30 37 66 63 31 66 39 30 61 65 61 00 00 00 00 69 9f 74 68 20 52 6f 63 6b 42 6f 74 2e
    54 6f 6f 6c 73 2e 54 6f 6f 6c 49 6e 76 6f 6b 65 52 65 73 70 6f 6e 73 65 ce
";

pub(crate) const REQUEST_BODY: &str = r#"{"toolCallId":"call_1","toolName":"web_search","arguments":"{\u0022query\u0022:\u0022rust amqp\u0022,\u0022count\u0022:3}","sessionId":"session/abc123"}"#;

pub(crate) const RESULT_BODY: &str = r#"{"toolCallId":"call_1","toolName":"web_search","content":"1. [lapin](https://docs.rs/lapin)\n   AMQP client for Rust","isError":false}"#;

pub(crate) const FAILED_BODY: &str = r#"{"toolCallId":"call_1","toolName":"web_search","content":"Search failed: Response status code does not indicate success: 429 (Too Many Requests).","isError":true}"#;

pub(crate) const ERROR_BODY: &str = r#"{"toolCallId":"call_1","toolName":"no_such_tool","code":"tool_not_found","message":"Tool \u0027no_such_tool\u0027 is not registered.","isRetryable":false}"#;

pub(crate) const MCP_REQUEST_BODY: &str = r#"{"toolCallId":"call_7","toolName":"read_file","arguments":"{\u0022path\u0022:\u0022/data/a.txt\u0022}","sessionId":null}"#;

pub(crate) const MCP_RESULT_BODY: &str =
    r#"{"toolCallId":"call_7","toolName":"read_file","content":"hello","isError":false}"#;

pub(crate) const MCP_TIMEOUT_BODY: &str = r#"{"toolCallId":"call_7","toolName":"read_file","code":"timeout","message":"MCP server \u0027filesystem\u0027 timed out after 60000ms. This is a transient error \u2014 retry the same tool call to continue.","isRetryable":true}"#;
