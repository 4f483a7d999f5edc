//! The barest possible pager with `userfaultfd`: the baseline of measurements of an arena's faults.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Instant;

use netram_far_machine::limit::PAGE_BYTES;
use netram_transport::{Interest, Poller, WaitPolicy, WaitStep, Waker, yield_core};
use rustix::io::Errno;

use crate::seal::PageBytes;
use crate::sys::{MappedMemory, SignalsBlocked, Uffd, UffdError, UffdFeatures, UffdMessage};

/// Pages that one thread fetches when they are referenced, one at a time. It verifies, writes back and
/// prefetches nothing, and drops pages on request.
#[derive(Debug)]
pub struct BarePager {
    memory: Arc<MappedMemory>,
    stop: Arc<Stop>,
    thread: Option<JoinHandle<()>>,
}

#[derive(Debug)]
struct Stop {
    wanted: AtomicBool,
    waker: Waker,
}

/// State of the thread.
struct PagerThread<F> {
    memory: Arc<MappedMemory>,
    stop: Arc<Stop>,
    uffd: Uffd,
    poller: Poller,
    fetch: F,
}

impl BarePager {
    /// Maps `pages` pages, none of them local. `fetch` fills the page of a number; if it returns `false`,
    /// that page and all further ones are zeros.
    ///
    /// # Errors
    ///
    /// The system's error if `userfaultfd` or the thread is refused.
    pub fn open<F>(pages: usize, wait: WaitPolicy, fetch: F) -> io::Result<BarePager>
    where
        F: FnMut(usize, &mut PageBytes) -> bool + Send + 'static,
    {
        let memory = Arc::new(MappedMemory::map(pages)?);
        let sight = Uffd::open(true, UffdFeatures::NONE).map_err(|error| match error {
            UffdError::Absent => io::ErrorKind::Unsupported.into(),
            UffdError::Refused(error) | UffdError::Other(error) => error,
        })?;
        sight.register(&memory, false)?;
        let stop = Arc::new(Stop {
            wanted: AtomicBool::new(false),
            waker: Waker::new()?,
        });
        let poller = Poller::new()?;
        poller.add(&sight, 0, Interest::Read)?;
        poller.add(&stop.waker, 1, Interest::Read)?;
        let server = PagerThread {
            memory: Arc::clone(&memory),
            stop: Arc::clone(&stop),
            uffd: sight,
            poller,
            fetch,
        };
        let thread = std::thread::Builder::new()
            .name("netram-bare".to_owned())
            .spawn(move || server.run(wait))?;
        Ok(BarePager {
            memory,
            stop,
            thread: Some(thread),
        })
    }

    /// First eight bytes of a page. Panics if there is no such page.
    pub fn first(&self, page: usize) -> u64 {
        let mut bytes = [0; 8];
        self.memory.read(page * PAGE_BYTES, &mut bytes);
        u64::from_ne_bytes(bytes)
    }

    /// Drops all pages.
    ///
    /// # Errors
    ///
    /// The system's error.
    pub fn empty(&self) -> io::Result<()> {
        self.memory.empty(0, self.memory.bytes() / PAGE_BYTES)
    }
}

impl Drop for BarePager {
    fn drop(&mut self) {
        self.stop.wanted.store(true, Ordering::SeqCst);
        // A thread that cannot be woken ends with the process.
        if self.stop.waker.wake().is_ok()
            && let Some(thread) = self.thread.take()
        {
            // The panic message was printed when it happened.
            let _ = thread.join();
        }
    }
}

impl<F: FnMut(usize, &mut PageBytes) -> bool> PagerThread<F> {
    /// Loop of the thread. Threads still waiting at its end get zeros from the kernel when the `userfaultfd`
    /// is closed.
    fn run(mut self, wait: WaitPolicy) {
        let _signals = SignalsBlocked::here();
        let mut bytes = Box::new([0; PAGE_BYTES]);
        let mut idle_since = Instant::now();
        while !self.stop.wanted.load(Ordering::SeqCst) {
            let Ok(message) = self.uffd.read() else {
                return;
            };
            if let Some(UffdMessage::Fault { address, .. }) = message {
                let page = (address - self.memory.address()) / PAGE_BYTES;
                if !(self.fetch)(page, &mut bytes) || !self.put(page, &bytes) {
                    return;
                }
                idle_since = Instant::now();
                continue;
            }
            match wait.step(idle_since.elapsed()) {
                WaitStep::Poll => std::hint::spin_loop(),
                WaitStep::Yield => yield_core(),
                WaitStep::Block if self.poller.sleep(None).is_ok() => idle_since = Instant::now(),
                WaitStep::Block => return,
            }
        }
    }

    fn put(&self, page: usize, bytes: &PageBytes) -> bool {
        match self.uffd.copy(&self.memory, page * PAGE_BYTES, bytes) {
            // Two threads missed the page, and it was fetched for the first.
            Err(Errno::EXIST) => {
                let woken = self.uffd.wake(&self.memory, page * PAGE_BYTES, PAGE_BYTES);
                woken.is_ok()
            }
            put => put.is_ok(),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::sync::atomic::AtomicUsize;

    use super::*;

    const PAGES: usize = 8;

    /// Opens a pager. `None`: this process may not, which is reported.
    fn opened(fetched: &Arc<AtomicUsize>, last: usize) -> Option<BarePager> {
        let fetched = Arc::clone(fetched);
        let opened = BarePager::open(PAGES, WaitPolicy::default(), move |page, bytes| {
            bytes[..8].copy_from_slice(&(1000 + page as u64).to_ne_bytes());
            fetched.fetch_add(1, Ordering::SeqCst) < last
        });
        if let Err(error) = &opened {
            // If this cannot be written, there is no other way to report it.
            let _ = writeln!(io::stderr(), "\nSKIPPED the barest pager: {error}");
        }
        opened.ok()
    }

    #[test]
    fn a_page_is_fetched_once_until_it_is_dropped() {
        let fetched = Arc::new(AtomicUsize::new(0));
        let Some(pager) = opened(&fetched, usize::MAX) else {
            return;
        };
        for _ in 0..2 {
            for page in [0, 7, 7, 0, 3] {
                assert_eq!(pager.first(page), 1000 + page as u64);
            }
            pager.empty().unwrap();
        }
        assert_eq!(fetched.load(Ordering::SeqCst), 6);
    }

    #[test]
    fn a_page_that_cannot_be_fetched_is_zeros() {
        let fetched = Arc::new(AtomicUsize::new(0));
        let Some(pager) = opened(&fetched, 1) else {
            return;
        };
        let found: Vec<u64> = (0..4).map(|page| pager.first(page)).collect();
        assert_eq!(found, [1000, 0, 0, 0]);
    }
}
