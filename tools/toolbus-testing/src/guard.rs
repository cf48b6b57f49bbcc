//! Guard that ends a RabbitMQ node when a test wants it, and when the test process ends in whatever way.

use std::io::{self, Write as _};
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::{Mutex, PoisonError};

/// Input of a guard that keeps the node's folder.
pub(crate) const KEEP: &[u8] = b"keep";

/// Commands by which a node is run.
pub(crate) struct NodeCommands<'a> {
    /// Command that the node is run within: a command that runs another one, or nothing.
    pub(crate) within: &'a str,
    /// Arguments of `epmd`, which is started first: the node would start another one, outside the process group.
    pub(crate) epmd: &'a str,
    /// Removes what is not in the node's folder.
    pub(crate) clean_up: &'a str,
}

/// Runs `epmd` and a node in a process group of their own. Both end when the guard's standard input closes, and the
/// node's folder goes, unless its input was [`KEEP`].
#[derive(Default)]
pub(crate) struct NodeGuard(Mutex<Option<Child>>);

impl NodeGuard {
    /// Starts the node of `sbin` that has this folder. `shell` runs `sh` in the node's environment.
    pub(crate) fn start(
        &self,
        mut shell: Command,
        sbin: &Path,
        folder: &Path,
        commands: &NodeCommands<'_>,
    ) -> io::Result<()> {
        let NodeCommands { within, epmd, clean_up } = commands;
        let script = format!(
            r#"
trap '' INT TERM HUP
setsid {within} sh -c 'epmd {epmd} &
    until epmd -names >/dev/null 2>&1; do sleep 0.05; done
    exec "$1/rabbitmq-server"' node "$1" \
    </dev/null >"$2/console.log" 2>&1 &
input=$(cat)
kill -KILL "-$!"
wait
[ "$input" = keep ] || {{ {clean_up} rm -rf -- "$2"; }} 2>/dev/null
"#
        );
        let guard = shell
            .args(["-c", &script, "guard"])
            .args([sbin, folder])
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .process_group(0)
            .spawn()?;
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Some(guard);
        Ok(())
    }

    /// Ends the node with SIGKILL.
    pub(crate) fn end(&self, input: &[u8]) {
        let guard = self.0.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(mut guard) = guard {
            if let Some(mut stdin) = guard.stdin.take() {
                // A guard that does not listen has ended already.
                drop(stdin.write_all(input));
            }
            // Its exit status does not matter.
            drop(guard.wait());
        }
    }
}

/// Sets the folder of a node's files for the broker's programs.
pub(crate) fn set_folder(command: &mut Command, folder: &Path) {
    command
        .env("HOME", folder)
        .env("ERL_FLAGS", "-start_epmd false")
        .env("RABBITMQ_MNESIA_BASE", folder.join("mnesia"))
        .env("RABBITMQ_LOG_BASE", folder.join("log"))
        .env("RABBITMQ_CONFIG_FILE", folder.join("rabbitmq.conf"))
        .env("RABBITMQ_CONF_ENV_FILE", folder.join("none.conf"))
        .env("RABBITMQ_ENABLED_PLUGINS_FILE", folder.join("enabled_plugins"))
        .current_dir(folder);
}
