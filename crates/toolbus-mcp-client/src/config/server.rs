//! `[mcp.servers.NAME]`: one MCP server, also as the file of servers has it.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;

use reqwest::header::{HeaderName, HeaderValue};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use toolbus_config::{HumanDuration, Secret};
use toolbus_core::text::shown;
use toolbus_core::tool::{Naming, Validation};
use toolbus_outbound::{Auth, is_local};
use toolbus_trust::pins::Level;
use url::Url;

use super::auth;
use super::placeholders::shared_path;
use super::{Mistake, http_url, require};
use crate::servers::MAX_SUMMARY;
use crate::spec::{
    Credential, Credentials, HttpKind, HttpSpec, ServerName, ServerOrigin, ServerSpec, StdioSpec, ToolFilter,
    TransportSpec,
};

/// Most arguments of a program, and entries of a list of tools.
const MAX_LIST: usize = 10_000;
/// Most variables of an environment.
const MAX_VARIABLES: usize = 1024;
/// Most tools that have other names.
const MAX_RENAMED: usize = 1024;
/// Longest prefix, in characters.
const MAX_PREFIX: usize = 32;
/// Longest name that a tool is given, in characters: what models accept.
const MAX_RENAMED_NAME: usize = 64;
/// Most headers.
const MAX_HEADERS: usize = 64;
/// Headers that the transport itself sets.
const OWN_HEADERS: [&str; 9] = [
    "accept",
    "connection",
    "content-length",
    "content-type",
    "host",
    "last-event-id",
    "mcp-protocol-version",
    "mcp-session-id",
    "transfer-encoding",
];

/// One MCP server: a program with `command`, or an HTTP server with `url`.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct ServerConfig {
    /// Program to run; a name is looked up in `PATH`.
    #[schemars(length(min = 1))]
    pub command: Option<String>,
    /// Arguments of the program.
    #[schemars(length(max = 10_000))]
    pub args: Vec<String>,
    /// Variables of its environment; a value may be a secret. It has none of the daemon's but those that every program
    /// needs.
    #[schemars(extend("maxProperties" = 1024))]
    pub env: BTreeMap<String, Secret>,
    /// Working directory; absent: the daemon's.
    #[schemars(length(min = 1))]
    pub cwd: Option<PathBuf>,
    /// Directories that it may work in, as MCP roots.
    #[schemars(length(max = 1024))]
    pub roots: Vec<PathBuf>,
    /// Address of an HTTP server.
    #[schemars(length(min = 1))]
    pub url: Option<String>,
    /// Transport; absent: by `command` or `url`, and for a `url` by trying.
    #[serde(rename = "type")]
    pub kind: Option<ServerKind>,
    /// Headers of every request; a value may be a secret.
    #[schemars(extend("maxProperties" = 64))]
    pub headers: BTreeMap<String, Secret>,
    /// Authorisation of requests; absent: nothing besides the headers.
    pub auth: Option<Auth>,
    /// Prefix of the names of the server's tools, before an underscore: `files` makes `read_file` `files_read_file`.
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
    /// Purpose of the server, for models that look for a service; absent: the server's own description.
    #[schemars(length(min = 1, max = 300))]
    pub summary: Option<String>,
    /// Whether the first call starts the server, and idleness stops it.
    pub lazy: bool,
    /// Whether the server is disabled.
    pub disabled: bool,
    /// Treatment of arguments that the tools' schemas do not allow.
    pub validate: Validation,
    /// Longest run of one call; absent: the daemon's.
    pub tool_timeout: Option<HumanDuration>,
    /// Whether tools that changed are quarantined until an operator approves them; "strict": suspect ones, too. Absent: as
    /// `pins.sources` says.
    pub pin: Option<Level>,
    /// Whether no tool is offered, whatever the lists say: as the empty list of some files means.
    #[serde(skip)]
    pub offers_none: bool,
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
    /// Whichever of those for HTTP the server has.
    #[serde(skip)]
    Detect,
}

impl ServerConfig {
    /// The server of this name as the MCP client takes it, and warnings about valid but suspicious settings.
    ///
    /// # Errors
    ///
    /// If it is no name, or the server cannot be as configured.
    pub fn finish(&self, name: &str) -> Result<(ServerSpec, Vec<String>), Mistake> {
        self.spec(ServerName::parse(name).map_err(|error| Mistake::new("", error.to_string()))?)
    }

