//! One connection from its first byte to its last: handshake, then requests.

use std::io;
use std::sync::Arc;
use std::time::Instant;

use crate::buffer::Input;
use crate::command::Session;
use crate::config::Tls;
use crate::handshake::{self, Handshake, Offer, Step};
use crate::limit::HANDSHAKE_TIMEOUT;
use crate::server::Shared;
use crate::stats::Stats;
use crate::stream::{Received, Socket, Stream, Wait};
use crate::transmit::Transmission;

/// Why a client got no export.
#[derive(Debug, thiserror::Error)]
enum Refusal {
    #[error(transparent)]
    Ended(#[from] handshake::End),
    #[error("the client left in the middle of the handshake")]
    CutOff,
    #[error("the client did not choose an export in time")]
    TimedOut,
    #[error("the connection failed in the handshake: {0}")]
    Socket(io::Error),
}

impl From<io::Error> for Refusal {
    fn from(error: io::Error) -> Refusal {
        match error.kind() {
            io::ErrorKind::TimedOut => Refusal::TimedOut,
            io::ErrorKind::UnexpectedEof => Refusal::CutOff,
            _ => Refusal::Socket(error),
        }
    }
}

/// Serves one client. `chosen` is called when it is a stranger no more.
pub(crate) fn serve(shared: &Shared, fd: Arc<std::os::fd::OwnedFd>, peer: &str, chosen: impl FnOnce()) {
    let mut stream = Stream::new(Socket::new(fd, Instant::now() + HANDSHAKE_TIMEOUT));
    let mut input = Input::new();
    let session = shake_hands(shared, &mut stream, &mut input);
    match session {
        Ok(session) => {
            chosen();
            stream.lift_deadline();
            transmit(shared, &mut stream, input, session, peer);
        }
        Err(refusal) => {
            shared.counters.add(&Stats {
                rejected: 1,
                ..Stats::default()
            });
            match refusal {
                // `nbdinfo --list` and their like look around and leave.
                Refusal::Ended(handshake::End::Left) | Refusal::CutOff => {
                    tracing::debug!(peer, "no session: {refusal}");
                }
                _ => tracing::warn!(peer, "no session: {refusal}"),
            }
        }
    }
    stream.close();
}

fn transmit(shared: &Shared, stream: &mut Stream, input: Input, session: Session, peer: &str) {
    shared.counters.add(&Stats {
        sessions: 1,
        ..Stats::default()
    });
    let export = &shared.exports[session.export];
    tracing::info!(peer, export = export.name, "client connected");
    let stopping = || shared.stopping();
    let transmission = Transmission::new(
        stream,
        &export.device,
        session,
        input,
        &shared.counters,
        &stopping,
    );
    let end = transmission.run();
    tracing::info!(peer, export = export.name, "client gone: {end}");
}

/// Answers options until the client has chosen. `input` then holds what came behind.
fn shake_hands(shared: &Shared, stream: &mut Stream, input: &mut Input) -> Result<Session, Refusal> {
    let offers: Vec<Offer> = shared.exports.iter().map(|export| export.offer()).collect();
    let mut handshake = Handshake::new(&offers, shared.tls.policy());
    let mut out = Vec::new();
    handshake.greet(&mut out);
    loop {
        // Replies leave before the next bytes are taken, so `out` never holds more than one option's.
        stream.send(&out)?;
        out.clear();
        let (taken, step) = handshake.handle(input.bytes(), &mut out);
        input.take(taken);
        match step {
            Step::Again => (),
            Step::Starved => match input.fill(stream, Wait::Some)? {
                Received::Bytes(_) | Received::Nothing => (),
                Received::End => return Err(Refusal::CutOff),
            },
            Step::StartTls => {
                stream.send(&out)?;
                out.clear();
                let (Tls::On(keys) | Tls::Require(keys)) = &shared.tls else {
                    unreachable!("without certificates the handshake refuses to encrypt")
                };
                // The handshake saw that nothing in clear stands behind the request.
                assert!(input.bytes().is_empty(), "no byte in clear is left");
                stream.encrypt(&keys.config)?;
                handshake.encrypted();
            }
            Step::Transmit(session) => {
                stream.send(&out)?;
                return Ok(session);
            }
            Step::End(end) => {
                stream.send(&out)?;
                return Err(end.into());
            }
        }
    }
}
