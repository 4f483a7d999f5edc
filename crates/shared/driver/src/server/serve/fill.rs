//! Giving links what there is for them.

use netram_shared_machine::ToNode;
use netram_shared_machine::server::{Outgoing, Session};

use super::ServeError;
use super::driver::Driver;
use super::line::Line;
use crate::channel::ChannelError;
use crate::limit::{ANSWERS_MAX, FILL_BYTES_A_TURN};

/// What a link is given in one turn.
enum Filled {
    /// All that there is, or all that it takes.
    Done,
    /// Its share: there may be more.
    Share,
}

impl Driver {
    /// Gives every link its share. Whoever cannot be sent to is lost, which may give others something.
    pub(super) fn fill_all(&mut self) -> Result<(), ServeError> {
        let mut again = true;
        let mut sessions = std::mem::take(&mut self.all);
        self.due.clear();
        self.unfilled = false;
        while std::mem::take(&mut again) {
            sessions.clear();
            sessions.extend(self.lines.keys().copied());
            for session in sessions.iter().copied() {
                match self.fill(session) {
                    Ok(Filled::Done) => (),
                    Ok(Filled::Share) => self.unfilled = true,
                    Err(error) => {
                        self.lose(session, &error)?;
                        again = true;
                    }
                }
            }
        }
        self.all = sessions;
        let Driver {
            lines,
            server,
            poller,
            due,
            ..
        } = self;
        for (session, line) in lines {
            let may_read = line.is_open() && server.urgent(*session) < ANSWERS_MAX;
            line.wait_for(may_read, poller, session.0)?;
            if may_read && line.channel.has_buffered() {
                due.push(*session);
            }
        }
        Ok(())
    }

    fn fill(&mut self, session: Session) -> Result<Filled, ChannelError> {
        let Some(line) = self.lines.get_mut(&session) else {
            return Ok(Filled::Done);
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
                    Some(Outgoing::Message(message)) => {
                        match &message {
                            ToNode::Wanted { from: Some(_), .. } => line.let_in(),
                            ToNode::Anew => tracing::warn!(
                                peer = line.channel.peer(),
                                "a node lacks records that are not kept any more, and is to begin anew; `--recent` says how many are kept"
                            ),
                            _ => (),
                        }
                        line.say(&message, &mut self.scratch)
                    }
                    Some(Outgoing::Page { offset, bytes }) => {
                        let scratch = &mut self.scratch;
                        self.store
                            .with_bytes(offset, bytes, |bytes| give_page(line, offset, bytes, scratch));
                        usize::try_from(bytes).unwrap_or(usize::MAX)
                    }
                    Some(Outgoing::Close) => {
                        line.close(self.now);
                        all = true;
                        break;
                    }
                };
                left = left.saturating_sub(bytes);
            }
            line.flush()?;
            if all || !line.channel.has_room() {
                return Ok(Filled::Done);
            }
            if left == 0 {
                return Ok(Filled::Share);
            }
        }
    }
}

/// Bytes that are all zeros are not sent: whoever joins begins with zeros.
fn give_page(line: &mut Line, offset: u64, bytes: &[u8], scratch: &mut Vec<u8>) {
    if !is_zeros(bytes) {
        let page: ToNode<&[u8]> = ToNode::Page { offset, bytes };
        line.say(&page, scratch);
    }
}

fn is_zeros(bytes: &[u8]) -> bool {
    const ZEROS: [u8; 4096] = [0; 4096];
    let mut pieces = bytes.chunks(ZEROS.len());
    pieces.all(|piece| *piece == ZEROS[..piece.len()])
}
