//! Programs in C and C++ that join shared regions, with a real server and a real lender.

use std::io::{BufRead, BufReader};
use std::os::unix::process::ExitStatusExt;
use std::process::{Child, Stdio};

use crate::common::world::{ADDRESS, FixtureOptions, RegionFixture};
use crate::common::{Installed, LANGUAGES, Language, compilers, has, succeed};

const KILL: i32 = 9;
/// Cases that join and leave by themselves, so that one server can serve all of them.
const CASES: [&str; 9] = [
    "life", "misuse", "locks", "reader", "expired", "threads", "gone", "forked", "table_1",
];
/// A child of fork has lost the stacks of its parent's threads; the other cases left out only take long.
const UNDER_VALGRIND: [&str; 6] = ["life", "misuse", "locks", "reader", "threads", "table_1"];

fn compiled(installed: &Installed, language: Language) -> std::path::PathBuf {
    installed.compile("shared", language, &["-lrvm", "-lpthread"])
}

#[test]
fn every_case_of_a_shared_region_succeeds_in_c_and_in_cpp() {
    if !compilers() {
        return;
    }
    let installed = Installed::new();
    let world = RegionFixture::start(FixtureOptions::default());
    for language in LANGUAGES {
        let program = compiled(&installed, language);
        for case in CASES {
            let mut command = world.case(installed.command(&program), case);
            let said = succeed(&mut command, &format!("shared {case} ({language:?})"));
            assert!(said.is_empty(), "{case}: {said}");
        }
    }
}

/// The program in docs/guide/shared-memory.md.
#[test]
fn the_documents_program_compiles_and_runs() {
    if !compilers() {
        return;
    }
    let installed = Installed::new();
    let page = std::fs::read_to_string(crate::common::root().join("docs/guide/shared-memory.md"))
        .expect("the file is in the tree");
    let program = page
        .split("```c\n")
        .nth(1)
        .and_then(|rest| rest.split("```").next());
    let source = installed.directory().join("shown.c");
    std::fs::write(&source, program.expect("the page shows one")).expect("the file can be written");
    let world = RegionFixture::start(FixtureOptions::default());
    for language in LANGUAGES {
        let program = installed.compile_file(&source, language, &["-lrvm"]);
        let mut command = installed.command(program);
        command
            .arg(world.server())
            .arg(format!("node-{language:?}"))
            .env("NETRAM_KEY_FILE", "cluster.key")
            .current_dir(world.directory.path());
        succeed(&mut command, "the document's program");
    }
}

#[test]
fn every_case_of_a_shared_region_is_in_a_list() {
    if !compilers() {
        return;
    }
    let installed = Installed::new();
    let program = compiled(&installed, Language::C);
    let told = succeed(&mut installed.command(&program), "shared");
    let apart = ["address", "count", "run", "look"];
    for case in told.lines() {
        assert!(
            CASES.contains(&case) || apart.contains(&case),
            "{case} is never run"
        );
    }
}

#[test]
fn a_region_with_an_address_is_mapped_there_or_not_at_all() {
    if !compilers() {
        return;
    }
    let installed = Installed::new();
    let program = compiled(&installed, Language::C);
    let world = RegionFixture::start(FixtureOptions {
        address: ADDRESS,
        ..FixtureOptions::default()
    });
    succeed(&mut world.case(installed.command(&program), "address"), "address");
}

#[test]
#[ignore = "a minute; scripts/soak.sh runs it"]
fn programs_on_a_shared_region_are_clean_under_valgrind() {
    if !compilers() || !has("valgrind") {
        return;
    }
    let installed = Installed::new();
    let program = compiled(&installed, Language::C);
    let world = RegionFixture::start(FixtureOptions::default());
    let valgrind = installed.valgrind();
    for case in UNDER_VALGRIND {
        let mut command = installed.command(&valgrind[0]);
        command.args(&valgrind[1..]).arg(&program);
        // Valgrind runs one thread at a time: a polling thread would block the others.
        let mut command = world.case(command, case);
        succeed(command.env("WAIT", "block"), &format!("{case} under valgrind"));
    }
}

/// Numbers that a program prints, one per line.
fn numbers(child: &mut Child) -> impl Iterator<Item = u64> + use<> {
    let output = child.stdout.take().expect("the stream is piped");
    let lines = BufReader::new(output).lines();
    // The last line of a killed program may be incomplete.
    lines.map_while(|line| line.ok()?.parse().ok())
}

#[test]
fn two_processes_never_count_a_number_twice() {
    const LAST: u64 = 400;
    if !compilers() {
        return;
    }
    let installed = Installed::new();
    let program = compiled(&installed, Language::C);
    let world = RegionFixture::start(FixtureOptions::default());
    let start = |name: &str| {
        let mut command = world.case(installed.command(&program), "count");
        let command = command.env("NAME", name).env("LAST", LAST.to_string());
        command
            .stdout(Stdio::piped())
            .spawn()
            .expect("the program starts")
    };
    let mut children = [start("one"), start("two")];
    let mut said: Vec<u64> = Vec::new();
    for child in &mut children {
        let of_this = numbers(child).collect::<Vec<_>>();
        assert!(of_this.is_sorted(), "{of_this:?}");
        said.extend(of_this);
    }
    for child in &mut children {
        assert!(child.wait().expect("the child can be waited for").success());
    }
    said.sort_unstable();
    assert_eq!(said, (1..=LAST).collect::<Vec<_>>());
}

#[test]
fn commits_of_a_killed_program_are_complete_for_the_next() {
    if !compilers() {
        return;
    }
    let installed = Installed::new();
    let program = compiled(&installed, Language::C);
    let world = RegionFixture::start(FixtureOptions::default());
    let mut before = 0;
    for round in 0..3 {
        let mut command = world.case(installed.command(&program), "run");
        let command = command.env("NAME", "victim").stdout(Stdio::piped());
        let mut victim = command.spawn().expect("the program starts");
        let mut said = numbers(&mut victim);
        let mut last = 0;
        for _ in 0..20 + 37 * round {
            last = said.next().expect("the program runs until it is killed");
        }
        victim.kill().expect("the command runs");
        last = said.last().unwrap_or(last).max(last);
        assert_eq!(
            victim.wait().expect("the child can be waited for").signal(),
            Some(KILL)
        );
        assert!(last > before, "it continued where the previous one had ended");

        // Another node, which waits until the victim is known to be dead; in the last round the successor of
        // the victim.
        let name = if round == 2 { "victim" } else { "another" };
        let mut command = world.case(installed.command(&program), "look");
        let found = succeed(command.env("NAME", name), "looking");
        let found: u64 = found.trim().parse().expect("the output is a number");
        assert!(
            found == last || found == last + 1,
            "{last} was printed, {found} was found"
        );
        before = found;
    }
}
