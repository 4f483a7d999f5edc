//! Which tests there are: the programs that cargo builds, and the tests that each program lists.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use serde_json::Value;

use super::{Kind, Test, compiled, python};
use crate::tree;

/// Set for tests that load a library of the workspace, or compile against one: cargo has built it already.
pub(crate) const BUILT: &str = "NETRAM_TEST_BUILT";

/// Whose packages are built together: with the same features, so that nothing is compiled twice.
///
/// The simulator is built by itself: it plants faults in the protocol's crate, and no product may have them.
const TOGETHER: [&[&str]; 2] = [
    &["--workspace", "--exclude=netram-sim"],
    &["--package=netram-sim"],
];

/// Set for what builds a part of it: these arguments make cargo find all of it built.
pub(super) const BUILD_LINE: &str = "NETRAM_TEST_BUILD";

/// Everything that is built for testing. Programs and C libraries are among it, which `cargo test` leaves
/// out.
const BUILD: [&str; 7] = [
    "build",
    "--lib",
    "--bins",
    "--tests",
    "--examples",
    "--profile=test",
    "--message-format=json",
];

/// A program with tests in it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Program {
    title: String,
    executable: PathBuf,
    directory: PathBuf,
}

/// Builds every program with tests, and everything that tests start or load. Clippy judges it on the way, and
/// a warning fails.
pub(super) fn build(root: &Path) -> Result<Vec<Program>, String> {
    let mut programs = Vec::new();
    for packages in TOGETHER {
        programs.extend(build_some(root, packages)?);
    }
    // As an installation makes them, for the tests of the C library, which would each make them anew.
    let names = root.join("packaging/librvm/install.sh");
    let made = Command::new(&names).arg("names").arg(tree::built(root)).status();
    if !made.is_ok_and(|status| status.success()) {
        return Err(format!("{} names: failed", names.display()));
    }
    Ok(programs)
}

/// The arguments that build the workspace.
pub(super) fn build_line() -> String {
    [&BUILD[..], TOGETHER[0]].concat().join(" ")
}

fn build_some(root: &Path, packages: &[&str]) -> Result<Vec<Program>, String> {
    let line = format!("cargo {} {}", BUILD.join(" "), packages.join(" "));
    let mut cargo = tree::checked_cargo(root)
        .args(BUILD)
        .args(packages)
        .stdout(Stdio::piped())
        .spawn()
        .map_err(|error| format!("`{line}` could not be started: {error}"))?;
    let messages = cargo.stdout.take().ok_or("cargo has no output")?;
    let (mut programs, mut warnings) = (Vec::new(), 0);
    for message in BufReader::new(messages).lines() {
        let message = message.map_err(|error| format!("`{line}`: {error}"))?;
        let message: Value = serde_json::from_str(&message).map_err(|error| format!("`{line}`: {error}"))?;
        if let Some(rendered) = complaint(&message) {
            eprint!("{rendered}");
            warnings += 1;
        }
        programs.extend(program_of(&message));
    }
    let status = cargo.wait().map_err(|error| format!("`{line}`: {error}"))?;
    if !status.success() || warnings > 0 {
        return Err(format!("`{line}`: {status}, {warnings} warnings and errors"));
    }
    Ok(programs)
}

/// A warning or an error of the compiler's, as it would print it.
fn complaint(message: &Value) -> Option<&str> {
    if message.get("reason")?.as_str()? != "compiler-message" {
        return None;
    }
    message.get("message")?.get("rendered")?.as_str()
}

/// Builds what tests need, without running any.
pub(crate) fn built() -> Result<(), String> {
    let programs = build(&tree::root()?)?;
    println!("build: {} programs with tests", programs.len());
    Ok(())
}

/// The program that a message of cargo's tells of, if it is one with tests.
fn program_of(message: &Value) -> Option<Program> {
    if message.get("reason")?.as_str()? != "compiler-artifact"
        || !message.get("profile")?.get("test")?.as_bool()?
    {
        return None;
    }
    let executable = PathBuf::from(message.get("executable")?.as_str()?);
    let directory = Path::new(message.get("manifest_path")?.as_str()?).parent()?;
    let target = message.get("target")?;
    let kind = target.get("kind")?.get(0)?.as_str()?;
    let name = match kind {
        "test" => target.get("name")?.as_str()?,
        _ => "unit",
    };
    let package = package_of(message.get("package_id")?.as_str()?);
    Some(Program {
        title: format!("{package} {name}"),
        executable,
        directory: directory.to_path_buf(),
    })
}

/// The package's name, without what all of them begin with: from `path+file:///DIRECTORY#NAME@VERSION`, in
/// which NAME is left out where the directory is called so.
fn package_of(id: &str) -> &str {
    let (place, version) = id.split_once('#').unwrap_or((id, ""));
    let name = match version.split_once('@') {
        Some((name, _)) => name,
        None => place.rsplit('/').next().unwrap_or(place),
    };
    name.strip_prefix("netram-").unwrap_or(name)
}

