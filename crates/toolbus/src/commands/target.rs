//! Whom commands for operators ask: a running daemon, or a configuration alone.

use std::fs::File;
use std::io::{self, Read};
use std::path::PathBuf;
use std::sync::Arc;

use axum::http::Method;
use percent_encoding::{NON_ALPHANUMERIC, percent_encode};
use toolbus_core::Gates;
use url::Url;

use super::{MISTAKE, complain, told, warn};
use crate::assembly::{self, AssemblyError};
use crate::cli::Output;
use crate::config::{Config, Problems, Secret, Sources};
use crate::http::admin::view::{AgentTools, Agents, Explained, Question, Role, Switching};
use crate::http::admin::{Admin, AdminError, PinError, Switches};
use crate::http::ask::{AskError, Door};

/// Variable that holds the token for a daemon that is asked over HTTP.
pub(crate) const TOKEN_VARIABLE: &str = "TOOLBUS_ADMIN_TOKEN";
/// Largest file with a token, in bytes.
const MAX_TOKEN: u64 = 64 * 1024;
/// Exit code when no daemon answers.
const NOBODY: u8 = 7;

/// Which daemon is asked. With --config, none is: the answer comes from the files alone.
#[derive(Debug, Clone, Default, clap::Args)]
pub struct TargetArgs {
    /// Unix socket of the daemon; without it, that of `daemon.socket` in the configuration that is found without --config.
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

/// What a command for operators has to work with.
#[derive(Debug, Clone)]
pub struct Operator {
    /// Where the configuration comes from.
    pub sources: Sources,
    /// Whether --config names files.
    pub has_files: bool,
    /// How results are printed.
    pub output: Output,
}

/// Who answers.
pub enum Target {
    /// A running daemon.
    Daemon(Door),
    /// The configuration alone.
    Files(Box<Admin>),
}

/// Why there is no answer.
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
    Assembly(#[from] AssemblyError),
    /// The command contradicts itself, or cannot be read.
    #[error("{0}")]
    Usage(String),
    /// The running daemon.
    #[error(transparent)]
    Ask(#[from] AskError),
    /// The question itself.
    #[error(transparent)]
    Admin(#[from] AdminError),
    /// What is asked about pins.
    #[error(transparent)]
    Pins(#[from] PinError),
    /// Nothing can be printed.
    #[error("cannot write: {0}")]
    Output(#[from] io::Error),
}

impl TargetError {
    /// Tells the error; what is left of it is the exit code.
    pub(crate) fn tell(&self) -> u8 {
        match self {
            Self::Configuration(problems) => {
                complain(problems);
                warn("to ask a running daemon without a configuration, point to it with --socket or --daemon");
                MISTAKE
            }
            Self::Mistakes(problems) => complain(problems),
            Self::Ask(AskError::Refused(_)) | Self::Usage(_) | Self::Admin(_) | Self::Pins(_) | Self::Assembly(_) => {
                told(self);
                MISTAKE
            }
            Self::Ask(AskError::Failed(_)) | Self::Output(_) => told(self),
            Self::Ask(_) => {
                told(self);
                NOBODY
            }
        }
    }
}

impl TargetArgs {
    /// Finds out whom to ask; a daemon is not asked yet.
    ///
    /// # Errors
    ///
    /// When the command contradicts itself, or needs a configuration that cannot be used.
    pub fn open(&self, operator: &Operator) -> Result<Target, TargetError> {
        let is_pointed = self.socket.is_some() || self.daemon.is_some();
        if operator.has_files && is_pointed {
            let text = "--config looks at files alone, --socket and --daemon ask a running daemon: give one of them";
            return Err(TargetError::Usage(text.to_owned()));
        }
        if let Some(url) = &self.daemon {
            return Ok(Target::Daemon(Door::Http { url: url.clone(), token: self.token(operator)? }));
        }
        if let Some(path) = &self.socket {
            return Ok(Target::Daemon(Door::Socket(path.clone())));
        }
        let loaded = Config::load(&operator.sources).map_err(TargetError::Configuration)?;
        if operator.has_files {
            loaded.warnings.iter().for_each(|warning| warn(warning));
            return Ok(Target::Files(Box::new(of_files(&loaded.config, &operator.sources)?)));
        }
        match loaded.config.daemon.socket {
            Some(path) => Ok(Target::Daemon(Door::Socket(path))),
            None => {
                let text = "daemon.socket is \"none\", so there is no socket to ask on: use --daemon, or --config for a \
                            file alone";
                Err(TargetError::Usage(text.to_owned()))
            }
        }
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

/// Answers from a configuration and its pins alone: with the tools that it registers, and nothing switched off.
pub(crate) fn of_files(config: &Config, sources: &Sources) -> Result<Admin, AssemblyError> {
    let access = assembly::access(config, assembly::registry(config)?)?;
    let pins = assembly::pins(config, config.pin_file(sources))?;
    access.vet(Arc::new(pins.clone()));
    Ok(Admin::new(Arc::new(Gates::new(access)), Switches::unkept()).with_pins(pins))
}

impl RoleArgs {
    pub(crate) fn role(&self, session: Option<&str>) -> Role {
        Role { binding: self.binding.clone(), profile: self.profile.clone(), session: session.map(str::to_owned) }
    }
}

impl Target {
    pub(crate) async fn agents(&self) -> Result<Agents, TargetError> {
        match self {
            Self::Daemon(door) => Ok(door.ask(Method::GET, "/v1/agents").await?),
            Self::Files(admin) => Ok(admin.agents()),
        }
    }

    pub(crate) async fn agent(&self, name: &str, role: &Role) -> Result<AgentTools, TargetError> {
        match self {
            Self::Daemon(door) => {
                let given = [("binding", &role.binding), ("profile", &role.profile), ("session", &role.session)];
                let pairs =
                    given.into_iter().filter_map(|(key, value)| Some(format!("{key}={}", escaped(value.as_ref()?))));
                let query = pairs.collect::<Vec<_>>().join("&");
                Ok(door.ask(Method::GET, &format!("/v1/agents/{}?{query}", escaped(name))).await?)
            }
            Self::Files(admin) => Ok(admin.agent(name, role)?),
        }
    }

    pub(crate) async fn explain(&self, question: &Question) -> Result<Explained, TargetError> {
        match self {
            Self::Daemon(door) => Ok(door.post("/v1/explain", question).await?),
            Self::Files(admin) => Ok(admin.explain(question)?),
        }
    }

    pub(crate) async fn switch(&self, kind: &str, name: &str, off: bool) -> Result<Switching, TargetError> {
        match self {
            Self::Daemon(door) => {
                let method = if off { Method::PUT } else { Method::DELETE };
                Ok(door.ask(method, &format!("/v1/disabled/{}/{}", escaped(kind), escaped(name))).await?)
            }
            Self::Files(_) => {
                let text = "only a running daemon can switch something off and on: leave --config out, and point to the \
                            daemon with --socket or --daemon if it is not found";
                Err(TargetError::Usage(text.to_owned()))
            }
        }
    }
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

    fn operator(has_files: bool, environment: &[(&str, &str)]) -> Operator {
        let environment = environment.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
        Operator { sources: Sources { environment, ..Sources::default() }, has_files, output: Output::Table }
    }

    fn refused(args: &TargetArgs, operator: &Operator) -> String {
        args.open(operator).err().unwrap().to_string()
    }

    fn over_http() -> TargetArgs {
        TargetArgs { daemon: Some(daemon_url("http://127.0.0.1:8471").unwrap()), ..TargetArgs::default() }
    }

    #[test]
    fn the_socket_of_the_configuration_is_asked_unless_something_else_is_named() {
        let place = |args: TargetArgs, operator: &Operator| match args.open(operator) {
            Ok(Target::Daemon(door)) => door.to_string(),
            Ok(Target::Files(_)) => "files".to_owned(),
            Err(error) => panic!("{error}"),
        };
        assert_eq!(place(TargetArgs::default(), &operator(false, &[])), "the socket `toolbus.sock`");
        let moved = operator(false, &[("TOOLBUS__DAEMON__SOCKET", "/run/t.sock")]);
        assert_eq!(place(TargetArgs::default(), &moved), "the socket `/run/t.sock`");
        let named = TargetArgs { socket: Some("x".into()), ..TargetArgs::default() };
        assert_eq!(place(named, &moved), "the socket `x`");
        assert_eq!(place(over_http(), &operator(false, &[(TOKEN_VARIABLE, "t")])), "http://127.0.0.1:8471");
        assert_eq!(place(TargetArgs::default(), &operator(true, &[])), "files");
    }

    #[test]
    fn what_cannot_be_asked_says_what_to_do() {
        let none = operator(false, &[("TOOLBUS__DAEMON__SOCKET", "none")]);
        insta::assert_snapshot!(refused(&TargetArgs::default(), &none), @r#"daemon.socket is "none", so there is no socket to ask on: use --daemon, or --config for a file alone"#);
        insta::assert_snapshot!(refused(&over_http(), &operator(false, &[])), @"--daemon needs the daemon's http.admin_token: set TOOLBUS_ADMIN_TOKEN, or give --admin-token-file");
        insta::assert_snapshot!(refused(&over_http(), &operator(true, &[])), @"--config looks at files alone, --socket and --daemon ask a running daemon: give one of them");
    }

    #[test]
    fn a_token_file_is_read_without_its_line_break() {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), "s3cret\n").unwrap();
        let args = TargetArgs { admin_token_file: Some(file.path().to_owned()), ..over_http() };
        assert_eq!(args.token(&operator(false, &[])).unwrap().reveal(), "s3cret");
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
