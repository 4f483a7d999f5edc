//! Reference of a transaction or reader to its node: borrowed, or shared ownership for languages without
//! borrows.

use std::ops::Deref;
use std::sync::Arc;

use super::Node;
use super::inner::NodeInner;

/// Keeps the node and its threads alive while held.
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
