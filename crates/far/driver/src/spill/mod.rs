//! The spill file, and a thread of its own for it: a disk makes whoever asks it wait, and the depot's thread
//! waits for nobody.

mod file;

use std::io;
use std::sync::mpsc::{Receiver, Sender, TryRecvError, channel};
use std::thread::JoinHandle;

use netram_far_machine::deposit::SpillServer;
use netram_proto::id::Epoch;
use netram_proto::wire::Frame;

use crate::threads;

pub(crate) use file::SpillFile;

/// What the file says.
#[derive(Debug)]
pub(crate) struct SpillReply {
    /// In which session.
    pub(crate) epoch: Epoch,
    /// A frame. `None`: something could not be written, and the session is over.
    pub(crate) packet: Option<Vec<u8>>,
}

/// The thread. It ends with this, when it has done what it was asked: no session has more frames on their way
/// than [`DEPOSIT_FRAMES_MAX`](netram_far_machine::limit::DEPOSIT_FRAMES_MAX).
#[derive(Debug)]
pub(crate) struct SpillThread {
    sender: Option<Sender<Vec<u8>>>,
    answers: Receiver<SpillReply>,
    thread: Option<JoinHandle<()>>,
}

impl SpillThread {
    /// Starts it. `answered` is called after each answer.
    pub(crate) fn start(
        mut spill: SpillServer<SpillFile>,
        answered: impl Fn() + Send + 'static,
    ) -> io::Result<SpillThread> {
        let (sender, asked) = channel::<Vec<u8>>();
        let (answer, answers) = channel();
        let body = move || {
            while let Ok(packet) = asked.recv() {
                let Ok(frame) = Frame::parse(&packet) else {
                    panic!("what goes to the spill file is frames");
                };
                let epoch = frame.header.epoch;
                let packet = spill.handle(&frame);
                if answer.send(SpillReply { epoch, packet }).is_err() {
                    return;
                }
                answered();
            }
        };
        Ok(SpillThread {
            sender: Some(sender),
            answers,
            thread: Some(threads::begin("netram-spill", body)?),
        })
    }

    /// Asks it. Waits for nothing.
    pub(crate) fn ask(&self, packet: Vec<u8>) {
        // One that has ended is found by `answer`.
        let _ = self.sender.as_ref().map(|sender| sender.send(packet));
    }

    /// The next answer, if there is one.
    pub(crate) fn answer(&self) -> Option<SpillReply> {
        match self.answers.try_recv() {
            Ok(answer) => Some(answer),
            Err(TryRecvError::Empty) => None,
            Err(TryRecvError::Disconnected) => panic!("the spill file's thread has failed"),
        }
    }
}

impl Drop for SpillThread {
    fn drop(&mut self) {
        self.sender = None;
        if let Some(thread) = self.thread.take() {
            // A panic has been printed where it happened.
            let _ = thread.join();
        }
    }
}
