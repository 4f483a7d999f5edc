//! Runs every seed, and every case that fuzzers found, with the ordinary toolchain.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use netram_fuzz_checks::{TARGETS, target};

fn fuzz() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

#[test]
fn every_seed_passes_its_target() {
    for target in TARGETS {
        let seeds = (target.seeds)();
        assert!(!seeds.is_empty(), "{} has no seeds", target.name);
        (target.run)(&[]);
        for seed in seeds {
            (target.run)(&seed);
            (target.run)(&seed[..seed.len() / 2]);
        }
    }
}

/// Each seed with each of its bytes changed: a small part of a fuzzer's work.
#[test]
fn every_seed_with_a_changed_byte_passes_too() {
    for target in TARGETS {
        for mut seed in (target.seeds)() {
            seed.truncate(128);
            for at in 0..seed.len() {
                for value in [0, 1, 0x7f, 0xff] {
                    let before = std::mem::replace(&mut seed[at], value);
                    (target.run)(&seed);
                    seed[at] = before;
                }
            }
        }
    }
}

#[test]
fn every_case_passes_its_target() {
    for directory in fs::read_dir(fuzz().join("cases")).expect("the directory of cases") {
        let directory = directory.expect("an entry").path();
        let name = directory
            .file_name()
            .and_then(|name| name.to_str())
            .unwrap_or_default();
        if !directory.is_dir() {
            continue;
        }
        let target = target(name).unwrap_or_else(|| panic!("fuzz/cases/{name} is no target's"));
        for case in fs::read_dir(&directory).expect("cases") {
            let case = case.expect("an entry").path();
            eprintln!("{}", case.display());
            (target.run)(&fs::read(&case).expect("a case"));
        }
    }
}

#[test]
fn every_target_has_its_program() {
    let files = fs::read_dir(fuzz().join("fuzz_targets")).expect("the programs");
    let stem = |entry: fs::DirEntry| Some(entry.path().file_stem()?.to_str()?.to_owned());
    let programs: BTreeSet<String> = files.filter_map(|entry| stem(entry.ok()?)).collect();
    let targets: BTreeSet<String> = TARGETS.iter().map(|target| target.name.to_owned()).collect();
    assert_eq!(
        programs, targets,
        "one program in fuzz/fuzz_targets a target, and no other"
    );
}
