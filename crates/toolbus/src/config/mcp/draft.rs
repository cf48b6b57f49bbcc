//! What is said of a server, in whichever form, until it is known whether it can be meant.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use axum::http::{HeaderName, HeaderValue};
use toolbus_core::secret::Secret;
use toolbus_core::text::shown;
use toolbus_core::tool::{Naming, Validation};
use toolbus_mcp_client::spec::ToolFilter;
use toolbus_mcp_client::spec::{
    Credential, Credentials, Endpoint, HttpKind, Origin, Program, ServerName, ServerSpec, TransportSpec,
};
use url::Url;

use super::placeholders::shared_path;
use crate::config::bus::is_local;

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

/// Everything that is said of one server.
#[derive(Debug, Clone)]
pub(crate) struct Draft {
    pub(super) kind: Option<Kind>,
    pub(super) command: Option<String>,
    pub(super) args: Vec<String>,
    pub(super) env: BTreeMap<String, Secret>,
    pub(super) cwd: Option<PathBuf>,
    pub(super) roots: Vec<PathBuf>,
    pub(super) url: Option<String>,
    pub(super) headers: BTreeMap<String, Secret>,
    pub(super) credentials: Credentials,
    pub(super) allowed: Vec<String>,
    pub(super) denied: Vec<String>,
    /// Whether no tool is offered, whatever the lists say.
    pub(super) offers_none: bool,
    pub(super) prefix: Option<String>,
    pub(super) renamed: BTreeMap<String, String>,
    pub(super) validation: Validation,
    pub(super) tool_timeout: Option<Duration>,
    pub(super) is_lazy: bool,
    pub(super) is_disabled: bool,
}

/// What `type` says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    Stdio,
    Http(HttpKind),
}

/// Why a server cannot be what is said of it. Never holds a value, which may be secret.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{what}")]
pub(crate) struct Mistake {
    /// The key, as TOML has it; empty: the server as a whole.
    pub(crate) key: &'static str,
    /// What is wrong and what is expected.
    pub(crate) what: String,
}

impl Mistake {
    pub(super) fn new(key: &'static str, what: impl Into<String>) -> Self {
        Self { key, what: what.into() }
    }
}

impl Default for Draft {
    fn default() -> Self {
        Self {
            kind: None,
            command: None,
            args: Vec::new(),
            env: BTreeMap::new(),
            cwd: None,
            roots: Vec::new(),
            url: None,
            headers: BTreeMap::new(),
            credentials: Credentials::None,
            allowed: Vec::new(),
            denied: Vec::new(),
            offers_none: false,
            prefix: None,
            renamed: BTreeMap::new(),
            validation: Validation::default(),
            tool_timeout: None,
            is_lazy: false,
            is_disabled: false,
        }
    }
}

impl Draft {
    /// The same server, not to be used.
    pub(super) fn disabled(self) -> Self {
        Self { is_disabled: true, ..self }
    }

