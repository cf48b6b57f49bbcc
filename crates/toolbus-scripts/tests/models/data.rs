//! Data that is given, counted and printed.

use insta::assert_snapshot;
use serde_json::json;
use toolbus_sandbox::Level;

use crate::fixture::{result_at, result_at_both, result_with};

#[tokio::test]
async fn a_table_in_the_input_is_grouped_and_summed() {
    let script = r#"
import csv, io, os
from collections import defaultdict
from statistics import mean, median, stdev

rows = list(csv.DictReader(io.StringIO(os.environ["ROCKBOT_INPUT"])))
by_region = defaultdict(list)
for row in rows:
    by_region[row["region"]].append(float(row["amount"]))
for region, amounts in sorted(by_region.items()):
    print(f"{region:<6} n={len(amounts)} sum={sum(amounts):.2f} mean={mean(amounts):.2f} median={median(amounts)}")
print(f"stdev {stdev(float(row['amount']) for row in rows):.3f}")
"#;
    let input = "region,amount\nnorth,10.5\nsouth,20\nnorth,30.25\nsouth,5\n\"west, far\",1\n";
    assert_snapshot!(result_with(input, script).await, @"
    north  n=2 sum=40.75 mean=20.38 median=20.375
    south  n=2 sum=25.00 mean=12.50 median=12.5
    west, far n=1 sum=1.00 mean=1.00 median=1.0
    stdev 11.834
    ");
}

#[tokio::test]
async fn the_input_is_on_standard_input_too_and_its_end_is_the_end_of_input() {
    let script = "import sys\nprint(input(), sys.stdin.readline().strip(), sys.stdin.read() == '')";
    assert_snapshot!(result_with("one\nzwei ä\n", script).await, @"one zwei ä True");
}

#[tokio::test]
async fn json_that_is_no_string_arrives_as_json() {
    let script = r#"
import json, os
from collections import Counter

data = json.loads(os.environ["ROCKBOT_INPUT"])
words = Counter(word.lower() for line in data["lines"] for word in line.split())
print(json.dumps({"most": words.most_common(2), "ratio": 2 / 3, "name": data["name"]}, ensure_ascii=False, indent=2))
"#;
    let input = json!({"name": "Zoë 🙂", "lines": ["To be or not", "to be"]});
    assert_snapshot!(result_with(input, script).await, @r#"
    {
      "most": [
        [
          "to",
          2
        ],
        [
          "be",
          2
        ]
      ],
      "ratio": 0.6666666666666666,
      "name": "Zoë 🙂"
    }
    "#);
}

#[tokio::test]
async fn input_that_no_variable_can_hold_is_read_from_its_file() {
    let script = r#"
import json, os

print("ROCKBOT_INPUT" in os.environ)
with open(os.environ["TOOLBUS_INPUT_FILE"], encoding="utf-8") as file:
    records = json.load(file)
print(len(records), sum(record["n"] for record in records), records[-1]["text"][-3:])
data = os.environ["ROCKBOT_INPUT"]
"#;
    let records: Vec<_> = (0..2000).map(|n| json!({"n": n, "text": "é".repeat(100)})).collect();
    assert_snapshot!(result_with(json!(records), script).await, @r#"
    isError: Script failed (exit 1):
    False
    2000 1999000 ééé
    stderr:
    Traceback (most recent call last):
      File "script.py", line 8, in <module>
        data = os.environ["ROCKBOT_INPUT"]
      [library]
    KeyError: 'ROCKBOT_INPUT'
    "#);
}

#[tokio::test]
async fn files_that_are_given_are_in_the_current_folder() {
    let script = r#"
import csv, json

with open("people.csv", newline="") as file:
    people = list(csv.DictReader(file))
with open("limits.json") as file:
    limits = json.load(file)
for person in people:
    if int(person["age"]) >= limits["adult"]:
        print(person["name"])
"#;
    let files = json!({"people.csv": "name,age\r\nAda,36\r\nTim,9\r\n", "limits.json": {"adult": 18}});
    let shown = result_at(Level::Full, &json!({"script": script, "input_files": files})).await;
    assert_snapshot!(shown, @"Ada");
}

/// Without namespaces they belonged to root.
#[tokio::test]
async fn files_that_are_given_can_be_changed() {
    let script = "with open('notes.txt', 'a') as file:\n    file.write('more')\nprint(open('notes.txt').read())";
    let arguments = json!({"script": script, "input_files": {"notes.txt": "some, "}});
    for level in [Level::Full, Level::NoNamespaces] {
        assert_eq!(result_at(level, &arguments).await.trim_end(), "some, more", "{level:?}");
    }
}

#[tokio::test]
async fn regular_expressions_find_and_replace_unicode() {
    let script = r#"
import re

log = """2026-02-03 12:00:01 ERROR [db] timeout after 30s
2026-02-03 12:00:02 INFO [web] GET /größe?q=ä 200
2026-02-03 12:00:05 ERROR [web] timeout after 5s"""
pattern = re.compile(r"^(?P<day>\S+) (?P<time>\S+) (?P<level>[A-Z]+) \[(?P<part>\w+)\] (?P<text>.*)$", re.M)
for match in pattern.finditer(log):
    if match["level"] == "ERROR":
        print(match.groupdict())
print(re.sub(r"(\d+)s\b", lambda match: f"{int(match[1]) * 1000} ms", log.splitlines()[0]))
print(re.findall(r"\w+", "größe Straße naïve 東京"))
"#;
    assert_snapshot!(result_at_both(script).await, @"
    {'day': '2026-02-03', 'time': '12:00:01', 'level': 'ERROR', 'part': 'db', 'text': 'timeout after 30s'}
    {'day': '2026-02-03', 'time': '12:00:05', 'level': 'ERROR', 'part': 'web', 'text': 'timeout after 5s'}
    2026-02-03 12:00:01 ERROR [db] timeout after 30000 ms
    ['größe', 'Straße', 'naïve', '東京']
    ");
}

#[tokio::test]
async fn numbers_are_exact_where_python_has_them_exact() {
    let script = r#"
import math
from decimal import Decimal, getcontext
from fractions import Fraction

print(0.1 + 0.2, Decimal("0.1") + Decimal("0.2"), Fraction(1, 3) + Fraction(1, 6))
getcontext().prec = 50
print(Decimal(2).sqrt())
print(math.factorial(50))
print(2**127 - 1)
print(pow(3, 10**6, 10**9 + 7), math.comb(100, 50), math.isqrt(10**40))
print(sum(1 / n**2 for n in range(1, 1001)))
"#;
    assert_snapshot!(result_at_both(script).await, @"
    0.30000000000000004 0.3 1/2
    1.4142135623730950488016887242096980785696718753769
    30414093201713378043612608166064768844377641568960512000000000000
    170141183460469231731687303715884105727
    64935414 100891344545564193334812497256 100000000000000000000
    1.6439345666815615
    ");
}

#[tokio::test]
async fn digests_ids_and_seeded_chance_are_the_same_everywhere() {
    let script = r#"
import base64, hashlib, hmac, random, secrets, uuid, zlib

text = "The quick brown fox".encode()
print(hashlib.md5(text).hexdigest(), hashlib.sha256(text).hexdigest()[:16])
print(hashlib.blake2b(text, digest_size=8).hexdigest())
print(hmac.new(b"key", text, "sha256").hexdigest()[:16], f"{zlib.crc32(text):08x}")
print(base64.b64encode(text).decode(), base64.urlsafe_b64decode("_-8=").hex())
print(uuid.uuid5(uuid.NAMESPACE_DNS, "example.com"), uuid.uuid4().version, len(secrets.token_hex(16)))
random.seed(42)
print([random.randint(1, 6) for _ in range(10)], random.sample(range(100), 3), round(random.gauss(0, 1), 6))
print(hashlib.scrypt(b"password", salt=b"salt", n=1024, r=8, p=1, dklen=8).hex())
"#;
    assert_snapshot!(result_at_both(script).await, @"
    a2004f37730b9445670a738fa0fc9ee5 5cac4f980fedc3d3
    be1c94ec99f8964c
    203d1e5cedd2d18f b74574de
    VGhlIHF1aWNrIGJyb3duIGZveA== ffef
    cfbff0d1-9375-5685-968c-48ce8b15ae17 4 32
    [6, 1, 1, 6, 3, 2, 2, 2, 6, 1] [86, 94, 69] 0.89459
    16dbc8906763c7f0
    ");
}

#[tokio::test]
async fn classes_enums_and_generators_are_those_of_python() {
    let script = r#"
from __future__ import annotations
from dataclasses import asdict, dataclass, field
from enum import Enum, auto
from functools import lru_cache, reduce
from itertools import accumulate, groupby, islice, pairwise
from typing import NamedTuple, Protocol
import heapq, pickle, textwrap

class Color(Enum):
    RED = auto()
    BLUE = auto()

class Point(NamedTuple):
    x: int
    y: int = 0

@dataclass(order=True, frozen=True)
class Task:
    priority: int
    name: str = field(compare=False)
    color: Color = Color.RED

@lru_cache(maxsize=None)
def fib(n: int) -> int:
    return n if n < 2 else fib(n - 1) + fib(n - 2)

tasks = [Task(3, "c"), Task(1, "a", Color.BLUE), Task(2, "b")]
heapq.heapify(tasks)
print([heapq.heappop(tasks).name for _ in range(3)], asdict(Task(1, "x")))
print(pickle.loads(pickle.dumps(Task(5, "again"))), Point(1), Color["BLUE"])
print(fib(90), reduce(lambda a, b: a * b, range(1, 11)), list(accumulate([1, 2, 3])), list(pairwise("abc")))
print({key: len(list(group)) for key, group in groupby("aaabbc")})
match Point(2, 0):
    case Point(x=x, y=0):
        print(f"on the axis at {x = }")
print(textwrap.fill("A sentence that is somewhat longer than a line may be.", 24))
"#;
    assert_snapshot!(result_at_both(script).await, @"
    ['a', 'b', 'c'] {'priority': 1, 'name': 'x', 'color': <Color.RED: 1>}
    Task(priority=5, name='again', color=<Color.RED: 1>) Point(x=1, y=0) Color.BLUE
    2880067194370816120 3628800 [1, 3, 6] [('a', 'b'), ('b', 'c')]
    {'a': 3, 'b': 2, 'c': 1}
    on the axis at x = 2
    A sentence that is
    somewhat longer than a
    line may be.
    ");
}

#[tokio::test]
async fn the_last_value_of_a_script_that_prints_nothing_is_its_result() {
    let script = r#"
prices = {"apple": 1.25, "pear": 0.8}
total = sum(prices.values())
{"total": total, "cheapest": min(prices, key=prices.get)}
"#;
    assert_snapshot!(result_at_both(script).await, @"{'total': 2.05, 'cheapest': 'pear'}");
}