    /// The same for a name that was read.
    pub(super) fn spec(&self, name: ServerName) -> Result<(ServerSpec, Vec<String>), Mistake> {
        let mut warnings = Vec::new();
        let credentials = self.auth.as_ref().map_or(Ok(Credentials::None), auth::credentials)?;
        if !self.allowed_tools.is_empty() && !self.denied_tools.is_empty() {
            warnings.push("has both a list of allowed and of denied tools; a tool of both is denied".to_owned());
        }
        if self.offers_none {
            warnings.push("offers no tool, because its list of tools is empty".to_owned());
        }
        if self.allowed_tools.len().max(self.denied_tools.len()) > MAX_LIST {
            return Err(Mistake::new("", format!("more than {MAX_LIST} tools in a list")));
        }
        let (used, unused) = match self.kind.map_or(self.url.is_some(), |kind| kind != ServerKind::Stdio) {
            true => ("url", self.of_program()),
            false => ("command", self.of_endpoint()),
        };
        if !unused.is_empty() {
            let keys: Vec<_> = unused.iter().map(|key| format!("`{key}`")).collect();
            warnings.push(format!("not used, because it has a `{used}`: {}", keys.join(", ")));
        }
        let spec = ServerSpec {
            name,
            tools: match self.offers_none {
                true => ToolFilter::new(Vec::new(), vec!["*".to_owned()]),
                false => ToolFilter::new(self.allowed_tools.clone(), self.denied_tools.clone()),
            },
            naming: self.naming()?,
            validation: self.validate,
            tool_timeout: self.tool_timeout.map(HumanDuration::get),
            is_lazy: self.lazy,
            is_disabled: self.disabled,
            origin: ServerOrigin::Configuration,
            summary: self.checked_summary()?,
            transport: self.transport(credentials)?,
        };
        warnings.extend(is_exposed(&spec).then(|| "sends credentials unencrypted; use https://".to_owned()));
        warnings.extend(shared_path(&spec));
        if self.auth.as_ref().is_some_and(Auth::has_idle_credential) {
            warnings.push("never sends its shared credential, because `per_agent` is there".to_owned());
        }
        Ok((spec, warnings))
    }

    /// The summary: one line that models can read as it is.
    fn checked_summary(&self) -> Result<Option<Arc<str>>, Mistake> {
        let Some(summary) = &self.summary else { return Ok(None) };
        let fits = !summary.trim().is_empty()
            && summary.chars().count() <= MAX_SUMMARY
            && !summary.chars().any(char::is_control);
        require(fits, "summary", &format!("is no summary: expected 1 to {MAX_SUMMARY} characters in one line"))?;
        Ok(Some(summary.trim().into()))
    }

