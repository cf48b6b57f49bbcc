#!/usr/bin/env python3
"""Installs and uses the packages of tools/release: in copies of clean Debian roots, and in new Python environments.

Not seen here: systemd starting the service (roots have none; tests do what the unit says), and a distribution of RPM
with its SELinux: DNF installs into Debian roots. Needs root. Run by `tests/run --packages`, which sets
TOOLBUS_PACKAGES (the folder of packages), TOOLBUS_ROOTS (Debian roots) and TOOLBUS_RABBITMQ (programs of RabbitMQ 4).
"""

import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import tarfile
import tempfile
import time
import tomllib
import unittest
from contextlib import contextmanager
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PACKAGES = Path(os.environ["TOOLBUS_PACKAGES"])
ROOTS = Path(os.environ["TOOLBUS_ROOTS"])
BROKER = Path(os.environ["TOOLBUS_RABBITMQ"])
VERSION = tomllib.loads((ROOT / "Cargo.toml").read_text("utf-8"))["workspace"]["package"]["version"]
CONFIGURATION = "/etc/toolbus/toolbus.toml"
STATE = "/var/lib/toolbus"
LIBRARIES = ("ld-linux-x86-64.so.2", "libc.so.6", "libdl.so.2", "libgcc_s.so.1", "libm.so.6", "libpthread.so.0")
ENVIRONMENT = {
    "DEBIAN_FRONTEND": "noninteractive",
    "HOME": "/root",
    "LC_ALL": "C.UTF-8",
    "PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
}
# Mounts end with the command.
IN_ROOT = """
root="$1"
shift
mount --rbind /proc "$root/proc"
mount --rbind /dev "$root/dev"
exec chroot "$root" "$@"
"""


def package(pattern: str) -> Path:
    [found] = PACKAGES.glob(pattern)
    return found


def run(*command, code: int = 0, cwd=None, environment=ENVIRONMENT, **more) -> str:
    """What a command prints, standard error included, after checking how it ends."""
    result = subprocess.run(
        [str(part) for part in command],
        cwd=cwd,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=600,
        **more,
    )
    if result.returncode != code:
        raise AssertionError(f"{command} ended with {result.returncode}, not {code}:\n{result.stdout}")
    return result.stdout


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


def wait_for(condition, what: str, seconds: float = 120):
    end = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > end:
            raise AssertionError(f"{what} took longer than {seconds} s")
        time.sleep(0.05)


def first_answer(*command, environment=ENVIRONMENT) -> float:
    """Seconds until `toolbus demo` shows a reply; it must succeed."""
    began = time.monotonic()
    with subprocess.Popen(
        [str(part) for part in command], env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True
    ) as demo:
        took, lines = None, []
        for line in demo.stdout:
            lines.append(line)
            if took is None and '"content":"hello, bus"' in line:
                took = time.monotonic() - began
    shown = "".join(lines)
    if demo.returncode != 0 or took is None or "tool_not_found after" not in shown:
        raise AssertionError(f"{command} ended with {demo.returncode}:\n{shown}")
    return took


class Root:
    """A copy of a Debian root, whose commands see the processes, devices and network of this machine."""

    def __init__(self, test: unittest.TestCase, suite: str):
        self.folder = Path(tempfile.mkdtemp(prefix=f"toolbus-{suite}-"))
        test.addCleanup(shutil.rmtree, self.folder)
        run("cp", "-a", "--reflink=auto", f"{ROOTS / suite}/.", self.folder)

    @staticmethod
    def command(folder: Path, *command) -> list[str]:
        return ["unshare", "--mount", "sh", "-ec", IN_ROOT, "in_root", *map(str, (folder, *command))]

    def run(self, *command, code: int = 0, **more: str) -> str:
        return run(*self.command(self.folder, *command), code=code, environment={**ENVIRONMENT, **more})

    def copy(self, file: Path) -> str:
        shutil.copy(file, self.folder / "root")
        return f"/root/{file.name}"

    def install(self, deb: Path):
        options = ("-y", "--no-install-recommends", "-o", "Dpkg::Options::=--force-confold")
        self.run("apt-get", "install", *options, self.copy(deb))

    def path(self, path: str) -> Path:
        return self.folder / path.lstrip("/")

    def stat(self, path: str) -> str:
        return self.run("stat", "--format", "%a %U:%G", path).strip()


