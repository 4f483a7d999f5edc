//! The handshake as a value: a client's bytes go in, replies and the next step come out. No socket, no clock.
//!
//! The server greets. The client answers with four bytes of flags and sends options, one after the other,
//! until it has chosen an export. [`NbdHandshake::handle`] handles one of these at a time.
//!
//! Nothing that was negotiated without encryption survives [`HandshakeStep::StartTls`], because an attacker
//! in between could have sent it (CVE-2021-3716). Unencrypted bytes behind that request end the connection.

mod answers;

use crate::command::NbdSession;
use crate::limit::{NAME_BYTES_MAX, OPTION_BYTES_MAX, OPTIONS_MAX, SKIP_BYTES_MAX};
use crate::wire::option::{HEADER_BYTES, OptionHeader, OptionNumber, OptionReply, reply};
use crate::wire::{GREETING_MAGIC, OPTION_MAGIC, hello};

/// Encryption of connections.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TlsPolicy {
    /// Connections are never encrypted.
    Off,
    /// Connections are encrypted if the client asks. An attacker in between can suppress that request.
    On,
    /// Every connection must be encrypted; all other options are refused before.
    Require,
}

/// An export as the handshake knows it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ExportOffer {
    /// Name of the export.
    pub name: String,
    /// Description in one line, or empty.
    pub description: String,
    /// Size in bytes.
    pub bytes: u64,
    /// Whether changes are refused.
    pub read_only: bool,
}

/// Next step of the connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HandshakeStep {
    /// Send the replies and call again.
    Again,
    /// Receive more bytes.
    Starved,
    /// Send the replies, encrypt, call [`NbdHandshake::encrypted`], and continue.
    StartTls,
    /// Send the replies; requests follow.
    Transmit(NbdSession),
    /// Send the replies and close.
    End(HandshakeEnd),
}

/// Reason why a handshake ended without an export.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum HandshakeEnd {
    /// The client ended the handshake.
    #[error("the client ended the handshake")]
    Aborted,
    /// The bytes are not NBD, or in the wrong order.
    #[error("the client does not use NBD's fixed newstyle protocol")]
    NotNbd,
    /// The client sent more or longer options than any proper client needs.
    #[error("the client sent too many or too long options")]
    TooMuch,
    /// The client chose an unknown export in the old way, which has no reply for that.
    #[error("the client chose an export that does not exist")]
    UnknownExport,
    /// The client chose an export in the old way without TLS, which has no reply for that.
    #[error("the client did not use TLS, which this server requires")]
    TlsRequired,
    /// Unencrypted bytes followed the request to encrypt.
    #[error("unencrypted bytes followed the request to encrypt; the connection may be under attack")]
    Injected,
}

enum Phase {
    Flags,
    Options,
    /// The data of an option that is too long are being skipped.
    Skip {
        number: u32,
        left: u32,
    },
    Over,
}

/// The server's side of one handshake.
pub struct NbdHandshake<'a> {
    offers: &'a [ExportOffer],
    tls: TlsPolicy,
    phase: Phase,
    fixed: bool,
    no_zeroes: bool,
    secure: bool,
    structured: bool,
    extended: bool,
    /// Which exports the client may open; `None`: all.
    permitted: Option<Vec<bool>>,
    /// Index of the export for which `base:allocation` was chosen.
    allocation: Option<usize>,
    options: u32,
}

impl<'a> NbdHandshake<'a> {
    /// Creates a handshake for these exports; an empty name means the first one that the
    /// client may open.
    pub fn new(offers: &'a [ExportOffer], tls: TlsPolicy) -> NbdHandshake<'a> {
        assert!(!offers.is_empty(), "a server must have an export");
        NbdHandshake {
            offers,
            tls,
            phase: Phase::Flags,
            fixed: false,
            no_zeroes: false,
            secure: false,
            structured: false,
            extended: false,
            permitted: None,
            allocation: None,
            options: 0,
        }
    }

    /// Appends the server's greeting.
    pub fn greet(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(&GREETING_MAGIC.to_be_bytes());
        out.extend_from_slice(&OPTION_MAGIC.to_be_bytes());
        out.extend_from_slice(&(hello::FIXED_NEWSTYLE | hello::NO_ZEROES).to_be_bytes());
    }

    /// Handles the next item of `input` and appends replies to `out`. Returns the number of bytes consumed,
    /// which is zero exactly if more are needed, and the next step.
    pub fn handle(&mut self, input: &[u8], out: &mut Vec<u8>) -> (usize, HandshakeStep) {
        match self.phase {
            Phase::Flags => self.on_flags(input),
            Phase::Options => self.on_option(input, out),
            Phase::Skip { number, left } => self.on_skip(input, out, number, left),
            Phase::Over => (0, HandshakeStep::End(HandshakeEnd::NotNbd)),
        }
    }

    /// The connection is now encrypted: everything negotiated before is forgotten, except for the greeting's
    /// flags.
    pub fn encrypted(&mut self) {
        self.secure = true;
        self.structured = false;
        self.extended = false;
        self.allocation = None;
        self.phase = Phase::Options;
    }

    /// The client's certificate opens only these exports, in the order of the offers; for the client, others
    /// do not exist.
    pub fn permit(&mut self, permitted: Vec<bool>) {
        assert_eq!(permitted.len(), self.offers.len(), "one answer for each export");
        self.permitted = Some(permitted);
    }

    /// Exports that exist for this client, with their indices.
    fn present(&self) -> impl Iterator<Item = (usize, &ExportOffer)> {
        let is_present = |index: usize| self.permitted.as_ref().is_none_or(|permitted| permitted[index]);
        self.offers
            .iter()
            .enumerate()
            .filter(move |(index, _)| is_present(*index))
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
        // A client of the old kind knows only one option, and would not understand replies.
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
            // The reply of this option cannot tell a client that extended headers are in use.
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

/// Whether `text` is valid as an export's name or description.
pub fn fits(text: &str) -> bool {
    text.len() <= NAME_BYTES_MAX && !text.contains('\0')
}

#[cfg(test)]
mod tests;
