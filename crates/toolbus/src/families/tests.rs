//! Families of tools, and one that is added.

use std::collections::BTreeMap;
use std::time::Duration;

use toolbus_config::HumanDuration;
use toolbus_core::pattern::Pattern;
use toolbus_core::registry::Registry;
use toolbus_core::tool::Effect;

use super::*;
use crate::app;
use crate::config::{ToolLimits, ToolsConfig};

#[test]
fn tools_are_made_as_configured_with_their_limits() {
    let five = ToolLimits { timeout: Some(HumanDuration::from_secs(5)), max_in_flight: Some(2) };
    let limits = BTreeMap::from([(Pattern::parse("e*").unwrap(), five)]);
    let tools = ToolsConfig { echo: true, echo_effect: Effect::Effectful, limits, ..Default::default() };
    let config = Config { tools, ..Config::default() };
    let tools = |config: &Config| {
        let policy = app::policy(config, Registry::new()).unwrap();
        plan(&all(&FamilyContext::description(config, policy)).unwrap(), config, &|_| None).unwrap().tools
    };
    let names: Vec<_> = tools(&config).iter().map(|tool| tool.descriptor.name.clone()).collect();
    assert_eq!(names, config.tool_names());
    let echo = tools(&config).into_iter().find(|tool| &*tool.descriptor.name == "echo").unwrap();
    assert_eq!((echo.descriptor.timeout, echo.descriptor.max_in_flight), (Some(Duration::from_secs(5)), Some(2)));
    assert_eq!(echo.descriptor.effect, Effect::Effectful);
    let nothing = Config { tools: ToolsConfig { time: false, ..Default::default() }, ..config };
    assert!(tools(&nothing).is_empty());
}
