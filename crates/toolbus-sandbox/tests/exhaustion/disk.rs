//! The work folder: too much, too many, too deep, and hidden.

use toolbus_sandbox::{Ending, Level, Stop};
use toolbus_scripts::runner::Runner as _;

use crate::fixture::{assert_printed, both, run, script, text, told};

/// Tries to do something until it is refused.
fn until_refused(step: &str) -> String {
    format!(
        "
import mmap, os, time
kept = []
number = 0
try:
    while True:
{step}
        number += 1
except OSError as error:
    print(error.strerror, number)
"
    )
}

/// Asserts that a full disk is reported where the work folder is a file system of its own, and stops the script
/// elsewhere.
async fn assert_bounded(step: &str, refused: std::ops::RangeInclusive<u32>) {
    let [full, less] = both(script(until_refused(step))).await;
    assert_eq!((full.ending, text(&full.stderr)), (Ending::Exited(0), String::new()));
    let said = text(&full.stdout);
    let number = said.strip_prefix("No space left on device ").and_then(|number| number.trim().parse().ok());
    assert!(number.is_some_and(|number| refused.contains(&number)), "{said}");
    assert_eq!(less.ending, Ending::Stopped(Stop::Disk), "{less:?}");
}

#[tokio::test]
async fn a_file_has_a_largest_size() {
    let source = "
import os
for attempt in (lambda f: f.write(bytes(9 << 20)), lambda f: f.truncate(1 << 40), lambda f: os.posix_fallocate(f.fileno(), 0, 1 << 30)):
    with open('file', 'wb', buffering=0) as file:
        try:
            attempt(file)
            attempt(file)
        except OSError as error:
            print(error.strerror, os.path.getsize('file') >> 20)
";
    // Without namespaces room cannot be taken ahead, and the C library writes instead.
    let [full, less] = [
        "File too large 8\nFile too large 0\nFile too large 0",
        "File too large 8\nFile too large 0\nFile too large 8",
    ];
    assert_printed(&both(script(source)).await, [full, less]);
}

#[tokio::test]
async fn room_that_no_file_shows_cannot_be_taken() {
    // FALLOC_FL_KEEP_SIZE takes blocks beyond the end of a file, to which the limit of a file's size does not apply.
    let source = "
import ctypes, os
libc = ctypes.CDLL(None, use_errno=True)
with open('file', 'wb') as file:
    for mode in (1, 3):
        taken = libc.fallocate(file.fileno(), mode, ctypes.c_long(0), ctypes.c_long(9 << 30))
        print(taken, os.strerror(ctypes.get_errno()), os.fstat(file.fileno()).st_blocks)
";
    assert_printed(&both(script(source)).await, ["-1 Operation not supported 0\n-1 Operation not supported 0"; 2]);
}

#[tokio::test]
async fn files_together_end_at_the_limit() {
    let step = "        with open(f'{number}', 'wb') as file:\n            file.write(bytes(1 << 20))";
    assert_bounded(step, 14..=16).await;
}

#[tokio::test]
async fn files_without_content_end_at_the_limit() {
    assert_bounded("        os.close(os.open(f'{number}', os.O_CREAT | os.O_WRONLY))", 190..=204).await;
}

#[tokio::test]
async fn names_as_long_as_they_get_and_folders_within_folders_end_at_the_limit() {
    assert_bounded("        os.mkdir('n' * 255)\n        os.chdir('n' * 255)", 190..=204).await;
}

#[tokio::test]
async fn links_to_one_file_end_at_the_limit() {
    let step = "        os.symlink('x', f's{number}')";
    assert_bounded(step, 190..=204).await;
}

#[tokio::test]
async fn a_file_with_holes_counts_as_what_is_in_it() {
    let source = "
for number in range(50):
    with open(f'{number}', 'wb') as file:
        file.truncate(8 << 20)
import time
time.sleep(0.3)
print('done')
";
    assert_printed(&both(script(source)).await, ["done"; 2]);
}

