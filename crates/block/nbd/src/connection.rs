//! One connection from its first byte to its last: handshake, then requests.

use std::io;
use std::sync::Arc;
use std::time::Instant;

use rustls::pki_types::CertificateDer;

use crate::buffer::InputBuffer;
use crate::client_names::names_of;
use crate::command::NbdSession;
use crate::handshake::{self, ExportOffer, HandshakeStep, NbdHandshake};
use crate::limit::HANDSHAKE_TIMEOUT;
use crate::server::NbdServerState;
use crate::stats::NbdStats;
use crate::stream::{ClientSocket, NbdStream, ReceiveResult, ReceiveWait};
use crate::tls::TlsKeys;
use crate::transmit::Transmission;

/// Reason why a client got no export.
#[derive(Debug, thiserror::Error)]
enum HandshakeFailure {
    #[error(transparent)]
    Ended(#[from] handshake::HandshakeEnd),
    #[error("the client disconnected during the handshake")]
    CutOff,
    #[error("the client did not choose an export in time")]
    TimedOut,
    #[error("the client's certificate was revoked or lost the export during the handshake")]
    Revoked,
    #[error("the connection failed during the handshake: {0}")]
    Socket(io::Error),
}

impl From<io::Error> for HandshakeFailure {
    fn from(error: io::Error) -> HandshakeFailure {
        match error.kind() {
            io::ErrorKind::TimedOut => HandshakeFailure::TimedOut,
            io::ErrorKind::UnexpectedEof => HandshakeFailure::CutOff,
            _ => HandshakeFailure::Socket(error),
        }
    }
}

/// A client's choice of an export.
pub(crate) struct ChosenExport {
    pub(crate) session: NbdSession,
    /// Certificates that the client has shown, and the keys by which they were verified.
    pub(crate) shown: Option<(Vec<CertificateDer<'static>>, TlsKeys)>,
}

/// Serves one client. `chosen` is called once the client has chosen an export, and may refuse it.
pub(crate) fn serve(
    shared: &NbdServerState,
    fd: Arc<std::os::fd::OwnedFd>,
    peer: &str,
    chosen: impl FnOnce(ChosenExport) -> bool,
) {
    let mut stream = NbdStream::new(ClientSocket::new(fd, Instant::now() + HANDSHAKE_TIMEOUT));
    let mut input = InputBuffer::new();
    let session = negotiate(shared, &mut stream, &mut input, peer).and_then(|choice| {
        let session = choice.session;
        match chosen(choice) {
            true => Ok(session),
            false => Err(HandshakeFailure::Revoked),
        }
    });
    match session {
        Ok(session) => {
            stream.lift_deadline();
            transmit(shared, &mut stream, input, session, peer);
        }
        Err(refusal) => {
            shared.counters.add(&NbdStats {
                rejected: 1,
                ..NbdStats::default()
            });
            match refusal {
                // `nbdinfo --list` and similar programs only list the exports and disconnect.
                HandshakeFailure::Ended(handshake::HandshakeEnd::Aborted) | HandshakeFailure::CutOff => {
                    tracing::debug!(peer, "handshake ended without a session: {refusal}");
                }
                _ => tracing::warn!(peer, "handshake ended without a session: {refusal}"),
            }
        }
    }
    stream.close();
}

fn transmit(
    shared: &NbdServerState,
    stream: &mut NbdStream,
    input: InputBuffer,
    session: NbdSession,
    peer: &str,
) {
    shared.counters.add(&NbdStats {
        sessions: 1,
        ..NbdStats::default()
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
    tracing::info!(peer, export = export.name, "client disconnected: {end}");
}

/// Negotiates until the client has chosen an export. `input` then holds the bytes behind the handshake.
fn negotiate(
    shared: &NbdServerState,
    stream: &mut NbdStream,
    input: &mut InputBuffer,
    peer: &str,
) -> Result<ChosenExport, HandshakeFailure> {
    let tls = shared.tls();
    let mut shown = None;
    let offers: Vec<ExportOffer> = shared.exports.iter().map(|export| export.offer()).collect();
    let mut handshake = NbdHandshake::new(&offers, tls.policy());
    let mut out = Vec::new();
    handshake.greet(&mut out);
    loop {
        // Replies are sent before more bytes are consumed, so `out` holds at most one option's replies.
        stream.send(&out)?;
        out.clear();
        let (taken, step) = handshake.handle(input.bytes(), &mut out);
        input.take(taken);
        match step {
            HandshakeStep::Again => (),
            HandshakeStep::Starved => match input.fill(stream, ReceiveWait::Some)? {
                ReceiveResult::Bytes(_) | ReceiveResult::Nothing => (),
                ReceiveResult::End => return Err(HandshakeFailure::CutOff),
            },
            HandshakeStep::StartTls => {
                stream.send(&out)?;
                out.clear();
                let keys = tls.keys();
                let keys = keys.expect("without certificates the handshake refuses to encrypt");
                // The handshake has checked that no unencrypted bytes follow the request.
                assert!(
                    input.bytes().is_empty(),
                    "unencrypted bytes are left in the buffer"
                );
                stream.encrypt(&keys.config)?;
                handshake.encrypted();
                let certificates = stream.certificates();
                let names = certificates.first().map(names_of).unwrap_or_default();
                let opens = |offer: &ExportOffer| keys.opens(&names, &offer.name);
                handshake.permit(offers.iter().map(opens).collect());
                if !offers.iter().any(opens) {
                    tracing::warn!(peer, ?names, "the client's certificate opens no export here");
                }
                shown = Some((certificates, keys.clone()));
            }
            HandshakeStep::Transmit(session) => {
                stream.send(&out)?;
                return Ok(ChosenExport { session, shown });
            }
            HandshakeStep::End(end) => {
                stream.send(&out)?;
                return Err(end.into());
            }
        }
    }
}
