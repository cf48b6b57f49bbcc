//! Ordinary shell commands, as scripts start them at level `full`: each works, or is refused in words.

use serde_json::json;
use toolbus_sandbox::Level;

use crate::fixture::result_at;

/// Commands that succeed in a folder with the files below. One program or habit each.
const WORK: [&str; 76] = [
    "ls",
    "ls -l",
    "ls -la --color=always .",
    "ls -R | head -3",
    "cat list.txt",
    "head -1 list.txt && tail -1 list.txt",
    "wc -l list.txt",
    "sort -u list.txt",
    "uniq -c list.txt",
    "cut -d, -f2 table.csv",
    "paste -d, list.txt list.txt",
    "tr a-z A-Z < list.txt",
    "rev list.txt && tac list.txt && nl list.txt",
    "grep -rn one .",
    "sed -i s/one/1/ list.txt",
    "awk -F, '{ print $1 }' table.csv",
    "diff list.txt list.txt",
    "cmp list.txt list.txt",
    "comm -12 list.txt list.txt",
    "join -t, table.csv table.csv",
    "find . -name '*.txt' -type f -newermt 2020-01-01",
    "find . -name '*.csv' -exec cat {} +",
    "find . -type f -print0 | xargs -0 ls -l",
    "du -sh .",
    "df -h . || true",
    "stat -c '%a %s %U' list.txt",
    "basename ./folder/note.txt .txt && dirname ./folder/note.txt",
    "touch new.txt",
    "touch -d '2026-01-02 03:04:05' list.txt",
    "touch -r list.txt table.csv",
    "mkdir -p one/two/three",
    "rmdir empty",
    "cp list.txt copy.txt",
    "cp -p list.txt copy.txt",
    "cp -a folder other",
    "cp -r folder other",
    "cp --preserve=all list.txt copy.txt",
    "mv list.txt moved.txt",
    "mv folder other",
    "rm list.txt",
    "rm -rf folder",
    "ln -s list.txt link && readlink -f link",
    "ln list.txt hard",
    "chmod 600 list.txt",
    "chmod -R a+rX,u+w .",
    "chmod +x list.txt",
    "chown \"$(id -u)\" list.txt",
    "install -m 640 list.txt installed.txt",
    "truncate -s 100 list.txt",
    "dd if=/dev/zero of=zeros bs=1k count=4 status=none",
    "split -l 1 list.txt part-",
    "tee copy.txt < list.txt",
    "mktemp && mktemp -d",
    "tar cf all.tar folder list.txt && tar tf all.tar",
    "tar czf all.tgz folder && rm -r folder && tar xzf all.tgz",
    "tar cf all.tar list.txt && mkdir out && tar xpf all.tar -C out",
    "gzip -k list.txt && gunzip -c list.txt.gz",
    "md5sum list.txt && sha256sum list.txt",
    "base64 list.txt | base64 -d",
    "od -c list.txt | head -1",
    "date -u +%F && TZ=Europe/Berlin date",
    "seq 3 | paste -sd+",
    "expr 6 '*' 7 && echo $((6 * 7))",
    "printf '%05.2f\\n' 3.14159",
    "env | sort && pwd && whoami || id -u",
    "id && groups || true",
    "uname -sm && nproc && getconf PAGE_SIZE",
    "sleep 0.01 & wait",
    "timeout 5 true",
    "factor 42",
    "nohup true",
    "echo '6 * 7' | python3 -c 'print(eval(input()))'",
    "perl -e 'print 6 * 7'",
    "test -f list.txt && [ -d folder ]",
    "for i in 1 2; do echo $i; done | while read n; do echo $n; done",
    "git init -q --template= . && git -c user.email=a@b -c user.name=a add -A && git status --short",
];

/// Commands that fail, and words of their output.
const REFUSED: [(&str, &str); 15] = [
    ("cat /etc/passwd", "No such file or directory"),
    ("ls /root", "No such file or directory"),
    ("touch /usr/bin/mine", "Read-only file system"),
    ("echo x > /etc/hosts", "Read-only file system"),
    ("nice true", "Operation not permitted"),
    ("mkfifo pipe", "Operation not permitted"),
    ("mknod zero c 1 5", "Operation not permitted"),
    ("chown 0 list.txt", "Invalid argument"),
    ("chmod u+s list.txt", "Operation not permitted"),
    ("mount -t tmpfs none folder", "mount"),
    ("unshare -r true", "Operation not permitted"),
    ("printf '#!/bin/sh\\n' > run.sh && chmod +x run.sh && ./run.sh", "Permission denied"),
    ("exec 3<>/dev/tcp/127.0.0.1/80", "Operation not permitted"),
    ("kill 1", "Operation not permitted"),
    ("no-such-program", "command not found"),
];

/// Runs each command in a folder of its own, and prints its code and output.
const RUN: &str = r##"
import json, os, subprocess

for number, command in enumerate(json.load(open("commands.json"))):
    folder = f"{os.environ['TMPDIR']}/{number}"
    os.makedirs(folder + "/folder")
    os.mkdir(folder + "/empty")
    for name, text in ("list.txt", "one\nthree\ntwo\n"), ("table.csv", "a,1\nb,2\n"), ("folder/note.txt", "one\n"):
        with open(f"{folder}/{name}", "w") as file:
            file.write(text)
    done = subprocess.run(["bash", "-c", command], cwd=folder, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                          stderr=subprocess.STDOUT, timeout=30)
    print(json.dumps([done.returncode, done.stdout.decode(errors="replace")]))
"##;

#[tokio::test]
async fn ordinary_shell_commands_work_or_are_refused_in_words() {
    let commands: Vec<&str> = WORK.iter().copied().chain(REFUSED.map(|(command, _)| command)).collect();
    let arguments = json!({"script": RUN, "input_files": {"commands.json": commands}, "timeout_seconds": 60});
    let result = result_at(Level::Full, &arguments).await;
    let ended: Vec<(i32, String)> = result.lines().map_while(|line| serde_json::from_str(line).ok()).collect();
    assert_eq!(ended.len(), commands.len(), "{result}");
    let (worked, refused) = ended.split_at(WORK.len());
    let mut wrong: Vec<String> = Vec::new();
    for (command, (code, output)) in WORK.iter().zip(worked).filter(|(_, (code, _))| *code != 0) {
        wrong.push(format!("{command}: {code} {output}"));
    }
    for ((command, words), (code, output)) in REFUSED.iter().zip(refused) {
        if *code == 0 || !output.contains(words) {
            wrong.push(format!("{command}: {code} {output}"));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}
