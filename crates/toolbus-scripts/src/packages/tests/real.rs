//! The real pip, with wheels in a folder instead of an index.

use super::*;
use crate::testing::{LEVELS, sandbox};

/// Makes wheels of some packages, of which `app` needs `lib`. `lib` is there in two versions.
const WHEELS: &str = r#"
import sys, zipfile
for name, version, needs in [('app', '1.0', 'lib'), ('lib', '1.0', ''), ('lib', '2.0', '')]:
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
        let asked = std::process::Command::new(&interpreter.program).args(["-I", "-m", "pip", "--version"]).output();
        if asked.unwrap().status.success() {
            return interpreter;
        }
    }
    panic!("these tests need a Python with pip");
}

struct Index {
    folder: tempfile::TempDir,
    interpreter: Interpreter,
}

impl Index {
    async fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o755)).unwrap();
        let interpreter = interpreter().await;
        fs::create_dir(folder.path().join("wheels")).unwrap();
        let made = std::process::Command::new(&interpreter.program)
            .args(["-c", WHEELS])
            .arg(folder.path().join("wheels"))
            .status();
        assert!(made.unwrap().success());
        Self { folder, interpreter }
    }

    fn open(&self, sandbox: Option<&Sandbox>) -> PackageCache {
        let settings = PackageSettings {
            allow: AllowedPackages::parse(&["app", "lib"]).unwrap(),
            timeout: Duration::from_secs(120),
            max_size: 16 * 1024 * 1024,
            cache: self.folder.path().join("cache"),
            max_cache: 1024 * 1024 * 1024,
            ttl: Duration::from_secs(3600),
            index_url: None,
        };
        let wheels = self.folder.path().join("wheels");
        let daemon = [
            ("PATH".into(), "/usr/bin:/bin".into()),
            ("PIP_NO_INDEX".into(), "1".into()),
            ("PIP_FIND_LINKS".into(), wheels.into_os_string()),
        ];
        PackageCache::open_with(settings, &self.interpreter, sandbox, daemon).unwrap()
    }

    /// What a script prints that has these packages.
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
    }
}

#[tokio::test]
async fn packages_come_with_what_they_need() {
    Index::new().await.check(None).await;
}

#[tokio::test]
async fn pip_does_its_work_in_the_sandbox() {
    for level in LEVELS {
        Index::new().await.check(Some(&sandbox(level))).await;
    }
}
