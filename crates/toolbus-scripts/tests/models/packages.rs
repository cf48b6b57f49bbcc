//! Scripts with numpy, pandas and matplotlib: tables come back as text, and figures as images.

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt as _;
use std::path::PathBuf;
use std::process::Command;
use std::sync::Arc;
use std::time::Instant;

use futures_util::FutureExt as _;
use futures_util::future::{BoxFuture, ready};
use insta::assert_snapshot;
use serde_json::{Value, json};
use toolbus_sandbox::Level;
use toolbus_scripts::config::PoolMode;
use toolbus_scripts::packages::{Installer, PackageError};
use toolbus_scripts::requirement::Requirement;
use toolbus_testing::patience::eventually;

use crate::fixture::{Setup, Starts, Steps};

const LEVELS: [Level; 2] = [Level::Full, Level::NoNamespaces];
/// Packages that scripts may request here.
const ALLOWED: [&str; 3] = ["matplotlib", "numpy", "pandas"];
/// A search whose tries run in processes of their own, which import the package again.
const SEARCH: &str = "
from sklearn.datasets import load_iris
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import GridSearchCV

features, kinds = load_iris(return_X_y=True)
search = GridSearchCV(LogisticRegression(max_iter=500), {'C': [0.1, 1]}, cv=3, n_jobs=-1).fit(features, kinds)
print(search.best_params_, round(search.best_score_, 3))
";
/// Unpacks wheels, and has Python compile what scripts import.
const UNPACK: &str = "
import glob, sys, zipfile
for wheel in glob.glob(sys.argv[1] + '/*.whl'):
    zipfile.ZipFile(wheel).extractall(sys.argv[2])
sys.path.insert(0, sys.argv[2])
import matplotlib.pyplot, pandas
";

/// The wheels that `tests/run` has brought, unpacked where every user can read them.
struct Wheels(tempfile::TempDir);

impl Wheels {
    fn unpack() -> Arc<Self> {
        let wheels = std::env::var_os("TOOLBUS_WHEELS");
        assert!(wheels.is_some(), "TOOLBUS_WHEELS is not set: run ./tests/run");
        let folder = tempfile::tempdir_in("/var/tmp").unwrap();
        fs::set_permissions(folder.path(), Permissions::from_mode(0o755)).unwrap();
        let mut unpack = Command::new("/usr/bin/python3");
        unpack.args(["-c", UNPACK]).arg(wheels.unwrap()).arg(folder.path());
        let done = unpack.env("MPLBACKEND", "Agg").env("MPLCONFIGDIR", folder.path()).output().unwrap();
        assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
        Arc::new(Self(folder))
    }
}

impl Installer for Wheels {
    fn install<'a>(&'a self, _: &'a [Requirement], _: Instant) -> BoxFuture<'a, Result<PathBuf, PackageError>> {
        ready(Ok(self.0.path().to_owned())).boxed()
    }
}

fn setup(level: Level, wheels: &Arc<Wheels>) -> Setup {
    let installer: Arc<dyn Installer> = Arc::clone(wheels) as _;
    Setup { packages: Some((installer, &ALLOWED)), ..Setup::at(level) }
}

/// A script with all packages, and time to import them on a busy machine.
fn with_packages(script: &str) -> Value {
    let table = "day,city,sales\n2026-01-01,Bern,3\n2026-01-02,Bern,5\n2026-01-01,Oslo,4\n";
    json!({"script": script, "pip_packages": ALLOWED, "timeout_seconds": 60, "input_files": {"sales.csv": table}})
}

const GROUPED: &str = "
import pandas as pd

df = pd.read_csv('sales.csv', parse_dates=['day'])
df.groupby('city', as_index=False)['sales'].sum()
";
const CHART: &str = "
import matplotlib.pyplot as plt
import numpy as np

x = np.linspace(0, 2 * np.pi, 50)
plt.plot(x, np.sin(x), label='sin')
plt.title('Sine')
plt.legend()
plt.show()
";
const SAVED: &str = "
import os
import matplotlib.pyplot as plt
import pandas as pd

out = os.environ['TOOLBUS_OUTPUT']
df = pd.read_csv('sales.csv')
ax = df.pivot(index='day', columns='city', values='sales').plot.bar()
ax.figure.savefig(out + '/sales.png')
df.describe().to_csv(out + '/summary.csv')
print(f'{df.sales.mean():.2f}')
";
const TWO: &str = "
import matplotlib.pyplot as plt

for values in [1, 2], [2, 1]:
    plt.figure()
    plt.bar(['a', 'b'], values)
print(plt.get_fignums())
";
const WRONG: &str = "
import pandas as pd

pd.read_csv('sales.csv')['price'].mean()
";

