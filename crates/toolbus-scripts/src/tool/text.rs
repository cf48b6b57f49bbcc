//! Formats the result of a run for its caller.

use std::time::Duration;

use toolbus_core::tool::{Program, ToolOutput, time_text};
use toolbus_protocol::ContentBlock;
use toolbus_sandbox::{Artifact, Ending, Limits, Outcome, Stop, Stream};

use super::memory::SavedFiles;
use super::{PYTHON, artifacts, hints, name_of};
use crate::requirement::{AllowedPackages, Requirement};
use crate::runner::Finished;
use crate::text::{number, size, without_middle};

/// The text of a script without output.
const NO_OUTPUT: &str = "(no output)";
/// Most characters of each stream that are shown of a script that failed; what is in the middle is left out.
const MAX_SHOWN: usize = 16_000;
/// The same of one that wrote too much: its beginning is enough.
const MAX_BEGINNING: usize = 4_000;
/// Note on a script that ended its session.
const OVER: &str = "The session has ended: its variables and files are gone. The next script begins another.";
/// Note to a script without its earlier session.
const LOST: &str = "The session was lost since its last script: its variables and files are gone. This script began \
     another.";
/// Most files that are named.
const MAX_NAMED: usize = 20;
/// The exit code of a script that did not end in time.
const NOT_ENDED: i32 = -1;
/// The exit code of a script that was ended, as a shell reports a killed program.
const KILLED: i32 = 137;

/// Resources that the script was given.
#[derive(Debug, Clone, Copy)]
pub(super) struct ScriptBudget<'a> {
    pub(super) limits: &'a Limits,
    pub(super) packages: &'a AllowedPackages,
    /// The packages that the script requested.
    pub(super) requested: &'a [Requirement],
    /// `None`: Python.
    pub(super) language: Option<&'a str>,
    pub(super) time: Duration,
    pub(super) cpu: Duration,
    pub(super) has_network: bool,
    pub(super) has_processes: bool,
    pub(super) session: Option<InSession>,
}

/// Start and end of a session's interpreter, as a script met them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct InSession {
    /// Whether the interpreter was started for the script.
    pub(super) is_new: bool,
    /// Whether the interpreter replaces one that has ended since its last script.
    pub(super) is_lost: bool,
    /// Whether the interpreter has ended with the script.
    pub(super) is_over: bool,
}

/// The result of a script that ran.
pub(super) fn output(finished: &Finished, given: ScriptBudget<'_>, saved: SavedFiles) -> ToolOutput {
    let Finished { outcome, value, installing, start: _ } = finished;
    let (stdout, stderr) = (text(&outcome.stdout), text(&outcome.stderr));
    let is_error = saved.is_error || outcome.ending != Ending::Exited(0);
    let content = match outcome.ending {
        Ending::Exited(0) => success(outcome, &stdout, &stderr, value.as_deref(), given.limits),
        Ending::Exited(code) => {
            let written = both(&stdout, &stderr);
            match hints::hint(&stderr, given) {
                Some(hint) => format!("Script failed (exit {code}):\n{}\n[{hint}]", written.trim_end_matches('\n')),
                None => format!("Script failed (exit {code}):\n{written}"),
            }
        }
        Ending::Signalled(signal) => format!("Script failed ({}):\n{}", signal_name(signal), both(&stdout, &stderr)),
        Ending::Stopped(Stop::Time) => timed_out(outcome.elapsed, given) + &until_then(&stdout, &stderr),
        Ending::Stopped(stop) => stopped(stop, &stdout, &stderr, given),
    };
    let program = program(outcome, &content, stdout, stderr, given.time);
    let lost = given.session.is_some_and(|session| session.is_lost).then(|| LOST.to_owned());
    let over = given.session.is_some_and(|session| session.is_over).then(|| OVER.to_owned());
    let notes = [left_out(outcome.left_out, given.limits), not_returned(&outcome.not_returned), lost, over];
    let content = notes.into_iter().flatten().chain(saved.notes).fold(content, |content, note| {
        let end = if content.ends_with('\n') { "" } else { "\n" };
        format!("{content}{end}[{note}]")
    });
    let blocks = match &*outcome.artifacts {
        [] => Vec::new(),
        files => std::iter::once(ContentBlock::text(&*content)).chain(files.iter().map(artifacts::block)).collect(),
    };
    let elapsed = outcome.elapsed + *installing;
    ToolOutput { content: Some(content), blocks, is_error, ..ToolOutput::default() }
        .of_program(Program { elapsed, ..program })
}

