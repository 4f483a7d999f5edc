//! Refusals, and their messages.

use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::process::{Command, Stdio};

use crate::common::{LenderProcess, netram, start};
use crate::sqlite::{SqliteTestbed, finish, no_shell};

#[test]
fn without_netram_it_is_no_database_and_stays_as_it_is() {
    if no_shell() {
        return;
    }
    let site = SqliteTestbed::new("sqlite-plain", 0);
    let made = site.shell("create table t(n);\ninsert into t values(7);\nselect n from t;\n");
    assert_eq!((made.code, made.out.trim()), (0, "7"), "{}", made.err);
    let plain = finish(
        Command::new("sqlite3")
            .arg(site.database())
            .arg("create table u(n)"),
    );
    assert!(
        plain.code != 0 && plain.err.contains("not a database"),
        "{}",
        plain.err
    );
    let found = site.shell("select n from t;\n.tables\n");
    assert_eq!(found.out.split_whitespace().collect::<Vec<_>>(), ["7", "t"]);
    let twice = finish(&mut site.netram("create"));
    assert!(twice.code != 0 && twice.err.contains("already"), "{}", twice.err);
}

#[test]
fn a_plain_database_is_not_opened_and_the_error_names_create() {
    if no_shell() {
        return;
    }
    let site = SqliteTestbed::new("sqlite-free", 0);
    assert_eq!(finish(&mut site.netram("detach")).code, 0);
    let refused = site.shell("select 1;\n");
    assert!(refused.err.contains("netram sqlite create"), "{}", refused.err);
    for what in ["detach", "recover", "status"] {
        let refused = finish(&mut site.netram(what));
        assert!(
            refused.code != 0 && refused.err.contains("does not manage"),
            "{}",
            refused.err
        );
    }
    fs::write(site.database(), "a letter").unwrap();
    let refused = finish(&mut site.netram("create"));
    assert!(refused.err.contains("not a SQLite database"), "{}", refused.err);
}

#[test]
fn an_open_database_is_not_detached() {
    if no_shell() {
        return;
    }
    let site = SqliteTestbed::new("sqlite-open", 0);
    let made = site.shell(&format!(
        "create table t(n);\n.shell {} sqlite detach {} 2>&1 || true\n",
        crate::common::program(),
        site.database().display()
    ));
    assert!(
        made.out.contains("open in another process"),
        "{} {}",
        made.out,
        made.err
    );
    let settled = finish(site.netram("status").arg("--json"));
    let status: serde_json::Value = serde_json::from_str(&settled.out).unwrap();
    assert_eq!((&status["open"], &status["seats"]), (&false.into(), &2.into()));
}

/// Both lenders are lost with what only they had: this is reported.
#[test]
fn a_recovery_without_proof_is_refused_with_the_missing_lenders() {
    if no_shell() {
        return;
    }
    let mut site = SqliteTestbed::new("sqlite-lost", 2);
    let made = site.shell("pragma journal_mode=wal;\ncreate table t(n integer primary key, filler);\n");
    assert_eq!(made.code, 0, "{}", made.err);
    let said = site.directory.path().join("said");
    let mut writer = site.writer("wal", 1, 1, &said);
    crate::sqlite::wait_until("some commits", || {
        site.seats_taken() == 1 && crate::sqlite::said_bytes(&said) > 3000
    });
    writer.kill().unwrap();
    writer.wait().unwrap();
    let addresses: Vec<String> = site.lenders.iter().map(|lender| lender.address.clone()).collect();
    site.lenders.clear();
    let refused = finish(&mut site.netram("recover"));
    assert!(
        refused.code != 0 && refused.err.contains(&addresses[0]),
        "{}",
        refused.err
    );
    let accepted = finish(site.netram("recover").arg("--accept-loss"));
    assert_eq!(accepted.code, 0, "{}", accepted.err);
    assert_eq!(site.shell("pragma integrity_check;\n").out.trim(), "ok");
}

