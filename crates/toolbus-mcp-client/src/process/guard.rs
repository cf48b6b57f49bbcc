//! The two small processes that stand between the daemon and a server that it started.
//!
//! The daemon starts itself again by a hidden word, as a guard, which starts itself as a supervisor. Each leads a session
//! of its own, adopts whatever is left behind by what it started, and sees the pipe to the server's standard input hang
//! up when the daemon closes it or dies, whatever killed it. So nothing that a server starts outlives it, and no server
//! outlives the daemon, also where one of the two was killed or stopped by what it watches. Each has one thread, because
//! the parent-death signal is tied to the thread that started the child.

mod exec;
mod watch;

use std::ffi::OsString;
use std::io;
use std::process::ExitCode;

/// The word that makes this executable a guard. Arguments: the grace in milliseconds, then the command.
pub(crate) const GUARD: &str = "__guard";
/// The word that makes a guard watch what it has started. Arguments: its patience in milliseconds, then the process id.
const WATCH: &str = "__watch";
/// The word that makes this executable a supervisor. Arguments: as for a guard.
const SUPERVISE: &str = "__supervise";
/// The word that makes this executable become the server. Arguments: the supervisor's process id, then the command.
const EXEC: &str = "__exec";
/// Exit code where the supervisor itself cannot work.
const FAILED: u8 = 125;

/// Runs as a guard or a supervisor, where the arguments (with the program's name first) say so. Absent: they do not.
///
/// Call it first of all in `main`, while the process has one thread.
#[must_use]
pub fn take_over(mut args: impl Iterator<Item = OsString>) -> Option<ExitCode> {
    let role = args.nth(1)?;
    let ended = match role.to_str()? {
        GUARD => watch::guard(args),
        WATCH => watch::watch(args),
        SUPERVISE => watch::supervise(args),
        EXEC => exec::run(args),
        _ => return None,
    };
    Some(ExitCode::from(ended.unwrap_or_else(|error| {
        eprintln!("toolbus: cannot supervise: {error}");
        FAILED
    })))
}

/// What a hidden word is followed by: a number and a command.
fn parse(mut args: impl Iterator<Item = OsString>) -> io::Result<(u32, OsString, Vec<OsString>)> {
    let number = args.next().and_then(|text| text.to_str()?.parse().ok());
    match (number, args.next()) {
        (Some(number), Some(command)) => Ok((number, command, args.collect())),
        _ => Err(io::Error::new(io::ErrorKind::InvalidInput, "expected a number and a command")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(words: &[&str]) -> impl Iterator<Item = OsString> {
        words.iter().map(OsString::from).collect::<Vec<_>>().into_iter()
    }

    #[test]
    fn only_the_hidden_words_take_over() {
        for arguments in [&["toolbus"][..], &["toolbus", "serve"], &["toolbus", "--help", "__guard"]] {
            assert!(take_over(words(arguments)).is_none());
        }
    }

    #[test]
    fn a_hidden_word_needs_a_number_and_a_command() {
        assert!(parse(words(&["5"])).is_err());
        assert!(parse(words(&["soon", "cat"])).is_err());
        let (number, command, arguments) = parse(words(&["5", "cat", "-u"])).unwrap();
        assert_eq!((number, command.as_os_str(), arguments.len()), (5, "cat".as_ref(), 1));
    }
}