/// Standard output to the byte; of a script without it its last value, and what else it wrote.
fn success(outcome: &Outcome, stdout: &str, stderr: &str, value: Option<&str>, limits: &Limits) -> String {
    let cut = if outcome.stdout.is_cut {
        format!("\n[The output was cut after {}.]", size(limits.output))
    } else {
        String::new()
    };
    if !stdout.is_empty() {
        return format!("{stdout}{cut}");
    }
    let written = match (value, &*outcome.artifacts) {
        (None, []) => NO_OUTPUT.to_owned(),
        (None, files) => named(files),
        (Some(value), []) => shown(value),
        (Some(value), files) => format!("{}\n{}", shown(value), named(files)),
    };
    if stderr.is_empty() { written } else { format!("{written}\nstderr:\n{}", shown(stderr)) }
}

/// Begins with the words that peers compare.
fn timed_out(elapsed: Duration, ScriptBudget { language, time, .. }: ScriptBudget<'_>) -> String {
    format!(
        "{} timed out after {}s. Either increase timeout_seconds, simplify the script, or consider an \
         alternative approach that does not require script execution.",
        name_of(language.unwrap_or(PYTHON)),
        time_had(elapsed, time)
    )
}

/// Whole seconds of the time that it had: less than it was given, if its call had to end sooner.
fn time_had(elapsed: Duration, time: Duration) -> u64 {
    let was_cut_short = elapsed + Duration::from_secs(1) < time;
    let had = if was_cut_short { elapsed } else { time };
    had.as_secs().max(1)
}

/// The reason first, because what follows may be long.
fn stopped(stop: Stop, stdout: &str, stderr: &str, ScriptBudget { limits, cpu, .. }: ScriptBudget<'_>) -> String {
    let (reason, advice) = match stop {
        Stop::Time => ("took too long".to_owned(), "Increase timeout_seconds, or do less work."),
        Stop::Cpu => (
            format!("used up its CPU time of {}", time_text(cpu)),
            "Do less work, or increase timeout_seconds: the CPU time grows with it.",
        ),
        Stop::Memory => (
            format!("used more than {} of memory", size(limits.memory)),
            "Work on less at a time, for example by reading files in pieces.",
        ),
        Stop::Processes => (format!("had more than {} processes and threads", limits.processes), "Start fewer."),
        Stop::Disk => (
            format!("wrote more than {}, or more than {} files, into its work folder", size(limits.disk), limits.files),
            "Write less, or delete what is not needed any more.",
        ),
        Stop::Output => (
            format!("wrote more than {} to its standard output or standard error", size(limits.output)),
            "Print less, or write to a file in the folder that TOOLBUS_OUTPUT names.",
        ),
    };
    let written = match (stop, stdout, stderr) {
        (Stop::Output, "", "") => String::new(),
        (Stop::Output, ..) => {
            let beginning = |text: &str| text.chars().take(MAX_BEGINNING).collect::<String>();
            format!("\nIts output began:\n{}", both(&beginning(stdout), &beginning(stderr)))
        }
        _ => until_then(stdout, stderr),
    };
    format!("The script {reason}, and was stopped. {advice}{written}")
}

/// Output of a script before it was stopped.
fn until_then(stdout: &str, stderr: &str) -> String {
    match (stdout, stderr) {
        ("", "") => String::new(),
        _ => format!("\nIts output until then:\n{}", both(stdout, stderr)),
    }
}

