//! SQLite in memory and in files, and what Python keeps objects in.

use insta::assert_snapshot;

use crate::fixture::result_at_both;

#[tokio::test]
async fn tables_in_memory_are_joined() {
    let script = r#"
import sqlite3

db = sqlite3.connect(":memory:")
db.row_factory = sqlite3.Row
db.executescript("""
CREATE TABLE customers (id INTEGER PRIMARY KEY, name TEXT NOT NULL UNIQUE);
CREATE TABLE orders (id INTEGER PRIMARY KEY, customer INTEGER REFERENCES customers, total REAL);
INSERT INTO customers (name) VALUES ('Ada'), ('Bob'), ('Cy');
INSERT INTO orders (customer, total) VALUES (1, 10.5), (1, 4.5), (2, 7);
""")
query = """
WITH sums AS (SELECT customer, SUM(total) AS sum FROM orders GROUP BY customer)
SELECT name, COALESCE(sum, 0) AS sum, RANK() OVER (ORDER BY sum DESC) AS place
FROM customers LEFT JOIN sums ON sums.customer = customers.id ORDER BY place
"""
for row in db.execute(query):
    print(dict(row))
print(db.execute("SELECT json_extract(?, '$.a[1]')", ('{"a": [1, 2]}',)).fetchone()[0])
db.execute("INSERT INTO customers (name) VALUES ('Ada')")
"#;
    assert_snapshot!(result_at_both(script).await, @r#"
    isError: Script failed (exit 1):
    {'name': 'Ada', 'sum': 15.0, 'place': 1}
    {'name': 'Bob', 'sum': 7.0, 'place': 2}
    {'name': 'Cy', 'sum': 0, 'place': 3}
    2
    stderr:
    Traceback (most recent call last):
      File "script.py", line 20, in <module>
        db.execute("INSERT INTO customers (name) VALUES ('Ada')")
    sqlite3.IntegrityError: UNIQUE constraint failed: customers.name
    "#);
}

#[tokio::test]
async fn a_database_in_a_file_keeps_what_was_committed() {
    let script = r#"
import os, sqlite3

path = os.path.join(os.environ["TMPDIR"], "app.db")
with sqlite3.connect(path) as db:
    print(db.execute("PRAGMA journal_mode = WAL").fetchone()[0])
    db.execute("CREATE TABLE samples (n INTEGER, square INTEGER)")
    db.executemany("INSERT INTO samples VALUES (?, ?)", ((n, n * n) for n in range(10_000)))
other = sqlite3.connect(path)
db.execute("DELETE FROM samples")
print(other.execute("SELECT COUNT(*), SUM(square) FROM samples").fetchone())
db.rollback()
db.execute("VACUUM")
db.close()
backup = sqlite3.connect("backup.db")
other.backup(backup)
backup.close()
print(os.path.getsize("backup.db") > 100_000)
os.remove("backup.db")
"#;
    assert_snapshot!(result_at_both(script).await, @"
    wal
    (10000, 333283335000)
    True
    ");
}

#[tokio::test]
async fn objects_are_kept_in_shelves_and_pickles() {
    let script = r#"
import configparser, pickle, shelve, tempfile
from pathlib import Path

folder = Path(tempfile.mkdtemp())
with shelve.open(str(folder / "shelf")) as shelf:
    shelf["list"] = [1, 2, {"three": 3}]
with shelve.open(str(folder / "shelf")) as shelf:
    print(dict(shelf))
(folder / "data.pickle").write_bytes(pickle.dumps({"set": {1, 2}}))
print(pickle.loads((folder / "data.pickle").read_bytes()))
config = configparser.ConfigParser()
config.read_string("[server]\nport = 8080\nhosts = a, b\n")
print(config.getint("server", "port"), [host.strip() for host in config["server"]["hosts"].split(",")])
"#;
    assert_snapshot!(result_at_both(script).await, @"
    {'list': [1, 2, {'three': 3}]}
    {'set': {1, 2}}
    8080 ['a', 'b']
    ");
}
