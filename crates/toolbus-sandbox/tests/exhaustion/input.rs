//! Input of scripts, and files that they leave to others.

use toolbus_sandbox::Ending;
use toolbus_scripts::runner::Script;

use crate::fixture::{assert_printed, both, script, text, warm};

fn given(source: &str, input: impl Into<String>) -> Script {
    Script { input: Some(input.into()), ..script(source) }
}

#[tokio::test]
async fn a_large_input_is_in_the_file_and_not_in_the_variable() {
    let source = "
import os
with open(os.environ['TOOLBUS_INPUT_FILE']) as file:
    print(len(file.read()), len(os.environ.get('ROCKBOT_INPUT', '')))
";
    let input = "x".repeat(7 << 20);
    assert_printed(&both(given(source, input.clone())).await, ["7340032 0"; 2]);
    assert_printed(&warm(given(source, input)).await, ["7340032 0"; 2]);
}

#[tokio::test]
async fn an_input_of_hostile_characters_arrives_to_the_byte() {
    let source = "
import os
with open(os.environ['TOOLBUS_INPUT_FILE'], newline='') as file:
    print(ascii(file.read()), os.environ.get('ROCKBOT_INPUT') is None)
";
    assert_printed(&both(given(source, "\0;$(id)`\r\n\u{1f600}")).await, [r"'\x00;$(id)`\r\n\U0001f600' True"; 2]);
    assert_printed(&both(given(source, "';import os;'")).await, [r#""';import os;'" False"#; 2]);
}

#[tokio::test]
async fn variables_and_arguments_for_a_program_end_at_the_kernels_limit() {
    let source = "
import os
def attempt(arguments, environment):
    try:
        os.execve('/usr/bin/python3', arguments, environment)
    except OSError as error:
        print(error.strerror, flush=True)
attempt(['python3', 'x' * (1 << 20)], {})
attempt(['python3'], {'x': 'y' * (1 << 20)})
attempt(['python3'] + ['x' * 100000] * 500, {})
";
    let [full, less] = both(script(source)).await;
    for outcome in [full, less] {
        let said = text(&outcome.stdout);
        assert_eq!((outcome.ending, said.lines().count()), (Ending::Exited(0), 3), "{outcome:?}");
        assert!(
            said.lines().all(
                |line| ["Argument list too long", "Permission denied", "No such file or directory"].contains(&line)
            ),
            "{said}"
        );
    }
}

#[tokio::test]
async fn who_asks_for_input_finds_what_was_given_and_its_end() {
    let source = "
import sys
print(repr(sys.stdin.read()))
try:
    input()
except EOFError:
    print('end')
";
    assert_printed(&both(given(source, "not here")).await, ["'not here'\nend"; 2]);
    assert_printed(&warm(given(source, "not here")).await, ["'not here'\nend"; 2]);
}

#[tokio::test]
async fn the_key_of_its_call_is_in_a_variable() {
    let source = "import os\nprint(os.environ['TOOLBUS_IDEMPOTENCY_KEY'])";
    let keyed = || Script { idempotency_key: Some("k7".into()), ..script(source) };
    assert_printed(&both(keyed()).await, ["k7"; 2]);
    assert_printed(&warm(keyed()).await, ["k7"; 2]);
}

#[tokio::test]
async fn a_script_has_no_variable_of_the_daemon() {
    let source = "import os\nprint(sorted(os.environ))";
    let expected = "['HOME', 'LANG', 'MPLBACKEND', 'PATH', 'ROCKBOT_INPUT', 'TMPDIR', 'TOOLBUS_INPUT_FILE', 'TOOLBUS_OUTPUT', 'TOOLBUS_PROGRESS_FD', 'USER']";
    assert_printed(&both(script(source)).await, [expected; 2]);
    assert_printed(&warm(script(source)).await, [expected; 2]);
}
