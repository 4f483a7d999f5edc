//! The log lines of a server that has read its file of clients again.

use netram_clients::{ClientsFileError, RegistryChange};

/// Logs the outcome. A file that cannot be used changes nothing.
pub(crate) fn told(reloaded: Result<Option<RegistryChange>, ClientsFileError>) {
    match reloaded {
        Ok(None) => {
            tracing::info!(
                "SIGHUP: this server was started without --clients, so there is nothing to read again"
            );
        }
        Ok(Some(change)) => tracing::info!(
            clients = change.clients.join(" "),
            keys = change.keys,
            revoked = change.revoked.join(" "),
            "the file of clients was read again"
        ),
        Err(error) => {
            tracing::error!(%error, "the clients and their keys stay as they were: mend the file, and send SIGHUP again");
        }
    }
}