class RabbitMq:
    """A node of RabbitMQ 4 on free ports, which ends with the test."""

    def __init__(self, test: unittest.TestCase):
        # The programs see the folder of temporary files at its own path.
        folder = Path(tempfile.mkdtemp(prefix="toolbus-rabbitmq-"))
        test.addCleanup(shutil.rmtree, folder)
        self.port, epmd, distribution = free_port(), free_port(), free_port()
        (folder / "rabbitmq.conf").write_text(f"listeners.tcp.1 = 127.0.0.1:{self.port}\n", "utf-8")
        (folder / "enabled_plugins").write_text("[].\n", "utf-8")
        environment = {
            **os.environ,
            "HOME": str(folder),
            "ERL_EPMD_ADDRESS": "127.0.0.1",
            "ERL_EPMD_PORT": str(epmd),
            "ERL_FLAGS": "-start_epmd false",
            "RABBITMQ_NODENAME": f"packages{distribution}@localhost",
            "RABBITMQ_DIST_PORT": str(distribution),
            "RABBITMQ_MNESIA_BASE": str(folder / "mnesia"),
            "RABBITMQ_LOG_BASE": str(folder / "log"),
            "RABBITMQ_CONFIG_FILE": str(folder / "rabbitmq.conf"),
            "RABBITMQ_CONF_ENV_FILE": str(folder / "none.conf"),
            "RABBITMQ_ENABLED_PLUGINS_FILE": str(folder / "enabled_plugins"),
        }
        names = Root.command(BROKER.parent / "root", "epmd", "-address", "127.0.0.1", "-port", epmd)
        log = (folder / "console.log").open("w")
        test.addCleanup(log.close)
        for command in (names, [str(BROKER / "rabbitmq-server")]):
            self.start(test, command, environment, log, folder)
        wait_for(lambda: self.listens(folder / "console.log"), "the start of RabbitMQ")
        self.url = f"amqp://guest:guest@127.0.0.1:{self.port}/%2f"

    @staticmethod
    def start(test: unittest.TestCase, command: list[str], environment: dict, log, folder: Path):
        # The server is a script whose children are its node: they are one group, which ends together.
        node = subprocess.Popen(
            command, cwd=folder, env=environment, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True
        )

        def end():
            os.killpg(node.pid, signal.SIGKILL)
            node.wait()

        test.addCleanup(end)

    def listens(self, log: Path) -> bool:
        text = log.read_text("utf-8")
        if "BOOT FAILED" in text or "terminating" in text:
            raise AssertionError(text)
        with socket.socket() as client:
            return client.connect_ex(("127.0.0.1", self.port)) == 0