#[tokio::test]
async fn tables_come_back_as_text_and_figures_as_images() {
    let wheels = Wheels::unpack();
    for level in LEVELS {
        let steps = Steps::of(setup(level, &wheels)).await;
        let mut results = Vec::new();
        for script in [GROUPED, CHART, SAVED, TWO] {
            results.push(steps.single(&with_packages(script)).await);
        }
        insta::allow_duplicates!(assert_snapshot!(results.join("\n--\n"), @r#"
           city  sales
        0  Bern      8
        1  Oslo      4
        --
        Files: figure-1.png
        [toolbus:output/figure-1.png image/png: iVBORw0KGgoAAAAN…]
        --
        4.00

        [toolbus:output/sales.png image/png: iVBORw0KGgoAAAAN…]
        [toolbus:output/summary.csv text/csv: ,sales
        count,3.0
        mean,4.0
        std,1.0
        min,3.0
        25%,3.5
        50%,4.0
        75%,4.5
        max,5.0]
        --
        [1, 2]

        [toolbus:output/figure-1.png image/png: iVBORw0KGgoAAAAN…]
        [toolbus:output/figure-2.png image/png: iVBORw0KGgoAAAAN…]
        "#));
        let wrong = steps.single(&with_packages(WRONG)).await;
        assert!(wrong.starts_with("isError: Script failed (exit 1):\n"), "{level}: {wrong}");
        assert!(wrong.ends_with("KeyError: 'price'\n"), "{level}: {wrong}");
        let without = steps.single(&json!({"script": GROUPED})).await;
        assert!(without.ends_with("\n[Ask for the package: pip_packages [\"pandas\"].]"), "{level}: {without}");
    }
}

#[tokio::test]
async fn a_session_works_on_a_table_step_by_step() {
    let wheels = Wheels::unpack();
    for level in LEVELS {
        let steps = Steps::of(setup(level, &wheels)).await;
        let mut results = vec![steps.result_of(&with_packages(GROUPED)).await];
        for script in [
            "df['tax'] = df['sales'] * 0.1\ndf.shape",
            "import matplotlib.pyplot as plt\n_ = df.plot.scatter('sales', 'tax')",
            "plt.get_fignums(), df.tax.round(2).tolist()",
        ] {
            results.push(steps.result(script).await);
        }
        insta::allow_duplicates!(assert_snapshot!(results.join("\n--\n"), @r#"
           city  sales
        0  Bern      8
        1  Oslo      4
        --
        (3, 4)
        --
        Files: figure-1.png
        [toolbus:output/figure-1.png image/png: iVBORw0KGgoAAAAN…]
        --
        ([], [0.3, 0.5, 0.4])
        "#));
        let large = "import numpy as np\nkept = []\nwhile True:\n    kept.append(np.ones(4_000_000))";
        let large = steps.result(large).await;
        assert!(
            large.contains("MemoryError") || large.contains("used more than 256 MiB of memory"),
            "{level}: {large}"
        );
        let other = steps.result_of(&json!({"script": "1", "pip_packages": ["numpy"]})).await;
        let is_refused = other.starts_with("InvalidArguments: Packages of a session are those");
        assert!(is_refused || large.ends_with("The next script begins another.]"), "{level}: {other}");
    }
}

#[tokio::test]
async fn a_search_over_several_processes_finds_its_packages_in_each() {
    let wheels = Wheels::unpack();
    let installer: Arc<dyn Installer> = Arc::clone(&wheels) as _;
    let mut setup = Setup { packages: Some((installer, &["scikit-learn"])), ..Setup::at(Level::Full) };
    // Each process has the package for itself.
    setup.limits.memory = 1 << 30;
    let steps = Steps::of(setup).await;
    let search = json!({"script": SEARCH, "pip_packages": ["scikit-learn"], "timeout_seconds": 120});
    assert_snapshot!(steps.single(&search).await, @"{'C': 1} 0.973");
}

#[tokio::test]
async fn numpy_and_pandas_are_imported_before_an_interpreter_is_forked() {
    let wheels = Wheels::unpack();
    let starts = Arc::<Starts>::default();
    let setup = Setup { mode: PoolMode::Fork, starts: Arc::clone(&starts), ..setup(Level::Full, &wheels) };
    let steps = Steps::of(setup).await;
    let script = "
import os, sys
was_imported = all(name in sys.modules for name in ('matplotlib', 'numpy', 'pandas'))
import numpy as np
import pandas as pd
a = np.arange(10_000).reshape(100, 100) / 100
df = pd.DataFrame({'x': a.diagonal(), 'y': (a @ a.T).diagonal()})
print(was_imported, 'OPENBLAS_NUM_THREADS' in os.environ, len(os.listdir('/proc/self/task')) if os.path.exists('/proc/self') else 1)
print(df.describe().round(2).to_string())
print(np.random.random(), np.random.default_rng().random(), pd.Series(range(100)).sample(3).tolist())
";
    let mut drawn = Vec::new();
    let mut tables = Vec::new();
    for _ in 0..4 {
        let result = eventually("a fork", async || {
            let result = steps.single(&with_packages(script)).await;
            (starts.last() == Some("forked")).then_some(result)
        });
        let result = result.await;
        let (first, rest) = result.split_once('\n').unwrap();
        assert_eq!(first, "True False 1", "{result}");
        let (table, numbers) = rest.trim_end().rsplit_once('\n').unwrap();
        tables.push(table.to_owned());
        drawn.push(numbers.to_owned());
    }
    assert!(tables.iter().all(|table| *table == tables[0]), "{tables:#?}");
    let mut different = drawn.clone();
    different.sort();
    different.dedup();
    assert_eq!(different.len(), drawn.len(), "{drawn:?}");
    assert_snapshot!(tables[0], @r#"
                x          y
    count  100.00     100.00
    mean    50.00  333283.34
    std     29.30  299597.56
    min      0.00      32.84
    25%     25.00   63758.08
    50%     50.00  249983.33
    75%     74.99  558708.58
    max     99.99  989933.84
    "#);
    let chart = steps.single(&with_packages(CHART)).await;
    assert_eq!(starts.last(), Some("forked"));
    assert!(chart.contains("[toolbus:output/figure-1.png image/png: iVBORw0KGgoAAAAN…]"), "{chart}");
    // What a fork may use is limited as for any script.
    let large = steps.single(&with_packages("import numpy as np\nkept = np.ones(80_000_000)\nprint(kept.sum())")).await;
    assert!(large.contains("memory"), "{large}");
}
