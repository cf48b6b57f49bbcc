//! Every secret of a configuration; it is removed from every output of the daemon.
//!
//! What the schema calls a secret is one, but for headers and variables of programs: each of those *may* be one. It is
//! one by its name (`names_secret`), or if it comes from `{ env = … }` or `{ file = … }`, unless its name is that of a
//! setting (`names_setting`).

use std::collections::BTreeMap;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use percent_encoding::percent_decode_str;
use serde_json::Value;
use toolbus_config::{KeyPath, Tree};
use toolbus_core::redact::{Obstacle, obstacle};
use toolbus_core::secret::Secret;
use toolbus_mcp_client::spec::{Credential, HttpSpec, StdioSpec, TransportSpec};
use toolbus_store::StoreUrl;
use url::{Url, form_urlencoded};

use super::{BusUrl, Config};

/// Tables whose values are secrets by their names or sources.
const OPEN_TABLES: [&str; 2] = ["env", "headers"];
/// Keys whose values are no secrets as a whole: a login, and URLs, which may contain a password.
const OPEN_KEYS: [&str; 3] = ["url", "index_url", "user"];
/// The keys of the broker's password, and the default password of every broker.
const BUS_URL: &str = "bus.url";
const BUS_PASSWORD: &str = "bus.password";
const GUEST: &str = "guest";
/// Variables with which the exporter of metrics and traces is given headers.
const OTLP_HEADERS: [&str; 4] = [
    "OTEL_EXPORTER_OTLP_HEADERS",
    "OTEL_EXPORTER_OTLP_TRACES_HEADERS",
    "OTEL_EXPORTER_OTLP_METRICS_HEADERS",
    "OTEL_EXPORTER_OTLP_LOGS_HEADERS",
];

/// A secret, and the key that it was given by.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KeyedSecret {
    /// The key, as it is written in TOML.
    pub key: String,
    /// The secret.
    pub secret: Secret,
}

/// Secrets that the sources gave. They do not count in a comparison: the configuration has them as values, too.
#[derive(Debug, Clone, Default)]
pub(crate) struct Given(pub(crate) Vec<KeyedSecret>);

impl PartialEq for Given {
    fn eq(&self, _: &Self) -> bool {
        true
    }
}

/// Returns the secrets of a tree, before it becomes a configuration.
pub(crate) fn of_tree(tree: &Tree, secrets: &[(KeyPath, bool)]) -> Given {
    let mut found = Vec::new();
    for (path, is_reference) in secrets {
        let Some(value) = tree.get(path).and_then(Value::as_str) else { continue };
        let (name, table) = match &**path {
            [.., table, name] => (name, table),
            _ => continue,
        };
        let is_open = OPEN_TABLES.contains(&&**table);
        let is_secret = !is_open || names_secret(name) || (*is_reference && !names_setting(name));
        let mut values = in_url(value);
        if table == "headers" && is_secret {
            values.extend(header(value));
        } else if is_secret && !OPEN_KEYS.contains(&&**name) {
            values.push(value.to_owned());
        }
        add(&mut found, &tree.written(path), values);
    }
    Given(found)
}

impl Config {
    /// Every secret, with its key; those that cannot be removed from texts included.
    #[must_use]
    pub fn secrets(&self) -> Vec<KeyedSecret> {
        let mut found = self.given.0.clone();
        if let BusUrl::Amqp(urls) = &self.bus.url {
            let key = if self.bus.password.is_some() { BUS_PASSWORD } else { BUS_URL };
            urls.iter().for_each(|url| add(&mut found, key, in_url(url.reveal().as_str())));
        }
        if let StoreUrl::Redis(url) = self.store.url() {
            add(&mut found, "store.url", in_url(url.reveal().as_str()));
        }
        if let Some(url) = &self.telemetry.otlp_endpoint {
            add(&mut found, "telemetry.otlp_endpoint", in_url(url));
        }
        for (index, endpoint) in self.rest.endpoints.iter().enumerate() {
            let values = in_url(&endpoint.url).into_iter().chain(in_query(&endpoint.url));
            add(&mut found, &format!("rest.endpoints[{index}].url"), values.collect());
        }
        for (key, described) in &self.rest.described {
            for endpoint in &described.endpoints {
                let values = endpoint.confidential().into_iter().map(|secret| secret.expose().to_owned());
                add(&mut found, key, values.chain(in_query(&endpoint.url)).collect());
            }
        }
        for (name, specification) in &self.rest.openapi {
            let url = specification.url.as_deref().unwrap_or_default();
            add(&mut found, &format!("rest.openapi.{name}.url"), in_query(url));
        }
        for (index, command) in self.commands.iter().enumerate() {
            add(&mut found, &format!("commands[{index}].command"), of_arguments(&command.command));
        }
        for spec in self.mcp_servers().specs {
            let values = match &spec.transport {
                TransportSpec::Stdio(program) => of_program(program),
                TransportSpec::Http(endpoint) => of_endpoint(endpoint),
            };
            add(&mut found, &format!("mcp.servers.{}", spec.name), values);
        }
        found
    }

