//! The side of `netram volume serve` that clients or a virtual machine talk to.

use netram_nbd::{NbdServer, TlsFiles, TlsKeys};
use netram_vhost::VhostServer;
use netram_volume::control::VolumeFrontend;

/// A server of a volume.
pub(super) enum FrontEnd {
    /// Network block device clients, with the files of their TLS.
    Nbd(NbdServer, Option<TlsFiles>),
    /// A virtual machine.
    Vhost(VhostServer),
}

impl FrontEnd {
    /// The addresses that it listens at.
    pub(super) fn addresses(&self) -> Vec<String> {
        match self {
            FrontEnd::Nbd(server, _) => server.addresses().iter().map(ToString::to_string).collect(),
            FrontEnd::Vhost(server) => vec![server.address().to_string()],
        }
    }

    /// The front end's part of the volume's status.
    pub(super) fn status(&self) -> VolumeFrontend {
        let (kind, connections, counters) = match self {
            FrontEnd::Nbd(server, _) => (
                "nbd",
                server.connections() as u64,
                server.stats().named().to_vec(),
            ),
            FrontEnd::Vhost(server) => (
                "vhost-user",
                server.is_connected().into(),
                server.stats().named().to_vec(),
            ),
        };
        VolumeFrontend {
            kind: kind.to_owned(),
            connections: Some(connections),
            counters: counters
                .into_iter()
                .map(|(name, count)| (name.to_owned(), count))
                .collect(),
        }
    }

    /// Reads certificates again. If they cannot be used, the former ones stay in use.
    pub(super) fn reload(&self) {
        // Without TLS there is nothing to read again, and a terminal that closes ends no service.
        let FrontEnd::Nbd(server, Some(files)) = self else {
            return;
        };
        match TlsKeys::load(files).and_then(|keys| server.reload(keys)) {
            Ok(ended) => tracing::info!(ended, "certificates were read again"),
            Err(error) => {
                tracing::error!(%error, "the new certificates cannot be used; the former ones stay in use")
            }
        }
    }

    /// Ends it. Returns the number of connections that still wait for the volume.
    pub(super) fn stop(self) -> usize {
        match self {
            FrontEnd::Nbd(server, _) => {
                tracing::info!(counters = ?server.stats(), "clients were served");
                server.stop()
            }
            FrontEnd::Vhost(server) => {
                tracing::info!(counters = ?server.stats(), "a virtual machine was served");
                drop(server);
                0
            }
        }
    }
}
