//! `README.md` and `docs/*.md` as written: every block is run or checked, in order, in a copy of the files of a clone.
//!
//! What differs from a reader's machine: `cargo run` and `cargo build` take the binary under test instead of building one;
//! the ports of the broker and of the daemon are free ones, in all files of the copy and by `TOOLBUS__HTTP__LISTEN`;
//! `rabbitmqctl` obeys a node of the test; `/etc/toolbus`, `/srv`, `/run/secrets` and `/var/lib/toolbus` are folders in
//! the copy.

use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::Stdio;

use tempfile::TempDir;
use tokio::process::Command;
use toolbus_e2e::program::{binary, interpreter};
use toolbus_testing::rabbit::RabbitNode;

use crate::blocks::{Block, Kind, blocks, fits};

/// Longest run of one document, in seconds.
const LONGEST: &str = "300";
/// Addresses of broker and daemon in documents.
const PORTS: [&str; 2] = ["127.0.0.1:5672", "127.0.0.1:8471"];
/// Names that occur in commands that use the broker.
const BROKER: [&str; 4] = [PORTS[0], "local-broker.toml", "/etc/toolbus", "rabbitmqctl"];
/// Folders of a machine that are folders of the copy here.
const FOLDERS: [&str; 4] = ["/etc/toolbus", "/srv", "/run/secrets", "/var/lib/toolbus"];
/// As `cargo`: the binary is built already.
const CARGO: &str = "#!/bin/sh
case \"$1 $2\" in
'run --') shift 2; exec target/debug/toolbus \"$@\" ;;
*) echo \"cargo $*: not known to this test\" >&2; exit 64 ;;
esac
";
/// Beginning of a session: aliases as in a terminal, and the daemon that runs in the background.
const PROLOGUE: &str = "shopt -s expand_aliases
stop() { if [ -n \"$daemon\" ]; then kill -TERM \"$daemon\"; wait \"$daemon\"; fi; daemon=; }
ready() { until curl -s http://DAEMON/readyz | grep -qF \"$1\"; do kill -0 \"$daemon\" || return 1; sleep 0.1; done; }
trap stop EXIT
";

/// A copy of the files of a clone, in which one document is run.
struct Copy {
    folder: TempDir,
    /// Texts that documents write, and what stands for them in the files of the copy.
    replaced: Vec<(String, String)>,
    node: Option<RabbitNode>,
}

impl Copy {
    /// A copy for a document, with a broker if its commands use one.
    async fn for_document(document: &str) -> Self {
        let blocks = blocks(document);
        let uses_broker = steps(&blocks).iter().any(|(_, text, _)| BROKER.iter().any(|sign| text.contains(sign)));
        let node = if uses_broker { Some(RabbitNode::start().await) } else { None };
        let free = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().to_string();
        let broker = node.as_ref().map_or_else(|| PORTS[0].to_owned(), |node| node.address().to_string());
        let folder = tempfile::Builder::new().prefix("toolbus-documents-").tempdir().unwrap();
        // Programs in the sandbox are another user's.
        fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o755)).unwrap();
        let inside = |path: &str| folder.path().join("machine").display().to_string() + path;
        let ports = PORTS.into_iter().zip([broker, free]).map(|(port, real)| (port.to_owned(), real));
        let replaced = ports.chain(FOLDERS.map(|path| (path.to_owned(), inside(path)))).collect();
        let copy = Self { folder, replaced, node };
        copy.fill().await;
        copy
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// Converts a text of a document to what it is here.
    fn here(&self, text: &str) -> String {
        self.replaced.iter().fold(text.to_owned(), |text, (written, real)| text.replace(written, real))
    }

    /// Converts a text printed here to what it is in a document.
    fn there(&self, text: &str) -> String {
        self.replaced.iter().fold(text.to_owned(), |text, (written, real)| text.replace(real, written))
    }

    async fn fill(&self) {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
        let listed = Command::new("git").args(["ls-files", "-z"]).current_dir(&root).output().await.unwrap();
        assert!(listed.status.success(), "git ls-files: {}", String::from_utf8_lossy(&listed.stderr));
        for name in String::from_utf8(listed.stdout).unwrap().split_terminator('\0') {
            // A file that was deleted and not committed yet is still listed.
            let Ok(content) = fs::read(root.join(name)) else { continue };
            let content =
                String::from_utf8(content).map_or_else(|raw| raw.into_bytes(), |text| self.here(&text).into());
            self.write(&format!("clone/{name}"), content, root.join(name).metadata().unwrap().permissions());
        }
        for folder in [
            "clone/guides",
            "clone/target/debug",
            "home",
            "machine/srv/notes",
            "machine/srv/work",
            "machine/var/lib/toolbus",
            "printed",
            "programs",
        ] {
            fs::create_dir_all(self.path(folder)).unwrap();
        }
        symlink(binary(), self.path("clone/target/debug/toolbus")).unwrap();
        let plain = fs::Permissions::from_mode(0o600);
        for (name, source) in [("toolbus.toml", "config/local-broker.toml"), ("mcp.json", "examples/mcp.json")] {
            let content = fs::read(self.path("clone").join(source)).unwrap();
            self.write(&format!("machine/etc/toolbus/{name}"), content, plain.clone());
        }
        self.write("clone/well-known-agents.json", b"[]".to_vec(), plain.clone());
        for name in ["bruno", "bruno-next"] {
            let secret = format!("the-token-of-{name}").into_bytes();
            self.write(&format!("machine/run/secrets/{name}"), secret, plain.clone());
        }
        self.write("machine/run/secrets/bus/password", b"the-password-of-the-bus".to_vec(), plain.clone());
        let program = fs::Permissions::from_mode(0o755);
        self.write("programs/cargo", CARGO.into(), program.clone());
        if let Some(node) = &self.node {
            self.write("programs/rabbitmqctl", node.ctl_script().into(), program);
        }
    }

    fn write(&self, name: &str, content: Vec<u8>, permissions: fs::Permissions) {
        let path = self.path(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(&path, content).unwrap();
        fs::set_permissions(path, permissions).unwrap();
    }

    fn command(&self, program: impl AsRef<std::ffi::OsStr>) -> Command {
        let mut command = Command::new(program);
        let path = std::env::var("PATH").unwrap();
        command.current_dir(self.path("clone")).env_clear().stdin(Stdio::null()).kill_on_drop(true);
        command.env("PATH", format!("{}:{path}", self.path("programs").display()));
        command.env("HOME", self.path("home")).env("LANG", "C.UTF-8");
        // No file needs to name the port that is used by default.
        command.env("TOOLBUS__HTTP__LISTEN", self.here(PORTS[1]));
        // pip finds here what it would otherwise fetch.
        let wheels = interpreter().with_file_name("../wheels");
        if wheels.is_dir() {
            command.env("PIP_NO_INDEX", "1").env("PIP_FIND_LINKS", wheels);
        }
        // By which `tests/run` knows what a test leaves behind.
        let run = std::env::var_os("TOOLBUS_TEST_RUN");
        command.envs(run.map(|run| ("TOOLBUS_TEST_RUN", run))).env("PIP_DISABLE_PIP_VERSION_CHECK", "1");
        command
    }

    /// Lists what differs from the document, with the line of each block.
    async fn differences(&self, document: &str) -> Vec<String> {
        let blocks = blocks(document);
        let mut found = Vec::new();
        for Block { line, kind } in &blocks {
            let problem = match kind {
                Kind::Toml(text) => self.check(text).await,
                Kind::Json(text) => {
                    serde_json::from_str::<serde_json::Value>(text).err().map(|error| error.to_string())
                }
                Kind::Python(text) => {
                    self.is_example(text).then_some(()).map_or(Some("no example is as this".to_owned()), |()| None)
                }
                Kind::Script(_) | Kind::Daemon { .. } | Kind::Commands(_) | Kind::Nothing => None,
            };
            found.extend(problem.map(|problem| format!("line {line}: {problem}")));
        }
        found.extend(self.run(&blocks).await);
        found
    }

    async fn check(&self, text: &str) -> Option<String> {
        fs::write(self.path("block.toml"), self.here(text)).unwrap();
        let mut check = self.command(binary());
        let variables = text.split("env = \"").skip(1).filter_map(|rest| rest.split('"').next());
        check.envs(variables.map(|name| (name, format!("the-secret-of-{name}"))));
        check.env("SEARCH_TOKEN", "a-secret-of-the-tests");
        let done = check.args(["check", "--config"]).arg(self.path("block.toml")).output().await.unwrap();
        let printed = || String::from_utf8_lossy(&done.stdout).into_owned() + &String::from_utf8_lossy(&done.stderr);
        (!done.status.success()).then(printed)
    }

    fn is_example(&self, text: &str) -> bool {
        let examples = fs::read_dir(self.path("clone/examples/python")).unwrap();
        let text = format!("{text}\n");
        examples
            .flatten()
            .any(|example| fs::read_to_string(example.path()).is_ok_and(|example| example == self.here(&text)))
    }

    /// Runs all commands in one shell, as a reader would in one terminal.
    async fn run(&self, blocks: &[Block]) -> Vec<String> {
        let steps = steps(blocks);
        let mut script = PROLOGUE.replace("DAEMON", PORTS[1]);
        for (number, (_, text, _)) in steps.iter().enumerate() {
            script += &format!("exec >'{}' 2>&1\n{text}\n: >'{}'\n", self.printed(number), self.done(number));
        }
        fs::write(self.path("session.sh"), self.here(&script)).unwrap();
        let mut session = self.command("timeout");
        session.args(["--kill-after=30", LONGEST, "bash"]).arg(self.path("session.sh"));
        session.stdout(Stdio::null()).stderr(Stdio::null());
        session.status().await.unwrap();

        let mut found = Vec::new();
        for (number, (line, text, expected)) in steps.iter().enumerate() {
            let printed = fs::read(self.printed(number)).unwrap_or_default();
            let printed = self.there(&String::from_utf8_lossy(&printed));
            if !Path::new(&self.done(number)).exists() {
                found.push(format!("line {line}: failed, and nothing after it was run: {text}\n{printed}"));
                break;
            }
            if expected.is_some_and(|expected| !fits(expected, &printed)) {
                found.push(format!("line {line}: `{text}` prints\n{printed}"));
            }
        }
        found
    }

    fn printed(&self, number: usize) -> String {
        self.path(&format!("printed/{number}")).display().to_string()
    }

    fn done(&self, number: usize) -> String {
        self.path(&format!("printed/{number}.done")).display().to_string()
    }
}

/// Lists what is run of a document, with the line of its block, and its documented output, if there is one.
fn steps(blocks: &[Block]) -> Vec<(usize, String, Option<&str>)> {
    let mut steps = Vec::new();
    for Block { line, kind } in blocks {
        match kind {
            Kind::Script(text) => steps.push((*line, format!("set -e\n{text}\nset +e"), None)),
            Kind::Daemon { command, shows } => {
                steps.push((*line, format!("stop\n{command} &\ndaemon=$!\nready '{shows}' || exit 1"), None));
            }
            Kind::Commands(commands) => {
                steps.extend(commands.iter().map(|(command, printed)| (*line, command.clone(), Some(&**printed))));
            }
            Kind::Toml(_) | Kind::Json(_) | Kind::Python(_) | Kind::Nothing => {}
        }
    }
    steps
}

/// Lists what differs from a document of the repository. `has_program` puts `toolbus` where the shell finds it, as
/// after an installation.
async fn differences(name: &str, has_program: bool) -> Vec<String> {
    let document = fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("..").join(name)).unwrap();
    let copy = Copy::for_document(&document).await;
    if has_program {
        symlink(binary(), copy.path("programs/toolbus")).unwrap();
    }
    copy.differences(&document).await.into_iter().map(|text| format!("{name}, {text}")).collect()
}

#[tokio::test]
async fn the_readme_holds_from_its_first_block_to_its_last() {
    let found = differences("README.md", false).await;
    assert!(found.is_empty(), "{}", found.join("\n"));
}

#[tokio::test]
async fn every_document_holds_from_its_first_block_to_its_last() {
    let folder = fs::read_dir(Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs")).unwrap();
    let mut names: Vec<_> = folder.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names.retain(|name| name.ends_with(".md"));
    names.sort();
    assert!(names.len() >= 15, "{names:?}");
    let mut found = Vec::new();
    for name in names {
        found.extend(differences(&format!("docs/{name}"), true).await);
    }
    assert!(found.is_empty(), "{}", found.join("\n"));
}

#[tokio::test]
async fn a_difference_from_a_document_is_found() {
    let document = "```toml\n[no_section]\n```\n```json\n{\n```\n```python\npass\n```\n```console\n$ echo hello\nhello\n$ echo hello\n\
                    bye\n```\n```sh\nkept=here\n```\n```console\n$ echo $kept\nhere\n```\n```sh\nfalse\ntrue\n```\n```sh\necho last\n```\n";
    let copy = Copy::for_document(document).await;
    let found = copy.differences(document).await;
    let lines: Vec<&str> = found.iter().map(|text| text.split(':').next().unwrap()).collect();
    assert_eq!(lines, ["line 1", "line 4", "line 7", "line 10", "line 23"], "{found:#?}");
}
