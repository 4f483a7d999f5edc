//! What supervisor and server say to each other over the socket that is the server's standard input.
//!
//! ```text
//! supervisor                         server
//!   "new" ------------------------->   opens the volume, mounts, offers the file on its standard output
//!   opens the file, binds the device
//!   "give" ------------------------>
//!   <--------------- "yes", descriptor  of the kernel's end of the conversation; or "no"
//!   ... the server is killed ...
//!   "take", descriptor ------------>   another: opens the volume, answers what the first has not
//! ```
//!
//! The supervisor has the descriptor only once it waits for nothing that a dead server would have to answer: as long as
//! one process has it open, the kernel waits for an answer. One letter each. (The kernel's nbd
//! needs none of this: `serve.rs`.)

use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};

use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage,
    SendFlags, recvmsg, sendmsg,
};

/// One of these.
#[derive(Debug)]
pub(crate) enum Word {
    /// Begin.
    New,
    /// Let me have the descriptor.
    Give,
    /// Here it is.
    Yes(OwnedFd),
    /// This kernel would not send again what you leave unanswered.
    No,
    /// Go on with it.
    Take(OwnedFd),
}

const NEW: u8 = b'n';
const GIVE: u8 = b'g';
const YES: u8 = b'y';
const NO: u8 = b'-';
const TAKE: u8 = b't';

/// Says a word. Whoever hears it has a descriptor of his own.
pub(crate) fn say(socket: impl AsFd, word: &Word) -> io::Result<()> {
    let (letter, descriptor) = match word {
        Word::New => (NEW, None),
        Word::Give => (GIVE, None),
        Word::Yes(descriptor) => (YES, Some(descriptor)),
        Word::No => (NO, None),
        Word::Take(descriptor) => (TAKE, Some(descriptor)),
    };
    let descriptors = descriptor.map(|descriptor| [descriptor.as_fd()]);
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    if let Some(descriptors) = &descriptors {
        let fits = control.push(SendAncillaryMessage::ScmRights(descriptors));
        assert!(fits, "there is space for one descriptor");
    }
    sendmsg(
        socket,
        &[IoSlice::new(&[letter])],
        &mut control,
        SendFlags::NOSIGNAL,
    )?;
    Ok(())
}

/// Waits for a word. `None`: the other is gone.
pub(crate) fn hear(socket: impl AsFd) -> io::Result<Option<Word>> {
    let mut bytes = [0; 1];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let heard = loop {
        let mut into = [IoSliceMut::new(&mut bytes)];
        match recvmsg(&socket, &mut into, &mut control, RecvFlags::CMSG_CLOEXEC) {
            Err(rustix::io::Errno::INTR) => (),
            heard => break heard?,
        }
    };
    let mut descriptors = control.drain().flat_map(|message| match message {
        RecvAncillaryMessage::ScmRights(descriptors) => descriptors.collect(),
        _ => Vec::new(),
    });
    let odd = || io::Error::other("the process at the other end says what makes no sense");
    let word = match (heard.bytes, bytes[0], descriptors.next()) {
        (0, ..) => return Ok(None),
        (_, NEW, None) => Word::New,
        (_, GIVE, None) => Word::Give,
        (_, YES, Some(descriptor)) => Word::Yes(descriptor),
        (_, NO, None) => Word::No,
        (_, TAKE, Some(descriptor)) => Word::Take(descriptor),
        _ => return Err(odd()),
    };
    Ok(Some(word))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{Read, Write};
    use std::os::unix::net::UnixStream;

    #[test]
    fn a_descriptor_arrives_with_its_word_and_nonsense_is_refused() {
        let (supervisor, server) = UnixStream::pair().unwrap();
        let (mut reader, writer) = io::pipe().unwrap();
        say(&supervisor, &Word::Take(writer.into())).unwrap();
        say(&supervisor, &Word::Give).unwrap();
        let Some(Word::Take(writer)) = hear(&server).unwrap() else {
            panic!("another word")
        };
        assert!(matches!(hear(&server).unwrap(), Some(Word::Give)));
        let mut writer = io::PipeWriter::from(writer);
        writer.write_all(b"through").unwrap();
        drop(writer);
        let mut said = String::new();
        reader.read_to_string(&mut said).unwrap();
        assert_eq!(said, "through");
        for nonsense in [b"y", b"x", b"\0"] {
            (&supervisor).write_all(nonsense).unwrap();
            assert!(hear(&server).is_err(), "{nonsense:?}");
        }
        drop(supervisor);
        assert!(hear(&server).unwrap().is_none());
    }
}
