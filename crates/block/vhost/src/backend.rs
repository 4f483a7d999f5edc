//! The library's events, handed to batches.

use std::io;
use std::os::fd::AsRawFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use netram_process::abort_guard::AbortGuard;
use vhost::vhost_user::message::VhostUserProtocolFeatures;
use vhost_user_backend::{VhostUserBackend, VringMutex, VringState, VringT};
use virtio_queue::{Error as QueueError, QueueT};
use vm_memory::{GuestAddressSpace, GuestMemoryAtomic, GuestMemoryMmap};
use vmm_sys_util::epoll::EventSet;
use vmm_sys_util::event::{EventConsumer, EventFlag, EventNotifier, new_event_consumer_and_notifier};

use crate::batch::{Batch, GuestDisk, MalformedRequest};
use crate::disk_config;
use crate::limit::{QUEUE_SIZE_MAX, QUEUES_MAX, THREADS_MAX};
use crate::stats::VhostCounters;
use crate::sys::GivenUpEvents;

/// The guest's memory, which the library exchanges when the virtual machine tells of another.
pub(crate) type SharedGuestMemory = GuestMemoryAtomic<GuestMemoryMmap>;
type Vring = VringMutex<SharedGuestMemory>;

/// State that the threads of a connection share.
pub(crate) struct DiskBackend {
    disk: Arc<GuestDisk>,
    counters: Arc<VhostCounters>,
    memory: SharedGuestMemory,
    threads: Vec<Mutex<ThreadState>>,
    events: Mutex<GivenUpEvents>,
    /// No further request is carried out: one was malformed, or the server stops.
    ended: AtomicBool,
}

/// State of a thread that serves some of the queues.
struct ThreadState {
    /// Data on its way.
    buffer: Vec<u8>,
    /// Queues that were served since the connection began.
    served: [bool; QUEUES_MAX],
}

