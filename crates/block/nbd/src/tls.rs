//! TLS certificates: without valid ones on both sides there is no connection.
//!
//! TLS 1.3 only. A client's certificate must come from the same authority: encryption alone would let anyone
//! who can connect write to the volume. The authority may have revoked it, and a file may say which exports
//! it opens ([`crate::client_names`]). All this is read again while sessions go on ([`TlsKeys::admits`]).

use std::fs::File;
use std::io::BufReader;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use netram_process::secret::{self, SecretRefusal};
use rustls::crypto::ring::default_provider;
use rustls::pki_types::pem::{self, PemObject};
use rustls::pki_types::{CertificateDer, CertificateRevocationListDer, PrivateKeyDer, UnixTime};
use rustls::server::WebPkiClientVerifier;
use rustls::server::danger::ClientCertVerifier;
use rustls::{RootCertStore, ServerConfig};

use crate::client_names::{ClientNames, ClientNamesError, names_of};

/// Paths of a server's certificates, in PEM format.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TlsFiles {
    /// Certificate of the authority that signed the clients' certificates.
    pub authority: PathBuf,
    /// The server's certificate, and intermediate certificates up to the authority.
    pub certificate: PathBuf,
    /// The server's private key.
    pub key: PathBuf,
    /// Certificates that the authority has revoked. Without this file there are none.
    pub revoked: PathBuf,
    /// File that says which certificate opens which exports. `None`: each opens every export.
    pub clients: Option<PathBuf>,
}

impl TlsFiles {
    /// `ca-cert.pem`, `server-cert.pem`, `server-key.pem` and `ca-crl.pem` in a directory, as for nbdkit and
    /// qemu.
    pub fn in_directory(directory: &Path) -> TlsFiles {
        TlsFiles {
            authority: directory.join("ca-cert.pem"),
            certificate: directory.join("server-cert.pem"),
            key: directory.join("server-key.pem"),
            revoked: directory.join("ca-crl.pem"),
            clients: None,
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
    /// The file of clients' names cannot be used.
    #[error("{}: {source}", path.display())]
    Clients {
        /// The file.
        path: PathBuf,
        /// Reason.
        source: ClientNamesError,
    },
    /// The list of revoked certificates is gone, and with it every revocation.
    #[error("{}: the list of revoked certificates is gone; write an empty one if none is revoked", path.display())]
    NotRevoked {
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
    verifier: Arc<dyn ClientCertVerifier>,
    clients: Option<Arc<ClientNames>>,
    /// File of the revocations, if it existed.
    revoked: Option<PathBuf>,
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
        let revoked = revocations(&files.revoked)?;
        let has_revocations = !revoked.is_empty();
        let verifier = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), Arc::clone(&provider))
            .with_crls(revoked)
            .build()
            .map_err(|error| unusable(&error))?;
        let mut config = ServerConfig::builder_with_provider(provider)
            .with_protocol_versions(&[&rustls::version::TLS13])
            .map_err(|error| unusable(&error))?
            .with_client_cert_verifier(Arc::clone(&verifier))
            .with_single_cert(chain, key)
            .map_err(|error| unusable(&error))?;
        // Connections live for days, so resuming them has no benefit.
        config.send_tls13_tickets = 0;
        let clients = files.clients.as_deref().map(|path| {
            let named = ClientNames::load(path);
            named.map(Arc::new).map_err(|source| TlsError::Clients {
                path: path.to_owned(),
                source,
            })
        });
        Ok(TlsKeys {
            config: Arc::new(config),
            verifier,
            clients: clients.transpose()?,
            revoked: has_revocations.then(|| files.revoked.clone()),
        })
    }

    /// Refuses to follow `former` if that would forget its revocations.
    pub(crate) fn check_successor_of(&self, former: &TlsKeys) -> Result<(), TlsError> {
        match (&former.revoked, &self.revoked) {
            (Some(path), None) => Err(TlsError::NotRevoked { path: path.clone() }),
            _ => Ok(()),
        }
    }

    /// Whether a client with this chain of certificates, its own first, may have a session on this export. A
    /// revoked or expired one may not, nor one whose names do not open the export.
    pub(crate) fn admits(&self, chain: &[CertificateDer<'static>], export: &str) -> bool {
        let Some((own, others)) = chain.split_first() else {
            return false;
        };
        let verified = self.verifier.verify_client_cert(own, others, UnixTime::now());
        verified.is_ok() && self.opens(&names_of(own), export)
    }

    /// Whether a verified certificate with these names opens an export.
    pub(crate) fn opens(&self, names: &[String], export: &str) -> bool {
        let clients = self.clients.as_deref();
        clients.is_none_or(|clients| clients.opens(names, export))
    }

    /// Whether certificates open some exports only.
    pub(crate) fn has_clients(&self) -> bool {
        self.clients.is_some()
    }
}

/// Reads the lists of revoked certificates; none if there is no such file.
fn revocations(path: &Path) -> Result<Vec<CertificateRevocationListDer<'static>>, TlsError> {
    let unreadable = |source| TlsError::Unreadable {
        path: path.to_owned(),
        source,
    };
    let lists = match CertificateRevocationListDer::pem_file_iter(path) {
        Err(pem::Error::Io(error)) if error.kind() == std::io::ErrorKind::NotFound => return Ok(Vec::new()),
        lists => lists.map_err(unreadable)?,
    };
    let lists: Vec<_> = lists.collect::<Result<_, _>>().map_err(unreadable)?;
    match lists.is_empty() {
        true => Err(TlsError::NotRevoked {
            path: path.to_owned(),
        }),
        false => Ok(lists),
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
