//! Seeds as files, for libFuzzer.

use std::path::PathBuf;
use std::{env, fs};

use crate::targets::InputSource;

/// Environment variable with the directory for seeds. Files beside it, with its name, have the maximum length
/// and the source of inputs.
const DIRECTORY: &str = "NETRAM_FUZZ_SEEDS";

/// Writes seeds if the environment names a directory. It panics on failure, because it runs at a program's
/// start.
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