#[tokio::test]
async fn a_folder_that_nobody_may_enter_hides_nothing() {
    let source = "
import os, time
os.mkdir('hidden', 0)
os.umask(0o777)
try:
    os.mkdir('hidden/within')
    print('entered')
except OSError as error:
    print(error.strerror)
os.mkdir('closed')
open('file', 'w').close()
time.sleep(0.3)
";
    for outcome in both(script(source)).await {
        assert_eq!(
            (outcome.ending, text(&outcome.stdout)),
            (Ending::Exited(0), "Permission denied\n".to_owned()),
            "{outcome:?}"
        );
    }
}

#[tokio::test]
async fn files_without_a_name_count() {
    let step = "        kept.append(open('file', 'wb'))\n        kept[-1].write(bytes(1 << 20))\n        kept[-1].flush()\n        os.unlink('file')";
    let full = run(Level::Full, script(until_refused(step))).await;
    assert!(text(&full.stdout).starts_with("No space left on device 1"), "{full:?}");
    let source = format!("{}time.sleep(600)", until_refused(step));
    let less = run(Level::NoNamespaces, script(source)).await;
    assert_eq!(less.ending, Ending::Stopped(Stop::Disk), "{less:?}");
}

#[tokio::test]
async fn files_that_are_only_mapped_count() {
    let step = "        with open('file', 'wb+') as file:\n            file.write(bytes(1 << 20))\n            file.flush()\n            kept.append(mmap.mmap(file.fileno(), 4096))\n        os.unlink('file')\n        assert number < 60";
    let full = run(Level::Full, script(until_refused(step))).await;
    assert_eq!(told(&full).0, Ending::Exited(0), "{full:?}");
    assert!(text(&full.stdout).starts_with("No space left on device 1"), "{full:?}");
    let source = format!(
        "{}time.sleep(600)",
        until_refused(step).replace("assert number < 60", "if number > 60: time.sleep(600)")
    );
    let less = run(Level::NoNamespaces, script(source)).await;
    assert_eq!(less.ending, Ending::Stopped(Stop::Disk), "{less:?}");
}

#[tokio::test]
async fn who_looks_at_a_folder_is_not_led_elsewhere_by_one_that_becomes_a_link() {
    // Where it is looked at by root, its rights would be used on what the link leads to.
    let victim = tempfile::NamedTempFile::new().unwrap();
    let mode = <std::fs::Permissions as std::os::unix::fs::PermissionsExt>::from_mode;
    std::fs::set_permissions(victim.path(), mode(0o640)).unwrap();
    let source = format!(
        "
import ctypes, os, time
rename = ctypes.CDLL(None).renameat2
os.mkdir('a')
os.symlink({:?}, 'b')
until = time.monotonic() + 3
while time.monotonic() < until:
    rename(-100, b'a', -100, b'b', 2)
print(os.path.islink('a') != os.path.islink('b'))
",
        victim.path()
    );
    assert_printed(&both(script(source)).await, ["True"; 2]);
    let found = std::os::unix::fs::PermissionsExt::mode(&victim.path().metadata().unwrap().permissions());
    assert_eq!(found & 0o777, 0o640);
}

#[tokio::test]
async fn folders_that_lie_thousandfold_in_each_other_are_removed() {
    // Faster than anybody looks. Each script leaves its folders behind and says where.
    let source = "
import os
try:
    while True:
        os.mkdir('d')
        os.chdir('d')
except OSError:
    pass
";
    let runner = crate::fixture::runner(Level::NoNamespaces, 0).await;
    for _ in 0..3 {
        let finished = runner.run(script(source)).await.unwrap();
        assert_eq!(finished.outcome.ending, Ending::Stopped(Stop::Disk));
    }
    assert_eq!(crate::fixture::deep_folders(), Vec::<std::path::PathBuf>::new());
}
