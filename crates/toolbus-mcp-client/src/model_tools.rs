//! Tools with which agents look at servers and use them.

mod args;
mod invoke;
pub mod list;
mod register;
mod registrar;
mod rules;
#[cfg(test)]
mod tests;

use std::sync::Arc;

use serde_json::Value;
use toolbus_core::Invoker;
use toolbus_core::policy::PolicyHandle;
use toolbus_core::tool::{Tool, ToolDescriptor, Validation};

use crate::servers::ServerControl;

pub use self::registrar::Registrar;
pub use self::rules::RegistrationRules;

/// The source of these tools.
pub const SOURCE: &str = "mcp:management";
/// The tool that calls one of any server.
pub const INVOKE: &str = "mcp_invoke_tool";
/// Guide to the management tools, for models.
pub const GUIDE: &str = include_str!("model_tools/guide.md");

/// The management tools; those that add and remove servers only with a `registrar`. They list only what the caller may
/// use.
#[must_use]
pub fn tools(
    policy: &PolicyHandle,
    servers: Arc<dyn ServerControl>,
    invoker: Arc<dyn Invoker>,
    registrar: Option<Arc<Registrar>>,
) -> Vec<Tool> {
    let mut tools = vec![
        list::list(policy.clone(), Arc::clone(&servers)),
        list::details(policy.clone(), servers),
        invoke::tool(policy.clone(), invoker),
    ];
    if let Some(registrar) = registrar {
        tools.extend([register::register(Arc::clone(&registrar)), register::unregister(registrar)]);
    }
    tools
}

/// The descriptor of a management tool. Its schema is for models; the tool accepts more names and validates itself.
fn descriptor(name: &str, description: &str, parameters: Value) -> ToolDescriptor {
    ToolDescriptor {
        description: description.to_owned(),
        parameters: Some(Arc::new(parameters)),
        validation: Validation::Off,
        ..ToolDescriptor::new(name, SOURCE, "mcp")
    }
}
