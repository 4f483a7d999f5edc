//! Giving up what cannot be proven of a dead node: on the word of whoever looks after the region, and never
//! otherwise.
//!
//! A dead node's locks stay taken while its journal cannot be read to a proven end, or has a record that
//! needs what nobody can bring. Time does not help where its lenders are lost for good, or where a version
//! was never made. That loss is accepted is durable before anything follows from it, and stands in the table
//! with the node's id for as long as that is remembered.

use netram_shared_machine::NodeId;
use netram_shared_machine::server::NodeState;

use super::RegionServeError;
use super::driver::ServeDriver;
use super::report::StuckReport;

/// Why there is nothing to accept.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NotStuck {
    /// There is none of that id.
    #[error("there is no node {0}, or it is gone; `netram shared status` lists the nodes")]
    NoNode(NodeId),
    /// It goes on without that.
    #[error("node {node} is {standing}: nothing of it has to be given up")]
    GoesOn {
        /// Which.
        node: NodeId,
        /// Where it is in its life.
        standing: &'static str,
    },
}

impl ServeDriver {
    /// Accepts that acknowledged records of a node may be missing. Returns why.
    pub(super) fn accept_loss(
        &mut self,
        node: NodeId,
    ) -> Result<Result<StuckReport, NotStuck>, RegionServeError> {
        if self.store.table().node(node).is_none() {
            return Ok(Err(NotStuck::NoNode(node)));
        }
        let Some(stuck) = self.stuck(node) else {
            let standing = self.server.node_state(node).map_or("gone", super::status::name);
            return Ok(Err(NotStuck::GoesOn { node, standing }));
        };
        tracing::error!(
            node = node.0,
            reason = stuck.reason,
            "that acknowledged records of a node may be missing is accepted"
        );
        // What follows is behind this in the log: whatever is durable of it, this is too.
        self.store.accept_loss(node)?;
        self.readings.accept_loss(node, self.now);
        self.give_up_accepted();
        self.run_actions()?;
        Ok(Ok(stuck))
    }

    /// Gives up what can never go of nodes whose loss was accepted, by this server or one before.
    pub(super) fn give_up_accepted(&mut self) {
        let table = self.store.table();
        let accepted = table.nodes.iter().filter(|node| node.loss_accepted);
        let accepted: Vec<NodeId> = accepted.map(|node| node.id).collect();
        for node in accepted {
            self.server.give_up(node);
        }
    }

    /// Why a node's end cannot be reached.
    pub(super) fn stuck(&self, node: NodeId) -> Option<StuckReport> {
        if self.server.node_state(node) != Some(NodeState::Read) {
            return self.readings.stuck(node, self.now);
        }
        let hopeless = self.server.unmergeable();
        let missing = hopeless.iter().find(|one| one.node == node)?;
        Some(StuckReport {
            reason: format!("{missing}; it and what is behind it can never be merged"),
            ..self.readings.read_since(node, self.now)
        })
    }
}
