//! Ways around: links, descriptors, `..`, and what is inherited.

use toolbus_sandbox::Level;
use toolbus_scripts::config::PoolConfig;
use toolbus_scripts::runner::{Runner as _, StartKind};
use toolbus_testing::patience::eventually;

use crate::fixture::{Canary, LEVELS, assert_printed, attack, printed, runner, runner_with, settings, stdout};

#[tokio::test]
async fn a_symbolic_link_leads_no_further() {
    let canary = Canary::new();
    let source = "
for number, path in enumerate(given):
    link = 'link%d' % number
    os.symlink(path, link)
    print(tried(lambda: open(link).read()), tried(lambda: open(link, 'w')), tried(lambda: os.listdir(link)))
";
    for level in LEVELS {
        let expected = match level {
            Level::Full => "ENOENT ENOENT ENOENT\n".repeat(3),
            _ => "EACCES EISDIR EACCES\nEACCES EACCES ENOTDIR\nEACCES EACCES ENOTDIR\n".to_owned(),
        };
        assert_eq!(printed(level, &canary.lines(), source).await, expected, "{level}");
        canary.assert_untouched(level);
    }
}

#[tokio::test]
async fn a_link_among_the_files_that_come_back_brings_nothing() {
    let canary = Canary::new();
    let source = "
out = os.environ['TOOLBUS_OUTPUT']
for number, path in enumerate(given):
    os.symlink(path, os.path.join(out, 'link%d' % number))
os.symlink('/etc', os.path.join(out, 'etc'))
print(tried(lambda: os.link(given[2], os.path.join(out, 'hard'))), tried(lambda: os.rename(out, out + '2')),
    tried(lambda: os.symlink(given[0], out + '3')))
";
    for level in LEVELS {
        let finished = runner(level).await.run(attack(&canary.lines(), source)).await.unwrap();
        let found = stdout(&finished);
        assert!(finished.outcome.artifacts.is_empty() && finished.outcome.left_out == 4, "{level}: {finished:?}");
        // Landlock or the kernel's own protection of links refuses, whichever is asked first.
        let found = found.replacen("EPERM", "EXDEV", 1);
        let expected = if level == Level::Full { "ENOENT EACCES EACCES\n" } else { "EXDEV EACCES EACCES\n" };
        assert_eq!(found, expected, "{level}");
    }
}

#[tokio::test]
async fn hard_links_to_files_of_others_cannot_be_made() {
    let canary = Canary::new();
    let source = "
import sys
for path in given[1], given[2], sys.executable, os.__file__:
    print(tried(lambda: os.link(path, 'hard')), tried(lambda: os.link(path, 'hard', follow_symlinks=False)))
descriptor = os.open(os.__file__, os.O_RDONLY)
print(call(int(os.environ['ROCKBOT_INPUT'].split('\\n')[3]), descriptor, b'', -100, b'hard', 0x1000))
print(os.path.exists('hard'))
";
    for level in LEVELS {
        let input = format!("{}\n{}", canary.lines(), libc::SYS_linkat);
        let found = printed(level, &input, source).await;
        let errors = ["ENOENT", "EXDEV", "EACCES", "EPERM", "EROFS", "False"];
        assert!(found.split_whitespace().all(|word| errors.contains(&word)), "{level}: {found}");
        assert!(found.ends_with("False\n"), "{level}: {found}");
        canary.assert_untouched(level);
    }
}

#[tokio::test]
async fn no_way_up_leads_out_of_the_work_folder() {
    let canary = Canary::new();
    let source = "
folder, private, public, openat2 = given
up = '../' * 40
print(tried(lambda: open(up + public).read()), tried(lambda: open('/proc/self/root' + public).read()),
    tried(lambda: open('/proc/self/cwd/' + up + public).read()), tried(lambda: open('/proc/1/root' + public).read()),
    tried(lambda: open('/dev/../' + public).read()), tried(lambda: open('/dev/fd/../../..' + public).read()))
how = (ctypes.c_uint64 * 3)(0, 0, 0)
print(call(int(openat2), -100, public.encode(), how, 24), call(int(openat2), -100, (up + public).encode(), how, 24))
beyond = tried(lambda: os.open(folder, os.O_PATH))
print(beyond if isinstance(beyond, str) else tried(lambda: os.open('public', os.O_RDONLY, dir_fd=beyond)))
print(tried(lambda: os.chroot('.')), tried(lambda: (os.chdir(folder), open('public').read())))
";
    for level in LEVELS {
        let input = format!("{}\n{}", canary.lines(), libc::SYS_openat2);
        let found = printed(level, &input, source).await;
        let kept = |word: &str| ["ENOENT", "EACCES", "EPERM", "ENOTDIR", "ENOSYS"].contains(&word);
        assert!(found.split_whitespace().all(kept) && found.split_whitespace().count() == 11, "{level}: {found}");
    }
}

