use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;

use serde_json::Value;
use tokio_util::task::TaskTracker;
use toolbus_config::{HumanDuration, LargeSize, Secret};
use toolbus_testing::patience::eventually;

use super::*;
use crate::testing::{LEVELS, sandbox};
use toolbus_sandbox::Level;

/// Longest life of a session.
const LIFETIME: Duration = Duration::from_secs(2 * 3600);

/// A folder with something that behaves as an interpreter with pip would: it notes each run, and runs `behaviour`,
/// in which `$target` is the folder and `$packages` are the packages.
struct PipFixture {
    folder: tempfile::TempDir,
}

/// Installs every package in version 1.0, or the one in the file `version`.
const INSTALL: &str = r#"
version=$(cat "$here/version" 2>/dev/null || echo 1.0)
for package in $packages; do
    name=${package%%[=<>!~[]*}
    mkdir -p "$target/$name-$version.dist-info" "$target/$name"
    printf 12345 > "$target/$name/__init__.py"
done
"#;

impl PipFixture {
    fn new(behaviour: &str) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let script = format!(
            r#"#!/bin/sh
here=$(dirname "$0")
echo "$@" | tr '\n' ' ' | sed 's/.*alter_sys=True) *//' >> "$here/runs"; echo >> "$here/runs"
while [ "$1" != --target ]; do shift; done
target=$2; shift 3; packages="$*"
{behaviour}
"#
        );
        fs::write(folder.path().join("python"), script).unwrap();
        fs::set_permissions(folder.path().join("python"), fs::Permissions::from_mode(0o755)).unwrap();
        Self { folder }
    }

    fn config(&self) -> PackagesConfig {
        PackagesConfig {
            allow: vec!["*".to_owned()],
            timeout: HumanDuration::from_secs(60),
            max_size: LargeSize::from_mib(1),
            cache: self.path("cache"),
            max_cache: LargeSize::from_mib(10),
            ttl: HumanDuration::from_secs(3600),
            index_url: None,
        }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn open(&self, config: &PackagesConfig) -> PackageCache {
        let interpreter = Interpreter {
            program: self.path("python"),
            read: Vec::new(),
            version: "3.11.7".to_owned(),
            abi: "cpython-311".to_owned(),
        };
        let daemon = [("PATH".into(), "/usr/bin:/bin".into())];
        PackageCache::open_with(config, LIFETIME, &interpreter, None, daemon).unwrap()
    }

    fn cache(&self) -> PackageCache {
        self.cache_with(|_| {})
    }

    /// A cache whose configuration is changed.
    fn cache_with(&self, change: impl FnOnce(&mut PackagesConfig)) -> PackageCache {
        let mut config = self.config();
        change(&mut config);
        self.open(&config)
    }

    /// Arguments of pip, run by run.
    fn runs(&self) -> Vec<String> {
        let runs = fs::read_to_string(self.path("runs")).unwrap_or_default();
        let targetless =
            |run: &str| run.split_whitespace().filter(|word| !word.starts_with('/')).collect::<Vec<_>>().join(" ");
        runs.lines().filter(|line| !line.trim().is_empty()).map(targetless).collect()
    }
}

async fn install(cache: &PackageCache, packages: &[&str]) -> Result<PathBuf, PackageError> {
    let packages = Requirement::parse_all(packages).unwrap();
    cache.install(&packages, Clock::SYSTEM.now() + Duration::from_secs(120)).await
}

async fn refused(fixture: &PipFixture, packages: &[&str]) -> String {
    install(&fixture.cache(), packages).await.unwrap_err().to_string()
}

fn names(folder: &Path) -> Vec<String> {
    let entries = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap());
    let mut names: Vec<String> = entries.collect();
    names.sort();
    names
}

#[tokio::test]
async fn pip_is_run_once_with_fixed_options_and_a_folder_of_packages_comes_of_it() {
    let fixture = PipFixture::new(INSTALL);
    let set = install(&fixture.cache(), &["numpy", "requests>=2"]).await.unwrap();
    assert_eq!(names(&set), ["numpy", "numpy-1.0.dist-info", "requests", "requests-1.0.dist-info"]);
    assert_eq!(
        fixture.runs(),
        [
            "install --only-binary :all: --no-input --disable-pip-version-check --no-cache-dir --progress-bar off --target \
         -- numpy requests>=2"
        ]
    );
    assert_eq!(names(&fixture.path("cache/new")), Vec::<String>::new());
    let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o7777;
    assert_eq!((mode(&set), mode(&set.join("numpy")), mode(&set.join("numpy/__init__.py"))), (0o555, 0o555, 0o444));
    assert_eq!(mode(&fixture.path("cache/new")), 0o711, "another user cannot list the folder of an unfinished package");
}

