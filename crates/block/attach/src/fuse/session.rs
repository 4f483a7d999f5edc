//! The session with the kernel: its beginning, taking it over from a killed server, and the threads that
//! reply.

use std::fs::File;
use std::io::{self, IoSlice, Read, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::thread::JoinHandle;

use rustix::io::Errno;

use super::file::{FuseFile, FuseReply, REQUEST_BYTES_MAX};
use super::wire::{self, FuseInitReply, FuseOperation, FuseRequest};
use crate::abort_guard::AbortGuard;

/// Number of requests handled concurrently: one may wait for lenders while others read.
const THREADS: usize = 4;
/// Maximum number of the loop device's requests that the kernel sends before earlier ones are answered.
const BACKGROUND_MAX: u16 = 128;
/// Bytes for a request's header and the arguments of a write.
const OVERHEAD_BYTES: usize = 4096;

/// A file that is being served.
#[derive(Debug)]
pub(crate) struct FuseSession {
    control: Arc<File>,
    /// Whether another server could take this session over.
    pub(crate) resend: bool,
    threads: Vec<JoinHandle<()>>,
}

impl FuseSession {
    /// Begins the session of a new mount.
    pub(crate) fn begin(control: OwnedFd, file: FuseFile) -> io::Result<FuseSession> {
        let control = File::from(control);
        let agreed = negotiate(&control)?;
        FuseSession::start(control, file, agreed.resend)
    }

    /// Continues where a killed server stopped: its unanswered requests are sent again. Some may have been
    /// executed already; executing a request twice is safe, because its completion was never reported.
    pub(crate) fn take_over(control: OwnedFd, file: FuseFile) -> io::Result<FuseSession> {
        let control = File::from(control);
        // Before anything is read, because that would be sent again too.
        (&control).write_all(&wire::resend())?;
        FuseSession::start(control, file, true)
    }

    fn start(control: File, file: FuseFile, resend: bool) -> io::Result<FuseSession> {
        let (control, file) = (Arc::new(control), Arc::new(file));
        let threads = (0..THREADS).map(|number| {
            let (control, file) = (Arc::clone(&control), Arc::clone(&file));
            std::thread::Builder::new()
                .name(format!("netram-fuse-{number}"))
                .spawn(move || serve(&control, &file))
        });
        Ok(FuseSession {
            threads: threads.collect::<io::Result<_>>()?,
            control,
            resend,
        })
    }

    /// The kernel's end of the session, for a server that may have to take it over.
    pub(crate) fn control(&self) -> impl AsFd + '_ {
        &*self.control
    }

    /// Waits until no process has the file open any more.
    pub(crate) fn join(self) {
        for thread in self.threads {
            // A thread that panicked has ended the process.
            let _ = thread.join();
        }
    }
}

fn negotiate(control: &File) -> io::Result<FuseInitReply> {
    let mut buffer = vec![0; OVERHEAD_BYTES * 2];
    let length = receive(control, &mut buffer)?.ok_or(io::ErrorKind::NotConnected)?;
    let Some(FuseRequest {
        unique,
        operation: FuseOperation::Init(init),
        ..
    }) = FuseRequest::parse(&buffer[..length])
    else {
        return Err(io::Error::other("the FUSE session did not begin with INIT"));
    };
    match init.agree(REQUEST_BYTES_MAX, BACKGROUND_MAX) {
        Ok(agreed) => {
            answer(control, unique, &FuseReply::Body(&agreed.answer))?;
            Ok(agreed)
        }
        Err(lacks) => {
            answer(control, unique, &FuseReply::Error(Errno::PROTO.raw_os_error()))?;
            Err(io::Error::other(lacks))
        }
    }
}

fn serve(control: &File, file: &FuseFile) {
    let mut end = AbortGuard::new();
    match answer_all(control, file) {
        Ok(()) => end.disarm(),
        Err(error) => tracing::error!(%error, "cannot reply to the kernel's FUSE"),
    }
}

/// Answers requests until the file system is gone.
fn answer_all(control: &File, file: &FuseFile) -> io::Result<()> {
    // Every page is touched: while this process is being killed, the kernel fails a request whose buffer is
    // not in memory.
    let mut buffer = vec![1; REQUEST_BYTES_MAX as usize + OVERHEAD_BYTES];
    let mut scratch = Vec::new();
    while let Some(length) = receive(control, &mut buffer)? {
        let Some(request) = FuseRequest::parse(&buffer[..length]) else {
            return Err(io::Error::other("the kernel sent an invalid FUSE request"));
        };
        answer(control, request.unique, &file.answer(&request, &mut scratch))?;
    }
    Ok(())
}

/// Length of the next request. `None`: the file system is gone.
fn receive(mut control: &File, buffer: &mut [u8]) -> io::Result<Option<usize>> {
    loop {
        let error = match control.read(buffer) {
            Ok(length) => return Ok(Some(length)),
            Err(error) => error,
        };
        match Errno::from_io_error(&error) {
            // The second means that the file system ended just when this thread was to get the file's
            // release, which needs no reply.
            Some(Errno::NODEV | Errno::CONNABORTED) => return Ok(None),
            // This read was interrupted, or the sender of the request was.
            Some(Errno::NOENT | Errno::INTR | Errno::AGAIN) => (),
            _ => return Err(error),
        }
    }
}

fn answer(mut control: &File, unique: u64, told: &FuseReply<'_>) -> io::Result<()> {
    let (errno, body): (i32, &[u8]) = match told {
        FuseReply::Nothing => return Ok(()),
        FuseReply::Error(errno) => (*errno, &[]),
        FuseReply::Body(body) => (0, body),
    };
    let header = wire::header(unique, errno, body.len());
    match control.write_vectored(&[IoSlice::new(&header), IoSlice::new(body)]) {
        // A reply is accepted as a whole or not at all.
        Ok(taken) if taken == header.len() + body.len() => Ok(()),
        Ok(_) => Err(io::ErrorKind::WriteZero.into()),
        // The request, or the whole file system, is gone.
        Err(error) => match Errno::from_io_error(&error) {
            Some(Errno::NOENT | Errno::NODEV) => Ok(()),
            _ => Err(error),
        },
    }
}
