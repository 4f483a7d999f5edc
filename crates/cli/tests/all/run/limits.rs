//! Programs ask of their memory sizes, alignments and places, as without far memory; their own
//! allocators; its core dumps.

use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use rustix::process::Signal;

use super::lenders::{Waiting, settled};
use super::{LenderProcess, RunTestbed, compiled, finish, output, skipped, text};

#[test]
fn sizes_alignments_and_places_are_refused_or_given_as_without() {
    let Some(site) = RunTestbed::new("limits", 1, "64MiB") else {
        return;
    };
    let (_directory, program) = compiled("limits", &[]);
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
    let Some(site) = RunTestbed::new("own", 1, "64MiB") else {
        return;
    };
    let (_directory, program) = compiled("own_allocator", &[]);
    let far = finish(&mut site.run("2MiB", &[], &program));
    assert_eq!((far.code, far.out.as_str()), (0, "ok\n"), "{}", far.err);
    assert!(site.told("sent") > 1024, "of 20 MiB a tenth was here");
    assert_eq!(far.err, "");
}

/// Returns the path of a library that the loader finds. `None`: there is none, and the test printed that it
/// is skipped.
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
    let Some(site) = RunTestbed::new(allocator, 1, "128MiB") else {
        return;
    };
    let (_directory, program) = compiled("heap", &["-Wl,--no-as-needed", library.to_str().unwrap()]);
    for part in ["crumbles", "waits"] {
        let mut command = site.run("2MiB", &[], &program);
        let input = site.directory.path().join("word");
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

/// The program's memory is at lenders when one of these is connected again: the thread that connects must not
/// need it.
#[test]
fn no_thread_of_far_memory_takes_memory_of_the_programs_allocator() {
    let Some(mut site) = RunTestbed::new("strict", 2, "64MiB") else {
        return;
    };
    let (_one, allocator) = compiled("strict", &["-shared", "-fPIC", "-DALLOCATOR"]);
    let (_other, program) = compiled("strict", &["-Wl,--no-as-needed", allocator.to_str().unwrap()]);
    let waiting = Waiting::start_as("waits", &site, &[], &program);
    settled(&site);
    let address = site.lenders[1].address.clone();
    site.lenders[1].stop(Signal::KILL);
    let listen = ["--listen", &address, "--insecure", "--deposits", "64MiB"];
    site.lenders[1] = LenderProcess::with_memory("64MiB", "strict-again", &listen);
    let until = Instant::now() + Duration::from_secs(30);
    while site.status(1)["deposits"][0].is_null() && Instant::now() < until {
        std::thread::sleep(Duration::from_millis(5));
    }
    let (status, found, said) = waiting.look();
    assert_eq!((status.code(), found.as_str()), (Some(0), "same\n"), "{said}");
}

/// The allocator reserves memory without access, and makes it accessible later.
#[test]
fn mimalloc_runs_with_a_warning_that_its_memory_is_not_paged() {
    runs_with("libmimalloc.so.2", false);
}

/// The allocator maps memory past the C library.
#[test]
fn tcmalloc_runs_with_a_warning_that_its_memory_is_not_paged() {
    runs_with("libtcmalloc_minimal.so.4", false);
}

#[test]
fn a_core_dump_is_as_large_as_the_memory_in_use() {
    let pattern = std::fs::read_to_string("/proc/sys/kernel/core_pattern").unwrap_or_default();
    if pattern.trim().is_empty() || pattern.contains(['/', '|', '%']) {
        return skipped("core dumps do not go to the directory of who dumps them");
    }
    let Some(site) = RunTestbed::new("core", 1, "64MiB") else {
        return;
    };
    let (directory, program) = compiled("forks", &[]);
    let inner = site.run("2MiB", &[], &program);
    let script = "ulimit -c unlimited && cd \"$0\" && exec \"$@\"";
    let mut command = Command::new("sh");
    command.args(["-c", script]).arg(directory.path());
    // Without the one that ends it if it hangs, which dumps no core and has it dump none.
    command.args(inner.get_args().skip(2)).arg("dumps");
    copy_environment(&inner, &mut command);
    let ran = output(&mut command);
    if text(&ran.stderr).contains("ulimit") {
        return skipped("this user may dump no core");
    }
    assert_eq!(ran.status.signal(), Some(6), "{}", text(&ran.stderr));
    let Some(core) = core_in(directory.path()) else {
        return skipped("this machine dumps no core");
    };
    let bytes = core.metadata().unwrap().len();
    // What is here of 8 MiB, a granule of addresses, and what threads and libraries have.
    assert!(bytes < 512 << 20, "{bytes} bytes");
}

/// The limit is there before `netram run`, or is set by what it starts.
#[test]
fn a_limit_that_leaves_no_room_is_named_with_its_remedy_before_the_program_starts() {
    let Some(site) = RunTestbed::new("few", 2, "64MiB") else {
        return;
    };
    let (_directory, program) = compiled("heap", &[]);
    for (option, limit, named) in [
        ("-n", "12", "the limit on open files (ulimit -n) is 12,"),
        ("-n", "20", "the limit on open files (ulimit -n) is 20,"),
        ("-d", "4000000", "the limit on data (ulimit -d) is 3.8 GiB,"),
        ("-v", "4000000", "the limit on addresses (ulimit -v) is 3.8 GiB:"),
    ] {
        let script = format!("ulimit {option} {limit} && exec \"$@\"");
        let mut outer = Command::new("sh");
        let run = site.run("2MiB", &[], &program);
        outer
            .args(["-c", &script, "sh"])
            .arg(run.get_program())
            .args(run.get_args());
        copy_environment(&run, &mut outer);
        let mut inner = site.run("2MiB", &["--children"], Path::new("sh"));
        inner.args(["-c", &script, "sh"]).arg(&program);
        for command in [outer.arg("works"), inner.arg("works")] {
            let far = finish(command);
            assert_eq!((far.code, far.out.as_str()), (1, ""), "{}", far.err);
            assert!(
                far.err.contains(named) && far.err.contains("raise it"),
                "{}",
                far.err
            );
        }
    }
}

#[test]
fn with_the_required_number_of_files_everything_is_intact() {
    let Some(site) = RunTestbed::new("enough", 2, "64MiB") else {
        return;
    };
    let (_directory, program) = compiled("heap", &[]);
    let mut inner = site.run("2MiB", &["--children"], Path::new("sh"));
    // 24, and two a lender.
    inner
        .args(["-c", "ulimit -n 28 && exec \"$@\"", "sh"])
        .arg(&program);
    let far = finish(inner.arg("works"));
    assert_eq!((far.code, far.err.as_str()), (0, ""));
    assert_eq!(far.out, "all is as it was written\n");
}

fn copy_environment(from: &Command, to: &mut Command) {
    for (name, value) in from.get_envs() {
        match value {
            Some(value) => to.env(name, value),
            None => to.env_remove(name),
        };
    }
}

fn core_in(directory: &Path) -> Option<PathBuf> {
    let mut files = std::fs::read_dir(directory)
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
