//! Programs in C and C++, with each case in a process of its own.

use crate::common::{Installed, LANGUAGES, Language, compilers, has, succeed};

/// A program and its cases. The cases of one list run in one directory, one after the other.
type Program = (&'static str, &'static [&'static [&'static str]]);

const PROGRAMS: &[Program] = &[
    ("layout", &[&["values"]]),
    ("records", &[&["names"], &["offsets"], &["defaults"], &["heap"]]),
    (
        "start",
        &[
            &["version"],
            &["before"],
            &["after"],
            &["twice"],
            &["no_log"],
            &["named_late"],
            &["options"],
            &["missing"],
            &["exists"],
            &["tried_again"],
            &["original"],
            &["in_use"],
            &["forked"],
            &["not_utf8"],
        ],
    ),
    (
        "transactions",
        &[
            &["modes"],
            &["overlaps"],
            &["stale"],
            &["ranges"],
            &["nothing", "nothing_after"],
            &["too_big"],
            &["many", "many_after"],
            &["query"],
            &["query_freed"],
        ],
    ),
    (
        "regions",
        &[
            &["rounding"],
            &["refused"],
            &["stale_remap"],
            &["addresses"],
            &["large"],
            &["several"],
            &["no_memory"],
        ],
    ),
    (
        "segments",
        &[
            &["create"],
            &["load", "load_again"],
            &["refused", "another_version"],
        ],
    ),
    (
        "statistics",
        &[&["refused"], &["counts"], &["beside_truncation"], &["print"]],
    ),
    (
        "threads",
        &[
            &["many", "many_after"],
            &["unmap_refused"],
            &["texts"],
            &["signals_are_the_programs"],
            &["cancelled"],
            &["cancellation_is_the_threads"],
        ],
    ),
    (
        "crash",
        &[&["leave", "leave_after"], &["ends_well", "open_after"]],
    ),
    ("failing", &[&["log_fails", "log_after"]]),
    ("lenders", &[&["alone"], &["alone_with_log"]]),
    (
        "heap",
        &[
            &["make", "made"],
            &["codes"],
            &["no_restore_abort"],
            &["intentions"],
            &["figures"],
            &["occupied"],
            &["damaged"],
            &["own_region"],
            &["threads"],
            &["killed"],
        ],
    ),
    (
        "heap_at_once",
        &[
            &["ended"],
            &["cleared"],
            &["stopped"],
            &["unloaded"],
            &["not_unloaded"],
        ],
    ),
];

/// Cases that do not run under valgrind: ones that map more than it can follow or take minutes, a child of
/// fork, which has lost the stacks of its parent's threads, and ones that leave valgrind no descriptor.
const NOT_UNDER_VALGRIND: [&str; 7] = [
    "large",
    "no_memory",
    "many",
    "leave",
    "forked",
    "tried_again",
    "killed",
];

/// Cases in which the library prints.
const PRINTING: [&str; 2] = ["print", "figures"];

fn run_all(
    programs: &[Program],
    installed: &Installed,
    language: Language,
    wrap: &[&str],
    left_out: &[&str],
) {
    for (name, sequences) in programs {
        let program = installed.compile(name, language, &["-lrvm", "-lpthread"]);
        for sequence in sequences.iter().filter(|cases| !left_out.contains(&cases[0])) {
            let place = tempfile::tempdir().expect("a temporary directory");
            for case in *sequence {
                let mut command = match wrap {
                    [] => installed.command(&program),
                    [first, rest @ ..] => {
                        let mut command = installed.command(first);
                        command.args(rest).arg(&program);
                        command
                    }
                };
                let said = succeed(
                    command.arg(case).arg(place.path()),
                    &format!("{name} {case} ({language:?})"),
                );
                // The original's library printed messages, which disturbed programs that use stdout for a
                // protocol.
                assert!(
                    said.is_empty() || PRINTING.contains(case),
                    "{name} {case}: {said}"
                );
            }
        }
    }
}

#[test]
fn every_case_succeeds_in_c_and_in_cpp() {
    if !compilers() {
        return;
    }
    let installed = Installed::new();
    for language in LANGUAGES {
        run_all(PROGRAMS, &installed, language, &[], &[]);
    }
}

#[test]
fn every_case_of_the_programs_is_in_the_list() {
    if !compilers() {
        return;
    }
    let installed = Installed::new();
    for (name, sequences) in PROGRAMS {
        let program = installed.compile(name, Language::C, &["-lrvm", "-lpthread"]);
        let told = succeed(&mut installed.command(&program), name);
        let listed: Vec<&str> = sequences.iter().flat_map(|cases| cases.iter().copied()).collect();
        // Cases that need more than a directory are run by other tests.
        let apart = [
            "run",
            "look",
            "add",
            "open_at_the_end",
            "die",
            "recover",
            "held",
            "nobody",
            "wrong_settings",
            "interrupted",
            "made_by_its_tool",
        ];
        for case in told.lines().filter(|case| !apart.contains(case)) {
            assert!(listed.contains(&case), "{name} {case} is never run");
        }
    }
}

/// The programs before those with several threads and heaps, or these: each half takes a minute and more.
fn halves() -> (&'static [Program], &'static [Program]) {
    let second = PROGRAMS.iter().position(|(name, _)| *name == "statistics");
    PROGRAMS.split_at(second.expect("the list has the program"))
}

#[test]
fn programs_on_segments_are_clean_under_valgrind() {
    clean_under_valgrind(halves().0);
}

#[test]
fn programs_with_threads_and_heaps_are_clean_under_valgrind() {
    clean_under_valgrind(halves().1);
}

fn clean_under_valgrind(programs: &[Program]) {
    if !compilers() || !has("valgrind") {
        return;
    }
    let installed = Installed::new();
    // Valgrind reads debugging information in each of seventy processes, which takes longer than running
    // them.
    installed.strip();
    let valgrind = installed.valgrind();
    let valgrind: Vec<&str> = valgrind.iter().map(String::as_str).collect();
    run_all(programs, &installed, Language::C, &valgrind, &NOT_UNDER_VALGRIND);
}
