//! Unmodified programs in QEMU.

use super::*;

fn has_emulator() -> bool {
    has("gcc") && has(&format!("qemu-{}", std::env::consts::ARCH))
}

#[test]
fn each_referenced_page_is_counted() {
    if !has_emulator() {
        return;
    }
    let pages = |words: &[&str]| {
        let ran = Program::plain("walk", words).exec(&["--json", "--local", "1GiB", "--policy", "disk"], &[]);
        assert!(ran.out.starts_with("walked\n"), "{}", ran.out);
        let study = studied(&ran);
        let row = &study["rows"][0];
        assert_eq!(row["faults"], study["pages"], "there is room for all");
        (
            study["pages"].as_i64().unwrap(),
            study["references"].as_i64().unwrap(),
        )
    };
    let (few, short) = pages(&["-DPAGES=100", "-DSTEPS=30000"]);
    let (many, long) = pages(&["-DPAGES=400", "-DSTEPS=60000"]);
    // The loader, the libraries and the stack are the same in both, except for their addresses.
    assert!((many - few - 300).abs() <= 20, "{few} and {many} pages");
    assert!(
        (long - short - 45_000).abs() <= 5_000,
        "{short} and {long} references"
    );
}

#[test]
fn all_threads_of_an_unmodified_program_are_counted() {
    if !has_emulator() {
        return;
    }
    let ran = Program::plain("threads", &[]).exec(&["--json", "--local", "1GiB"], &[]);
    assert!(ran.out.starts_with("total 400\n"), "{}", ran.out);
    assert!(studied(&ran)["references"].as_u64().unwrap() > 4400);
}

/// Tested with a program without threads: in the emulator a fork of a program with threads may wait for ever
/// for one of the emulator's own locks.
#[test]
fn children_in_the_emulator_are_left_out_with_a_message() {
    if !has_emulator() {
        return;
    }
    let ran =
        Program::plain("forks", &["-DALONE"]).exec(&["--json", "--local", "1GiB", "--policy", "disk"], &[]);
    assert!(ran.out.starts_with("all came back\n"), "{}", ran.out);
    assert!(ran.err.contains("forked 40 children"), "{}", ran.err);
    assert!(studied(&ran)["pages"].as_u64().unwrap() < 4000);
}
