//! Every kind of mistake, and what is told of it.

use std::io::Write;

use super::*;

/// Loads files of these texts; problems come with `a.toml`, `b.toml` … for their names.
fn load_with(texts: &[&str], environment: &[(&str, &str)], set: &[(&str, &str)]) -> Result<Loaded, String> {
    let folder = tempfile::tempdir().unwrap();
    let mut sources = Sources::default();
    for (text, name) in texts.iter().zip(["a.toml", "b.toml"]) {
        let path = folder.path().join(name);
        std::fs::File::create(&path).unwrap().write_all(text.as_bytes()).unwrap();
        sources.files.push(path);
    }
    sources.environment = environment.iter().map(|(name, value)| (name.to_string(), value.to_string())).collect();
    sources.overrides = set
        .iter()
        .map(|(key, value)| Override {
            option: format!("--set {key}"),
            key: key.to_string(),
            value: value.to_string(),
        })
        .collect();
    let here = format!("{}/", folder.path().display());
    Config::load(&sources).map_err(|problems| problems.to_string().replace(&here, ""))
}

fn problems(text: &str) -> String {
    load_with(&[text], &[], &[]).err().unwrap_or_else(|| "no problem".to_owned())
}

#[test]
fn probe() {
    println!("{}", serde_json::to_string_pretty(&schema()).unwrap());
    for t in [
        "[bus]\nulr = 'x'\n", "[buss]\nx=1", "[bus]\nurl = 5", "[bus]\nurl = ['amqp://a:hunter2@x', 'http://hunter2@y', 5]", "bus = 5",
        "[bus]\nurl='ftp://a:hunter2@b'", "[bus]\nqueue_type='qourum'", "[bus]\ntls={ca='/nonexistent', crt='x'}",
        "[invoke]\ndefault_timeout='60 lightyears'\nmax_timeout=5\nmax_in_flight=-1\nmax_waiting=70000\nmax_body='1MB'\ntopics=[]",
        "[invoke]\nmax_timeout='10s'", "[invoke]\nmax_in_flight=60000\nmax_waiting=60000",
        "[bus]\nreply_topics=['tool.#']", "[invoke]\ntopics=['my.calls']\ndefault_reply_topic='my.calls'",
        "[daemon]\nroles=['mcp', 'invoke', 'invoke']", "[daemon]\nroles=['invoke', 'invoke']", "[http]\nlisten='localhost'", "[telemetry]\nprotocol='http'\nlog='inof'\nlog_format=1\notlp_endpoint='x'",
        "[tools]\nrequired=['ecko']\n[tools.limits.'web_*']\ntimeot='1s'\nmax_in_flight=0",
        "[[rest.endpoints]]\nname='a'", "[[rest.endpoints]]\nname='a'\ndescription='d'\nurl='http://h/{x}'\nauth={type='bearr',token='hunter2'}",
        "[[rest.endpoints]]\nname='a'\ndescription='d'\nurl='http://h/{x}'\nauth={type='bearer',tokn='hunter2'}\nparameters='{'",
        "[[rest.endpoints]]\nname='a'\ndescription='d'\nurl='http://h/'\nauth={type='bearer',token=5}\n[[rest.endpoints]]\nname='a'\ndescription='d'\nurl='http://h/'\nauth={type='bearer',token={env='NOPE'}}\nbody='json'",
        "[[rest.endpoints]]\nname='a'\ndescription='d'\nurl='http://h/'\nauth={type='bearer',token={evn='NOPE'}}\nmethod='get'\nheaders={a={file=5}, 'x y'='hunter2'}",
        "[[rest.endpoints]]\nname='a'\ndescription='d'\nurl='http://h/'\nauth={token='x'}\nheaders=5\ntimeout=1979-05-27",
        "[[rest.endpoints]]\nname='a'\ndescription='d'\nurl='http://h/'\nauth='x'\n[rest.endpoint]",
        "[bus\nurl=", "a = 99999999999999999999", "[bus]\nname=''\n[bus]\n",
    ] { println!("-----\n{t}\n=>\n{}", problems(t)); }
}
