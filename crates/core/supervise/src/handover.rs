//! Messages between supervisor and server over the socket that is the server's standard input.
//!
//! ```text
//! supervisor                         server
//!   "output", descriptor ---------->   one that connected: this is its standard output from here on
//!                                      begins to send "alive", once a second
//!   mounts
//!   "new", descriptor ------------->   opens the volume, answers, offers the file on its standard output
//!   opens the file, binds the device
//!   "give" ------------------------>
//!   <--------------- "yes", descriptor  of the kernel's end of the session; or "no"
//!   ... the server is killed ...
//!   "take", descriptor ------------>   another: opens the volume, answers the open requests
//!   <---------------------- "serving"
//!   ... the device is released ...
//!   <----------------------- "ending"   no "alive" from here on: the volume is being closed
//!   <----------------------- "closed"   one that connected: the volume is closed
//! ```
//!
//! A server that mounts by itself is told "begin" instead of "new", and offers "mounted PATH". Before "take"
//! its successor gets "directory": a descriptor of the directory, opened before anything was mounted over it.
//! A server sends "failed" before it answers anything after a failed sync.
//!
//! An attached volume's server needs no rights: the supervisor makes the mount and gives away the kernel's
//! end of it. It gets that descriptor back only once it waits for no answer of the server: while any process
//! has it open, the kernel waits for answers of a dead server. It sends "bound" instead of "give" if no other
//! server may continue with the file, and with the kernel's NBD client, which has its end by then. Each
//! message is one letter.

use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};

use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage,
    SendFlags, recvmsg, sendmsg,
};

/// A message.
#[derive(Debug)]
pub enum HandoverMessage {
    /// Write what the supervisor is to read here.
    Output(OwnedFd),
    /// Begin with the kernel's end of a new mount.
    New(OwnedFd),
    /// Begin, and make what is to be served: a server that needs no descriptor for it.
    Begin,
    /// Send the descriptor.
    Give,
    /// The descriptor.
    Yes(OwnedFd),
    /// This kernel would not resend requests that this server leaves unanswered.
    No,
    /// The directory beneath a mount, open since before that was made.
    Directory(OwnedFd),
    /// Continue with this descriptor.
    Take(OwnedFd),
    /// The kernel has the offered file or socket.
    Bound,
    /// The server has continued.
    Serving,
    /// The server is alive.
    Alive,
    /// The server is about to end, and is alive without saying so.
    Ending,
    /// The server has seen something after which no other may continue, and has not answered since. Sent
    /// before it answers, so a supervisor that has not got it may let another continue.
    Failed,
    /// The server has closed the volume. The supervisor does not get the exit status of a server that is not
    /// its child.
    Closed,
}

const OUTPUT: u8 = b'o';
const NEW: u8 = b'n';
const BEGIN: u8 = b'b';
const GIVE: u8 = b'g';
const YES: u8 = b'y';
const NO: u8 = b'-';
const DIRECTORY: u8 = b'd';
const TAKE: u8 = b't';
const BOUND: u8 = b'h';
const SERVING: u8 = b's';
const ALIVE: u8 = b'w';
const ENDING: u8 = b'e';
const FAILED: u8 = b'f';
const CLOSED: u8 = b'c';

/// Sends a message. The receiver gets a descriptor of its own.
///
/// # Errors
///
/// The receiver is gone.
pub fn send_message(socket: impl AsFd, word: &HandoverMessage) -> io::Result<()> {
    send(socket, word, SendFlags::NOSIGNAL)
}

/// Sends a message without waiting; it is lost if the receiver has not read for long. An error means that the
/// receiver is gone.
///
/// # Errors
///
/// The receiver is gone.
pub fn try_send_message(socket: impl AsFd, word: &HandoverMessage) -> io::Result<()> {
    match send(socket, word, SendFlags::NOSIGNAL | SendFlags::DONTWAIT) {
        Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(()),
        said => said,
    }
}

fn send(socket: impl AsFd, word: &HandoverMessage, flags: SendFlags) -> io::Result<()> {
    let (letter, descriptor) = match word {
        HandoverMessage::Output(descriptor) => (OUTPUT, Some(descriptor)),
        HandoverMessage::New(descriptor) => (NEW, Some(descriptor)),
        HandoverMessage::Begin => (BEGIN, None),
        HandoverMessage::Give => (GIVE, None),
        HandoverMessage::Yes(descriptor) => (YES, Some(descriptor)),
        HandoverMessage::No => (NO, None),
        HandoverMessage::Directory(descriptor) => (DIRECTORY, Some(descriptor)),
        HandoverMessage::Take(descriptor) => (TAKE, Some(descriptor)),
        HandoverMessage::Bound => (BOUND, None),
        HandoverMessage::Serving => (SERVING, None),
        HandoverMessage::Alive => (ALIVE, None),
        HandoverMessage::Ending => (ENDING, None),
        HandoverMessage::Failed => (FAILED, None),
        HandoverMessage::Closed => (CLOSED, None),
    };
    let descriptors = descriptor.map(|descriptor| [descriptor.as_fd()]);
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    if let Some(descriptors) = &descriptors {
        let fits = control.push(SendAncillaryMessage::ScmRights(descriptors));
        assert!(fits, "the buffer must have space for one descriptor");
    }
    sendmsg(socket, &[IoSlice::new(&[letter])], &mut control, flags)?;
    Ok(())
}

