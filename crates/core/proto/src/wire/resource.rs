//! Shares and rights of a named client at a lender or at the server of a shared region.

use core::fmt;

/// Something that clients have a share of, or a right to.
///
/// The numbers are those of refusals: the `lsn` of [`OverClientLimit`](super::RefusalReason).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u8)]
pub enum ClientResource {
    /// Bytes of windows.
    Memory = 1,
    /// Journals that a lender remembers for the client.
    Journals = 2,
    /// Connections that serve a journal, a deposit, a copy of a volume or a node.
    Sessions = 3,
    /// Connections, whatever they are for.
    Connections = 4,
    /// Bytes of pages of programs under `netram run`.
    Pages = 5,
    /// Bytes of copies of volumes on a data lender's disk.
    Data = 6,
    /// The right to ask for the status.
    Status = 7,
    /// The right to join shared regions.
    Shared = 8,
}

impl ClientResource {
    /// All resources, in the order of the file of clients.
    pub const ALL: [ClientResource; 8] = [
        ClientResource::Memory,
        ClientResource::Journals,
        ClientResource::Sessions,
        ClientResource::Connections,
        ClientResource::Pages,
        ClientResource::Data,
        ClientResource::Status,
        ClientResource::Shared,
    ];

    /// The word for the resource in the file of clients.
    pub fn word(self) -> &'static str {
        match self {
            ClientResource::Memory => "memory",
            ClientResource::Journals => "journals",
            ClientResource::Sessions => "sessions",
            ClientResource::Connections => "connections",
            ClientResource::Pages => "pages",
            ClientResource::Data => "data",
            ClientResource::Status => "status",
            ClientResource::Shared => "shared",
        }
    }

    /// The resource of this number in a refusal.
    pub fn from_number(number: u64) -> Option<ClientResource> {
        ClientResource::ALL
            .into_iter()
            .find(|resource| *resource as u64 == number)
    }

    /// Whether amounts of it are bytes.
    pub fn is_bytes(self) -> bool {
        matches!(
            self,
            ClientResource::Memory | ClientResource::Pages | ClientResource::Data
        )
    }

    /// Whether a client has it or not, without an amount.
    pub fn is_right(self) -> bool {
        matches!(self, ClientResource::Status | ClientResource::Shared)
    }

    /// Index in an array of all resources.
    pub fn index(self) -> usize {
        self as usize - 1
    }
}

impl fmt::Display for ClientResource {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(self.word())
    }
}

/// A refusal for a client that may not have what it asks for, from its numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ClientLimitRefusal {
    /// The resource that is refused; `None` for a number that this version does not know.
    pub resource: Option<ClientResource>,
    /// The amount that it may have; zero if none.
    pub limit: u64,
}

impl ClientLimitRefusal {
    /// Reads the `lsn` and `stable` of an `OverClientLimit`.
    pub fn from_numbers(resource: u64, limit: u64) -> ClientLimitRefusal {
        ClientLimitRefusal {
            resource: ClientResource::from_number(resource),
            limit,
        }
    }
}

impl fmt::Display for ClientLimitRefusal {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let word = self.resource.map_or("what it asks for", ClientResource::word);
        match self.limit {
            0 => write!(
                out,
                "the name of this client's key has no right to {word} there: its operator gives it with `{word} = ...` in the \
                 file of clients"
            ),
            limit => write!(
                out,
                "the name of this client's key may have {word} = {limit} there, all clients of that name together: its operator \
                 raises it in the file of clients"
            ),
        }
    }
}

#[cfg(test)]
mod tests {
    use alloc::string::ToString;

    use super::*;

    #[test]
    fn numbers_and_words_are_distinct() {
        for (at, resource) in ClientResource::ALL.into_iter().enumerate() {
            assert_eq!(resource.index(), at);
            assert_eq!(ClientResource::from_number(resource as u64), Some(resource));
            let words = ClientResource::ALL.map(ClientResource::word);
            assert!(!words[..at].contains(&resource.word()));
        }
        assert_eq!(ClientResource::from_number(0), None);
    }

    #[test]
    fn a_refusal_of_a_later_version_has_a_text_too() {
        let refusal = ClientLimitRefusal::from_numbers(200, 3);
        assert!(refusal.to_string().contains("what it asks for = 3"));
    }
}
