//! Invalid input and its error messages.

use crate::common::finish;

use super::*;

fn refused(words: &[&str], says: &str) {
    let ran = finish(pagesim().args(words));
    assert_eq!(ran.code, 2, "{words:?}: {}", ran.err);
    assert!(ran.err.contains(says), "{words:?}: {}", ran.err);
}

#[test]
fn invalid_settings_are_refused_before_anything_runs() {
    refused(&["run", "trans", "--policy", "floppy"], "ram-disk");
    refused(&["run", "trans", "--policy", "counters:0"], "1 or above");
    refused(
        &["run", "trans", "--policy", "software-disk"],
        "software-counters:N",
    );
    refused(&["run", "trans", "--local", "0"], "a page at least");
    refused(&["run", "trans", "--local", "8MiB,100"], "a page at least");
    refused(&["run", "trans", "--page", "3000"], "power of two");
    refused(&["run", "trans", "--network-rate", "0"], "above 0");
    refused(&["run", "trans", "--clock", "0"], "above 0");
    refused(&["run", "trans", "--clock", "nan"], "not a number");
    refused(&["run", "trans", "--machine", "vax"], "mascots96, rdma, tcp, cxl");
    refused(
        &["run", "trans", "--replacement", "mru"],
        "lru, clock, random, fifo, dueling",
    );
    refused(&["run", "quake"], "trans, mvec, gauss, sort");
    let sizes = vec!["8MiB"; 60].join(",");
    refused(&["run", "trans", "--local", &sizes], "more than 256");
}

fn traced(bytes: &[u8]) -> CommandOutput {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("trace");
    std::fs::write(&file, bytes).unwrap();
    finish(pagesim().args(["trace", "--json"]).arg(file))
}

#[test]
fn an_invalid_trace_is_refused_with_its_line_number() {
    let whole = "==1== Lackey\nI  04010ad3,3\n L 1ffeffe7e0,8\nW 0x1ffeffe7e0 8\n M 0421c7cc,4\n";
    assert_eq!(studied(&traced(whole.as_bytes()))["references"], 4);
    for (text, says) in [
        (&whole.as_bytes()[..whole.len() - 3], "line 5"),
        (&whole.as_bytes()[..38], "line 3"),
        (b"R 10 8\nR 10 99999\n", "line 2"),
        (b"hello", "line 1"),
        (&[0x1f, 0x8b, 8, 0xff], "UTF-8"),
    ] {
        let ran = traced(text);
        assert!(ran.code != 0 && ran.out.is_empty(), "{says}: {}", ran.out);
        assert!(ran.err.contains(says), "{says}: {}", ran.err);
    }
    assert_eq!(studied(&traced(b""))["references"], 0);
}

#[test]
fn a_program_that_cannot_run_is_reported() {
    let says = |words: &[&str], text: &str| {
        let ran = finish(pagesim().args(words));
        assert!(ran.code != 0 && ran.err.contains(text), "{words:?}: {}", ran.err);
    };
    says(&["exec", "--", "no-such-program"], "no directory of PATH");
    says(&["exec", "--", "/no/such/program"], "/no/such/program");
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/../../scripts/test-deps.sh");
    says(&["exec", "--", script], "name its interpreter");
    says(&["trace", "/no/such/trace"], "opening /no/such/trace");
    let ran = finish(pagesim().args(["cc", "x.c"]).env("NETRAM_CC", "no-such-compiler"));
    assert!(
        ran.code != 0 && ran.err.contains("running no-such-compiler"),
        "{}",
        ran.err
    );
    let ran = finish(pagesim().args(["cc", "/no/such/source.c"]));
    assert!(ran.code != 0, "the compiler's code");
    let ran = finish(
        pagesim()
            .args(["exec", "--", "true"])
            .env("NETRAM_TRACER", "/no/such/library"),
    );
    assert!(ran.code != 0, "{}", ran.err);
}
