//! Entry points for fuzzers (`fuzz/checks`): the formats that a mount keeps on its disk. Not for other users.

use netram_proto::id::{JournalId, Lsn};

use crate::catalog::Catalog;
use crate::change::{
    AttributeChange, DirectoryChange, DirectoryEntry, FallocateMode, FileOwner, FileTime, InodeId, InodeKind,
    InodeSpec,
};
use crate::executed::{ExecutedRequests, RequestId};
use crate::name_table::NameTable;

/// A catalog of a directory that contains one file.
pub fn a_catalog() -> Catalog {
    let mut names = NameTable::new(0o755, FileOwner::default());
    for (number, kind) in [(2, InodeKind::Directory), (3, InodeKind::File)] {
        let change = make(number, kind, number - 1);
        names.apply(&change).expect("a name that is free");
    }
    let mut executed = ExecutedRequests::new(2);
    executed.add_recorded(executed.id(4), InodeId(3));
    Catalog {
        journal: JournalId(5),
        lsn: Lsn(640),
        names,
        executed: Some(executed),
    }
}

fn make(number: u64, kind: InodeKind, directory: u64) -> DirectoryChange<'static> {
    DirectoryChange::Make {
        node: InodeId(number),
        at: DirectoryEntry {
            directory: InodeId(directory),
            name: b"a name",
        },
        spec: InodeSpec {
            kind,
            mode: 0o644,
            owner: FileOwner::default(),
            target: b"",
        },
        identity: None,
    }
}

/// Checks that a decoded change encodes and decodes to itself, with its request.
pub fn check(change: &DirectoryChange<'_>, request: Option<RequestId>, payload: &[u8]) {
    let mut again = [&change.head()[..], change.tail()].concat();
    if let Some(request) = request {
        request.put(&mut again);
    }
    let decoded = DirectoryChange::decode(change.kind(), &again);
    assert_eq!(decoded, Ok(Some((*change, request))));
    assert!(
        again.len() <= payload.len(),
        "the encoder writes the shortest form"
    );
}

/// Example records of each kind, as fuzzer seeds.
pub fn change_seeds() -> Vec<Vec<u8>> {
    let at = |name| DirectoryEntry {
        directory: InodeId(1),
        name,
    };
    let node = InodeId(3);
    let moment = FileTime { s: -5, ns: 999 };
    let changes = [
        DirectoryChange::Write {
            node,
            offset: 4096,
            bytes: b"bytes",
        },
        DirectoryChange::Resize { node, size: 9 },
        DirectoryChange::Allocate {
            node,
            mode: FallocateMode::Extend,
            offset: 0,
            length: 4096,
        },
        make(3, InodeKind::File, 1),
        DirectoryChange::Link {
            node,
            at: at(b"link"),
        },
        DirectoryChange::Remove { at: at(b"gone") },
        DirectoryChange::Rename {
            from: at(b"one"),
            to: at(b"other"),
            exchange: true,
        },
        DirectoryChange::SetAttributes {
            node,
            attributes: AttributeChange {
                mode: Some(0o600),
                user: None,
                group: Some(7),
                accessed: Some(moment),
                modified: None,
            },
        },
        DirectoryChange::SetXattr {
            node,
            name: b"user.label",
            value: Some(b"value"),
        },
        DirectoryChange::Revoked { lsn: Lsn(64) },
    ];
    let one = |change: &DirectoryChange<'_>| [&[change.kind().0], &change.head()[..], change.tail()].concat();
    let request = RequestId { reign: 2, number: 6 };
    let requested = changes
        .iter()
        .filter(|change| change.has_request())
        .map(|change| {
            let mut record = one(change);
            request.put(&mut record);
            record
        });
    changes.iter().map(one).chain(requested).collect()
}
