//! Advice for a script that failed because of where it runs.

use toolbus_core::text::shown;

use super::text::ScriptBudget;
use crate::text::size;

/// Most lines at the end of standard error that are looked at: a traceback's last ones.
const LINES: usize = 60;
/// Names of packages whose modules have other names.
const PACKAGES: [(&str, &str); 16] = [
    ("Crypto", "pycryptodome"),
    ("PIL", "pillow"),
    ("attr", "attrs"),
    ("bs4", "beautifulsoup4"),
    ("cv2", "opencv-python-headless"),
    ("dateutil", "python-dateutil"),
    ("docx", "python-docx"),
    ("dotenv", "python-dotenv"),
    ("fitz", "pymupdf"),
    ("google", "protobuf"),
    ("jose", "python-jose"),
    ("jwt", "pyjwt"),
    ("pptx", "python-pptx"),
    ("skimage", "scikit-image"),
    ("sklearn", "scikit-learn"),
    ("yaml", "pyyaml"),
];

/// Errors of programs that read `/proc`, and what to use instead.
const WITHOUT_PROC: [(&str, &str); 2] = [
    (
        "uv_resident_set_memory",
        "There is no /proc here, which `process.memoryUsage` reads. `process.resourceUsage().maxRSS` says how much memory \
         a script has used, in KiB.",
    ),
    (
        "/proc must be mounted",
        "There is no /proc here, which `free`, `ps` and `top` read. `resource.getrusage` of Python says how much memory and \
         time a script has used.",
    ),
];

/// A sentence on the error that a traceback of Python ends with, or that a program prints which reads `/proc`, where the
/// script could not know better.
pub(super) fn hint(stderr: &str, given: ScriptBudget<'_>) -> Option<String> {
    if let Some((_, instead)) = WITHOUT_PROC.iter().find(|(error, _)| stderr.contains(error)) {
        return Some((*instead).to_owned());
    }
    if given.language.is_some() {
        return None;
    }
    let mut lines: Vec<&str> = stderr.lines().rev().take(LINES).collect();
    lines.reverse();
    let is_error = |line: &&&str| line.split_once(':').map_or(**line, |(kind, _)| kind).ends_with("Error");
    let error = lines.iter().rfind(is_error)?;
    let goes_through = |names: &[&str]| lines.iter().any(|line| names.iter().any(|name| line.contains(name)));
    let has = |texts: &[&str]| texts.iter().any(|text| error.contains(text));
    let limits = given.limits;
    if error.starts_with("SyntaxError: ") {
        return notebook(error, &lines, given);
    }
    if let Some((_, rest)) = error.split_once("ModuleNotFoundError: No module named '") {
        return module(rest.split(['\'', '.']).next()?, given);
    }
    // The result of a lost session has a note already.
    let begins = given.session.is_some_and(|session| session.is_new && !session.is_lost);
    if begins && (error.starts_with("NameError: ") || has(&["FileNotFoundError: "])) {
        return Some(
            "This script is the first of its session: variables and files of earlier ones, if any, are gone."
                .to_owned(),
        );
    }
    let is_network = has(&["gaierror", "name resolution", "NameResolutionError", "Network is unreachable"]);
    let is_refused = has(&["PermissionError: [Errno 1]", "PermissionError: [Errno 13]"]);
    let is_process = goes_through(&["subprocess", "fork", "multiprocessing", "os.system", "os.popen", "posix_spawn"]);
    let needs_sockets = is_refused && goes_through(&["forkserver", "multiprocessing/connection"])
        || error.starts_with("EOFError") && goes_through(&["multiprocessing/managers"]);
    if given.has_processes && needs_sockets {
        Some(
            "`multiprocessing` has no sockets here: use its start method 'fork' or 'spawn', and no manager.".to_owned(),
        )
    } else if !given.has_network && (is_network || is_refused && goes_through(&["socket", "sock_connect"])) {
        Some(
            "Scripts have no network. Fetch data with another tool, and give it in input_data or input_files."
                .to_owned(),
        )
    } else if !given.has_processes && is_refused && is_process {
        Some("Scripts cannot start processes here. Use threads, or do the same in Python.".to_owned())
    } else if has(&["FileNotFoundError: "]) && error.contains("'/proc") {
        Some("There is no /proc here. `resource.getrusage` says how much memory and time a script has used.".to_owned())
    } else if has(&["FileNotFoundError: "]) && is_process {
        Some("That program is not there. A script can start what is in /bin and /usr/bin.".to_owned())
    } else if has(&["FileNotFoundError: "]) {
        Some("A script sees no files but those in input_files, and those that it writes itself.".to_owned())
    } else if has(&["PermissionError: [Errno 13]", "OSError: [Errno 30]"]) {
        Some("Write to the current folder, to a temporary one, or to the folder that TOOLBUS_OUTPUT names.".to_owned())
    } else if has(&["RuntimeError: can't start new thread", "BlockingIOError: [Errno 11]"]) {
        Some(format!("A script may have {} processes and threads at a time.", limits.processes))
    } else if has(&["EOFError: EOF when reading a line"]) {
        Some("Nobody answers questions of a script. Give what it reads in input_data.".to_owned())
    } else if error.starts_with("MemoryError") {
        Some(format!("A script may use {} of memory. Work on less at a time.", size(limits.memory)))
    } else if has(&["[Errno 28]"]) {
        let (disk, files) = (size(limits.disk), limits.files);
        Some(format!("A script may write {disk} and {files} files. Delete what is not needed any more."))
    } else if has(&["[Errno 27]"]) {
        Some(format!("A file may have {}.", size(limits.file_size)))
    } else if has(&["[Errno 24]"]) {
        Some(format!("A process may have {} files open. Close those that are not needed any more.", limits.open_files))
    } else {
        None
    }
}

