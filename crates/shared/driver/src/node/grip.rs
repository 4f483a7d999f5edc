//! What a transaction or a reader has of its node: a borrow, or a share. Programs in other languages have no borrows.

use std::ops::Deref;
use std::sync::Arc;

use super::Node;
use super::shared::Shared;

/// Keeps the node, with its threads, for as long as it is held.
pub(super) enum Grip<'n> {
    Lent(&'n Shared),
    Kept(Arc<Node>),
}

impl Deref for Grip<'_> {
    type Target = Shared;

    #[inline]
    fn deref(&self) -> &Shared {
        match self {
            Grip::Lent(shared) => shared,
            Grip::Kept(node) => &node.shared,
        }
    }
}
