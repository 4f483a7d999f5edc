//! Sends links what is due.

use netram_shared_machine::ToNode;
use netram_shared_machine::server::{LinkOutput, SessionId};

use super::RegionServeError;
use super::driver::ServeDriver;
use super::node_link::NodeLink;
use crate::channel::ChannelError;
use crate::limit::{FILL_BYTES_A_TURN, QUEUED_REPLIES_MAX};

/// Result of sending to one link in one turn.
enum FillOutcome {
    /// Everything was sent, or the link takes no more.
    Done,
    /// The link got its share; there may be more.
    Share,
}

impl ServeDriver {
    /// Sends every link its share. Links that fail are ended, which may make messages due on others.
    pub(super) fn fill_all(&mut self) -> Result<(), RegionServeError> {
        let mut again = true;
        let mut sessions = std::mem::take(&mut self.all);
        self.due.clear();
        self.unfilled = false;
        while std::mem::take(&mut again) {
            sessions.clear();
            sessions.extend(self.links.keys().copied());
            for session in sessions.iter().copied() {
                match self.fill(session) {
                    Ok(FillOutcome::Done) => (),
                    Ok(FillOutcome::Share) => self.unfilled = true,
                    Err(error) => {
                        self.on_link_failed(session, &error)?;
                        again = true;
                    }
                }
            }
        }
        self.all = sessions;
        let ServeDriver {
            links: lines,
            server,
            poller,
            due,
            ..
        } = self;
        for (session, line) in lines {
            let may_read = line.is_open() && server.urgent(*session) < QUEUED_REPLIES_MAX;
            line.wait_for(may_read, poller, session.0)?;
            if may_read && line.channel.has_buffered() {
                due.push(*session);
            }
        }
        Ok(())
    }

    fn fill(&mut self, session: SessionId) -> Result<FillOutcome, ChannelError> {
        let Some(line) = self.links.get_mut(&session) else {
            return Ok(FillOutcome::Done);
        };
        let mut left = FILL_BYTES_A_TURN;
        loop {
            let mut all = false;
            while line.channel.has_room() && left > 0 {
                let bytes = match self.server.poll_send(session) {
                    None => {
                        all = true;
                        break;
                    }
                    Some(LinkOutput::Message(message)) => {
                        match &message {
                            ToNode::OrphanWanted { from: Some(_), .. } => line.admit(),
                            ToNode::Rejoin => tracing::warn!(
                                peer = line.channel.peer(),
                                "a node lacks records that the server does not keep any more, and has to fetch the region anew; raise `--recent` to keep more"
                            ),
                            _ => (),
                        }
                        line.queue(&message, &mut self.scratch)
                    }
                    Some(LinkOutput::Page { offset, bytes }) => {
                        let scratch = &mut self.scratch;
                        self.store
                            .with_bytes(offset, bytes, |bytes| give_page(line, offset, bytes, scratch));
                        usize::try_from(bytes).unwrap_or(usize::MAX)
                    }
                    Some(LinkOutput::Close) => {
                        line.close(self.now);
                        all = true;
                        break;
                    }
                };
                left = left.saturating_sub(bytes);
            }
            line.flush()?;
            if all || !line.channel.has_room() {
                return Ok(FillOutcome::Done);
            }
            if left == 0 {
                return Ok(FillOutcome::Share);
            }
        }
    }
}

/// Sends bytes of the region unless all are zeros, since a joining node starts with zeros.
fn give_page(line: &mut NodeLink, offset: u64, bytes: &[u8], scratch: &mut Vec<u8>) {
    if !is_zeros(bytes) {
        let page: ToNode<&[u8]> = ToNode::Page { offset, bytes };
        line.queue(&page, scratch);
    }
}

fn is_zeros(bytes: &[u8]) -> bool {
    const ZEROS: [u8; 4096] = [0; 4096];
    let mut pieces = bytes.chunks(ZEROS.len());
    pieces.all(|piece| *piece == ZEROS[..piece.len()])
}
