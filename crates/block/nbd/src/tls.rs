//! TLS certificates: without valid ones on both sides there is no connection.
//!
//! TLS 1.3 only. A client's certificate must come from the same authority: encryption alone would let anyone
//! who can connect write to the volume.

use std::fs::File;
use std::io::BufReader;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use netram_process::secret::{self, SecretRefusal};
use rustls::crypto::ring::default_provider;
use rustls::pki_types::pem::{self, PemObject};
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::WebPkiClientVerifier;
use rustls::{RootCertStore, ServerConfig};

/// Paths of a server's certificates, in PEM format.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TlsFiles {
    /// Certificate of the authority that signed the clients' certificates.
    pub authority: PathBuf,
    /// The server's certificate, and intermediate certificates up to the authority.
    pub certificate: PathBuf,
    /// The server's private key.
    pub key: PathBuf,
}

impl TlsFiles {
    /// `ca-cert.pem`, `server-cert.pem` and `server-key.pem` in a directory, as for nbdkit and qemu.
    pub fn in_directory(directory: &Path) -> TlsFiles {
        TlsFiles {
            authority: directory.join("ca-cert.pem"),
            certificate: directory.join("server-cert.pem"),
            key: directory.join("server-key.pem"),
        }
    }
}

/// Failure to load certificates.
#[derive(Debug, thiserror::Error)]
pub enum TlsError {
    /// A file cannot be read, or is not in PEM format.
    #[error("{}: {source}", path.display())]
    Unreadable {
        /// The file.
        path: PathBuf,
        /// Reason.
        source: pem::Error,
    },
    /// Others may have read or changed the server's key.
    #[error("the private key {}: {source}", path.display())]
    Exposed {
        /// The key's file.
        path: PathBuf,
        /// Mode or owner that it has.
        source: SecretRefusal,
    },
    /// A file contains no certificate.
    #[error("{}: the file contains no certificate", path.display())]
    Empty {
        /// The file.
        path: PathBuf,
    },
    /// The certificates do not match each other, or are of an unsupported kind.
    #[error("the certificates cannot be used: {0}")]
    Unusable(String),
}

/// Certificates that were loaded and match each other.
#[derive(Clone, Debug)]
pub struct TlsKeys {
    pub(crate) config: Arc<ServerConfig>,
}

impl TlsKeys {
    /// Loads the files and checks that they match.
    ///
    /// # Errors
    ///
    /// [`TlsError`] if a file cannot be read, has no certificate, or does not match the others.
    pub fn load(files: &TlsFiles) -> Result<TlsKeys, TlsError> {
        let unusable = |error: &dyn std::fmt::Display| TlsError::Unusable(error.to_string());
        let mut roots = RootCertStore::empty();
        for certificate in certificates(&files.authority)? {
            roots.add(certificate).map_err(|error| unusable(&error))?;
        }
        let chain = certificates(&files.certificate)?;
        let key = private_key(&files.key)?;
        let provider = Arc::new(default_provider());
        let verifier = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), Arc::clone(&provider))
            .build()
            .map_err(|error| unusable(&error))?;
        let mut config = ServerConfig::builder_with_provider(provider)
            .with_protocol_versions(&[&rustls::version::TLS13])
            .map_err(|error| unusable(&error))?
            .with_client_cert_verifier(verifier)
            .with_single_cert(chain, key)
            .map_err(|error| unusable(&error))?;
        // Connections live for days, so resuming them has no benefit.
        config.send_tls13_tickets = 0;
        Ok(TlsKeys {
            config: Arc::new(config),
        })
    }
}

/// Reads the server's key, which nobody else may have read.
fn private_key(path: &Path) -> Result<PrivateKeyDer<'static>, TlsError> {
    let unreadable = |source| TlsError::Unreadable {
        path: path.to_owned(),
        source,
    };
    let file = File::open(path).map_err(|error| unreadable(pem::Error::Io(error)))?;
    secret::check(&file, path).map_err(|source| TlsError::Exposed {
        path: path.to_owned(),
        source,
    })?;
    PrivateKeyDer::from_pem_reader(BufReader::new(file)).map_err(unreadable)
}

fn certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>, TlsError> {
    let unreadable = |source| TlsError::Unreadable {
        path: path.to_owned(),
        source,
    };
    let found: Vec<_> = CertificateDer::pem_file_iter(path)
        .map_err(unreadable)?
        .collect::<Result<_, _>>()
        .map_err(unreadable)?;
    match found.is_empty() {
        true => Err(TlsError::Empty {
            path: path.to_owned(),
        }),
        false => Ok(found),
    }
}
