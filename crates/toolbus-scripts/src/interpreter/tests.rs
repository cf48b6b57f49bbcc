use std::fs;
use std::os::unix::fs::PermissionsExt as _;

use super::*;

/// A folder with an executable shell script in it, as `python`.
struct Shim(tempfile::TempDir);

impl Shim {
    fn new(script: &str) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("python");
        fs::write(&file, format!("#!/bin/sh\n{script}\n")).unwrap();
        fs::set_permissions(&file, fs::Permissions::from_mode(0o755)).unwrap();
        Self(folder)
    }

    async fn ask(&self, time: Duration) -> Result<Interpreter, InterpreterError> {
        let env = environment(std::env::vars_os());
        Interpreter::ask("./python", self.0.path(), &env, time).await
    }

    async fn refused(&self) -> String {
        self.ask(Duration::from_secs(60)).await.unwrap_err().to_string()
    }
}

/// What a Python of that version says.
fn saying(version: &str) -> String {
    format!(
        r#"echo '{{"executable":"/usr/bin/env","real":"/usr/bin/env","prefixes":["/usr"],"library":"/usr/lib","version":[{version}],"abi":"x"}}'"#
    )
}

#[tokio::test]
async fn the_interpreter_behind_a_script_is_found_with_what_it_reads() {
    let direct = Interpreter::find("python3").await.unwrap();
    assert!(direct.program.is_absolute() && direct.program.exists(), "{direct:?}");
    assert!(direct.version.starts_with("3.") && direct.abi.contains("linux"), "{direct:?}");
    assert!(direct.read.iter().all(|place| place.is_absolute() && place.exists() && place != Path::new("/")));
    assert!(direct.read.iter().any(|place| direct.program.starts_with(place)), "{direct:?}");

    let shim = Shim::new("echo choosing\nexec python3 \"$@\"");
    assert_eq!(shim.ask(Duration::from_secs(60)).await.unwrap(), direct);
}

#[tokio::test]
async fn the_interpreter_of_a_virtual_environment_stays_the_one_there() {
    let folder = tempfile::tempdir().unwrap();
    let venv = fs::canonicalize(folder.path()).unwrap().join("venv");
    let made = std::process::Command::new("python3").args(["-m", "venv", "--without-pip"]).arg(&venv).status();
    assert!(made.unwrap().success());
    let found = Interpreter::find(venv.join("bin/python").to_str().unwrap()).await.unwrap();
    assert_eq!(found.program, venv.join("bin/python"));
    for place in [venv.join("bin"), venv.join("lib"), fs::canonicalize(&found.program).unwrap()] {
        assert!(found.read.iter().any(|read| place.starts_with(read)), "{place:?}: {found:?}");
    }
}

#[tokio::test]
async fn a_version_that_is_too_old_is_named() {
    assert_eq!(
        Shim::new(&saying("3,8,18")).refused().await,
        "program './python' is Python 3.8.18; scripts need 3.9 or newer"
    );
    for version in ["3,9,0", "3,13,1", "4,0,0"] {
        assert!(Shim::new(&saying(version)).ask(Duration::from_secs(60)).await.is_ok(), "{version}");
    }
}

#[tokio::test]
async fn what_is_no_python_is_refused_in_words_that_say_why() {
    let table = [
        ("echo hello", "program './python' does not answer as a Python does"),
        ("true", "program './python' does not answer as a Python does"),
        ("while :; do echo hello; done", "program './python' does not answer as a Python does"),
        ("exit 3", "program './python' failed when it was asked which Python it is: exit 3"),
        (
            "echo 'version `3.99` is not installed' >&2; exit 127",
            "program './python' failed when it was asked which Python it is: exit 127, version `3.99` is not installed",
        ),
        ("kill -SEGV $$", "program './python' failed when it was asked which Python it is: signal 11"),
    ];
    for (script, expected) in table {
        assert_eq!(Shim::new(script).refused().await, expected, "{script}");
    }
    let error = Interpreter::find("no-such-python").await.unwrap_err();
    assert_eq!(error.to_string(), "program 'no-such-python' was not found; give its full path, or check PATH");
}

#[tokio::test]
async fn one_that_does_not_end_is_ended() {
    let error = Shim::new("sleep 1000").ask(Duration::from_millis(200)).await.unwrap_err();
    assert_eq!(error.to_string(), "program './python' did not say which Python it is within 10 s");
}

#[test]
fn version_managers_choose_as_they_do_for_the_daemon() {
    let daemon = ["PATH", "PYENV_VERSION", "PYENVX", "ASDF_DIR", "PYTHONPATH", "TOKEN"];
    let kept = environment(daemon.map(|name| (name.into(), "x".into())));
    let names: Vec<_> = kept.keys().map(|name| name.to_str().unwrap()).collect();
    assert_eq!(names, ["ASDF_DIR", "PATH", "PYENV_VERSION"]);
}
