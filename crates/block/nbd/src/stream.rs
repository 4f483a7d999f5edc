//! Bytes of a connection, encrypted or not, with a deadline until the client has chosen an export.

use std::io::{self, Read, Write};
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Instant;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags, Shutdown, recv, send, shutdown};
use rustls::pki_types::CertificateDer;
use rustls::{ServerConfig, ServerConnection};

use crate::limit::CLOSE_TIMEOUT;

/// Whether to wait for bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ReceiveWait {
    /// Wait until bytes arrive.
    Some,
    /// Do not wait.
    None,
}

/// Result of a receive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ReceiveResult {
    /// Number of bytes received, at least one.
    Bytes(usize),
    /// No bytes have arrived yet.
    Nothing,
    /// The client sends no more bytes.
    End,
}

/// A blocking socket. The server has it too, and shuts it down to end the connection.
pub(crate) struct ClientSocket {
    fd: Arc<OwnedFd>,
    /// Deadline until the client has chosen an export.
    deadline: Option<Instant>,
}

impl ClientSocket {
    pub(crate) fn new(fd: Arc<OwnedFd>, deadline: Instant) -> ClientSocket {
        ClientSocket {
            fd,
            deadline: Some(deadline),
        }
    }

    /// Waits until the socket is ready or the deadline has passed. Without a deadline the socket calls block
    /// themselves.
    fn ready(&self, flags: PollFlags) -> io::Result<()> {
        let Some(deadline) = self.deadline else {
            return Ok(());
        };
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Err(io::ErrorKind::TimedOut.into());
            }
            let timeout = Timespec::try_from(left).map_err(|_| io::ErrorKind::TimedOut)?;
            match poll(&mut [PollFd::new(&*self.fd, flags)], Some(&timeout)) {
                Ok(0) | Err(Errno::INTR) => (),
                Ok(_) => return Ok(()),
                Err(errno) => return Err(errno.into()),
            }
        }
    }

    fn receive(&self, into: &mut [u8], wait: ReceiveWait) -> io::Result<ReceiveResult> {
        let mut flags = RecvFlags::empty();
        match wait {
            ReceiveWait::Some => self.ready(PollFlags::IN)?,
            ReceiveWait::None => flags = RecvFlags::DONTWAIT,
        }
        loop {
            match recv(&*self.fd, &mut *into, flags) {
                Ok((_, 0)) => return Ok(ReceiveResult::End),
                Ok((_, count)) => return Ok(ReceiveResult::Bytes(count)),
                Err(Errno::AGAIN) => return Ok(ReceiveResult::Nothing),
                Err(Errno::INTR) => (),
                Err(errno) => return Err(errno.into()),
            }
        }
    }

    fn send_some(&self, bytes: &[u8]) -> io::Result<usize> {
        let mut flags = SendFlags::NOSIGNAL;
        if self.deadline.is_some() {
            flags |= SendFlags::DONTWAIT;
        }
        loop {
            self.ready(PollFlags::OUT)?;
            match send(&*self.fd, bytes, flags) {
                Ok(count) => return Ok(count),
                Err(Errno::INTR | Errno::AGAIN) => (),
                Err(errno) => return Err(errno.into()),
            }
        }
    }
}

/// The socket as TLS uses it.
struct Records<'a> {
    socket: &'a ClientSocket,
    wait: ReceiveWait,
}

impl Read for Records<'_> {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        match self.socket.receive(into, self.wait)? {
            ReceiveResult::Bytes(count) => Ok(count),
            ReceiveResult::Nothing => Err(io::ErrorKind::WouldBlock.into()),
            ReceiveResult::End => Ok(0),
        }
    }
}

