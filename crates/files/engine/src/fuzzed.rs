//! What a mount has on its disk, for fuzzers (`fuzz/checks`) and nobody else.

use netram_proto::id::{JournalId, Lsn};

use crate::catalog::Catalog;
use crate::change::{Allocation, Attributes, Change, Made, Moment, Node, NodeKind, Owner, Place};
use crate::names::Names;

/// A catalog of a folder with a file in it.
pub fn a_catalog() -> Catalog {
    let mut names = Names::new(0o755, Owner::default());
    for (number, kind) in [(2, NodeKind::Folder), (3, NodeKind::File)] {
        let change = make(number, kind, number - 1);
        names.apply(&change).expect("a name that is free");
    }
    Catalog {
        journal: JournalId(5),
        lsn: Lsn(640),
        names,
    }
}

fn make(number: u64, kind: NodeKind, folder: u64) -> Change<'static> {
    Change::Make {
        node: Node(number),
        at: Place {
            folder: Node(folder),
            name: b"a name",
        },
        made: Made {
            kind,
            mode: 0o644,
            owner: Owner::default(),
            target: b"",
        },
        identity: None,
    }
}

/// What was read is read again as it was, from what it is written as.
pub fn check(change: &Change<'_>, payload: &[u8]) {
    let again = [&change.head()[..], change.tail()].concat();
    assert_eq!(Change::decode(change.kind(), &again), Ok(Some(*change)));
    assert!(
        again.len() <= payload.len(),
        "the form that is written is the shortest"
    );
}

/// Records of each kind.
pub fn change_seeds() -> Vec<Vec<u8>> {
    let at = |name| Place {
        folder: Node(1),
        name,
    };
    let node = Node(3);
    let moment = Moment { s: -5, ns: 999 };
    let changes = [
        Change::Write {
            node,
            offset: 4096,
            bytes: b"bytes",
        },
        Change::Resize { node, size: 9 },
        Change::Allocate {
            node,
            how: Allocation::Extend,
            offset: 0,
            length: 4096,
        },
        make(3, NodeKind::File, 1),
        Change::Link {
            node,
            at: at(b"link"),
        },
        Change::Remove { at: at(b"gone") },
        Change::Rename {
            from: at(b"one"),
            to: at(b"other"),
            exchange: true,
        },
        Change::Set {
            node,
            attributes: Attributes {
                mode: Some(0o600),
                user: None,
                group: Some(7),
                accessed: Some(moment),
                modified: None,
            },
        },
        Change::Label {
            node,
            name: b"user.label",
            value: Some(b"value"),
        },
        Change::Refused { lsn: Lsn(64) },
    ];
    let one = |change: &Change<'_>| [&[change.kind().0], &change.head()[..], change.tail()].concat();
    changes.iter().map(one).collect()
}