#[tokio::test]
async fn a_package_that_is_not_allowed_is_refused_before_anything_runs() {
    let fixture = PipFixture::new(INSTALL);
    let allow = ["numpy", "requests==2.31.0"].map(str::to_owned);
    let cache = fixture.cache_with(|config| config.allow = allow.into());
    let error = install(&cache, &["numpy", "evil"]).await.unwrap_err();
    assert_eq!(
        error,
        PackageError::Refused("package 'evil' is not allowed here; allowed are: numpy, requests==2.31.0".to_owned())
    );
    assert!(fixture.runs().is_empty());
    install(&cache, &["requests"]).await.unwrap();
    assert!(fixture.runs()[0].ends_with("-- requests==2.31.0"), "{:?}", fixture.runs());
}

#[tokio::test]
async fn a_failure_of_pip_is_shown_without_credentials_and_paths() {
    let fixture =
        PipFixture::new("echo \"ERROR: no $packages in https://u:hunter2@index.example/ for $target\" >&2; exit 1");
    assert_eq!(
        refused(&fixture, &["numpy"]).await,
        "pip install failed (exit 1):\nERROR: no numpy in https://***@index.example/ for target"
    );
    assert_eq!(names(&fixture.path("cache/new")), Vec::<String>::new());
    let fixture = PipFixture::new("echo 'nothing on standard error'; exit 23");
    assert_eq!(refused(&fixture, &["numpy"]).await, "pip install failed (exit 23):\nnothing on standard error");
    let fixture = PipFixture::new("kill -KILL $$");
    assert_eq!(refused(&fixture, &["numpy"]).await, "pip install failed (exit -1):\npip was ended by signal 9");
}

#[tokio::test]
async fn pip_that_takes_too_long_is_ended() {
    let fixture = PipFixture::new("sleep 1000");
    let hasty = fixture.cache_with(|config| config.timeout = HumanDuration::from_secs(1));
    let error = install(&hasty, &["numpy"]).await.unwrap_err();
    assert_eq!(error.to_string(), "pip install timed out after 1s");

    let packages = Requirement::parse_all(&["numpy"]).unwrap();
    let deadline = Clock::SYSTEM.now() + Duration::from_millis(1500);
    let error = fixture.cache().install(&packages, deadline).await.unwrap_err();
    assert_eq!(error, PackageError::TimedOut { seconds: 1 });
}

#[tokio::test]
async fn packages_that_are_too_large_are_refused_and_not_kept() {
    let fixture = PipFixture::new(&format!("{INSTALL}\nhead -c 2000000 /dev/zero > $target/large"));
    assert_eq!(
        refused(&fixture, &["numpy"]).await,
        "pip install failed (exit -1):\nthe packages are larger than 1 MiB; ask for fewer or smaller ones"
    );
    assert_eq!(names(&fixture.path("cache/sets")), Vec::<String>::new());
}

#[tokio::test]
async fn a_package_with_forbidden_content_is_not_kept() {
    let fixture = PipFixture::new(&format!("{INSTALL}\nln -s /etc/passwd $target/link"));
    let error = install(&fixture.cache(), &["numpy"]).await.unwrap_err();
    assert!(matches!(error, PackageError::Unavailable(_)), "{error}");
    let fixture = PipFixture::new("true");
    let error = install(&fixture.cache(), &["numpy"]).await.unwrap_err();
    assert_eq!(
        error.to_string(),
        "the folder of packages (script.packages.cache) cannot be used: pip installed nothing"
    );
    assert_eq!(names(&fixture.path("cache/sets")), Vec::<String>::new());
}

#[tokio::test]
async fn a_dropped_request_does_not_end_an_installation_that_another_waits_for() {
    let fixture =
        PipFixture::new(&format!("touch $here/begun; while [ ! -e $here/go ]; do sleep 0.05; done\n{INSTALL}"));
    let cache = fixture.cache();
    let packages = Requirement::parse_all(&["numpy"]).unwrap();
    let mut first = cache.install(&packages, Clock::SYSTEM.now() + Duration::from_secs(120));
    tokio::select! {
        ended = &mut first => panic!("{ended:?}"),
        () = eventually("pip", async || fixture.path("begun").exists().then_some(())) => {}
    }
    let second = TaskTracker::new().spawn({
        let (cache, packages) = (cache.clone(), packages.clone());
        async move { cache.install(&packages, Clock::SYSTEM.now() + Duration::from_secs(120)).await }
    });
    // The second has joined once it holds what is running as well.
    eventually("the second", async || (holders(&cache) > 1).then_some(())).await;
    drop(first);
    fs::write(fixture.path("go"), "").unwrap();
    second.await.unwrap().unwrap();
    assert_eq!(fixture.runs().len(), 1);
}

