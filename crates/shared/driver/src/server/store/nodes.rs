//! Nodes in the table: facts that must be durable before they are announced or acted upon.

use netram_proto::id::Lsn;
use netram_proto::journal::View;
use netram_proto::limit::DATA_KEY_BYTES_MAX;
use netram_proto::port::WaitError;
use netram_proto::wire::ChainPoint;
use netram_shared_machine::limit::NODE_NAME_BYTES_MAX;
use netram_shared_machine::{GrantNumber, NodeId, RecordNumber};
use netram_transport::OwnerKey;
use netram_transport::owner::SECRET_BYTES;

use super::{RegionStore, RegionStoreError};
use crate::server::table::{
    COUNTERS_AT, GONE_MAX, GoneEntry, KEY_AT, NAME_AT, NODES_MAX, NodeEntry, NodeEntryState, VIEW_AT,
    counters, gone_bytes, head, view_bytes,
};

/// A node that joins.
#[derive(Clone, Debug)]
pub struct NewNode {
    /// Name that the node gave itself.
    pub name: String,
    /// Newest view of its journal.
    pub view: View,
    /// Key that seals its journal's records; empty: they are not sealed.
    pub key: Vec<u8>,
    /// Where its first record will begin in its journal.
    pub begins: ChainPoint,
}

