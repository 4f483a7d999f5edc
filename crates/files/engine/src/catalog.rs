//! The catalog: all names as they are where the journal begins, so that what is in the journal is enough to know them as they are at its end.
//!
//! ```text
//!  0  "NETRAMFC"
//!  8  version u32 | the journal's id u128 | lsn u64
//! 36  the next node, how many nodes; then of each, as numbers of seven bits a byte:
//!     node | kind | mode | user | group | inode | made_ns | how many names, and of each: its folder, its length, its bytes
//!     CRC-32C of all before it, u32
//! ```

use netram_proto::id::{JournalId, Lsn};
use netram_proto::wire::{Cursor, crc32c, put_varint};

use crate::change::{
    DecodeError, Made, Node, NodeKind, Owner, Place, bytes, made_node, node_kind, put_bytes,
};
use crate::limit::{NAME_BYTES_MAX, NODE_NUMBER_END, NODES_MAX};
use crate::names::{Identity, Names};

const MAGIC: &[u8; 8] = b"NETRAMFC";
const VERSION: u32 = 1;
const CRC_BYTES: usize = 4;

/// Names as they are before the record at `lsn`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Catalog {
    /// Of which journal.
    pub journal: JournalId,
    /// Where.
    pub lsn: Lsn,
    /// The names.
    pub names: Names,
}

/// Why bytes are no catalog.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CatalogError {
    /// Another file, or of a later version.
    #[error("it is no catalog of this version of netram")]
    Foreign,
    /// Its bytes are not those that were written.
    #[error("it is damaged")]
    Damaged,
}

impl Catalog {
    /// As bytes.
    pub fn encode(&self) -> Vec<u8> {
        let mut to = MAGIC.to_vec();
        to.extend_from_slice(&VERSION.to_le_bytes());
        to.extend_from_slice(&self.journal.0.to_le_bytes());
        to.extend_from_slice(&self.lsn.0.to_le_bytes());
        put_varint(&mut to, self.names.next().0);
        put_varint(&mut to, self.names.len() as u64);
        for node in self.names.nodes() {
            let Some(entry) = self.names.entry(node) else {
                continue;
            };
            let identity = entry.identity.unwrap_or_default();
            let places: Vec<Place<'_>> = self.names.places(node).collect();
            for number in [
                node.0,
                entry.kind as u64,
                entry.mode.into(),
                entry.owner.user.into(),
                entry.owner.group.into(),
                identity.inode,
                identity.made_ns,
                places.len() as u64,
            ] {
                put_varint(&mut to, number);
            }
            for place in places {
                put_varint(&mut to, place.folder.0);
                put_bytes(&mut to, place.name);
            }
        }
        let crc = crc32c(&to);
        to.extend_from_slice(&crc.to_le_bytes());
        to
    }

    /// Reads what [`Catalog::encode`] has written.
    pub fn decode(bytes: &[u8]) -> Result<Catalog, CatalogError> {
        if !bytes.starts_with(MAGIC) {
            return Err(CatalogError::Foreign);
        }
        let (checked, crc) = bytes
            .split_at_checked(bytes.len().saturating_sub(CRC_BYTES))
            .ok_or(CatalogError::Damaged)?;
        if crc32c(checked).to_le_bytes() != crc {
            return Err(CatalogError::Damaged);
        }
        let mut from = Cursor::new(&checked[MAGIC.len()..]);
        match from.u32() {
            Ok(VERSION) => (),
            _ => return Err(CatalogError::Foreign),
        }
        read(&mut from).map_err(|_| CatalogError::Damaged)
    }
}

