//! A program that has a database open forks, as Python's `multiprocessing` does, and the child closes what it
//! has inherited.

use crate::common::finish;
use crate::sqlite::SqliteTestbed;

/// The child waited for threads that it does not have; had it gone on, it would have disconnected the
/// parent's lenders.
#[test]
fn a_child_that_closes_its_parents_connection_ends_and_takes_nothing_from_it() {
    let site = SqliteTestbed::new("sqlite-fork", 2);
    let text = r"
db.execute('pragma journal_mode=wal')
db.execute('create table t(n integer primary key)')
second = connect()
seats = path + '-netram/seat-0/lock'
def taken(): return any(line for line in open('/proc/locks') if str(os.stat(seats).st_ino) in line)
n = 0
while not taken():
    n += 1
    db.execute('insert into t values(?)', (n,))
    time.sleep(0.01)
sys.stdout.flush()
child = os.fork()
if child == 0:
    signal.alarm(20)
    try:
        second.execute('insert into t values(1000000)')
        os._exit(3)
    except sqlite3.OperationalError: pass
    db.close()
    second.close()
    del db, second
    sys.exit(0)
assert os.waitpid(child, 0)[1] == 0, 'the child did not end'
assert taken(), 'the child has given up the journal'
for _ in range(50):
    n += 1
    db.execute('insert into t values(?)', (n,))
assert db.execute('select count(*) from t').fetchone()[0] == n
# One that lives on keeps nothing that the parent gives up.
child = os.fork()
if child == 0:
    time.sleep(60)
    os._exit(0)
db.close()
second.close()
assert not taken(), 'the child has the lock'
again = connect()
again.execute('insert into t values(?)', (n + 1,))
again.close()
os.kill(child, 9)
print(n + 1)
";
    let Some(mut python) = site.python(text) else {
        return;
    };
    let ran = finish(&mut python);
    assert_eq!(ran.code, 0, "{} {}", ran.out, ran.err);
    assert!(!ran.err.contains("the journal failed"), "{}", ran.err);
    let found = site.shell("pragma integrity_check;\nselect count(*) from t;\n");
    assert_eq!(
        found.out.trim(),
        format!("ok\n{}", ran.out.trim()),
        "{}",
        found.err
    );
}