/// Number of requests that wait for a running installation.
fn holders(cache: &PackageCache) -> usize {
    let running = cache.inner.running.lock();
    let one = running.values().find_map(WeakShared::upgrade);
    // The one that is looked at is a holder, too.
    one.and_then(|one| one.strong_count()).map_or(0, |count| count - 1)
}

/// Makes it look as if a folder had not been used for a day.
fn leave_alone(folder: &Path) {
    leave_alone_for(folder, Duration::from_secs(24 * 3600));
}

fn leave_alone_for(folder: &Path, time: Duration) {
    fs::File::open(folder).unwrap().set_modified(Clock::SYSTEM.wall() - time).unwrap();
}

#[tokio::test]
async fn equal_requests_install_once_also_after_a_restart() {
    let fixture = PipFixture::new(INSTALL);
    let first = install(&fixture.cache(), &["b", "a>=1"]).await.unwrap();
    let cache = fixture.cache();
    assert_eq!(install(&cache, &["A>=1", "b", "b"]).await.unwrap(), first);
    assert_eq!(fixture.runs().len(), 1);
    install(&cache, &["b"]).await.unwrap();
    assert_eq!(fixture.runs().len(), 2);
}

#[tokio::test]
async fn requests_at_the_same_time_install_once() {
    let fixture = PipFixture::new(INSTALL);
    let cache = fixture.cache();
    let sets = futures_util::future::join_all((0..8).map(|_| install(&cache, &["numpy"]))).await;
    assert!(sets.iter().all(|set| set.is_ok() && *set == sets[0]), "{sets:?}");
    assert_eq!(fixture.runs().len(), 1);
}

#[tokio::test]
async fn requests_that_lead_to_the_same_versions_share_them() {
    let fixture = PipFixture::new(INSTALL);
    let cache = fixture.cache();
    let first = install(&cache, &["numpy"]).await.unwrap();
    assert_eq!(install(&cache, &["numpy==1.0"]).await.unwrap(), first);
    assert_eq!((fixture.runs().len(), names(&fixture.path("cache/sets")).len()), (2, 1));
}

#[tokio::test]
async fn names_without_a_version_are_looked_for_again_and_named_versions_are_not() {
    let fixture = PipFixture::new(INSTALL);
    let cache = fixture.cache_with(|config| config.ttl = HumanDuration::from_secs(0));
    let old = install(&cache, &["numpy"]).await.unwrap();
    let pinned = install(&cache, &["requests==1.0"]).await.unwrap();
    fs::write(fixture.path("version"), "2.0").unwrap();
    let new = install(&cache, &["numpy"]).await.unwrap();
    assert_eq!(names(&new), ["numpy", "numpy-2.0.dist-info"]);
    assert!(old != new && old.is_dir(), "a script may still use the old one");
    assert_eq!(install(&cache, &["requests==1.0"]).await.unwrap(), pinned);
    assert_eq!(fixture.runs().len(), 3);
}

#[tokio::test]
async fn packages_of_one_index_are_not_used_for_another() {
    let fixture = PipFixture::new(INSTALL);
    let first = install(&fixture.cache(), &["numpy"]).await.unwrap();
    let other = fixture.cache_with(|config| config.index_url = Some(Secret::new("https://own.example/")));
    let second = install(&other, &["numpy"]).await.unwrap();
    assert_eq!(fixture.runs().len(), 2);
    assert_ne!(first, second, "of two indexes, the same name and version may be something else");
}

#[tokio::test]
async fn the_least_recently_used_packages_are_removed_when_the_cache_is_full() {
    let fixture = PipFixture::new(INSTALL);
    let cache = fixture.cache_with(|config| config.max_cache = "12B".parse().unwrap());
    let (a, b) = (install(&cache, &["a"]).await.unwrap(), install(&cache, &["b"]).await.unwrap());
    let c = install(&cache, &["c"]).await.unwrap();
    assert!(a.is_dir() && b.is_dir() && c.is_dir(), "what was used just now stays, though there is too much");

    leave_alone(&a);
    leave_alone(&b);
    install(&cache, &["a"]).await.unwrap();
    let d = install(&cache, &["d"]).await.unwrap();
    assert!(a.is_dir() && !b.exists() && c.is_dir() && d.is_dir());
    assert_eq!(names(&fixture.path("cache/asked")).len(), 3, "and what led to it");
    assert_eq!(names(&fixture.path("cache/new")), Vec::<String>::new());

    // It is installed again when it is wanted.
    install(&cache, &["b"]).await.unwrap();
    assert_eq!(fixture.runs().len(), 5);
}

