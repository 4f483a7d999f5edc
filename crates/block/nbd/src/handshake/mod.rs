//! The handshake as a value: a client's bytes go in, replies and what to do next come out. No socket, no
//! clock.
//!
//! The server greets; the client answers with four bytes of flags and asks options, one after the other,
//! until it has chosen an export. [`NbdHandshake::handle`] takes one of these at a time.
//!
//! Nothing that was agreed on in clear survives [`HandshakeStep::StartTls`]: who sits between the two could
//! have asked it (CVE-2021-3716), and bytes that came behind the request in clear end the connection.

mod answers;

use crate::command::NbdSession;
use crate::limit::{NAME_BYTES_MAX, OPTION_BYTES_MAX, OPTIONS_MAX, SKIP_BYTES_MAX};
use crate::wire::option::{HEADER_BYTES, OptionHeader, OptionNumber, OptionReply, reply};
use crate::wire::{GREETING_MAGIC, OPTION_MAGIC, hello};

/// Whether connections are encrypted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TlsPolicy {
    /// Never.
    Off,
    /// If the client asks. Who sits between the two can see to it that it does not ask.
    On,
    /// Always: everything else is refused before.
    Require,
}

/// An export as the handshake knows it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ExportOffer {
    /// What clients call it.
    pub name: String,
    /// A line for people, or empty.
    pub description: String,
    /// Its size.
    pub bytes: u64,
    /// Whether changes are refused.
    pub read_only: bool,
}

/// What to do next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HandshakeStep {
    /// Send the replies, call again.
    Again,
    /// More bytes are needed.
    Starved,
    /// Send the replies, encrypt, call [`NbdHandshake::encrypted`], go on.
    StartTls,
    /// Send the replies; requests follow.
    Transmit(NbdSession),
    /// Send the replies, close.
    End(HandshakeEnd),
}

/// Why a handshake ended without an export.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum HandshakeEnd {
    /// The client asked for it.
    #[error("the client left")]
    Aborted,
    /// The bytes are not NBD, or not in order.
    #[error("the client does not speak NBD's fixed newstyle")]
    NotNbd,
    /// More options, or longer ones, than any honest client needs.
    #[error("the client asks too much")]
    TooMuch,
    /// The old way of choosing has no reply for it.
    #[error("the client chose an export that is not there")]
    UnknownExport,
    /// The old way of choosing has no reply for it.
    #[error("the client came without TLS, which this server requires")]
    TlsRequired,
    /// Bytes in clear stood behind the request to encrypt.
    #[error("bytes in clear came after the request to encrypt; somebody may sit in between")]
    Injected,
}

enum Phase {
    Flags,
    Options,
    /// The data of an option that is too long pass by.
    Skip {
        number: u32,
        left: u32,
    },
    Over,
}

/// A server's side of one handshake.
pub struct NbdHandshake<'a> {
    offers: &'a [ExportOffer],
    tls: TlsPolicy,
    phase: Phase,
    fixed: bool,
    no_zeroes: bool,
    secure: bool,
    structured: bool,
    extended: bool,
    /// The export that `base:allocation` was chosen for.
    allocation: Option<usize>,
    options: u32,
}

