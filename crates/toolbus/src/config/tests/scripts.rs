//! Scripts and commands.

use std::time::Duration;

use toolbus_scripts::config::RunnerKind;

use super::*;

/// A command that is in order but for these lines.
fn command(lines: &str) -> String {
    format!("[[commands]]\nname = 'list'\ndescription = 'Lists'\ncommand = ['ls']\n{lines}")
}

#[test]
fn the_section_script_registers_the_tools_of_scripts() {
    let none = load(&[""], &[], &[]).unwrap().config;
    assert_eq!((none.script.as_ref(), none.roles()), (None, vec![Role::Invoke]));
    let some = load(&["[script]"], &[], &[]).unwrap();
    assert_eq!(some.config.script, Some(ScriptConfig::default()));
    assert_eq!(some.config.roles(), [Role::Invoke, Role::Scripts]);
    assert!(some.config.tool_names().iter().any(|name| &**name == "execute_python_script"));
    assert_eq!(some.warnings, Vec::<String>::new());
}

#[test]
fn no_script_runs_longer_than_a_call_may() {
    let longest = |text: &str| load(&[text], &[], &[]).unwrap().config.script.unwrap();
    let calls = HumanDuration::from_secs(120);
    assert_eq!(longest("[script]").longest(calls), Duration::from_secs(120));
    assert_eq!(longest("[script]").longest(HumanDuration::from_secs(900)), Duration::from_secs(300));
    assert_eq!(longest("[script]\nmax_timeout = '45s'").longest(calls), Duration::from_secs(45));
}