    /// The keys of secrets that cannot be removed from texts, each with why, except the well-known
    /// password of `guest`.
    #[must_use]
    pub fn unremovable(&self) -> BTreeMap<String, Obstacle> {
        let is_known =
            |given: &KeyedSecret| [BUS_URL, BUS_PASSWORD].contains(&&*given.key) && given.secret.expose() == GUEST;
        let why = |given: KeyedSecret| Some((given.key, obstacle(given.secret.expose())?));
        self.secrets().into_iter().filter(|given| !is_known(given)).filter_map(why).collect()
    }
}

/// Returns the secrets that the environment gives the exporters of metrics, traces and logs; `look_up` gives the value
/// of a variable.
pub fn of_exporter(look_up: impl Fn(&str) -> Option<String>) -> Vec<Secret> {
    let lists = OTLP_HEADERS.into_iter().filter_map(look_up);
    let values = lists.flat_map(|list| list.split(',').flat_map(pair).collect::<Vec<_>>());
    values.map(Secret::new).collect()
}

/// Adds values that are not there yet, be it by a key within this one.
fn add(found: &mut Vec<KeyedSecret>, key: &str, values: Vec<String>) {
    for value in values {
        let value = value.trim();
        if !value.is_empty() && !found.iter().any(|known| known.key.starts_with(key) && known.secret.expose() == value)
        {
            found.push(KeyedSecret { key: key.to_owned(), secret: Secret::new(value) });
        }
    }
}

fn of_program(program: &StdioSpec) -> Vec<String> {
    let mut values = of_arguments(&program.args);
    for (name, value) in &program.env {
        values.extend(in_url(value.expose()));
        values.extend(names_secret(name).then(|| value.expose().to_owned()));
    }
    values
}

/// The arguments of a program that hold no secret.
pub(super) fn open_arguments(arguments: &[String]) -> impl Iterator<Item = &str> {
    let before = std::iter::once(None).chain(arguments.iter().map(|argument| Some(&**argument)));
    before.zip(arguments).filter(|(before, one)| argument(*before, one).is_empty()).map(|(_, one)| one.as_str())
}

fn of_arguments(arguments: &[String]) -> Vec<String> {
    let before = std::iter::once(None).chain(arguments.iter().map(|argument| Some(&**argument)));
    before.zip(arguments).flat_map(|(before, one)| argument(before, one)).collect()
}

fn of_endpoint(endpoint: &HttpSpec) -> Vec<String> {
    let mut values = in_query(endpoint.url.as_str());
    for (name, value) in &endpoint.headers {
        values.extend(names_secret(name).then(|| header(value.expose())).into_iter().flatten());
    }
    let credentials = endpoint.credentials.all().flat_map(Credential::confidential);
    values.extend(credentials.map(|secret| secret.expose().to_owned()));
    values
}

/// Ends of words that name secrets.
const SECRET: [&str; 11] = [
    "token",
    "tokens",
    "secret",
    "password",
    "passwd",
    "passphrase",
    "credential",
    "credentials",
    "auth",
    "authorization",
    "cookie",
];
/// Whole last words that do.
const SHORT: [&str; 3] = ["pass", "creds", "jwt"];
/// Last words that do behind another one: alone they are a directory, or a pattern.
const AMBIGUOUS: [&str; 2] = ["pwd", "pat"];
/// Kinds of keys that open nothing.
const HARMLESS_KEYS: [&str; 8] = ["primary", "foreign", "sort", "partition", "public", "group", "row", "hot"];

