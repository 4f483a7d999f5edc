//! Explores every interleaving of small worlds.

use std::collections::BTreeSet;

use crate::lock::script::{Script, ScriptAction, script};
use crate::lock::world::LockWorld;

/// Maximum number of worlds in an ordinary run. A script that reaches it is too large, or does not end.
const WORLDS_MAX: usize = 3_000_000;

/// Result of exploring a script.
#[derive(Debug, Default)]
pub(crate) struct ExploredScript {
    pub(crate) worlds: usize,
    pub(crate) ends: usize,
    /// Fewest and most transactions that did not get their locks, over all ends.
    pub(crate) failed: Option<(usize, usize)>,
}

/// Explores all actions in every order. Panics with the path to a broken invariant.
pub(crate) fn explore(script: Script) -> ExploredScript {
    let first = LockWorld::new(script);
    let mut known = BTreeSet::from([first.fingerprint()]);
    let mut seen = ExploredScript::default();
    let mut path: Vec<ScriptAction> = Vec::new();
    let mut stack = vec![(first.actions(), first)];
    while let Some((actions, world)) = stack.last_mut() {
        let Some(action) = actions.pop() else {
            stack.pop();
            path.pop();
            continue;
        };
        let mut next = world.clone();
        path.push(action);
        if let Err(what) = next.act(action) {
            panic!("{what}, after {path:?}");
        }
        if !known.insert(next.fingerprint()) {
            path.pop();
            continue;
        }
        assert!(known.len() <= WORLDS_MAX, "too many worlds, or no end: {path:?}");
        let actions = next.actions();
        if !actions.iter().any(|action| action.is_progress()) {
            if let Err(what) = next.check_at_rest() {
                panic!("{what}, after {path:?}");
            }
            seen.ends += 1;
            let failed = next.failed();
            let (fewest, most) = seen.failed.unwrap_or((failed, failed));
            seen.failed = Some((fewest.min(failed), most.max(failed)));
        }
        stack.push((actions, next));
    }
    seen.worlds = known.len();
    seen
}

/// Small worlds of every kind.
fn scripts() -> Vec<Script> {
    vec![
        // One lock: writers and readers, two of one node, upgrades of two nodes, and two upgrades of one
        // node.
        script(&[&["w0"], &["w0"], &["r0"]]),
        script(&[&["w0", "r0"], &["r0", "w0"]]),
        script(&[&["r0 w0"], &["r0 w0"], &["r0"]]),
        script(&[&["r0 w0", "r0 w0"], &["w0"]]),
        // Two locks: in order, in reverse order, all at once.
        script(&[&["w0 w1"], &["w0 w1"], &["w1"]]),
        script(&[&["w0 w1"], &["w1 w0"]]),
        script(&[&["w0 w1", "w1 w0"], &["w0"]]),
        script(&[&["r0 w1"], &["r1 w0"]]),
        script(&[&["+w1+w0"], &["+w0+r1"]]),
        // An upgrade below another lock, and one beside a waiting writer.
        script(&[&["r0 w1 w0"], &["r0 w1"]]),
        script(&[&["r0 w1 w0"], &["r0 w1 w0"]]),
        script(&[&["r0 w0", "w0"], &["w0"]]),
    ]
}

#[test]
fn every_acquire_ends_and_no_lock_has_two_writers() {
    // In-order transactions always get their locks. Of two that conflict one does, and sometimes both.
    let died = [0, 0, 1, 1, 0, 1, 1, 1, 0, 1, 1, 0];
    let scripts = scripts();
    assert_eq!(scripts.len(), died.len());
    for (script, died) in scripts.into_iter().zip(died) {
        let nodes = script.nodes.clone();
        let seen = explore(script);
        assert_eq!(seen.failed, Some((0, died)), "{nodes:?}: {seen:?}");
    }
}

/// `scripts`, each with one fault at any point.
fn with(fault: impl Fn(&mut Script)) -> Vec<Script> {
    let mut scripts = scripts();
    scripts.iter_mut().for_each(fault);
    scripts
}

fn explore_all(scripts: Vec<Script>) -> usize {
    scripts.into_iter().map(|script| explore(script).worlds).sum()
}

#[test]
fn a_node_that_dies_anywhere_loses_no_lock() {
    explore_all(with(|script| script.crashes = 1));
}

#[test]
fn a_server_restarted_anywhere_grants_nothing_twice() {
    explore_all(with(|script| script.restarts = 1));
}

#[test]
fn a_link_that_breaks_anywhere_loses_no_lock() {
    explore_all(with(|script| script.cuts = 1));
}

#[test]
fn a_wait_that_times_out_anywhere_blocks_no_other() {
    explore_all(with(|script| script.cancels = 1));
}

#[test]
fn a_lease_that_ends_anywhere_blocks_no_transaction_for_ever() {
    explore_all(with(|script| script.lapses = 1));
}

#[test]
#[ignore = "a minute or two: four million worlds"]
fn a_node_death_and_a_server_restart_anywhere_lose_no_lock() {
    explore_all(with(|script| {
        script.restarts = 1;
        script.crashes = 1;
    }));
}