/// Failure to record the limit of nodes' records.
#[derive(Debug, thiserror::Error)]
pub enum RecordLimitError {
    /// Nodes may have longer records than the log takes now.
    #[error(
        "the region's nodes may have committed records of {told} bytes, but the server's log now takes only {takes}. Restore the former `window` in the server's netram.toml; make it smaller when these nodes have left"
    )]
    Less {
        /// Limit that the nodes were given, in bytes.
        told: u64,
        /// Longest record that the log takes, in bytes.
        takes: u64,
    },
    /// The table did not take the change.
    #[error("{0}")]
    Store(#[from] RegionStoreError),
    /// The disk has failed.
    #[error("the server's disk has failed: {0}; start it again when the disk works")]
    Disk(#[from] WaitError),
}

impl RegionStore {
    /// Assigns the next node id. It must not be announced before it is durable, and is never assigned again.
    ///
    /// # Errors
    ///
    /// [`RegionStoreError`] if the table is full, a field is too long, or the log did not take the change.
    pub fn join(&mut self, joining: NewNode) -> Result<(NodeId, Lsn), RegionStoreError> {
        let id = self.table.counters.last_node.next();
        Ok((id, self.join_as(id, joining)?))
    }

    /// Adds a node under an id that the caller chose, higher than all before.
    ///
    /// # Errors
    ///
    /// The same as for [`RegionStore::join`]; also [`RegionStoreError::OldId`].
    pub fn join_as(&mut self, id: NodeId, joining: NewNode) -> Result<Lsn, RegionStoreError> {
        if id <= self.table.counters.last_node {
            return Err(RegionStoreError::OldId(id));
        }
        if joining.name.len() > NODE_NAME_BYTES_MAX {
            return Err(RegionStoreError::TooLong("name"));
        }
        if joining.key.len() > DATA_KEY_BYTES_MAX {
            return Err(RegionStoreError::TooLong("key"));
        }
        let slot = self.table.vacant().ok_or(RegionStoreError::Full(NODES_MAX))?;
        let node = NodeEntry {
            id,
            state: NodeEntryState::Live,
            loss_accepted: false,
            name: joining.name,
            key: joining.key,
            view: joining.view,
            merged: RecordNumber(0),
            marked: RecordNumber(0),
            end: joining.begins,
            slot,
        };
        let view = view_bytes(&node.view);
        let mut after = self.table.counters;
        after.last_node = id;
        let place = self.table.places().node(slot);
        let end = self.change(&[
            (place, &head(&node, view.len())),
            (place + KEY_AT, &node.key),
            (place + NAME_AT, node.name.as_bytes()),
            (place + VIEW_AT, &view),
            (COUNTERS_AT, &counters(&after)),
        ])?;
        self.table.counters = after;
        self.table.nodes.push(node);
        Ok(end)
    }

    /// Records a view of a node's journal. It takes effect when it is durable here.
    ///
    /// # Errors
    ///
    /// [`RegionStoreError`] if there is no such node, or the log did not take the change.
    pub fn set_view(&mut self, id: NodeId, view: View) -> Result<Lsn, RegionStoreError> {
        let (index, place) = self.place_of(id)?;
        let mut node = self.table.nodes[index].clone();
        node.view = view;
        let view = view_bytes(&node.view);
        let end = self.change(&[(place, &head(&node, view.len())), (place + VIEW_AT, &view)])?;
        self.table.nodes[index] = node;
        Ok(end)
    }

    /// Records that a node is being fenced. Its journal's members may be fenced when that is durable.
    ///
    /// # Errors
    ///
    /// [`RegionStoreError`] if there is no such node, or the log did not take the change.
    pub fn fence(&mut self, id: NodeId) -> Result<Lsn, RegionStoreError> {
        let (index, place) = self.place_of(id)?;
        let mut node = self.table.nodes[index].clone();
        node.state = NodeEntryState::Fencing;
        let view = view_bytes(&node.view).len();
        let end = self.change(&[(place, &head(&node, view))])?;
        self.table.nodes[index] = node;
        Ok(end)
    }

    /// Records that the loss of acknowledged records of a fenced node is accepted. This stays with its id
    /// when it is gone.
    ///
    /// # Errors
    ///
    /// [`RegionStoreError`] if there is no such node, or the log did not take the change.
    pub fn accept_loss(&mut self, id: NodeId) -> Result<Lsn, RegionStoreError> {
        let (index, place) = self.place_of(id)?;
        let mut node = self.table.nodes[index].clone();
        (node.state, node.loss_accepted) = (NodeEntryState::Fencing, true);
        let view = view_bytes(&node.view).len();
        let end = self.change(&[(place, &head(&node, view))])?;
        self.table.nodes[index] = node;
        Ok(end)
    }

    /// Records that a node is gone: no record of it exists beyond the merged ones.
    ///
    /// # Errors
    ///
    /// [`RegionStoreError`] if there is no such node, or the log did not take the change.
    pub fn retire(&mut self, id: NodeId) -> Result<Lsn, RegionStoreError> {
        self.retire_as(id, false)
    }

    /// Retires a node, and remembers its journal until [its lenders know](RegionStore::mark_forgotten).
    ///
    /// # Errors
    ///
    /// The same as for [`RegionStore::retire`].
    pub fn retire_pending_forget(&mut self, id: NodeId) -> Result<Lsn, RegionStoreError> {
        self.retire_as(id, true)
    }

    fn retire_as(&mut self, id: NodeId, untold: bool) -> Result<Lsn, RegionStoreError> {
        let (index, place) = self.place_of(id)?;
        let last = self.table.nodes[index].merged;
        let mut after = self.table.counters;
        after.gone += 1;
        let replaced = (self.table.gone.len() == GONE_MAX).then(|| self.table.gone[0]);
        after.forgotten += replaced.map_or(0, |gone| gone.last.0);
        let journal = self.table.nodes[index].view.journal;
        let gone = GoneEntry {
            id,
            last,
            journal,
            loss_accepted: self.table.nodes[index].loss_accepted,
        };
        let turn = self.table.places().gone(self.table.counters.gone);
        let mut buried = self.table.nodes[index].clone();
        buried.state = NodeEntryState::Retired;
        let head = match untold {
            true => head(&buried, view_bytes(&buried.view).len()).to_vec(),
            false => vec![0; 8],
        };
        // The journal's records are not read any more. Its lenders obey only its owner.
        let key = match <&[u8; SECRET_BYTES]>::try_from(&buried.key[..]) {
            Ok(key) if untold => OwnerKey::derive(key).seed().to_vec(),
            _ => vec![0; buried.key.len()],
        };
        let end = self.change(&[
            (place, &head),
            (place + KEY_AT, &key),
            (turn, &gone_bytes(&gone)),
            (COUNTERS_AT, &counters(&after)),
        ])?;
        self.table.counters = after;
        if replaced.is_some() {
            self.table.gone.remove(0);
        }
        self.table.gone.push(gone);
        self.table.nodes.remove(index);
        if untold {
            buried.key = key;
            self.table.retired.push(buried);
        }
        Ok(end)
    }

    /// Forgets the journal of a gone node: its lenders know, or are not told any more.
    ///
    /// # Errors
    ///
    /// [`RegionStoreError`] if the log did not take the change.
    pub fn mark_forgotten(&mut self, id: NodeId) -> Result<Lsn, RegionStoreError> {
        let Some(index) = self.table.retired.iter().position(|node| node.id == id) else {
            return Ok(self.durable());
        };
        let place = self.table.places().node(self.table.retired[index].slot);
        let end = self.change(&[(place, &[0; 8])])?;
        self.table.retired.remove(index);
        Ok(end)
    }

    /// Allows grants up to this number, for all locks, once that is durable. After a crash grants continue
    /// above it.
    ///
    /// # Errors
    ///
    /// [`RegionStoreError`] if the log did not take the change.
    pub fn raise_ceiling(&mut self, ceiling: GrantNumber) -> Result<Lsn, RegionStoreError> {
        let mut after = self.table.counters;
        after.ceiling = ceiling.max(self.table.counters.ceiling);
        let end = self.change(&[(COUNTERS_AT, &counters(&after))])?;
        self.table.counters = after;
        Ok(end)
    }

    /// Records the maximum length of a node's record, before any node is given it. Waits for the disk.
    ///
    /// # Errors
    ///
    /// [`RecordLimitError::Less`] if nodes that are not gone were given a higher limit: they may have an
    /// acknowledged record that could never be merged. Otherwise an error of the store or the disk.
    pub fn store_record_limit(&mut self) -> Result<(), RecordLimitError> {
        let (told, takes) = (
            self.table.counters.record_bytes_max,
            self.payload_bytes_max() as u64,
        );
        if takes < told && !self.table.nodes.is_empty() {
            return Err(RecordLimitError::Less { told, takes });
        }
        if takes != told {
            let mut after = self.table.counters;
            after.record_bytes_max = takes;
            let end = self.change(&[(COUNTERS_AT, &counters(&after))])?;
            self.table.counters = after;
            self.wait(end)?;
        }
        Ok(())
    }

    fn place_of(&self, id: NodeId) -> Result<(usize, usize), RegionStoreError> {
        let index = self.table.nodes.iter().position(|node| node.id == id);
        let index = index.ok_or(RegionStoreError::NoNode(id))?;
        Ok((index, self.table.places().node(self.table.nodes[index].slot)))
    }
}
