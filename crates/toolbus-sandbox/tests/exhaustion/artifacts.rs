//! Artifacts: files that a script leaves in the folder whose files come back.

use toolbus_sandbox::{Ending, Outcome, Stop};

use crate::fixture::{both, brief, script, text, warm};

fn names(outcome: &Outcome) -> Vec<(&str, usize)> {
    outcome.artifacts.iter().map(|file| (file.name.as_str(), file.bytes.len())).collect()
}

#[tokio::test]
async fn only_regular_files_with_plain_names_come_back() {
    let source = "
import os
os.chdir(os.environ['TOOLBUS_OUTPUT'])
for name in ('good.txt', 'new\\nline', b'\\xff', 'x' * 250, ' '):
    with open(name, 'w') as file:
        file.write('x')
os.mkdir('folder')
open('folder/within', 'w').close()
for target, name in (('/etc/passwd', 'link'), ('good.txt', 'own'), ('..', 'up'), ('/dev/zero', 'zero')):
    os.symlink(target, name)
os.link('good.txt', 'hard')
try:
    os.mkfifo('pipe')
except OSError as error:
    print(error.strerror)
";
    for outcomes in [both(script(source)).await, warm(script(source)).await] {
        for outcome in outcomes {
            assert_eq!(names(&outcome), [(" ", 1), ("good.txt", 1), ("hard", 1)], "{outcome:?}");
            assert_eq!((outcome.ending, outcome.left_out), (Ending::Exited(0), 8));
            assert_eq!(text(&outcome.stdout), "Operation not permitted\n");
        }
    }
}

#[tokio::test]
async fn too_many_files_come_back_as_far_as_there_is_room() {
    let source = "
import os
os.chdir(os.environ['TOOLBUS_OUTPUT'])
for number in range(100):
    with open(f'{number:03}', 'w') as file:
        file.write('x')
";
    for outcome in both(script(source)).await {
        assert_eq!((outcome.artifacts.len(), outcome.left_out), (64, 36));
    }
}

#[tokio::test]
async fn too_large_files_do_not_come_back() {
    let source = "
import os
os.chdir(os.environ['TOOLBUS_OUTPUT'])
for name, size in (('a', 600000), ('b', 600000), ('c', 400000), ('holes', 1)):
    with open(name, 'wb') as file:
        file.write(bytes(size))
        if name == 'holes':
            file.truncate(8 << 20)
";
    for outcome in both(script(source)).await {
        assert_eq!((names(&outcome), outcome.left_out), (vec![("a", 600_000), ("c", 400_000)], 2));
    }
}

#[tokio::test]
async fn a_folder_that_was_exchanged_for_a_link_is_not_followed() {
    let source = "
import os
out = os.environ['TOOLBUS_OUTPUT']
for attempt in (lambda: os.rmdir(out), lambda: os.rename(out, 'moved'), lambda: os.rename(out, out + '2')):
    try:
        attempt()
    except OSError as error:
        print(type(error).__name__)
    if not os.path.exists(out):
        try:
            os.symlink('/etc', out)
        except OSError:
            pass
";
    for outcome in both(script(source)).await {
        assert_eq!((outcome.ending, names(&outcome)), (Ending::Exited(0), vec![]), "{outcome:?}");
    }
}

#[tokio::test]
async fn a_script_that_is_stopped_keeps_what_it_printed_and_its_files() {
    let source = "
import os, time
print('half')
with open(os.environ['TOOLBUS_OUTPUT'] + '/half.csv', 'w') as file:
    file.write('a,b')
time.sleep(600)
";
    for outcome in both(brief(source, 2000)).await {
        assert_eq!((outcome.ending, &*text(&outcome.stdout)), (Ending::Stopped(Stop::Time), "half\n"), "{outcome:?}");
        let files: Vec<_> = outcome.artifacts.iter().map(|file| (&*file.name, &*file.bytes)).collect();
        assert_eq!(files, [("half.csv", &b"a,b"[..])]);
    }
}
