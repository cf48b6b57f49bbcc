//! What scripts do every day works at both levels.

use toolbus_sandbox::Ending;

use crate::fixture::{assert_printed, both, script, text, told};

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
