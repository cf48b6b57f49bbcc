//! Files of others.

use toolbus_sandbox::Level;
use toolbus_scripts::runner::Runner as _;

use crate::fixture::{
    Canary, LEVELS, SECRET, assert_printed, attack, is_root, printed, printed_unconfined, runner_with, settings, stdout,
};

#[tokio::test]
async fn files_of_the_daemon_cannot_be_read() {
    let canary = Canary::new();
    let source = "for path in given[1:]: print(tried(lambda: open(path).read()))";
    assert_eq!(printed_unconfined(&canary.lines(), source).await, format!("{SECRET}\n{SECRET}\n"));
    assert_printed(&canary.lines(), source, ["ENOENT\nENOENT\n", "EACCES\nEACCES\n"]).await;
}

#[tokio::test]
async fn files_of_the_system_cannot_be_read() {
    let source = "
for path in '/etc/passwd', '/etc/shadow', '/etc/hostname', '/etc/machine-id', '/root/.bashrc', '/var/lib/dpkg/status':
    print(tried(lambda: open(path).read()))
";
    assert_printed("", source, [&"ENOENT\n".repeat(6), &"EACCES\n".repeat(6)]).await;
}

#[tokio::test]
async fn files_of_the_daemon_cannot_be_changed() {
    let canary = Canary::new();
    let source = "
folder, *files = given
for path in files:
    print(tried(lambda: open(path, 'w')), tried(lambda: open(path, 'a')), tried(lambda: open(path, 'r+')),
        tried(lambda: os.open(path, os.O_RDONLY | os.O_TRUNC)), tried(lambda: os.unlink(path)),
        tried(lambda: os.rename(path, path + '2')), tried(lambda: os.rename(path, 'mine')),
        tried(lambda: os.replace(__file__ and os.environ['TOOLBUS_INPUT_FILE'], path)))
print(tried(lambda: open(folder + '/new', 'w')), tried(lambda: os.mkdir(folder + '/new')), tried(lambda: os.rmdir(folder)))
";
    for level in LEVELS {
        // A file of one file system cannot be moved to another, whoever asks.
        let found = printed(level, &canary.lines(), source).await;
        let seen: std::collections::BTreeSet<&str> = found.split_whitespace().collect();
        let expected: &[&str] = if level == Level::Full { &["ENOENT"] } else { &["EACCES", "EXDEV"] };
        assert!(seen.iter().all(|error| expected.contains(error)) && seen.contains(expected[0]), "{level}: {found}");
        canary.assert_untouched(level);
    }
}

#[tokio::test]
async fn looking_at_files_of_others_tells_that_they_are_there_without_namespaces() {
    let canary = Canary::new();
    let source = "
folder, private, public = given
size = lambda path: tried(lambda: os.stat(path).st_size)
print(size(folder) if 'E' in str(size(folder)) else 'seen', size(private), size(public), size('/etc/passwd') != 'ENOENT',
    tried(lambda: os.readlink('/proc/self/exe')), tried(lambda: os.open(private, os.O_PATH)) == 'ENOENT')
";
    for level in LEVELS {
        let expected = match level {
            Level::Full => "ENOENT ENOENT ENOENT False ENOENT True\n",
            // Landlock does not refuse to look.
            _ => "seen 24 24 True /usr/bin/python3.11 False\n",
        };
        let found = printed(level, &canary.lines(), source).await;
        assert_eq!(found.replace(&python_of(&found), "/usr/bin/python3.11"), expected, "{level}");
    }
}

/// The path of the interpreter, as it is in what a script printed.
fn python_of(printed: &str) -> String {
    printed.split_whitespace().find(|word| word.starts_with('/')).unwrap_or("no path").to_owned()
}

#[tokio::test]
async fn folders_of_others_cannot_be_listed() {
    let canary = Canary::new();
    let source = "
for folder in given[0], '/', '/etc', '/tmp/..', '/root', '/home', '/proc', '/sys', '/dev', '/run', '/var', '..':
    found = tried(lambda: os.listdir(folder))
    if found not in ('EACCES', 'ENOENT'): print(folder, found)
";
    let unconfined = printed_unconfined(&canary.lines(), source).await;
    assert!(unconfined.contains("'private'") && unconfined.contains("'passwd'"), "{unconfined}");
    assert_printed(&canary.lines(), source, [""; 2]).await;
}

