//! Seeds as files, for libFuzzer.

use std::path::PathBuf;
use std::{env, fs};

use crate::targets::Whose;

/// The folder to write seeds into. Beside it, in files of its name: how long inputs may be, and whose they are.
const FOLDER: &str = "NETRAM_FUZZ_SEEDS";

/// Writes seeds if the environment says where to. It fails like a program's beginning: by a panic.
pub(crate) fn write(seeds: fn() -> Vec<Vec<u8>>, bytes_max: usize, whose: Whose) {
    let Some(folder) = env::var_os(FOLDER).map(PathBuf::from) else {
        return;
    };
    fs::create_dir_all(&folder).expect("the folder for seeds");
    for (number, seed) in seeds().iter().enumerate() {
        fs::write(folder.join(format!("seed-{number}")), seed).expect("a seed's file");
    }
    fs::write(folder.with_extension("max_len"), bytes_max.to_string()).expect("a file beside the seeds");
    let whose = format!("{whose:?}").to_lowercase();
    fs::write(folder.with_extension("whose"), whose).expect("a file beside the seeds");
}