/// Returns advice on syntax that only notebooks understand.
fn notebook(error: &str, lines: &[&str], given: ScriptBudget<'_>) -> Option<String> {
    let begins = |sign| lines.iter().find_map(|line| line.trim_start().strip_prefix(sign));
    if error.contains("outside") && ["await", "async for", "async with"].iter().any(|word| error.contains(word)) {
        Some("A script runs outside of an event loop. Put this into `async def main():`, and end with `asyncio.run(main())`.".to_owned())
    } else if begins('!').is_some() {
        let packages = if given.packages.is_empty() {
            "no packages can be installed here"
        } else {
            "ask for packages in pip_packages"
        };
        Some(format!(
            "Lines that begin with `!` are for notebooks: {packages}, and start programs with `subprocess.run`."
        ))
    } else {
        let magic: String =
            begins('%')?.trim_start_matches('%').chars().take_while(|it| it.is_ascii_alphanumeric()).collect();
        (!magic.is_empty()).then(|| {
            format!(
                "`%{}` is a magic command of notebooks, which scripts do not have. Leave the line out.",
                shown(&magic)
            )
        })
    }
}

/// Advice on a module that is not there.
fn module(name: &str, given: ScriptBudget<'_>) -> Option<String> {
    let known = PACKAGES.iter().find(|(module, _)| *module == name).map(|(_, package)| *package);
    let package = known.map_or_else(|| name.to_lowercase().replace('_', "-"), str::to_owned);
    let packages = given.packages;
    Some(if packages.is_empty() {
        "No packages can be installed here. Use Python's standard library.".to_owned()
    } else if given.requested.iter().any(|requested| requested.name() == package) {
        format!(
            "`{}` was installed, and has no such module; or a Python that the script started was kept from it: it finds \
             packages by the variable PYTHONPATH, and not with the options -I and -E.",
            shown(&package)
        )
    } else if packages.allows(&package) {
        format!("Ask for the package: pip_packages [\"{}\"].", shown(&package))
    } else {
        let listed = packages.listed();
        format!("There is no package for it here; {listed}. Or use Python's standard library.")
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::requirement::{AllowedPackages, Requirement};
    use crate::tool::text::tests::given;

    fn of(stderr: &str) -> String {
        hint(stderr, given(&AllowedPackages::parse(&["numpy", "pyyaml==6.0"]).unwrap())).unwrap_or_default()
    }

    #[test]
    fn a_missing_module_hints_at_its_package_if_allowed() {
        let of_module = |name: &str| of(&format!("Traceback\nModuleNotFoundError: No module named '{name}'\n"));
        insta::assert_snapshot!(of_module("numpy.linalg"), @r#"Ask for the package: pip_packages ["numpy"]."#);
        insta::assert_snapshot!(of_module("yaml"), @r#"Ask for the package: pip_packages ["pyyaml"]."#);
        insta::assert_snapshot!(of_module("pandas"), @"There is no package for it here; allowed are: numpy, pyyaml==6.0. Or use Python's standard library.");
        let allowed = AllowedPackages::parse(&["numpy"]).unwrap();
        let requested = [Requirement::parse("numpy").unwrap()];
        let there = hint(
            "ModuleNotFoundError: No module named 'numpy'",
            ScriptBudget { requested: &requested, ..given(&allowed) },
        );
        assert!(there.unwrap().starts_with("`numpy` was installed, and has no such module;"));
        let none = hint("ModuleNotFoundError: No module named 'numpy'", given(&AllowedPackages::default()));
        insta::assert_snapshot!(none.unwrap(), @"No packages can be installed here. Use Python's standard library.");
    }

    #[test]
    fn an_error_of_the_sandbox_has_a_hint() {
        let table = [
            "urllib.error.URLError: <urlopen error [Errno -3] Temporary failure in name resolution>",
            "  File \"/usr/lib/python3.11/socket.py\", line 836, in create_connection\nPermissionError: [Errno 1] Operation not permitted",
            "  File \"/usr/lib/python3.11/subprocess.py\", line 1901, in _execute_child\nPermissionError: [Errno 1] Operation not permitted",
            "  File \"/usr/lib/python3.11/subprocess.py\", line 1901, in _execute_child\nFileNotFoundError: [Errno 2] No such file or directory: 'git'",
            "FileNotFoundError: [Errno 2] No such file or directory: '/proc/self/status'",
            "Error: /proc must be mounted\n  To mount /proc at boot you need an /etc/fstab line like:",
            "Error: ENOENT: no such file or directory, uv_resident_set_memory\n    at process.memoryUsage",
            "FileNotFoundError: [Errno 2] No such file or directory: 'data.csv'",
            "PermissionError: [Errno 13] Permission denied: '/tmp/x'",
            "RuntimeError: can't start new thread",
            "EOFError: EOF when reading a line",
            "MemoryError",
            "OSError: [Errno 28] No space left on device",
            "OSError: [Errno 27] File too large",
            "OSError: [Errno 24] Too many open files: 'x'",
        ];
        insta::assert_snapshot!(table.map(of).join("\n"), @"
    Scripts have no network. Fetch data with another tool, and give it in input_data or input_files.
    Scripts have no network. Fetch data with another tool, and give it in input_data or input_files.
    Scripts cannot start processes here. Use threads, or do the same in Python.
    That program is not there. A script can start what is in /bin and /usr/bin.
    There is no /proc here. `resource.getrusage` says how much memory and time a script has used.
    There is no /proc here, which `free`, `ps` and `top` read. `resource.getrusage` of Python says how much memory and time a script has used.
    There is no /proc here, which `process.memoryUsage` reads. `process.resourceUsage().maxRSS` says how much memory a script has used, in KiB.
    A script sees no files but those in input_files, and those that it writes itself.
    Write to the current folder, to a temporary one, or to the folder that TOOLBUS_OUTPUT names.
    A script may have 64 processes and threads at a time.
    Nobody answers questions of a script. Give what it reads in input_data.
    A script may use 256 MiB of memory. Work on less at a time.
    A script may write 64 MiB and 4096 files. Delete what is not needed any more.
    A file may have 64 MiB.
    A process may have 256 files open. Close those that are not needed any more.
    ");
    }

    #[test]
    fn syntax_of_notebooks_has_a_hint() {
        let table = [
            "  File \"script.py\", line 5\n    x = await main()\nSyntaxError: 'await' outside function",
            "  File \"script.py\", line 5\n    async with x: pass\nSyntaxError: 'async with' outside async function",
            "  File \"script.py\", line 1\n    !pip install numpy\n    ^\nSyntaxError: invalid syntax",
            "  File \"script.py\", line 1\n    %%time\n    ^\nSyntaxError: invalid syntax",
            "  File \"script.py\", line 1\n    'return' here\n    ^\nSyntaxError: 'return' outside function",
        ];
        insta::assert_snapshot!(table.map(of).join("\n"), @"
    A script runs outside of an event loop. Put this into `async def main():`, and end with `asyncio.run(main())`.
    A script runs outside of an event loop. Put this into `async def main():`, and end with `asyncio.run(main())`.
    Lines that begin with `!` are for notebooks: ask for packages in pip_packages, and start programs with `subprocess.run`.
    `%time` is a magic command of notebooks, which scripts do not have. Leave the line out.
    ");
    }

    #[test]
    fn multiprocessing_that_needs_sockets_hints_at_other_start_methods() {
        let packages = AllowedPackages::default();
        let refused = "  File \"/usr/lib/python3.11/multiprocessing/forkserver.py\", line 136, in ensure_running\n  \
                       File \"/usr/lib/python3.11/socket.py\", line 232\nPermissionError: [Errno 1] Operation not permitted";
        // The process of a manager ends by such an error; the script finds the end of a pipe to it.
        let manager = "  File \"/usr/lib/python3.11/multiprocessing/managers.py\", line 566, in start\nEOFError";
        for stderr in [refused, manager] {
            let hint = hint(stderr, ScriptBudget { has_processes: true, ..given(&packages) });
            insta::allow_duplicates!(
                insta::assert_snapshot!(hint.unwrap(), @"`multiprocessing` has no sockets here: use its start method 'fork' or 'spawn', and no manager.")
            );
        }
    }

    #[test]
    fn the_scripts_own_mistakes_need_no_advice() {
        for stderr in
            ["", "a warning", "ZeroDivisionError: division by zero", "KeyError: 'socket'", "ValueError: subprocess"]
        {
            assert_eq!(of(stderr), "", "{stderr}");
        }
    }

    #[test]
    fn an_allowed_network_has_no_hint() {
        let packages = AllowedPackages::default();
        let free = ScriptBudget { has_network: true, has_processes: true, ..given(&packages) };
        let refused = "socket.gaierror: [Errno -3] Temporary failure in name resolution";
        assert_eq!(hint(refused, free), None);
    }
}
