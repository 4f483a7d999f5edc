//! What a transaction or a reader has of its node: a borrow, or a share. Programs in other languages have no
//! borrows.

use std::ops::Deref;
use std::sync::Arc;

use super::Node;
use super::inner::NodeInner;

/// Keeps the node, with its threads, for as long as it is held.
pub(super) enum NodeRef<'n> {
    Borrowed(&'n NodeInner),
    Owned(Arc<Node>),
}

impl Deref for NodeRef<'_> {
    type Target = NodeInner;

    #[inline]
    fn deref(&self) -> &NodeInner {
        match self {
            NodeRef::Borrowed(shared) => shared,
            NodeRef::Owned(node) => &node.shared,
        }
    }
}