class Debian:
    """The package for Debian, in a copy of the root of `suite`."""

    suite: str

    def setUp(self):
        self.root = Root(self, self.suite)
        self.deb = package("toolbus_*.deb")

    def test_it_installs_what_the_service_needs(self):
        root = self.root
        root.install(self.deb)
        self.assertIn(f"{VERSION}-1", root.run("dpkg-query", "--show", "toolbus"))
        self.assertEqual(root.run("dpkg", "--verify", "toolbus"), "")
        user, _, uid, _, _, home, shell = root.run("getent", "passwd", "toolbus").strip().split(":")
        self.assertEqual((user, home, shell), ("toolbus", STATE, "/usr/sbin/nologin"))
        self.assertLess(int(uid), 1000)
        self.assertEqual(root.stat(STATE), "750 toolbus:toolbus")
        # It may hold passwords, which only the daemon and root may read.
        self.assertEqual(root.stat(CONFIGURATION), "640 root:toolbus")
        self.assertEqual(root.stat("/usr/bin/toolbus"), "755 root:root")
        self.assertNotIn("not found", root.run("ldd", "/usr/bin/toolbus"))
        self.assertIn(f"toolbus {VERSION} ", root.run("toolbus", "--version"))

        documents = root.path("/usr/share/doc/toolbus")
        self.assertLessEqual({"LICENSE", "LICENSES.txt", "toolbus.toml"}, {file.name for file in documents.iterdir()})
        alerts = root.path("/usr/share/toolbus/alerts.yml").read_text("utf-8")
        for runbook in re.findall(r"runbook_url: docs/(\S+)", alerts):
            self.assertTrue((documents / runbook).is_file(), runbook)
        self.assertTrue(root.path("/usr/share/toolbus/dashboards/overview.json").is_file())
        self.assertRegex(root.path("/usr/share/man/man1/toolbus.1").read_text("utf-8"), r"(?m)^\.TH toolbus 1")
        self.assertTrue(root.path("/usr/share/man/man1/toolbus-call.1").is_file())
        completed = root.run(
            "bash", "-c", ". /usr/share/bash-completion/completions/toolbus && complete -p toolbus"
        )
        self.assertIn("-F _toolbus", completed)
        zsh, fish = ("zsh/site-functions/_toolbus", "fish/vendor_completions.d/toolbus.fish")
        self.assertTrue((root.path("/usr/share") / zsh).read_text("utf-8").startswith("#compdef toolbus"))
        self.assertIn("complete -c toolbus", (root.path("/usr/share") / fish).read_text("utf-8"))
        self.assertLess(first_answer(*root.command(root.folder, "toolbus", "demo")), 60)
        first_answer(*root.command(root.folder, "toolbus", "demo", "--bus-url", RabbitMq(self).url))

    @contextmanager
    def service(self):
        """The daemon as its unit starts it, once it is ready; yields its address, and a list that gets its log at its end.
        It must end without an error."""
        root, broker = self.root, RabbitMq(self)
        unit = root.path("/usr/lib/systemd/system/toolbus.service").read_text("utf-8")
        setting = dict(re.findall(r"^(\w+)=(.+)$", unit, re.MULTILINE))
        self.assertEqual((setting["Type"], setting["WorkingDirectory"]), ("notify", STATE))
        # A line of the file `environment` overrides the address, as an operator would.
        self.assertEqual(setting["EnvironmentFile"], "-/etc/toolbus/environment")
        address, log = {"TOOLBUS__BUS__URL": broker.url}, []
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as told:
            told.bind(str(root.path("/run/notify")))
            root.path("/run/notify").chmod(0o777)
            told.settimeout(120)
            environment = {**ENVIRONMENT, **address, "HOME": STATE, "STATE_DIRECTORY": STATE}
            environment["NOTIFY_SOCKET"] = "/run/notify"
            drop = ["setpriv", "--reuid", setting["User"], "--regid", setting["Group"], "--init-groups"]
            drop += ["--bounding-set=-all", "--no-new-privs", "env", "--chdir", STATE]
            command = root.command(root.folder, *drop, *setting["ExecStart"].split())
            pipes = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
            with subprocess.Popen(command, env=environment, text=True, **pipes) as daemon:
                try:
                    message = told.recv(4096).decode()
                    while "READY=1" not in message:
                        message = told.recv(4096).decode()
                    yield address, log
                finally:
                    daemon.terminate()
                    log.append(daemon.communicate(timeout=120)[0])
            self.assertEqual(daemon.returncode, 0, log)

    def make_folders(self):
        """Makes the folders of the unit, as systemd does."""
        for path in ("/run/toolbus", "/var/cache/toolbus", STATE):
            self.root.run("install", "-d", "-m", "750", "-o", "toolbus", "-g", "toolbus", path)

    def test_the_service_answers_over_rabbitmq(self):
        root = self.root
        root.install(self.deb)
        self.make_folders()
        with self.service() as (address, _):
            call = ("toolbus", "call", "--config", CONFIGURATION, "echo", "text=hello")
            self.assertEqual(root.run(*call, **address), "hello")
            self.assertIn("ready", root.run("toolbus", "status", "--config", CONFIGURATION, **address))
            # The ledger is where the package keeps state.
            self.assertTrue(list(root.path(STATE).iterdir()))

    def test_a_service_answers_while_its_package_is_upgraded_and_removed(self):
        """As long as systemd, which these roots do not have, has not restarted or stopped it."""
        root = self.root
        root.install(self.deb)
        self.make_folders()
        root.run("cp", "/usr/bin/toolbus", CONFIGURATION, "/opt")
        call = ("/opt/toolbus", "call", "--config", "/opt/toolbus.toml", "echo", "text=hello")
        with self.service() as (address, _):
            root.install(self.newer("9.0.0-1", ""))
            self.assertEqual(root.run(*call, **address), "hello")
            root.run("apt-get", "remove", "-y", "toolbus")
            self.assertFalse(root.path("/usr/bin/toolbus").exists())
            self.assertEqual(root.run(*call, **address), "hello")

    def test_a_service_without_rights_on_its_state_says_what_it_does_not_keep(self):
        root = self.root
        root.install(self.deb)
        self.make_folders()
        root.run("chmod", "500", STATE)
        with self.service() as (address, log):
            call = ("toolbus", "call", "--config", CONFIGURATION, "echo", "text=hello")
            self.assertEqual(root.run(*call, **address), "hello")
        self.assertRegex(log[0], r"WARN.*state is in memory")

    def test_what_root_starts_by_hand_leaves_state_that_the_service_uses(self):
        root = self.root
        root.install(self.deb)
        self.make_folders()
        # Ends once it has its state.
        serve = ("toolbus", "serve", "--config", CONFIGURATION, "--listen", "192.0.2.1:8471")
        self.assertIn("this machine has no such address", root.run(*serve, code=1))
        state = f"{STATE}/toolbus.toolbus"
        for path, rights in {state: 700, f"{state}/toolbus.db": 600, f"{state}/toolbus.db.lock": 600}.items():
            self.assertEqual(root.stat(path), f"{rights} toolbus:toolbus")
        with self.service() as (_, log):
            pass
        self.assertIn(f"state is kept file={state}/toolbus.db", log[0])

    def test_a_users_wheel_beside_the_service_keeps_to_itself(self):
        root, venv = self.root, self.root.path("/opt/venv")
        root.install(self.deb)
        self.make_folders()
        run(sys.executable, "-m", "venv", venv)
        run(venv / "bin/pip", "install", "--no-index", package("toolbus-*.whl"))
        root.run("install", "-d", "-o", "nobody", "/srv/user")
        user = ("setpriv", "--reuid=nobody", "--regid=nogroup", "--clear-groups")
        own = (*user, "env", "--chdir=/srv/user", "HOME=/srv/user", "/opt/venv/bin/toolbus")
        with self.service() as (address, _):
            # The service's configuration is found, and is no user's.
            said = f"{CONFIGURATION}: the file cannot be read: Permission denied (os error 13); run this as"
            self.assertIn(said, root.run(*own, "status", code=2))
            root.path("/srv/user/toolbus.toml").write_text("[tools]\necho = true\n", "utf-8")
            self.assertIn("no daemon answers on the socket `toolbus.sock`", root.run(*own, "status", code=7))
            said = root.run(*own, "serve", code=1, **address)
            self.assertIn("file=/srv/user/.local/state/toolbus/toolbus.toolbus/toolbus.db", said)
            self.assertIn("cannot listen on 127.0.0.1:8471: the port is in use", said)
        run(venv / "bin/pip", "uninstall", "--yes", "toolbus")
        self.assertEqual(root.run("dpkg", "--verify", "toolbus"), "")
        run(venv / "bin/pip", "install", "--no-index", package("toolbus-*.whl"))
        root.run("apt-get", "purge", "-y", "toolbus")
        self.assertIn("configuration is valid", root.run(*own, "check"))

    def test_removal_keeps_state_and_purge_does_not(self):
        root = self.root
        root.install(self.deb)
        for folder in (STATE, "/var/cache/toolbus"):
            root.path(folder).mkdir(exist_ok=True)
            (root.path(folder) / "kept").write_text("", "utf-8")
        root.run("apt-get", "remove", "-y", "toolbus")
        self.assertFalse(root.path("/usr/bin/toolbus").exists())
        self.assertFalse(root.path("/usr/lib/systemd/system/toolbus.service").exists())
        self.assertEqual(root.stat(f"{STATE}/kept"), "644 root:root")
        self.assertEqual(root.stat(CONFIGURATION), "640 root:toolbus")
        # Back again, on what was kept.
        root.install(self.deb)
        self.assertTrue((root.path(STATE) / "kept").exists())
        self.assertEqual(root.stat(STATE), "750 toolbus:toolbus")
        root.run("apt-get", "purge", "-y", "toolbus")
        for path in (STATE, "/var/cache/toolbus", "/etc/toolbus", "/usr/share/toolbus", "/usr/share/doc/toolbus"):
            self.assertFalse(root.path(path).exists(), path)
        root.run("getent", "passwd", "toolbus", code=2)

    def test_an_upgrade_keeps_the_edited_configuration(self):
        root = self.root
        root.install(self.deb)
        edited = root.path(CONFIGURATION).read_text("utf-8").replace("5672", "5673")
        root.path(CONFIGURATION).write_text(edited, "utf-8")
        (root.path(STATE) / "kept").write_text("", "utf-8")
        # The same configuration in the new version asks nothing; another one is laid beside.
        for version, more in (("9.0.0-1", ""), ("9.0.1-1", "# Of the new version.\n")):
            root.install(self.newer(version, more))
            self.assertIn(version, root.run("dpkg-query", "--show", "toolbus"))
            self.assertEqual(root.path(CONFIGURATION).read_text("utf-8"), edited)
            self.assertEqual(root.stat(CONFIGURATION), "640 root:toolbus")
            self.assertTrue((root.path(STATE) / "kept").exists())
            self.assertEqual(root.path(CONFIGURATION + ".dpkg-dist").exists(), more != "")

    def newer(self, version: str, more: str) -> Path:
        """The package as a later version, with more lines of configuration."""
        folder = Path(tempfile.mkdtemp())
        self.addCleanup(shutil.rmtree, folder)
        tree = folder / "tree"
        run("dpkg-deb", "--raw-extract", self.deb, tree)
        control = (tree / "DEBIAN/control").read_text("utf-8")
        (tree / "DEBIAN/control").write_text(re.sub(r"(?m)^Version: .*", f"Version: {version}", control), "utf-8")
        with (tree / CONFIGURATION.lstrip("/")).open("a") as configuration:
            configuration.write(more)
        run("dpkg-deb", "--root-owner-group", "-Zgzip", "-z1", "--build", tree, folder)
        [built] = folder.glob("*.deb")
        return built

    def test_the_archive_runs_where_it_is_unpacked(self):
        root = self.root
        [archive] = PACKAGES.glob("toolbus-*.tar.gz")
        root.run("tar", "--extract", "--gzip", "--file", root.copy(archive), "--directory", "/opt")
        folder = f"/opt/{archive.name.removesuffix('.tar.gz')}"
        with tarfile.open(archive) as files:
            self.assertEqual({(member.uid, member.gid) for member in files}, {(0, 0)})
        self.assertLess(first_answer(*root.command(root.folder, f"{folder}/usr/bin/toolbus", "demo")), 60)
        demo = (f"{folder}/usr/bin/toolbus", "demo", "--bus-url", RabbitMq(self).url)
        first_answer(*root.command(root.folder, *demo))
        root.run(f"{folder}/usr/bin/toolbus", "check", "--config", folder + CONFIGURATION)

    def test_dnf_installs_the_rpm_with_what_it_needs_and_removes_it(self):
        root, repository = self.root, self.repository()
        source = (f"--repofrompath=local,{repository}", "--repo=local", "--setopt=local.gpgcheck=0", "--releasever=1")
        dnf = ("dnf", "--assumeyes", f"--installroot={root.folder}", *source)
        missing = run(*dnf, "--exclude=distribution", "install", "toolbus", code=1)
        self.assertIn("requires shadow-utils, but none of the providers can be installed", missing)
        run(*dnf, "install", "toolbus")
        run(*dnf, "check")
        self.assertEqual(root.stat(STATE), "750 toolbus:toolbus")
        self.assertEqual(root.stat(CONFIGURATION), "640 root:toolbus")
        self.assertTrue(root.run("getent", "passwd", "toolbus").strip().endswith(f":{STATE}:/sbin/nologin"))
        self.assertIn(f"toolbus {VERSION} ", root.run("toolbus", "--version"))
        first_answer(*root.command(root.folder, "toolbus", "demo", "--bus-url", RabbitMq(self).url))
        root.path(CONFIGURATION).write_text("# edited\n", "utf-8")
        run(*dnf, "remove", "toolbus")
        self.assertFalse(root.path("/usr/bin/toolbus").exists())
        self.assertEqual(root.path(CONFIGURATION + ".rpmsave").read_text("utf-8"), "# edited\n")

    def repository(self) -> Path:
        """Our package, and one that stands for the distribution: names of Fedora's packages, and libraries of this root, of
        which rpmbuild finds what they provide."""
        folder = Path(tempfile.mkdtemp())
        self.addCleanup(shutil.rmtree, folder)
        libraries = [self.root.path(f"/lib/x86_64-linux-gnu/{name}") for name in LIBRARIES]
        (folder / "distribution.spec").write_text(
            "Name: distribution\nVersion: 1\nRelease: 1\nSummary: -\nLicense: -\n"
            "Provides: /bin/sh ca-certificates python3 rtld(GNU_HASH) shadow-utils\n%description\n"
            f"%install\ninstall -D -t %{{buildroot}}/opt/lib {' '.join(map(str, libraries))}\n%files\n/opt/lib\n",
            "utf-8",
        )
        defined = (f"_topdir {folder}", f"_rpmdir {folder}", "debug_package %{nil}", "__os_install_post %{nil}")
        options = [part for definition in defined for part in ("--define", definition)]
        run("rpmbuild", "-bb", *options, folder / "distribution.spec")
        shutil.copy(package("toolbus-*.rpm"), folder)
        run("createrepo_c", folder)
        return folder