/// Output to both streams, in an order that does not depend on when it was written.
fn both(stdout: &str, stderr: &str) -> String {
    match (stdout.is_empty(), stderr.is_empty()) {
        (true, true) => NO_OUTPUT.to_owned(),
        (false, true) => shown(stdout),
        (true, false) => shown(stderr),
        (false, false) => format!("{}\nstderr:\n{}", shown(stdout.trim_end_matches('\n')), shown(stderr)),
    }
}

/// Beginning and end of a long text: errors are at the end.
fn shown(text: &str) -> String {
    without_middle(text, MAX_SHOWN / 2, MAX_SHOWN / 2)
}

/// The text of a stream. What is no UTF-8 becomes replacement characters.
fn text(stream: &Stream) -> String {
    let mut text = String::from_utf8_lossy(&stream.bytes).into_owned();
    if stream.is_cut && text.ends_with(char::REPLACEMENT_CHARACTER) {
        // A character that was cut.
        text.pop();
    }
    text
}

fn named(files: &[Artifact]) -> String {
    let names = files.iter().take(MAX_NAMED).map(|file| file.name.escape_debug().to_string());
    let names = names.collect::<Vec<_>>().join(", ");
    match files.len().saturating_sub(MAX_NAMED) {
        0 => format!("Files: {names}"),
        more => format!("Files: {names} and {more} more"),
    }
}

/// Counts the files that were meant to come back.
fn left_out(count: u64, limits: &Limits) -> Option<String> {
    let (files, most) = (number(count, "file"), size(limits.artifacts));
    let only = "Only regular files do, with names in UTF-8";
    (count > 0).then(|| format!("{files} in TOOLBUS_OUTPUT did not come back. {only}, at most {most} together."))
}

/// Names the files that a model may take for returned.
fn not_returned(names: &[String]) -> Option<String> {
    let more = if names.len() > MAX_NAMED { " and more" } else { "" };
    let listed: Vec<String> = names.iter().take(MAX_NAMED).map(|name| name.escape_debug().to_string()).collect();
    let (listed, advice) = (listed.join(", "), "Write to the folder that TOOLBUS_OUTPUT names.");
    (!names.is_empty()).then(|| format!("Saved in the work folder and not returned: {listed}{more}. {advice}"))
}

/// The fields for callers of `script.invoke`, which show standard error only without standard output.
fn program(outcome: &Outcome, content: &str, stdout: String, stderr: String, time: Duration) -> Program {
    let (stdout, stderr, exit_code) = match outcome.ending {
        Ending::Exited(code) => (Some(stdout), stderr, code),
        Ending::Signalled(signal) => (Some(stdout), stderr, 128 + signal),
        Ending::Stopped(Stop::Time) => {
            let time = time_had(outcome.elapsed, time);
            (Some(stdout), format!("Script timed out after {time}s"), NOT_ENDED)
        }
        Ending::Stopped(_) => (None, content.to_owned(), KILLED),
    };
    Program { stdout, stderr: Some(stderr), exit_code, elapsed: outcome.elapsed }
}

fn signal_name(signal: i32) -> String {
    let name = match signal {
        1 => "SIGHUP",
        2 => "SIGINT",
        3 => "SIGQUIT",
        4 => "SIGILL",
        5 => "SIGTRAP",
        6 => "SIGABRT",
        7 => "SIGBUS",
        8 => "SIGFPE",
        9 => "SIGKILL",
        10 => "SIGUSR1",
        11 => "SIGSEGV",
        12 => "SIGUSR2",
        13 => "SIGPIPE",
        14 => "SIGALRM",
        15 => "SIGTERM",
        24 => "SIGXCPU",
        25 => "SIGXFSZ",
        31 => "SIGSYS",
        _ => return format!("signal {signal}"),
    };
    format!("signal {signal}, {name}")
}

#[cfg(test)]
pub(super) mod tests {
    use bytes::Bytes;
    use insta::assert_snapshot;

    use super::*;
    use crate::runner::StartKind;
    use crate::testing::LIMITS;

    const TIME: Duration = Duration::from_secs(30);

