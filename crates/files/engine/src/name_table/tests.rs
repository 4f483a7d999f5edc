use super::*;

const OWNER: FileOwner = FileOwner { user: 0, group: 0 };

fn at(directory: u64, name: &str) -> DirectoryEntry<'_> {
    DirectoryEntry {
        directory: InodeId(directory),
        name: name.as_bytes(),
    }
}

fn make(names: &mut NameTable, at: DirectoryEntry<'_>, kind: InodeKind) -> InodeId {
    let (node, made) = (
        names.next(),
        InodeSpec {
            kind,
            mode: 0o600,
            owner: OWNER,
            target: b"",
        },
    );
    let change = DirectoryChange::Make {
        at,
        node,
        spec: made,
        identity: None,
    };
    assert_eq!(names.apply(&change), Ok(None));
    node
}

fn rename(
    names: &mut NameTable,
    from: DirectoryEntry<'_>,
    to: DirectoryEntry<'_>,
    exchange: bool,
) -> Result<Option<InodeId>, NameError> {
    names.apply(&DirectoryChange::Rename { from, to, exchange })
}

/// `a`, the directory `d`, and `b` in it.
fn some() -> (NameTable, [InodeId; 3]) {
    let mut names = NameTable::new(0o700, OWNER);
    let a = make(&mut names, at(1, "a"), InodeKind::File);
    let d = make(&mut names, at(1, "d"), InodeKind::Directory);
    let b = make(&mut names, at(d.0, "b"), InodeKind::File);
    (names, [a, d, b])
}

#[test]
fn a_file_has_a_path_until_its_last_name_is_removed() {
    let (mut names, [a, d, b]) = some();
    assert_eq!(names.path(b).unwrap(), b"d/b");
    assert_eq!(names.path(InodeId::ROOT).unwrap(), b"");
    let second = at(d.0, "second");
    assert_eq!(
        names.apply(&DirectoryChange::Link { node: a, at: second }),
        Ok(None)
    );
    assert_eq!(names.links(a), 2);
    assert_eq!(names.apply(&DirectoryChange::Remove { at: at(1, "a") }), Ok(None));
    assert_eq!(names.path(a).unwrap(), b"d/second");
    assert_eq!(names.apply(&DirectoryChange::Remove { at: second }), Ok(Some(a)));
    assert_eq!((names.path(a), names.kind(a)), (None, None));
    assert_eq!(names.next(), InodeId(5), "numbers are never reused");
}

#[test]
fn a_rename_replaces_its_target() {
    let (mut names, [a, d, b]) = some();
    assert_eq!(rename(&mut names, at(1, "a"), at(d.0, "b"), false), Ok(Some(b)));
    assert_eq!(
        (names.path(a).unwrap(), names.look_up(at(1, "a"))),
        (b"d/b".to_vec(), None)
    );
    assert_eq!(rename(&mut names, at(1, "d"), at(1, "e"), false), Ok(None));
    assert_eq!(names.path(a).unwrap(), b"e/b", "its directory was renamed");
}

#[test]
fn an_exchange_swaps_two_names() {
    let (mut names, [a, d, b]) = some();
    assert_eq!(rename(&mut names, at(1, "a"), at(d.0, "b"), true), Ok(None));
    assert_eq!(
        (names.path(a).unwrap(), names.path(b).unwrap()),
        (b"d/b".to_vec(), b"a".to_vec())
    );
    assert_eq!(
        rename(&mut names, at(1, "a"), at(1, "none"), true),
        Err(NameError::Missing)
    );
    let link = DirectoryChange::Link {
        node: a,
        at: at(1, "c"),
    };
    assert_eq!(names.apply(&link), Ok(None));
    assert_eq!(rename(&mut names, at(1, "c"), at(d.0, "b"), false), Ok(None));
    assert_eq!(names.links(a), 2, "both names belong to one file and stay");
}

#[test]
fn a_refused_change_leaves_the_table_unchanged() {
    let (mut names, [a, d, _]) = some();
    let before = names.clone();
    let made = InodeSpec {
        kind: InodeKind::File,
        mode: 0,
        owner: OWNER,
        target: b"",
    };
    let long = "x".repeat(256);
    for (place, error) in [
        (at(1, "a"), NameError::Exists),
        (at(a.0, "x"), NameError::NotDirectory),
        (at(99, "x"), NameError::Missing),
        (at(1, ".."), NameError::Missing),
        (at(1, ""), NameError::Missing),
        (at(1, "x/y"), NameError::Missing),
        (at(1, ".netram-aside-7"), NameError::Reserved),
        (at(1, &long), NameError::TooLong),
    ] {
        let node = names.next();
        assert_eq!(
            names.apply(&DirectoryChange::Make {
                at: place,
                node,
                spec: made,
                identity: None,
            }),
            Err(error)
        );
    }
    let inner = make(&mut names, at(d.0, "inner"), InodeKind::Directory);
    assert_eq!(
        rename(&mut names, at(1, "d"), at(inner.0, "d"), false),
        Err(NameError::Loop)
    );
    assert_eq!(
        rename(&mut names, at(1, "d"), at(1, "a"), false),
        Err(NameError::NotDirectory)
    );
    assert_eq!(
        rename(&mut names, at(1, "a"), at(1, "d"), false),
        Err(NameError::IsDirectory)
    );
    assert_eq!(
        names.apply(&DirectoryChange::Remove { at: at(1, "d") }),
        Err(NameError::NotEmpty)
    );
    assert_eq!(
        names.apply(&DirectoryChange::Link {
            node: d,
            at: at(1, "x")
        }),
        Err(NameError::IsDirectory)
    );
    assert_eq!(
        names.apply(&DirectoryChange::Remove { at: at(d.0, "inner") }),
        Ok(Some(inner))
    );
    let settled = |names: &NameTable| (names.len(), names.path(a), names.path(d));
    assert_eq!(settled(&names), settled(&before));
}