impl Write for Records<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.socket.send_some(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Bytes of a connection.
pub(crate) struct NbdStream {
    socket: ClientSocket,
    tls: Option<Box<ServerConnection>>,
}

impl NbdStream {
    pub(crate) fn new(socket: ClientSocket) -> NbdStream {
        NbdStream { socket, tls: None }
    }

    /// The client has chosen an export: from here on there is no deadline.
    pub(crate) fn lift_deadline(&mut self) {
        self.socket.deadline = None;
    }

    /// Encrypts from here on. No byte received before may be left in a buffer.
    pub(crate) fn encrypt(&mut self, config: &Arc<ServerConfig>) -> io::Result<()> {
        let mut tls = ServerConnection::new(Arc::clone(config)).map_err(io::Error::other)?;
        let mut records = Records {
            socket: &self.socket,
            wait: ReceiveWait::Some,
        };
        while tls.is_handshaking() {
            tls.complete_io(&mut records)?;
        }
        self.tls = Some(Box::new(tls));
        Ok(())
    }

    /// Chain of certificates that the client showed, its own first; empty without TLS.
    pub(crate) fn certificates(&self) -> Vec<CertificateDer<'static>> {
        let shown = self.tls.as_ref().and_then(|tls| tls.peer_certificates());
        let shown = shown.unwrap_or_default();
        shown
            .iter()
            .map(|certificate| certificate.clone().into_owned())
            .collect()
    }

    pub(crate) fn receive(&mut self, into: &mut [u8], wait: ReceiveWait) -> io::Result<ReceiveResult> {
        assert!(!into.is_empty(), "the buffer must have room");
        let Some(tls) = &mut self.tls else {
            return self.socket.receive(into, wait);
        };
        let mut records = Records {
            socket: &self.socket,
            wait,
        };
        loop {
            match tls.reader().read(into) {
                Ok(0) => return Ok(ReceiveResult::End),
                Ok(count) => return Ok(ReceiveResult::Bytes(count)),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => (),
                Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Ok(ReceiveResult::End),
                Err(error) => return Err(error),
            }
            match tls.read_tls(&mut records) {
                // The peer closed the connection without a TLS close notification.
                Ok(0) => return Ok(ReceiveResult::End),
                Ok(_) => (),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(ReceiveResult::Nothing),
                Err(error) => return Err(error),
            }
            let processed = tls.process_new_packets();
            // An alert, or the answer to a key update.
            while tls.wants_write() {
                tls.write_tls(&mut records)?;
            }
            processed.map_err(io::Error::other)?;
        }
    }

    pub(crate) fn send(&mut self, mut bytes: &[u8]) -> io::Result<()> {
        let Some(tls) = &mut self.tls else {
            while !bytes.is_empty() {
                let sent = self.socket.send_some(bytes)?;
                bytes = &bytes[sent..];
            }
            return Ok(());
        };
        let mut records = Records {
            socket: &self.socket,
            wait: ReceiveWait::Some,
        };
        while !bytes.is_empty() {
            // TLS accepts as much as fits in its own bounded buffer.
            let taken = tls.writer().write(bytes)?;
            if taken == 0 {
                return Err(io::ErrorKind::WriteZero.into());
            }
            bytes = &bytes[taken..];
            while tls.wants_write() {
                tls.write_tls(&mut records)?;
            }
        }
        Ok(())
    }

    /// Ends the connection, and gives the client some time to read its last replies. Closing a socket with
    /// unread input would discard them.
    pub(crate) fn close(mut self) {
        let deadline = Instant::now() + CLOSE_TIMEOUT;
        self.socket.deadline = Some(deadline);
        if let Some(tls) = &mut self.tls {
            tls.send_close_notify();
            let mut records = Records {
                socket: &self.socket,
                wait: ReceiveWait::Some,
            };
            // The connection ends in any case.
            let _ = tls.write_tls(&mut records);
        }
        let _ = shutdown(&*self.socket.fd, Shutdown::Write);
        let mut ignored = [0; 4096];
        while let Ok(ReceiveResult::Bytes(_)) = self.socket.receive(&mut ignored, ReceiveWait::Some) {}
        let _ = shutdown(&*self.socket.fd, Shutdown::Both);
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixStream;
    use std::time::Duration;

    use super::*;

    /// A client that sends a byte now and then gets no more time.
    #[test]
    fn a_deadline_is_for_all_receives_together() {
        let (server, client) = UnixStream::pair().unwrap();
        let deadline = Instant::now() + Duration::from_millis(30);
        let mut stream = NbdStream::new(ClientSocket::new(Arc::new(server.into()), deadline));
        let mut into = [0; 8];
        let ended = (0..1_000_000).find_map(|_| {
            (&client).write_all(b"x").unwrap();
            stream.receive(&mut into, ReceiveWait::Some).err()
        });
        assert_eq!(ended.map(|error| error.kind()), Some(io::ErrorKind::TimedOut));
        stream.lift_deadline();
        (&client).write_all(b"y").unwrap();
        let received = stream.receive(&mut into, ReceiveWait::Some).unwrap();
        assert!(
            matches!(received, ReceiveResult::Bytes(_)),
            "no deadline applies any more"
        );
    }

    /// Neither does a client that reads no replies.
    #[test]
    fn a_deadline_ends_a_send_that_the_client_does_not_read() {
        let (server, _client) = UnixStream::pair().unwrap();
        let deadline = Instant::now() + Duration::from_millis(30);
        let mut stream = NbdStream::new(ClientSocket::new(Arc::new(server.into()), deadline));
        let more_than_any_buffer = vec![0; 64 << 20];
        let ended = stream.send(&more_than_any_buffer).err();
        assert_eq!(ended.map(|error| error.kind()), Some(io::ErrorKind::TimedOut));
    }
}
