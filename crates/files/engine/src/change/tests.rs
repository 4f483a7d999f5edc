use super::*;

fn all() -> Vec<Change<'static>> {
    let at = Place {
        folder: Node::ROOT,
        name: b"0000001",
    };
    let (node, other) = (
        Node(700),
        Place {
            folder: Node(3),
            name: b"b",
        },
    );
    let made = Made {
        kind: NodeKind::Symlink,
        mode: 0o640,
        owner: Owner { user: 113, group: 0 },
        target: b"../elsewhere",
    };
    let attributes = Attributes {
        mode: Some(0),
        user: None,
        group: Some(u32::MAX),
        accessed: None,
        modified: Some(Moment {
            s: -3,
            ns: 999_999_999,
        }),
    };
    vec![
        Change::Write {
            node,
            offset: 1 << 40,
            bytes: b"a record",
        },
        Change::Write {
            node,
            offset: 0,
            bytes: b"",
        },
        Change::Resize { node, size: u64::MAX },
        Change::Allocate {
            node,
            how: Allocation::Zero,
            offset: 4096,
            length: 1 << 24,
        },
        Change::Make {
            at,
            node,
            made,
            identity: None,
        },
        Change::Make {
            at,
            node,
            made,
            identity: Some(Identity {
                inode: 1 << 33,
                made_ns: u64::MAX,
            }),
        },
        Change::Link { node, at },
        Change::Remove { at },
        Change::Rename {
            from: at,
            to: other,
            exchange: true,
        },
        Change::Set { node, attributes },
        Change::Label {
            node,
            name: b"user.a",
            value: Some(b""),
        },
        Change::Label {
            node,
            name: b"user.a",
            value: None,
        },
        Change::Refused { lsn: Lsn(99) },
    ]
}

fn payload(change: &Change<'_>) -> Vec<u8> {
    [&change.head(), change.tail()].concat()
}

#[test]
fn changes_come_back_as_they_were() {
    for change in all() {
        let payload = payload(&change);
        assert_eq!(Change::decode(change.kind(), &payload), Ok(Some(change)));
    }
    assert_eq!(Change::decode(Kind(3), b"the journal's"), Ok(None));
}

#[test]
fn what_is_cut_or_goes_on_or_is_of_others_is_refused() {
    for change in all() {
        let payload = payload(&change);
        if change.kind() == KIND_CHANGE {
            for cut in 0..payload.len() {
                assert!(
                    Change::decode(KIND_CHANGE, &payload[..cut]).is_err(),
                    "{change:?} cut at {cut}"
                );
            }
            let longer = [&payload[..], &[0]].concat();
            assert_eq!(Change::decode(KIND_CHANGE, &longer), Err(DecodeError::Fields));
        }
    }
    assert_eq!(Change::decode(KIND_WRITE, &[0; 15]), Err(DecodeError::Fields));
    assert_eq!(Change::decode(KIND_CHANGE, &[10]), Err(DecodeError::Which(10)));
    assert_eq!(Change::decode(Kind(32), &[]), Err(DecodeError::Kind(32)));
}
