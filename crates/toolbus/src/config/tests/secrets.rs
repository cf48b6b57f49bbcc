use toolbus_tools::rest::{AgentCredential, Auth};

use super::*;

const SECRET: &str = "hunter2";

fn with_auth(auth: &str) -> String {
    format!("[[rest.endpoints]]\nname = 'get'\ndescription = 'Gets'\nurl = 'http://localhost/'\nauth = {auth}")
}

#[test]
fn secrets_are_taken_from_the_environment_a_file_or_plain_text() {
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), format!("{SECRET}\n")).unwrap();
    let named = format!("{{ file = {:?} }}", file.path());
    for source in ["{ env = 'TOKEN' }", &named, "'hunter2'"] {
        let text = with_auth(&format!("{{ type = 'bearer', token = {source} }}"));
        let config = load(&[&text], &[("TOKEN", SECRET)], &[]).unwrap().config;
        let Auth::Bearer { token, .. } = config.rest.endpoints[0].auth.clone().unwrap() else { panic!("bearer") };
        assert_eq!(token.unwrap().expose(), SECRET, "{source}");
    }
}

#[test]
fn an_unavailable_secret_is_a_problem() {
    let text = with_auth("{ type = 'bearer', token = { env = 'WEATHER_TOKEN' } }");
    insta::assert_snapshot!(problems(&text), @"a.toml:5:35: `rest.endpoints[0].auth.token`: the environment variable `WEATHER_TOKEN` is not set, or is empty; set it, or name another source of this secret");
    let text = with_auth("{ type = 'basic', username = 'ana', password = { file = '/nonexistent/token' } }");
    insta::assert_snapshot!(problems(&text), @"a.toml:5:55: `rest.endpoints[0].auth.password`: the file `/nonexistent/token` of this secret cannot be read: No such file or directory (os error 2)");
    let text = with_auth("{ type = 'bearer', token = { evn = 'WEATHER_TOKEN' } }");
    insta::assert_snapshot!(problems(&text), @"a.toml:5:37: `rest.endpoints[0].auth.token.evn`: unknown key; did you mean `env`? expected one of `env`, `file`");
    insta::assert_snapshot!(problems(&with_auth("{ type = 'bearer', token = '' }")), @"a.toml:5:35: `rest.endpoints[0].auth.token`: empty; expected a text");
}

#[test]
fn a_secret_comes_from_one_source() {
    insta::assert_snapshot!(problems("[http]\ntokens = { ana = { file = '/dev/null', env = 'X' } }"), @"a.toml:2:18: `http.tokens.ana`: `env` and `file` do not go together; expected one of them");
    let text = with_auth("{ type = 'bearer', per_agent = { ana = { key = 'x', token = 'x' } } }");
    insta::assert_snapshot!(problems(&text), @"a.toml:5:47: `rest.endpoints[0].auth.per_agent.ana`: `key` and `token` do not go together; expected one of them");
}

#[test]
fn addresses_of_broker_and_store_come_from_every_source_of_secrets() {
    let text = "[bus]\nurl = { env = 'BUS' }\n[store]\nurl = { env = 'STORE' }";
    let config = load(&[text], &[("BUS", "amqp://broker"), ("STORE", "rediss://host")], &[]).unwrap().config;
    assert_eq!((&*config.bus.url.to_string(), &*config.store.url().to_string()), ("amqp://broker", "rediss://host"));
    insta::assert_snapshot!(problems(text), @"
    a.toml:2:7: `bus.url`: the environment variable `BUS` is not set, or is empty; set it, or name another source of this secret
    a.toml:4:7: `store.url`: the environment variable `STORE` is not set, or is empty; set it, or name another source of this secret
    ");
    let reported = load(&[text], &[("BUS", "hunter2"), ("STORE", "hunter2:x")], &[]).unwrap_err();
    insta::assert_snapshot!(reported, @r#"
    a.toml:2:7: `bus.url`: not a URL; expected "amqp://user:password@host:5672/%2f", "amqps://…" or "embedded"
    a.toml:4:7: `store.url`: no such store; expected "memory:", "sqlite:PATH", "redis://…" or "rediss://…"
    "#);
}

#[test]
fn the_parts_of_a_brokers_address_are_given_one_by_one() {
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), "p/a#s?s@w:o%rd-1\n").unwrap();
    let text = format!(
        "[bus]\nhost = 'rabbit.example'\nvhost = 'a/b'\nuser = {{ env = 'LOGIN' }}\npassword = {{ file = {:?} }}",
        file.path()
    );
    let loaded = load(&[&text], &[("LOGIN", "ana")], &[("bus.port", "5673")]).unwrap();
    let config = &loaded.config;
    assert_eq!(config.bus.url.to_string(), "amqp://rabbit.example:5673/a%2Fb");
    assert_eq!(config.bus.url.login().as_deref(), Some("ana"));
    let secrets: Vec<_> = config.secrets().iter().map(|given| given.secret.expose().to_owned()).collect();
    assert_eq!(secrets, ["p/a#s?s@w:o%rd-1", "p%2Fa%23s%3Fs%40w%3Ao%25rd%2D1"], "the user is none");
    let shown = format!("{loaded:?} {}", serde_json::to_string(config).unwrap());
    assert!(!shown.contains("p/a#s"), "{shown}");
    let url = |text: &str, set: &[(&str, &str)]| load(&[text], &[], set).unwrap().config.bus.url;
    assert_eq!(url("[bus]\nhost = '::1'\nport = 5671", &[]).to_string(), "amqps://[::1]:5671");
    let whole = "[bus]\nurl = 'amqps://bea:secret-of-bea@one/tools'";
    assert_eq!(url(&format!("{whole}\nhost = 'two'"), &[]).to_string(), "amqps://two/tools");
}

