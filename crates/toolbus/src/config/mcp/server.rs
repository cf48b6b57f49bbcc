//! `[mcp.servers.NAME]`: one MCP server.

use std::collections::BTreeMap;
use std::path::PathBuf;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use toolbus_core::tool::Validation;
use toolbus_mcp_client::spec::{Credentials, HttpKind, ServerName, ServerSpec};

use super::auth::ServerAuth;
use super::draft::{Draft, Kind, Mistake};
use crate::config::pins::Pin;
use crate::config::{HumanDuration, Secret};

/// One MCP server: a program with `command`, or an HTTP server with `url`.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct ServerConfig {
    /// Program to run; a name is looked up in `PATH`.
    #[schemars(length(min = 1))]
    pub command: Option<String>,
    /// Its arguments.
    #[schemars(length(max = 10_000))]
    pub args: Vec<String>,
    /// Variables of its environment; a value may be a secret. It has none of the daemon's but those that every program
    /// needs.
    #[schemars(extend("maxProperties" = 1024))]
    pub env: BTreeMap<String, Secret>,
    /// Its working directory; absent: the daemon's.
    #[schemars(length(min = 1))]
    pub cwd: Option<PathBuf>,
    /// Directories that it is told it may work in.
    #[schemars(length(max = 1024))]
    pub roots: Vec<PathBuf>,
    /// Address of an HTTP server.
    #[schemars(length(min = 1))]
    pub url: Option<String>,
    /// Its transport; absent: told by `command` or `url`, and for a `url` by trying.
    #[serde(rename = "type")]
    pub kind: Option<ServerKind>,
    /// Headers of every request; a value may be a secret.
    #[schemars(extend("maxProperties" = 64))]
    pub headers: BTreeMap<String, Secret>,
    /// How requests are authorised; absent: by nothing besides the headers.
    pub auth: Option<ServerAuth>,
    /// What the names of its tools begin with, before an underscore: `files` makes `read_file` `files_read_file`.
    #[schemars(length(min = 1, max = 32))]
    pub prefix: Option<String>,
    /// Other names for some of its tools, which get no `prefix`: `{ read_file = "open_document" }`.
    #[schemars(extend("maxProperties" = 1024))]
    pub rename: BTreeMap<String, String>,
    /// Names of the tools that are offered, as the server has them, ASCII case ignored; none: all.
    #[schemars(length(max = 10_000), extend("items" = {"type": "string", "format": "toolbus-name"}))]
    pub allowed_tools: Vec<String>,
    /// Names of tools that are not offered, as the server has them, whatever else allows them.
    #[schemars(length(max = 10_000), extend("items" = {"type": "string", "format": "toolbus-name"}))]
    pub denied_tools: Vec<String>,
    /// Whether it is started by its first call and stopped when idle.
    pub lazy: bool,
    /// Whether it is not to be used.
    pub disabled: bool,
    /// What is done about arguments that its schemas do not allow.
    pub validate: Validate,
    /// Longest run of one call; absent: the daemon's.
    pub tool_timeout: Option<HumanDuration>,
    /// Whether tools that changed are quarantined until an operator approves them; "strict": suspect ones, too. Absent: as
    /// `pins.sources` says.
    pub pin: Option<Pin>,
}

/// A transport.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
#[schemars(inline)]
pub enum ServerKind {
    /// A program, spoken to over its standard input and output.
    Stdio,
    /// Streamable HTTP.
    Http,
    /// The same.
    StreamableHttp,
    /// HTTP+SSE, as of protocol version 2024-11-05.
    Sse,
}

/// What is done about arguments that a server's schemas do not allow.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
#[schemars(inline)]
pub enum Validate {
    /// The call is refused.
    #[default]
    Enforce,
    /// The call is run, and the log says what is wrong.
    Warn,
    /// Nobody looks.
    Off,
}

impl From<Validate> for Validation {
    fn from(validate: Validate) -> Self {
        match validate {
            Validate::Enforce => Self::Enforce,
            Validate::Warn => Self::Warn,
            Validate::Off => Self::Off,
        }
    }
}

impl From<ServerKind> for Kind {
    fn from(kind: ServerKind) -> Self {
        match kind {
            ServerKind::Stdio => Self::Stdio,
            ServerKind::Http | ServerKind::StreamableHttp => Self::Http(HttpKind::Streamable),
            ServerKind::Sse => Self::Http(HttpKind::Sse),
        }
    }
}

impl ServerConfig {
    /// The server of this name as the bridge takes it, and what is hardly meant about it, in words.
    pub(crate) fn finish(&self, name: &str) -> Result<(ServerSpec, Vec<String>), Mistake> {
        let name = ServerName::parse(name).map_err(|error| Mistake::new("", error.to_string()))?;
        let secrets = |of: &BTreeMap<String, Secret>| {
            of.iter().map(|(name, value)| (name.clone(), value.reveal().into())).collect()
        };
        let draft = Draft {
            kind: self.kind.map(Kind::from),
            command: self.command.clone(),
            args: self.args.clone(),
            env: secrets(&self.env),
            cwd: self.cwd.clone(),
            roots: self.roots.clone(),
            url: self.url.clone(),
            headers: secrets(&self.headers),
            credentials: self.auth.as_ref().map_or(Ok(Credentials::None), ServerAuth::credentials)?,
            allowed: self.allowed_tools.clone(),
            denied: self.denied_tools.clone(),
            offers_none: false,
            prefix: self.prefix.clone(),
            renamed: self.rename.clone(),
            validation: self.validate.into(),
            tool_timeout: self.tool_timeout.map(HumanDuration::get),
            is_lazy: self.lazy,
            is_disabled: self.disabled,
        };
        let (spec, mut warnings) = draft.finish(name)?;
        if self.auth.as_ref().is_some_and(ServerAuth::has_idle_credential) {
            warnings.push("never sends its shared credential, because `per_agent` is there".to_owned());
        }
        Ok((spec, warnings))
    }
}