/// Packages of a session that lived longer than an hour were removed under it.
#[tokio::test]
async fn packages_stay_as_long_as_a_session_may_live() {
    let fixture = PipFixture::new(INSTALL);
    let cache = fixture.cache_with(|config| config.max_cache = "1B".parse().unwrap());
    let set = install(&cache, &["a"]).await.unwrap();
    for (age, stays) in [(LIFETIME - Duration::from_secs(60), true), (LIFETIME + Duration::from_secs(60), false)] {
        leave_alone_for(&set, age);
        install(&cache, &[if stays { "b" } else { "c" }]).await.unwrap();
        assert_eq!(set.is_dir(), stays, "{age:?}");
    }
}

/// Each request that led to a set that was there already left a file.
#[tokio::test]
async fn of_many_requests_for_the_same_packages_the_newest_are_known() {
    let fixture = PipFixture::new(INSTALL);
    let cache = fixture.cache();
    install(&cache, &["a"]).await.unwrap();
    let folder = fixture.path("cache/asked");
    let newest = names(&folder).remove(0);
    let mut older: Value = serde_json::from_slice(&fs::read(folder.join(&newest)).unwrap()).unwrap();
    older["at"] = 1.into();
    for number in 0..store::MAX_RESOLUTIONS {
        fs::write(folder.join(format!("{number}.json")), older.to_string()).unwrap();
    }
    install(&cache, &["b"]).await.unwrap();
    let kept = names(&folder);
    assert!(kept.len() == store::MAX_RESOLUTIONS && kept.contains(&newest), "{}", kept.len());
}

#[tokio::test]
async fn an_unfinished_installation_is_removed_at_the_next_start() {
    let fixture = PipFixture::new(INSTALL);
    drop(fixture.cache());
    let left = fixture.path("cache/new/1-left");
    fs::create_dir_all(left.join("target/numpy")).unwrap();
    fs::set_permissions(left.join("target"), fs::Permissions::from_mode(0o555)).unwrap();
    leave_alone(&left);
    // Another process works on this one, and this one is too young to be locked already.
    let (busy, young) = (fixture.path("cache/new/2-busy"), fixture.path("cache/new/3-young"));
    fs::create_dir(&busy).unwrap();
    fs::create_dir(&young).unwrap();
    leave_alone(&busy);
    let lock = fs::File::open(&busy).unwrap();
    rustix::fs::flock(&lock, rustix::fs::FlockOperation::LockExclusive).unwrap();

    drop(fixture.cache());
    assert!(!left.exists() && busy.exists() && young.exists());
    drop(lock);
    drop(fixture.cache());
    assert!(!busy.exists());
}

#[tokio::test]
async fn an_unreadable_record_is_ignored() {
    let fixture = PipFixture::new(INSTALL);
    install(&fixture.cache(), &["numpy"]).await.unwrap();
    for file in names(&fixture.path("cache/asked")) {
        fs::write(fixture.path("cache/asked").join(file), "{").unwrap();
    }
    install(&fixture.cache(), &["numpy"]).await.unwrap();
    assert_eq!(fixture.runs().len(), 2);
}

// The real pip, with wheels in a folder instead of an index.

/// Makes wheels of some packages, of which `app` needs `lib`. `lib` is there in two versions. `odd` names an address
/// for it, and `app` does so for an extra that was not requested.
const WHEELS: &str = r#"
import sys, zipfile
at = f'lib @ http://{sys.argv[2]}/lib-9.0-py3-none-any.whl'
app = f'lib\nProvides-Extra: dev\nRequires-Dist: {at} ; extra == "dev"'
for name, version, needs in [('app', '1.0', app), ('lib', '1.0', ''), ('lib', '2.0', ''), ('odd', '1.0', at)]:
    info = f'{name}-{version}.dist-info'
    metadata = f'Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n' + (f'Requires-Dist: {needs}\n' if needs else '')
    with zipfile.ZipFile(f'{sys.argv[1]}/{name}-{version}-py3-none-any.whl', 'w') as wheel:
        wheel.writestr(f'{name}/__init__.py', f'version = {version!r}\n')
        wheel.writestr(f'{info}/METADATA', metadata)
        wheel.writestr(f'{info}/WHEEL', 'Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n')
        wheel.writestr(f'{info}/entry_points.txt', f'[console_scripts]\n{name} = {name}:main\n')
        wheel.writestr(f'{info}/RECORD', '')