/// Failures of a queue, whose thread then leaves it alone.
#[derive(Debug, thiserror::Error)]
enum QueueFailure {
    #[error(transparent)]
    Malformed(#[from] MalformedRequest),
    #[error("the guest's queue cannot be used: {0}")]
    Queue(#[from] QueueError),
    #[error("the virtual machine cannot be told of answers: {0}")]
    Signal(#[from] io::Error),
}

impl DiskBackend {
    pub(crate) fn new(
        disk: Arc<GuestDisk>,
        counters: Arc<VhostCounters>,
        memory: SharedGuestMemory,
    ) -> DiskBackend {
        let threads = std::thread::available_parallelism().map_or(1, usize::from);
        let state = || {
            Mutex::new(ThreadState {
                buffer: Vec::new(),
                served: [false; QUEUES_MAX],
            })
        };
        DiskBackend {
            disk,
            counters,
            memory,
            threads: (0..threads.min(THREADS_MAX)).map(|_| state()).collect(),
            events: Mutex::default(),
            ended: AtomicBool::new(false),
        }
    }

    /// Carries out no further request, and waits until those that have begun are answered. Only then may the
    /// connection end: a virtual machine counts the answers at that moment, and an answer after it would come
    /// a second time from the next server, which breaks the guest's driver.
    pub(crate) fn drain(&self) {
        self.ended.store(true, Ordering::SeqCst);
        for thread in &self.threads {
            drop(thread.lock().unwrap_or_else(PoisonError::into_inner));
        }
    }

    /// Closes what the library does not. Its threads must have ended.
    pub(crate) fn close(&self) {
        self.events.lock().unwrap_or_else(PoisonError::into_inner).close();
    }

    /// Carries out all requests of a queue. Whoever stops the queue waits for its lock, and so for this.
    fn serve(
        &self,
        vring: &mut VringState<SharedGuestMemory>,
        thread: &mut ThreadState,
        queue: usize,
    ) -> Result<(), QueueFailure> {
        if !vring.is_enabled() || !vring.get_queue().ready() {
            return Ok(());
        }
        // Whether the guest says that there are more.
        let mut expected = false;
        loop {
            vring.disable_notification()?;
            let mut found = false;
            while self.serve_batch(vring, thread, queue)? {
                found = true;
            }
            if self.ended.load(Ordering::SeqCst) {
                return Ok(());
            }
            if expected && !found {
                return Err(MalformedRequest("the guest counts more than fit in its queue").into());
            }
            expected = vring.enable_notification()?;
            if !expected {
                break;
            }
        }
        if !thread.served[queue] {
            thread.served[queue] = true;
            vring.signal_used_queue()?;
        }
        Ok(())
    }

    /// Carries out some requests, and tells the guest of their answers. Returns whether there were any.
    fn serve_batch(
        &self,
        vring: &mut VringState<SharedGuestMemory>,
        thread: &mut ThreadState,
        queue: usize,
    ) -> Result<bool, QueueFailure> {
        if self.ended.load(Ordering::SeqCst) {
            return Ok(false);
        }
        let memory = self.memory.memory();
        let mut batch = Batch::new(&self.disk, &mut thread.buffer);
        let mut started = Ok(());
        while started.is_ok() && !batch.is_full() {
            match vring.get_queue_mut().pop_descriptor_chain(memory.clone()) {
                Some(chain) => started = batch.start(chain, &memory),
                None => break,
            }
        }
        let found = !batch.is_empty();
        if found {
            let stats = batch.finish(|head, bytes| vring.add_used(head, bytes))?;
            self.counters.add(&stats);
            // A virtual machine may not have heard of the last answers of a server that was killed.
            let first = !std::mem::replace(&mut thread.served[queue], true);
            if vring.needs_notification()? || first {
                vring.signal_used_queue()?;
            }
        }
        started?;
        Ok(found)
    }
}

impl VhostUserBackend for DiskBackend {
    type Bitmap = ();
    type Vring = Vring;

    fn num_queues(&self) -> usize {
        QUEUES_MAX
    }

    fn max_queue_size(&self) -> usize {
        usize::from(QUEUE_SIZE_MAX)
    }

    fn features(&self) -> u64 {
        disk_config::features(self.disk.read_only)
    }

    fn protocol_features(&self) -> VhostUserProtocolFeatures {
        disk_config::protocol_features()
    }

    fn set_event_idx(&self, _enabled: bool) {}

    fn get_config(&self, offset: u32, size: u32) -> Vec<u8> {
        let fields = disk_config::fields(self.disk.device.geometry().bytes);
        // A virtual machine that knows more fields reads zeros there.
        let all = fields.into_iter().chain(std::iter::repeat(0));
        all.skip(offset as usize).take(size as usize).collect()
    }

    fn update_memory(&self, _: SharedGuestMemory) -> io::Result<()> {
        Ok(())
    }

    /// Every so many queues are a thread's.
    fn queues_per_thread(&self) -> Vec<u64> {
        let threads = self.threads.len();
        let queues = |thread: usize| (thread..QUEUES_MAX).step_by(threads);
        (0..threads)
            .map(|thread| queues(thread).fold(0, |mask, queue| mask | 1 << queue))
            .collect()
    }

    fn exit_event(&self, _: usize) -> Option<(EventConsumer, EventNotifier)> {
        match new_event_consumer_and_notifier(EventFlag::NONBLOCK | EventFlag::CLOEXEC) {
            Ok((consumer, notifier)) => {
                let mut events = self.events.lock().unwrap_or_else(PoisonError::into_inner);
                events.add(consumer.as_raw_fd());
                Some((consumer, notifier))
            }
            Err(error) => {
                tracing::error!(%error, "no event to end a thread with");
                None
            }
        }
    }

    /// An error would end the thread, and with it the other queues.
    fn handle_event(&self, queue: u16, _: EventSet, vrings: &[Vring], thread: usize) -> io::Result<()> {
        let queue = usize::from(queue);
        let (Some(vring), Some(thread)) = (vrings.get(queue), self.threads.get(thread)) else {
            return Ok(());
        };
        // The guest would wait for ever for what this thread was to answer.
        let mut end = AbortGuard::arm();
        let mut thread = thread.lock().unwrap_or_else(PoisonError::into_inner);
        if let Err(error) = self.serve(&mut vring.get_mut(), &mut thread, queue) {
            self.ended.store(true, Ordering::SeqCst);
            tracing::error!(%error, "the virtual machine's requests are not carried out any more; restart it");
        }
        end.disarm();
        Ok(())
    }
}
