//! Waiting for links, and wake-ups.

use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use crate::common::*;
use netram_transport::{Interest, Poller, ReadyEvents, Waker};

#[test]
fn a_link_is_ready_until_its_packet_is_read() {
    let place = SocketDir::new();
    let mut events = ReadyEvents::with_capacity(8);
    for (token, (address, security)) in kinds(&place).into_iter().enumerate() {
        let (mut client, mut lender) = pair(&address, &security);
        let poller = Poller::new().unwrap();
        poller.add(&lender, token as u64, Interest::Read).unwrap();
        poller.wait(&mut events, Some(Duration::ZERO)).unwrap();
        assert!(events.is_empty());
        client.send(&[b"hello"]).unwrap();
        poller.wait(&mut events, Some(PATIENCE)).unwrap();
        let ready: Vec<_> = events.iter().collect();
        assert_eq!(
            (ready.len(), ready[0].token, ready[0].readable),
            (1, token as u64, true)
        );
        assert!(!ready[0].writable);
        assert_eq!(receive(&mut lender).unwrap(), b"hello");
        poller.wait(&mut events, Some(Duration::ZERO)).unwrap();
        assert!(events.is_empty());

        poller.modify(&lender, 77, Interest::ReadWrite).unwrap();
        poller.wait(&mut events, Some(PATIENCE)).unwrap();
        assert!(
            events
                .iter()
                .any(|ready| ready.token == 77 && ready.writable && !ready.readable)
        );
        poller.modify(&lender, 77, Interest::Read).unwrap();
        drop(client);
        poller.wait(&mut events, Some(PATIENCE)).unwrap();
        assert!(
            events.iter().any(|ready| ready.readable),
            "the end of the stream is readable"
        );
        poller.remove(&lender).unwrap();
        poller.wait(&mut events, Some(Duration::ZERO)).unwrap();
        assert!(events.is_empty());
    }
}

#[test]
fn only_requested_events_are_reported() {
    let place = SocketDir::new();
    let mut events = ReadyEvents::with_capacity(8);
    for (address, security) in kinds(&place) {
        let (mut client, mut lender) = pair(&address, &security);
        let poller = Poller::new().unwrap();
        poller.add(&lender, 1, Interest::Read).unwrap();
        client.send(&[b"hello"]).unwrap();
        poller.wait(&mut events, Some(PATIENCE)).unwrap();
        assert!(events.iter().any(|ready| ready.readable));
        poller.modify(&lender, 1, Interest::Write).unwrap();
        poller.wait(&mut events, Some(PATIENCE)).unwrap();
        assert!(events.iter().all(|ready| ready.writable && !ready.readable));
        assert!(!events.is_empty());
        poller.modify(&lender, 1, Interest::Nothing).unwrap();
        poller.wait(&mut events, Some(Duration::ZERO)).unwrap();
        assert!(events.is_empty());
        poller.modify(&lender, 1, Interest::Read).unwrap();
        poller.wait(&mut events, Some(PATIENCE)).unwrap();
        assert!(events.iter().any(|ready| ready.readable), "it is still there");
        assert_eq!(receive(&mut lender).unwrap(), b"hello");
    }
}

#[test]
fn a_waker_ends_a_wait_in_another_thread_once() {
    let (poller, waker) = (Poller::new().unwrap(), Arc::new(Waker::new().unwrap()));
    poller.add(&*waker, 5, Interest::Read).unwrap();
    let other = Arc::clone(&waker);
    let thread = thread::spawn(move || {
        other.wake().unwrap();
        other.wake().unwrap();
    });
    let mut events = ReadyEvents::with_capacity(1);
    let start = Instant::now();
    poller.wait(&mut events, Some(PATIENCE)).unwrap();
    assert!(start.elapsed() < PATIENCE);
    assert_eq!(events.iter().next().map(|ready| ready.token), Some(5));
    thread.join().unwrap();
    waker.drain().unwrap();
    poller.wait(&mut events, Some(Duration::ZERO)).unwrap();
    assert!(events.is_empty());
}