#[tokio::test]
async fn what_proc_tells_of_processes_cannot_be_read() {
    let source = "
pids = ['self', '1', str(os.getppid()), *given]
for pid in pids:
    for name in ('environ', 'mem', 'maps', 'cmdline', 'status', 'stat', 'fd', 'fd/0', 'fd/1', 'root', 'cwd', 'task', 'ns/user', 'mountinfo',
            'oom_score_adj', 'auxv', 'syscall', 'stack', 'map_files', 'net/tcp', 'net/unix'):
        path = '/proc/%s/%s' % (pid, name)
        # Its own folder and its own streams it may have.
        if path in ('/proc/self/cwd', '/proc/self/fd/0', '/proc/self/fd/1'): continue
        for what in (lambda: open(path, 'rb').read(64), lambda: os.listdir(path), lambda: open(path, 'r+b')):
            found = tried(what)
            if not str(found).startswith('E'): print(path, found)
for path in '/proc/meminfo', '/proc/mounts', '/proc/kallsyms', '/proc/kcore', '/proc/keys', '/proc/sysrq-trigger', '/proc/sys/kernel/core_pattern', '/sys/kernel':
    found = tried(lambda: open(path, 'rb').read(64))
    if not str(found).startswith('E'): print(path, found)
";
    assert_printed(&std::process::id().to_string(), source, [""; 2]).await;
}

#[tokio::test]
async fn a_script_gets_no_descriptors_but_its_streams() {
    let source = "
import stat
for descriptor in range(4096):
    found = tried(lambda: os.fstat(descriptor).st_mode)
    if found != 'EBADF': print(descriptor, 'pipe' if stat.S_ISFIFO(found) else 'null' if stat.S_ISCHR(found) else found)
print(tried(lambda: os.read(1, 1)), tried(lambda: os.read(2, 1)), tried(lambda: os.read(5, 1)), os.read(0, 10))
";
    // As one that the daemon has from whoever started it, and that nobody marked to be closed.
    let _inherited = rustix::io::dup(std::fs::File::open("/etc/passwd").unwrap()).unwrap();
    let expected = "0 null\n1 pipe\n2 pipe\n5 pipe\nEBADF EBADF EBADF b''\n";
    for level in LEVELS {
        assert_eq!(printed(level, "", source).await, expected, "{level}, cold");
        let pool = PoolConfig { min: 1, max: 1, imports: vec!["json".to_owned()], ..PoolConfig::NONE };
        let runner =
            runner_with(toolbus_scripts::runner::sandbox::SandboxSettings { pool, ..settings(level).await }).await;
        eventually("a warm interpreter", async || (runner.status().warm > 0).then_some(())).await;
        let finished = runner.run(attack("", source)).await.unwrap();
        assert_eq!((finished.start, stdout(&finished)), (StartKind::Warm, expected.to_owned()), "{level}, warm");
        runner.shutdown().await;
    }
}

#[tokio::test]
async fn a_script_sees_no_variables_of_the_daemon() {
    // What cargo gives every test is what the daemon would have: the helper gets none of it.
    assert!(std::env::var_os("CARGO_MANIFEST_DIR").is_some());
    let source = "
print(*sorted(os.environ))
environ = ctypes.POINTER(ctypes.c_char_p).in_dll(libc, 'environ')
print('CARGO' in str([environ[i] for i in range(5) if environ[i]]))
";
    let expected = "HOME LANG MPLBACKEND PATH ROCKBOT_INPUT TMPDIR TOOLBUS_INPUT_FILE TOOLBUS_OUTPUT \
                    TOOLBUS_PROGRESS_FD USER\nFalse\n";
    assert_printed("", source, [expected; 2]).await;
}
