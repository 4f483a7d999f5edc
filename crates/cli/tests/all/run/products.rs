//! Programs that many people run, each with an allocator, a heap or a database of its own, with a small part
//! of their memory here: their answers are those that they give without.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use super::programs::{find, interpreter};
use super::{RunTestbed, output, skipped, start, text};

/// Compares a program's output with and without far memory.
fn says_the_same(site: &RunTestbed, local: &str, program: &Path, words: &[&str]) {
    let native = output(Command::new(program).args(words));
    assert!(native.status.success(), "{}", text(&native.stderr));
    let far = output(site.run(local, &[], program).args(words));
    assert!(far.status.success(), "{}", text(&far.stderr));
    assert_eq!(text(&far.stdout), text(&native.stdout));
}

/// Returns the file that a script or a link leads to. `None`: there is none, and the test printed that it is
/// skipped.
fn real(program: &str) -> Option<PathBuf> {
    find(program).map(|path| path.canonicalize().unwrap_or(path))
}

/// Redis keeps its values, and a child process saves them at the same time.
#[test]
fn redis_keeps_and_saves_its_values() {
    let (Some(server), Some(client)) = (find("redis-server"), find("redis-cli")) else {
        return;
    };
    let Some(site) = RunTestbed::new("redis", 2, "256MiB") else {
        return;
    };
    let socket = site.directory.path().join("redis.sock");
    let mut command = site.run("4MiB", &[], &server);
    command.args(["--port", "0", "--save", "", "--enable-debug-command", "local"]);
    command.arg("--unixsocket").arg(&socket);
    command.arg("--dir").arg(site.directory.path());
    let mut served = start(command.stdout(Stdio::null()).stderr(Stdio::inherit()));
    let ask = |words: &[&str]| {
        let asked = output(Command::new(&client).arg("-s").arg(&socket).args(words));
        text(&asked.stdout).trim().to_owned()
    };
    let until = Instant::now() + Duration::from_secs(20);
    while ask(&["ping"]) != "PONG" {
        assert!(Instant::now() < until, "it does not answer");
        std::thread::yield_now();
    }
    // Of 400 bytes each.
    assert_eq!(ask(&["debug", "populate", "40000", "key", "400"]), "OK");
    let digest = ask(&["debug", "digest"]);
    assert_eq!(digest.len(), 40, "{digest}");
    assert_eq!(ask(&["bgsave"]), "Background saving started");
    assert_eq!(ask(&["set", "later", "1"]), "OK");
    while !ask(&["info", "persistence"]).contains("rdb_bgsave_in_progress:0") {
        assert!(Instant::now() < until, "nothing is saved");
    }
    let saved = ask(&["info", "persistence"]);
    assert!(saved.contains("rdb_last_bgsave_status:ok"), "{saved}");
    assert_eq!(ask(&["del", "later"]), "1");
    assert_eq!(ask(&["debug", "reload", "nosave"]), "OK");
    assert_eq!(ask(&["debug", "digest"]), digest, "what its child has saved");
    ask(&["shutdown", "nosave"]);
    assert!(served.wait().unwrap().success());
    assert!(site.returned() > 256, "{} pages came back", site.returned());
}

