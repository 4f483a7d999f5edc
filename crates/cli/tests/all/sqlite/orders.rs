//! A database whose lenders are changed by command while processes commit to it.

use super::*;
use crate::orders::{move_away, two_more};

#[test]
fn a_database_moves_to_other_lenders_while_two_processes_commit() {
    if no_shell() {
        return;
    }
    let mut site = SqliteTestbed::new("orders", 1);
    let more = two_more(site.directory.path(), "orders-sqlite");
    site.lenders.extend(more);
    let made = site.shell("pragma journal_mode=wal;\ncreate table t(n integer primary key, b blob);\n");
    assert_eq!(made.code, 0, "{}", made.err);
    let said = [0, 1].map(|number| site.directory.path().join(format!("said-{number}")));
    let mut writers = [0, 1].map(|number| site.patient_writer_to_wal(number as u64, 2, &said[number]));
    wait_until("both have a journal", || site.seats_taken() == 2);
    let lines = || {
        let count = |said: &PathBuf| fs::read_to_string(said).map_or(0, |text| text.lines().count());
        said.iter().map(count).sum::<usize>() as u64
    };
    move_away(&site.database(), &site.lenders, &[], &lines);
    for writer in &mut writers {
        writer.kill().unwrap();
        writer.wait().unwrap();
    }
    // The first lender has nothing that anybody needs.
    drop(site.lenders.remove(0));
    for said in &said {
        assert!(site.check(said) > 0);
    }
}
