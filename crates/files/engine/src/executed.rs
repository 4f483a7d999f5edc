//! Requests that are sent again because their server was killed: whether one was executed already.
//!
//! A change of names happens at the moment its record is appended. Its record therefore has the request's
//! number, and a server that takes over knows from the records what its predecessors executed. It executes
//! everything else: a request that changes no names has the same result twice.
//!
//! A catalog replaces the records before it. It has what those records said and what may still be sent again:
//! what this server has executed and not answered, and what its predecessors executed until it is known that
//! they answered the rest.

use std::collections::BTreeMap;

use netram_proto::wire::{ByteReader, put_varint};

use crate::change::{DirectoryDecodeError, InodeId};

/// The request that asked for a change. No other request of the same mount has its number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RequestId {
    /// Number of the mount, which all its servers share.
    pub reign: u64,
    /// Number that the kernel gave the request.
    pub number: u64,
}

impl RequestId {
    pub(crate) fn put(self, to: &mut Vec<u8>) {
        put_varint(to, self.reign);
        put_varint(to, self.number);
    }

    pub(crate) fn read(from: &mut ByteReader<'_>) -> Result<RequestId, DirectoryDecodeError> {
        Ok(RequestId {
            reign: from.varint()?,
            number: from.varint()?,
        })
    }
}

/// Requests of a mount that were executed and may be sent again, each with the inode that its reply names.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ExecutedRequests {
    reign: u64,
    /// Requests that servers before this one executed. Most of them were answered.
    before: BTreeMap<u64, InodeId>,
    /// Requests that this server has executed and not answered: at most one of each thread.
    unanswered: BTreeMap<u64, InodeId>,
}

impl ExecutedRequests {
    /// Those of a new mount.
    pub fn new(reign: u64) -> ExecutedRequests {
        ExecutedRequests {
            reign,
            before: BTreeMap::new(),
            unanswered: BTreeMap::new(),
        }
    }

    /// Number of the mount.
    pub fn reign(&self) -> u64 {
        self.reign
    }

    /// The id of the request with this number.
    pub fn id(&self, number: u64) -> RequestId {
        RequestId {
            reign: self.reign,
            number,
        }
    }

    /// Notes a request that the records of a server before this one have. Requests of other mounts are not
    /// sent again.
    pub fn add_recorded(&mut self, request: RequestId, node: InodeId) {
        if request.reign == self.reign {
            self.before.insert(request.number, node);
        }
    }

    /// Notes that this server has executed a request.
    pub fn add_executed(&mut self, number: u64, node: InodeId) {
        self.unanswered.insert(number, node);
    }

    /// Notes that a request was answered, so that it is not sent again.
    pub fn on_answered(&mut self, number: u64) {
        self.unanswered.remove(&number);
        self.before.remove(&number);
    }

    /// Notes that every request which servers before this one left is answered.
    pub fn on_all_answered(&mut self) {
        self.before.clear();
    }

    /// Whether a server before this one executed a request that is sent again. Returns the inode of its
    /// reply.
    pub fn executed_before(&self, number: u64) -> Option<InodeId> {
        self.before.get(&number).copied()
    }

    pub(crate) fn put(&self, to: &mut Vec<u8>) {
        put_varint(to, self.reign);
        let all: BTreeMap<&u64, &InodeId> = self.before.iter().chain(&self.unanswered).collect();
        put_varint(to, all.len() as u64);
        for (number, node) in all {
            put_varint(to, *number);
            put_varint(to, node.0);
        }
    }

    /// Reads what [`ExecutedRequests::put`] wrote, for a server that takes over.
    pub(crate) fn read(from: &mut ByteReader<'_>) -> Result<ExecutedRequests, DirectoryDecodeError> {
        let mut executed = ExecutedRequests::new(from.varint()?);
        for _ in 0..from.varint()? {
            let (number, node) = (from.varint()?, InodeId(from.varint()?));
            executed.before.insert(number, node);
        }
        Ok(executed)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// One step of the servers of a mount, and of its kernel.
    #[derive(Clone, Debug)]
    enum Step {
        /// A program asks; its request is executed, and perhaps answered.
        Ask { is_answered: bool },
        /// A catalog replaces the records.
        Checkpoint,
        /// The server dies, and another takes over. It answers this many of the requests that are sent again.
        Die { answers: usize },
    }

    fn step() -> impl Strategy<Value = Step> {
        prop_oneof![
            5 => any::<bool>().prop_map(|is_answered| Step::Ask { is_answered }),
            2 => Just(Step::Checkpoint),
            2 => (0_usize..5).prop_map(|answers| Step::Die { answers }),
        ]
    }

    fn reread(executed: &ExecutedRequests) -> ExecutedRequests {
        let mut bytes = Vec::new();
        executed.put(&mut bytes);
        ExecutedRequests::read(&mut ByteReader::new(&bytes)).unwrap()
    }

    proptest! {
        /// Each request is executed once, however many servers die in between.
        #[test]
        fn a_request_is_executed_once_by_whichever_server(steps in proptest::collection::vec(step(), 1..60)) {
            let (mut server, mut next) = (ExecutedRequests::new(7), 0);
            let (mut catalog, mut records) = (reread(&server), Vec::new());
            let (mut waiting, mut executions) = (Vec::new(), BTreeMap::<u64, u32>::new());
            for step in steps {
                match step {
                    Step::Ask { is_answered } => {
                        next += 2;
                        *executions.entry(next).or_default() += 1;
                        records.push((server.id(next), InodeId(next)));
                        server.add_executed(next, InodeId(next));
                        match is_answered {
                            true => server.on_answered(next),
                            false => waiting.push(next),
                        }
                    }
                    Step::Checkpoint => {
                        catalog = reread(&server);
                        records.clear();
                    }
                    Step::Die { answers } => {
                        server = catalog.clone();
                        records.iter().for_each(|(request, node)| server.add_recorded(*request, *node));
                        catalog = reread(&server);
                        records.clear();
                        for number in waiting.drain(..answers.min(waiting.len())) {
                            if server.executed_before(number) != Some(InodeId(number)) {
                                *executions.entry(number).or_default() += 1;
                            }
                            server.on_answered(number);
                        }
                        if waiting.is_empty() {
                            server.on_all_answered();
                        }
                    }
                }
            }
            prop_assert!(executions.values().all(|count| *count == 1), "{executions:?}");
        }
    }

    #[test]
    fn what_is_answered_is_not_carried_on() {
        let mut executed = ExecutedRequests::new(7);
        executed.add_recorded(RequestId { reign: 6, number: 2 }, InodeId(2));
        assert_eq!(executed.executed_before(2), None, "another mount's");
        executed.add_recorded(executed.id(4), InodeId(3));
        executed.add_executed(6, InodeId(4));
        executed.add_executed(8, InodeId(5));
        executed.on_answered(8);
        let next = reread(&executed);
        let known = [2, 4, 6, 8].map(|number| next.executed_before(number));
        assert_eq!(known, [None, Some(InodeId(3)), Some(InodeId(4)), None]);
        executed.on_all_answered();
        assert_eq!(reread(&executed).executed_before(4), None);
    }
}