/// Waits for a message. `None`: the other process is gone.
///
/// # Errors
///
/// The message is invalid.
pub fn receive_message(socket: impl AsFd) -> io::Result<Option<HandoverMessage>> {
    receive(socket, RecvFlags::CMSG_CLOEXEC)
}

/// Next message that has arrived. `None`: none has, or the other process is gone.
///
/// # Errors
///
/// The message is invalid.
pub fn try_receive_message(socket: impl AsFd) -> io::Result<Option<HandoverMessage>> {
    match receive(socket, RecvFlags::CMSG_CLOEXEC | RecvFlags::DONTWAIT) {
        Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(None),
        heard => heard,
    }
}

fn receive(socket: impl AsFd, flags: RecvFlags) -> io::Result<Option<HandoverMessage>> {
    let mut bytes = [0; 1];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let heard = loop {
        let mut into = [IoSliceMut::new(&mut bytes)];
        match recvmsg(&socket, &mut into, &mut control, flags) {
            Err(rustix::io::Errno::INTR) => (),
            heard => break heard?,
        }
    };
    let mut descriptors = control.drain().flat_map(|message| match message {
        RecvAncillaryMessage::ScmRights(descriptors) => descriptors.collect(),
        _ => Vec::new(),
    });
    let odd = || io::Error::other("invalid message from the process at the other end");
    let word = match (heard.bytes, bytes[0], descriptors.next()) {
        (0, ..) => return Ok(None),
        (_, OUTPUT, Some(descriptor)) => HandoverMessage::Output(descriptor),
        (_, NEW, Some(descriptor)) => HandoverMessage::New(descriptor),
        (_, BEGIN, None) => HandoverMessage::Begin,
        (_, GIVE, None) => HandoverMessage::Give,
        (_, YES, Some(descriptor)) => HandoverMessage::Yes(descriptor),
        (_, NO, None) => HandoverMessage::No,
        (_, DIRECTORY, Some(descriptor)) => HandoverMessage::Directory(descriptor),
        (_, TAKE, Some(descriptor)) => HandoverMessage::Take(descriptor),
        (_, BOUND, None) => HandoverMessage::Bound,
        (_, SERVING, None) => HandoverMessage::Serving,
        (_, ALIVE, None) => HandoverMessage::Alive,
        (_, ENDING, None) => HandoverMessage::Ending,
        (_, FAILED, None) => HandoverMessage::Failed,
        (_, CLOSED, None) => HandoverMessage::Closed,
        _ => return Err(odd()),
    };
    Ok(Some(word))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::children::none_starts;
    use std::io::{Read, Write};
    use std::os::unix::net::UnixStream;

    #[test]
    fn a_descriptor_arrives_with_its_message_and_invalid_messages_are_refused() {
        let (supervisor, server) = UnixStream::pair().unwrap();
        let (mut reader, writer) = io::pipe().unwrap();
        send_message(&supervisor, &HandoverMessage::Take(writer.into())).unwrap();
        send_message(&supervisor, &HandoverMessage::Give).unwrap();
        let Some(HandoverMessage::Take(writer)) = receive_message(&server).unwrap() else {
            panic!("another message")
        };
        assert!(matches!(
            receive_message(&server).unwrap(),
            Some(HandoverMessage::Give)
        ));
        let mut writer = io::PipeWriter::from(writer);
        writer.write_all(b"through").unwrap();
        drop(writer);
        let mut said = String::new();
        reader.read_to_string(&mut said).unwrap();
        assert_eq!(said, "through");
        for nonsense in [b"y", b"n", b"d", b"x", b"\0"] {
            (&supervisor).write_all(nonsense).unwrap();
            assert!(receive_message(&server).is_err(), "{nonsense:?}");
        }
        drop(supervisor);
        assert!(receive_message(&server).unwrap().is_none());
    }

    #[test]
    fn a_lossy_send_never_blocks_and_fails_once_the_receiver_is_gone() {
        let _closed_at_once = none_starts();
        let (supervisor, server) = UnixStream::pair().unwrap();
        assert!(try_receive_message(&supervisor).unwrap().is_none());
        // More than any socket buffer holds.
        for _ in 0..20_000 {
            try_send_message(&server, &HandoverMessage::Alive).unwrap();
        }
        let mut heard = 0;
        while let Some(word) = try_receive_message(&supervisor).unwrap() {
            assert!(matches!(word, HandoverMessage::Alive));
            heard += 1;
        }
        assert!((1..20_000).contains(&heard), "{heard}");
        drop(supervisor);
        try_send_message(&server, &HandoverMessage::Alive).unwrap_err();
    }
}
