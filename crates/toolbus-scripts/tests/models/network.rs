//! Scripts that would like a network, or packages of others.

use insta::assert_snapshot;
use serde_json::json;
use toolbus_sandbox::Level;

use crate::fixture::{result, result_at, result_at_both};

#[tokio::test]
async fn a_page_cannot_be_fetched_and_the_result_has_advice() {
    let script = r#"
import json, urllib.request

with urllib.request.urlopen("https://api.example.com/rates.json", timeout=10) as response:
    print(json.load(response)["EUR"])
"#;
    assert_snapshot!(result_at_both(script).await, @r#"
    isError: Script failed (exit 1):
    Traceback (most recent call last):
      [library]
    socket.gaierror: [Errno -3] Temporary failure in name resolution

    During handling of the above exception, another exception occurred:

    Traceback (most recent call last):
      File "script.py", line 4, in <module>
        with urllib.request.urlopen("https://api.example.com/rates.json", timeout=10) as response:
      [library]
    urllib.error.URLError: <urlopen error [Errno -3] Temporary failure in name resolution>
    [Scripts have no network. Fetch data with another tool, and give it in input_data or input_files.]
    "#);
}

#[tokio::test]
async fn names_and_addresses_lead_nowhere() {
    let script = r#"
import http.client, socket

for attempt in (
    lambda: socket.getaddrinfo("example.com", 443),
    lambda: socket.create_connection(("93.184.216.34", 80), timeout=5),
    lambda: http.client.HTTPConnection("localhost", 8080, timeout=5).request("GET", "/"),
    lambda: socket.socket(socket.AF_INET, socket.SOCK_DGRAM),
):
    try:
        print(attempt())
    except OSError as error:
        print(type(error).__name__, error)
socket.socket().connect(("10.0.0.1", 22))
"#;
    assert_snapshot!(result(script).await, @r#"
    isError: Script failed (exit 1):
    gaierror [Errno -3] Temporary failure in name resolution
    PermissionError [Errno 1] Operation not permitted
    gaierror [Errno -3] Temporary failure in name resolution
    PermissionError [Errno 1] Operation not permitted
    stderr:
    Traceback (most recent call last):
      File "script.py", line 14, in <module>
        socket.socket().connect(("10.0.0.1", 22))
      [library]
    PermissionError: [Errno 1] Operation not permitted
    [Scripts have no network. Fetch data with another tool, and give it in input_data or input_files.]
    "#);
}

#[tokio::test]
async fn modules_that_are_not_there_are_named_with_what_to_do() {
    assert_snapshot!(result_at_both("import numpy as np\nprint(np.arange(3).sum())\n").await, @r#"
    isError: Script failed (exit 1):
    Traceback (most recent call last):
      File "script.py", line 1, in <module>
        import numpy as np
    ModuleNotFoundError: No module named 'numpy'
    [No packages can be installed here. Use Python's standard library.]
    "#);
    let plot = "import matplotlib.pyplot as plt\nplt.plot([1, 2, 3])\nplt.savefig('plot.png')\n";
    assert_snapshot!(result(plot).await, @r#"
    isError: Script failed (exit 1):
    Traceback (most recent call last):
      File "script.py", line 1, in <module>
        import matplotlib.pyplot as plt
    ModuleNotFoundError: No module named 'matplotlib'
    [No packages can be installed here. Use Python's standard library.]
    "#);
    let optional = r#"
try:
    import pandas as pd
except ImportError:
    pd = None
print("pandas" if pd else "without pandas")
"#;
    assert_snapshot!(result(optional).await, @"without pandas");
}

#[tokio::test]
async fn packages_that_may_not_be_installed_are_refused() {
    let requested = json!({"script": "import requests", "pip_packages": ["requests"]});
    let shown = result_at(Level::Full, &requested).await;
    assert_snapshot!(shown, @"NotAllowed: Package 'requests' is not allowed here; no packages can be installed.");
    let script =
        "import subprocess, sys\nsubprocess.check_call([sys.executable, '-m', 'pip', 'install', '-q', 'requests'])\n";
    let shown = result(script).await;
    // The output of pip, if it is there, varies.
    assert!(shown.starts_with("isError: Script failed (exit 1):") && shown.contains("CalledProcessError"), "{shown}");
}
