//! A mount outlives its server: the kernel keeps what programs have open, and sends requests without a reply
//! again to the next server. The oracle is the model itself, which executes each request once.

use std::sync::Arc;

use netram_files::{ChangeError, FileTree, InodeId};

use super::maintenance::TestedDirectory;
use super::naming::{carry_out, describe_change};
use super::{OpenModelFiles, Program};
use crate::check::fail;
use crate::check::files::{ModelFileId, NameChange};

/// Chance, in thousandths, that a server dies between executing a request and replying.
const UNANSWERED_PERMILLE: u64 = 60;

/// What the kernel keeps of a mount whose server has died.
pub(super) struct LeftMount {
    /// Files that the program has open.
    opened: Vec<(ModelFileId, InodeId)>,
    request: Option<UnansweredRequest>,
}

/// A request that the kernel sends again.
pub(super) enum UnansweredRequest {
    Name(u64, NameChange),
    Write(ModelFileId, InodeId, usize, Vec<u8>),
    Resize(ModelFileId, InodeId, usize),
}

impl Program {
    /// Number of the next request, if the directory is to know it, and whether its reply is sent if the
    /// server lives that long.
    pub(super) fn next_request(&mut self) -> (Option<u64>, bool) {
        self.requests += 2;
        let answers = !self.survives || !self.world.borrow_mut().kernel.rng.chance(UNANSWERED_PERMILLE);
        (self.survives.then_some(self.requests), answers)
    }

    /// Whether the program gets a reply.
    pub(super) fn is_answered(&self, done: &Result<(), ChangeError>, answers: bool) -> bool {
        let died = matches!(
            done,
            Err(ChangeError::Append(_) | ChangeError::Wait(_) | ChangeError::Failed(_))
        );
        !self.survives || answers && !died && !self.disk.has_stopped()
    }

    /// The server dies without a reply to this request.
    pub(super) fn leave_unanswered(&mut self, request: UnansweredRequest) {
        self.hit("files: requests without a reply");
        self.left = Some(LeftMount {
            opened: Vec::new(),
            request: Some(request),
        });
    }

    /// The server has ended, with these files open.
    pub(super) fn leave(&mut self, opened: &OpenModelFiles) {
        let request = self.left.take().and_then(|left| left.request);
        self.left = self.survives.then(|| LeftMount {
            opened: { opened.iter() }
                .map(|(thing, file)| (*thing, file.node()))
                .collect(),
            request,
        });
    }

    /// The machine has lost power, or a sync has failed: a request without a reply may be done or not.
    pub(super) fn end_mount(&mut self) {
        match self.left.take().and_then(|left| left.request) {
            Some(UnansweredRequest::Name(_, naming)) => self.model.name(&naming, false),
            Some(UnansweredRequest::Write(thing, _, offset, bytes)) => {
                self.model.write(thing, offset, &bytes)
            }
            Some(UnansweredRequest::Resize(thing, _, size)) => self.model.resize(thing, size),
            None => (),
        }
        let is_orphan = |path: &Vec<u8>| path.starts_with(netram_files::limit::ORPHAN_PREFIX);
        if self.disk.contents().keys().any(is_orphan) {
            fail(6, String::from("a file that nobody has open any more is kept"));
        }
    }

    /// Another server has taken over: it gets the request without a reply again. Returns the files that the
    /// program has open.
    pub(super) fn taken_over(&mut self, directory: &TestedDirectory) -> Option<OpenModelFiles> {
        self.hit("files: mounts that outlived their server");
        self.model.synced_all();
        let mut left = self.left.take()?;
        if let Some(request) = left.request.take() {
            let done = self.send_again(directory, &request);
            self.tell(|| format!("a request is sent again: {done:?}"));
            if !self.is_answered(&done, true) {
                left.request = Some(request);
                self.left = Some(left);
                return None;
            }
            self.count_done(&request, done.is_ok());
        }
        if self.world.borrow_mut().kernel.rng.chance(700) {
            directory.on_all_answered();
        }
        self.model
            .check_running(&self.on_disk(), "after another server took over");
        let mut opened = OpenModelFiles::new();
        for (thing, node) in left.opened {
            match directory.open_file(node) {
                Ok(file) => opened.push((thing, file)),
                Err(ChangeError::Name(_)) => fail(17, format!("{thing} is open, and gone")),
                Err(_) => (),
            }
        }
        self.check_opened(directory, &opened);
        Some(opened)
    }

    fn send_again(
        &mut self,
        directory: &TestedDirectory,
        request: &UnansweredRequest,
    ) -> Result<(), ChangeError> {
        match request {
            UnansweredRequest::Name(number, naming) => {
                let done = match directory.executed_before(*number) {
                    Some(_) => {
                        self.hit("files: requests that were executed before they were sent again");
                        Ok(())
                    }
                    None => carry_out(directory, naming, Some(*number)),
                };
                self.tell(|| format!("names: {}: {done:?}", describe_change(naming)));
                directory.on_answered(*number);
                done
            }
            UnansweredRequest::Write(_, node, offset, bytes) => {
                let file = directory.open_file(*node)?;
                directory.write(&file, *offset as u64, bytes)
            }
            UnansweredRequest::Resize(_, node, size) => {
                let file = directory.open_file(*node)?;
                directory.resize(&file, *size as u64)
            }
        }
    }

    /// The program has the reply.
    fn count_done(&mut self, request: &UnansweredRequest, is_done: bool) {
        match request {
            _ if !is_done => (),
            UnansweredRequest::Name(_, naming) => self.model.name(naming, true),
            UnansweredRequest::Write(thing, _, offset, bytes) => self.model.write(*thing, *offset, bytes),
            UnansweredRequest::Resize(thing, _, size) => {
                self.model.resize(*thing, *size);
                self.model.synced(*thing);
            }
        }
    }

    /// Files that are open are as they were written, with a name or without.
    fn check_opened(&self, directory: &TestedDirectory, opened: &OpenModelFiles) {
        for (thing, file) in opened {
            let expected = self.model.bytes(*thing);
            let mut found = vec![0; expected.len() + 1];
            let read = directory.tree().read(Arc::as_ref(file).inner(), 0, &mut found);
            if read != Ok(expected.len()) || found[..expected.len()] != *expected {
                fail(17, format!("{thing} is open, and is not as it was written"));
            }
        }
    }
}