"#;

/// An interpreter with pip, the system's first: other users can run it, whatever runs these tests.
async fn interpreter() -> Interpreter {
    for command in ["/usr/bin/python3", "/usr/local/bin/python3", "python3"] {
        let Ok(interpreter) = Interpreter::find(command).await else { continue };
        let output = std::process::Command::new(&interpreter.program).args(["-I", "-m", "pip", "--version"]).output();
        if output.unwrap().status.success() {
            return interpreter;
        }
    }
    panic!("these tests need a Python with pip");
}

struct WheelFolder {
    folder: tempfile::TempDir,
    interpreter: Interpreter,
    /// Listener at the address that packages name.
    elsewhere: std::net::TcpListener,
}

impl WheelFolder {
    async fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o755)).unwrap();
        let interpreter = interpreter().await;
        fs::create_dir(folder.path().join("wheels")).unwrap();
        let elsewhere = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        elsewhere.set_nonblocking(true).unwrap();
        let made = std::process::Command::new(&interpreter.program)
            .args(["-c", WHEELS])
            .arg(folder.path().join("wheels"))
            .arg(elsewhere.local_addr().unwrap().to_string())
            .status();
        assert!(made.unwrap().success());
        Self { folder, interpreter, elsewhere }
    }

    fn open(&self, sandbox: Option<&Sandbox>) -> PackageCache {
        let config = PackagesConfig {
            allow: ["app", "lib", "odd"].map(str::to_owned).into(),
            timeout: HumanDuration::from_secs(120),
            max_size: LargeSize::from_mib(16),
            cache: self.folder.path().join("cache"),
            max_cache: LargeSize::from_gib(1),
            ttl: HumanDuration::from_secs(3600),
            index_url: Some(Secret::new(format!("file://{}/wheels", self.folder.path().display()))),
        };
        // Of the machine's configuration, which does not count.
        let daemon =
            [("PATH", "/usr/bin:/bin"), ("PIP_NO_INDEX", "0"), ("PIP_FIND_LINKS", "/no"), ("PIP_REQUIRE_HASHES", "1")];
        let daemon = daemon.map(|(name, value)| (name.into(), value.into()));
        PackageCache::open_with(&config, LIFETIME, &self.interpreter, sandbox, daemon).unwrap()
    }

    /// Output of a script that has these packages.
    fn run(&self, set: &Path, script: &str) -> String {
        let output = std::process::Command::new(&self.interpreter.program)
            .args(["-c", script])
            .env("PYTHONPATH", set)
            .output()
            .unwrap();
        assert!(output.status.success(), "{output:?}");
        String::from_utf8(output.stdout).unwrap()
    }

    async fn check(&self, sandbox: Option<&Sandbox>) {
        let cache = self.open(sandbox);
        let set = install(&cache, &["app"]).await.unwrap();
        assert_eq!(self.run(&set, "import app, lib; print(app.version, lib.version)"), "1.0 2.0\n");
        let older = install(&cache, &["app", "lib<2"]).await.unwrap();
        assert_eq!(self.run(&older, "import app, lib; print(app.version, lib.version)"), "1.0 1.0\n");

        let error = install(&cache, &["lib==3.0"]).await.unwrap_err().to_string();
        assert!(error.starts_with("pip install failed (exit 1):\nERROR: Could not find a version"), "{error}");
        assert!(error.contains("lib==3.0") && error.contains("1.0, 2.0"), "{error}");
        assert!(error.ends_with("no package or version that exists as source alone."), "{error}");
    }

    /// Checks that no package comes from an address which another package names.
    async fn check_addresses(&self, sandbox: Option<&Sandbox>) {
        let error = install(&self.open(sandbox), &["odd"]).await.unwrap_err().to_string();
        assert!(error.contains("odd requires lib from an address. Packages come from the index alone."), "{error}");
        assert_eq!(self.elsewhere.accept().unwrap_err().kind(), io::ErrorKind::WouldBlock, "nothing has connected");
    }
}

#[tokio::test]
async fn packages_come_with_what_they_need() {
    WheelFolder::new().await.check(None).await;
}

#[tokio::test]
async fn pip_does_its_work_in_the_sandbox() {
    for level in LEVELS {
        WheelFolder::new().await.check(Some(&sandbox(level))).await;
    }
}

#[tokio::test]
async fn a_package_that_names_an_address_for_another_is_refused_and_the_address_is_not_called() {
    WheelFolder::new().await.check_addresses(None).await;
    WheelFolder::new().await.check_addresses(Some(&sandbox(Level::Full))).await;
}