/// The compiler brings an allocator of its own, and starts a linker by `fork`.
#[test]
fn rustc_makes_a_program_that_works() {
    let Ok(asked) = Command::new("rustc").args(["--print", "sysroot"]).output() else {
        return skipped("there is no `rustc`");
    };
    let rustc = Path::new(text(&asked.stdout).trim()).join("bin/rustc");
    let Some(site) = RunTestbed::new("rustc", 2, "256MiB") else {
        return;
    };
    let (source, made) = (
        site.directory.path().join("sum.rs"),
        site.directory.path().join("sum"),
    );
    let text_of_it = "use std::collections::HashMap;
        fn main() {
            let mut lists: HashMap<u64, Vec<u64>> = HashMap::new();
            (0..10_000).for_each(|at| lists.entry(at % 97).or_default().push(at));
            println!(\"{}\", lists.values().flatten().sum::<u64>());
        }";
    std::fs::write(&source, text_of_it).unwrap();
    let mut command = site.run("8MiB", &[], &rustc);
    let ran = output(command.arg("-O").arg(&source).arg("-o").arg(&made));
    assert!(ran.status.success(), "{}", text(&ran.stderr));
    assert_eq!(text(&output(&mut Command::new(made)).stdout), "49995000\n");
}

#[test]
fn node_keeps_its_objects_and_buffers() {
    let Some(node) = real("node") else { return };
    let Some(site) = RunTestbed::new("node", 2, "256MiB") else {
        return;
    };
    let job = "
const words = new Map();
for (let i = 0; i < 50000; i++) words.set('key' + i, { i, pair: [i, i + 1] });
let sum = 0;
for (const word of words.values()) sum += word.i + word.pair[1];
const buffer = Buffer.alloc(16 << 20);
for (let i = 0; i < buffer.length; i += 8) buffer.writeUInt32LE(i, i);
const digest = require('crypto').createHash('sha256').update(buffer).digest('hex');
const child = require('child_process').execFileSync('echo', ['child']).toString();
console.log(sum, digest, child, require('zlib').deflateSync(buffer).length);
";
    says_the_same(&site, "4MiB", &node, &["-e", job]);
    // Its own heap is reserved before it is used, and stays here; buffers leave.
    assert!(site.returned() > 0);
}

#[test]
fn java_keeps_its_objects_and_buffers() {
    let Some(java) = real("java") else { return };
    let Some(site) = RunTestbed::new("java", 2, "256MiB") else {
        return;
    };
    let source = site.directory.path().join("Job.java");
    let job = "
import java.nio.ByteBuffer;
import java.util.HashMap;
public class Job {
    public static void main(String[] words) throws Exception {
        var pairs = new HashMap<String, int[]>();
        for (int i = 0; i < 50000; i++) pairs.put(\"key\" + i, new int[] { i, i + 1 });
        long sum = 0;
        for (int[] pair : pairs.values()) sum += pair[0] + pair[1];
        ByteBuffer buffer = ByteBuffer.allocateDirect(16 << 20);
        for (int i = 0; i < buffer.capacity(); i += 4) buffer.putInt(i, i * 31);
        for (int i = 0; i < buffer.capacity(); i += 4) sum = sum * 7 + buffer.getInt(i);
        Thread other = new Thread(() -> System.out.println(buffer.getInt(1 << 20)));
        other.start();
        other.join();
        System.out.println(sum);
    }
}";
    std::fs::write(&source, job).unwrap();
    // A compiler may be missing beside it.
    let words = ["-Xmx128m", "-XX:TieredStopAtLevel=1", source.to_str().unwrap()];
    let native = output(Command::new(&java).args(words));
    if !native.status.success() {
        return skipped(&format!("java runs no source: {}", text(&native.stderr)));
    }
    says_the_same(&site, "4MiB", &java, &words);
    assert!(site.told("sent") > 256);
}

/// Returns a Python that has DuckDB. Debian has no package of it, so `scripts/test-deps.sh` makes an
/// environment. `None`: there is none, and the test printed that it is skipped.
fn python_with_duckdb() -> Option<PathBuf> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let made = root.join("target/duckdb/bin/python3");
    let has_it = |python: &PathBuf| {
        let asked = Command::new(python).args(["-c", "import duckdb"]).output();
        asked.is_ok_and(|asked| asked.status.success())
    };
    let found = Some(made).filter(has_it).or_else(|| interpreter().filter(has_it));
    if found.is_none() {
        skipped("no `python3` has duckdb: scripts/test-deps.sh takes it from PyPI");
    }
    found
}

#[test]
fn duckdb_joins_and_groups_as_ever() {
    let Some(python) = python_with_duckdb() else {
        return;
    };
    let Some(site) = RunTestbed::new("duckdb", 2, "512MiB") else {
        return;
    };
    let job = "
import duckdb
base = duckdb.connect(':memory:')
base.execute('set threads = 2; set enable_progress_bar = false')
base.execute('create table t as select i, hash(i) % 1000003 as h, i % 97 as g from range(60000) r(i)')
print(base.execute('select g, count(*), sum(h) from t group by g order by g').fetchall())
print(base.execute('select count(*), sum(a.i * b.h) from t a join t b on a.h = b.h').fetchall())
print(base.execute('select i, h from t order by h, i limit 20 offset 30000').fetchall())
";
    says_the_same(&site, "8MiB", &python, &["-c", job]);
    assert!(site.returned() > 256, "{} pages came back", site.returned());
}