class Debian12(Debian, unittest.TestCase):
    suite = "bookworm"


class Debian13(Debian, unittest.TestCase):
    suite = "trixie"


class Rpm(unittest.TestCase):
    def query(self, *arguments: str) -> str:
        return run("rpm", "--query", "--package", *arguments, package("toolbus-*.rpm"))

    def test_it_has_the_files_of_the_package_for_debian(self):
        listed = run("dpkg-deb", "--contents", package("toolbus_*.deb")).splitlines()
        debian = {line.split()[5].lstrip(".") for line in listed if not line.startswith("d")}
        named = "[%{FILEMODES:perms} %{FILEUSERNAME}:%{FILEGROUPNAME} %{FILENAMES}\n]"
        files = dict(reversed(line.rsplit(" ", 1)) for line in self.query("--queryformat", named).splitlines())
        self.assertEqual({path for path, rights in files.items() if not rights.startswith("d")}, debian)
        self.assertEqual(files["/usr/bin/toolbus"], "-rwxr-xr-x root:root")
        self.assertEqual(files[CONFIGURATION], "-rw-r----- root:toolbus")
        self.assertEqual(files[STATE], "drwxr-x--- toolbus:toolbus")
        self.assertEqual(self.query("--configfiles"), CONFIGURATION + "\n")

    def test_its_scripts_and_needs(self):
        scripts = self.query("--scripts")
        for kind in ("preinstall", "postinstall", "preuninstall", "postuninstall"):
            self.assertIn(f"{kind} scriptlet (using /bin/sh):", scripts)
        for command in ("useradd --system", "systemctl disable --now", "systemctl try-restart"):
            self.assertIn(command, scripts)
        # Who owns files is made by the package, not needed from another.
        self.assertLessEqual({"user(toolbus)", "group(toolbus)"}, set(self.query("--provides").split()))
        needs = self.query("--requires")
        self.assertLessEqual({"ca-certificates", "shadow-utils"}, set(needs.split()))
        self.assertRegex(needs, r"libc\.so\.6\(GLIBC_2\.\d+\)\(64bit\)")


