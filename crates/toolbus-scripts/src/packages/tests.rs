mod keeping;
mod real;

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;

use toolbus_testing::patience::eventually;

use super::*;

/// A folder with something that behaves as an interpreter with pip would: it notes each run, and does what `behaviour`
/// says, in which `$target` is the folder and `$packages` are the packages.
struct World {
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

impl World {
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

    fn settings(&self) -> PackageSettings {
        PackageSettings {
            allow: AllowedPackages::parse(&["*"]).unwrap(),
            timeout: Duration::from_secs(60),
            max_size: 1024 * 1024,
            cache: self.path("cache"),
            max_cache: 10 * 1024 * 1024,
            ttl: Duration::from_secs(3600),
            index_url: None,
        }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn open(&self, settings: PackageSettings) -> PackageCache {
        let interpreter = Interpreter {
            program: self.path("python"),
            read: Vec::new(),
            version: "3.11.7".to_owned(),
            abi: "cpython-311".to_owned(),
        };
        let daemon = [("PATH".into(), "/usr/bin:/bin".into())];
        PackageCache::open_with(settings, &interpreter, None, daemon).unwrap()
    }

    fn cache(&self) -> PackageCache {
        self.open(self.settings())
    }

    /// What pip was told, run by run.
    fn runs(&self) -> Vec<String> {
        let runs = fs::read_to_string(self.path("runs")).unwrap_or_default();
        let targetless =
            |run: &str| run.split_whitespace().filter(|word| !word.starts_with('/')).collect::<Vec<_>>().join(" ");
        runs.lines().filter(|line| !line.trim().is_empty()).map(targetless).collect()
    }
}

async fn install(cache: &PackageCache, packages: &[&str]) -> Result<PathBuf, PackageError> {
    let packages = Requirement::parse_all(packages).unwrap();
    cache.install(&packages, Instant::now() + Duration::from_secs(120)).await
}

async fn refused(world: &World, packages: &[&str]) -> String {
    install(&world.cache(), packages).await.unwrap_err().to_string()
}

fn names(folder: &Path) -> Vec<String> {
    let entries = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap());
    let mut names: Vec<String> = entries.collect();
    names.sort();
    names
}

#[tokio::test]
async fn pip_is_run_once_with_fixed_options_and_a_folder_of_packages_comes_of_it() {
    let world = World::new(INSTALL);
    let set = install(&world.cache(), &["numpy", "requests>=2"]).await.unwrap();
    assert_eq!(names(&set), ["numpy", "numpy-1.0.dist-info", "requests", "requests-1.0.dist-info"]);
    assert_eq!(
        world.runs(),
        [
            "install --only-binary :all: --no-input --disable-pip-version-check --no-cache-dir --progress-bar off --target \
         -- numpy requests>=2"
        ]
    );
    assert_eq!(names(&world.path("cache/new")), Vec::<String>::new());
    let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o7777;
    assert_eq!((mode(&set), mode(&set.join("numpy")), mode(&set.join("numpy/__init__.py"))), (0o555, 0o555, 0o444));
    assert_eq!(mode(&world.path("cache/new")), 0o711, "nobody else finds what is being made");
}

#[tokio::test]
async fn a_package_that_is_not_allowed_is_refused_before_anything_runs() {
    let world = World::new(INSTALL);
    let mut settings = world.settings();
    settings.allow = AllowedPackages::parse(&["numpy", "requests==2.31.0"]).unwrap();
    let cache = world.open(settings);
    let error = install(&cache, &["numpy", "evil"]).await.unwrap_err();
    assert_eq!(
        error,
        PackageError::Refused("package 'evil' is not allowed here; allowed are: numpy, requests==2.31.0".to_owned())
    );
    assert!(world.runs().is_empty());
    install(&cache, &["requests"]).await.unwrap();
    assert!(world.runs()[0].ends_with("-- requests==2.31.0"), "{:?}", world.runs());
}

#[tokio::test]
async fn what_pip_says_of_its_failure_is_told_without_credentials_and_paths() {
    let world = World::new("echo \"ERROR: no $packages in https://u:hunter2@index.example/ for $target\" >&2; exit 1");
    assert_eq!(
        refused(&world, &["numpy"]).await,
        "pip install failed (exit 1):\nERROR: no numpy in https://***@index.example/ for target"
    );
    assert_eq!(names(&world.path("cache/new")), Vec::<String>::new());
    let world = World::new("echo 'nothing on standard error'; exit 23");
    assert_eq!(refused(&world, &["numpy"]).await, "pip install failed (exit 23):\nnothing on standard error");
    let world = World::new("kill -KILL $$");
    assert_eq!(refused(&world, &["numpy"]).await, "pip install failed (exit -1):\npip was ended by signal 9");
}

#[tokio::test]
async fn pip_that_takes_too_long_is_ended() {
    let world = World::new("sleep 1000");
    let mut settings = world.settings();
    settings.timeout = Duration::from_secs(1);
    let error = install(&world.open(settings), &["numpy"]).await.unwrap_err();
    assert_eq!(error.to_string(), "pip install timed out after 1s");

    let packages = Requirement::parse_all(&["numpy"]).unwrap();
    let deadline = Instant::now() + Duration::from_millis(1500);
    let error = world.cache().install(&packages, deadline).await.unwrap_err();
    assert_eq!(error, PackageError::TimedOut { seconds: 1 });
}

#[tokio::test]
async fn packages_that_are_too_large_are_refused_and_not_kept() {
    let world = World::new(&format!("{INSTALL}\nhead -c 2000000 /dev/zero > $target/large"));
    assert_eq!(
        refused(&world, &["numpy"]).await,
        "pip install failed (exit -1):\nthe packages are larger than 1 MiB; ask for fewer or smaller ones"
    );
    assert_eq!(names(&world.path("cache/sets")), Vec::<String>::new());
}

#[tokio::test]
async fn what_must_not_be_in_a_package_is_not_kept() {
    let world = World::new(&format!("{INSTALL}\nln -s /etc/passwd $target/link"));
    let error = install(&world.cache(), &["numpy"]).await.unwrap_err();
    assert!(matches!(error, PackageError::Unavailable(_)), "{error}");
    let world = World::new("true");
    let error = install(&world.cache(), &["numpy"]).await.unwrap_err();
    assert_eq!(error.to_string(), "the folder of packages cannot be used: pip installed nothing");
    assert_eq!(names(&world.path("cache/sets")), Vec::<String>::new());
}

#[tokio::test]
async fn one_who_waits_no_longer_does_not_end_what_another_waits_for() {
    let world = World::new(&format!("touch $here/begun; while [ ! -e $here/go ]; do sleep 0.05; done\n{INSTALL}"));
    let cache = world.cache();
    let packages = Requirement::parse_all(&["numpy"]).unwrap();
    let mut first = cache.install(&packages, Instant::now() + Duration::from_secs(120));
    tokio::select! {
        ended = &mut first => panic!("{ended:?}"),
        () = eventually("pip", async || world.path("begun").exists().then_some(())) => {}
    }
    let second = tokio::spawn({
        let (cache, packages) = (cache.clone(), packages.clone());
        async move { cache.install(&packages, Instant::now() + Duration::from_secs(120)).await }
    });
    // The second has joined once it holds what is running as well.
    eventually("the second", async || (holders(&cache) > 1).then_some(())).await;
    drop(first);
    fs::write(world.path("go"), "").unwrap();
    second.await.unwrap().unwrap();
    assert_eq!(world.runs().len(), 1);
}

/// How many wait for what is being installed.
fn holders(cache: &PackageCache) -> usize {
    let running = cache.inner.running.lock().unwrap();
    let one = running.values().find_map(WeakShared::upgrade);
    // The one that is looked at is a holder, too.
    one.and_then(|one| one.strong_count()).map_or(0, |count| count - 1)
}