/// The reason is reported when the database is created, and by each process that commits. A process that runs
/// for less time than lenders may take to join prints nothing.
#[test]
fn lenders_that_do_not_count_are_reported() {
    if no_shell() {
        return;
    }
    let directory = tempfile::tempdir_in("/var/tmp").unwrap();
    let database = directory.path().join("app.db");
    let lender = LenderProcess::start("sqlite-feed", &["--insecure", "--listen", "tcp://127.0.0.1:0"]);
    let mut create = netram();
    create.args(["sqlite", "create"]).arg(&database);
    let made = finish(create.args(["--insecure", "--lender", &lender.address]));
    assert_eq!(made.code, 0, "{}", made.err);
    let told = |said: &str| {
        said.contains("commits wait for the disk") && said.contains("netram lender serve --domain")
    };
    assert!(told(&made.err), "{}", made.err);
    let mut shell = Command::new("sqlite3");
    shell
        .args(["-batch", "-bail"])
        .stdin(Stdio::piped())
        .stdout(Stdio::null());
    let mut shell = start(shell.stderr(Stdio::piped()));
    let text = format!(
        ".load {}\n.open file:{}?vfs=netram\ncreate table t(n);\ninsert into t values(7);\n",
        crate::sqlite::library().with_extension("").display(),
        database.display()
    );
    // It runs on, with its input open, until it has printed it.
    let mut input = shell.stdin.take().unwrap();
    input.write_all(text.as_bytes()).unwrap();
    let mut lines = BufReader::new(shell.stderr.take().unwrap());
    let mut said = String::new();
    while !told(&said) {
        said.clear();
        assert_ne!(lines.read_line(&mut said).unwrap(), 0, "it ended");
    }
    drop(input);
    assert!(shell.wait().unwrap().success());
}

/// The message was only that netram does not hold x.db, and to create it, which does not help with a copy
/// that is to become a plain file.
#[test]
fn a_plain_file_beside_it_is_opened_as_the_message_says() {
    if no_shell() {
        return;
    }
    let site = SqliteTestbed::new("sqlite-beside", 0);
    let made = site.shell("create table t(n);\ninsert into t values(7);\n");
    assert_eq!(made.code, 0, "{}", made.err);
    let plain = site.directory.path().join("plain.db");
    let refused = site.shell(&format!("vacuum into '{}';\n", plain.display()));
    let remedy = format!(
        "file:{}?vfs=unix",
        plain.canonicalize().unwrap_or(plain.clone()).display()
    );
    assert!(
        refused.code != 0 && refused.err.contains(&remedy),
        "{}",
        refused.err
    );
    let copied = site.shell(&format!("vacuum into '{remedy}';\n"));
    assert_eq!(copied.code, 0, "{}", copied.err);
    let refused = site.shell(&format!("attach '{}' as plain;\n", plain.display()));
    assert!(
        refused.code != 0 && refused.err.contains(&remedy),
        "{}",
        refused.err
    );
    let attached = site.shell(&format!("attach '{remedy}' as plain;\nselect n from plain.t;\n"));
    assert_eq!((attached.code, attached.out.trim()), (0, "7"), "{}", attached.err);
}

#[test]
fn a_user_without_access_is_refused_with_the_directorys_owner() {
    use std::os::unix::fs::PermissionsExt;
    use std::os::unix::process::CommandExt;
    if !rustix::process::geteuid().is_root() {
        crate::common::skipped("only root can become another user");
        return;
    }
    let site = SqliteTestbed::new("sqlite-user", 0);
    fs::set_permissions(site.directory.path(), fs::Permissions::from_mode(0o755)).unwrap();
    let nobody = |command: &mut Command| finish(command.uid(65_534).gid(65_534));
    if Command::new(crate::common::program())
        .arg("--version")
        .uid(65_534)
        .gid(65_534)
        .output()
        .is_err()
    {
        crate::common::skipped("the program lies where other users may not look");
        return;
    }
    for what in ["status", "recover", "detach", "create"] {
        let refused = nobody(&mut site.netram(what));
        assert!(
            refused.code != 0
                && refused.err.contains("app.db-netram belongs to user 0")
                && refused.err.contains("run this as"),
            "{what}: {}",
            refused.err
        );
    }
}

#[test]
fn a_directory_in_the_place_of_a_database_is_called_one() {
    let directory = tempfile::tempdir_in("/var/tmp").unwrap();
    let refused = finish(
        netram()
            .args(["sqlite", "create", "--insecure"])
            .arg(directory.path()),
    );
    assert!(
        refused.code != 0 && refused.err.contains("is a directory; give the path"),
        "{}",
        refused.err
    );
    assert_eq!(fs::read_dir(directory.path()).unwrap().count(), 0);
}
