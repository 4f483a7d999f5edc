//! A connection's bytes, in clear or through TLS, with a deadline while the client is a stranger.

use std::io::{self, Read, Write};
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Instant;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags, Shutdown, recv, send, shutdown};
use rustls::{ServerConfig, ServerConnection};

use crate::limit::CLOSE_TIMEOUT;

/// Whether to wait for bytes that are not here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ReceiveWait {
    /// Until there are some.
    Some,
    /// Not at all.
    None,
}

/// What a receive found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ReceiveResult {
    /// So many bytes, at least one.
    Bytes(usize),
    /// Nothing yet.
    Nothing,
    /// The client sends no more.
    End,
}

/// A blocking socket. Shared with the server, which shuts it down to end the connection.
pub(crate) struct ClientSocket {
    fd: Arc<OwnedFd>,
    /// Strangers have one.
    deadline: Option<Instant>,
}

impl ClientSocket {
    pub(crate) fn new(fd: Arc<OwnedFd>, deadline: Instant) -> ClientSocket {
        ClientSocket {
            fd,
            deadline: Some(deadline),
        }
    }

    /// Waits until the socket is ready or the deadline has passed. Without a deadline the calls wait
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

/// The socket as TLS reads it.
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

/// A connection's bytes.
pub(crate) struct NbdStream {
    socket: ClientSocket,
    tls: Option<Box<ServerConnection>>,
}

impl NbdStream {
    pub(crate) fn new(socket: ClientSocket) -> NbdStream {
        NbdStream { socket, tls: None }
    }

    /// The client is no stranger any more: from here on it may take its time.
    pub(crate) fn lift_deadline(&mut self) {
        self.socket.deadline = None;
    }

    /// Encrypts from here on. Nothing received in clear may be left in a buffer.
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

    pub(crate) fn receive(&mut self, into: &mut [u8], wait: ReceiveWait) -> io::Result<ReceiveResult> {
        assert!(!into.is_empty(), "there is room for what comes");
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
                // Cut off without a farewell.
                Ok(0) => return Ok(ReceiveResult::End),
                Ok(_) => (),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(ReceiveResult::Nothing),
                Err(error) => return Err(error),
            }
            let processed = tls.process_new_packets();
            // An alert, or an answer to a change of keys.
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
            // TLS takes what fits its own buffer, which is bounded.
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

    /// Says farewell, and gives the client a moment to take its last replies: closing a socket that still has
    /// something to read would throw them away.
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

    /// A stranger that sends a byte now and then is not given more time for it.
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
            "time does not matter any more"
        );
    }

    /// Nor one that takes no replies.
    #[test]
    fn a_deadline_ends_a_send_that_nobody_takes() {
        let (server, _client) = UnixStream::pair().unwrap();
        let deadline = Instant::now() + Duration::from_millis(30);
        let mut stream = NbdStream::new(ClientSocket::new(Arc::new(server.into()), deadline));
        let more_than_any_buffer = vec![0; 64 << 20];
        let ended = stream.send(&more_than_any_buffer).err();
        assert_eq!(ended.map(|error| error.kind()), Some(io::ErrorKind::TimedOut));
    }
}
