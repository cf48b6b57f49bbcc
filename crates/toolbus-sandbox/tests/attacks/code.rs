//! Programs and machine code that a script brings or finds, and rights that it might get by them.

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;

use toolbus_sandbox::{Ending, Level};
use toolbus_scripts::runner::Runner as _;

use crate::fixture::{
    LEVELS, assert_printed, attack, is_root, printed_unconfined, runner, runner_with, settings, stdout,
};

#[tokio::test]
async fn a_program_that_the_script_wrote_is_not_executed() {
    let source = "
import sys
for path in 'mine', os.environ['TMPDIR'] + '/mine', os.environ['TOOLBUS_OUTPUT'] + '/mine':
    with open(sys.executable, 'rb') as program, open(os.open(path, os.O_CREAT | os.O_WRONLY, 0o755), 'wb') as copy:
        copy.write(program.read())
    print(tried(lambda: os.execv(path, [path, '-c', 'print(1)'])))
with open(os.open('text', os.O_CREAT | os.O_WRONLY, 0o755), 'w') as text:
    text.write('#!' + sys.executable + '\\nprint(1)')
print(tried(lambda: os.execv('text', ['text'])))
";
    assert_printed("", source, ["EACCES\nEACCES\nEACCES\nEACCES\n"; 2]).await;
}

#[tokio::test]
async fn a_library_that_the_script_wrote_is_loaded_only_without_namespaces() {
    let source = "
import mmap, _ctypes
with open(_ctypes.__file__, 'rb') as library, open('mine.so', 'wb') as copy:
    copy.write(library.read())
try:
    ctypes.CDLL('./mine.so')
    print('loaded')
except OSError as error:
    print(str(error).split(': ')[-1])
with open('mine.so', 'rb') as file:
    print(tried(lambda: mmap.mmap(file.fileno(), 4096, mmap.MAP_PRIVATE, mmap.PROT_READ | mmap.PROT_EXEC).close()))
";
    // Landlock is asked when a program is executed, and not when a file is mapped.
    assert_printed("", source, ["failed to map segment from shared object\nEPERM\n", "loaded\ndone\n"]).await;
}

#[tokio::test]
async fn the_loader_executes_what_the_script_wrote_only_without_namespaces() {
    let source = "
import glob, sys
loader = (glob.glob('/lib64/ld-linux*.so.*') + glob.glob('/lib/ld-linux*.so.*'))[0]
with open(sys.executable, 'rb') as program, open('mine', 'wb') as copy:
    copy.write(program.read())
os.execv(loader, [loader, './mine', '-I', '-S', '-c', 'import os; print(\"ran\"); open(\"/etc/passwd\")'])
";
    for level in LEVELS {
        let outcome = runner(level).await.run(attack("", source)).await.unwrap().outcome;
        let (stdout, stderr) =
            (String::from_utf8_lossy(&outcome.stdout.bytes), String::from_utf8_lossy(&outcome.stderr.bytes));
        match level {
            Level::Full => {
                assert_eq!((outcome.ending, &*stdout), (Ending::Exited(127), ""), "{stderr}");
                assert!(stderr.contains("failed to map segment"), "{stderr}");
            }
            _ => {
                assert_eq!((outcome.ending, &*stdout), (Ending::Exited(1), "ran\n"), "{stderr}");
                assert!(stderr.contains("PermissionError: [Errno 13] Permission denied: '/etc/passwd'"), "{stderr}");
            }
        }
    }
}

#[tokio::test]
async fn programs_in_memory_are_not_executed() {
    let source = "
memfd_create, execveat, secret = map(int, given)
print(call(memfd_create, b'mine', 0), call(secret, 0), call(execveat, 0, b'', None, None, 0x1000),
    call(execveat, -100, b'/usr/bin/env', None, None, 0))
";
    let input = format!("{}\n{}\n{}", libc::SYS_memfd_create, libc::SYS_execveat, libc::SYS_memfd_secret);
    assert_printed(&input, source, ["EPERM EPERM EPERM EPERM\n"; 2]).await;
}

