//! What supervisor and server say to each other over the socket that is the server's standard input.
//!
//! ```text
//! supervisor                         server
//!                                      begins to say "well", once a second
//!   "new" ------------------------->   opens the volume, mounts, offers the file on its standard output
//!   opens the file, binds the device
//!   "give" ------------------------>
//!   <--------------- "yes", descriptor  of the kernel's end of the conversation; or "no"
//!   ... the server is killed ...
//!   "take", descriptor ------------>   another: opens the volume, answers what the first has not
//!   <---------------------- "serving"
//!   ... the device is let go ...
//!   <----------------------- "ending"   no "well" is said from here on: the volume is being closed
//! ```
//!
//! The supervisor has the descriptor only once it waits for nothing that a dead server would have to answer: as long as
//! one process has it open, the kernel waits for an answer. It says "held" instead of "give" when nobody is to go on with
//! the file, and with the kernel's nbd, which has its end by then (`serve.rs`). One letter each.

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
    /// The kernel holds what you offered.
    Held,
    /// I have gone on with it.
    Serving,
    /// I am well.
    Well,
    /// I am about to end, and say no more.
    Ending,
}

const NEW: u8 = b'n';
const GIVE: u8 = b'g';
const YES: u8 = b'y';
const NO: u8 = b'-';
const TAKE: u8 = b't';
const HELD: u8 = b'h';
const SERVING: u8 = b's';
const WELL: u8 = b'w';
const ENDING: u8 = b'e';

/// Says a word. Whoever hears it has a descriptor of his own.
pub(crate) fn say(socket: impl AsFd, word: &Word) -> io::Result<()> {
    send(socket, word, SendFlags::NOSIGNAL)
}

/// Says a word that may be lost: to somebody who has not listened for long. An error: he never will.
pub(crate) fn say_now(socket: impl AsFd, word: &Word) -> io::Result<()> {
    match send(socket, word, SendFlags::NOSIGNAL | SendFlags::DONTWAIT) {
        Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(()),
        said => said,
    }
}

fn send(socket: impl AsFd, word: &Word, flags: SendFlags) -> io::Result<()> {
    let (letter, descriptor) = match word {
        Word::New => (NEW, None),
        Word::Give => (GIVE, None),
        Word::Yes(descriptor) => (YES, Some(descriptor)),
        Word::No => (NO, None),
        Word::Take(descriptor) => (TAKE, Some(descriptor)),
        Word::Held => (HELD, None),
        Word::Serving => (SERVING, None),
        Word::Well => (WELL, None),
        Word::Ending => (ENDING, None),
    };
    let descriptors = descriptor.map(|descriptor| [descriptor.as_fd()]);
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    if let Some(descriptors) = &descriptors {
        let fits = control.push(SendAncillaryMessage::ScmRights(descriptors));
        assert!(fits, "there is space for one descriptor");
    }
    sendmsg(socket, &[IoSlice::new(&[letter])], &mut control, flags)?;
    Ok(())
}

/// Waits for a word. `None`: the other is gone.
pub(crate) fn hear(socket: impl AsFd) -> io::Result<Option<Word>> {
    receive(socket, RecvFlags::CMSG_CLOEXEC)
}

/// The next word that has been said already. `None`: nothing has, or the other is gone.
pub(crate) fn hear_now(socket: impl AsFd) -> io::Result<Option<Word>> {
    match receive(socket, RecvFlags::CMSG_CLOEXEC | RecvFlags::DONTWAIT) {
        Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(None),
        heard => heard,
    }
}

fn receive(socket: impl AsFd, flags: RecvFlags) -> io::Result<Option<Word>> {
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
    let odd = || io::Error::other("the process at the other end says what makes no sense");
    let word = match (heard.bytes, bytes[0], descriptors.next()) {
        (0, ..) => return Ok(None),
        (_, NEW, None) => Word::New,
        (_, GIVE, None) => Word::Give,
        (_, YES, Some(descriptor)) => Word::Yes(descriptor),
        (_, NO, None) => Word::No,
        (_, TAKE, Some(descriptor)) => Word::Take(descriptor),
        (_, HELD, None) => Word::Held,
        (_, SERVING, None) => Word::Serving,
        (_, WELL, None) => Word::Well,
        (_, ENDING, None) => Word::Ending,
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

    #[test]
    fn a_word_that_may_be_lost_waits_for_nobody_and_fails_once_nobody_is_there() {
        let _closed_at_once = none_starts();
        let (supervisor, server) = UnixStream::pair().unwrap();
        assert!(hear_now(&supervisor).unwrap().is_none());
        // More than any socket holds.
        for _ in 0..20_000 {
            say_now(&server, &Word::Well).unwrap();
        }
        let mut heard = 0;
        while let Some(word) = hear_now(&supervisor).unwrap() {
            assert!(matches!(word, Word::Well));
            heard += 1;
        }
        assert!((1..20_000).contains(&heard), "{heard}");
        drop(supervisor);
        say_now(&server, &Word::Well).unwrap_err();
    }
}
