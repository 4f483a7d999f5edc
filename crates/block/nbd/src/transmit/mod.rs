//! Requests of one connection, in batches: all that have arrived are started, waited for once, and answered
//! together.
//!
//! A batch ends when no more bytes are here, so a single request is not delayed. While a batch is waited for,
//! the next one collects in the socket. Reads are answered before the wait. No step allocates.

mod answer;
mod read;
mod write;

use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};

use netram_block::{BlockDevice, DeviceError};

use crate::buffer::{InputBuffer, OutputBuffer};
use crate::command::{NbdCommand, NbdSession, check_request};
use crate::limit::{RUNS_MAX, SKIPPED_BYTES_MAX};
use crate::stats::{NbdCounters, NbdStats};
use crate::stream::{NbdStream, ReceiveResult, ReceiveWait};
use crate::transmit::answer::{Batch, ReplyBarrier, RequestKey};
use crate::transmit::write::WritePayload;
use crate::wire::reply::NbdErrorCode;
use crate::wire::request::{
    EXTENDED_REQUEST_BYTES, NbdRequest, REQUEST_BYTES, STATUS_PAYLOAD_BYTES, command, flag,
};
use crate::wire::{BASE_ALLOCATION_ID, WireReader};

/// Minimum interval between error lines of one connection in the log; a failing device fails every request.
const ERROR_LINE_EVERY: Duration = Duration::from_secs(1);

/// Reason for the end of a connection.
#[derive(Debug, thiserror::Error)]
pub(crate) enum TransmitEnd {
    #[error("the client disconnected")]
    Disconnected,
    #[error("the client disconnected in the middle of a request")]
    CutOff,
    #[error("the client sent an invalid request")]
    NotARequest,
    #[error("a read failed after its reply had begun, so the connection was closed")]
    ReadBroken,
    #[error("the server is stopping")]
    Stopping,
    #[error("the connection failed: {0}")]
    Socket(#[from] io::Error),
}

/// Whether another request could be started.
enum RequestStart {
    Started,
    Starved,
}

/// A connection after its handshake.
pub(crate) struct Transmission<'a> {
    stream: &'a mut NbdStream,
    device: &'a dyn BlockDevice,
    session: NbdSession,
    counters: &'a NbdCounters,
    stopping: &'a (dyn Fn() -> bool + 'a),
    input: InputBuffer,
    output: OutputBuffer,
    batch: Batch,
    /// A write whose payload is arriving.
    payload: Option<WritePayload>,
    /// Runs of data and holes; kept to reuse its memory.
    runs: Vec<(u64, bool)>,
    stats: NbdStats,
    next_line: Option<Instant>,
    errors_suppressed: u64,
}