/// The tests of these programs that are not ignored.
pub(super) fn tests(programs: &[Program]) -> Result<Vec<Test>, String> {
    let mut found = Vec::new();
    for program in programs {
        let ignored = list(program, true)?;
        for name in list(program, false)? {
            if !ignored.contains(&name) {
                found.push(Test {
                    program: program.title.clone(),
                    name,
                    kind: Kind::Harness,
                    executable: program.executable.clone(),
                    arguments: Vec::new(),
                    directory: program.directory.clone(),
                });
            }
        }
    }
    Ok(found)
}

fn list(program: &Program, ignored: bool) -> Result<Vec<String>, String> {
    let mut command = Command::new(&program.executable);
    command
        .args(["--list", "--format", "terse"])
        .current_dir(&program.directory);
    if ignored {
        command.arg("--ignored");
    }
    let path = program.executable.display();
    let output = command.output().map_err(|error| format!("{path}: {error}"))?;
    if !output.status.success() {
        return Err(format!("{path} --list: {}", output.status));
    }
    let text = String::from_utf8_lossy(&output.stdout);
    Ok(names(&text).map(String::from).collect())
}

fn names(listed: &str) -> impl Iterator<Item = &str> {
    listed.lines().filter_map(|line| line.strip_suffix(": test"))
}

/// Prefixes of the titles of tests that take a minute or so. Without recorded times they must not begin last.
const LONG: [&str; 8] = [
    "librvm all programs::programs_on_segments",
    "librvm all programs::programs_with_threads",
    "lab all databases_compared::",
    "lab all demo::oo7",
    "lab all paper",
    "lab all peers::",
    "lab all shared_figures::",
    "lab all volume_figures::",
];

/// Long tests begin first, so that none is left to itself at the end. Tests without a known time are long if
/// they are in the program of a crate that starts processes, and short if they are in the crate's own code.
pub(super) fn longest_first(tests: &mut [Test], times: &BTreeMap<String, Duration>) {
    let guess = |test: &Test| match test.program.as_str() {
        _ if is_long(test) => Duration::from_secs(60),
        "cli all" | "lab all" => Duration::from_secs(5),
        python::PROGRAM => Duration::from_secs(240),
        // Whatever they take: after the script, which asks cargo for what is built, and would wait for these.
        compiled::PROGRAM => Duration::from_secs(50),
        program if program.ends_with(" unit") => Duration::ZERO,
        _ => Duration::from_secs(1),
    };
    tests.sort_by_cached_key(|test| {
        let known = times
            .get(&test.title())
            .filter(|_| test.program != compiled::PROGRAM);
        std::cmp::Reverse(known.copied().unwrap_or_else(|| guess(test)))
    });
}

fn is_long(test: &Test) -> bool {
    let title = test.title();
    LONG.iter().any(|beginning| title.starts_with(beginning))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn test(program: &str, name: &str) -> Test {
        Test {
            program: program.into(),
            name: name.into(),
            kind: Kind::Harness,
            executable: PathBuf::new(),
            arguments: Vec::new(),
            directory: PathBuf::new(),
        }
    }

    #[test]
    fn programs_with_tests_are_told_from_what_else_cargo_builds() {
        let message = |test: bool, kind: &str, executable: Value| {
            serde_json::json!({
                "reason": "compiler-artifact", "manifest_path": "/tree/crates/block/volume/Cargo.toml",
                "package_id": "path+file:///tree/crates/block/volume#netram-volume@0.1.0",
                "target": {"kind": [kind], "name": "all"}, "profile": {"test": test}, "executable": executable,
            })
        };
        let found = program_of(&message(true, "test", "/target/all-1".into())).expect("a program with tests");
        assert_eq!(
            (found.title.as_str(), found.directory.to_str()),
            ("volume all", Some("/tree/crates/block/volume"))
        );
        let unit = program_of(&message(true, "lib", "/target/a".into())).expect("a crate's own tests");
        assert_eq!(unit.title, "volume unit");
        assert_eq!(program_of(&message(false, "bin", "/target/netram".into())), None);
        assert_eq!(program_of(&message(true, "lib", Value::Null)), None);
        assert_eq!(program_of(&serde_json::json!({"reason": "build-finished"})), None);
    }

    #[test]
    fn a_package_is_known_by_its_id() {
        assert_eq!(
            package_of("path+file:///tree/crates/lender#netram-lender@0.1.0"),
            "lender"
        );
        assert_eq!(
            package_of("path+file:///tree/crates/bindings/librvm#0.1.0"),
            "librvm"
        );
        assert_eq!(package_of("path+file:///tree/xtask#0.1.0"), "xtask");
    }

    #[test]
    fn benchmarks_and_empty_lines_are_no_tests() {
        let listed = "a::b: test\nc: benchmark\n\n1 test, 1 benchmark\n";
        assert_eq!(names(listed).collect::<Vec<_>>(), ["a::b"]);
    }

    #[test]
    fn the_longest_test_begins_first_and_unknown_ones_by_their_program() {
        let mut tests = [
            test("proto unit", "a"),
            test("cli all", "b"),
            test("rvm all", "c"),
            test("rvm all", "d"),
            test("lab all", "volume_figures::e"),
        ];
        let times = BTreeMap::from([("rvm all d".to_string(), Duration::from_secs(90))]);
        longest_first(&mut tests, &times);
        assert_eq!(
            tests.map(|test| test.name),
            ["d", "volume_figures::e", "b", "c", "a"]
        );
    }
}
