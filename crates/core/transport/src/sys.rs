//! System calls without a safe wrapper: batched datagrams in both directions, interface MTUs, and name
//! lookups of one family; and memory for secrets. This is the crate's only unsafe module.

use std::ffi::{CStr, CString};
use std::io;
use std::mem::{self, MaybeUninit};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::ops::{Deref, DerefMut};
use std::os::fd::{AsFd, AsRawFd};
use std::ptr::{self, NonNull};

use libc::{c_int, c_void, iovec, mmsghdr, socklen_t};
use rustix::mm::{self, Advice, MapFlags, ProtFlags};
use zeroize::Zeroize;

/// Maximum datagrams received in one call.
pub(crate) const BATCH: usize = 32;

/// A page with `N` bytes of a secret, zero at first. It is left out of core dumps, and locked if the process
/// may lock it: without that right the secret may be swapped, which is no reason to refuse it.
pub(crate) struct LockedPage<const N: usize>(NonNull<[u8; N]>);

/// Bytes of the mapping; the kernel rounds them up to its page.
const SECRET_PAGE_BYTES: usize = 4096;

impl<const N: usize> LockedPage<N> {
    /// Maps a page.
    pub(crate) fn map() -> io::Result<LockedPage<N>> {
        const { assert!(N <= SECRET_PAGE_BYTES) };
        let (access, kind) = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::PRIVATE);
        // SAFETY: a new mapping at an address of the kernel's choice changes no memory in use.
        let base = unsafe { mm::mmap_anonymous(ptr::null_mut(), SECRET_PAGE_BYTES, access, kind) }?;
        let page = LockedPage(NonNull::new(base.cast()).ok_or(io::ErrorKind::OutOfMemory)?);
        // SAFETY: the mapping is ours, and the advice does not change its content.
        unsafe { mm::madvise(base, SECRET_PAGE_BYTES, Advice::LinuxDontDump) }?;
        // SAFETY: the mapping is ours, and locking does not change its content.
        let _ = unsafe { mm::mlock(base, SECRET_PAGE_BYTES) };
        Ok(page)
    }

    pub(crate) fn bytes(&self) -> &[u8; N] {
        // SAFETY: the page is mapped until drop, has `N` bytes, and only `&mut self` writes it.
        unsafe { self.0.as_ref() }
    }

    pub(crate) fn bytes_mut(&mut self) -> &mut [u8; N] {
        // SAFETY: the page is mapped until drop, has `N` bytes, and is borrowed exclusively.
        unsafe { self.0.as_mut() }
    }
}

// SAFETY: the page belongs to this value alone, which gives it out by the rules of references.
unsafe impl<const N: usize> Send for LockedPage<N> {}
// SAFETY: as above; a shared reference only reads.
unsafe impl<const N: usize> Sync for LockedPage<N> {}

impl<const N: usize> Drop for LockedPage<N> {
    fn drop(&mut self) {
        // SAFETY: the mapping is ours, and no reference to it outlives `self`. Unmapping unlocks it.
        let _ = unsafe { mm::munmap(self.0.as_ptr().cast(), SECRET_PAGE_BYTES) };
    }
}

/// A box whose memory is overwritten with zeros behind its value.
pub(crate) struct WipedBox<T>(NonNull<T>);

impl<T> WipedBox<T> {
    pub(crate) fn new(value: T) -> WipedBox<T> {
        WipedBox(NonNull::from(Box::leak(Box::new(value))))
    }
}

// SAFETY: the value belongs to this box alone, as in a `Box`.
unsafe impl<T: Send> Send for WipedBox<T> {}
// SAFETY: as above.
unsafe impl<T: Sync> Sync for WipedBox<T> {}

impl<T> Deref for WipedBox<T> {
    type Target = T;

    fn deref(&self) -> &T {
        // SAFETY: the value lives until drop.
        unsafe { self.0.as_ref() }
    }
}

impl<T> DerefMut for WipedBox<T> {
    fn deref_mut(&mut self) -> &mut T {
        // SAFETY: the value lives until drop, and is borrowed exclusively.
        unsafe { self.0.as_mut() }
    }
}

impl<T> Drop for WipedBox<T> {
    fn drop(&mut self) {
        let place = self.0.as_ptr().cast::<MaybeUninit<T>>();
        // SAFETY: the value came from a `Box` in `new` and is not used again after this.
        unsafe { ptr::drop_in_place(self.0.as_ptr()) };
        // SAFETY: the memory is still allocated as in `new`; without a value it may hold any bytes.
        let mut memory = unsafe { Box::from_raw(place) };
        memory.zeroize();
    }
}