/// `int 0x80` calls the kernel by the numbers of a 32-bit program, which the filter's list does not mean.
#[cfg(target_arch = "x86_64")]
#[tokio::test]
async fn a_system_call_of_another_architecture_ends_the_script() {
    let source = "
import mmap
page = mmap.mmap(-1, 4096, prot=mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC)
page.write(b'\\xb8\\x14\\x00\\x00\\x00\\xcd\\x80\\xc3')  # mov eax, 20 (getpid); int 0x80; ret
print('begun', flush=True)
print(ctypes.CFUNCTYPE(ctypes.c_long)(ctypes.addressof(ctypes.c_char.from_buffer(page)))())
";
    for level in LEVELS {
        let outcome = runner(level).await.run(attack("", source)).await.unwrap().outcome;
        assert_eq!(
            (outcome.ending, &*outcome.stdout.bytes),
            (Ending::Signalled(libc::SIGSYS), &b"begun\n"[..]),
            "{level}"
        );
    }
    let x32 = "print([number for number in range(600) if call(0x40000000 + number, -1, -1, -1) != 'EPERM'])";
    assert_printed("", x32, ["[]\n"; 2]).await;
}

#[tokio::test]
async fn a_program_with_the_set_user_id_bit_gives_no_rights() {
    let folder = tempfile::tempdir().unwrap();
    fs::set_permissions(folder.path(), Permissions::from_mode(0o755)).unwrap();
    let program = folder.path().join("id");
    fs::copy("/usr/bin/id", &program).unwrap();
    fs::set_permissions(&program, Permissions::from_mode(0o6755)).unwrap();
    let source = "os.execv(given[0], ['id'])";
    for level in LEVELS {
        let mut settings = settings(level).await;
        settings.interpreter.read.push(folder.path().to_owned());
        let runner = runner_with(settings).await;
        let found = stdout(&runner.run(attack(program.to_str().unwrap(), source)).await.unwrap());
        assert!(found.starts_with("uid=") && !found.contains("euid=") && !found.contains("egid="), "{level}: {found}");
        let su = stdout(
            &runner.run(attack("", "print(os.getuid() == os.geteuid(), os.geteuid(), os.getgroups())")).await.unwrap(),
        );
        let user = if level == Level::Full { 1000..=1000 } else { 61184..=65519 };
        let is_own = su.split(' ').nth(1).unwrap().parse().is_ok_and(|id: u32| user.contains(&id));
        assert!(su.starts_with("True") && (is_own || !is_root()), "{level}: {su}");
        runner.shutdown().await;
    }
}

#[tokio::test]
async fn su_and_mount_do_nothing() {
    let programs = [
        "/usr/bin/su",
        "/bin/su",
        "/usr/bin/mount",
        "/bin/mount",
        "/usr/bin/sudo",
        "/usr/bin/unshare",
        "/usr/bin/newuidmap",
    ];
    let attempts = |program: &str| match program.rsplit('/').next().unwrap() {
        "su" => "['su', '-c', 'echo got root']",
        "mount" => "['mount', '-t', 'tmpfs', 'x', '/tmp']",
        "sudo" => "['sudo', '-n', 'echo', 'got root']",
        "unshare" => "['unshare', '-Ur', 'echo', 'got root']",
        _ => "['newuidmap', '1', '0', '0', '1']",
    };
    for level in LEVELS {
        for program in programs.into_iter().filter(|program| Path::new(program).exists()) {
            let source = format!("os.execv('{program}', {})", attempts(program));
            let outcome = runner(level).await.run(attack("", &source)).await.unwrap().outcome;
            assert!(!matches!(outcome.ending, Ending::Exited(0)), "{level}: {program}: {outcome:?}");
            assert!(
                !outcome.stdout.bytes.windows(8).any(|text| text == b"got root"),
                "{level}: {program}: {outcome:?}"
            );
        }
    }
}

#[tokio::test]
async fn a_script_has_no_capabilities_and_gets_no_other_user() {
    let source = "
setuid, setresuid, setgid, setgroups, capset, prctl = map(int, given)
print(call(setuid, 0), call(setresuid, 0, 0, 0), call(setgid, 0), call(setgroups, 0, None), call(capset, None, None))
print(call(prctl, 47, 2, 1, 0, 0), call(prctl, 8, 1), call(prctl, 28, 1), call(prctl, 38, 0, 0, 0, 0))
# Whoever may override permissions can open what nobody may.
os.close(os.open('closed', os.O_CREAT | os.O_WRONLY, 0))
print(tried(lambda: open('closed')))
";
    let calls = [
        libc::SYS_setuid,
        libc::SYS_setresuid,
        libc::SYS_setgid,
        libc::SYS_setgroups,
        libc::SYS_capset,
        libc::SYS_prctl,
    ];
    let input = calls.map(|call| call.to_string()).join("\n");
    let unconfined = printed_unconfined(&input, source).await;
    assert!(unconfined.ends_with("EACCES\n") != is_root(), "{unconfined}");
    let expected = "EPERM EPERM EPERM EPERM EPERM\nEPERM EPERM EPERM EPERM\nEACCES\n";
    assert_printed(&input, source, [expected; 2]).await;
}
