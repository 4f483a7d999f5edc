//! What a server is to be, and what is wrong with that.

use std::sync::Arc;

use netram_block::BlockDevice;
use netram_transport::{ListenError, NetAddress};

use crate::handshake::{self, ExportOffer, TlsPolicy};
use crate::limit::EXPORTS_MAX;
use crate::tls::TlsKeys;

/// Whether connections are encrypted.
#[derive(Clone, Debug)]
pub enum TlsMode {
    /// Never.
    Off,
    /// If the client asks for it. Who sits between the two can keep it from asking.
    On(TlsKeys),
    /// Always.
    Require(TlsKeys),
}

impl TlsMode {
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
    /// What clients call it; the first export also answers to the empty name.
    pub name: String,
    /// A line for people, or empty.
    pub description: String,
    /// What is served.
    pub device: Arc<dyn BlockDevice>,
    /// Changes are refused.
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

/// What a server is to be.
pub struct NbdServerConfig {
    /// Where to listen.
    pub listen: Vec<NetAddress>,
    /// What to serve.
    pub exports: Vec<NbdExport>,
    /// Whether connections are encrypted.
    pub tls: TlsMode,
    /// Serve other machines without encryption: everybody who reaches the port can read and change
    /// everything.
    pub insecure: bool,
    /// Let other users of this machine connect to Unix sockets, as far as the directory's permissions let
    /// them.
    pub other_users: bool,
}

/// Why a server did not start.
#[derive(Debug, thiserror::Error)]
pub enum NbdStartError {
    /// Nothing to serve, nowhere to listen, or a name that is too long, doubled, or not text.
    #[error("{0}")]
    Config(String),
    /// Other machines could reach it in clear.
    #[error("{address} can be reached from other machines; require TLS, or say that it is to be insecure")]
    InsecureRefused {
        /// The address asked for.
        address: NetAddress,
    },
    /// An address is taken, or cannot be had.
    #[error(transparent)]
    Bind(#[from] ListenError),
    /// The system has no more threads or file descriptors.
    #[error("the server cannot start: {0}")]
    System(#[from] std::io::Error),
}

/// Whether a server of this kind makes sense.
pub(crate) fn check(config: &NbdServerConfig) -> Result<(), NbdStartError> {
    let refuse = |why: String| Err(NbdStartError::Config(why));
    if config.listen.is_empty() {
        return refuse("give an address to listen at".into());
    }
    if config.exports.is_empty() || config.exports.len() > EXPORTS_MAX {
        return refuse(format!("a server has 1 to {EXPORTS_MAX} exports"));
    }
    for (index, export) in config.exports.iter().enumerate() {
        if !handshake::fits(&export.name) || !handshake::fits(&export.description) {
            return refuse("an export's name and description have at most 1024 bytes each, none zero".into());
        }
        if config.exports[..index]
            .iter()
            .any(|other| other.name == export.name)
        {
            return refuse(format!("two exports are called `{}`", export.name));
        }
    }
    Ok(())
}
