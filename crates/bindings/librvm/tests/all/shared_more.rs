//! Programs in C and C++ that join shared regions: found stores, heaps, copies saved after the server is
//! lost; and the example, whose processes share a list.

use std::collections::BTreeSet;
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};
use std::time::Duration;

use crate::common::world::{ADDRESS, FixtureOptions, LOG_BYTES, RegionFixture};
use crate::common::{Installed, LANGUAGES, Language, compilers, has, succeed};
use netram_shared::server::rescue;

const CAPTURE: [&str; 7] = [
    "misuse",
    "found",
    "adaptive",
    "stray",
    "verified",
    "reported",
    "one_at_a_time",
];
const HEAP: [&str; 5] = ["blocks", "refused", "newer", "pinned", "found_by_page"];

/// A heap needs at least three pages.
fn heaps() -> FixtureOptions {
    FixtureOptions {
        span: 256 << 10,
        spans: 4,
        ..FixtureOptions::default()
    }
}

fn every_case(program: &str, cases: &[&str], shape: FixtureOptions) {
    if !compilers() {
        return;
    }
    let installed = Installed::new();
    let world = RegionFixture::start(shape);
    for language in LANGUAGES {
        let compiled = installed.compile(program, language, &["-lrvm", "-lpthread"]);
        let told = succeed(&mut installed.command(&compiled), program);
        for case in told.lines() {
            assert!(cases.contains(&case), "{case} is never run");
        }
        for case in cases {
            let mut command = world.case(installed.command(&compiled), case);
            let said = succeed(&mut command, &format!("{program} {case} ({language:?})"));
            assert!(said.is_empty(), "{case}: {said}");
        }
    }
}

#[test]
fn stores_are_found_as_chosen_and_stores_without_the_lock_are_reported() {
    every_case("capture", &CAPTURE, FixtureOptions::default());
}

#[test]
fn a_heap_under_a_lock_is_shared_by_all_nodes() {
    every_case("shared_heap", &HEAP, heaps());
}

#[test]
fn a_node_reports_its_state() {
    if !compilers() {
        return;
    }
    let installed = Installed::new();
    let world = RegionFixture::start(FixtureOptions::default());
    for language in LANGUAGES {
        let program = installed.compile("told", language, &["-lrvm"]);
        let said = succeed(&mut world.case(installed.command(&program), "told"), "told");
        assert!(said.is_empty(), "{said}");
    }
}

#[test]
fn a_lost_region_is_rebuilt_from_the_copy_of_a_node() {
    if !compilers() {
        return;
    }
    let installed = Installed::new();
    let program = installed.compile("told", Language::C, &["-lrvm"]);
    let mut world = RegionFixture::start(FixtureOptions {
        // The lease must expire, but on a busy machine not before the program has counted.
        lease: Duration::from_secs(5),
        ..FixtureOptions::default()
    });
    let mut command = world.case(installed.command(&program), "save");
    let command = command.env("NAME", "saver");
    let mut saver = command
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .expect("the program starts");
    let mut said = String::new();
    let output = saver.stdout.take().expect("the stream is piped");
    BufReader::new(output)
        .read_line(&mut said)
        .expect("a line is printed");
    assert_eq!(said, "3\n");
    world.lose();
    let mut input = saver.stdin.take().expect("the stream is piped");
    input.write_all(b"\n").expect("the input is open");
    assert!(saver.wait().expect("the child can be waited for").success());
    let made =
        rescue::rescue(&world.at("region"), &[world.at("copy")], LOG_BYTES).expect("the copy is complete");
    assert_ne!(made.region, made.was);
    assert_eq!(made.absent, []);
    world.serve();
    let mut command = world.case(installed.command(&program), "rescued");
    succeed(command.env("NAME", "saver"), "in the region made again");
}

/// Starts the example in the background.
fn list(installed: &Installed, world: &RegionFixture, program: &Path, node: &str, words: &[&str]) -> Child {
    let mut command = installed.command(program);
    command
        .arg(world.server())
        .arg(world.at(node))
        .arg(world.at("cluster.key"));
    command.args(words).stdout(Stdio::piped());
    command.spawn().expect("the program starts")
}

/// Lines of the example's output, after a successful end.
fn lines(child: Child) -> Vec<String> {
    let output = child.wait_with_output().expect("the child can be waited for");
    assert!(output.status.success(), "{output:?}");
    let said = String::from_utf8(output.stdout).expect("the output is ASCII");
    said.lines().map(str::to_owned).collect()
}

#[test]
fn the_example_takes_each_entry_of_the_shared_list_once() {
    if !compilers() {
        return;
    }
    let installed = Installed::new();
    let source = crate::common::root().join("crates/bindings/librvm/examples/list.c");
    let world = RegionFixture::start(FixtureOptions {
        address: ADDRESS,
        span: 1 << 20,
        spans: 1,
        ..FixtureOptions::default()
    });
    for language in LANGUAGES {
        let program: PathBuf = installed.compile_file(&source, language, &["-lrvm"]);
        let run = |node: &str, words: &[&str]| list(&installed, &world, &program, node, words);
        let (one, other) = (["add", "milk", "bread", "salt"], ["add", "ink", "paper", "pens"]);
        // Both add at once, each in its own order.
        let added = [run("one", &one), run("other", &other)];
        for adder in added {
            assert!(lines(adder).is_empty());
        }
        let shown = lines(run("one", &["show"]));
        for words in [one, other] {
            let newest_first: Vec<_> = words[1..].iter().rev().collect();
            let mine: Vec<_> = shown
                .iter()
                .filter(|text| newest_first.contains(&&text.as_str()))
                .collect();
            assert_eq!(mine, newest_first, "{shown:?}");
        }
        let takers = ["one", "other", "third"].map(|node| run(node, &["take"]));
        let mut taken: BTreeSet<String> = takers.map(lines).into_iter().flatten().collect();
        assert_eq!(taken.len(), 3);
        taken.extend(lines(run("one", &["show"])));
        assert_eq!(taken, shown.into_iter().collect());
        for _ in 0..3 {
            lines(run("other", &["take"]));
        }
        let mut none = run("one", &["take"]);
        assert_eq!(none.wait().expect("the child can be waited for").code(), Some(1));
    }
}

#[test]
#[ignore = "a minute; scripts/soak.sh runs it"]
fn programs_that_find_stores_and_use_heaps_are_clean_under_valgrind() {
    if !compilers() || !has("valgrind") {
        return;
    }
    let installed = Installed::new();
    let valgrind = installed.valgrind();
    for (program, cases, shape) in [
        // Valgrind has its own handler of SIGSEGV and no userfaultfd, so stores cannot be found by page under
        // it.
        ("capture", &["misuse", "adaptive"][..], FixtureOptions::default()),
        ("shared_heap", &HEAP[..4], heaps()),
    ] {
        let world = RegionFixture::start(shape);
        let compiled = installed.compile(program, Language::C, &["-lrvm", "-lpthread"]);
        for case in cases {
            let mut command = installed.command(&valgrind[0]);
            command.args(&valgrind[1..]).arg(&compiled);
            let mut command = world.case(command, case);
            succeed(command.env("WAIT", "block"), &format!("{case} under valgrind"));
        }
    }
}