    /// Returns the naming of the server's tools. Names that the operator gives are such that every model accepts them
    /// as they are.
    fn naming(&self) -> Result<Naming, Mistake> {
        let is_name = |name: &str, longest: usize| {
            let is_plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '-');
            name.starts_with(|c: char| c.is_ascii_alphabetic()) && name.chars().all(is_plain) && name.len() <= longest
        };
        let form = |longest| {
            format!("expected a letter, and then at most {} letters, digits, `_` and `-` of ASCII", longest - 1)
        };
        if let Some(prefix) = &self.prefix {
            require(is_name(prefix, MAX_PREFIX), "prefix", &format!("is no prefix: {}", form(MAX_PREFIX)))?;
        }
        require(self.rename.len() <= MAX_RENAMED, "rename", &format!("has more than {MAX_RENAMED} tools"))?;
        let mut given = BTreeMap::new();
        for (own, name) in &self.rename {
            let (own_shown, shown) = (shown(own), shown(name));
            require(
                is_name(name, MAX_RENAMED_NAME),
                "rename",
                &format!("gives `{own_shown}` a name that cannot be used: {}", form(MAX_RENAMED_NAME)),
            )?;
            if let Some(other) = given.insert(name, own_shown.clone()) {
                let what = format!("`rename` gives two tools the name `{shown}`: `{other}` and `{own_shown}`");
                return Err(Mistake::new("rename", what));
            }
        }
        let renamed = self.rename.iter().map(|(own, name)| (own.as_str().into(), name.as_str().into()));
        Ok(Naming { set: None, prefix: self.prefix.as_deref().map(Arc::from), renamed: renamed.collect() })
    }

    /// The keys that only a program has, of those that are there.
    fn of_program(&self) -> Vec<&'static str> {
        let keys = [
            ("command", self.command.is_some()),
            ("args", !self.args.is_empty()),
            ("env", !self.env.is_empty()),
            ("cwd", self.cwd.is_some()),
            ("roots", !self.roots.is_empty()),
        ];
        keys.into_iter().filter(|(_, is_there)| *is_there).map(|(key, _)| key).collect()
    }

    /// The keys that only an HTTP server has, of those that are there.
    fn of_endpoint(&self) -> Vec<&'static str> {
        let keys = [("url", self.url.is_some()), ("headers", !self.headers.is_empty()), ("auth", self.auth.is_some())];
        keys.into_iter().filter(|(_, is_there)| *is_there).map(|(key, _)| key).collect()
    }

    fn transport(&self, credentials: Credentials) -> Result<TransportSpec, Mistake> {
        let kind = match (self.kind, &self.command, &self.url) {
            (None, None, None) => {
                return Err(Mistake::new("", "expected a `command` to run, or the `url` of a server"));
            }
            (None, Some(_), Some(_)) => {
                let what = "has a `command` and a `url`; expected one of them, or a `type` that decides";
                return Err(Mistake::new("type", what));
            }
            (Some(ServerKind::Stdio) | None, Some(_), _) => return Ok(TransportSpec::Stdio(self.program()?)),
            (Some(ServerKind::Stdio), None, _) => {
                return Err(Mistake::new("command", "`command` is missing; `type` says that it is a program"));
            }
            (Some(_), _, None) => {
                return Err(Mistake::new("url", "`url` is missing; `type` says that it is an HTTP server"));
            }
            (Some(ServerKind::Http | ServerKind::StreamableHttp), _, Some(_)) => HttpKind::Streamable,
            (Some(ServerKind::Sse), _, Some(_)) => HttpKind::Sse,
            (Some(ServerKind::Detect) | None, _, Some(_)) => HttpKind::Detect,
        };
        Ok(TransportSpec::Http(self.endpoint(kind, credentials)?))
    }

    fn program(&self) -> Result<StdioSpec, Mistake> {
        let Self { command, args, env, cwd, roots, .. } = self;
        let command = command.clone().unwrap_or_default();
        require(!command.trim().is_empty() && !command.contains('\0'), "command", "is no program")?;
        require(args.len() <= MAX_LIST, "args", &format!("has more than {MAX_LIST} arguments"))?;
        require(!args.iter().any(|arg| arg.contains('\0')), "args", "holds a NUL character, which no argument can")?;
        require(env.len() <= MAX_VARIABLES, "env", &format!("has more than {MAX_VARIABLES} variables"))?;
        let is_name = |name: &String| !name.is_empty() && !name.contains(['=', '\0']);
        require(env.keys().all(is_name), "env", "has a name that no variable can have")?;
        let has_nul = env.values().any(|value| value.expose().contains('\0'));
        require(!has_nul, "env", "holds a NUL character, which no variable can")?;
        let is_path = |path: &PathBuf| !path.as_os_str().is_empty() && !path.to_string_lossy().contains('\0');
        require(cwd.as_ref().is_none_or(is_path), "cwd", "is no path of a directory")?;
        require(roots.iter().all(is_path), "roots", "has an entry that is no path of a directory")?;
        Ok(StdioSpec { command, args: args.clone(), env: env.clone(), cwd: cwd.clone(), roots: roots.clone() })
    }

    fn endpoint(&self, kind: HttpKind, credentials: Credentials) -> Result<HttpSpec, Mistake> {
        let url = http_url("url", self.url.as_deref().unwrap_or_default())?;
        require(self.headers.len() <= MAX_HEADERS, "headers", &format!("has more than {MAX_HEADERS} headers"))?;
        for (name, value) in &self.headers {
            let parsed = HeaderName::from_bytes(name.as_bytes());
            let Ok(header) = parsed else {
                return Err(Mistake::new("headers", "`headers` has a name that no header can have"));
            };
            let header = header.as_str();
            require(
                !OWN_HEADERS.contains(&header),
                "headers",
                &format!("has `{header}`, which the daemon itself sets"),
            )?;
            let has_value = HeaderValue::from_str(value.expose()).is_ok();
            require(has_value, "headers", &format!("has a value for `{header}` that no header can have"))?;
            let is_taken = credentials.all().any(|own| header_name(own).eq_ignore_ascii_case(header));
            require(!is_taken, "headers", &format!("has `{header}`, which `auth` sets, too"))?;
        }
        Ok(HttpSpec { url, kind, headers: self.headers.clone(), credentials })
    }
}

/// The header that a credential takes.
fn header_name(credential: &Credential) -> &str {
    match credential {
        Credential::Bearer(_) | Credential::Basic { .. } | Credential::ClientCredentials(_) => "authorization",
        Credential::Header { name, .. } => name,
    }
}

/// Whether the server gets secrets on another machine without encryption.
fn is_exposed(spec: &ServerSpec) -> bool {
    let TransportSpec::Http(endpoint) = &spec.transport else { return false };
    let is_plain = |url: &Url| url.scheme() == "http" && !is_local(url);
    let exposes = |credential: &Credential| matches!(credential, Credential::ClientCredentials(grant) if is_plain(&grant.token_url));
    let has_secrets = !endpoint.headers.is_empty() || endpoint.credentials != Credentials::None;
    endpoint.credentials.all().any(exposes) || (has_secrets && is_plain(&endpoint.url))
}