#[test]
fn an_unconfined_runner_must_be_meant() {
    insta::assert_snapshot!(problems("[script]\nrunner = 'local'"), @r#"a.toml:2:10: `script.runner`: "local" keeps scripts from nothing: they can read and change all that the daemon can; expected "sandbox", or `script.local.i_understand = true`"#);
    let meant = "[script]\nrunner = 'local'\nlocal = { i_understand = true }";
    assert_eq!(load(&[meant], &[], &[]).unwrap().config.script.unwrap().runner, RunnerKind::Local);
    insta::assert_snapshot!(warnings(meant), @"script.runner: scripts run without a sandbox, with the daemon's own rights");
}

#[test]
fn an_unknown_runner_is_reported() {
    insta::assert_snapshot!(problems("[script]\nrunner = 'docker'\nsandbox = { require = 'none' }"), @r#"
    a.toml:2:10: `script.runner`: "docker" is not known; expected one of "sandbox", "local", "kubernetes"
    a.toml:3:23: `script.sandbox.require`: "none" is not known; expected one of "full", "no-namespaces", "limits-only"
    "#);
}

#[test]
fn pods_have_a_namespace_and_an_image_and_install_nothing() {
    let lines = "runner = 'kubernetes'\npackages = { allow = ['numpy'] }\n[script.kubernetes]\nnamespace = 'Scripts_'\nimage = 'python 3'";
    let reported = problems(&format!("[script]\n{lines}"));
    let reported: Vec<&str> = reported.lines().filter(|line| !line.contains("built without")).collect();
    insta::assert_snapshot!(reported.join("\n"), @r#"
    a.toml:3:22: `script.packages.allow`: nothing is installed in pods; have the packages in `script.kubernetes.image`, and leave this out
    a.toml:5:13: `script.kubernetes.namespace`: no name of a namespace; expected lower-case letters, digits and `-` within, such as "rockbot-scripts"
    a.toml:6:9: `script.kubernetes.image`: no name of an image; expected one such as "python:3.12-slim", or "registry/name@sha256:…"
    "#);
    let pool = "[script]\nrunner = 'kubernetes'\n[script.kubernetes]\nimage = 'python'\nwarm_pool = 'Python_'";
    let reported = problems(pool);
    let reported: Vec<&str> = reported.lines().filter(|line| !line.contains("built without")).collect();
    insta::assert_snapshot!(reported.join("\n"), @r#"
    a.toml:4:9: `script.kubernetes.image`: has no effect with `warm_pool`, whose SandboxTemplate names the image; leave it out
    a.toml:5:13: `script.kubernetes.warm_pool`: no name of a SandboxWarmPool; expected lower-case letters, digits, `-` and `.`, such as "python"
    "#);
    let right = "[script]\nrunner = 'kubernetes'\n[script.kubernetes]\nnamespace = 'scripts'";
    match load(&[right], &[], &[]) {
        Ok(loaded) => assert_eq!(loaded.config.script.unwrap().kubernetes.image, "python:3.12-slim"),
        Err(_) if !cfg!(feature = "kubernetes") => {
            assert!(problems(right).contains("`script.runner`: this program is built without"), "{}", problems(right));
        }
        Err(_) => panic!("{}", problems(right)),
    }
}

#[test]
fn each_language_has_a_tool() {
    let text = "[script.languages]\nbash = { command = ['bash'] }\njs = { command = ['node'], file = 'a.mjs' }";
    let config = load(&[text], &[], &[]).unwrap().config;
    let names = config.script.as_ref().unwrap().tool_names().collect::<Vec<_>>();
    assert_eq!(names, ["execute_python_script", "execute_bash_script", "execute_js_script"]);
    assert!(names.iter().all(|name| config.tool_names().iter().any(|known| **known == **name)));
    let policy = format!("{text}\n[tools]\nrequired = ['execute_bash_script']");
    assert_eq!(load(&[&policy], &[], &[]).unwrap().warnings, Vec::<String>::new(), "its name is known");
}

#[test]
fn a_language_that_cannot_be_run_is_reported() {
    let languages = "[script.languages]\nPerl = { command = ['perl'] }\npython = { command = ['python3'] }\njs = { command = ['node'], file = '../a' }\nlua = { command = ['lua'], file = 'key' }";
    insta::assert_snapshot!(problems(languages), @r#"
    a.toml:2:8: `script.languages.Perl`: no name of a language; expected lower-case letters, digits and `_`, such as "javascript"
    a.toml:3:10: `script.languages.python`: Python needs no entry here: `script.python` names its interpreter; expected another language
    a.toml:4:35: `script.languages.js.file`: no name for the file of a script; expected letters, digits, `.`, `_` and `-`, such as "script.mjs", and neither "input" nor "key"
    a.toml:5:35: `script.languages.lua.file`: no name for the file of a script; expected letters, digits, `.`, `_` and `-`, such as "script.mjs", and neither "input" nor "key"
    "#);
    insta::assert_snapshot!(problems("[script.languages]\nbash = { command = [] }\nlua = {}"), @"
    a.toml:2:20: `script.languages.bash.command`: expected at least 1 element
    a.toml:3:7: `script.languages.lua`: `command` is missing; expected a list
    ");
    let local =
        "[script]\nrunner = 'local'\nlocal = { i_understand = true }\nlanguages = { bash = { command = ['bash'] } }";
    insta::assert_snapshot!(problems(local), @r#"a.toml:4:13: `script.languages`: other languages than Python run in the sandbox alone; expected `script.runner = "sandbox"`"#);
    let twice = format!(
        "[script.languages]\nbash = {{ command = ['bash'] }}\n{}",
        command("").replace("'list'", "'execute_bash_script'")
    );
    insta::assert_snapshot!(problems(&twice), @"a.toml:4:8: `commands[0].name`: `execute_bash_script` is also the name of a tool that runs scripts (see `script`); expected a name of its own");
}

#[test]
fn times_of_scripts_must_fit_each_other() {
    insta::assert_snapshot!(problems("[script]\ntimeout = '60s'\nmax_timeout = '30s'"), @"a.toml:3:15: `script.max_timeout`: max_timeout (30s) is shorter than timeout (60s); expected it to be at least as long");
    insta::assert_snapshot!(problems("[script]\ntimeout = '10m'"), @"a.toml:2:11: `script.timeout`: 10m is longer than max_timeout, which is 5m by default; give `max_timeout` too");
    insta::assert_snapshot!(warnings("[script]\ntimeout = '180s'\nmax_timeout = '200s'"), @"
    script.timeout: 180s is longer than any call may take; raise invoke.max_timeout, which is 120s
    script.max_timeout: 200s is longer than any call may take; raise invoke.max_timeout, which is 120s
    ");
    assert_eq!(warnings("[invoke]\nmax_timeout = '300s'\n[script]\nmax_timeout = '300s'"), "");
}

#[test]
fn limits_that_a_script_cannot_run_with_are_reported() {
    insta::assert_snapshot!(problems("[script]\nmemory = '16MiB'\ncpu = '50%'\nopen_files = 3\nprocesses = 0\npython = ''"), @r#"
    a.toml:2:10: `script.memory`: 16MiB is too little for Python to start; expected at least 32MiB
    a.toml:3:7: `script.cpu`: "50%" is not a share of cores; expected thousandths such as "500m", or cores such as "1" or "2.5"
    a.toml:4:14: `script.open_files`: 3 is too small; expected at least 32
    a.toml:5:13: `script.processes`: 0 is too small; expected at least 1
    a.toml:6:10: `script.python`: empty; expected a text
    "#);
    insta::assert_snapshot!(problems("[script]\nmemory = '2TiB'\nmax_output = '2GiB'\ncpu = 1"), @r#"
    a.toml:2:10: `script.memory`: "2TiB" is not a size; expected a whole number and a unit (B, KiB, MiB, GiB), such as "64KiB"
    a.toml:3:14: `script.max_output`: "2GiB" is out of range; expected 1B to 1GiB
    a.toml:4:7: `script.cpu`: found a number; expected a text, such as "500m"
    "#);
    assert!(load(&["[script]\nmemory = '4GiB'"], &[], &[]).is_ok());
}

#[test]
fn packages_must_be_names_and_come_from_an_address() {
    let lines = "allow = ['numpy', 'requests>=2.31', 'git+https://host/x', '-r requirements.txt', './x.whl', '']";
    insta::assert_snapshot!(problems(&format!("[script.packages]\n{lines}")), @r#"
    a.toml:2:37: `script.packages.allow[2]`: `git+https://host/x` is a URL; give the name of a package in the index instead
    a.toml:2:59: `script.packages.allow[3]`: `-r requirements.txt` is an option of pip; give names and versions of packages alone
    a.toml:2:82: `script.packages.allow[4]`: `./x.whl` is a path or a file; give the name of a package in the index instead
    a.toml:2:93: `script.packages.allow[5]`: `` is empty; give the name of a package
    "#);
    insta::assert_snapshot!(problems("[script.packages]\nallow = ['numpy', 'NumPy>=2']"), @"a.toml:2:19: `script.packages.allow[1]`: `numpy` is listed twice");
    let reported = problems("[script.packages]\nindex_url = 'ana:hunter2@host/simple'\nmax_size = '8GiB'");
    insta::assert_snapshot!(reported, @r#"
    a.toml:2:13: `script.packages.index_url`: no address of an index; expected "https://host/simple", or "file:///folder" for one of wheels; percent-encode `/`, `#`, `?`, `@` and `%` in user and password
    a.toml:3:12: `script.packages.max_size`: max_cache (4GiB) has no room for the packages of one script, max_size (8GiB)
    "#);
    for folder in ["file:///srv/wheels", "file:///srv/my%20wheels/"] {
        load(&[&format!("[script.packages]\nindex_url = '{folder}'")], &[], &[]).unwrap();
    }
    for no_folder in ["file:///", "file://host/wheels", "/srv/wheels", "https://ana:12#x@host/simple"] {
        let reported = problems(&format!("[script.packages]\nindex_url = '{no_folder}'"));
        assert!(reported.contains("no address of an index"), "{no_folder}: {reported}");
    }
    insta::assert_snapshot!(warnings("[script.packages]\nallow = ['*']"), @"script.packages.allow: lets scripts have any package that there is");
    let index = "[script.packages]\nindex_url = { env = 'INDEX' }";
    let loaded = load(&[index], &[("INDEX", "https://ana:hunter2@host/simple")], &[]).unwrap();
    let shown = format!("{:?} {}", loaded.config, serde_json::to_string(&loaded.config).unwrap());
    assert!(!shown.contains("hunter2"), "{shown}");
}

#[test]
fn a_pool_keeps_no_more_than_it_may_and_imports_modules() {
    insta::assert_snapshot!(problems("[script]\npool = { min = 5, imports = ['json', 'os; import sys'] }"), @r#"
    a.toml:2:16: `script.pool.min`: min (5) is more than max (4); expected it to be at most as many
    a.toml:2:38: `script.pool.imports[1]`: "os; import sys" is no module; expected a name such as "json" or "os.path"
    "#);
}

#[test]
fn the_role_of_scripts_needs_their_section_and_the_section_its_role() {
    insta::assert_snapshot!(problems("[daemon]\nroles = ['invoke', 'scripts']"), @"a.toml:2:20: `daemon.roles[1]`: there is no section [script], so that no script could be run; add it, or leave this role out");
    let text = "[daemon]\nroles = ['invoke']\n[tools]\nrequired = ['execute_python_script']\n[script]";
    insta::assert_snapshot!(warnings(text), @r#"
    script: not used, because `daemon.roles` has no "scripts"
    tools.required: `execute_python_script` is never there in this process
    "#);
    assert!(load(&["[daemon]\nroles = ['scripts']\n[script]"], &[], &[]).is_ok());
}

#[test]
fn a_weak_sandbox_is_reported() {
    insta::assert_snapshot!(warnings("[script.sandbox]\nrequire = 'limits-only'"), @r#"script.sandbox.require: "limits-only" lets scripts read every file that the daemon can read"#);
}

#[test]
fn commands_have_names_of_their_own() {
    let twice = format!("{}\n{}", command(""), command(""));
    insta::assert_snapshot!(problems(&twice), @"a.toml:7:8: `commands[1].name`: `list` is also the name of the command at a.toml:2:8; expected a name of its own");
    insta::assert_snapshot!(problems(&command("").replace("'list'", "'current_time'")), @"a.toml:2:8: `commands[0].name`: `current_time` is also the name of a tool that the daemon brings along (see `tools`); expected a name of its own");
    let script = format!("{}\n[script]", command("").replace("'list'", "'execute_python_script'"));
    insta::assert_snapshot!(problems(&script), @"a.toml:2:8: `commands[0].name`: `execute_python_script` is also the name of a tool that runs scripts (see `script`); expected a name of its own");
    let endpoint = "[[rest.endpoints]]\nname = 'list'\ndescription = 'x'\nurl = 'http://host/'\n";
    insta::assert_snapshot!(problems(&format!("{endpoint}{}", command(""))), @"a.toml:6:8: `commands[0].name`: `list` is also the name of the endpoint at a.toml:2:8; expected a name of its own");
    let set = "[toolsets.fs]\nkind = 'rest'\nendpoints = ['get']\n[[rest.endpoints]]\nname = 'get'\ndescription = 'x'\nurl = 'http://host/'\n";
    insta::assert_snapshot!(problems(&format!("{set}{}", command("").replace("'list'", "'fs.list'"))), @"a.toml:9:8: `commands[0].name`: `fs.list` would be read as a tool of the tool set `fs`; expected another name");
}

#[test]
fn a_command_must_be_complete() {
    insta::assert_snapshot!(problems("[[commands]]\nname = 'list'\ncommand = []\noutput = 'xml'\nstdn = 'none'"), @r#"
    a.toml:1:1: `commands[0]`: `description` is missing; expected a text
    a.toml:3:11: `commands[0].command`: expected at least 1 element
    a.toml:4:10: `commands[0].output`: "xml" is not known; expected one of "text", "json"
    a.toml:5:1: `commands[0].stdn`: unknown key; did you mean `stdin`? expected one of `allow_dash`, `command`, `cwd`, `description`, `disk`, `effect`, `env`, `max_output`, `memory`, `name`, `network`, `output`, `parameters`, `processes`, `read`, `sandbox`, `stdin`, `success_codes`, `timeout`, `write`
    "#);
}

#[test]
fn the_tools_of_commands_and_scripts_can_be_named_in_rules() {
    let rules = "identity.source = 'broker'\nidentity.unknown = 'deny'\n[agents.ana]\nallowed_tools = ['list', 'execute_python_script']\n[script]\n";
    assert_eq!(load(&[&format!("{rules}{}", command(""))], &[], &[]).unwrap().warnings, Vec::<String>::new());
    insta::assert_snapshot!(problems(&rules.replace("[script]\n", "")), @"
    a.toml:4:18: `agents.ana.allowed_tools[0]`: no tool `list` is configured; expected one of `convert_time`, `current_time`
    a.toml:4:26: `agents.ana.allowed_tools[1]`: no tool `execute_python_script` is configured; expected one of `convert_time`, `current_time`
    ");
}

#[test]
fn no_command_runs_longer_than_a_call_may() {
    insta::assert_snapshot!(warnings(&command("timeout = '5m'")), @"commands: the timeout of `list`, 5m, is longer than any call may take (invoke.max_timeout is 120s)");
}

#[test]
fn a_command_must_be_one_that_can_run() {
    insta::assert_snapshot!(problems(&command("").replace("'ls'", "'no-such-program-at-all'")), @"a.toml:4:11: `commands[0].command`: program 'no-such-program-at-all' was not found; give its full path, or check PATH");
    insta::assert_snapshot!(problems(&command("").replace("'ls'", "'ls', '{folder}'")), @"a.toml:4:11: `commands[0].command`: the command has a placeholder `{folder}`, but `parameters` has no property of that name");
    insta::assert_snapshot!(problems(&command("").replace("'ls'", "'{program}'")), @"a.toml:4:11: `commands[0].command`: the command has a placeholder in its program, which must be fixed");
    let schema = r#"parameters = '{"type":"object","properties":{"a":{}}}'"#;
    insta::assert_snapshot!(problems(&command(schema).replace("'ls'", "'no-such-program-at-all', '{a}'")), @"a.toml:4:11: `commands[0].command`: program 'no-such-program-at-all' was not found; give its full path, or check PATH");
    insta::assert_snapshot!(problems(&command(schema)), @"a.toml:5:14: `commands[0].parameters`: `parameters` has a property `a`, but neither the command nor its standard input has it");
}

#[test]
fn every_mistake_of_a_command_is_reported() {
    let lines = "parameters = '['\nread = ['/nonexistent']\nwrite = ['/nonexistent']\ncwd = '/nonexistent'\nenv = { 'a=b' = 'c' }\n\
        allow_dash = ['x']\nmemory = 5";
    insta::assert_snapshot!(problems(&command(lines)), @r#"
    a.toml:5:14: `commands[0].parameters`: `parameters` must be a JSON Schema object: EOF while parsing a list at line 1 column 1
    a.toml:6:8: `commands[0].read`: '/nonexistent' does not exist
    a.toml:7:9: `commands[0].write`: '/nonexistent' does not exist
    a.toml:8:7: `commands[0].cwd`: '/nonexistent' does not exist or is no folder
    a.toml:9:7: `commands[0].env`: `a=b` cannot be set: neither a name with `=` nor a NUL character can
    a.toml:10:14: `commands[0].allow_dash`: `allow_dash` has `x`, which is no placeholder of the command
    a.toml:11:10: `commands[0].memory`: found a number; expected a text, such as "64KiB"
    "#);
    insta::assert_snapshot!(problems(&command("sandbox = false\nnetwork = true\nread = ['/usr']")), @"
    a.toml:6:11: `commands[0].network`: without the sandbox the command may use everything; leave `network` out
    a.toml:7:8: `commands[0].read`: without the sandbox the command may use everything; leave `read` out
    ");
}

#[test]
fn the_variables_of_a_command_are_secret() {
    let loaded = load(&[&command("env = { TOKEN = { env = 'TOKEN' } }")], &[("TOKEN", "hunter2")], &[]).unwrap();
    let shown = format!("{:?} {}", loaded.config, serde_json::to_string(&loaded.config).unwrap());
    assert!(!shown.contains("hunter2"), "{shown}");
    assert_eq!(loaded.config.commands[0].env["TOKEN"].expose(), "hunter2");
}
