//! Programs ask of their memory sizes, alignments and places, as without far memory; their own
//! allocators; its core dumps.

use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use super::{Site, compiled, finish, output, skipped, text};

#[test]
fn sizes_alignments_and_places_are_refused_or_given_as_without() {
    let Some(site) = Site::new("limits", 1, "64MiB") else {
        return;
    };
    let (_folder, program) = compiled("limits", &[]);
    let native = finish(&mut Command::new(&program));
    assert_eq!(native.code, 0, "{}", native.err);
    let far = finish(&mut site.run("4MiB", &[], &program));
    assert_eq!(far.code, 0, "{}", far.err);
    assert_eq!(far.out, native.out);
    assert!(site.told("sent") > 256, "it lies there");
    assert_eq!(far.err, "", "nothing of it is worth a word");
}

#[test]
fn a_program_that_brings_its_own_allocator_runs_and_its_memory_is_paged() {
    let Some(site) = Site::new("own", 1, "64MiB") else {
        return;
    };
    let (_folder, program) = compiled("own_allocator", &[]);
    let far = finish(&mut site.run("2MiB", &[], &program));
    assert_eq!((far.code, far.out.as_str()), (0, "ok\n"), "{}", far.err);
    assert!(site.told("sent") > 1024, "of 20 MiB a tenth was here");
    assert_eq!(far.err, "");
}

/// Where the loader finds a library. `None`: nowhere, and that was said.
fn shared(name: &str) -> Option<PathBuf> {
    let listed = Command::new("/sbin/ldconfig").arg("-p").output();
    let found = listed.ok().and_then(|listed| {
        let lines = text(&listed.stdout);
        let line = lines.lines().find(|line| line.trim_start().starts_with(name))?;
        Some(PathBuf::from(line.rsplit("=> ").next()?))
    });
    if found.is_none() {
        skipped(&format!("there is no {name}"));
    }
    found
}

/// With pages of small blocks in far memory, too: all that the allocator maps lies there.
fn runs_with(allocator: &str, is_paged: bool) {
    let Some(library) = shared(allocator) else { return };
    let Some(site) = Site::new(allocator, 1, "128MiB") else {
        return;
    };
    let (_folder, program) = compiled("heap", &["-Wl,--no-as-needed", library.to_str().unwrap()]);
    for part in ["crumbles", "waits"] {
        let mut command = site.run("2MiB", &[], &program);
        let input = site.folder.path().join("word");
        std::fs::write(&input, "look\n").unwrap();
        let far = finish(command.arg(part).stdin(std::fs::File::open(input).unwrap()));
        assert_eq!(far.code, 0, "{part}: {}", far.err);
        let said = far.err.contains("is not in far memory");
        assert_eq!(said, !is_paged, "{part}: {}", far.err);
        assert_eq!(far.err.lines().count(), usize::from(!is_paged), "{}", far.err);
    }
    assert_eq!(site.told("sent") > 1024, is_paged);
}

#[test]
fn jemalloc_runs_and_its_memory_is_paged() {
    runs_with("libjemalloc.so.2", true);
}

/// The allocator reserves memory without access, and makes it accessible later.
#[test]
fn mimalloc_runs_and_it_is_said_that_its_memory_is_not_paged() {
    runs_with("libmimalloc.so.2", false);
}

/// The allocator maps memory past the C library.
#[test]
fn tcmalloc_runs_and_it_is_said_that_its_memory_is_not_paged() {
    runs_with("libtcmalloc_minimal.so.4", false);
}

#[test]
fn a_core_dump_is_as_large_as_the_memory_in_use() {
    let pattern = std::fs::read_to_string("/proc/sys/kernel/core_pattern").unwrap_or_default();
    if pattern.trim().is_empty() || pattern.contains(['/', '|', '%']) {
        return skipped("core dumps do not go to the folder of who dumps them");
    }
    let Some(site) = Site::new("core", 1, "64MiB") else {
        return;
    };
    let (folder, program) = compiled("forks", &[]);
    let inner = site.run("2MiB", &[], &program);
    let script = "ulimit -c unlimited && cd \"$0\" && exec \"$@\"";
    let mut command = Command::new("sh");
    command.args(["-c", script]).arg(folder.path());
    // Without the one that ends it if it hangs, which dumps no core and has it dump none.
    command.args(inner.get_args().skip(2)).arg("dumps");
    for (name, value) in inner.get_envs() {
        match value {
            Some(value) => command.env(name, value),
            None => command.env_remove(name),
        };
    }
    let ran = output(&mut command);
    if text(&ran.stderr).contains("ulimit") {
        return skipped("this user may dump no core");
    }
    assert_eq!(ran.status.signal(), Some(6), "{}", text(&ran.stderr));
    let Some(core) = core_in(folder.path()) else {
        return skipped("this machine dumps no core");
    };
    let bytes = core.metadata().unwrap().len();
    // What is here of 8 MiB, a granule of addresses, and what threads and libraries have.
    assert!(bytes < 512 << 20, "{bytes} bytes");
}

fn core_in(folder: &Path) -> Option<PathBuf> {
    let mut files = std::fs::read_dir(folder)
        .unwrap()
        .map(|file| file.unwrap().path());
    let is_core = |file: &PathBuf| {
        let name = file
            .file_name()
            .unwrap_or_default()
            .to_string_lossy()
            .into_owned();
        name.starts_with("core")
    };
    files.find(is_core)
}
