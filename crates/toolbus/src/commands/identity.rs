//! The identity that a call of `toolbus call` has for the daemon.

use toolbus_core::caller::{AgentName, Caller, IdentitySource};

use crate::config::{BusUrl, Config};

/// Refuses a call for an agent that the daemon would not identify it as, and a call that it would not take at all.
///
/// # Errors
///
/// If the call cannot be the agent's: the next step.
pub(super) fn check(wanted: Option<&AgentName>, seen: Option<&Caller>, config: &Config) -> Result<(), String> {
    let Some(seen) = seen else {
        let agent = config.identity.agent.as_ref().map_or("one", AgentName::as_str);
        return Err(format!("the daemon serves the agent `{agent}` alone (identity.agent): use --as {agent}"));
    };
    match wanted {
        Some(wanted) if seen.agent.as_ref() != Some(wanted) => Err(format!(
            "--as {wanted} would be without effect, because the daemon believes the login alone (identity.source = \
             \"broker\"): {}. Use --bus-url with a login of `{wanted}`, or write one into identity.users",
            by_login(seen)
        )),
        _ => Ok(()),
    }
}

/// The identity of a refused call, for its caller; `None` where it explains nothing.
pub(super) fn shown(seen: Option<&Caller>, config: &Config) -> Option<String> {
    let Some(seen) = seen else { return Some("to the daemon, this is no agent that it serves".to_owned()) };
    let is_unnamed = seen.agent.as_ref().is_some_and(|agent| agent.as_str() == toolbus_client::SOURCE);
    if config.agents.is_empty() {
        // The daemon may have another configuration.
        let text = "the call named no agent: --as AGENT names one, which may have other tools";
        return (is_unnamed && config.bus.url != BusUrl::Embedded).then(|| text.to_owned());
    }
    let has_section = seen.agent.as_ref().is_some_and(|agent| config.agents.contains_key(agent));
    let without = match has_section {
        true => "",
        false if config.denies_unknown() => ". It has no section in `agents`, and so no tool",
        false => ". It has no section in `agents`",
    };
    let who = match (&config.identity.source, &seen.agent) {
        (_, Some(agent)) if is_unnamed => format!("it is the agent `{agent}`, as it named none (use --as AGENT)"),
        (IdentitySource::Broker, _) => by_login(seen),
        (IdentitySource::Header, Some(agent)) => format!("it is the agent `{agent}`"),
        (IdentitySource::Header, None) => "it is no agent".to_owned(),
    };
    Some(format!("to a daemon of this configuration, {who}{without}"))
}

fn by_login(seen: &Caller) -> String {
    match (&seen.login, &seen.agent) {
        (Some(login), Some(agent)) => format!("the login `{login}` is the agent `{agent}`"),
        (Some(login), None) => format!("the login `{login}` is no agent"),
        (None, _) => "without a login in bus.url it is no agent".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn config(text: &str) -> Config {
        let file = tempfile::Builder::new().suffix(".toml").tempfile().unwrap();
        std::fs::write(file.path(), text).unwrap();
        Config::load(&crate::config::Sources { files: vec![file.path().to_owned()], ..Default::default() })
            .unwrap()
            .config
    }

    fn seen(config: &Config, login: Option<&str>, source: &str) -> Option<Caller> {
        let envelope = toolbus_protocol::Envelope { source: Some(source.to_owned()), ..Default::default() };
        config.identity().identify(login, &envelope, "tool.invoke")
    }

    fn agent(name: &str) -> AgentName {
        AgentName::parse(name).unwrap()
    }

    #[test]
    fn an_agent_that_differs_from_the_login_is_refused_with_the_next_step() {
        let of_login = config("[identity]\nsource = 'broker'\nusers = { kai = 'ana' }\n[agents.ana]\n");
        let kai = seen(&of_login, Some("kai"), "bea");
        assert_eq!(check(Some(&agent("ana")), kai.as_ref(), &of_login), Ok(()));
        insta::assert_snapshot!(check(Some(&agent("bea")), kai.as_ref(), &of_login).unwrap_err(), @r#"--as bea would be without effect, because the daemon believes the login alone (identity.source = "broker"): the login `kai` is the agent `ana`. Use --bus-url with a login of `bea`, or write one into identity.users"#);
        let delegate = config("[identity]\nsource = 'broker'\ndelegates = ['kai']\n");
        assert_eq!(check(Some(&agent("bea")), seen(&delegate, Some("kai"), "bea").as_ref(), &delegate), Ok(()));
        let by_header = config("[identity]\ntrust_headers = true\n[agents.ana]\n");
        assert_eq!(check(Some(&agent("bea")), seen(&by_header, Some("kai"), "bea").as_ref(), &by_header), Ok(()));
        let sidecar = config("[identity]\nagent = 'ana'\n");
        insta::assert_snapshot!(check(None, seen(&sidecar, None, "bea").as_ref(), &sidecar).unwrap_err(), @"the daemon serves the agent `ana` alone (identity.agent): use --as ana");
    }

    #[test]
    fn a_refused_caller_is_shown_its_identity() {
        let of_login = config("[identity]\nsource = 'broker'\n[agents.ana]\n");
        let text_for = |config: &Config, login| shown(seen(config, login, "toolbus-cli").as_ref(), config).unwrap();
        insta::assert_snapshot!(text_for(&of_login, Some("kai")), @"to a daemon of this configuration, the login `kai` is the agent `kai`. It has no section in `agents`, and so no tool");
        insta::assert_snapshot!(text_for(&of_login, Some("ana")), @"to a daemon of this configuration, the login `ana` is the agent `ana`");
        insta::assert_snapshot!(text_for(&of_login, None), @"to a daemon of this configuration, without a login in bus.url it is no agent. It has no section in `agents`, and so no tool");
        insta::assert_snapshot!(text_for(&config("[agents.ana]\n"), None), @"to a daemon of this configuration, it is the agent `toolbus-cli`, as it named none (use --as AGENT). It has no section in `agents`, and so no tool");
        let without = |text: &str, source| shown(seen(&config(text), None, source).as_ref(), &config(text));
        let remote = "[bus]\nurl = 'amqp://broker'\n";
        insta::assert_snapshot!(without(remote, "toolbus-cli").unwrap(), @"the call named no agent: --as AGENT names one, which may have other tools");
        assert_eq!([without(remote, "ana"), without("", "toolbus-cli")], [None, None]);
    }
}