impl<'a> Transmission<'a> {
    /// `input` holds the bytes behind the handshake.
    pub(crate) fn new(
        stream: &'a mut NbdStream,
        device: &'a Arc<dyn BlockDevice>,
        session: NbdSession,
        input: InputBuffer,
        counters: &'a NbdCounters,
        stopping: &'a (dyn Fn() -> bool + 'a),
    ) -> Transmission<'a> {
        Transmission {
            stream,
            device: &**device,
            session,
            counters,
            stopping,
            input,
            output: OutputBuffer::new(),
            batch: Batch::new(),
            payload: None,
            runs: Vec::with_capacity(RUNS_MAX + 1),
            stats: NbdStats::default(),
            next_line: None,
            errors_suppressed: 0,
        }
    }

    /// Serves until the client disconnects or the server stops. Started requests are finished, and answered
    /// if possible.
    pub(crate) fn run(mut self) -> TransmitEnd {
        let end = loop {
            match self.turn() {
                Ok(()) => (),
                Err(end) => break end,
            }
        };
        // After a disconnect the protocol wants every request finished, and replies do no harm. In the middle
        // of a reply they would be taken for its data.
        let settled = match end {
            TransmitEnd::ReadBroken | TransmitEnd::Socket(_) => {
                self.abandon();
                Ok(())
            }
            _ => self.settle(),
        };
        self.counters.add(&self.stats);
        match settled {
            Err(error) if matches!(end, TransmitEnd::Disconnected | TransmitEnd::Stopping) => {
                TransmitEnd::Socket(error)
            }
            _ => end,
        }
    }

    fn turn(&mut self) -> Result<(), TransmitEnd> {
        loop {
            if self.batch.is_full() {
                break;
            }
            match self.start_next()? {
                RequestStart::Started => continue,
                RequestStart::Starved => (),
            }
            // A part of a request is here: the rest will probably arrive soon, and can join the batch.
            let halfway = self.payload.is_some() || !self.input.bytes().is_empty();
            if self.batch.is_empty() || !halfway {
                break;
            }
            match self.input.fill(self.stream, ReceiveWait::None)? {
                ReceiveResult::Bytes(_) => (),
                ReceiveResult::Nothing | ReceiveResult::End => break,
            }
        }
        let was_full = self.batch.is_full();
        self.settle()?;
        if (self.stopping)() && self.payload.is_none() {
            return Err(TransmitEnd::Stopping);
        }
        if was_full {
            return Ok(());
        }
        match self.input.fill(self.stream, ReceiveWait::Some)? {
            ReceiveResult::Bytes(_) | ReceiveResult::Nothing => Ok(()),
            ReceiveResult::End if self.payload.is_some() || !self.input.bytes().is_empty() => {
                Err(TransmitEnd::CutOff)
            }
            ReceiveResult::End => Err(TransmitEnd::Disconnected),
        }
    }

    /// Starts one request, or one piece of a payload.
    fn start_next(&mut self) -> Result<RequestStart, TransmitEnd> {
        if let Some(payload) = self.payload.take() {
            return Ok(self.on_payload(payload));
        }
        let request = match self.session.extended {
            true => self.take_extended_request()?,
            false => self.take_request()?,
        };
        let Some(request) = request else {
            return Ok(match self.payload {
                Some(_) => RequestStart::Started,
                None => RequestStart::Starved,
            });
        };
        // The size is read anew each time, because a volume may grow while it is served.
        let judged = check_request(&request, &self.session, self.device.geometry().bytes);
        let asked = key_of(&request);
        match judged {
            Err(error) if request.command == command::WRITE => {
                self.payload = Some(WritePayload::refused(asked, request.length, error));
            }
            Err(error) if request.command == command::READ => self.answer_failed_read(asked, error)?,
            Err(error) => self.batch.push(asked, Err(error), ReplyBarrier::Immediate),
            Ok(NbdCommand::Read { span, unbroken }) => self.on_read(asked, span, unbroken)?,
            Ok(NbdCommand::Write { span, fua }) => {
                self.payload = Some(WritePayload::accepted(asked, span, fua))
            }
            Ok(NbdCommand::Zero { span, stored, fua }) => self.on_zero(asked, span, stored, fua),
            Ok(NbdCommand::Trim { span, fua }) => self.on_trim(asked, span, fua),
            Ok(NbdCommand::Flush) => self.batch.push(asked, Ok(()), ReplyBarrier::Flush),
            Ok(NbdCommand::Cache) => self.batch.push(asked, Ok(()), ReplyBarrier::Immediate),
            Ok(NbdCommand::Status { span, one }) => self.on_status(asked, span, one)?,
            Ok(NbdCommand::Disconnect) => return Err(TransmitEnd::Disconnected),
        }
        Ok(RequestStart::Started)
    }

    /// The next request, if it is complete.
    fn take_request(&mut self) -> Result<Option<NbdRequest>, TransmitEnd> {
        let Some(head) = self.input.bytes().first_chunk::<REQUEST_BYTES>() else {
            return Ok(None);
        };
        let request = NbdRequest::parse(head).ok_or(TransmitEnd::NotARequest)?;
        self.input.take(REQUEST_BYTES);
        Ok(Some(request))
    }

    /// The next request with an extended header. A block status' payload is consumed with it; an unexpected
    /// payload becomes [`Self::payload`], to be skipped and refused.
    fn take_extended_request(&mut self) -> Result<Option<NbdRequest>, TransmitEnd> {
        let here = self.input.bytes();
        let Some(head) = here.first_chunk::<EXTENDED_REQUEST_BYTES>() else {
            return Ok(None);
        };
        let mut request = NbdRequest::parse_extended(head).ok_or(TransmitEnd::NotARequest)?;
        // A write has a payload even if the client does not set the flag.
        let carries = request.flags & flag::PAYLOAD_LEN != 0 || request.command == command::WRITE;
        if carries && request.length > SKIPPED_BYTES_MAX {
            return Err(TransmitEnd::NotARequest);
        }
        if !carries || request.command == command::WRITE {
            self.input.take(EXTENDED_REQUEST_BYTES);
            return Ok(Some(request));
        }
        let names_one = request.length == STATUS_PAYLOAD_BYTES as u64;
        if self.session.block_status && request.command == command::BLOCK_STATUS && names_one {
            let Some(payload) = here[EXTENDED_REQUEST_BYTES..].first_chunk::<STATUS_PAYLOAD_BYTES>() else {
                return Ok(None);
            };
            let mut reader = WireReader::new(payload);
            if let (Some(length), Some(BASE_ALLOCATION_ID)) = (reader.u64(), reader.u32()) {
                request.length = length;
                request.flags &= !flag::PAYLOAD_LEN;
                self.input.take(EXTENDED_REQUEST_BYTES + STATUS_PAYLOAD_BYTES);
                return Ok(Some(request));
            }
        }
        self.input.take(EXTENDED_REQUEST_BYTES);
        self.payload = Some(WritePayload::refused(
            key_of(&request),
            request.length,
            NbdErrorCode::Invalid,
        ));
        Ok(None)
    }

    /// Counts and logs a failure of the device; returns the error for the client.
    fn fail(&mut self, error: &DeviceError) -> NbdErrorCode {
        self.errors_suppressed += 1;
        let now = Instant::now();
        if self.next_line.is_none_or(|next| next <= now) {
            self.next_line = Some(now + ERROR_LINE_EVERY);
            tracing::error!(requests = self.errors_suppressed, "requests failed: {error}");
            self.errors_suppressed = 0;
        }
        NbdErrorCode::of(error)
    }
}

fn key_of(request: &NbdRequest) -> RequestKey {
    RequestKey {
        cookie: request.cookie,
        offset: request.offset,
    }
}
