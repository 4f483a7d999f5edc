//! Requests to a real server over a real socket, byte by byte.

use std::sync::Arc;

use crate::common::*;
use netram_block::BlockDevice;
use netram_nbd::wire::request::{command, flag};
use netram_nbd::{MemoryDevice, NbdServer, NbdStartError};

const MIB: u64 = 1 << 20;

#[test]
fn writes_of_any_length_are_read_back() {
    let place = SocketDirectory::new();
    let (server, _) = serve(&place, 64 * MIB);
    let mut writer = Client::ready(&place.socket());
    let mut reader = Client::structured(&place.socket());
    // Lengths below, at and above the pieces into which large payloads are split.
    for (index, length) in [
        512,
        4096,
        65536,
        MIB - 512,
        MIB,
        MIB + 512,
        5 * MIB + 512,
        32 * MIB,
    ]
    .into_iter()
    .enumerate()
    {
        let offset = 512 * (1 + index as u64 * 7);
        let data = pattern(length, length as usize);
        writer.request(command::WRITE, 0, length, offset, length as u32);
        writer.send(&data);
        assert_eq!(
            writer.reply(),
            Reply {
                cookie: length,
                error: 0
            }
        );

        writer.request(command::READ, 0, 1, offset, length as u32);
        assert_eq!(writer.reply().error, 0);
        assert!(
            writer.take(length as usize) == data,
            "{length} bytes in a simple reply"
        );

        reader.request(command::READ, 0, 2, offset, length as u32);
        let mut found = vec![0; length as usize];
        loop {
            let (flags, kind, cookie, data) = reader.chunk();
            let at = (u64::from_be_bytes(data[..8].try_into().unwrap()) - offset) as usize;
            assert_eq!((kind, cookie), (1, 2), "the whole range must be data");
            found[at..at + data.len() - 8].copy_from_slice(&data[8..]);
            if flags == 1 {
                break;
            }
        }
        assert!(found == data, "{length} bytes in chunks");
    }
    drop((writer, reader));
    assert_eq!(server.stop(), 0);
}

#[test]
fn a_refused_write_is_answered_and_the_next_request_is_served() {
    let place = SocketDirectory::new();
    let (_server, _) = serve(&place, MIB);
    let mut client = Client::ready(&place.socket());
    for (offset, length, error) in [
        (MIB, 512, 28),
        (1, 512, 22),
        (0, 7, 22),
        (0, (33 * MIB) as u32, 28),
        (u64::MAX, 512, 28),
    ] {
        client.request(command::WRITE, 0, 5, offset, length);
        client.send(&vec![1; length as usize]);
        assert_eq!(client.reply(), Reply { cookie: 5, error });
    }
    client.request(command::READ, 0, 6, 0, 512);
    assert_eq!(client.reply(), Reply { cookie: 6, error: 0 });
    assert_eq!(client.take(512), [0; 512]);
}

#[test]
fn errors_of_reads_are_sent_in_the_negotiated_form() {
    let place = SocketDirectory::new();
    let (_server, _) = serve(&place, MIB);
    let mut simple = Client::ready(&place.socket());
    simple.request(command::READ, 0, 1, MIB, 512);
    assert_eq!(simple.reply(), Reply { cookie: 1, error: 22 });
    let mut structured = Client::structured(&place.socket());
    structured.request(command::READ, flag::DF, 1, 0, 2 * MIB as u32);
    let (flags, kind, cookie, data) = structured.chunk();
    assert_eq!((flags, kind, cookie), (1, 0x8001, 1));
    assert_eq!(
        data[..4],
        22_u32.to_be_bytes(),
        "out of range is reported before too long"
    );
}

