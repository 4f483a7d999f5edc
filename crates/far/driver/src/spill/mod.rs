//! The spill file and its thread: a disk makes its caller wait, and the thread with the links must not wait.

mod file;

use std::io;
use std::sync::mpsc::{Receiver, Sender, TryRecvError, channel};
use std::thread::JoinHandle;

use netram_far_machine::deposit::SpillServer;
use netram_proto::id::Epoch;
use netram_proto::wire::Frame;

use crate::threads;

pub(crate) use file::SpillFile;

/// A reply of the spill file.
#[derive(Debug)]
pub(crate) struct SpillReply {
    /// Session of the reply.
    pub(crate) epoch: Epoch,
    /// A frame. `None`: a write failed, and the session is over.
    pub(crate) packet: Option<Vec<u8>>,
}

/// Handle of the spill file's thread. Dropping it ends the thread after the requests in flight, at most
/// [`DEPOSIT_FRAMES_MAX`](netram_far_machine::limit::DEPOSIT_FRAMES_MAX) per session.
#[derive(Debug)]
pub(crate) struct SpillThread {
    sender: Option<Sender<Vec<u8>>>,
    answers: Receiver<SpillReply>,
    thread: Option<JoinHandle<()>>,
}

impl SpillThread {
    /// Starts the thread. `answered` is called after each reply.
    pub(crate) fn start(
        mut spill: SpillServer<SpillFile>,
        answered: impl Fn() + Send + 'static,
    ) -> io::Result<SpillThread> {
        let (sender, asked) = channel::<Vec<u8>>();
        let (answer, answers) = channel();
        let body = move || {
            while let Ok(packet) = asked.recv() {
                let Ok(frame) = Frame::parse(&packet) else {
                    panic!("requests to the spill file are valid frames");
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

    /// Queues a request; never blocks.
    pub(crate) fn ask(&self, packet: Vec<u8>) {
        // A thread that has ended is detected by `answer`.
        let _ = self.sender.as_ref().map(|sender| sender.send(packet));
    }

    /// The next reply, if there is one.
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
            // The panic message was printed when it happened.
            let _ = thread.join();
        }
    }
}
