//! Programs of the machine that a script starts, where it can start any.

use std::path::Path;

use insta::assert_snapshot;

use crate::fixture::{result, result_at_both};

#[tokio::test]
async fn files_are_listed_packed_and_dated_by_programs() {
    let script = r#"
import subprocess

def sh(command):
    done = subprocess.run(command, shell=True, capture_output=True, text=True)
    print(f"$ {command}\n{done.stdout}{done.stderr}", end="")

sh("mkdir -p src && printf 'b\\na\\nc\\n' > src/list.txt && touch -d '2026-02-03 04:05:06' src/list.txt")
sh("ls -l src | tail -1 | cut -d' ' -f1,5")
sh("cp -p src/list.txt copy.txt && stat -c '%y %s' copy.txt")
sh("tar czf src.tgz src && rm -r src && tar xzvf src.tgz && sort src/list.txt | head -2 | tr a-z A-Z")
sh("find . -name '*.txt' -newermt 2026-01-01 | sort | xargs wc -l | tail -1")
sh("sed -i 's/a/A/' copy.txt && diff copy.txt src/list.txt")
sh("awk 'BEGIN { printf \"%.3f\\n\", 22 / 7 }' && seq 10 | paste -sd+ - && date -u -d @0 +%FT%TZ")
sh("chmod 600 copy.txt && stat -c %a copy.txt && rm -r src src.tgz copy.txt && ls | wc -l")
"#;
    assert_snapshot!(result(script).await, @r#"
    $ mkdir -p src && printf 'b\na\nc\n' > src/list.txt && touch -d '2026-02-03 04:05:06' src/list.txt
    $ ls -l src | tail -1 | cut -d' ' -f1,5
    -rw-r--r-- 6
    $ cp -p src/list.txt copy.txt && stat -c '%y %s' copy.txt
    2026-02-03 04:05:06.000000000 +0000 6
    $ tar czf src.tgz src && rm -r src && tar xzvf src.tgz && sort src/list.txt | head -2 | tr a-z A-Z
    src/
    src/list.txt
    A
    B
    $ find . -name '*.txt' -newermt 2026-01-01 | sort | xargs wc -l | tail -1
     6 total
    $ sed -i 's/a/A/' copy.txt && diff copy.txt src/list.txt
    2c2
    < A
    ---
    > a
    $ awk 'BEGIN { printf "%.3f\n", 22 / 7 }' && seq 10 | paste -sd+ - && date -u -d @0 +%FT%TZ
    3.143
    1+2+3+4+5+6+7+8+9+10
    1970-01-01T00:00:00Z
    $ chmod 600 copy.txt && stat -c %a copy.txt && rm -r src src.tgz copy.txt && ls | wc -l
    600
    0
    "#);
}

#[tokio::test]
async fn a_repository_is_made_and_committed_to() {
    if !Path::new("/usr/bin/git").exists() {
        return;
    }
    let script = r#"
import pathlib, subprocess, tempfile

def git(*args):
    done = subprocess.run(["/usr/bin/git", *args], cwd=folder, capture_output=True, text=True)
    print(args[0], done.returncode, done.stdout.strip())

with tempfile.TemporaryDirectory() as folder:
    git("init", "-q", "-b", "main")
    git("config", "user.email", "model@example.com")
    git("config", "user.name", "Model")
    pathlib.Path(folder, "a.txt").write_text("one\n")
    git("add", ".")
    git("commit", "-q", "-m", "First")
    pathlib.Path(folder, "a.txt").write_text("two\n")
    git("diff", "--stat")
    git("log", "--format=%an %s")
    git("push")
"#;
    assert_snapshot!(result(script).await, @"
    init 0 
    config 0 
    config 0 
    add 0 
    commit 0 
    diff 0 a.txt | 2 +-
     1 file changed, 1 insertion(+), 1 deletion(-)
    log 0 Model First
    push 128
    ");
}

#[tokio::test]
async fn output_errors_and_codes_of_a_program_reach_the_script() {
    let script = r#"
import subprocess

done = subprocess.run("echo out; echo err >&2; exit 3", shell=True, capture_output=True, text=True)
print(done.returncode, repr(done.stdout), repr(done.stderr))
first = subprocess.Popen(["seq", "1", "100000"], stdout=subprocess.PIPE)
second = subprocess.Popen(["tail", "-2"], stdin=first.stdout, stdout=subprocess.PIPE, text=True)
first.stdout.close()
print(second.communicate()[0].split(), first.wait(), second.wait())
print(subprocess.run(["cat"], input="through a pipe", capture_output=True, text=True).stdout)
print(subprocess.check_output(["python3", "-c", "print(6 * 7)"], text=True).strip())
print("not captured", flush=True)
subprocess.run(["echo", "goes", "straight", "out"])
subprocess.run(["grep", "needle", "/dev/null"], check=True)
"#;
    assert_snapshot!(result(script).await, @r#"
    isError: Script failed (exit 1):
    3 'out\n' 'err\n'
    ['99999', '100000'] 0 0
    through a pipe
    42
    not captured
    goes straight out
    stderr:
    Traceback (most recent call last):
      File "script.py", line 14, in <module>
        subprocess.run(["grep", "needle", "/dev/null"], check=True)
      [library]
    subprocess.CalledProcessError: Command '['grep', 'needle', '/dev/null']' returned non-zero exit status 1.
    "#);
}

#[tokio::test]
async fn programs_that_take_too_long_are_ended_alone() {
    let script = r#"
import os, signal, subprocess, time

try:
    subprocess.run(["sleep", "60"], timeout=0.1)
except subprocess.TimeoutExpired:
    print("timed out")
print(subprocess.run(["timeout", "0.1", "sleep", "60"]).returncode)
group = subprocess.Popen("sleep 60 & sleep 60", shell=True, start_new_session=True)
os.killpg(group.pid, signal.SIGTERM)
print(group.wait(timeout=20))
print(subprocess.run("sleep 60 & kill $!; wait $!; echo $?", shell=True, capture_output=True, text=True).stdout.strip())
"#;
    assert_snapshot!(result(script).await, @"
    timed out
    124
    -15
    143
    ");
}

#[tokio::test]
async fn programs_run_beside_coroutines() {
    let script = r#"
import asyncio

async def run(command):
    process = await asyncio.create_subprocess_shell(
        command, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT)
    out, _ = await process.communicate()
    return process.returncode, out.decode().strip()

async def main():
    print(await asyncio.gather(run("echo one"), run("echo two; exit 2"), run("echo three >&2")))
    process = await asyncio.create_subprocess_exec("sleep", "60")
    try:
        await asyncio.wait_for(process.wait(), timeout=0.1)
    except asyncio.TimeoutError:
        process.kill()
        print("ended", await process.wait())

asyncio.run(main())
"#;
    assert_snapshot!(result(script).await, @"
    [(0, 'one'), (2, 'two'), (0, 'three')]
    ended -9
    ");
}

#[tokio::test]
async fn programs_that_are_not_there_or_may_not_run_are_errors_with_advice() {
    let missing = "import subprocess\nsubprocess.run(['no-such-program', '--version'], check=True)\n";
    assert_snapshot!(result(missing).await, @r#"
    isError: Script failed (exit 1):
    Traceback (most recent call last):
      File "script.py", line 2, in <module>
        subprocess.run(['no-such-program', '--version'], check=True)
      [library]
    FileNotFoundError: [Errno 2] No such file or directory: 'no-such-program'
    [That program is not there. A script can start what is in /bin and /usr/bin.]
    "#);
    let own = r##"
import os, subprocess

with open("run.sh", "w") as file:
    file.write("#!/bin/sh\necho hello\n")
os.chmod("run.sh", 0o755)
print(subprocess.run(["sh", "run.sh"], capture_output=True, text=True).stdout, end="")
subprocess.run(["./run.sh"])
"##;
    assert_snapshot!(result(own).await, @r#"
    isError: Script failed (exit 1):
    hello
    stderr:
    Traceback (most recent call last):
      File "script.py", line 8, in <module>
        subprocess.run(["./run.sh"])
      [library]
    PermissionError: [Errno 13] Permission denied: './run.sh'
    [Write to the current folder, to a temporary one, or to the folder that TOOLBUS_OUTPUT names.]
    [Saved in the work folder and not returned: run.sh. Write to the folder that TOOLBUS_OUTPUT names.]
    "#);
}

#[tokio::test]
async fn the_user_of_a_script_has_a_name() {
    assert_snapshot!(result_at_both("import getpass\ngetpass.getuser()").await, @"'script'");
}
