//! Programs that `netram-lab pagesim cc` has compiled.

use std::fmt::Write;

use crate::common::finish;

use super::*;

const WALKED: &[&str] = &["-DPAGES=300", "-DSTEPS=20000"];
const SMALL: &[&str] = &["--json", "--local", "400KiB,1600KiB", "--remote", "1MiB"];

/// References of `walk.c` in the form of `netram-lab pagesim trace`. A word that is added to is read and
/// written, or only written.
fn walk(reads: bool) -> String {
    let (mut trace, mut state) = (String::new(), 1_u64);
    for _ in 0..20_000 {
        state = state
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        let address = (state >> 33) % 300 * 8192 + (1 << 30);
        let adds = state >> 63 == 1;
        if reads || !adds {
            writeln!(trace, "R {address:x} 8").unwrap();
        }
        if adds {
            writeln!(trace, "W {address:x} 8").unwrap();
        }
    }
    trace
}

/// clang may omit a read that a write to the same word follows.
fn tells_what_it_references(compiler: &str, ways: &[bool]) {
    if !has(compiler) {
        return;
    }
    let program = Program::traced("walk", compiler, WALKED);
    let ran = program.exec(SMALL, &[]);
    assert!(ran.out.starts_with("walked\n"), "{}", ran.out);
    let found = studied(&ran);
    assert_eq!(found["pages"], 300);
    let trace = program.directory.path().join("trace");
    let told = |reads: &bool| {
        std::fs::write(&trace, walk(*reads)).unwrap();
        let told = studied(&finish(pagesim().arg("trace").arg(&trace).args(SMALL)));
        (told["references"].clone(), told["rows"].clone())
    };
    let told: Vec<(Value, Value)> = ways.iter().map(told).collect();
    let found = (found["references"].clone(), found["rows"].clone());
    assert!(told.contains(&found), "{found:?} is none of {told:?}");
}

#[test]
fn gcc_reports_each_reference() {
    tells_what_it_references("gcc", &[true]);
}

#[test]
fn clang_reports_each_reference() {
    tells_what_it_references("clang", &[true, false]);
}

#[test]
fn trans_in_c_equals_the_built_in_trans() {
    if !has("gcc") {
        return;
    }
    let built_in = studied(&finish(pagesim().args(["run", "trans", "--json"])));
    let in_c = studied(&Program::traced("trans", "gcc", &[]).exec(&["--json"], &[]));
    assert_eq!(in_c["traced"], built_in["traced"]);
    let events = |study: &Value| -> Vec<Value> {
        let rows = study["rows"].as_array().unwrap();
        let of = |row: &Value| {
            ["faults", "words", "fetched", "sent_dirty", "disk_written"].map(|name| row[name].clone())
        };
        rows.iter().flat_map(of).collect()
    };
    assert_eq!(events(&in_c), events(&built_in));
    assert_eq!(in_c["rows"][0]["faults"], 602_912);
}

#[test]
fn references_of_all_threads_are_counted() {
    for compiler in ["gcc", "clang"] {
        if !has(compiler) {
            continue;
        }
        let ran = Program::traced("threads", compiler, &[]).exec(&["--json"], &[]);
        assert!(ran.out.starts_with("total 400\n"), "{}", ran.out);
        let references = studied(&ran)["references"].as_u64().unwrap();
        // 4 x 1000 writes, 4 x 100 additions, and those of main.
        assert!((4400..4500).contains(&references), "{compiler}: {references}");
    }
}

#[test]
fn references_of_the_c_library_count_as_the_programs() {
    for compiler in ["gcc", "clang"] {
        if !has(compiler) {
            continue;
        }
        let ran = Program::traced("calls", compiler, &[]).exec(&["--json"], &[]);
        assert!(ran.out.starts_with("length 79999, sorted 1\n"), "{}", ran.out);
        // 10,000 words are set, copied and moved, and the end of as many is looked for: six passes, before
        // anything is sorted.
        let references = studied(&ran)["references"].as_u64().unwrap();
        assert!((60_000..90_000).contains(&references), "{compiler}: {references}");
    }
}

#[test]
fn references_of_children_are_not_counted_with_a_message() {
    if !has("gcc") {
        return;
    }
    let ran = Program::traced("forks", "gcc", &[]).exec(&["--json"], &[]);
    assert!(ran.out.starts_with("all came back\n"), "{}", ran.out);
    assert!(ran.err.contains("forked 40 children"), "{}", ran.err);
    let study = studied(&ran);
    assert_eq!(study["children"], 40);
    // The thread's array is nine pages; each child's memory would be eight thousand.
    assert!(study["pages"].as_u64().unwrap() < 100, "{study}");
}

#[test]
fn a_program_that_it_starts_is_not_studied() {
    if !has("gcc") {
        return;
    }
    let (outer, inner) = (
        Program::traced("ends", "gcc", &[]),
        Program::traced("walk", "gcc", WALKED),
    );
    let inner = inner.path();
    let ran = outer.exec(&["--json"], &["start", inner.to_str().unwrap()]);
    assert!(ran.out.starts_with("walked\n"), "{}", ran.out);
    assert!(studied(&ran)["pages"].as_u64().unwrap() < 300);
}

#[test]
fn the_exit_status_is_reported() {
    if !has("gcc") {
        return;
    }
    let program = Program::traced("ends", "gcc", &[]);
    let seven = program.exec(&[], &["seven"]);
    assert_eq!(seven.code, 7);
    assert!(seven.err.contains("ended with code 7"), "{}", seven.err);
    for (how, says) in [
        ("signal", "was ended by signal 9 without writing its references"),
        ("_exit", "ended with code 0 without writing its references"),
        ("exec", "ended with code 0 without writing its references"),
    ] {
        let ran = program.exec(&[], &[how]);
        assert!(ran.code != 0 && ran.err.contains(says), "{how}: {}", ran.err);
    }
    // Without the study it runs as before.
    assert_eq!(finish(Command::new(program.path()).arg("seven")).code, 7);
}

#[test]
fn sources_may_be_compiled_separately_and_linked_later() {
    if !has("gcc") {
        return;
    }
    let program = Program::new();
    let object = program.directory.path().join("walk.o");
    let compile = |command: &mut Command| {
        let ran = finish(command);
        assert_eq!(ran.code, 0, "{}", ran.err);
    };
    compile(
        pagesim()
            .args(["cc", "-c", "-O1"])
            .args(WALKED)
            .arg("-o")
            .arg(&object)
            .arg(source("walk")),
    );
    compile(pagesim().arg("cc").arg(&object).arg("-o").arg(program.path()));
    let study = studied(&program.exec(SMALL, &[]));
    assert_eq!(study["pages"], 300);
}