class Wheel(unittest.TestCase):
    """With each end of the versions of Python that it is for."""

    def environment(self, version: str) -> Path:
        folder = Path(tempfile.mkdtemp())
        self.addCleanup(shutil.rmtree, folder)
        run(self.python(version), "-m", "venv", folder)
        return folder / "bin"

    @staticmethod
    def python(version: str) -> str:
        """This version of Python: one that pyenv keeps, or the one of PATH."""
        kept = sorted(Path.home().glob(f".pyenv/versions/{version}.*/bin/python"))
        found = str(kept[-1]) if kept else shutil.which(f"python{version}")
        if found is None:
            raise AssertionError(f"Python {version} is missing")
        return found

    def test_it_answers_within_five_seconds_of_its_installation(self):
        for version in ("3.10", "3.13"):
            with self.subTest(version):
                programs = self.environment(version)
                began = time.monotonic()
                run(programs / "pip", "install", "--no-index", package("toolbus-*.whl"))
                installed = time.monotonic() - began
                answered = first_answer(programs / "toolbus", "demo")
                took = f"{installed:.1f} s of pip install, {answered:.2f} s to a reply"
                print(f"\nPython {version}: {took}", file=sys.stderr)
                self.assertLess(answered, 5)
                first_answer(programs / "toolbus", "demo", "--bus-url", RabbitMq(self).url)
                self.assertIn(f"Version: {VERSION}", run(programs / "pip", "show", "toolbus"))
                run(programs / "pip", "uninstall", "--yes", "toolbus")
                self.assertFalse((programs / "toolbus").exists())

    def test_pip_says_that_it_is_not_for_another_platform_or_an_older_python(self):
        wheel = package("toolbus-*.whl")
        programs = self.environment("3.13")
        other = programs.parent / "other"
        install = ("install", "--no-index", "--no-deps", "--only-binary", ":all:", "--target", other)
        said = run(programs / "pip", *install, "--platform", "macosx_11_0_arm64", wheel, code=1)
        self.assertIn(f"{wheel.name} is not a supported wheel on this platform", said)
        said = run(programs / "pip", *install, "--python-version", "3.9", wheel, code=1)
        self.assertIn("requires a different Python: 3.9", said)


