//! Limits of a client at a server.

use crate::wire::ClientResource;

/// By default each of several clients may have one part in this many of the whole.
const DEFAULT_PART: u64 = 2;

/// The file's limits of a client. `u64::MAX` is everything, and of a right any amount but zero is yes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ClientLimits([Option<u64>; ClientResource::ALL.len()]);

impl ClientLimits {
    /// The file's limit of `resource`; `None` if it has none.
    pub fn get(&self, resource: ClientResource) -> Option<u64> {
        self.0[resource.index()]
    }

    /// Sets a limit, or leaves it to the default.
    pub fn set(&mut self, resource: ClientResource, limit: Option<u64>) {
        self.0[resource.index()] = limit;
    }

    /// The limit that counts. A client of whom the file says nothing has the rights to ask for the status and
    /// to join regions, gets no copies of volumes, and of the rest half of what there is, or all if it is the
    /// only client.
    pub(crate) fn effective(&self, resource: ClientResource, totals: &ServerTotals, clients: usize) -> u64 {
        let share = |total: u64| match clients {
            0 | 1 => u64::MAX,
            _ => (total / DEFAULT_PART).max(1),
        };
        self.get(resource).unwrap_or(match resource {
            ClientResource::Memory => share(totals.memory),
            ClientResource::Journals => share(totals.journals),
            ClientResource::Sessions | ClientResource::Connections => share(totals.connections),
            ClientResource::Pages => share(totals.pages),
            ClientResource::Data => 0,
            ClientResource::Status | ClientResource::Shared => 1,
        })
    }
}

/// Amounts that a server has for all clients together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ServerTotals {
    /// Bytes of memory for windows.
    pub memory: u64,
    /// Number of journals.
    pub journals: u64,
    /// Number of connections.
    pub connections: u64,
    /// Bytes for pages.
    pub pages: u64,
}

impl Default for ServerTotals {
    /// Without bound.
    fn default() -> ServerTotals {
        ServerTotals {
            memory: u64::MAX,
            journals: u64::MAX,
            connections: u64::MAX,
            pages: u64::MAX,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_client_of_several_gets_half_and_no_copies_by_default() {
        let totals = ServerTotals {
            memory: 100,
            journals: 1,
            connections: 10,
            pages: 0,
        };
        let mut limits = ClientLimits::default();
        let of = |limits: &ClientLimits, clients| {
            ClientResource::ALL.map(|resource| limits.effective(resource, &totals, clients))
        };
        assert_eq!(of(&limits, 2), [50, 1, 5, 5, 1, 0, 1, 1]);
        let all = u64::MAX;
        assert_eq!(of(&limits, 1), [all, all, all, all, all, 0, 1, 1]);
        limits.set(ClientResource::Memory, Some(7));
        limits.set(ClientResource::Status, Some(0));
        assert_eq!(of(&limits, 2), [7, 1, 5, 5, 1, 0, 0, 1]);
    }
}