#[test]
fn holes_are_reported_and_not_sent_as_data() {
    let place = SocketDirectory::new();
    let (_server, device) = serve(&place, 4 * MIB);
    device.write(MIB, &pattern(3, 65536)).unwrap();
    let mut client = Client::structured(&place.socket());
    client.request(command::READ, 0, 1, 0, 2 * MIB as u32);
    let (_, kind, _, data) = client.chunk();
    assert_eq!(
        (kind, data),
        (
            2,
            [0_u64.to_be_bytes().as_slice(), &(MIB as u32).to_be_bytes()].concat()
        )
    );
    let (_, kind, _, data) = client.chunk();
    assert_eq!((kind, data.len()), (1, 8 + 65536));
    assert_eq!(data[8..], pattern(3, 65536));
    let (flags, kind, ..) = client.chunk();
    assert_eq!((flags, kind), (1, 2));

    client.request(command::BLOCK_STATUS, 0, 2, 0, 2 * MIB as u32);
    let (flags, kind, _, data) = client.chunk();
    let runs = [1, MIB as u32, 3, 65536, 0, (MIB - 65536) as u32, 3];
    assert_eq!((flags, kind), (1, 5));
    assert_eq!(data, runs.map(u32::to_be_bytes).as_flattened());
    client.request(command::BLOCK_STATUS, flag::REQ_ONE, 3, MIB, MIB as u32);
    assert_eq!(
        client.chunk().3,
        [1, 65536_u32, 0].map(u32::to_be_bytes).as_flattened()
    );
}

#[test]
fn zeros_become_holes_unless_allocated_space_is_requested() {
    let place = SocketDirectory::new();
    let (_server, device) = serve(&place, MIB);
    let holes = || {
        let mut found = Vec::new();
        device
            .extents(0, 8192, &mut |length, hole| {
                found.push((length, hole));
                true
            })
            .unwrap();
        found
    };
    let mut client = Client::ready(&place.socket());
    client.request(command::WRITE, 0, 1, 0, 8192);
    client.send(&pattern(1, 8192));
    client.request(command::WRITE_ZEROES, flag::NO_HOLE, 2, 0, 4096);
    client.request(command::WRITE_ZEROES, flag::FAST_ZERO | flag::FUA, 3, 4096, 4096);
    client.request(command::WRITE_ZEROES, flag::FAST_ZERO | flag::NO_HOLE, 4, 0, 4096);
    let errors = [0, 0, 0, 95];
    for error in errors {
        assert_eq!(client.reply().error, error);
    }
    assert_eq!(holes(), [(4096, false), (4096, true)]);
    client.request(command::READ, 0, 5, 0, 8192);
    client.reply();
    assert_eq!(client.take(8192), [0; 8192]);
    client.request(command::TRIM, 0, 6, 0, 4096);
    assert_eq!(client.reply().error, 0);
    assert_eq!(holes()[0], (4096, true));
}

#[test]
fn a_client_sees_a_volume_grow() {
    let place = SocketDirectory::new();
    let (_server, device) = serve(&place, MIB);
    let mut client = Client::ready(&place.socket());
    client.request(command::READ, 0, 1, MIB, 512);
    assert_eq!(client.reply().error, 22);
    device.grow(2 * MIB);
    client.request(command::READ, 0, 2, MIB, 512);
    assert_eq!(client.reply().error, 0);
}

#[test]
fn a_socket_is_private_to_its_user_unless_others_are_allowed() {
    use std::os::unix::fs::PermissionsExt;
    let place = SocketDirectory::new();
    for other_users in [false, true] {
        let mut config = config(&place, Arc::new(MemoryDevice::new(4096)));
        config.other_users = other_users;
        let server = NbdServer::start(config).unwrap();
        let mode = std::fs::metadata(place.socket()).unwrap().permissions().mode();
        assert_eq!(mode & 0o777 == 0o600, !other_users, "{mode:o}");
        drop(server);
        assert!(
            !place.socket().exists(),
            "the socket file was not removed with the server"
        );
    }
}

#[test]
fn a_server_with_an_invalid_configuration_does_not_start() {
    let place = SocketDirectory::new();
    let device = || Arc::new(MemoryDevice::new(4096));
    let refused = |change: &dyn Fn(&mut netram_nbd::NbdServerConfig)| {
        let mut config = config(&place, device());
        change(&mut config);
        matches!(NbdServer::start(config), Err(NbdStartError::Config(_)))
    };
    assert!(refused(&|config| config.listen.clear()));
    assert!(refused(&|config| config.exports.clear()));
    assert!(refused(&|config| config.exports[0].name = "x".repeat(1025)));
    assert!(refused(&|config| {
        let same = crate::common::config(&place, device()).exports.remove(0);
        config.exports.push(same);
    }));
    assert!(!refused(&|_| ()));
}
