//! Conversion of specifications: three public ones, and those with something wrong.

mod hostile;

use std::fmt::Write as _;
use std::io::Read as _;
use std::time::Duration;

use flate2::read::GzDecoder;
use serde_json::{Value, json};
use toolbus_core::Clock;

use super::*;
use crate::rest::{Auth, Method};

const PETSTORE: &str = include_str!("../../../tests/openapi/petstore.yaml");
const README: &[u8] = include_bytes!("../../../tests/openapi/readme.json.gz");
const GITHUB: &[u8] = include_bytes!("../../../tests/openapi/github.json.gz");

fn inflated(bytes: &[u8]) -> String {
    let mut text = String::new();
    GzDecoder::new(bytes).read_to_string(&mut text).unwrap();
    text
}

/// A section with these fields.
fn section(fields: Value) -> OpenApiConfig {
    serde_json::from_value(fields).unwrap()
}

fn read(text: &str, fields: Value) -> Result<DescribedEndpoints, OpenApiError> {
    let client = RestClient::new(EgressRules::default()).unwrap();
    super::read("spec.yaml", text, &section(fields), &EgressRules::default(), &client)
}

/// The key of the mistake, and its error.
fn refused(text: &str, fields: Value) -> String {
    let error = read(text, fields).unwrap_err();
    format!("{}: {error}", error.key.unwrap_or("-"))
}

/// A specification with these paths and components.
fn document(paths: Value, components: Value) -> String {
    let server = json!([{"url": "https://api.example.com/v1/"}]);
    json!({"openapi": "3.1.0", "servers": server, "paths": paths, "components": components}).to_string()
}

/// One operation `op` with these fields at `POST /x`.
fn operation(fields: Value) -> String {
    let mut operation = json!({"operationId": "op"});
    operation.as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
    document(json!({"/x": {"post": operation}}), json!({}))
}

fn only(described: DescribedEndpoints) -> Endpoint {
    let [endpoint] = <[Endpoint; 1]>::try_from(described.endpoints).unwrap();
    endpoint
}

fn schema(endpoint: &Endpoint) -> Value {
    serde_json::from_str(endpoint.parameters.as_deref().unwrap()).unwrap()
}

/// The schema of the only operation of a document.
fn only_schema(text: &str) -> Value {
    schema(&only(read(text, json!({})).unwrap()))
}

fn listed(described: &DescribedEndpoints) -> String {
    let mut text = String::new();
    for endpoint in &described.endpoints {
        let effect = endpoint.effect();
        let fields = schema(endpoint)["properties"].as_object().unwrap().keys().cloned().collect::<Vec<_>>();
        let Endpoint { name, method, url, .. } = endpoint;
        writeln!(text, "{name}({}): {} {url} {effect:?}", fields.join(", "), method.as_str()).unwrap();
    }
    described.notes.iter().for_each(|note| writeln!(text, "note: {note}").unwrap());
    text
}

