//! Everyday uses of the standard library, which work at both levels.

use toolbus_sandbox::{Ending, Level};

use crate::fixture::{assert_printed, both, run, script, text, told, without_cgroups};

#[tokio::test]
async fn an_event_loop_with_threads_works() {
    let source = "
import asyncio
async def main():
    await asyncio.gather(*(asyncio.sleep(0.01) for _ in range(10)))
    print(await asyncio.to_thread(sum, range(10)))
asyncio.run(main())
";
    assert_printed(&both(script(source)).await, ["45"; 2]);
}

#[tokio::test]
async fn temporary_files_work_and_lie_in_the_work_folder() {
    let source = "
import os, shutil, tempfile
with tempfile.TemporaryFile() as file:
    file.write(b'x')
with tempfile.NamedTemporaryFile() as file:
    print(os.path.dirname(file.name) == os.environ['TMPDIR'])
folder = tempfile.mkdtemp()
shutil.rmtree(folder)
print(os.path.exists(folder))
";
    assert_printed(&both(script(source)).await, ["True\nFalse"; 2]);
}

#[tokio::test]
async fn modules_in_c_work() {
    let source = "
import bz2, ctypes, decimal, hashlib, lzma, sqlite3, ssl, zlib
db = sqlite3.connect(':memory:')
print(db.execute('select 6 * 7').fetchone()[0])
db = sqlite3.connect('file.db')
db.execute('create table t (x)')
db.commit()
print(ctypes.sizeof(ctypes.c_int), hashlib.sha256(b'').hexdigest()[:8], decimal.Decimal(1) / 8)
print(zlib.decompress(zlib.compress(b'z')), lzma.decompress(lzma.compress(b'l')), bz2.decompress(bz2.compress(b'b')))
";
    assert_printed(&both(script(source)).await, ["42\n4 e3b0c442 0.125\nb'z' b'l' b'b'"; 2]);
}

#[tokio::test]
async fn a_script_imports_its_own_modules_and_not_those_of_the_machine() {
    let source = "
with open('mine.py', 'w') as file:
    file.write('answer = 42')
import mine, sys
print(mine.answer, [path for path in sys.path if 'packages' in path])
import script
";
    for outcome in both(script(source)).await {
        assert_eq!(outcome.ending, Ending::Exited(0), "{outcome:?}");
        assert!(text(&outcome.stdout).starts_with("42 []\n"), "{outcome:?}");
    }
}

#[tokio::test]
async fn a_script_that_takes_the_interpreter_apart_harms_itself_alone() {
    let source = "
import builtins, gc, sys
sys.modules.clear()
builtins.__dict__.clear()
gc.collect()
";
    for outcome in both(script(source)).await {
        assert!(!matches!(outcome.ending, Ending::Stopped(_)), "{outcome:?}");
    }
    for outcome in both(script("print('whole')")).await {
        assert_eq!(told(&outcome), (Ending::Exited(0), "whole\n".to_owned(), String::new()));
    }
}

#[tokio::test]
async fn ordinary_commands_work_on_its_own_files_where_it_has_a_file_system_of_its_own() {
    let source = r#"
import os, shutil, subprocess
commands = """
echo text > a && cp a b && cp -p a c && cp -r . /tmp/copy && mv b d && cat d
touch e && touch -d 2024-01-01 e && date -r e +%Y
chmod 640 a && stat -c %a a && chmod +x a && ls -l a > listed && ls -la --color=always . > listed
mkdir -p f/g && install -m 600 a f/g/h && ln -s a link && readlink link && ln a hard
tar cf x.tar a f && mkdir out && tar xf x.tar -C out && ls out/f/g
tar czf x.tgz a && tar xzf x.tgz -C out && gzip -k d && gunzip -c d.gz
sed -i s/text/other/ a && sort -o a a && cat a && tee t < a | wc -l
find f -name h -newer e && du -s f > sizes
dd if=a of=copied bs=1 count=3 2> log && cmp -n 3 a copied && mktemp > names
python3 -c "import shutil; shutil.copy('a', 'i'); shutil.copytree('f', 'j')" && rm -r f j && ls i
sh -c 'sleep 0.1 & wait; seq 3 | xargs -n1 echo' | tail -1
git init -q --template= repo && cd repo && git config user.email a@b && git config user.name a && echo 1 > x && git add . && git commit -qm one && git log --oneline | wc -l
"""
for command in commands.strip().splitlines():
    if command.startswith('git') and not shutil.which('git'):
        continue
    ended = subprocess.run(['bash', '-c', command], capture_output=True, text=True)
    print(ended.returncode, ended.stdout.strip(), ended.stderr.strip())
os.makedirs('made/within')
shutil.copy2('a', 'made/copied')
shutil.move('made/copied', 'made/moved')
os.utime('made/moved', (0, 0))
os.chown('made/moved', os.getuid(), os.getgid())
print(os.stat('made/moved').st_mtime)
"#;
    for outcome in
        [run(Level::Full, script(source)).await, without_cgroups(script(source)).await.into_iter().next().unwrap()]
    {
        let git = if text(&outcome.stdout).lines().count() == 14 { "\n0 1 " } else { "" };
        let expected = format!(
            "0 text \n0 2024 \n0 640 \n0 a \n0 h \n0 text \n0 other\n1 \n0 f/g/h \n0  \n0 i \n0 3 {git}\n0.0\n"
        );
        assert_eq!(told(&outcome), (Ending::Exited(0), expected, String::new()));
    }
}
