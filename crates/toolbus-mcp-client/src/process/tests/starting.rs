//! Environment and arguments of a start, and refused starts.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::PathBuf;

use toolbus_testing::patience::eventually;

use super::*;
use crate::process::Exit;

fn refusal(program: &StdioSpec) -> String {
    Launcher::of_tests(LONG).start("hostile", program).err().unwrap().to_string()
}

#[tokio::test]
async fn a_program_that_is_not_there_is_named() {
    let program = StdioSpec { command: "no-such-mcp-server".to_owned(), ..python("") };
    insta::assert_snapshot!(refusal(&program), @"program 'no-such-mcp-server' was not found; give its full path, or check PATH");
}

#[tokio::test]
async fn a_program_is_looked_for_in_the_path_that_it_will_have() {
    let program = StdioSpec { env: BTreeMap::from([("PATH".to_owned(), "/nowhere".into())]), ..python("") };
    insta::assert_snapshot!(refusal(&program), @"program 'python3' was not found; give its full path, or check PATH");
}

#[tokio::test]
async fn a_working_directory_that_is_not_there_is_named() {
    let program = StdioSpec { cwd: Some(PathBuf::from("/no/such/place")), ..python("") };
    insta::assert_snapshot!(refusal(&program), @"working directory '/no/such/place' does not exist or is no directory");
}

#[tokio::test]
async fn an_argument_that_no_program_can_get_is_an_error() {
    let program = StdioSpec { args: vec!["a\0b".to_owned()], ..python("") };
    insta::assert_snapshot!(refusal(&program), @"cannot start a process: nul byte found in provided data");
}

#[tokio::test]
async fn a_program_that_cannot_run_is_reported_by_exit_code_and_standard_error() {
    let directory = tempfile::tempdir().unwrap();
    let script = directory.path().join("server");
    fs::write(&script, "#!/no/such/interpreter\n").unwrap();
    fs::set_permissions(&script, fs::Permissions::from_mode(0o755)).unwrap();
    let program = StdioSpec { command: "./server".to_owned(), cwd: Some(directory.path().to_owned()), ..python("") };
    let (process, mut transport) = Launcher::of_tests(LONG).start("hostile", &program).unwrap();
    assert_eq!(failure(&mut transport).await, "the server ended with exit code 127");
    assert_eq!(process.exited().await, Exit::Code(127));
    let lines = eventually("the reason", async || Some(process.stderr_tail()).filter(|lines| !lines.is_empty())).await;
    insta::assert_snapshot!(lines.join("\n"), @"toolbus: cannot run './server': No such file or directory (os error 2)");
}

#[tokio::test]
async fn a_server_gets_its_arguments_directory_and_environment_and_none_of_the_daemons_secrets() {
    let directory = tempfile::tempdir().unwrap();
    let mut program = python(
        "for said in sys.argv[1:], os.getcwd(), os.environ['TOKEN'], sorted(os.environ): print(said, file=sys.stderr)",
    );
    program.args.extend(["--flag".to_owned(), "a b".to_owned(), String::new()]);
    program.env = BTreeMap::from([("TOKEN".to_owned(), "hunter2".into())]);
    program.cwd = Some(directory.path().to_owned());
    let (process, _transport) = Launcher::of_tests(LONG).start("hostile", &program).unwrap();
    let four = eventually("four lines", async || <[String; 4]>::try_from(process.stderr_tail()).ok());
    let [arguments, cwd, token, names] = four.await;
    assert_eq!(arguments, "['--flag', 'a b', '']");
    assert_eq!(cwd, directory.path().canonicalize().unwrap().to_str().unwrap());
    assert_eq!(token, "hunter2");
    assert!(names.contains("'PATH'") && names.contains("'TOKEN'"), "{names}");
    // Cargo gives its tests variables, as an operator gives the daemon secrets.
    assert!(std::env::vars().any(|(name, _)| name.starts_with("CARGO_")));
    assert!(!names.contains("CARGO"), "{names}");
}