/// Last words of names of values that are passed on and are no secrets.
const SETTINGS: [&str; 22] = [
    "dir",
    "directory",
    "email",
    "env",
    "environment",
    "file",
    "folder",
    "home",
    "host",
    "hostname",
    "lang",
    "level",
    "locale",
    "mode",
    "name",
    "path",
    "port",
    "region",
    "timezone",
    "tz",
    "user",
    "version",
];

/// Whether a value of this name is a setting like any other: `AWS_REGION`, `HOME`.
fn names_setting(name: &str) -> bool {
    let lower = name.to_lowercase();
    lower.rsplit(|c: char| !c.is_alphanumeric()).next().is_some_and(|last| SETTINGS.contains(&last))
}

/// Whether a value of this name is secret: `GITHUB_TOKEN`, `x-api-key`, `dbPassword`, `--client-secret`.
fn names_secret(name: &str) -> bool {
    let lower = name.to_lowercase();
    let words: Vec<&str> = lower.split(|c: char| !c.is_alphanumeric()).filter(|word| !word.is_empty()).collect();
    match words.as_slice() {
        [.., last] if SECRET.iter().any(|end| last.ends_with(end)) || SHORT.contains(last) => true,
        [.., _, last] if AMBIGUOUS.contains(last) => true,
        [.., kind, "key"] => !HARMLESS_KEYS.contains(kind),
        [.., last] => {
            last.ends_with("key")
                && last.len() > "key".len()
                && !HARMLESS_KEYS.iter().any(|kind| last.starts_with(kind))
        }
        [] => false,
    }
}

/// The password of a URL, as it is written and decoded; without a password the user, which is a token then.
fn in_url(text: &str) -> Vec<String> {
    let Ok(url) = Url::parse(text.trim()) else { return Vec::new() };
    if !url.has_host() {
        return Vec::new();
    }
    let Some(written) = url.password().or(Some(url.username())).filter(|written| !written.is_empty()) else {
        return Vec::new();
    };
    let meant = percent_decode_str(written).decode_utf8_lossy().into_owned();
    vec![meant, written.to_owned()]
}

/// Parameters of a URL that are secret by their names: decoded, and as they are written where that differs.
fn in_query(url: &str) -> Vec<String> {
    let query = url.split_once('?').map_or("", |(_, query)| query);
    let query = query.split_once('#').map_or(query, |(query, _)| query);
    let mut found = Vec::new();
    for pair in query.split('&') {
        let Some((name, meant)) = form_urlencoded::parse(pair.as_bytes()).next() else { continue };
        // `{name}` is filled in by each call.
        if !names_secret(&name) || meant.contains('{') {
            continue;
        }
        let written = pair.split_once('=').map(|(_, written)| written).filter(|written| *written != meant);
        found.extend(written.map(str::to_owned));
        found.push(meant.into_owned());
    }
    found
}

/// The value of a header: as a whole, and its credential without the scheme.
fn header(value: &str) -> Vec<String> {
    let value = value.trim();
    let Some((scheme, credential)) = value.split_once(' ') else { return vec![value.to_owned()] };
    let credential = credential.trim();
    let mut values = vec![value.to_owned(), credential.to_owned()];
    let decoded = scheme.eq_ignore_ascii_case("basic").then(|| STANDARD.decode(credential).ok()).flatten();
    let pair = decoded.and_then(|bytes| String::from_utf8(bytes).ok());
    values.extend(pair.and_then(|pair| Some(pair.split_once(':')?.1.to_owned())));
    values
}

/// An argument of a program: `--token VALUE`, `--token=VALUE`, `TOKEN=VALUE`, `Authorization: Bearer VALUE`, or a URL with a
/// password.
fn argument(before: Option<&str>, argument: &str) -> Vec<String> {
    let mut values = in_url(argument);
    // `--dsn=URL`, `DATABASE_URL=URL`.
    values.extend(argument.split_once('=').into_iter().flat_map(|(_, value)| in_url(value)));
    values.extend(in_query(argument));
    let is_option = |text: &&str| text.starts_with('-') && !text.contains(['=', ' ']);
    if before.filter(is_option).is_some_and(names_secret) {
        values.push(argument.to_owned());
    }
    values.extend(pair(argument));
    values.extend(
        argument
            .split_once(':')
            .filter(|(name, _)| names_secret(name))
            .into_iter()
            .flat_map(|(_, value)| header(value)),
    );
    values
}

