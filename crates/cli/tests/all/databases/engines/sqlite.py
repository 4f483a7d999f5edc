# `sqlite.py MODE write DIR FROM`: one number a transaction from FROM + 1 on, each said when it is committed; the same transaction removes the one that is KEPT
# older. `sqlite.py MODE check DIR`: the first number and the last, after all between them were found, and SQLite's own check.
import sqlite3
import sys

KEPT = 1000
mode, what, directory = sys.argv[1:4]
base = sqlite3.connect(directory + "/app.db", isolation_level=None)
base.execute(f"pragma journal_mode={mode}")
# In `delete` mode a commit is a file removed, and with `full` nobody waits until that is on the disk.
base.execute("pragma synchronous=extra")
base.execute("create table if not exists t(n integer primary key, filler text)")
if what == "check":
    assert base.execute("pragma integrity_check").fetchall() == [("ok",)]
    numbers = base.execute("select n, length(filler) from t order by n").fetchall()
    first = numbers[0][0] if numbers else 0
    for place, (number, length) in enumerate(numbers):
        assert number == first + place, f"{number} comes where {first + place} was"
        assert length == number % 2000, f"number {number} has not what was put"
    print(first, first + len(numbers) - 1 if numbers else 0)
    sys.exit()
number = int(sys.argv[4])
while True:
    number += 1
    base.execute("begin immediate")
    base.execute("insert into t values(?, ?)", (number, "x" * (number % 2000)))
    base.execute("delete from t where n = ?", (number - KEPT,))
    base.execute("commit")
    print(number, flush=True)
