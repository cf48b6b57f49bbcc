//! REST tools of other files: of specifications, and of the file of RockBot's agents.

use super::*;

const PETS: &str = r#"{"openapi": "3.1.0", "servers": [{"url": "https://pets.example"}], "paths": {
    "/pets": {"get": {"operationId": "listPets", "summary": "Lists\u200b pets"}, "post": {"operationId": "addPet"}},
    "/photo": {"post": {"operationId": "photo", "requestBody": {"required": true, "content": {"image/png": {}}}}}
}}"#;

/// Loads a configuration in which `FILE` stands for a file with this text.
fn load_with(file: &str, toml: &str) -> Result<Loaded, String> {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("spec.json");
    std::fs::write(&path, file).unwrap();
    let loaded = load(&[&toml.replace("FILE", &path.display().to_string())], &[("KEY", "a-key-of-the-tests")], &[]);
    let here = format!("{}/", folder.path().display());
    loaded.map_err(|problems| problems.replace(&here, ""))
}

fn reported(file: &str, toml: &str) -> String {
    load_with(file, toml).expect_err("a problem")
}

#[test]
fn the_operations_of_a_file_are_tools_of_the_configuration() {
    let toml = "[rest.openapi.pets]\nfile = 'FILE'\nprefix = 'pets'\n[tools]\ntime = false\nrequired = ['pets_addPet']\n\
                [toolsets.zoo]\nkind = 'rest'\nendpoints = ['pets_listPets']\n";
    let loaded = load_with(PETS, toml).unwrap();
    let names: Vec<_> = loaded.config.tool_names().iter().map(ToString::to_string).collect();
    assert_eq!(names, ["pets_addPet", "zoo.pets_listPets"]);
    let list = &loaded.config.rest.described["rest.openapi.pets"].endpoints[1];
    assert_eq!(list.description, "Lists pets");
    insta::assert_snapshot!(loaded.warnings.join("\n"), @"
    rest.openapi.pets: 1 operation is no tool: POST /photo: its body is no JSON but image/png
    rest.openapi.pets: characters that people do not see were removed from its texts: 1
    toolsets.zoo: no agent has this tool set
    ");
}

#[test]
fn an_unusable_specification_is_reported_at_its_key() {
    let section = |more: &str| format!("[rest.openapi.pets]\nfile = 'FILE'\n{more}");
    let swagger = r#"{"swagger": "2.0"}"#;
    let private = PETS.replace("pets.example", "10.0.0.7");
    let table = [
        (swagger, section("")),
        ("{\"openapi\": \"3.1.0\",\n \"openapi\": 1}", section("")),
        ("a: 1\n  b: 2", section("")),
        (&private, section("")),
        (PETS, section("max_tools = 1")),
        (PETS, section("auth = { key = { key = 'k' } }\nserver = 'https://pets.example'")),
        (PETS, section("include = ['store*']")),
        (PETS, section("url = 'https://pets.example/spec'")),
        (PETS, "[rest.openapi.pets]\nprefix = 'pets'".to_owned()),
        (PETS, "[rest.openapi.pets]\nfile = 'nowhere.yaml'".to_owned()),
        (PETS, "[rest.openapi.pets]\nurl = 'ftp://pets.example/spec'".to_owned()),
        (PETS, section("includes = ['x']")),
    ];
    let all: Vec<String> = table.iter().map(|(file, toml)| reported(file, toml)).collect();
    insta::assert_snapshot!(all.join("\n"), @r#"
    a.toml:2:8: `rest.openapi.pets.file`: spec.json: it is Swagger 2.0; expected OpenAPI 3.0 or 3.1. Converters make one of the other
    a.toml:2:8: `rest.openapi.pets.file`: spec.json: `openapi`: given twice; expected it once
    a.toml:2:8: `rest.openapi.pets.file`: spec.json:2:4: not YAML, as its extension says: mapping values are not allowed in this context
    a.toml:2:8: `rest.openapi.pets.file`: spec.json: the server of the specification may not be asked: the address of `10.0.0.7` is not public but a private network. Write `server` if it is meant
    a.toml:3:13: `rest.openapi.pets.max_tools`: spec.json: 3 operations would become tools; at most 1 may (`max_tools`). Choose some with `include` or `exclude`
    a.toml:3:8: `rest.openapi.pets.auth`: spec.json: the specification has no security scheme `key`; it has none
    a.toml:2:8: `rest.openapi.pets.file`: spec.json: no operation of it becomes a tool; `include`: `store*` matches no operation
    a.toml:3:7: `rest.openapi.pets.url`: `file` is there, too; expected one of them
    a.toml:1:1: `rest.openapi.pets`: the specification is missing; expected `file` or `url`
    a.toml:2:8: `rest.openapi.pets.file`: nowhere.yaml: the file cannot be read: No such file or directory (os error 2)
    a.toml:2:7: `rest.openapi.pets.url`: not an HTTP address; expected an address such as "https://host/path"
    a.toml:3:1: `rest.openapi.pets.includes`: unknown key; did you mean `include`? expected one of `auth`, `exclude`, `file`, `headers`, `idempotency_header`, `include`, `max_response`, `max_tools`, `prefix`, `server`, `timeout`, `url`
    "#);
}

#[test]
fn the_name_of_another_tool_is_reported() {
    let other = "[[rest.endpoints]]\nname = 'addPet'\ndescription = 'd'\nurl = 'https://h/'\n";
    let twice = "[rest.openapi.a]\nfile = 'FILE'\n[rest.openapi.b]\nfile = 'FILE'\n";
    insta::assert_snapshot!(reported(PETS, &format!("{other}[rest.openapi.pets]\nfile = 'FILE'")), @"a.toml:5:1: `rest.openapi.pets`: its tool `addPet` has the name of the endpoint at a.toml:2:8; write a `prefix`, or `exclude` it");
    insta::assert_snapshot!(reported(PETS, twice), @"
    a.toml:3:1: `rest.openapi.b`: its tool `addPet` has the name of a tool of `rest.openapi.a`; write a `prefix`, or `exclude` it
    a.toml:3:1: `rest.openapi.b`: its tool `listPets` has the name of a tool of `rest.openapi.a`; write a `prefix`, or `exclude` it
    ");
}

#[test]
fn a_specification_at_an_address_is_not_fetched_and_may_have_any_tool() {
    let toml = "[rest.openapi.pets]\nurl = 'http://127.0.0.1:1/spec'\n[tools]\nrequired = ['getPet']\n";
    let loaded = load_with(PETS, toml).unwrap();
    assert!(loaded.config.rest.described.is_empty());
}

#[test]
fn the_endpoints_of_rockbots_agents_are_read_from_their_own_file() {
    let file = r#"{"RestTools": {"Endpoints": [{"Name": "get_weather", "Description": "Weather",
        "UrlTemplate": "https://weather.example/{city}", "AuthType": "bearer", "AuthEnvVar": "KEY"}]}}"#;
    let config = load_with(file, "[rest]\nendpoints_file = 'FILE'").unwrap().config;
    assert!(config.tool_names().iter().any(|name| &**name == "get_weather"));
    let secrets: Vec<_> =
        config.secrets().into_iter().map(|given| (given.key, given.secret.expose().to_owned())).collect();
    assert_eq!(secrets, [("rest.endpoints_file".to_owned(), "a-key-of-the-tests".to_owned())]);
    let wrong = file.replace("\"KEY\"", "\"OTHER\"");
    insta::assert_snapshot!(reported(&wrong, "[rest]\nendpoints_file = 'FILE'"), @"a.toml:2:18: `rest.endpoints_file`: spec.json: `RestTools:Endpoints[0]`: `AuthEnvVar`: the environment variable `OTHER` is not set, or is empty");
}

#[test]
fn the_digest_includes_the_contents_of_specifications() {
    let toml = "[rest.openapi.pets]\nfile = 'FILE'\n";
    let digest = |file: &str| {
        let mut config = load_with(file, toml).unwrap().config;
        config.rest.openapi.clear();
        config.digest()
    };
    assert_eq!(digest(PETS), digest(PETS));
    assert_ne!(digest(PETS), digest(&PETS.replace("addPet", "putPet")));
}