fn read(from: &mut Cursor<'_>) -> Result<Catalog, DecodeError> {
    let (journal, lsn) = (JournalId(from.u128()?), Lsn(from.u64()?));
    let (next, count) = (from.varint()?, from.varint()? as usize);
    if !(1..=NODES_MAX).contains(&count) {
        return Err(DecodeError::Fields);
    }
    let mut names = Names::new(0, Owner::default());
    let mut places = Vec::new();
    for _ in 0..count {
        let node = made_node(from)?;
        let kind = node_kind(from.varint()?)?;
        let mut number = || u32::try_from(from.varint()?).map_err(|_| DecodeError::Fields);
        let (mode, user, group) = (number()?, number()?, number()?);
        let identity = Identity {
            inode: from.varint()?,
            made_ns: from.varint()?,
        };
        let made = Made {
            kind,
            mode,
            owner: Owner { user, group },
            target: b"",
        };
        if node == Node::ROOT && kind != NodeKind::Folder {
            return Err(DecodeError::Fields);
        }
        names.add(node, &made);
        if let Some(entry) = names.entry_mut(node) {
            entry.identity = Some(identity);
        }
        for _ in 0..from.varint()? {
            let folder = Node(from.varint()?);
            places.push((node, folder, bytes(from, NAME_BYTES_MAX)?));
        }
    }
    for (node, folder, name) in places {
        let place = Place { folder, name };
        let sound = names.kind(folder) == Some(NodeKind::Folder) && names.look_up(place).is_none();
        if !sound || node == Node::ROOT {
            return Err(DecodeError::Fields);
        }
        names.name(node, place);
    }
    if next > NODE_NUMBER_END {
        return Err(DecodeError::Fields);
    }
    names.set_next(next);
    match from.rest() {
        [] => Ok(Catalog { journal, lsn, names }),
        _ => Err(DecodeError::Fields),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::change::Change;

    /// Whatever was made next had the number 0 then, or a number that another node had.
    #[test]
    fn a_node_after_which_none_could_be_numbered_is_damage() {
        let numbered = |next: u64| {
            let mut catalog = catalog();
            catalog.names.set_next(next);
            Catalog::decode(&catalog.encode()).map(|read| read.names.next())
        };
        assert_eq!(numbered(NODE_NUMBER_END), Ok(Node(NODE_NUMBER_END)));
        assert_eq!(numbered(NODE_NUMBER_END + 1), Err(CatalogError::Damaged));
        let mut catalog = catalog();
        let made = Made {
            kind: NodeKind::File,
            mode: 0,
            owner: Owner::default(),
            target: b"",
        };
        catalog.names.add(Node(NODE_NUMBER_END), &made);
        assert_eq!(
            Catalog::decode(&catalog.encode()).err(),
            Some(CatalogError::Damaged)
        );
    }

    fn catalog() -> Catalog {
        let mut names = Names::new(0o750, Owner { user: 5, group: 6 });
        for (folder, name, kind) in [
            (1, "wal", NodeKind::Folder),
            (2, "000001", NodeKind::File),
            (1, "link", NodeKind::Symlink),
        ] {
            let at = Place {
                folder: Node(folder),
                name: name.as_bytes(),
            };
            let made = Made {
                kind,
                mode: 0o600,
                owner: Owner::default(),
                target: b"",
            };
            let node = names.next();
            names
                .apply(&Change::Make {
                    at,
                    node,
                    made,
                    identity: None,
                })
                .unwrap();
        }
        let nodes: Vec<Node> = names.nodes().collect();
        for node in nodes {
            names.entry_mut(node).unwrap().identity = Some(Identity {
                inode: node.0 * 1000,
                made_ns: u64::MAX - node.0,
            });
        }
        let second = Place {
            folder: Node(1),
            name: b"second",
        };
        names
            .apply(&Change::Link {
                node: Node(3),
                at: second,
            })
            .unwrap();
        Catalog {
            journal: JournalId(77),
            lsn: Lsn(4096),
            names,
        }
    }

    #[test]
    fn a_catalog_comes_back_as_it_was() {
        assert_eq!(Catalog::decode(&catalog().encode()), Ok(catalog()));
    }

    #[test]
    fn one_that_is_cut_or_changed_is_refused() {
        let whole = catalog().encode();
        for cut in 0..whole.len() {
            assert!(Catalog::decode(&whole[..cut]).is_err(), "cut at {cut}");
        }
        for at in 0..whole.len() {
            let mut changed = whole.clone();
            changed[at] ^= 0x10;
            assert!(Catalog::decode(&changed).is_err(), "changed at {at}");
        }
    }
}
