//! The session with the kernel: its beginning, taking it over from a killed server, and the threads that
//! reply.

use std::io;
use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread::JoinHandle;

use netram_process::abort_guard::AbortGuard;
use rustix::io::Errno;

use crate::affinity::stay_on;
use crate::device::FuseDevice;
use crate::ring::{QueuePlace, queues};
use crate::wire::init::{FuseAgreement, FuseOptions};
use crate::wire::reply::ReplyBody;
use crate::wire::request::{FuseOperation, FuseRequest};

/// Maximum bytes of data in one request. The kernel sends no more, and splits larger writes.
pub const REQUEST_BYTES_MAX: u32 = 1 << 20;
/// Bytes for a request's header and the arguments of a write.
const OVERHEAD_BYTES: usize = 4096;

/// A file system: it decides what requests are answered.
pub trait FuseService: Send + Sync + 'static {
    /// Lives from a request's arrival until its reply was sent, as to time it.
    type Timed<'a>
    where
        Self: 'a;

    /// A request has arrived.
    fn begin(&self, request: &FuseRequest<'_>) -> Self::Timed<'_>;

    /// Answers a request: writes the reply to the empty `body`, or returns the error for the program. The
    /// results are of no interest if the request [has no reply](FuseOperation::is_answered).
    ///
    /// # Errors
    ///
    /// The error for the program.
    fn answer(&self, request: &FuseRequest<'_>, body: &mut ReplyBody) -> Result<(), Errno>;

    /// Every request that an earlier server left unanswered has been answered.
    fn on_resent_answered(&self) {}
}

/// A session whose handshake is done, and that nobody answers yet.
#[derive(Debug)]
pub struct AgreedSession {
    device: Arc<FuseDevice>,
    agreement: FuseAgreement,
}

/// A session that is being answered.
#[derive(Debug)]
pub struct FuseSession {
    device: Arc<FuseDevice>,
    threads: Vec<JoinHandle<()>>,
    can_be_taken_over: bool,
}

impl AgreedSession {
    /// Does the handshake of a new mount.
    ///
    /// # Errors
    ///
    /// The kernel's FUSE is too old, lacks something needed, or the mount is gone.
    pub fn begin(device: FuseDevice, options: &FuseOptions) -> io::Result<AgreedSession> {
        let mut buffer = vec![0; OVERHEAD_BYTES * 2];
        let length = device.receive(&mut buffer)?.ok_or(io::ErrorKind::NotConnected)?;
        let Some(FuseRequest {
            unique,
            operation: FuseOperation::Init(init),
            ..
        }) = FuseRequest::parse(&buffer[..length])
        else {
            return Err(io::Error::other("the FUSE session did not begin with INIT"));
        };
        let mut body = ReplyBody::default();
        match init.agree(options, REQUEST_BYTES_MAX, &mut body) {
            Ok(agreement) => {
                device.reply(unique, Ok(body.filled()))?;
                Ok(AgreedSession {
                    device: Arc::new(device),
                    agreement,
                })
            }
            Err(lacks) => {
                device.reply(unique, Err(Errno::PROTO))?;
                Err(io::Error::other(lacks))
            }
        }
    }

    /// The kernel's end of the session.
    pub fn device(&self) -> &Arc<FuseDevice> {
        &self.device
    }

    /// Result of the handshake.
    pub fn agreement(&self) -> FuseAgreement {
        self.agreement
    }

    /// Begins to answer, with `threads` threads that share the kernel's end.
    ///
    /// # Errors
    ///
    /// A thread cannot be started.
    pub fn serve(self, service: Arc<impl FuseService>, threads: usize) -> io::Result<FuseSession> {
        let ends = vec![Arc::clone(&self.device); threads.max(1)];
        let resend = self.agreement.can_be_taken_over();
        FuseSession::start(self.device, ends, &service, resend, None)
    }

    /// Begins to answer, with `threads` threads that have an end each. Another server could not take such a
    /// session over with this end alone ([`FuseDevice::clone_session`]).
    ///
    /// # Errors
    ///
    /// A thread cannot be started, or the device not be opened.
    pub fn serve_apart(self, service: Arc<impl FuseService>, threads: usize) -> io::Result<FuseSession> {
        let mut ends = vec![Arc::clone(&self.device)];
        for _ in 1..threads {
            ends.push(Arc::new(self.device.clone_session()?));
        }
        FuseSession::start(self.device, ends, &service, false, None)
    }

    /// Begins to answer requests that come by io_uring, with `threads` threads on each core. Kernel and
    /// server must have agreed on that ([`FuseAgreement::is_over_io_uring`]). Another server cannot take such
    /// a session over.
    ///
    /// # Errors
    ///
    /// The kernel refuses a queue, or a thread cannot be started. The mount cannot be used then: the kernel
    /// holds its requests back until each core has a queue.
    pub fn serve_by_ring(self, service: Arc<impl FuseService>, threads: usize) -> io::Result<FuseSession> {
        let (sender, taken) = channel();
        let mut started = Vec::new();
        for (core, is_online) in queues::all()? {
            // A core may come up later. Until then nobody calls from it.
            let count = if is_online { threads.max(1) } else { 1 };
            for number in 0..count {
                let (device, service, sender) =
                    (Arc::clone(&self.device), Arc::clone(&service), sender.clone());
                let thread = std::thread::Builder::new().name(format!("netram-fuse-{core}.{number}"));
                started.push(thread.spawn(move || serve_queue(device, core, &*service, &sender))?);
            }
        }
        for said in taken.iter().take(started.len()) {
            said?;
        }
        // What the kernel waits for no reply to comes by the device all the same.
        let ends = vec![Arc::clone(&self.device)];
        let mut session = FuseSession::start(self.device, ends, &service, false, None)?;
        session.threads.append(&mut started);
        Ok(session)
    }
}

/// Takes a place in the core's queue, says how that went, and answers.
fn serve_queue(
    device: Arc<FuseDevice>,
    core: u16,
    service: &impl FuseService,
    taken: &Sender<io::Result<()>>,
) {
    stay_on(core);
    let place = QueuePlace::take(device, core, REQUEST_BYTES_MAX as usize);
    match place {
        Ok(mut place) => {
            let _ = taken.send(Ok(()));
            serve(&mut place, service, None);
        }
        Err(error) => {
            let _ = taken.send(Err(error));
        }
    }
}

impl FuseSession {
    /// Continues where a killed server stopped: the kernel sends its unanswered requests again. Some may have
    /// been executed already. One thread answers them alone, so that it is known when they are answered.
    ///
    /// # Errors
    ///
    /// The kernel cannot send them again, or a thread cannot be started.
    pub fn take_over(
        device: Arc<FuseDevice>,
        service: Arc<impl FuseService>,
        threads: usize,
    ) -> io::Result<FuseSession> {
        // Before anything is read, because that would be sent again too.
        device.resend()?;
        let ends = vec![Arc::clone(&device); threads.max(1)];
        FuseSession::start(device, ends, &service, true, Some(Arc::default()))
    }

    fn start(
        device: Arc<FuseDevice>,
        ends: Vec<Arc<FuseDevice>>,
        service: &Arc<impl FuseService>,
        can_be_taken_over: bool,
        resent: Option<Arc<ResentPhase>>,
    ) -> io::Result<FuseSession> {
        let threads = ends.into_iter().enumerate().map(|(number, end)| {
            let (service, resent) = (Arc::clone(service), resent.clone());
            std::thread::Builder::new()
                .name(format!("netram-fuse-{number}"))
                .spawn(move || {
                    let mut end = DeviceEnd::new(end);
                    match resent {
                        Some(resent) if number == 0 => {
                            serve(&mut end, &*service, Some(&resent));
                            resent.on_answered();
                        }
                        resent => {
                            resent.iter().for_each(|resent| resent.wait());
                            serve(&mut end, &*service, None);
                        }
                    }
                })
        });
        Ok(FuseSession {
            threads: threads.collect::<io::Result<_>>()?,
            device,
            can_be_taken_over,
        })
    }

    /// The kernel's end of the session.
    pub fn device(&self) -> &Arc<FuseDevice> {
        &self.device
    }

    /// Whether another server can continue this session with a copy of the kernel's end: the kernel sends
    /// what is unanswered again, and all threads share that end.
    pub fn can_be_taken_over(&self) -> bool {
        self.can_be_taken_over
    }

    /// Waits until the file system is gone: it is unmounted, and no file in it is open any more.
    pub fn join(self) {
        for thread in self.threads {
            // A thread that panicked has ended the process.
            let _ = thread.join();
        }
    }
}

/// Whether requests of an earlier server may still be unanswered. Only one thread answers meanwhile.
#[derive(Debug, Default)]
struct ResentPhase {
    is_over: Mutex<bool>,
    ended: Condvar,
}

impl ResentPhase {
    fn on_answered(&self) {
        *self.is_over.lock().unwrap_or_else(PoisonError::into_inner) = true;
        self.ended.notify_all();
    }

    fn wait(&self) {
        let is_over = self.is_over.lock().unwrap_or_else(PoisonError::into_inner);
        let waited = self.ended.wait_while(is_over, |is_over| !*is_over);
        drop(waited.unwrap_or_else(PoisonError::into_inner));
    }
}

/// The process ends if this fails: programs would wait for ever for what it was to answer.
fn serve(end: &mut impl RequestEnd, service: &impl FuseService, resent: Option<&ResentPhase>) {
    let mut guard = AbortGuard::arm();
    match answer_all(end, service, resent) {
        Ok(()) => guard.disarm(),
        Err(error) => tracing::error!(%error, "cannot reply to the kernel's FUSE"),
    }
}

/// A thread's way to receive requests and reply to them, one at a time.
trait RequestEnd {
    /// The next request. `None`: the file system is gone.
    fn receive(&mut self) -> io::Result<Option<&[u8]>>;

    /// Replies to the request `unique`, which was received last.
    fn reply(&mut self, unique: u64, result: Result<&[u8], Errno>) -> io::Result<()>;
}

/// /dev/fuse, with a buffer for one request.
struct DeviceEnd {
    device: Arc<FuseDevice>,
    buffer: Vec<u8>,
}

impl DeviceEnd {
    fn new(device: Arc<FuseDevice>) -> DeviceEnd {
        // Every page is touched: while this process is being killed, the kernel fails a request whose buffer
        // is not in memory.
        let buffer = vec![1; REQUEST_BYTES_MAX as usize + OVERHEAD_BYTES];
        DeviceEnd { device, buffer }
    }
}

impl RequestEnd for DeviceEnd {
    fn receive(&mut self) -> io::Result<Option<&[u8]>> {
        let length = self.device.receive(&mut self.buffer)?;
        Ok(length.map(|length| &self.buffer[..length]))
    }

    fn reply(&mut self, unique: u64, result: Result<&[u8], Errno>) -> io::Result<()> {
        self.device.reply(unique, result)
    }
}

impl RequestEnd for QueuePlace {
    fn receive(&mut self) -> io::Result<Option<&[u8]>> {
        QueuePlace::receive(self)
    }

    fn reply(&mut self, unique: u64, result: Result<&[u8], Errno>) -> io::Result<()> {
        QueuePlace::reply(self, unique, result)
    }
}

/// Answers requests until the file system is gone.
fn answer_all(
    end: &mut impl RequestEnd,
    service: &impl FuseService,
    mut resent: Option<&ResentPhase>,
) -> io::Result<()> {
    let mut body = ReplyBody::default();
    while let Some(bytes) = end.receive()? {
        let Some(request) = FuseRequest::parse(bytes) else {
            return Err(io::Error::other("the kernel sent an invalid FUSE request"));
        };
        if resent.is_some() && request.follows_resent() {
            // This thread has answered all that were sent again before it read this one.
            service.on_resent_answered();
            resent.take().into_iter().for_each(ResentPhase::on_answered);
        }
        let timed = service.begin(&request);
        body.clear();
        let result = match request.operation {
            FuseOperation::Malformed => {
                tracing::error!(
                    node = request.node,
                    "the kernel sent a FUSE request of unknown form"
                );
                Err(Errno::IO)
            }
            _ => service.answer(&request, &mut body),
        };
        let (unique, is_answered) = (request.unique, request.operation.is_answered());
        if is_answered {
            end.reply(unique, result.map(|()| body.filled()))?;
        }
        drop(timed);
    }
    Ok(())
}
