//! Configuration of a server, and its checks.

use std::sync::Arc;

use netram_block::BlockDevice;
use netram_transport::{ListenError, NetAddress};

use crate::handshake::{self, ExportOffer, TlsPolicy};
use crate::limit::EXPORTS_MAX;
use crate::tls::TlsKeys;

/// Encryption of connections.
#[derive(Clone, Debug)]
pub enum TlsMode {
    /// Connections are never encrypted.
    Off,
    /// Connections are encrypted if the client asks. An attacker in between can suppress that request.
    On(TlsKeys),
    /// Every connection must be encrypted.
    Require(TlsKeys),
}

impl TlsMode {
    pub(crate) fn keys(&self) -> Option<&TlsKeys> {
        match self {
            TlsMode::Off => None,
            TlsMode::On(keys) | TlsMode::Require(keys) => Some(keys),
        }
    }

    pub(crate) fn policy(&self) -> TlsPolicy {
        match self {
            TlsMode::Off => TlsPolicy::Off,
            TlsMode::On(_) => TlsPolicy::On,
            TlsMode::Require(_) => TlsPolicy::Require,
        }
    }
}

/// A device under a name.
pub struct NbdExport {
    /// Name of the export; the first export also answers to the empty name.
    pub name: String,
    /// Description in one line, or empty.
    pub description: String,
    /// Device to serve.
    pub device: Arc<dyn BlockDevice>,
    /// Whether changes are refused.
    pub read_only: bool,
}

impl NbdExport {
    pub(crate) fn offer(&self) -> ExportOffer {
        ExportOffer {
            name: self.name.clone(),
            description: self.description.clone(),
            bytes: self.device.geometry().bytes,
            read_only: self.read_only,
        }
    }
}

/// Configuration of an [`NbdServer`](crate::NbdServer).
pub struct NbdServerConfig {
    /// Addresses to listen at.
    pub listen: Vec<NetAddress>,
    /// Devices to serve.
    pub exports: Vec<NbdExport>,
    /// Encryption of connections.
    pub tls: TlsMode,
    /// Serve other machines without encryption: anyone who can connect can read and change everything.
    pub insecure: bool,
    /// Let other users of this machine connect to Unix sockets, if the directory's permissions allow it.
    pub other_users: bool,
}

/// Failure to start a server.
#[derive(Debug, thiserror::Error)]
pub enum NbdStartError {
    /// The configuration has no export or address, or a name that is too long, duplicate, or not text.
    #[error("{0}")]
    Config(String),
    /// Other machines could connect without encryption.
    #[error(
        "{address} can be reached from other machines; require TLS, or allow insecure connections explicitly"
    )]
    InsecureRefused {
        /// The requested address.
        address: NetAddress,
    },
    /// An address is in use or not available.
    #[error(transparent)]
    Bind(#[from] ListenError),
    /// The operating system has no more threads or file descriptors.
    #[error("cannot start the server: {0}")]
    System(#[from] std::io::Error),
}

/// Checks a configuration.
pub(crate) fn check(config: &NbdServerConfig) -> Result<(), NbdStartError> {
    let refuse = |why: String| Err(NbdStartError::Config(why));
    if config.listen.is_empty() {
        return refuse("no address to listen at was given".into());
    }
    if config.exports.is_empty() || config.exports.len() > EXPORTS_MAX {
        return refuse(format!("a server must have 1 to {EXPORTS_MAX} exports"));
    }
    if matches!(&config.tls, TlsMode::On(keys) if keys.has_clients()) {
        return refuse("a client without TLS would open every export; require TLS".into());
    }
    for (index, export) in config.exports.iter().enumerate() {
        if !handshake::fits(&export.name) || !handshake::fits(&export.description) {
            return refuse(
                "an export's name and description must have at most 1024 bytes each, without zero bytes"
                    .into(),
            );
        }
        if config.exports[..index]
            .iter()
            .any(|other| other.name == export.name)
        {
            return refuse(format!("two exports have the name `{}`", export.name));
        }
    }
    Ok(())
}
