//! Servers are killed at any moment while a program checks each of its calls against a model.
//!
//! `NETRAM_TEST_KILL_SECONDS=3600 cargo test -p netram-mount random` runs it for an hour.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::ErrorKind;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::time::{Duration, Instant};

use crate::server::SurvivingMount;

const NAMES: u64 = 8;
const BYTES_MAX: u64 = 20_000;

/// A number generator whose numbers depend on its seed alone.
struct Numbers(u64);

impl Numbers {
    fn below(&mut self, end: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        (self.0 >> 33) % end
    }
}

/// Content of a file, with the file if the program has it open.
#[derive(Default)]
struct Model {
    files: BTreeMap<u64, usize>,
    contents: Vec<(Vec<u8>, Option<File>)>,
}

/// Runs until `until`. Returns the number of calls.
fn run(dir: &Path, seed: u64, until: Instant) -> u64 {
    let (mut numbers, mut model, mut calls) = (Numbers(seed), Model::default(), 0);
    while Instant::now() < until {
        calls += 1;
        step(dir, &mut numbers, &mut model);
    }
    for (content, file) in &model.contents {
        if let Some(file) = file {
            check(file, content);
        }
    }
    for (name, content) in &model.files {
        let file = File::open(dir.join(name.to_string())).unwrap();
        check(&file, &model.contents[*content].0);
    }
    calls
}

fn check(file: &File, content: &[u8]) {
    let mut bytes = vec![0; content.len()];
    file.read_exact_at(&mut bytes, 0).unwrap();
    assert_eq!(file.metadata().unwrap().len(), content.len() as u64);
    assert!(bytes == content, "a file is not as it was written");
}

fn step(dir: &Path, numbers: &mut Numbers, model: &mut Model) {
    let (name, other) = (numbers.below(NAMES), numbers.below(NAMES));
    let path = |name: u64| dir.join(name.to_string());
    let known = model.files.get(&name).copied();
    match numbers.below(10) {
        0 | 1 => match (
            File::options()
                .read(true)
                .write(true)
                .create_new(true)
                .open(path(name)),
            known,
        ) {
            (Ok(file), None) => {
                model.files.insert(name, model.contents.len());
                model.contents.push((Vec::new(), Some(file)));
            }
            (Err(error), Some(_)) => assert_eq!(error.kind(), ErrorKind::AlreadyExists),
            (made, known) => panic!("{name} is made: {made:?}, known: {known:?}"),
        },
        2 => match (fs::remove_file(path(name)), known) {
            (Ok(()), Some(_)) => drop(model.files.remove(&name)),
            (Err(error), None) => assert_eq!(error.kind(), ErrorKind::NotFound),
            (removed, known) => panic!("{name} is removed: {removed:?}, known: {known:?}"),
        },
        3 => match (fs::rename(path(name), path(other)), known) {
            (Ok(()), Some(content)) => {
                // Two names of one file: nothing happens.
                if model.files.insert(other, content) != Some(content) {
                    model.files.remove(&name);
                }
            }
            (Err(error), None) => assert_eq!(error.kind(), ErrorKind::NotFound),
            (renamed, known) => panic!("{name} is renamed: {renamed:?}, known: {known:?}"),
        },
        4 => match (
            fs::hard_link(path(name), path(other)),
            known,
            model.files.get(&other),
        ) {
            (Ok(()), Some(content), None) => drop(model.files.insert(other, content)),
            (Err(error), _, _) => assert!(known.is_none() || model.files.contains_key(&other), "{error}"),
            (linked, known, there) => panic!("{name} is linked: {linked:?}, {known:?}, {there:?}"),
        },
        _ => change_content(numbers, model),
    }
}

/// Writes to, cuts or reads a file that is open, whether it has a name or not.
fn change_content(numbers: &mut Numbers, model: &mut Model) {
    if model.contents.is_empty() {
        return;
    }
    let count = model.contents.len();
    // The newest few stay open.
    if count > 6 {
        model.contents[count - 7].1 = None;
    }
    let chosen = count - 1 - numbers.below(count.min(6) as u64) as usize;
    let (content, Some(file)) = &mut model.contents[chosen] else {
        return;
    };
    match numbers.below(6) {
        0 => check(file, content),
        1 => file.sync_data().unwrap(),
        2 => {
            let size = numbers.below(BYTES_MAX);
            file.set_len(size).unwrap();
            content.resize(size as usize, 0);
        }
        _ => {
            let (offset, byte) = (numbers.below(BYTES_MAX) as usize, numbers.below(256) as u8);
            let bytes = vec![byte; numbers.below(5000) as usize + 1];
            file.write_all_at(&bytes, offset as u64).unwrap();
            let end = offset + bytes.len();
            content.resize(content.len().max(end), 0);
            content[offset..end].copy_from_slice(&bytes);
        }
    }
}

#[test]
fn random_kills_change_nothing_that_a_program_sees() {
    let Some(mut mount) = SurvivingMount::begin(None) else {
        return;
    };
    let seconds = std::env::var("NETRAM_TEST_KILL_SECONDS").ok();
    let duration = Duration::from_secs(seconds.and_then(|text| text.parse().ok()).unwrap_or(4));
    let seed = u64::from(std::process::id());
    let until = Instant::now() + duration;
    let (mut numbers, mut kills) = (Numbers(seed), 0);
    let (calls, _) = mount.supervise(
        duration,
        move |dir| run(dir, seed, until),
        |mount| {
            std::thread::sleep(Duration::from_millis(numbers.below(150)));
            mount.kill();
            kills += 1;
        },
    );
    assert!(kills > 3, "{kills} kills");
    eprintln!("{calls} calls, {kills} kills, seed {seed}");
    mount.end();
}