/// The value of `NAME=VALUE`, if it is secret by its name.
fn pair(text: &str) -> Vec<String> {
    let Some((_, value)) = text.split_once('=').filter(|(name, _)| names_secret(name)) else { return Vec::new() };
    let value = percent_decode_str(value.trim()).decode_utf8_lossy().into_owned();
    header(&value)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;
    use crate::config::{Loaded, Override, Sources};

    #[test]
    fn a_name_decides_whether_a_value_is_secret() {
        for name in [
            "GITHUB_TOKEN",
            "x-api-key",
            "dbPassword",
            "--client-secret",
            "Authorization",
            "STRIPE_KEY",
            "OPENAI_APIKEY",
            "PGPASSWORD",
            "Cookie",
            "AWS_SECRET_ACCESS_KEY",
            "X-Auth",
            "DB_PASS",
            "MYSQL_PWD",
            "GITHUB_PAT",
            "gcp.creds",
            "session-jwt",
            "--pass",
        ] {
            assert!(names_secret(name), "{name}");
        }
        for name in [
            "LOG_LEVEL",
            "HOME",
            "PWD",
            "OLDPWD",
            "--pat",
            "BYPASS",
            "PASS_THROUGH",
            "Accept",
            "SORT_KEY",
            "public-key",
            "PRIMARYKEY",
            "key",
            "AUTHOR",
            "monkeys",
            "",
        ] {
            assert!(!names_secret(name), "{name}");
        }
    }

    #[test]
    fn secrets_within_texts_are_found() {
        assert_eq!(in_url("amqps://svc:p%40ss-word@host/v"), ["p@ss-word", "p%40ss-word"]);
        assert_eq!(in_url("https://t0ken-t0ken@host/simple"), ["t0ken-t0ken", "t0ken-t0ken"]);
        for none in ["https://host/path", "mailto:ana@host", "no url", "C:\\path"] {
            assert!(in_url(none).is_empty(), "{none}");
        }
        assert_eq!(
            in_query("https://host/{city}?units=metric&api_key=k3y-k3y%2F1&token={token}"),
            ["k3y-k3y%2F1", "k3y-k3y/1"]
        );
        assert_eq!(header("Bearer abc-def"), ["Bearer abc-def", "abc-def"]);
        assert_eq!(header("Basic QWxhZGRpbjpvcGVuIHNlc2FtZQ==")[2], "open sesame");
        assert_eq!(argument(Some("--token"), "abc-def"), ["abc-def"]);
        assert_eq!(argument(None, "--api-key=abc-def"), ["abc-def"]);
        for named in ["DATABASE_URL=postgres://svc:hunter2@db/x", "--dsn=postgres://svc:hunter2@db/x?a=b"] {
            assert_eq!(argument(Some("-e"), named), ["hunter2"; 2], "as written, and decoded");
        }
        assert_eq!(argument(Some("--header"), "Authorization: Bearer abc-def"), ["Bearer abc-def", "abc-def"]);
        for (before, none) in
            [(Some("--root"), "/home"), (None, "--level=debug"), (Some("--sort-key"), "customer_name")]
        {
            assert!(argument(before, none).is_empty(), "{none}");
        }
    }

    fn loaded(text: &str, environment: &[(&str, &str)]) -> Loaded {
        let file = tempfile::Builder::new().suffix(".toml").tempfile().unwrap();
        std::fs::write(file.path(), text).unwrap();
        let environment: BTreeMap<_, _> = environment.iter().map(|(k, v)| (k.to_string(), v.to_string())).collect();
        let sources = Sources { files: vec![file.path().to_owned()], environment, overrides: Vec::<Override>::new() };
        Config::load(&sources).unwrap()
    }

    fn secrets(text: &str, environment: &[(&str, &str)]) -> Vec<String> {
        let config = loaded(text, environment).config;
        let mut found: Vec<_> =
            config.secrets().into_iter().map(|given| format!("{} = {}", given.key, given.secret.expose())).collect();
        found.sort();
        found
    }

    #[test]
    fn every_secret_of_a_configuration_is_known_with_its_key() {
        let text = r#"
        [bus]
        url = ["amqp://svc:br0ker-pass@one", "amqp://svc:br0ker-pass@two"]
        [http]
        admin_token = "an-admin-token-of-32-bytes-or-so"
        tokens = { ana = ["first-token-of-ana", { env = "SECOND" }], bea = "token-of-bea-alone" }
        [identity]
        source = "broker"
        [audit]
        key = { env = "AUDIT_KEY" }
        [[rest.endpoints]]
        name = "weather"
        description = "Weather"
        url = "https://weather.example/v1?appid=x&api_key=query-k3y"
        headers = { Accept = "application/json", X-Api-Key = "header-k3y", X-Tenant = { env = "TENANT" } }
        auth = { type = "basic", username = "svc", password = "basic-pass" }
        [[rest.endpoints]]
        name = "mail"
        description = "Mail"
        url = "https://mail.example/"
        auth = { type = "bearer", per_agent = { ana = { token = "anas-token" } } }
        [mcp.servers.files]
        command = "files"
        args = ["--root", "/srv/files", "--token", "argument-token"]
        env = { LOG_LEVEL = "informational", FILES_TOKEN = "files-token", DB = "postgres://u:db-passw@db/x", HIDDEN = { env = "HIDDEN" }, AWS_REGION = { env = "REGION" } }
        [mcp.servers.remote]
        url = "https://mcp.example/mcp"
        auth = { type = "client_credentials", token_url = "https://id.example/token", client_id = "toolbus", client_secret = "client-s3cret" }
    "#;
        let environment = [
            ("AUDIT_KEY", "a-key-for-hashes-of-arguments"),
            ("TENANT", "tenant-42"),
            ("HIDDEN", "hidden-value"),
            ("REGION", "eu-west-1"),
            ("SECOND", "second-token-of-ana"),
        ];
        insta::assert_snapshot!(secrets(text, &environment).join("\n"), @"
    audit.key = a-key-for-hashes-of-arguments
    bus.url = br0ker-pass
    http.admin_token = an-admin-token-of-32-bytes-or-so
    http.tokens.ana[0] = first-token-of-ana
    http.tokens.ana[1] = second-token-of-ana
    http.tokens.bea = token-of-bea-alone
    mcp.servers.files = argument-token
    mcp.servers.files.env.DB = db-passw
    mcp.servers.files.env.FILES_TOKEN = files-token
    mcp.servers.files.env.HIDDEN = hidden-value
    mcp.servers.remote.auth.client_secret = client-s3cret
    rest.endpoints[0].auth.password = basic-pass
    rest.endpoints[0].headers.X-Api-Key = header-k3y
    rest.endpoints[0].headers.X-Tenant = tenant-42
    rest.endpoints[0].url = query-k3y
    rest.endpoints[1].auth.per_agent.ana.token = anas-token
    ");
    }

    #[test]
    fn a_secret_that_cannot_be_removed_is_reported() {
        let text = "[bus]\nurl = \"amqp://svc:short@localhost\"\n[http]\nadmin_token = \"xxxxxxxxxxxxxxxxxxxxxxxx\"\n";
        insta::assert_snapshot!(loaded(text, &[]).warnings.join("\n"), @r#"
    bus.url: a secret here is not removed from results and logs, because it is shorter than 8 bytes; use a longer, random one
    http.admin_token: a secret here is not removed from results and logs, because it is a well-known default, or one character again and again; use a longer, random one
    "#);
    }

    #[test]
    fn headers_of_the_exporter_are_secrets_by_their_names() {
        let look_up = |name: &str| {
            (name == "OTEL_EXPORTER_OTLP_HEADERS")
                .then(|| "x-scope=tenant,authorization=Bearer%20abc-def-ghi".to_owned())
        };
        let found: Vec<_> = of_exporter(look_up).iter().map(|secret| secret.expose().to_owned()).collect();
        assert_eq!(found, ["Bearer abc-def-ghi", "abc-def-ghi"]);
    }
}