    fn stream(text: &str) -> Stream {
        Stream { bytes: Bytes::from(text.to_owned()), is_cut: false }
    }

    pub(in crate::tool) fn outcome(ending: Ending, stdout: &str, stderr: &str) -> Outcome {
        Outcome {
            ending,
            stdout: stream(stdout),
            stderr: stream(stderr),
            artifacts: Vec::new(),
            left_out: 0,
            not_returned: Vec::new(),
            usage: None,
            elapsed: TIME,
        }
    }

    pub(in crate::tool) fn given(packages: &AllowedPackages) -> ScriptBudget<'_> {
        ScriptBudget {
            limits: &LIMITS,
            language: None,
            packages,
            requested: &[],
            time: TIME,
            cpu: TIME / 2,
            has_network: false,
            has_processes: false,
            session: None,
        }
    }

    fn with_value(outcome: &Outcome, value: Option<&str>) -> ToolOutput {
        let finished = Finished {
            outcome: outcome.clone(),
            value: value.map(str::to_owned),
            start: StartKind::Cold,
            installing: Duration::from_secs(2),
        };
        output(&finished, given(&AllowedPackages::default()), SavedFiles::default())
    }

    fn tool_output(outcome: &Outcome) -> ToolOutput {
        with_value(outcome, None)
    }

    /// The text, with a mark for an error.
    fn content(outcome: &Outcome) -> String {
        let ToolOutput { content, is_error, .. } = tool_output(outcome);
        format!("{}{}", if is_error { "isError: " } else { "" }, content.unwrap())
    }

    fn of(ending: Ending, stdout: &str, stderr: &str) -> String {
        content(&outcome(ending, stdout, stderr))
    }

    fn program(outcome: &Outcome) -> Program {
        *tool_output(outcome).program.unwrap()
    }

    #[test]
    fn the_result_is_the_output_to_the_byte() {
        for stdout in ["42\n", "{\"a\": 1}", " \n"] {
            assert_eq!(of(Ending::Exited(0), stdout, "a warning"), stdout);
        }
        assert_snapshot!(of(Ending::Exited(0), "", ""), @"(no output)");
        assert_snapshot!(of(Ending::Exited(0), "", "a warning"), @"
        (no output)
        stderr:
        a warning
        ");
    }

    #[test]
    fn a_script_that_failed_shows_both_of_its_streams() {
        let failed = |stdout, stderr| of(Ending::Exited(3), stdout, stderr);
        assert_snapshot!(failed("out\n", ""), @"
    isError: Script failed (exit 3):
    out
    ");
        assert_snapshot!(failed("", "Traceback\n"), @"
    isError: Script failed (exit 3):
    Traceback
    ");
        assert_snapshot!(failed("out\n", "Traceback\n"), @"
    isError: Script failed (exit 3):
    out
    stderr:
    Traceback
    ");
        assert_snapshot!(failed("", ""), @"
    isError: Script failed (exit 3):
    (no output)
    ");
    }

    #[test]
    fn a_signal_has_its_name() {
        assert_snapshot!(of(Ending::Signalled(11), "", "Fatal Python error\n"), @"
    isError: Script failed (signal 11, SIGSEGV):
    Fatal Python error
    ");
        assert_snapshot!(of(Ending::Signalled(40), "", ""), @"
    isError: Script failed (signal 40):
    (no output)
    ");
    }

    #[test]
    fn a_timeout_has_the_words_of_peers_and_the_output() {
        let expected = "isError: execute_python_script timed out after 30s. Either increase timeout_seconds, simplify the script, \
                    or consider an alternative approach that does not require script execution.";
        let mut late = outcome(Ending::Stopped(Stop::Time), "", "");
        assert_eq!(content(&late), expected);
        late.elapsed = TIME + Duration::from_millis(300);
        assert_eq!(content(&late), expected);
        late.stdout = stream("out");
        late.stderr = stream("err");
        assert_eq!(content(&late), format!("{expected}\nIts output until then:\nout\nstderr:\nerr"));
    }

    #[test]
    fn a_timeout_shows_the_time_that_the_call_left() {
        let late = Outcome { elapsed: Duration::from_millis(7_900), ..outcome(Ending::Stopped(Stop::Time), "", "") };
        assert!(content(&late).contains("timed out after 7s."), "{}", content(&late));
        assert_eq!(program(&late).stderr.as_deref(), Some("Script timed out after 7s"));
    }

    #[test]
    fn every_other_limit_has_a_text() {
        let shown = Stop::ALL[1..].iter().map(|stop| of(Ending::Stopped(*stop), "", "")).collect::<Vec<_>>().join("\n");
        assert_snapshot!(shown, @"
    isError: The script used up its CPU time of 15 s, and was stopped. Do less work, or increase timeout_seconds: the CPU time grows with it.
    isError: The script used more than 256 MiB of memory, and was stopped. Work on less at a time, for example by reading files in pieces.
    isError: The script had more than 64 processes and threads, and was stopped. Start fewer.
    isError: The script wrote more than 64 MiB, or more than 4096 files, into its work folder, and was stopped. Write less, or delete what is not needed any more.
    isError: The script wrote more than 1 MiB to its standard output or standard error, and was stopped. Print less, or write to a file in the folder that TOOLBUS_OUTPUT names.
    ");
    }

    #[test]
    fn the_output_of_a_stopped_script_follows_the_reason() {
        assert_snapshot!(of(Ending::Stopped(Stop::Memory), "out\n", "err\n"), @"
    isError: The script used more than 256 MiB of memory, and was stopped. Work on less at a time, for example by reading files in pieces.
    Its output until then:
    out
    stderr:
    err
    ");
    }

    #[test]
    fn the_beginning_of_too_much_output_is_shown() {
        let mut much = outcome(Ending::Stopped(Stop::Output), &"ab".repeat(100_000), "");
        much.stdout.is_cut = true;
        let shown = content(&much);
        assert!(
            shown.contains(" TOOLBUS_OUTPUT names.\nIts output began:\nabab") && shown.ends_with("ab"),
            "{shown:.300}"
        );
        assert_eq!(shown.matches("ab").count(), MAX_BEGINNING / 2);
    }

    #[test]
    fn the_beginning_and_the_end_of_a_long_failure_are_shown() {
        let long = format!("BEGIN{}END", "ä".repeat(50_000));
        let shown = of(Ending::Exited(1), &long, &long);
        assert_eq!(shown.matches("BEGIN").count() + shown.matches("END").count(), 4);
        assert_eq!(shown.matches("\n[34008 characters left out]\n").count(), 2);
        assert!(shown.chars().count() < 2 * MAX_SHOWN + 200, "{}", shown.chars().count());
    }

    #[test]
    fn invalid_bytes_are_replaced_and_a_cut_character_is_left_out() {
        let mut bytes = outcome(Ending::Exited(0), "", "");
        bytes.stdout.bytes = Bytes::from_static(b"a\xff\xfeb\xc3");
        assert_eq!(content(&bytes), "a\u{fffd}\u{fffd}b\u{fffd}");
        bytes.stdout.is_cut = true;
        assert_eq!(content(&bytes), "a\u{fffd}\u{fffd}b\n[The output was cut after 1 MiB.]");
    }

    #[test]
    fn files_are_pieces_after_the_text() {
        let file = |name: &str| Artifact { name: name.to_owned(), bytes: Bytes::from_static(b"x") };
        let with = |stdout, files: Vec<Artifact>| {
            tool_output(&Outcome { artifacts: files, ..outcome(Ending::Exited(0), stdout, "") })
        };
        let ToolOutput { content, blocks, .. } = with("42\n", vec![file("a.txt"), file("b.csv")]);
        assert_eq!(content.as_deref(), Some("42\n"));
        let pieces: Vec<_> =
            blocks.iter().map(|block| (block.kind.as_str(), block.text.as_deref(), block.uri.as_deref())).collect();
        assert_eq!(
            pieces,
            [
                ("text", Some("42\n"), None),
                ("resource", Some("x"), Some("toolbus:output/a.txt")),
                ("resource", Some("x"), Some("toolbus:output/b.csv")),
            ]
        );
        assert_snapshot!(with("", vec![file("a.txt"), file("b\n.csv")]).content.unwrap(), @r"Files: a.txt, b\n.csv");
        let many = (0..22).map(|number| file(&format!("{number}"))).collect();
        assert!(with("", many).content.unwrap().ends_with("18, 19 and 2 more"));
        assert!(with("text alone", Vec::new()).blocks.is_empty());
    }

    #[test]
    fn the_value_of_the_last_expression_is_shown_when_nothing_was_printed() {
        let of = |stdout, stderr, artifacts: Vec<Artifact>| {
            let outcome = Outcome { artifacts, ..outcome(Ending::Exited(0), stdout, stderr) };
            with_value(&outcome, Some("[1, 2]")).content.unwrap()
        };
        let figure = Artifact { name: "figure-1.png".to_owned(), bytes: Bytes::from_static(b"x") };
        assert_eq!(of("42\n", "", Vec::new()), "42\n");
        assert_eq!(of("", "", Vec::new()), "[1, 2]");
        assert_snapshot!(of("", "a warning", vec![figure]), @"
    [1, 2]
    Files: figure-1.png
    stderr:
    a warning
    ");
        let long = with_value(&outcome(Ending::Exited(0), "", ""), Some(&"x".repeat(64_000))).content.unwrap();
        assert_eq!(long.len(), MAX_SHOWN + "\n[48000 characters left out]\n".len());
    }

    #[test]
    fn files_that_were_not_returned_are_named() {
        let left =
            |not_returned: Vec<String>| content(&Outcome { not_returned, ..outcome(Ending::Exited(0), "42\n", "") });
        assert_snapshot!(left(vec!["a.csv".to_owned(), "data/b.csv".to_owned()]), @"
    42
    [Saved in the work folder and not returned: a.csv, data/b.csv. Write to the folder that TOOLBUS_OUTPUT names.]
    ");
        let many = left((0..21).map(|number| number.to_string()).collect());
        assert!(many.contains(" 18, 19 and more. "), "{many}");
    }

    #[test]
    fn the_last_line_counts_files_that_did_not_come_back() {
        let left = |left_out, ending| content(&Outcome { left_out, ..outcome(ending, "42", "") });
        assert_snapshot!(left(1, Ending::Exited(0)), @"
    42
    [1 file in TOOLBUS_OUTPUT did not come back. Only regular files do, with names in UTF-8, at most 4 MiB together.]
    ");
        assert_snapshot!(left(2, Ending::Exited(1)), @"
    isError: Script failed (exit 1):
    42
    [2 files in TOOLBUS_OUTPUT did not come back. Only regular files do, with names in UTF-8, at most 4 MiB together.]
    ");
    }

    #[test]
    fn callers_of_script_invoke_get_streams_and_an_exit_code() {
        let of = |ending| {
            let Program { stdout, stderr, exit_code, elapsed } = program(&outcome(ending, "out", "err"));
            assert_eq!(elapsed, TIME + Duration::from_secs(2), "packages take time, too");
            format!("{exit_code} {} | {}", stdout.as_deref().unwrap_or("-"), stderr.as_deref().unwrap_or("-"))
        };
        assert_snapshot!(of(Ending::Exited(0)), @"0 out | err");
        assert_snapshot!(of(Ending::Exited(3)), @"3 out | err");
        assert_snapshot!(of(Ending::Signalled(11)), @"139 out | err");
        assert_snapshot!(of(Ending::Stopped(Stop::Time)), @"-1 out | Script timed out after 30s");
        assert_snapshot!(of(Ending::Stopped(Stop::Processes)), @"
    137 - | The script had more than 64 processes and threads, and was stopped. Start fewer.
    Its output until then:
    out
    stderr:
    err
    ");
    }
}