/// Sets the segment size at which the kernel cuts a sent buffer into datagrams (UDP_SEGMENT, Linux 4.18);
/// zero turns it off.
pub(crate) fn set_segment(socket: &impl AsFd, bytes: usize) -> io::Result<()> {
    let value = c_int::try_from(bytes).map_err(io::Error::other)?;
    let length = mem::size_of::<c_int>() as socklen_t;
    let fd = socket.as_fd().as_raw_fd();
    let at = ptr::from_ref(&value).cast::<c_void>();
    // SAFETY: `at` is a local of `length` bytes, which the kernel only reads; `fd` is open while it is
    // borrowed.
    let done = unsafe { libc::setsockopt(fd, libc::SOL_UDP, libc::UDP_SEGMENT, at, length) };
    checked(done).map(drop)
}

/// The known path MTU to a connected socket's peer, in bytes.
pub(crate) fn path_mtu(socket: &impl AsFd) -> io::Result<usize> {
    let mut value: c_int = 0;
    let mut length = mem::size_of::<c_int>() as socklen_t;
    let fd = socket.as_fd().as_raw_fd();
    let at = ptr::from_mut(&mut value).cast::<c_void>();
    // SAFETY: `at` is a local of `length` bytes, and `length` another; `fd` is open while it is borrowed.
    let done = unsafe { libc::getsockopt(fd, libc::IPPROTO_IP, libc::IP_MTU, at, &raw mut length) };
    checked(done)?;
    usize::try_from(value).map_err(io::Error::other)
}

/// The MTU of an interface, in bytes.
pub(crate) fn interface_mtu(socket: &impl AsFd, name: &str) -> io::Result<usize> {
    // SAFETY: zeros are a request that names no interface.
    let mut request: libc::ifreq = unsafe { mem::zeroed() };
    // The last byte is the terminating zero.
    if name.len() >= request.ifr_name.len() {
        return Err(io::ErrorKind::NotFound.into());
    }
    for (to, byte) in request.ifr_name.iter_mut().zip(name.bytes()) {
        *to = byte.cast_signed();
    }
    let fd = socket.as_fd().as_raw_fd();
    // SAFETY: the request is a local one, of the form that this command takes; `fd` is open while it is
    // borrowed.
    let done = unsafe { libc::ioctl(fd, libc::SIOCGIFMTU, &raw mut request) };
    checked(done)?;
    // SAFETY: this is the field that the command has filled, and any bytes are a number.
    let mtu = unsafe { request.ifr_ifru.ifru_mtu };
    usize::try_from(mtu).map_err(io::Error::other)
}

/// Receives datagrams without waiting, each into its own `slot_bytes` of `slots`, and their lengths into
/// `lengths`. Returns their number. A datagram longer than its slot is truncated. Costs about 50 ns a
/// datagram beside the system call.
pub(crate) fn receive_many(
    socket: &impl AsFd,
    slots: &mut [u8],
    slot_bytes: usize,
    lengths: &mut [usize; BATCH],
) -> io::Result<usize> {
    assert!(slot_bytes > 0);
    assert!(slots.len() == BATCH * slot_bytes);
    let mut pieces = slots.chunks_exact_mut(slot_bytes).map(|slot| iovec {
        iov_base: slot.as_mut_ptr().cast(),
        iov_len: slot.len(),
    });
    let mut iovecs: [iovec; BATCH] = std::array::from_fn(|_| match pieces.next() {
        Some(piece) => piece,
        None => unreachable!("the slots were counted above"),
    });
    let mut messages: [mmsghdr; BATCH] = std::array::from_fn(|index| {
        // SAFETY: a structure of integers and pointers, for which zeros mean "none".
        let mut message: mmsghdr = unsafe { mem::zeroed() };
        message.msg_hdr.msg_iov = &raw mut iovecs[index];
        message.msg_hdr.msg_iovlen = 1;
        message
    });
    let fd = socket.as_fd().as_raw_fd();
    let (at, count, flags) = (messages.as_mut_ptr(), BATCH as u32, libc::MSG_DONTWAIT);
    // SAFETY: `BATCH` headers, each with one vector that names a slot of its own; `slots`, `iovecs` and
    // `messages` outlive the call and no other code uses them during the call. The kernel keeps no pointer.
    // `fd` is open while it is borrowed.
    let taken = unsafe { libc::recvmmsg(fd, at, count, flags as _, ptr::null_mut()) };
    let taken = checked(taken)? as usize;
    assert!(taken <= BATCH);
    for (length, message) in lengths.iter_mut().zip(&messages[..taken]) {
        *length = message.msg_len as usize;
    }
    Ok(taken)
}

/// An IP address family.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum IpFamily {
    V4,
    V6,
}

impl IpFamily {
    pub(crate) const ALL: [IpFamily; 2] = [IpFamily::V4, IpFamily::V6];
}

/// The resolver's error for a name without addresses of a family.
#[derive(Clone, Debug)]
pub(crate) struct NoAddressError(pub(crate) String);

