//! Children of a program: those that become other programs, and those that stay.

use std::process::Command;

use super::{RunTestbed, compiled, output, text};

#[test]
fn children_that_become_other_programs_work_and_so_does_one_that_stays() {
    let Some(site) = RunTestbed::new("children", 1, "64MiB") else {
        return;
    };
    let (_directory, heap) = compiled("heap", &[]);
    let ran = output(site.run("2MiB", &[], &heap).arg("children"));
    assert!(ran.status.success(), "{ran:?}");
    assert_eq!(text(&ran.stdout), "code 0\n");
    assert_eq!(text(&ran.stderr), "");
}

#[test]
fn parent_child_and_grandchild_have_separate_far_memory() {
    let Some(site) = RunTestbed::new("forks", 2, "64MiB") else {
        return;
    };
    let (_directory, forks) = compiled("forks", &[]);
    let ran = output(&mut site.run("1MiB", &[], &forks));
    assert!(ran.status.success(), "{ran:?}");
    assert_eq!(text(&ran.stdout), "each has its own\n");
}

/// A child that did not look within half a second ended with a message.
#[test]
fn a_child_that_looks_later_has_what_its_parent_had_at_the_fork() {
    let Some(site) = RunTestbed::new("later", 2, "64MiB") else {
        return;
    };
    let (_directory, forks) = compiled("forks", &[]);
    let ran = output(site.run("1MiB", &[], &forks).arg("later"));
    assert!(ran.status.success(), "{ran:?}");
    assert_eq!(text(&ran.stdout), "each has its own\n");
}

/// The child asked after its parent had begun to wait for it, and the parent would have waited forever.
#[test]
fn children_that_cannot_have_far_memory_end_with_the_reason_as_does_their_parent() {
    let Some(site) = RunTestbed::new("without", 1, "64MiB") else {
        return;
    };
    let (_directory, forks) = compiled("forks", &[]);
    let ran = output(site.run("1MiB", &[], &forks).arg("without"));
    assert_eq!(ran.status.code(), Some(1), "{ran:?}");
    assert_eq!(text(&ran.stdout), "signal 11\n".repeat(3));
    let said = text(&ran.stderr);
    for part in [
        "cannot get a copy",
        "set_start_method",
        "so the program ends, too",
    ] {
        assert!(said.contains(part), "{said}");
    }
}

#[test]
fn processes_of_an_interpreter_that_forks_do_their_share() {
    let Some(python) = super::programs::interpreter() else {
        return;
    };
    let Some(site) = RunTestbed::new("pool", 2, "128MiB") else {
        return;
    };
    let job = "
import multiprocessing, hashlib
blocks = [bytes([i]) * 300000 for i in range(20)]
def share(i): return hashlib.sha256(blocks[i]).hexdigest()[:8] + str(len(words))
words = {str(i): [i] * 10 for i in range(20000)}
with multiprocessing.get_context('fork').Pool(2) as pool: print(pool.map(share, range(20)))
print(sum(len(word) for word in words.values()))
";
    let native = output(Command::new(&python).args(["-c", job]));
    assert!(native.status.success(), "{}", text(&native.stderr));
    let far = output(site.run("4MiB", &[], &python).args(["-c", job]));
    assert!(far.status.success(), "{}", text(&far.stderr));
    assert_eq!(text(&far.stdout), text(&native.stdout));
}

#[test]
fn programs_that_it_starts_have_far_memory_only_if_that_is_asked_for() {
    let Some(site) = RunTestbed::new("grandchildren", 1, "64MiB") else {
        return;
    };
    let (_directory, heap) = compiled("heap", &[]);
    let moved = |options: &[&str]| {
        let mut command = site.run("2MiB", options, "sh".as_ref());
        // Not by exec: the shell is to be its parent, and ends after it.
        let ran = output(command.arg("-c").arg(format!(
            "{} works; cat {} >&2; exit 0",
            heap.display(),
            site.report().display()
        )));
        assert!(ran.status.success(), "{ran:?}");
        let said = text(&ran.stderr);
        let report = said.lines().find(|line| line.starts_with('{'));
        let told: serde_json::Value = serde_json::from_str(report.unwrap()).unwrap();
        told["fetched"].as_u64().unwrap()
    };
    assert_eq!(moved(&[]), 0);
    assert!(moved(&["--children"]) > 0);
}