#[test]
fn an_address_of_a_later_layer_replaces_the_parts_that_it_names() {
    let text = "[bus]\nhost = 'one'\nvhost = 'tools'\nuser = 'ana'\npassword = 'secret-of-ana'";
    let url = |written: &str| load(&[text], &[], &[("bus.url", written)]).unwrap().config.bus.url;
    assert_eq!(url("amqp://bea:secret-of-bea@two").to_string(), "amqp://two/tools");
    assert_eq!(url("amqp://bea:secret-of-bea@two").login().as_deref(), Some("bea"));
    assert_eq!(url("amqp://two/other").login().as_deref(), Some("ana"));
    assert_eq!(url("amqp://two/other").to_string(), "amqp://two/other");
    assert_eq!(url("embedded"), BusUrl::Embedded);
    let given = load(&["[bus]\nurl = 'amqp://one'"], &[("TOOLBUS__BUS__HOST", "two")], &[]).unwrap();
    assert_eq!(given.config.bus.url.to_string(), "amqp://two", "a later part replaces that of the address");
}

#[test]
fn a_command_needs_the_secrets_of_its_sections_alone() {
    let text = with_auth("{ type = 'bearer', token = { env = 'WEATHER_TOKEN' } }")
        + "\n[bus]\nurl = { env = 'BUS' }\n[store]\nurl = { file = '/nonexistent' }\n[http]\nadmin_token = { env = 'ADMIN' }";
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("a.toml");
    std::fs::write(&file, &text).unwrap();
    let sources = |environment: &[(&str, &str)]| Sources {
        files: vec![file.clone()],
        environment: environment.iter().map(|(name, value)| (name.to_string(), value.to_string())).collect(),
        ..Sources::default()
    };
    let loaded = Config::load_for(&sources(&[("BUS", "amqp://broker")]), &["bus"]).unwrap();
    assert_eq!(loaded.config.bus.url.to_string(), "amqp://broker");
    let reported = Config::load_for(&sources(&[]), &["bus"]).unwrap_err().to_string();
    assert!(reported.contains("`BUS`") && reported.lines().count() == 1, "{reported}");
    assert!(Config::load_for(&sources(&[]), &[]).is_ok());
    // A mistake in a secret is reported all the same.
    let reported = Config::load_for(&sources(&[("ADMIN", "short")]), &[]).unwrap_err().to_string();
    assert!(reported.contains("admin_token") && reported.lines().count() == 1, "{reported}");
    assert_eq!(Config::load(&sources(&[])).unwrap_err().0.len(), 4);
}

