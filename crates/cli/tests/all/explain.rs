//! `netram explain`, of journals that are open, in trouble, and left behind.

use std::path::Path;

use rustix::process::Signal;
use serde_json::Value;

use crate::common::mounted::wait_until;
use crate::common::{CommandOutput, LenderProcess, run};
use crate::lifecycle::{crashed, with_a_record};

fn explain(path: &Path) -> CommandOutput {
    run(["explain", path.to_str().unwrap()])
}

/// Bytes at risk, by what is lost.
fn at_risk(path: &Path, lost: &str) -> u64 {
    let said = run(["explain", path.to_str().unwrap(), "--json"]);
    let said: Value = serde_json::from_str(&said.out).unwrap();
    let risks = said[0]["report"]["at_risk"].as_array().unwrap().clone();
    let risk = risks.iter().find(|risk| risk["lost"] == lost).unwrap();
    risk["bytes"].as_u64().unwrap()
}

#[test]
fn a_journal_says_what_would_be_lost_what_happened_and_what_to_type() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("journal");
    let listen = format!("unix:{}/lender", directory.path().display());
    let arguments = ["--listen", &listen, "--insecure", "--domain", "ups-1"];
    let mut lender = LenderProcess::start("explained", &arguments);
    let (journal, _) = with_a_record(&path, &listen);
    let said = explain(&path);
    assert_eq!(said.code, 0, "{}{}", said.out, said.err);
    for sentence in [
        &format!("Process {} has the journal", std::process::id())[..],
        "1 copy, 1 domain",
        "this machine: nothing would be lost",
        "domain ups-1: nothing would be lost",
        "this machine and domain ups-1: 80 B that were acknowledged would be lost",
        "this machine and all lenders: 80 B",
        &format!("ago: members are {listen}"),
        "To do:\n  nothing",
    ] {
        assert!(said.out.contains(sentence), "{sentence}\n{}", said.out);
    }
    let metrics = run(["explain", path.to_str().unwrap(), "--metrics"]);
    let line = format!(
        "netram_journal_records_total{{journal=\"{}\"}} 1\n",
        path.display()
    );
    assert!(
        metrics.code == 0 && metrics.out.contains(&line),
        "{}{}",
        metrics.out,
        metrics.err
    );
    // Its only other copy goes.
    lender.stop(Signal::KILL);
    wait_until("the loss is noticed", || at_risk(&path, "this machine") > 0);
    wait_until("advice", || explain(&path).code == 1);
    wait_until("the reason", || {
        let said = explain(&path).out;
        said.contains(&format!("Look after the lender {listen}: nothing listens there"))
            && said.contains(&format!("netram journal add-lender {} ADDRESS", path.display()))
            && said.contains(&format!("ago: the lender {listen} was lost"))
    });
    drop(journal);
    let closed = explain(&path);
    assert_eq!(closed.code, 0, "{}{}", closed.out, closed.err);
    assert!(closed.out.contains("needs no lender"), "{}", closed.out);
    let metrics = run(["explain", path.to_str().unwrap(), "--metrics"]);
    assert!(
        metrics.code == 1 && metrics.err.contains("no process has"),
        "{}",
        metrics.err
    );
}

#[test]
fn a_journal_that_was_left_open_names_the_lenders_that_recovery_needs() {
    let directory = tempfile::tempdir().unwrap();
    let [path, left] = ["journal", "left"].map(|name| directory.path().join(name));
    let listen = format!("unix:{}/lender", directory.path().display());
    let lender = LenderProcess::start("left", &["--listen", &listen, "--insecure"]);
    let (journal, _) = with_a_record(&path, &listen);
    crashed(&path, &left);
    let said = explain(&left);
    assert_eq!(said.code, 1, "{}{}", said.out, said.err);
    for sentence in [
        "No process has the journal",
        "needs the answer of 1 of them",
        &format!("netram lender status {listen}"),
        &format!("netram journal recover {}", left.display()),
    ] {
        assert!(said.out.contains(sentence), "{sentence}\n{}", said.out);
    }
    drop((journal, lender));
}

#[test]
fn what_is_no_journal_is_refused_by_name() {
    let said = explain(Path::new("/nonexistent/journal"));
    assert_ne!(said.code, 0);
    assert!(said.err.contains("/nonexistent/journal"), "{}", said.err);
}