impl<'a> NbdHandshake<'a> {
    /// A handshake about these exports; the first is also meant by an empty name.
    pub fn new(offers: &'a [ExportOffer], tls: TlsPolicy) -> NbdHandshake<'a> {
        assert!(!offers.is_empty(), "a server has something to serve");
        NbdHandshake {
            offers,
            tls,
            phase: Phase::Flags,
            fixed: false,
            no_zeroes: false,
            secure: false,
            structured: false,
            extended: false,
            allocation: None,
            options: 0,
        }
    }

    /// Appends the server's first words.
    pub fn greet(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(&GREETING_MAGIC.to_be_bytes());
        out.extend_from_slice(&OPTION_MAGIC.to_be_bytes());
        out.extend_from_slice(&(hello::FIXED_NEWSTYLE | hello::NO_ZEROES).to_be_bytes());
    }

    /// Takes the next item of `input`, appends replies to `out`. Returns how many bytes were taken, which is
    /// zero exactly when more are needed, and what to do.
    pub fn handle(&mut self, input: &[u8], out: &mut Vec<u8>) -> (usize, HandshakeStep) {
        match self.phase {
            Phase::Flags => self.on_flags(input),
            Phase::Options => self.on_option(input, out),
            Phase::Skip { number, left } => self.on_skip(input, out, number, left),
            Phase::Over => (0, HandshakeStep::End(HandshakeEnd::NotNbd)),
        }
    }

    /// The connection is encrypted now; everything agreed on before is forgotten, but for the greeting's
    /// flags.
    pub fn encrypted(&mut self) {
        self.secure = true;
        self.structured = false;
        self.extended = false;
        self.allocation = None;
        self.phase = Phase::Options;
    }

    fn end(&mut self, taken: usize, end: HandshakeEnd) -> (usize, HandshakeStep) {
        self.phase = Phase::Over;
        (taken, HandshakeStep::End(end))
    }

    fn on_flags(&mut self, input: &[u8]) -> (usize, HandshakeStep) {
        let Some(flags) = input.first_chunk() else {
            return (0, HandshakeStep::Starved);
        };
        let flags = u32::from_be_bytes(*flags);
        let known = u32::from(hello::FIXED_NEWSTYLE | hello::NO_ZEROES);
        if flags & !known != 0 {
            return self.end(4, HandshakeEnd::NotNbd);
        }
        self.fixed = flags & u32::from(hello::FIXED_NEWSTYLE) != 0;
        self.no_zeroes = flags & u32::from(hello::NO_ZEROES) != 0;
        self.phase = Phase::Options;
        (4, HandshakeStep::Again)
    }

    fn on_option(&mut self, input: &[u8], out: &mut Vec<u8>) -> (usize, HandshakeStep) {
        let Some(header) = input.first_chunk::<HEADER_BYTES>() else {
            return (0, HandshakeStep::Starved);
        };
        let Some(header) = OptionHeader::parse(header) else {
            return self.end(HEADER_BYTES, HandshakeEnd::NotNbd);
        };
        let length = header.length as usize;
        if length > OPTION_BYTES_MAX {
            if header.length > SKIP_BYTES_MAX {
                return self.end(HEADER_BYTES, HandshakeEnd::TooMuch);
            }
            self.phase = Phase::Skip {
                number: header.number,
                left: header.length,
            };
            return (HEADER_BYTES, HandshakeStep::Again);
        }
        let whole = HEADER_BYTES + length;
        let Some(data) = input.get(HEADER_BYTES..whole) else {
            return (0, HandshakeStep::Starved);
        };
        if let Some(end) = self.count() {
            return self.end(whole, end);
        }
        let number = OptionNumber::of(header.number);
        // A client of the old kind knows one option, and would not understand replies.
        if !self.fixed && number != Some(OptionNumber::ExportName) {
            return self.end(whole, HandshakeEnd::NotNbd);
        }
        let step = self.answer(header.number, number, data, input.len() > whole, out);
        if !matches!(step, HandshakeStep::Again) {
            self.phase = Phase::Over;
        }
        (whole, step)
    }

    fn on_skip(&mut self, input: &[u8], out: &mut Vec<u8>, number: u32, left: u32) -> (usize, HandshakeStep) {
        let taken = input.len().min(left as usize);
        if taken == 0 {
            return (0, HandshakeStep::Starved);
        }
        let left = left - taken as u32;
        if left > 0 {
            self.phase = Phase::Skip { number, left };
            return (taken, HandshakeStep::Again);
        }
        self.phase = Phase::Options;
        if let Some(end) = self.count() {
            return self.end(taken, end);
        }
        let old_kind = !self.fixed || number == 1;
        if old_kind {
            return self.end(taken, HandshakeEnd::TooMuch);
        }
        let message = b"this option is longer than the server reads";
        reply(out, number, OptionReply::TooBig, &[message]);
        (taken, HandshakeStep::Again)
    }

    fn count(&mut self) -> Option<HandshakeEnd> {
        self.options += 1;
        (self.options > OPTIONS_MAX).then_some(HandshakeEnd::TooMuch)
    }

    fn answer(
        &mut self,
        raw: u32,
        number: Option<OptionNumber>,
        data: &[u8],
        more: bool,
        out: &mut Vec<u8>,
    ) -> HandshakeStep {
        let needs_tls = self.tls == TlsPolicy::Require && !self.secure;
        let mut say = |kind: OptionReply, message: &str| {
            reply(out, raw, kind, &[message.as_bytes()]);
            HandshakeStep::Again
        };
        match number {
            Some(OptionNumber::Abort) => {
                reply(out, raw, OptionReply::Ack, &[]);
                HandshakeStep::End(HandshakeEnd::Aborted)
            }
            Some(OptionNumber::ExportName) if needs_tls => HandshakeStep::End(HandshakeEnd::TlsRequired),
            Some(OptionNumber::StartTls) if !data.is_empty() => {
                say(OptionReply::Invalid, "STARTTLS has no data")
            }
            Some(OptionNumber::StartTls) if self.secure => {
                say(OptionReply::Invalid, "the connection is encrypted already")
            }
            Some(OptionNumber::StartTls) if self.tls == TlsPolicy::Off => {
                say(OptionReply::Policy, "this server has no certificate")
            }
            Some(OptionNumber::StartTls) if more => HandshakeStep::End(HandshakeEnd::Injected),
            Some(OptionNumber::StartTls) => {
                reply(out, raw, OptionReply::Ack, &[]);
                HandshakeStep::StartTls
            }
            _ if needs_tls => say(
                OptionReply::TlsRequired,
                "this server requires TLS; begin with STARTTLS",
            ),
            // Its answer cannot say what a client of these headers must be told.
            Some(OptionNumber::ExportName) if self.extended => HandshakeStep::End(HandshakeEnd::NotNbd),
            Some(OptionNumber::ExportName) => self.on_export_name(data, out),
            Some(OptionNumber::List) if data.is_empty() => self.on_list(raw, out),
            Some(OptionNumber::List) => say(OptionReply::Invalid, "LIST has no data"),
            Some(OptionNumber::Info) => self.on_info(raw, false, data, out),
            Some(OptionNumber::Go) => self.on_info(raw, true, data, out),
            Some(OptionNumber::StructuredReply | OptionNumber::ExtendedHeaders) if !data.is_empty() => {
                say(OptionReply::Invalid, "this option has no data")
            }
            Some(OptionNumber::StructuredReply) if self.extended => say(
                OptionReply::ExtendedHeadersRequired,
                "extended headers were agreed on, and with them structured replies",
            ),
            Some(OptionNumber::StructuredReply) if self.structured => {
                say(OptionReply::Invalid, "structured replies were agreed on already")
            }
            Some(OptionNumber::ExtendedHeaders) if self.extended => {
                say(OptionReply::Invalid, "extended headers were agreed on already")
            }
            Some(headers @ (OptionNumber::StructuredReply | OptionNumber::ExtendedHeaders)) => {
                self.structured = true;
                self.extended = headers == OptionNumber::ExtendedHeaders;
                reply(out, raw, OptionReply::Ack, &[]);
                HandshakeStep::Again
            }
            Some(OptionNumber::ListMetaContext) => self.on_contexts(raw, false, data, out),
            Some(OptionNumber::SetMetaContext) => self.on_contexts(raw, true, data, out),
            None => say(OptionReply::Unsupported, "this server does not know the option"),
        }
    }
}

/// Whether `text` can be an export's name or description.
pub fn fits(text: &str) -> bool {
    text.len() <= NAME_BYTES_MAX && !text.contains('\0')
}

#[cfg(test)]
mod tests;