#[tokio::test]
async fn modes_owners_times_and_attributes_cannot_be_changed() {
    let canary = Canary::new();
    let source = "
open('own', 'w').close()
library = os.__file__
for path in *given, library, 'own':
    print(*(tried(what) for what in (lambda: os.chmod(path, 0o777), lambda: os.chown(path, os.getuid(), os.getgid()),
            lambda: os.utime(path, (0, 0)), lambda: os.lchown(path, 0, 0), lambda: os.setxattr(path, 'user.mine', b'1'),
            lambda: os.truncate(path, 0), lambda: os.removexattr(path, 'user.mine'), lambda: os.chmod(path, 0o4755))))
";
    let full = "\
ENOENT ENOENT ENOENT ENOENT ENOTSUP EPERM ENOTSUP EPERM
ENOENT ENOENT ENOENT ENOENT ENOTSUP EPERM ENOTSUP EPERM
ENOENT ENOENT ENOENT ENOENT ENOTSUP EPERM ENOTSUP EPERM
EROFS EROFS EROFS EROFS ENOTSUP EPERM ENOTSUP EPERM
done done done EINVAL ENOTSUP EPERM ENOTSUP EPERM
";
    // Without a file system of its own, it changes its own files only if its user has no others.
    let own = if is_root() { "done EPERM done" } else { "EPERM EPERM EPERM" };
    let others = "EPERM EPERM EPERM EPERM ENOTSUP EPERM ENOTSUP EPERM\n".repeat(4);
    let less = format!("{others}{own} EPERM ENOTSUP EPERM ENOTSUP EPERM\n");
    for (level, expected) in LEVELS.into_iter().zip([full, &less]) {
        assert_eq!(printed(level, &canary.lines(), source).await, expected, "{level}");
        canary.assert_untouched(level);
    }
}

#[tokio::test]
async fn nothing_is_written_outside_of_the_work_folder() {
    let source = "
import uuid
name = 'toolbus-attack-' + given[0]
for folder in ('/', '/etc', '/usr', '/usr/lib', '/usr/lib/python3', '/usr/local/bin', '/usr/local/lib', '/var/tmp', '/run', '/home',
        '/root', '/opt', '/srv', '/dev', '/sys', '/proc/self', '/lib', '/usr/bin', '..'):
    for what in (lambda: open(folder + '/' + name, 'w'), lambda: os.mkdir(folder + '/' + name), lambda: os.symlink('x', folder + '/' + name)):
        found = tried(what)
        if found not in ('EACCES', 'ENOENT', 'EROFS'): print(folder, found)
print(tried(lambda: open('/tmp/' + name, 'w').close()), tried(lambda: open('/dev/shm/' + name, 'w').close()))
";
    for level in LEVELS {
        let name = format!("{}-{level}", std::process::id());
        // With a file system of its own, both lead to the script's own temporary files.
        let temporary = if level == Level::Full { "done done\n" } else { "EACCES EACCES\n" };
        assert_eq!(printed(level, &name, source).await, temporary, "{level}");
        for folder in ["/", "/etc", "/usr/lib", "/usr/local/lib", "/var/tmp", "/tmp", "/dev/shm", "/usr/bin"] {
            assert!(!std::path::Path::new(folder).join(format!("toolbus-attack-{name}")).exists(), "{level}: {folder}");
        }
    }
}

#[tokio::test]
async fn devices_of_the_machine_cannot_be_opened() {
    let source = "
others = ['/dev/' + name for name in ('mem', 'kmem', 'port', 'kmsg', 'vda', 'sda', 'nvme0n1', 'loop0', 'loop-control', 'fuse', 'kvm',
    'net/tun', 'ptmx', 'pts/0', 'pts/ptmx', 'tty', 'tty0', 'console', 'vcs', 'hpet', 'rtc0', 'uinput', 'userfaultfd', 'mapper/control')]
for path in others:
    for how in os.O_RDONLY, os.O_RDWR, os.O_WRONLY:
        found = tried(lambda: os.open(path, how))
        if found not in ('EACCES', 'ENOENT'): print(path, found)
print(tried(lambda: os.mkfifo('pipe')), tried(lambda: os.mknod('device', 0o600 | 0o020000, os.makedev(1, 1))))
print(open('/dev/urandom', 'rb').read(2) != b'', open('/dev/null', 'wb').write(b'x'), tried(lambda: open('/dev/full', 'wb', 0).write(b'x')))
";
    assert_printed("", source, ["EPERM EPERM\nTrue 1 ENOSPC\n"; 2]).await;
}

#[tokio::test]
async fn what_lies_in_the_folders_of_the_interpreter_is_read_and_not_changed() {
    let canary = Canary::new();
    let source = "
folder, private, public = given
print(tried(lambda: open(private).read()), open(public).read(), tried(lambda: open(public, 'w')), tried(lambda: os.unlink(public)),
    tried(lambda: open(folder + '/new', 'w')))
";
    for level in LEVELS {
        let mut settings = settings(level).await;
        settings.interpreter.read.push(canary.paths()[1].parent().unwrap().to_owned());
        let found = stdout(&runner_with(settings).await.run(attack(&canary.lines(), source)).await.unwrap());
        // What only the daemon's user may read, another user does not; who runs as the daemon's reads it.
        let (private, rest) = found.split_once(' ').unwrap();
        assert!(["EACCES", "the"].contains(&private), "{level}: {found}");
        let error = if level == Level::Full { "EROFS" } else { "EACCES" };
        assert_eq!(rest.rsplit_once(SECRET).unwrap().1, format!(" {error} {error} {error}\n"), "{level}: {found}");
        canary.assert_untouched(level);
    }
}