class Together(unittest.TestCase):
    def test_sums_agree_and_none_is_missing(self):
        run("sha256sum", "--check", "--strict", "SHA256SUMS", cwd=PACKAGES)
        summed = {line.split()[1] for line in (PACKAGES / "SHA256SUMS").read_text("utf-8").splitlines()}
        self.assertEqual(summed, {file.name for file in PACKAGES.iterdir()} - {"SHA256SUMS"})

    def test_components_are_those_that_the_program_is_built_from(self):
        document = json.loads((PACKAGES / "toolbus.cyclonedx.json").read_text("utf-8"))
        self.assertEqual(document["bomFormat"], "CycloneDX")
        self.assertEqual(document["metadata"]["component"]["version"], VERSION)
        listed = {(component["name"], component["version"]) for component in document["components"]}
        locked = tomllib.loads((ROOT / "Cargo.lock").read_text("utf-8"))["package"]
        locked = {(crate["name"], crate["version"]) for crate in locked}
        self.assertLessEqual(listed, locked)
        names = {name for name, _ in listed}
        # Its own, one on crates.io, one under vendor/, and one that only the feature of pods needs.
        self.assertLessEqual({"toolbus-core", "tokio", "reqwest", "kube"}, names)
        # Licences of all of them are in the package.
        self.assertGreater(len(listed), 200)


if __name__ == "__main__":
    unittest.main()