    /// The server, and what is hardly meant about it, in words.
    pub(super) fn finish(self, name: ServerName) -> Result<(ServerSpec, Vec<String>), Mistake> {
        let mut warnings = Vec::new();
        if !self.allowed.is_empty() && !self.denied.is_empty() {
            warnings.push("has both a list of allowed and of denied tools; a tool of both is denied".to_owned());
        }
        if self.offers_none {
            warnings.push("offers no tool, because its list of tools is empty".to_owned());
        }
        if self.allowed.len().max(self.denied.len()) > MAX_LIST {
            return Err(Mistake::new("", format!("more than {MAX_LIST} tools in a list")));
        }
        let (used, unused) = match self.kind.map_or(self.url.is_some(), |kind| kind != Kind::Stdio) {
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
                false => ToolFilter::new(self.allowed.clone(), self.denied.clone()),
            },
            naming: self.naming()?,
            validation: self.validation,
            tool_timeout: self.tool_timeout,
            is_lazy: self.is_lazy,
            is_disabled: self.is_disabled,
            origin: Origin::Configuration,
            transport: self.transport()?,
        };
        warnings.extend(is_exposed(&spec).then(|| "sends credentials unencrypted; use https://".to_owned()));
        warnings.extend(shared_path(&spec));
        Ok((spec, warnings))
    }

    /// How its tools are called. Names that the operator gives are such that every model accepts them as they are.
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
        require(self.renamed.len() <= MAX_RENAMED, "rename", &format!("has more than {MAX_RENAMED} tools"))?;
        let mut given = BTreeMap::new();
        for (own, name) in &self.renamed {
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
        let renamed = self.renamed.iter().map(|(own, name)| (own.as_str().into(), name.as_str().into()));
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
        let keys = [
            ("url", self.url.is_some()),
            ("headers", !self.headers.is_empty()),
            ("auth", self.credentials != Credentials::None),
        ];
        keys.into_iter().filter(|(_, is_there)| *is_there).map(|(key, _)| key).collect()
    }

    fn transport(self) -> Result<TransportSpec, Mistake> {
        match (self.kind, &self.command, &self.url) {
            (None, None, None) => Err(Mistake::new("", "expected a `command` to run, or the `url` of a server")),
            (None, Some(_), Some(_)) => {
                Err(Mistake::new("type", "has a `command` and a `url`; expected one of them, or a `type` that decides"))
            }
            (Some(Kind::Stdio), None, _) => {
                Err(Mistake::new("command", "`command` is missing; `type` says that it is a program"))
            }
            (Some(Kind::Http(_)), _, None) => {
                Err(Mistake::new("url", "`url` is missing; `type` says that it is an HTTP server"))
            }
            (Some(Kind::Http(kind)), _, Some(_)) => Ok(TransportSpec::Http(self.endpoint(kind)?)),
            (None, None, Some(_)) => Ok(TransportSpec::Http(self.endpoint(HttpKind::Detect)?)),
            (Some(Kind::Stdio) | None, Some(_), _) => Ok(TransportSpec::Stdio(self.program()?)),
        }
    }

    fn program(self) -> Result<Program, Mistake> {
        let Self { command, args, env, cwd, roots, .. } = self;
        let command = command.unwrap_or_default();
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
        Ok(Program { command, args, env, cwd, roots })
    }

    fn endpoint(self, kind: HttpKind) -> Result<Endpoint, Mistake> {
        let url = http_url("url", &self.url.unwrap_or_default())?;
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
            let is_taken = names(&self.credentials).iter().any(|name| name.eq_ignore_ascii_case(header));
            require(!is_taken, "headers", &format!("has `{header}`, which `auth` sets, too"))?;
        }
        Ok(Endpoint { url, kind, headers: self.headers, credentials: self.credentials })
    }
}

/// Reads the address of an HTTP server; `key` is where it stands.
pub(super) fn http_url(key: &'static str, text: &str) -> Result<Url, Mistake> {
    let url = Url::parse(text).map_err(|error| {
        let what = format!("`{key}` is no URL ({error}); expected \"https://host/path\"");
        Mistake::new(key, what)
    })?;
    require(matches!(url.scheme(), "http" | "https"), key, "is no HTTP address; expected \"https://host/path\"")?;
    let has_user = !url.username().is_empty() || url.password().is_some();
    require(!has_user, key, "has a user or a password, which would be shown; use a header instead")?;
    Ok(url)
}

/// The headers that credentials take.
fn names(credentials: &Credentials) -> Vec<&str> {
    let name = |credential| match credential {
        &Credential::Bearer(_) | &Credential::Basic { .. } | &Credential::ClientCredentials(_) => "authorization",
        Credential::Header { name, .. } => name.as_str(),
    };
    match credentials {
        Credentials::None => Vec::new(),
        Credentials::Shared(credential) => vec![name(credential)],
        Credentials::PerAgent(agents) => agents.values().map(name).collect(),
    }
}

/// Whether it sends secrets to another machine for everybody to read.
fn is_exposed(spec: &ServerSpec) -> bool {
    let TransportSpec::Http(endpoint) = &spec.transport else { return false };
    let is_plain = |url: &Url| url.scheme() == "http" && !is_local(url);
    let exposes = |credential: &Credential| matches!(credential, Credential::ClientCredentials(grant) if is_plain(&grant.token_url));
    let has_secrets = !endpoint.headers.is_empty() || endpoint.credentials != Credentials::None;
    let of_grant = match &endpoint.credentials {
        Credentials::None => false,
        Credentials::Shared(credential) => exposes(credential),
        Credentials::PerAgent(agents) => agents.values().any(exposes),
    };
    of_grant || (has_secrets && is_plain(&endpoint.url))
}

fn require(holds: bool, key: &'static str, what: &str) -> Result<(), Mistake> {
    if holds { Ok(()) } else { Err(Mistake::new(key, format!("`{key}` {what}"))) }
}
