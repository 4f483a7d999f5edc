//! Seeds as files, for libFuzzer.

use std::path::PathBuf;
use std::{env, fs};

use crate::targets::InputSource;

/// The directory to write seeds into. Beside it, in files of its name: how long inputs may be, and whose they
/// are.
const DIRECTORY: &str = "NETRAM_FUZZ_SEEDS";

/// Writes seeds if the environment says where to. It fails like a program's beginning: by a panic.
pub(crate) fn write(seeds: fn() -> Vec<Vec<u8>>, bytes_max: usize, whose: InputSource) {
    let Some(directory) = env::var_os(DIRECTORY).map(PathBuf::from) else {
        return;
    };
    fs::create_dir_all(&directory).expect("the directory for seeds");
    for (number, seed) in seeds().iter().enumerate() {
        fs::write(directory.join(format!("seed-{number}")), seed).expect("a seed's file");
    }
    fs::write(directory.with_extension("max_len"), bytes_max.to_string()).expect("a file beside the seeds");
    let whose = format!("{whose:?}").to_lowercase();
    fs::write(directory.with_extension("whose"), whose).expect("a file beside the seeds");
}
