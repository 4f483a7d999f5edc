//! Gives up a dead node's records that cannot be proven or merged, only at the operator's command.
//!
//! A dead node's locks stay taken while its journal cannot be read to a proven end, or has a record that
//! needs a version which no node can send. Waiting does not help if its lenders are lost for good, or if the
//! version was never made. The accepted loss is durable before anything follows from it. The table keeps it
//! with the node's id for as long as the id is remembered.

use netram_shared_machine::NodeId;
use netram_shared_machine::server::NodeState;

use super::RegionServeError;
use super::driver::ServeDriver;
use super::report::StuckReport;

/// Reason why there is no loss to accept.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NotStuck {
    /// No node has this id, or it is gone.
    #[error("there is no node {0}, or it is gone; `netram shared status` lists the nodes")]
    NoNode(NodeId),
    /// The node is not stuck.
    #[error("node {node} is {standing}: it is not stuck, so there is no loss to accept")]
    GoesOn {
        /// The node.
        node: NodeId,
        /// Its state.
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
            "the operator accepted that acknowledged records of a node may be missing"
        );
        // All consequences follow this in the log: if they are durable, this is, too.
        self.store.accept_loss(node)?;
        self.readings.accept_loss(node, self.now);
        self.give_up_accepted();
        self.run_actions()?;
        Ok(Ok(stuck))
    }

    /// Gives up unmergeable records of nodes whose loss was accepted, by this server or an earlier one.
    pub(super) fn give_up_accepted(&mut self) {
        let table = self.store.table();
        let accepted = table.nodes.iter().filter(|node| node.loss_accepted);
        let accepted: Vec<NodeId> = accepted.map(|node| node.id).collect();
        for node in accepted {
            self.server.give_up(node);
        }
    }

    /// Reason why a dead node's end cannot be reached, if so.
    pub(super) fn stuck(&self, node: NodeId) -> Option<StuckReport> {
        if self.server.node_state(node) != Some(NodeState::Read) {
            return self.readings.stuck(node, self.now);
        }
        let hopeless = self.server.unmergeable();
        let missing = hopeless.iter().find(|one| one.node == node)?;
        Some(StuckReport {
            reason: format!("{missing}; this record and all later ones of the node can never be merged"),
            ..self.readings.read_since(node, self.now)
        })
    }
}
