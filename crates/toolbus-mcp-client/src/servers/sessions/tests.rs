use std::path::Path;

use proptest::prelude::*;
use toolbus_core::tool::{Naming, Validation};

use super::*;
use crate::filter::ToolFilter;
use crate::spec::{Origin, ServerName};

fn spec(program: Program) -> ServerSpec {
    ServerSpec {
        name: ServerName::parse("files").unwrap(),
        transport: TransportSpec::Stdio(program),
        tools: ToolFilter::default(),
        naming: Naming::default(),
        validation: Validation::Enforce,
        tool_timeout: None,
        is_lazy: false,
        is_disabled: false,
        origin: Origin::Configuration,
    }
}

#[test]
fn a_session_is_named_in_arguments_environment_directory_and_roots() {
    let program = Program {
        command: "{agent}".to_owned(),
        args: vec!["--for={agent}/{session}".to_owned()],
        env: [("WHO".to_owned(), Secret::new("{agent}"))].into(),
        cwd: Some("data/{agent}".into()),
        roots: vec!["data/{agent}/{session}".into()],
    };
    let TransportSpec::Stdio(filled) = expanded(&spec(program), "ana", "s1").transport else { panic!() };
    assert_eq!(filled.command, "{agent}", "the program itself is the operator's choice alone");
    assert_eq!(filled.args, ["--for=ana/s1"]);
    assert_eq!(filled.env["WHO"].expose(), "ana");
    assert_eq!(filled.cwd.as_deref(), Some(Path::new("data/ana")));
    assert_eq!(filled.roots, [PathBuf::from("data/ana/s1")]);
}

#[test]
fn a_session_has_the_credential_of_its_own_agent_and_no_other() {
    let token = |text: &str| Credential::Bearer(Secret::new(text));
    let endpoint = Endpoint {
        url: "https://mcp.example.com/mcp".parse().unwrap(),
        kind: crate::spec::HttpKind::Detect,
        headers: BTreeMap::new(),
        credentials: Credentials::PerAgent(["ana", "bruno"].map(|agent| (agent.to_owned(), token(agent))).into()),
    };
    let plain = spec(Program { command: "x".to_owned(), args: vec![], env: BTreeMap::new(), cwd: None, roots: vec![] });
    let http = ServerSpec { transport: TransportSpec::Http(endpoint), ..plain.clone() };
    assert_eq!(credential(&http, "bruno"), Ok(Some(&token("bruno"))));
    for owner in ["carla", "unknown:0::ana"] {
        assert_eq!(credential(&http, owner).unwrap_err().cause, Cause::AuthRequired, "{owner}");
    }
    assert_eq!(credential(&plain, "carla"), Ok(None));
}

#[test]
fn names_that_are_plain_stay_as_they_are() {
    for name in ["ana", "s1", "ana.b-2_c", "0"] {
        assert_eq!(as_file_name(name), name);
    }
}

#[test]
fn nobody_can_take_the_name_that_was_made_for_another() {
    let made = as_file_name("a/b");
    assert_ne!(as_file_name(&made), made);
    assert_eq!(as_file_name("ax-1"), "ax-1");
}

proptest! {
    #[test]
    fn no_name_leads_out_of_its_place(name in any::<String>(), dots in "[./\\\\a-z]{0,12}") {
        for name in [name, dots] {
            let safe = as_file_name(&name);
            let path = Path::new("data").join(&safe).join("x");
            let parts: Vec<_> = path.components().collect();
            prop_assert_eq!(parts.len(), 3, "{:?} became {:?}", name, safe);
            prop_assert!(!safe.starts_with(['.', '_', '-']) && !safe.contains(".."));
        }
    }

    #[test]
    fn two_names_never_share_a_place(a in "[a./ ]{0,4}", b in "[a./ ]{0,4}") {
        prop_assert_eq!(as_file_name(&a) == as_file_name(&b), a == b);
    }
}
