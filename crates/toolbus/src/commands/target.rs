//! The target of commands for operators: the daemon that runs a configuration, or the configuration alone.

use std::borrow::Borrow;
use std::fs::File;
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use axum::http::Method;
use percent_encoding::{NON_ALPHANUMERIC, percent_encode};
use toolbus_core::events::Discard;
use toolbus_core::{Clock, Gates};
use toolbus_telemetry::RecentCalls;
use toolbus_trust::pins::Pins;
use url::Url;

use super::{MISTAKE, complain, note, reported, warn};
use crate::app::{self, AppError};
use crate::config::{Config, Problems, Secret, Sources};
use crate::http::NoServers;
use crate::http::admin::client::{AdminClient, AdminClientError};
use crate::http::admin::view::{
    AgentOverview, AgentTools, ApiError, CallerQuery, DaemonStatus, Explained, Question, ToolsFound, ToolsQuery,
};
use crate::http::admin::{Admin, FamilyViews, SwitchStore};
use crate::terminal::OutputFormat;

/// Variable that holds the token for a daemon that is reached over HTTP.
pub(crate) const TOKEN_VARIABLE: &str = "TOOLBUS_ADMIN_TOKEN";
/// Largest file with a token, in bytes.
const MAX_TOKEN: u64 = 64 * 1024;
/// Exit code when no daemon responds.
const NO_DAEMON: u8 = 7;

/// The daemon that is asked: the one that runs the configuration, unless another is named.
#[derive(Debug, Clone, Default, clap::Args)]
pub struct DaemonArgs {
    /// Unix socket of the daemon; without it, the `daemon.socket` of the configuration.
    #[arg(long, value_name = "PATH", conflicts_with = "daemon")]
    socket: Option<PathBuf>,
    /// Ask over HTTP instead, such as `http://127.0.0.1:8471`. The token, its `http.admin_token`, is read from the variable
    /// TOOLBUS_ADMIN_TOKEN or from --admin-token-file.
    #[arg(long, value_name = "URL", value_parser = daemon_url)]
    daemon: Option<Url>,
    /// File that holds the token.
    #[arg(long, value_name = "FILE", requires = "daemon")]
    admin_token_file: Option<PathBuf>,
}

/// The daemon that is asked, or the configuration alone.
#[derive(Debug, Clone, Default, clap::Args)]
pub struct TargetArgs {
    #[command(flatten)]
    daemon: DaemonArgs,
    /// Ask no daemon: the answer is what the configuration alone comes to, as it is when none runs.
    #[arg(long, conflicts_with_all = ["socket", "daemon"])]
    offline: bool,
}

/// As what the agent asks.
#[derive(Debug, Clone, Default, clap::Args)]
pub struct RoleArgs {
    /// The agent's binding.
    #[arg(long, value_name = "CHANNEL:ACCOUNT")]
    pub(crate) binding: Option<String>,
    /// The profile that the request names.
    #[arg(long, value_name = "NAME")]
    pub(crate) profile: Option<String>,
}

/// Context of a command for operators.
#[derive(Debug, Clone)]
pub struct Operator {
    /// Where the configuration comes from.
    pub sources: Sources,
    /// Format of results.
    pub output: OutputFormat,
}

/// The target of a command.
pub enum AdminTarget {
    /// A running daemon.
    Daemon(AdminClient),
    /// The configuration alone.
    Files(Box<Admin>),
}