#[test]
fn the_petstore_becomes_tools() {
    let auth = json!({"api_key": {"key": "a-key-of-tests"}});
    let described =
        read(PETSTORE, json!({"server": "https://pets.example/v2", "prefix": "pets", "auth": auth})).unwrap();
    insta::assert_snapshot!(listed(&described), @"
    pets_addPet(category, name, photoUrls, status, tags): POST https://pets.example/v2/pet Undeclared
    pets_createUser(email, firstName, id, lastName, password, phone, userStatus, username): POST https://pets.example/v2/user Undeclared
    pets_createUsersWithArrayInput(body): POST https://pets.example/v2/user/createWithArray Undeclared
    pets_createUsersWithListInput(body): POST https://pets.example/v2/user/createWithList Undeclared
    pets_deleteOrder(orderId): DELETE https://pets.example/v2/store/order/{orderId} Idempotent
    pets_deletePet(api_key, petId): DELETE https://pets.example/v2/pet/{petId} Idempotent
    pets_deleteUser(username): DELETE https://pets.example/v2/user/{username} Idempotent
    pets_findPetsByStatus(status): GET https://pets.example/v2/pet/findByStatus ReadOnly
    pets_findPetsByTags(tags): GET https://pets.example/v2/pet/findByTags ReadOnly
    pets_getInventory(): GET https://pets.example/v2/store/inventory ReadOnly
    pets_getOrderById(orderId): GET https://pets.example/v2/store/order/{orderId} ReadOnly
    pets_getPetById(petId): GET https://pets.example/v2/pet/{petId} ReadOnly
    pets_getUserByName(username): GET https://pets.example/v2/user/{username} ReadOnly
    pets_loginUser(password, username): GET https://pets.example/v2/user/login ReadOnly
    pets_logoutUser(): GET https://pets.example/v2/user/logout ReadOnly
    pets_placeOrder(complete, id, petId, quantity, shipDate, status): POST https://pets.example/v2/store/order Undeclared
    pets_updatePet(category, name, photoUrls, status, tags): PUT https://pets.example/v2/pet Idempotent
    pets_updateUser(body, username): PUT https://pets.example/v2/user/{username} Idempotent
    note: operations need a credential that `auth` does not have: `petstore_auth`; they are called without
    note: 2 operations are no tools: POST /pet/{petId}: its body is no JSON but application/x-www-form-urlencoded, POST /pet/{petId}/uploadImage: its body is no JSON but multipart/form-data
    ");
    let with_key: Vec<_> = described.endpoints.iter().filter(|one| one.auth.is_some()).map(|one| &*one.name).collect();
    assert_eq!(with_key, ["pets_getInventory", "pets_getPetById"]);
    let add = described.endpoints.iter().find(|one| one.name == "pets_addPet").unwrap();
    insta::assert_json_snapshot!(schema(add), @r##"
    {
      "$defs": {
        "Category": {
          "properties": {
            "id": {
              "format": "int64",
              "type": "integer"
            },
            "name": {
              "type": "string"
            }
          },
          "type": "object"
        },
        "Tag": {
          "properties": {
            "id": {
              "format": "int64",
              "type": "integer"
            },
            "name": {
              "type": "string"
            }
          },
          "type": "object"
        }
      },
      "additionalProperties": false,
      "properties": {
        "category": {
          "$ref": "#/$defs/Category"
        },
        "name": {
          "type": "string"
        },
        "photoUrls": {
          "items": {
            "type": "string"
          },
          "type": "array"
        },
        "status": {
          "description": "pet status in the store",
          "enum": [
            "available",
            "pending",
            "sold"
          ],
          "type": "string"
        },
        "tags": {
          "items": {
            "$ref": "#/$defs/Tag"
          },
          "type": "array"
        }
      },
      "required": [
        "name",
        "photoUrls"
      ],
      "type": "object"
    }
    "##);
}

#[test]
fn an_api_of_openapi_3_1_becomes_tools() {
    let auth = json!({"bearer": {"token": "a-token-of-tests"}});
    let fields = json!({"server": "https://api.readme.com/v2", "include": ["GET *"], "auth": auth});
    let described = read(&inflated(README), fields).unwrap();
    assert_eq!(described.endpoints.len(), 23);
    assert!(described.endpoints.iter().all(|one| one.method == Method::Get));
    assert!(described.endpoints.iter().any(|one| one.auth.is_some()));
    insta::assert_snapshot!(described.notes.join("\n"), @"");
}

#[test]
fn a_large_api_becomes_tools() {
    let text = inflated(GITHUB);
    insta::assert_snapshot!(refused(&text, json!({})), @"max_tools: 1223 operations would become tools; at most 100 may (`max_tools`). Choose some with `include` or `exclude`");
    let described = read(&text, json!({"max_tools": 2000, "server": "https://api.github.com"})).unwrap();
    assert_eq!(described.endpoints.len(), 1221);
    insta::assert_snapshot!(described.notes.join("\n"), @"2 operations are no tools: POST /markdown/raw: its body is no JSON but text/plain, POST /repos/{owner}/{repo}/releases/{release_id}/assets: it has servers of its own");
    let issues = read(&text, json!({"include": ["/repos/*/issues/?issue_number?", "issues_create"]})).unwrap();
    insta::assert_snapshot!(listed(&issues), @"
    issues_create(assignee, assignees, body, issue_field_values, labels, milestone, owner, repo, title, type): POST https://api.github.com/repos/{owner}/{repo}/issues Undeclared
    issues_get(issue_number, owner, repo): GET https://api.github.com/repos/{owner}/{repo}/issues/{issue_number} ReadOnly
    issues_update(assignee, assignees, body, duplicate_issue_id, issue_field_values, issue_number, labels, milestone, owner, repo, state, state_reason, title, type): PATCH https://api.github.com/repos/{owner}/{repo}/issues/{issue_number} Undeclared
    ");
}

#[test]
fn a_specification_of_ten_megabytes_is_read_in_a_bounded_time() {
    let description = "x".repeat(10 * 1024);
    let schemas: serde_json::Map<String, Value> = (0..1000)
        .map(|n| {
            let next = format!("#/components/schemas/s{}", (n + 1) % 1000);
            let property =
                json!({"type": "object", "description": description, "properties": {"next": {"$ref": next}}});
            (format!("s{n}"), property)
        })
        .collect();
    let body = json!({"content": {"application/json": {"schema": {"$ref": "#/components/schemas/s0"}}}});
    let paths: serde_json::Map<String, Value> = (0..200)
        .map(|n| (format!("/p{n}"), json!({"post": {"operationId": format!("p{n}"), "requestBody": body}})))
        .collect();
    let small = json!({"/a": {"get": {"operationId": "a"}}});
    for (paths, count) in [(Value::Object(paths), 0), (small, 1)] {
        let text = document(paths, json!({"schemas": schemas}));
        assert!(text.len() > 10_000_000);
        let started = Clock::SYSTEM.now();
        // Each of them leads to all schemas, which are too many for the tool of a model.
        let read = read(&text, json!({"max_tools": 500}));
        assert_eq!(read.map_or(0, |described| described.endpoints.len()), count);
        assert!(Clock::SYSTEM.since(started) < Duration::from_secs(60));
    }
}

#[test]
fn a_yaml_of_megabytes_is_read_as_the_same_json_is() {
    let paths: String = (0..2000).fold("paths:\n".to_owned(), |text, n| {
        let parameters = "[{name: q, in: query, schema: {type: string}}]";
        format!("{text}  /p{n}:\n    get:\n      operationId: p{n}\n      description: {}\n      parameters: {parameters}\n", "y".repeat(900))
    });
    let text = format!("openapi: 3.0.3\nservers: [{{url: 'https://api.example.com'}}]\n{paths}");
    let described = read(&text, json!({"max_tools": 2000})).unwrap();
    assert_eq!(described.endpoints.len(), 2000);
}

#[test]
fn a_specification_of_an_unknown_version_is_refused() {
    let table = [
        ("swagger: '2.0'\npaths: {}", json!({})),
        ("openapi: 3.2.0", json!({})),
        ("openapi: 3.10", json!({})),
        ("a: 1", json!({})),
        ("", json!({})),
        ("{\"openapi\": \"3.0.0\", \"openapi\": \"3.0.0\"}", json!({})),
        ("{\"openapi\": ", json!({})),
        ("openapi: 3.0.0\n  paths: x", json!({})),
        ("openapi: 3.0.0\npaths:\n  /a: 1\n  /a: 2\n", json!({})),
        ("- 1", json!({})),
        ("a: &a [*a]", json!({})),
    ];
    let errors = table.map(|(text, fields)| refused(text, fields)).join("\n");
    insta::assert_snapshot!(errors, @r#"
    -: it is Swagger 2.0; expected OpenAPI 3.0 or 3.1. Converters make one of the other
    -: it is OpenAPI 3.2.0; expected 3.0 or 3.1
    server: the specification names no host; write `server`
    -: it is no OpenAPI specification: it has no `openapi` with a version
    -: it is no OpenAPI specification: it has no `openapi` with a version
    -: spec.yaml: `openapi`: given twice; expected it once
    -: spec.yaml:1:12: not JSON, as its extension says: EOF while parsing a value
    -: spec.yaml:2:8: not YAML, as its extension says: mapping values are not allowed in this context
    -: spec.yaml:4:3: `paths.\"/a\"`: given twice; expected it once
    -: spec.yaml:1:1: expected keys with values, found a list
    -: spec.yaml:1:8: `a[0]`: an alias within what it stands for
    "#);
}

#[test]
fn requests_go_to_hosts_of_the_configuration_and_to_public_ones() {
    let at = |server: &str| {
        json!({"openapi": "3.0.0", "servers": [{"url": server}], "paths": {"/a": {"get": {}}}}).to_string()
    };
    let url = |server: &str, fields: Value| only(read(&at(server), fields).unwrap()).url;
    assert_eq!(url("https://api.example.com/v1/", json!({})), "https://api.example.com/v1/a");
    assert_eq!(url("http://10.0.0.1", json!({"server": "http://10.0.0.2/api/"})), "http://10.0.0.2/api/a");
    let spec = json!({"url": "http://127.0.0.1:8080/openapi.json", "headers": {"X-Tenant": "t"}});
    assert_eq!(url("/v2", spec.clone()), "http://127.0.0.1:8080/v2/a");
    assert_eq!(url("http://127.0.0.1:8080/v3", spec.clone()), "http://127.0.0.1:8080/v3/a");
    let variables = json!({"openapi": "3.0.0", "paths": {"/a": {"get": {}}}, "servers": [
        {"url": "https://{host}/{version}", "variables": {"host": {"default": "api.example.com"}, "version": {"default": "v1"}}}
    ]});
    assert_eq!(only(read(&variables.to_string(), json!({})).unwrap()).url, "https://api.example.com/v1/a");
    assert!(only(read(&at("https://api.example.com"), json!({})).unwrap()).is_guarded);
    assert!(!only(read(&at("/v2"), spec.clone()).unwrap()).is_guarded);

    let table = [
        ("http://169.254.169.254/latest", json!({})),
        ("http://localhost", json!({})),
        ("https://api.example.com:8443", json!({})),
        ("file:///etc/passwd", json!({})),
        ("https://ana:hunter2@api.example.com", json!({})),
        ("/v1", json!({"file": "spec.yaml"})),
        ("https://elsewhere.example", spec),
        ("http://[::1]/x", json!({"url": "https://api.example.com/openapi.json"})),
    ];
    let errors = table.map(|(server, fields)| refused(&at(server), fields)).join("\n");
    insta::assert_snapshot!(errors, @"
    server: the server of the specification may not be asked: the address of `169.254.169.254` is not public but link-local, where clouds have their metadata. Write `server` if it is meant
    server: the server of the specification may not be asked: `localhost` is the name of a machine or network that is not public. Write `server` if it is meant
    server: the server of the specification may not be asked: port 8443 is not allowed. Write `server` if it is meant
    server: the server of the specification may not be asked: only http and https are allowed, not `file`. Write `server` if it is meant
    server: the server of the specification may not be asked: a URL with a user name or a password is not allowed. Write `server` if it is meant
    server: the specification names no host; write `server`
    server: the specification says that requests go to `elsewhere.example`. Credentials go to no host that a specification chooses; write `server` if it is meant
    server: the server of the specification may not be asked: the address of `::1` is not public but loopback. Write `server` if it is meant
    ");
}

#[test]
fn names_come_from_ids_or_else_from_paths() {
    let paths = json!({
        "/repos/{owner}/{repo}": {"parameters": [{"name": "owner", "in": "path"}, {"name": "repo", "in": "path"}],
            "get": {"operationId": "repos/get one"}, "delete": {"operationId": ""}},
        "/": {"get": {}}
    });
    let described = read(&document(paths, json!({})), json!({})).unwrap();
    let names: Vec<_> = described.endpoints.iter().map(|one| &*one.name).collect();
    assert_eq!(names, ["delete_repos_owner_repo", "get", "repos_get_one"]);
}

#[test]
fn names_that_are_the_same_or_differ_in_case_alone_are_refused() {
    let two = |one: &str, two: &str| {
        document(json!({"/a": {"get": {"operationId": one}}, "/b": {"put": {"operationId": two}}}), json!({}))
    };
    insta::assert_snapshot!(refused(&two("getPet", "getPet"), json!({})), @r#"exclude: `GET /a` and `PUT /b` would both be the tool `getPet`; leave one out: exclude = ["PUT /b"]"#);
    insta::assert_snapshot!(refused(&two("getPet", "getpet"), json!({})), @r#"exclude: `GET /a` and `PUT /b` would be the tools `getPet` and `getpet`, whose names differ in case alone; leave one out: exclude = ["PUT /b"]"#);
    let described = read(&two("getPet", "getpet"), json!({"exclude": ["PUT /b"]})).unwrap();
    assert_eq!(only(described).name, "getPet");
}

#[test]
fn patterns_choose_operations_by_name_path_and_method() {
    let get = |id: &str| json!({"get": {"operationId": id}});
    let paths = json!({"/pets": get("listPets"), "/pets/all": get("allPets"), "/admin": get("admin")});
    let names = |fields: Value| {
        let described = read(&document(paths.clone(), json!({})), fields).unwrap();
        let names = described.endpoints.iter().map(|one| one.name.clone()).chain(described.notes).collect::<Vec<_>>();
        names.join(", ")
    };
    assert_eq!(names(json!({"include": ["*Pets"]})), "allPets, listPets");
    assert_eq!(names(json!({"exclude": ["/pets/*"]})), "admin, listPets");
    assert_eq!(names(json!({"include": ["GET /a*"], "prefix": "x"})), "x_admin");
    assert_eq!(
        names(json!({"exclude": ["/nowhere"]})),
        "admin, allPets, listPets, `exclude`: `/nowhere` matches no operation"
    );
    insta::assert_snapshot!(refused(&document(paths.clone(), json!({})), json!({"include": ["nothing"]})), @"-: no operation of it becomes a tool; `include`: `nothing` matches no operation");
    insta::assert_snapshot!(refused(&document(paths, json!({})), json!({"max_tools": 2})), @"max_tools: 3 operations would become tools; at most 2 may (`max_tools`). Choose some with `include` or `exclude`");
}

#[test]
fn parameters_and_a_plain_body_are_one_schema() {
    let text = operation(json!({
        "parameters": [
            {"name": "page[size]", "in": "query", "description": "How many.", "schema": {"type": "integer"}},
            {"name": "X-Trace", "in": "header", "required": true, "schema": {"type": "string"}},
            {"name": "Accept", "in": "header", "schema": {"type": "string"}},
            {"name": "session", "in": "cookie", "schema": {"type": "string"}}
        ],
        "requestBody": {"required": true, "content": {"application/json": {"schema": {
            "type": "object", "required": ["id", "name"],
            "properties": {"id": {"type": "integer", "readOnly": true}, "name": {"type": "string", "x-order": 1}}
        }}}}
    }));
    insta::assert_json_snapshot!(only_schema(&text), @r#"
    {
      "additionalProperties": false,
      "properties": {
        "X-Trace": {
          "type": "string"
        },
        "name": {
          "type": "string"
        },
        "page_size": {
          "description": "How many.",
          "type": "integer"
        }
      },
      "required": [
        "X-Trace",
        "name"
      ],
      "type": "object"
    }
    "#);
}

#[test]
fn a_body_that_cannot_stand_beside_parameters_is_one_argument() {
    let with = |schema: Value, parameters: Value| {
        let content = json!({"content": {"application/json": {"schema": schema}}});
        let schema = only_schema(&operation(json!({"requestBody": content, "parameters": parameters})));
        schema["properties"].as_object().unwrap().keys().cloned().collect::<Vec<_>>().join(" ")
    };
    let object = json!({"type": "object", "properties": {"a": {}}});
    assert_eq!(with(object.clone(), json!([])), "a");
    assert_eq!(with(object, json!([{"name": "a", "in": "query"}])), "a body");
    assert_eq!(
        with(json!({"type": "array", "items": {}}), json!([{"name": "body", "in": "query"}])),
        "body body_in_request"
    );
    assert_eq!(with(json!({"allOf": [{"type": "object"}]}), json!([])), "body");
    assert_eq!(with(json!({"type": "object", "additionalProperties": {"type": "string"}}), json!([])), "body");
}

#[test]
fn schemas_of_openapi_3_0_become_json_schema() {
    let text = operation(json!({"parameters": [{"name": "q", "in": "query", "schema": {
        "type": "string", "nullable": true, "enum": ["a", "b"], "example": "a", "xml": {"name": "q"}
    }}, {"name": "n", "in": "query", "schema": {
        "type": "integer", "minimum": 0, "exclusiveMinimum": true, "maximum": 9, "exclusiveMaximum": false,
        "pattern": "(?=a)b"
    }}, {"name": "r", "in": "query", "schema": {"nullable": true, "allOf": [{"type": "object", "properties": {
        "example": {"type": "string"}, "nullable": {"type": "boolean"}
    }}]}}]}));
    let text = text.replace("3.1.0", "3.0.3");
    insta::assert_json_snapshot!(only_schema(&text)["properties"], @r#"
    {
      "n": {
        "exclusiveMinimum": 0,
        "maximum": 9,
        "pattern": "(?=a)b",
        "type": "integer"
      },
      "q": {
        "enum": [
          "a",
          "b",
          null
        ],
        "type": [
          "string",
          "null"
        ]
      },
      "r": {
        "anyOf": [
          {
            "allOf": [
              {
                "properties": {
                  "example": {
                    "type": "string"
                  },
                  "nullable": {
                    "type": "boolean"
                  }
                },
                "type": "object"
              }
            ]
          },
          {
            "type": "null"
          }
        ]
      }
    }
    "#);
}

#[test]
fn a_schema_that_refers_to_itself_is_kept_and_one_that_is_nothing_else_is_refused() {
    let body = |name: &str| {
        let schema = json!({"$ref": format!("#/components/schemas/{name}")});
        json!({"operationId": name, "requestBody": {"content": {"application/json": {"schema": {"type": "array", "items": schema}}}}})
    };
    let node = json!({"type": "object", "properties": {"next": {"$ref": "#/components/schemas/node"}}});
    let schemas = json!({"node": node, "a": {"$ref": "#/components/schemas/b"}, "b": {"$ref": "#/components/schemas/a"},
        "c": {"allOf": [{"type": "object"}, {"$ref": "#/components/schemas/c"}]}});
    let names = ["node", "a", "c"];
    let paths = names.map(|name| (format!("/{name}"), json!({"post": body(name)})));
    let text = document(Value::Object(paths.into_iter().collect()), json!({"schemas": schemas}));
    let described = read(&text, json!({})).unwrap();
    insta::assert_snapshot!(described.notes.join("\n"), @"2 operations are no tools: POST /a: the schema `a` is defined by itself alone, POST /c: the schema `c` is defined by itself alone");
    insta::assert_json_snapshot!(schema(&only(described)), @r##"
    {
      "$defs": {
        "node": {
          "properties": {
            "next": {
              "$ref": "#/$defs/node"
            }
          },
          "type": "object"
        }
      },
      "additionalProperties": false,
      "properties": {
        "body": {
          "items": {
            "$ref": "#/$defs/node"
          },
          "type": "array"
        }
      },
      "type": "object"
    }
    "##);
}

#[test]
fn references_lead_to_parts_of_the_document_alone() {
    let parameter = |reference: &str| operation(json!({"parameters": [{"$ref": reference}]}));
    let table = [
        "http://169.254.169.254/latest/meta-data",
        "other.yaml#/components/parameters/a",
        "#/components/parameters/none",
        "#/paths/~1x/post/parameters/0",
    ];
    let errors = table.map(|reference| refused(&parameter(reference), json!({}))).join("\n");
    insta::assert_snapshot!(errors, @"
    -: no operation of it becomes a tool; 1 operation is no tool: POST /x: its `$ref` `http://169.254.169.254/latest/meta-data` leads to another document, and only the specification itself is read: put it into one file
    -: no operation of it becomes a tool; 1 operation is no tool: POST /x: its `$ref` `other.yaml#/components/parameters/a` leads to another document, and only the specification itself is read: put it into one file
    -: no operation of it becomes a tool; 1 operation is no tool: POST /x: its `$ref` `#/components/parameters/none` leads to nothing
    -: no operation of it becomes a tool; 1 operation is no tool: POST /x: its `$ref`s lead in a circle
    ");
}

#[test]
fn operations_that_cannot_be_called_are_left_out_with_the_reason() {
    let op = |fields: Value| json!({"post": fields});
    let body = |media: &str| json!({"requestBody": {"required": true, "content": {media: {}}}});
    let paths = json!({
        "/ok": op(json!({"operationId": "ok"})),
        "/form": op(body("multipart/form-data")),
        "/cookie": op(json!({"parameters": [{"name": "c", "in": "cookie", "required": true}]})),
        "/{id}": op(json!({"operationId": "undeclared"})),
        "/server": op(json!({"servers": [{"url": "https://other.example"}]})),
        "/wrong": op(json!({"parameters": [{"name": "a", "in": "query", "schema": {"type": "strin"}}]}))
    });
    let described = read(&document(paths, json!({})), json!({})).unwrap();
    insta::assert_snapshot!(listed(&described), @r#"
    ok(): POST https://api.example.com/v1/ok Undeclared
    note: 5 operations are no tools: POST /cookie: parameter `c` goes to the cookie, POST /form: its body is no JSON but multipart/form-data, POST /server: it has servers of its own, POST /wrong: `parameters` is not a usable JSON Schema: at `/properties/a/type`: "strin" is not valid under any of the schemas listed in the 'anyOf' keyword, POST /{id}: its path has `{id}`, but no such parameter
    "#);
}

#[test]
fn credentials_go_where_security_schemes_put_them() {
    let schemes = json!({"securitySchemes": {
        "key": {"type": "apiKey", "in": "header", "name": "X-Key"},
        "app": {"type": "apiKey", "in": "header", "name": "X-App"},
        "query": {"type": "apiKey", "in": "query", "name": "api_key"},
        "cookie": {"type": "apiKey", "in": "cookie", "name": "session"},
        "basic": {"type": "http", "scheme": "Basic"},
        "bearer": {"type": "http", "scheme": "bearer"},
        "oauth": {"type": "oauth2", "flows": {}}
    }});
    let text = |security: Value| {
        let parameters = json!([{"name": "api_key", "in": "query"}, {"name": "x-key", "in": "header"}]);
        let paths = json!({"/a": {"get": {"operationId": "a", "security": security, "parameters": parameters}}});
        document(paths, schemes.clone())
    };
    let with = |security: Value, auth: Value| read(&text(security), json!({"server": "https://h/", "auth": auth}));
    let keys = json!({"key": {"key": "key-of-tests"}, "app": {"key": "app-of-tests"}});
    let both = only(with(json!([{"key": [], "app": []}]), keys).unwrap());
    assert!(matches!(both.auth, Some(Auth::ApiKey { ref header, .. }) if header == "X-App"));
    assert_eq!(both.headers["X-Key"].expose(), "key-of-tests");
    assert_eq!(schema(&both)["properties"], json!({"api_key": {}}));
    let mixed = json!({"app": {"key": "app-of-tests"}, "bearer": {"token": "t"}});
    let mixed = only(with(json!([{"app": [], "bearer": []}]), mixed).unwrap());
    assert!(matches!(mixed.auth, Some(Auth::Bearer { .. })), "whatever the names of the schemes");
    assert_eq!(mixed.headers["X-App"].expose(), "app-of-tests");
    let query = only(with(json!([{"oauth": []}, {"query": []}]), json!({"query": {"key": "a&b"}})).unwrap());
    assert_eq!((&*query.url, query.auth), ("https://h/a?api%5Fkey=a%26b", None));
    let bearer = only(with(json!([{}, {"oauth": ["read"]}]), json!({"oauth": {"token": "t"}})).unwrap());
    assert_eq!(bearer.auth, Some(Auth::Bearer { token: Some("t".into()), per_agent: None }));

    let lacking = with(json!([{"bearer": []}]), json!({"basic": {"username": "u", "password": "p"}})).unwrap();
    insta::assert_snapshot!(lacking.notes.join("\n"), @"
    `auth.basic`: no operation that is a tool uses it
    operations need a credential that `auth` does not have: `bearer`; they are called without
    ");
    let security = json!([{"key": []}]);
    let table = [
        json!({"kay": {"key": "k"}}),
        json!({"key": {"token": "t"}}),
        json!({"key": {}}),
        json!({"basic": {"username": "u"}}),
        json!({"cookie": {"key": "k"}}),
        json!({"query": {"per_agent": {"ana": {"key": "k"}}}}),
        json!({"key": {"per_agent": {"ana": {"token": "t"}}}}),
        json!({"key": {"key": " "}}),
    ];
    let errors = table.map(|auth| {
        let error = with(security.clone(), auth).unwrap_err();
        format!("{}: {error}", error.key.unwrap_or("-"))
    });
    insta::assert_snapshot!(errors.join("\n"), @"
    auth: the specification has no security scheme `kay`; did you mean `key`? expected one of `app`, `basic`, `bearer`, `cookie`, `key`, `oauth`, `query`
    auth: `key`: `token` is not what this scheme needs; expected `key`
    auth: `key`: `key` is missing; expected it here, or in `per_agent` for each agent
    auth: `basic`: `password` is missing; expected it here, or in `per_agent` for each agent
    auth: `cookie`: keys in a cookie are not sent; leave it out
    auth: `query`: it is a key in the query; expected `key` alone
    auth: `key`: `per_agent.ana`: expected `key`, as this scheme needs
    auth: the key is empty: is the variable or file that it comes from set?
    ");
    let elsewhere = read(&text(security), json!({"auth": {"key": {"key": "k"}}})).unwrap_err();
    insta::assert_snapshot!(elsewhere, @"the specification says that requests go to `api.example.com`. Credentials go to no host that a specification chooses; write `server` if it is meant");
}

/// Such an operation was left out, because a name was required twice.
#[test]
fn of_a_body_what_is_sent_is_required_whatever_parameters_are_called() {
    let operation = |location: &str, required: bool, id: Value| {
        let body = json!({"type": "object", "required": ["id", "name"], "properties": {"id": id, "name": {}}});
        let path = if location == "path" { "/pets/{id}" } else { "/pets" };
        let parameters = json!([{"name": "id", "in": location, "required": required}]);
        let put = json!({"operationId": "put", "parameters": parameters,
            "requestBody": {"required": true, "content": {"application/json": {"schema": body}}}});
        let components = json!({"schemas": {"Id": {"type": "string", "readOnly": true}}});
        only(read(&document(json!({path: {"put": put}}), components), json!({"server": "https://h/"})).unwrap())
    };
    for id in [json!({"readOnly": true}), json!({"$ref": "#/components/schemas/Id"})] {
        assert_eq!(schema(&operation("path", true, id.clone()))["required"], json!(["id", "name"]));
        assert_eq!(schema(&operation("query", false, id))["required"], json!(["name"]));
    }
}

#[test]
fn fields_whose_names_models_cannot_give_stay_in_the_body() {
    let body = json!({"type": "object", "required": ["@type"], "properties": {"@type": {"type": "string"}}});
    let body = json!({"required": true, "content": {"application/json": {"schema": body}}});
    let schema = only_schema(&operation(json!({"requestBody": body})));
    assert_eq!(schema["required"], json!(["body"]));
    assert_eq!(schema["properties"]["body"]["required"], json!(["@type"]));
}

#[test]
fn headers_of_the_section_are_no_arguments() {
    let parameters = json!([{"name": "X-Tenant", "in": "header", "required": true}, {"name": "q", "in": "query"}]);
    let fields = json!({"server": "https://h/", "headers": {"x-tenant": "t"}});
    let schema = schema(&only(read(&operation(json!({"parameters": parameters})), fields).unwrap()));
    assert_eq!((&schema["properties"], schema.get("required")), (&json!({"q": {}}), None));
}

#[test]
fn objects_that_are_written_with_field_names_go_to_no_path_and_no_header() {
    let operation = |location: &str, required: bool| {
        let parameters = json!([{"name": "c", "in": location, "required": required, "explode": true,
            "schema": {"type": "object"}}]);
        let path = if location == "path" { "/a/{c}" } else { "/a" };
        let get = json!({"operationId": "get", "parameters": parameters});
        read(&document(json!({path: {"get": get}}), json!({})), json!({"server": "https://h/"}))
    };
    for location in ["path", "header"] {
        let error = operation(location, true).unwrap_err().to_string();
        assert!(error.contains("parameter `c` is an object with `explode`"), "{error}");
    }
    assert_eq!(schema(&only(operation("header", false).unwrap()))["properties"], json!({}));
}

#[test]
fn a_credential_in_the_query_is_appended_to_the_query_of_the_path() {
    let schemes = json!({"securitySchemes": {"query": {"type": "apiKey", "in": "query", "name": "key"}}});
    let get = json!({"operationId": "get", "security": [{"query": []}]});
    let auth = json!({"server": "https://h/", "auth": {"query": {"key": "k"}}});
    let get = only(read(&document(json!({"/a?type=users": {"get": get}}), schemes), auth).unwrap());
    assert_eq!(get.url, "https://h/a?type=users&key=k");
}
