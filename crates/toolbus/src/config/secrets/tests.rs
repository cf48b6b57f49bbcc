use std::collections::BTreeMap;

use super::values::{argument, header, in_query, in_url, names_secret};
use super::*;
use crate::config::{Override, Sources};

#[test]
fn a_name_says_whether_a_value_is_secret() {
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
fn what_is_secret_of_a_text_is_found() {
    assert_eq!(in_url("amqps://svc:p%40ss-word@host/v"), ["p@ss-word", "p%40ss-word"]);
    assert_eq!(in_url("https://t0ken-t0ken@host/simple"), ["t0ken-t0ken", "t0ken-t0ken"]);
    for none in ["https://host/path", "mailto:ana@host", "no url", "C:\\path"] {
        assert!(in_url(none).is_empty(), "{none}");
    }
    assert_eq!(in_query("https://host/{city}?units=metric&api_key=k3y-k3y%2F1&token={token}"), ["k3y-k3y/1"]);
    assert_eq!(header("Bearer abc-def"), ["Bearer abc-def", "abc-def"]);
    assert_eq!(header("Basic QWxhZGRpbjpvcGVuIHNlc2FtZQ==")[2], "open sesame");
    assert_eq!(argument(Some("--token"), "abc-def"), ["abc-def"]);
    assert_eq!(argument(None, "--api-key=abc-def"), ["abc-def"]);
    assert_eq!(argument(Some("--header"), "Authorization: Bearer abc-def"), ["Bearer abc-def", "abc-def"]);
    for (before, none) in [(Some("--root"), "/home"), (None, "--level=debug"), (Some("--sort-key"), "customer_name")] {
        assert!(argument(before, none).is_empty(), "{none}");
    }
}

fn secrets(text: &str, environment: &[(&str, &str)]) -> Vec<String> {
    let file = tempfile::Builder::new().suffix(".toml").tempfile().unwrap();
    std::fs::write(file.path(), text).unwrap();
    let environment: BTreeMap<_, _> = environment.iter().map(|(k, v)| (k.to_string(), v.to_string())).collect();
    let sources = Sources { files: vec![file.path().to_owned()], environment, overrides: Vec::<Override>::new() };
    let config = Config::load(&sources).unwrap().config;
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
fn a_secret_that_cannot_be_removed_is_told() {
    let text = "[bus]\nurl = \"amqp://svc:short@localhost\"\n[http]\nadmin_token = \"xxxxxxxxxxxxxxxxxxxxxxxx\"\n";
    let file = tempfile::Builder::new().suffix(".toml").tempfile().unwrap();
    std::fs::write(file.path(), text).unwrap();
    let loaded = Config::load(&Sources { files: vec![file.path().to_owned()], ..Sources::default() }).unwrap();
    insta::assert_snapshot!(loaded.warnings.join("\n"), @r#"
    bus.url: a secret here is not removed from results and logs, because it is shorter than 8 bytes; use a longer, random one
    http.admin_token: a secret here is not removed from results and logs, because it is a well-known default, or one character again and again; use a longer, random one
    "#);
}

#[test]
fn headers_of_the_exporter_are_secrets_where_their_names_say_so() {
    let look_up = |name: &str| {
        (name == "OTEL_EXPORTER_OTLP_HEADERS").then(|| "x-scope=tenant,authorization=Bearer%20abc-def-ghi".to_owned())
    };
    let found: Vec<_> = of_exporter(look_up).iter().map(|secret| secret.expose().to_owned()).collect();
    assert_eq!(found, ["Bearer abc-def-ghi", "abc-def-ghi"]);
}
