//! Events of a process's link to the data lender.

use netram_proto::wire::{Frame, FrameKind};

use super::link::DataLink;
use crate::check::rule12;
use crate::process::ProcessPhase;
use crate::world::World;

impl World {
    pub(crate) fn on_data_connected(&mut self, process: usize, session: u64) {
        let now = self.kernel.now();
        let reachable = self.data.is_reachable(now);
        self.with_link(process, session, |link| link.on_connected(reachable, now));
    }

    pub(crate) fn on_data_up(&mut self, process: usize, session: u64, packet: &[u8]) {
        let from = (process, session);
        self.data
            .on_frame(&mut self.kernel, self.hosts.volume(), from, packet);
    }

    pub(crate) fn on_data_down(&mut self, process: usize, session: u64, packet: &[u8]) {
        let now = self.kernel.now();
        if let Ok(frame) = Frame::parse(packet) {
            if frame.header.kind == FrameKind::Flushed && self.is_data_session(process, session) {
                let end = frame.header.lsn;
                let host = self.processes[process].host;
                if let Some((head, bytes)) = self.data.lender().and_then(|data| data.platter(end)) {
                    rule12::flushed(&self.hosts[host].history, end, head, &bytes);
                }
            }
            self.with_link(process, session, |link| link.on_frame(&frame, now));
        }
    }

    pub(crate) fn on_data_lost(&mut self, process: usize, session: u64) {
        let now = self.kernel.now();
        self.with_link(process, session, |link| link.on_lost(now));
    }

    fn is_data_session(&self, process: usize, session: u64) -> bool {
        let link = self
            .processes
            .serving(process)
            .and_then(|serving| serving.data.as_ref());
        link.is_some_and(|link| link.has_session(session)) && self.data.serves(session)
    }

    /// Runs `work` on the link of a process that serves, if `session` is its connection.
    fn with_link(&mut self, process: usize, session: u64, work: impl FnOnce(&mut DataLink)) {
        if let ProcessPhase::Serving(serving) = &mut self.processes[process].phase
            && let Some(link) = &mut serving.data
            && link.has_session(session)
        {
            work(link);
        }
        self.settle(process);
    }
}
