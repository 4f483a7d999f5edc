//! The handshake as a value: a client's bytes go in, replies and what to do next come out. No socket, no clock.
//!
//! The server greets; the client answers with four bytes of flags and asks options, one after the other, until it
//! has chosen an export. [`Handshake::handle`] takes one of these at a time.
//!
//! Nothing that was agreed on in clear survives [`Step::StartTls`]: who sits between the two could have asked it
//! (CVE-2021-3716), and bytes that came behind the request in clear end the connection.

mod answers;

use crate::command::Session;
use crate::limit::{NAME_BYTES_MAX, OPTION_BYTES_MAX, OPTIONS_MAX, SKIP_BYTES_MAX};
use crate::wire::option::{HEADER_BYTES, Header, Number, Reply, reply};
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
pub struct Offer {
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
pub enum Step {
    /// Send the replies, call again.
    Again,
    /// More bytes are needed.
    Starved,
    /// Send the replies, encrypt, call [`Handshake::encrypted`], go on.
    StartTls,
    /// Send the replies; requests follow.
    Transmit(Session),
    /// Send the replies, close.
    End(End),
}

/// Why a handshake ended without an export.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum End {
    /// The client asked for it.
    #[error("the client left")]
    Left,
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
pub struct Handshake<'a> {
    offers: &'a [Offer],
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

impl<'a> Handshake<'a> {
    /// A handshake about these exports; the first is also meant by an empty name.
    pub fn new(offers: &'a [Offer], tls: TlsPolicy) -> Handshake<'a> {
        assert!(!offers.is_empty(), "a server has something to serve");
        Handshake {
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

    /// Takes the next item of `input`, appends replies to `out`. Returns how many bytes were taken, which is zero
    /// exactly when more are needed, and what to do.
    pub fn handle(&mut self, input: &[u8], out: &mut Vec<u8>) -> (usize, Step) {
        match self.phase {
            Phase::Flags => self.on_flags(input),
            Phase::Options => self.on_option(input, out),
            Phase::Skip { number, left } => self.on_skip(input, out, number, left),
            Phase::Over => (0, Step::End(End::NotNbd)),
        }
    }

    /// The connection is encrypted now; everything agreed on before is forgotten, but for the greeting's flags.
    pub fn encrypted(&mut self) {
        self.secure = true;
        self.structured = false;
        self.extended = false;
        self.allocation = None;
        self.phase = Phase::Options;
    }

    fn end(&mut self, taken: usize, end: End) -> (usize, Step) {
        self.phase = Phase::Over;
        (taken, Step::End(end))
    }

    fn on_flags(&mut self, input: &[u8]) -> (usize, Step) {
        let Some(flags) = input.first_chunk() else {
            return (0, Step::Starved);
        };
        let flags = u32::from_be_bytes(*flags);
        let known = u32::from(hello::FIXED_NEWSTYLE | hello::NO_ZEROES);
        if flags & !known != 0 {
            return self.end(4, End::NotNbd);
        }
        self.fixed = flags & u32::from(hello::FIXED_NEWSTYLE) != 0;
        self.no_zeroes = flags & u32::from(hello::NO_ZEROES) != 0;
        self.phase = Phase::Options;
        (4, Step::Again)
    }

    fn on_option(&mut self, input: &[u8], out: &mut Vec<u8>) -> (usize, Step) {
        let Some(header) = input.first_chunk::<HEADER_BYTES>() else {
            return (0, Step::Starved);
        };
        let Some(header) = Header::parse(header) else {
            return self.end(HEADER_BYTES, End::NotNbd);
        };
        let length = header.length as usize;
        if length > OPTION_BYTES_MAX {
            if header.length > SKIP_BYTES_MAX {
                return self.end(HEADER_BYTES, End::TooMuch);
            }
            self.phase = Phase::Skip {
                number: header.number,
                left: header.length,
            };
            return (HEADER_BYTES, Step::Again);
        }
        let whole = HEADER_BYTES + length;
        let Some(data) = input.get(HEADER_BYTES..whole) else {
            return (0, Step::Starved);
        };
        if let Some(end) = self.count() {
            return self.end(whole, end);
        }
        let number = Number::of(header.number);
        // A client of the old kind knows one option, and would not understand replies.
        if !self.fixed && number != Some(Number::ExportName) {
            return self.end(whole, End::NotNbd);
        }
        let step = self.answer(header.number, number, data, input.len() > whole, out);
        if !matches!(step, Step::Again) {
            self.phase = Phase::Over;
        }
        (whole, step)
    }

    fn on_skip(&mut self, input: &[u8], out: &mut Vec<u8>, number: u32, left: u32) -> (usize, Step) {
        let taken = input.len().min(left as usize);
        if taken == 0 {
            return (0, Step::Starved);
        }
        let left = left - taken as u32;
        if left > 0 {
            self.phase = Phase::Skip { number, left };
            return (taken, Step::Again);
        }
        self.phase = Phase::Options;
        if let Some(end) = self.count() {
            return self.end(taken, end);
        }
        let old_kind = !self.fixed || number == 1;
        if old_kind {
            return self.end(taken, End::TooMuch);
        }
        let message = b"this option is longer than the server reads";
        reply(out, number, Reply::TooBig, &[message]);
        (taken, Step::Again)
    }

    fn count(&mut self) -> Option<End> {
        self.options += 1;
        (self.options > OPTIONS_MAX).then_some(End::TooMuch)
    }

    fn answer(
        &mut self,
        raw: u32,
        number: Option<Number>,
        data: &[u8],
        more: bool,
        out: &mut Vec<u8>,
    ) -> Step {
        let needs_tls = self.tls == TlsPolicy::Require && !self.secure;
        let mut say = |kind: Reply, message: &str| {
            reply(out, raw, kind, &[message.as_bytes()]);
            Step::Again
        };
        match number {
            Some(Number::Abort) => {
                reply(out, raw, Reply::Ack, &[]);
                Step::End(End::Left)
            }
            Some(Number::ExportName) if needs_tls => Step::End(End::TlsRequired),
            Some(Number::StartTls) if !data.is_empty() => say(Reply::Invalid, "STARTTLS has no data"),
            Some(Number::StartTls) if self.secure => {
                say(Reply::Invalid, "the connection is encrypted already")
            }
            Some(Number::StartTls) if self.tls == TlsPolicy::Off => {
                say(Reply::Policy, "this server has no certificate")
            }
            Some(Number::StartTls) if more => Step::End(End::Injected),
            Some(Number::StartTls) => {
                reply(out, raw, Reply::Ack, &[]);
                Step::StartTls
            }
            _ if needs_tls => say(
                Reply::TlsRequired,
                "this server requires TLS; begin with STARTTLS",
            ),
            // Its answer cannot say what a client of these headers must be told.
            Some(Number::ExportName) if self.extended => Step::End(End::NotNbd),
            Some(Number::ExportName) => self.on_export_name(data, out),
            Some(Number::List) if data.is_empty() => self.on_list(raw, out),
            Some(Number::List) => say(Reply::Invalid, "LIST has no data"),
            Some(Number::Info) => self.on_info(raw, false, data, out),
            Some(Number::Go) => self.on_info(raw, true, data, out),
            Some(Number::StructuredReply | Number::ExtendedHeaders) if !data.is_empty() => {
                say(Reply::Invalid, "this option has no data")
            }
            Some(Number::StructuredReply) if self.extended => say(
                Reply::ExtendedHeadersRequired,
                "extended headers were agreed on, and with them structured replies",
            ),
            Some(Number::StructuredReply) if self.structured => {
                say(Reply::Invalid, "structured replies were agreed on already")
            }
            Some(Number::ExtendedHeaders) if self.extended => {
                say(Reply::Invalid, "extended headers were agreed on already")
            }
            Some(headers @ (Number::StructuredReply | Number::ExtendedHeaders)) => {
                self.structured = true;
                self.extended = headers == Number::ExtendedHeaders;
                reply(out, raw, Reply::Ack, &[]);
                Step::Again
            }
            Some(Number::ListMetaContext) => self.on_contexts(raw, false, data, out),
            Some(Number::SetMetaContext) => self.on_contexts(raw, true, data, out),
            None => say(Reply::Unsupported, "this server does not know the option"),
        }
    }
}

/// Whether `text` can be an export's name or description.
pub fn fits(text: &str) -> bool {
    text.len() <= NAME_BYTES_MAX && !text.contains('\0')
}

#[cfg(test)]
mod tests;
