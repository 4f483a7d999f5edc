//! Lookups in an index: one key, or a range of keys.

use std::cmp::Ordering;

use super::{DEPTH_MAX, IndexKey};
use crate::error::Oo7Error;
use crate::graph::layout::{IndexRow, NodeRow, TextRow, view};

/// The value of a key.
pub(in crate::graph) fn find(bytes: &[u8], index: u64, key: IndexKey<'_>) -> Result<Option<u64>, Oo7Error> {
    let mut at = root(bytes, index)?;
    for _ in 0..DEPTH_MAX {
        if at == 0 {
            return Ok(None);
        }
        let node: &NodeRow = view(bytes, at, "a node of an index")?;
        at = match compare(bytes, key, node)? {
            Ordering::Equal => return Ok(Some(node.value.get())),
            Ordering::Less => node.left.get(),
            Ordering::Greater => node.right.get(),
        };
    }
    Err(cycle_error(index))
}

/// Passes the values of the keys from `first` to `last` to `each`, in order, until `each` asks to stop.
pub(in crate::graph) fn range(
    bytes: &[u8],
    index: u64,
    (first, last): (u64, u64),
    each: &mut dyn FnMut(u64),
) -> Result<(), Oo7Error> {
    let mut above: Vec<&NodeRow> = Vec::new();
    let mut at = root(bytes, index)?;
    loop {
        while at != 0 {
            let node: &NodeRow = view(bytes, at, "a node of an index")?;
            if node.key.get() >= first {
                above.push(node);
                at = node.left.get();
            } else {
                at = node.right.get();
            }
            if above.len() > DEPTH_MAX {
                return Err(cycle_error(index));
            }
        }
        let Some(node) = above.pop() else { return Ok(()) };
        if node.key.get() > last {
            return Ok(());
        }
        each(node.value.get());
        at = node.right.get();
    }
}

pub(super) fn root(bytes: &[u8], index: u64) -> Result<u64, Oo7Error> {
    let index: &IndexRow = view(bytes, index, "an index")?;
    Ok(index.root.get())
}

pub(super) fn compare(bytes: &[u8], key: IndexKey<'_>, node: &NodeRow) -> Result<Ordering, Oo7Error> {
    match key {
        IndexKey::Number(number) => Ok(number.cmp(&node.key.get())),
        IndexKey::Title(title) => {
            let text: &TextRow = view(bytes, node.value.get(), "a document")?;
            Ok(title.cmp(&text.title))
        }
    }
}

pub(super) fn cycle_error(index: u64) -> Oo7Error {
    Oo7Error::Damaged {
        what: "an index, which has no bottom,",
        at: index,
    }
}