/// The addresses of `name` in one family. Blocks as long as the system's resolver does.
pub(crate) fn addresses(name: &str, family: IpFamily) -> Result<Vec<IpAddr>, NoAddressError> {
    let name = CString::new(name).map_err(|error| NoAddressError(error.to_string()))?;
    // SAFETY: a structure of integers and pointers, for which zeros mean "any".
    let mut hints: libc::addrinfo = unsafe { mem::zeroed() };
    hints.ai_socktype = libc::SOCK_STREAM;
    hints.ai_family = match family {
        IpFamily::V4 => libc::AF_INET,
        IpFamily::V6 => libc::AF_INET6,
    };
    let mut first: *mut libc::addrinfo = ptr::null_mut();
    // SAFETY: the name ends with a zero, the hints and the place for the list are locals; the resolver keeps
    // none of them.
    let failed = unsafe { libc::getaddrinfo(name.as_ptr(), ptr::null(), &raw const hints, &raw mut first) };
    match failed {
        0 => (),
        libc::EAI_SYSTEM => return Err(NoAddressError(io::Error::last_os_error().to_string())),
        other => {
            // SAFETY: any number has a text.
            let text = unsafe { libc::gai_strerror(other) };
            // SAFETY: the text is a constant with a terminating zero.
            let text = unsafe { CStr::from_ptr(text) };
            return Err(NoAddressError(text.to_string_lossy().into_owned()));
        }
    }
    let mut found = Vec::new();
    let mut next = first;
    while !next.is_null() {
        // SAFETY: `next` is an entry of the list, which is freed only after the loop.
        let entry = unsafe { &*next };
        next = entry.ai_next;
        let ip = match entry.ai_family {
            libc::AF_INET => {
                // SAFETY: an entry of this family has this form, perhaps with less alignment.
                let address = unsafe { entry.ai_addr.cast::<libc::sockaddr_in>().read_unaligned() };
                IpAddr::V4(Ipv4Addr::from(u32::from_be(address.sin_addr.s_addr)))
            }
            libc::AF_INET6 => {
                // SAFETY: an entry of this family has this form, perhaps with less alignment.
                let address = unsafe { entry.ai_addr.cast::<libc::sockaddr_in6>().read_unaligned() };
                IpAddr::V6(Ipv6Addr::from(address.sin6_addr.s6_addr))
            }
            _ => continue,
        };
        if !found.contains(&ip) {
            found.push(ip);
        }
    }
    // SAFETY: `first` is the list that the resolver allocated, and it is freed once.
    unsafe { libc::freeaddrinfo(first) };
    Ok(found)
}

fn checked(returned: c_int) -> io::Result<c_int> {
    match returned {
        0.. => Ok(returned),
        _ => Err(io::Error::last_os_error()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::UdpSocket;

    #[test]
    fn one_call_receives_many_datagrams_each_truncated_to_its_slot() {
        let to = UdpSocket::bind("127.0.0.1:0").unwrap();
        let from = UdpSocket::bind("127.0.0.1:0").unwrap();
        from.connect(to.local_addr().unwrap()).unwrap();
        let (mut slots, mut lengths) = (vec![0; BATCH * 100], [0; BATCH]);
        let nothing = receive_many(&to, &mut slots, 100, &mut lengths).unwrap_err();
        assert_eq!(nothing.kind(), io::ErrorKind::WouldBlock);
        for length in 0..=BATCH {
            from.send(&vec![length as u8; length * 4]).unwrap();
        }
        assert_eq!(receive_many(&to, &mut slots, 100, &mut lengths).unwrap(), BATCH);
        for (index, length) in lengths.iter().enumerate() {
            assert_eq!(*length, (index * 4).min(100));
            let slot = &slots[index * 100..][..*length];
            assert!(slot.iter().all(|byte| *byte == index as u8));
        }
        assert_eq!(receive_many(&to, &mut slots, 100, &mut lengths).unwrap(), 1);
        assert_eq!(lengths[0], 100, "the last one is truncated");
    }

    #[test]
    fn the_kernel_segments_datagrams_and_knows_the_mtu_of_loopback() {
        let to = UdpSocket::bind("127.0.0.1:0").unwrap();
        let from = UdpSocket::bind("127.0.0.1:0").unwrap();
        from.connect(to.local_addr().unwrap()).unwrap();
        assert!(path_mtu(&from).unwrap() > 1000);
        assert!(path_mtu(&to).is_err(), "it is not connected");
        if let Err(error) = set_segment(&from, 1000) {
            eprintln!("this kernel does not segment datagrams: {error}");
            return;
        }
        from.send(&[1; 2500]).unwrap();
        let (mut slots, mut lengths) = (vec![0; BATCH * 2000], [0; BATCH]);
        let taken = receive_many(&to, &mut slots, 2000, &mut lengths).unwrap();
        assert_eq!(&lengths[..taken], [1000, 1000, 500]);
        set_segment(&from, 0).unwrap();
        from.send(&[1; 1500]).unwrap();
        assert_eq!(receive_many(&to, &mut slots, 2000, &mut lengths).unwrap(), 1);
        assert_eq!(lengths[0], 1500);
    }
}
