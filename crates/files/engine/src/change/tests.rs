use super::*;

fn all() -> Vec<DirectoryChange<'static>> {
    [changes_of_content(), changes_of_names()].concat()
}

/// An inode and two names.
fn places() -> (InodeId, DirectoryEntry<'static>, DirectoryEntry<'static>) {
    let at = DirectoryEntry {
        directory: InodeId::ROOT,
        name: b"0000001",
    };
    let other = DirectoryEntry {
        directory: InodeId(3),
        name: b"b",
    };
    (InodeId(700), at, other)
}

fn changes_of_content() -> Vec<DirectoryChange<'static>> {
    let (node, at, _) = places();
    let made = InodeSpec {
        kind: InodeKind::Symlink,
        mode: 0o640,
        owner: FileOwner { user: 113, group: 0 },
        target: b"../elsewhere",
    };
    vec![
        DirectoryChange::Write {
            node,
            offset: 1 << 40,
            bytes: b"a record",
        },
        DirectoryChange::Write {
            node,
            offset: 0,
            bytes: b"",
        },
        DirectoryChange::Resize { node, size: u64::MAX },
        DirectoryChange::Allocate {
            node,
            mode: FallocateMode::Zero,
            offset: 4096,
            length: 1 << 24,
        },
        DirectoryChange::Make {
            at,
            node,
            spec: made,
            identity: None,
        },
        DirectoryChange::Make {
            at,
            node,
            spec: made,
            identity: Some(InodeIdentity {
                inode: 1 << 33,
                made_ns: u64::MAX,
            }),
        },
    ]
}

fn changes_of_names() -> Vec<DirectoryChange<'static>> {
    let (node, at, other) = places();
    let attributes = AttributeChange {
        mode: Some(0),
        user: None,
        group: Some(u32::MAX),
        accessed: None,
        modified: Some(FileTime {
            s: -3,
            ns: 999_999_999,
        }),
    };
    vec![
        DirectoryChange::Link { node, at },
        DirectoryChange::Remove { at },
        DirectoryChange::Rename {
            from: at,
            to: other,
            exchange: true,
        },
        DirectoryChange::SetAttributes { node, attributes },
        DirectoryChange::SetXattr {
            node,
            name: b"user.a",
            value: Some(b""),
        },
        DirectoryChange::SetXattr {
            node,
            name: b"user.a",
            value: None,
        },
        DirectoryChange::Revoked { lsn: Lsn(99) },
    ]
}

fn payload(change: &DirectoryChange<'_>) -> Vec<u8> {
    [&change.head(), change.tail()].concat()
}

#[test]
fn every_change_decodes_to_itself() {
    for change in all() {
        let payload = payload(&change);
        assert_eq!(
            DirectoryChange::decode(change.kind(), &payload),
            Ok(Some((change, None)))
        );
    }
    assert_eq!(DirectoryChange::decode(RecordKind(3), b"the journal's"), Ok(None));
}

#[test]
fn a_truncated_longer_or_foreign_payload_is_refused() {
    for change in all() {
        let payload = payload(&change);
        if change.kind() == KIND_CHANGE {
            for cut in 0..payload.len() {
                assert!(
                    DirectoryChange::decode(KIND_CHANGE, &payload[..cut]).is_err(),
                    "{change:?} cut at {cut}"
                );
            }
            let longer = [&payload[..], &[0]].concat();
            assert_eq!(
                DirectoryChange::decode(KIND_CHANGE, &longer),
                Err(DirectoryDecodeError::Fields)
            );
        }
    }
    assert_eq!(
        DirectoryChange::decode(KIND_WRITE, &[0; 15]),
        Err(DirectoryDecodeError::Fields)
    );
    assert_eq!(
        DirectoryChange::decode(KIND_CHANGE, &[10]),
        Err(DirectoryDecodeError::Operation(10))
    );
    assert_eq!(
        DirectoryChange::decode(RecordKind(32), &[]),
        Err(DirectoryDecodeError::Kind(32))
    );
}

/// Old records have no request, and only those changes that must not be made twice have one.
#[test]
fn a_change_of_names_decodes_with_its_request() {
    let request = RequestId {
        reign: 3,
        number: u64::MAX >> 1,
    };
    for change in all().into_iter().filter(|change| change.kind() == KIND_CHANGE) {
        let mut payload = payload(&change);
        let plain = payload.len();
        request.put(&mut payload);
        let expected = match change.has_request() {
            true => Ok(Some((change, Some(request)))),
            false => Err(DirectoryDecodeError::Fields),
        };
        assert_eq!(DirectoryChange::decode(KIND_CHANGE, &payload), expected);
        for cut in plain + 1..payload.len() {
            assert!(DirectoryChange::decode(KIND_CHANGE, &payload[..cut]).is_err());
        }
    }
}
