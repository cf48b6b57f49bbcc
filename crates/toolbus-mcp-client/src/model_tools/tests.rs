//! Tests of the management tools, as callers see them.

mod calling;
mod dispatched;
mod fixture;
mod listing;
mod registering;
mod storing;

use std::fmt::Write as _;
use std::sync::Arc;

use toolbus_core::check_schema;
use toolbus_core::listing::{definition, render};
use toolbus_core::tool::Validation;
use toolbus_protocol::Format;

use self::fixture::Fixture;
use crate::servers::definition::is_reserved;

#[test]
fn schemas_have_the_documented_names_and_no_aliases() {
    let mut table = String::new();
    for tool in Fixture::new().tools {
        let descriptor = &tool.descriptor;
        assert_eq!((&*descriptor.source, descriptor.provider), ("mcp:management", "mcp"));
        assert!(is_reserved(&descriptor.name), "no server takes it");
        // The tool accepts more than its schema has.
        assert_eq!(descriptor.validation, Validation::Off);
        let schema = descriptor.parameters.as_deref().unwrap();
        check_schema(schema).unwrap();
        assert_eq!(render(&definition(descriptor), Format::OpenAi)["function"]["parameters"], *schema);
        let names: Vec<&String> = schema["properties"].as_object().unwrap().keys().collect();
        writeln!(
            table,
            "{} {names:?} required {} {:?} delegates {}",
            descriptor.name,
            schema.get("required").unwrap_or(&serde_json::Value::Null),
            descriptor.effect,
            descriptor.delegates
        )
        .unwrap();
    }
    insta::assert_snapshot!(table, @r#"
    mcp_list_services [] required null ReadOnly delegates false
    mcp_get_service_details ["server_name", "tool_name"] required ["server_name"] ReadOnly delegates false
    mcp_invoke_tool ["arguments", "server_name", "tool_name"] required ["server_name","tool_name"] Undeclared delegates true
    mcp_register_server ["arguments", "command", "server_name", "type", "url"] required ["server_name"] Effectful delegates false
    mcp_unregister_server ["server_name"] required ["server_name"] Effectful delegates false
    "#);
}

#[test]
fn without_a_registrar_there_are_no_tools_to_register_with() {
    let names: Vec<_> = Fixture::without_registration().tools.iter().map(|tool| tool.descriptor.name.clone()).collect();
    assert_eq!(names, ["mcp_list_services", "mcp_get_service_details", "mcp_invoke_tool"].map(Arc::<str>::from));
}