/// Reason why a command for operators failed.
#[derive(Debug, thiserror::Error)]
pub enum TargetError {
    /// The configuration cannot be used.
    #[error("{0}")]
    Configuration(Problems),
    /// The configuration that the command is about cannot be used.
    #[error("{0}")]
    Mistakes(Problems),
    /// The configuration cannot be put into practice.
    #[error(transparent)]
    App(#[from] AppError),
    /// The configuration has no socket.
    #[error("{0}")]
    NoSocket(&'static str),
    /// The command contradicts itself, or cannot be read.
    #[error("{0}")]
    Usage(String),
    /// The operator did not confirm.
    #[error("{0}")]
    Declined(&'static str),
    /// The request to the running daemon failed.
    #[error(transparent)]
    Client(#[from] AdminClientError),
    /// A daemon of another configuration has the socket.
    #[error("{address} is that of a daemon with {files}: name the files of that one with --config, or give --socket")]
    Other {
        /// The socket.
        address: String,
        /// The configuration that the daemon runs.
        files: String,
    },
    /// The request to the configuration alone failed.
    #[error(transparent)]
    Api(#[from] ApiError),
    /// Nothing can be printed.
    #[error("cannot write: {0}")]
    Output(#[from] io::Error),
}

impl TargetError {
    /// Prints the error, and returns its exit code.
    pub(crate) fn report(&self) -> u8 {
        match self {
            Self::Configuration(problems) => {
                complain(problems);
                warn("to ask a running daemon without a configuration, point to it with --socket or --daemon");
                MISTAKE
            }
            Self::Mistakes(problems) => complain(problems),
            Self::Api(error) if error.is_failure() => reported(self),
            Self::Client(AdminClientError::Refused(_))
            | Self::NoSocket(_)
            | Self::Usage(_)
            | Self::Api(_)
            | Self::App(_) => {
                reported(self);
                MISTAKE
            }
            Self::Client(AdminClientError::Failed(_)) | Self::Declined(_) | Self::Output(_) => reported(self),
            Self::Client(_) | Self::Other { .. } => {
                reported(self);
                NO_DAEMON
            }
        }
    }

    /// Whether no daemon runs the configuration, as far as this process can see.
    pub(super) const fn is_absence(&self) -> bool {
        matches!(self, Self::Client(AdminClientError::Unreachable { .. }) | Self::Other { .. } | Self::NoSocket(_))
    }
}

impl DaemonArgs {
    /// Finds the daemon: the one that is named, else the one that runs the configuration.
    ///
    /// # Errors
    ///
    /// If the configuration cannot be used, or no daemon that runs it responds.
    pub async fn open(&self, operator: &Operator) -> Result<AdminClient, TargetError> {
        match self.named(operator)? {
            Some(client) => Ok(client),
            None => {
                let loaded = Config::load_for(&operator.sources, &[]).map(|loaded| loaded.config);
                let found = running(socket(&loaded, &operator.sources), &operator.sources).await;
                found.map_err(|error| loaded.err().map_or(error, TargetError::Configuration))
            }
        }
    }

    /// The daemon that the options name, if they name one.
    ///
    /// # Errors
    ///
    /// If the token for --daemon is missing.
    pub(crate) fn named(&self, operator: &Operator) -> Result<Option<AdminClient>, TargetError> {
        Ok(match (&self.daemon, &self.socket) {
            (Some(url), _) => Some(AdminClient::Http { url: url.clone(), token: self.token(operator)? }),
            (None, Some(path)) => Some(AdminClient::Socket(path.clone())),
            (None, None) => None,
        })
    }

    fn token(&self, operator: &Operator) -> Result<Secret, TargetError> {
        let token = match &self.admin_token_file {
            Some(file) => {
                let mut text = String::new();
                File::open(file).and_then(|open| open.take(MAX_TOKEN).read_to_string(&mut text)).map_err(|error| {
                    TargetError::Usage(format!("the token file `{}` cannot be read: {error}", file.display()))
                })?;
                text
            }
            None => operator.sources.environment.get(TOKEN_VARIABLE).cloned().unwrap_or_default(),
        };
        match token.trim() {
            "" => Err(TargetError::Usage(format!(
                "--daemon needs the daemon's http.admin_token: set {TOKEN_VARIABLE}, or give --admin-token-file"
            ))),
            token => Ok(Secret::new(token)),
        }
    }
}

impl TargetArgs {
    /// Finds the daemon as [`DaemonArgs::open`] does. With `--offline`, and where there is a configuration and no
    /// daemon runs it, the target is the configuration alone; the second case is reported on standard error.
    ///
    /// # Errors
    ///
    /// If the configuration cannot be used; or no daemon responds, and there is no configuration either.
    pub async fn open(&self, operator: &Operator) -> Result<AdminTarget, TargetError> {
        self.find(operator, operator.is_configured()).await
    }

    /// The same, for requests to which the defaults suffice.
    ///
    /// # Errors
    ///
    /// If the configuration cannot be used.
    pub async fn open_always(&self, operator: &Operator) -> Result<AdminTarget, TargetError> {
        self.find(operator, true).await
    }

    async fn find(&self, operator: &Operator, may_go_without: bool) -> Result<AdminTarget, TargetError> {
        if let Some(client) = self.daemon.named(operator)? {
            return Ok(AdminTarget::Daemon(client));
        }
        let loaded = Config::load_for(&operator.sources, &[]);
        if !self.offline {
            let config = loaded.as_ref().map(|loaded| &loaded.config);
            match running(socket(&config, &operator.sources), &operator.sources).await {
                Ok(client) => return Ok(AdminTarget::Daemon(client)),
                Err(error) if loaded.is_ok() && error.is_absence() && may_go_without => {
                    note(&format!("no daemon is asked, the configuration alone is looked at: {error}"));
                }
                Err(error) => return Err(loaded.err().map_or(error, TargetError::Configuration)),
            }
        }
        let loaded = loaded.map_err(TargetError::Configuration)?;
        Ok(AdminTarget::Files(Box::new(of_files(&loaded.config, &operator.sources)?)))
    }
}

impl Operator {
    /// Whether there is more than the defaults.
    fn is_configured(&self) -> bool {
        !self.sources.files.is_empty() || !self.sources.overrides.is_empty()
    }
}

/// The socket of a configuration; of one with mistakes, as far as it can be read: its daemon runs the previous version.
fn socket(loaded: &Result<impl Borrow<Config>, impl Sized>, sources: &Sources) -> Option<PathBuf> {
    if let Ok(config) = loaded {
        return config.borrow().daemon.socket.clone();
    }
    Config::socket_as_written(sources)
}

/// The daemon on a socket, if it runs the files of `sources`, or there are none to compare.
pub(super) async fn running(socket: Option<PathBuf>, sources: &Sources) -> Result<AdminClient, TargetError> {
    let Some(path) = socket else {
        let text = "daemon.socket is \"none\", so there is no socket to ask on: use --daemon";
        return Err(TargetError::NoSocket(text));
    };
    let client = AdminClient::Socket(path);
    let daemon: DaemonStatus = client.send(Method::GET, "/v1/status").await?;
    let pairs = || daemon.files.iter().zip(&sources.files);
    let is_meant = daemon.files.len() == sources.files.len() && pairs().all(|(theirs, ours)| is_same(theirs, ours));
    // Without a named or found file, the target is the daemon of this folder, whatever its configuration.
    if is_meant || sources.files.is_empty() {
        return Ok(client);
    }
    let files = daemon.files.iter().map(|file| format!("`{}`", file.display())).collect::<Vec<_>>();
    let files = if files.is_empty() { "no configuration file".to_owned() } else { files.join(", ") };
    Err(TargetError::Other { address: client.to_string(), files })
}

/// Whether `path` leads to the file that a daemon calls `absolute`.
fn is_same(absolute: &Path, path: &Path) -> bool {
    let is_written_so = || std::path::absolute(path).is_ok_and(|path| path == absolute);
    let leads_there = || Some(absolute.canonicalize().ok()? == path.canonicalize().ok()?);
    is_written_so() || leads_there().unwrap_or(false)
}

/// The admin API of a configuration and its pins alone: with the tools that it registers, and nothing switched off.
pub(crate) fn of_files(config: &Config, sources: &Sources) -> Result<Admin, AppError> {
    let policy = app::described(config)?;
    let pins = Pins::open(config.pin_file(sources), config.pin_levels(), Clock::SYSTEM).map_err(AppError::from)?;
    policy.set_definition_check(Arc::new(pins.clone()));
    Ok(Admin {
        gates: Arc::new(Gates::new(policy)),
        switches: Arc::new(SwitchStore::unkept()),
        pins: Some(pins),
        servers: Arc::new(NoServers),
        recent: RecentCalls::default(),
        metrics: None,
        families: FamilyViews::default(),
        dead_letters: None,
        audit: Arc::new(Discard),
        daemon: None,
    })
}

impl RoleArgs {
    pub(crate) fn role(&self, session: Option<&str>) -> CallerQuery {
        CallerQuery {
            binding: self.binding.clone(),
            profile: self.profile.clone(),
            session: session.map(str::to_owned),
        }
    }
}

impl AdminTarget {
    pub(crate) async fn agents(&self) -> Result<AgentOverview, TargetError> {
        match self {
            Self::Daemon(client) => Ok(client.send(Method::GET, "/v1/agents").await?),
            Self::Files(admin) => Ok(admin.agents()),
        }
    }

    pub(crate) async fn agent(&self, name: &str, role: &CallerQuery) -> Result<AgentTools, TargetError> {
        match self {
            Self::Daemon(client) => {
                let given = [("binding", &role.binding), ("profile", &role.profile), ("session", &role.session)];
                Ok(client.send(Method::GET, &format!("/v1/agents/{}?{}", escaped(name), query_of(given))).await?)
            }
            Self::Files(admin) => Ok(admin.agent(name, role)?),
        }
    }

    pub(crate) async fn tools(&self, query: &ToolsQuery) -> Result<ToolsFound, TargetError> {
        let ToolsQuery { name, agent, binding, profile } = query;
        match self {
            Self::Daemon(client) => {
                let given = [("name", name), ("agent", agent), ("binding", binding), ("profile", profile)];
                Ok(client.send(Method::GET, &format!("/v1/tools?{}", query_of(given))).await?)
            }
            Self::Files(admin) => Ok(admin.tools(query)?),
        }
    }

    pub(crate) async fn explain(&self, question: &Question) -> Result<Explained, TargetError> {
        match self {
            Self::Daemon(client) => Ok(client.post("/v1/explain", question).await?),
            Self::Files(admin) => Ok(admin.explain(question)?),
        }
    }
}

/// The query of an address, with the values that there are.
pub(super) fn query_of<'a>(given: impl IntoIterator<Item = (&'a str, &'a Option<String>)>) -> String {
    let pairs = given.into_iter().filter_map(|(key, value)| Some(format!("{key}={}", escaped(value.as_ref()?))));
    pairs.collect::<Vec<_>>().join("&")
}

/// A text as one segment of a path, or one value of a query.
pub(super) fn escaped(text: &str) -> String {
    percent_encode(text.as_bytes(), NON_ALPHANUMERIC).to_string()
}

/// Reads the address of a daemon.
fn daemon_url(text: &str) -> Result<Url, &'static str> {
    const EXPECTED: &str = "expected http://HOST:PORT";
    let url = Url::parse(text).map_err(|_| EXPECTED)?;
    let is_bare = matches!(url.path(), "" | "/") && url.query().is_none() && url.fragment().is_none();
    let has_login = !url.username().is_empty() || url.password().is_some();
    if url.scheme() != "http" || url.host_str().is_none() || !is_bare || has_login {
        return Err(EXPECTED);
    }
    Ok(url)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn operator(environment: &[(&str, &str)]) -> Operator {
        let environment = environment.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
        Operator { sources: Sources { environment, ..Sources::default() }, output: OutputFormat::Table }
    }

    fn over_http() -> DaemonArgs {
        DaemonArgs { daemon: Some(daemon_url("http://127.0.0.1:8471").unwrap()), ..DaemonArgs::default() }
    }

    #[tokio::test]
    async fn the_socket_of_the_configuration_is_the_default_target() {
        let folder = tempfile::tempdir().unwrap();
        let socket = folder.path().join("t.sock").display().to_string();
        let moved = operator(&[("TOOLBUS__DAEMON__SOCKET", &socket)]);
        let error = DaemonArgs::default().open(&moved).await.unwrap_err().to_string();
        assert!(error.starts_with(&format!("no daemon answers on the socket `{socket}`: ")), "{error}");
        let named = DaemonArgs { socket: Some("x".into()), ..DaemonArgs::default() };
        assert_eq!(named.open(&moved).await.unwrap().to_string(), "the socket `x`");
        let http = over_http().open(&operator(&[(TOKEN_VARIABLE, "t")])).await.unwrap();
        assert_eq!(http.to_string(), "http://127.0.0.1:8471");
    }

    #[tokio::test]
    async fn the_configuration_alone_is_the_target_without_a_daemon() {
        let folder = tempfile::tempdir().unwrap();
        let socket = folder.path().join("t.sock").display().to_string();
        let mut operator = operator(&[("TOOLBUS__DAEMON__SOCKET", &socket)]);
        let default = TargetArgs::default();
        let offline = TargetArgs { offline: true, ..TargetArgs::default() };
        assert!(matches!(
            default.open(&operator).await,
            Err(TargetError::Client(AdminClientError::Unreachable { .. }))
        ));
        assert!(matches!(default.open_always(&operator).await, Ok(AdminTarget::Files(_))));
        assert!(matches!(offline.open(&operator).await, Ok(AdminTarget::Files(_))));
        operator.sources.files = vec![folder.path().join("toolbus.toml")];
        std::fs::write(folder.path().join("toolbus.toml"), "").unwrap();
        assert!(matches!(default.open(&operator).await, Ok(AdminTarget::Files(_))));
    }

    #[tokio::test]
    async fn an_impossible_target_is_refused_with_the_next_step() {
        let refused = async |args: DaemonArgs, operator: Operator| args.open(&operator).await.unwrap_err().to_string();
        let none = operator(&[("TOOLBUS__DAEMON__SOCKET", "none")]);
        insta::assert_snapshot!(refused(DaemonArgs::default(), none).await, @r#"daemon.socket is "none", so there is no socket to ask on: use --daemon"#);
        insta::assert_snapshot!(refused(over_http(), operator(&[])).await, @"--daemon needs the daemon's http.admin_token: set TOOLBUS_ADMIN_TOKEN, or give --admin-token-file");
    }

    #[test]
    fn only_a_mistake_in_the_command_line_has_the_exit_code_of_one() {
        let text = || "text".to_owned();
        for (error, code) in [
            (TargetError::Usage(text()), MISTAKE),
            (TargetError::Client(AdminClientError::Refused(text())), MISTAKE),
            (TargetError::Client(AdminClientError::Failed(text())), 1),
            (TargetError::Declined("text"), 1),
        ] {
            assert_eq!(error.report(), code, "{error:?}");
        }
    }

    #[test]
    fn a_file_is_the_same_by_its_path_and_by_where_it_leads() {
        let folder = tempfile::tempdir().unwrap();
        let (file, link, other) = (folder.path().join("a"), folder.path().join("b"), folder.path().join("c"));
        std::fs::write(&file, "").unwrap();
        std::fs::write(&other, "").unwrap();
        std::os::unix::fs::symlink(&file, &link).unwrap();
        assert!(is_same(&file, &link) && is_same(&folder.path().join("gone"), &folder.path().join("gone")));
        assert!(!is_same(&file, &other) && !is_same(&folder.path().join("gone"), &file));
    }

    #[test]
    fn a_token_file_is_read_without_its_line_break() {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), "s3cret\n").unwrap();
        let args = DaemonArgs { admin_token_file: Some(file.path().to_owned()), ..over_http() };
        assert_eq!(args.token(&operator(&[])).unwrap().expose(), "s3cret");
    }

    #[test]
    fn a_daemon_is_named_by_host_and_port() {
        for url in ["http://127.0.0.1:8471", "http://localhost:1/", "http://[::1]:8471"] {
            assert!(daemon_url(url).is_ok(), "{url}");
        }
        for url in ["127.0.0.1:8471", "https://h:1", "http://u:p@h:1", "http://h:1/v1", "http://h:1/?a=b", ""] {
            assert!(daemon_url(url).is_err(), "{url:?}");
        }
    }

    #[test]
    fn a_name_is_one_segment_whatever_it_has() {
        assert_eq!(escaped("../a/b c?é"), "%2E%2E%2Fa%2Fb%20c%3F%C3%A9");
    }
}