#[test]
fn a_part_of_an_address_without_its_host_or_login_is_refused() {
    insta::assert_snapshot!(problems("[bus]\nvhost = 'tools'"), @"a.toml:2:9: `bus.vhost`: of no broker; give `bus.url` or `bus.host`, too");
    insta::assert_snapshot!(problems("[bus]\nhost = 'x'\npassword = 'y'"), @"a.toml:3:12: `bus.password`: of no user; give `bus.user`, too");
    insta::assert_snapshot!(problems("[bus]\nhost = 'x'\nuser = 'y'"), @"a.toml:3:8: `bus.user`: without a password; give `bus.password`, too");
    insta::assert_snapshot!(problems("[bus]\nurl = ['amqp://x', 'amqp://y']\nhost = 'z'"), @"a.toml:3:8: `bus.host`: one host for several addresses; give `bus.url` one address, or none");
    insta::assert_snapshot!(problems("[bus]\nhost = 'amqp://x'"), @r#"a.toml:2:8: `bus.host`: no host; expected a name or an IP address alone, such as "rabbitmq.example"; the others are bus.port, bus.vhost, bus.user and bus.password"#);
}

#[test]
fn the_credentials_of_agents_are_secrets_of_every_kind_of_auth() {
    let kinds = [
        ("bearer", "token = { env = 'TOKEN' }"),
        ("api_key", "key = { env = 'TOKEN' }"),
        ("basic", "username = 'svc', password = { env = 'TOKEN' }"),
        ("client_credentials', token_url = 'https://h/token", "client_id = 'svc', client_secret = { env = 'TOKEN' }"),
    ];
    for (kind, credential) in kinds {
        let auth = format!("{{ type = '{kind}', per_agent = {{ ana = {{ {credential} }} }} }}");
        let text = with_auth(&auth) + "\n[identity]\nsource = 'broker'";
        let loaded = load(&[&text], &[("TOKEN", SECRET)], &[]).unwrap();
        let (Auth::Bearer { per_agent, .. }
        | Auth::ApiKey { per_agent, .. }
        | Auth::Basic { per_agent, .. }
        | Auth::ClientCredentials { per_agent, .. }) = loaded.config.rest.endpoints[0].auth.as_ref().unwrap();
        let (AgentCredential::Bearer { token: secret }
        | AgentCredential::ApiKey { key: secret }
        | AgentCredential::Basic { password: secret, .. }
        | AgentCredential::ClientCredentials { client_secret: secret, .. }) = &per_agent.as_ref().unwrap()["ana"];
        assert_eq!(secret.expose(), SECRET, "{kind}");
        let shown = format!("{loaded:?} {}", serde_json::to_string(&loaded.config).unwrap());
        assert!(!shown.contains(SECRET), "{shown}");
    }
}

#[test]
fn a_loaded_configuration_shows_no_secret() {
    let text = with_auth("{ type = 'basic', username = 'ana', password = 'hunter2' }")
        + "\nheaders = { x-token = 'hunter2' }\n[bus]\nurl = 'amqp://ana:hunter2@localhost'";
    let loaded = load(&[&text], &[], &[]).unwrap();
    let shown = format!("{loaded:?} {:#?} {}", loaded.config, serde_json::to_string(&loaded.config).unwrap());
    assert!(!shown.contains(SECRET), "{shown}");
}

#[test]
fn sources_show_no_secret() {
    let sources = Sources {
        environment: [("TOKEN".to_owned(), SECRET.to_owned())].into(),
        overrides: vec![Override::new("bus.url", "amqp://ana:hunter2@localhost")],
        ..Sources::default()
    };
    let shown = format!("{sources:?}");
    assert!(!shown.contains(SECRET) && shown.contains("bus.url"), "{shown}");
}

#[test]
fn no_problem_shows_a_secret() {
    let texts = [
        with_auth("{ type = 'bearer', tokn = 'hunter2' }"),
        with_auth("{ type = 'bearer', token = ['hunter2'] }"),
        with_auth("{ type = 'bearer', token = 'hunter2', user = 'hunter2' }"),
        with_auth("{ type = 'bearer', token = \"hunter2\\nX: y\" }"),
        with_auth("'hunter2'"),
        with_auth("{ token = 'hunter2' }"),
        with_auth("{ type = 'basic', username = 5, password = 'hunter2' }"),
        with_auth("{ type = 'bearer', token = 'hunter2 }"),
        with_auth("{ type = 'bearer', token = hunter2 }"),
        with_auth("{ type = 'bearer', token = { env = 'T', file = 'hunter2' } }"),
        with_auth("{ type = 'api_key', header = 'a b', key = 'hunter2' }"),
        with_auth("{ type = 'api_key', key = '''\nhunter2\n"),
        with_auth("{ type = 'bearer', per_agent = { ana = { key = 'hunter2' } } }"),
        with_auth("{ type = 'bearer', per_agent = { ana = 'hunter2' } }"),
        with_auth("{ type = 'bearer', per_agent = { ana = { token = 'hunter2', key = 'hunter2' } } }"),
        with_auth("{ type = 'basic', per_agent = { ana = { username = 'a:b', password = 'hunter2' } } }"),
        "[bus]\nurl = 'hunter2'".to_owned(),
        "[bus]\nurl = 'ana:hunter2@host'".to_owned(),
        "[bus]\nurl = 'http://ana:hunter2@host'".to_owned(),
        "[bus]\nurl = ['amqp://ana:hunter2@host:port']".to_owned(),
        "[bus]\nurl = { url = 'hunter2' }".to_owned(),
        "[bus]\nurl = 'amqp://hunter2:12/x@host'".to_owned(),
        "[bus]\nurl = 'amqp://ana:hunter2/x@host'".to_owned(),
        "[bus]\nhost = 'ana:hunter2@host'".to_owned(),
        "[bus]\nurl = 'amqp://host'\npassword = { file = 'hunter2', env = 'x' }".to_owned(),
        "[telemetry]\notlp_endpoint = 'http://ana:hunter2@collector'".to_owned(),
        "[bus]\nurl = amqp://ana:hunter2@host".to_owned(),
        "[bus]\nurl = 'amqp://ana:hunter2@host'\nurl = 'amqp://ana:hunter2@host'".to_owned(),
    ];
    for text in texts {
        let reported = problems(&text);
        assert!(!reported.contains(SECRET), "{text}\n{reported}");
    }
    let environment = [("TOOLBUS__BUS__URL", "hunter2"), ("TOOLBUS__BUS__PASSWORD", "hunter2")];
    let reported = load(&[], &environment, &[("bus.pasword", "hunter2"), ("bus.tls", "hunter2")]).unwrap_err();
    assert!(!reported.contains(SECRET), "{reported}");
}

#[test]
fn the_schema_marks_secrets_as_write_only() {
    let schema = schema();
    assert_eq!(schema["$defs"]["Secret"]["writeOnly"], serde_json::json!(true));
    assert_eq!(schema["$defs"]["BusConfig"]["properties"]["url"]["writeOnly"], serde_json::json!(true));
}
