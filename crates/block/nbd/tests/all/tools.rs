//! Common programs: libnbd's, qemu's, fio. Each test prints a note if its program is missing.

use std::fs;

use crate::common::*;
use netram_block::BlockDevice;
use netram_nbd::{NbdServer, TlsMode};

const MIB: u64 = 1 << 20;

fn uri(place: &SocketDirectory) -> String {
    format!("nbd+unix:///?socket={}", place.socket().display())
}

#[test]
fn nbdinfo_reports_the_servers_capabilities() {
    if !has("nbdinfo") {
        return;
    }
    let place = SocketDirectory::new();
    let (_server, device) = serve(&place, 8 * MIB);
    let told = succeed("nbdinfo", &["--json", &uri(&place)]);
    for line in [
        "\"protocol\": \"newstyle-fixed\"",
        "\"structured\": true",
        "\"export-size\": 8388608",
        "\"base:allocation\"",
        "\"can_flush\": true",
        "\"can_fua\": true",
        "\"can_multi_conn\": true",
        "\"can_trim\": true",
        "\"can_zero\": true",
        "\"can_fast_zero\": true",
        "\"can_df\": true",
        "\"can_cache\": true",
        "\"is_read_only\": false",
        "\"block_size_minimum\": 512",
        "\"block_size_preferred\": 4096",
        "\"block_size_maximum\": 33554432",
    ] {
        assert!(told.contains(line), "{line} is not in\n{told}");
    }
    let listed = succeed("nbdinfo", &["--list", &uri(&place)]);
    assert!(listed.contains("export=\"volume\""), "{listed}");

    device.write(MIB, &pattern(1, 65536)).unwrap();
    let map = succeed("nbdinfo", &["--map", &uri(&place)]);
    let runs: Vec<Vec<&str>> = map
        .lines()
        .map(|line| line.split_whitespace().take(3).collect())
        .collect();
    assert_eq!(
        runs,
        [
            ["0", "1048576", "3"],
            ["1048576", "65536", "0"],
            ["1114112", "7274496", "3"]
        ]
    );
}

#[test]
fn nbdcopy_copies_a_sparse_image_to_the_server_and_back() {
    if !has("nbdcopy") {
        return;
    }
    let place = SocketDirectory::new();
    let (server, device) = serve(&place, 64 * MIB);
    let image = place.path("image");
    let mut contents = vec![0; 64 * MIB as usize];
    for at in [0, 5 * MIB, 40 * MIB, 64 * MIB - 4096] {
        let length = (3 * MIB).min(64 * MIB - at) as usize;
        contents[at as usize..at as usize + length].copy_from_slice(&pattern(at + 1, length));
    }
    fs::write(&image, &contents).unwrap();
    let image_path = image.to_str().unwrap();
    succeed("nbdcopy", &["--flush", image_path, &uri(&place)]);
    assert!(device.flushes() > 0, "the flush arrived");
    let mut holes = 0;
    device
        .extents(0, 64 * MIB, &mut |length, hole| {
            holes += if hole { length } else { 0 };
            true
        })
        .unwrap();
    assert!(holes >= 50 * MIB, "zeros were sent as data; holes: {holes}");
    let back = place.path("back");
    succeed("nbdcopy", &[&uri(&place), back.to_str().unwrap()]);
    assert!(fs::read(&back).unwrap() == contents);
    let stats = server.stats();
    assert!(stats.sessions >= 4, "it uses several connections: {stats:?}");
    assert_eq!(stats.errors, 0);
}

#[test]
fn nbdsh_finds_every_command_as_documented() {
    let Some(python) = nbd_python() else { return };
    let place = SocketDirectory::new();
    let (server, device) = serve(&place, 64 * MIB);
    let script = r#"
import errno
def refused(code, call):
    try:
        call()
    except nbd.Error as error:
        assert error.errno == code, error
    else:
        raise AssertionError("not refused")
h.set_strict_mode(0)
h.add_meta_context(nbd.CONTEXT_BASE_ALLOCATION)
h.connect_uri(URI)
data = bytes(range(256)) * 256
h.pwrite(data, 0, nbd.CMD_FLAG_FUA)
assert h.pread(65536, 0) == data
h.zero(4096, 4096, nbd.CMD_FLAG_NO_HOLE)
h.zero(4096, 8192, nbd.CMD_FLAG_FAST_ZERO)
h.trim(4096, 12288)
assert h.pread(12288, 4096) == bytes(12288)
h.cache(65536, 0)
h.flush()
runs = []
h.block_status(65536, 0, lambda name, offset, entries, error: runs.extend(entries))
assert runs == [8192, 0, 8192, 3, 49152, 0], runs
chunks = []
h.pread_structured(2 * 1024 * 1024, 0, lambda data, offset, status, error: chunks.append((offset, status)))
assert (65536, nbd.READ_HOLE) in chunks, chunks
h.pread_structured(65536, 0, lambda *_: 0, nbd.CMD_FLAG_DF)
refused("EOVERFLOW", lambda: h.pread_structured(2 << 20, 0, lambda *_: 0, nbd.CMD_FLAG_DF))
refused("EINVAL", lambda: h.pread(512, h.get_size()))
refused("ENOSPC", lambda: h.pwrite(bytes(512), h.get_size()))
refused("EINVAL", lambda: h.pread(511, 0))
refused("ENOTSUP", lambda: h.zero(4096, 0, nbd.CMD_FLAG_NO_HOLE | nbd.CMD_FLAG_FAST_ZERO))
assert h.pread(512, 0) == data[:512]
# Many at once, in any order.
buffers = []
cookies = []
for i in range(300):
    cookies.append(h.aio_pwrite(nbd.Buffer.from_bytearray(bytearray([i % 251] * 4096)), (1 << 20) + i * 4096))
for cookie in cookies:
    while not h.aio_command_completed(cookie):
        h.poll(-1)
for i in range(300):
    buffer = nbd.Buffer(4096)
    buffers.append(buffer)
    cookies.append(h.aio_pread(buffer, (1 << 20) + i * 4096))
for cookie in cookies[300:]:
    while not h.aio_command_completed(cookie):
        h.poll(-1)
for i, buffer in enumerate(buffers):
    assert buffer.to_bytearray() == bytearray([i % 251] * 4096), i
big = bytes(range(256)) * (32 * 4096)
h.pwrite(big, 0)
assert h.pread(len(big), 0) == big
h.shutdown()
"#;
    let script = script.replace("URI", &format!("{:?}", uri(&place)));
    succeed(python, &["-m", "nbd", "-c", &script]);
    assert!(device.flushes() >= 2);
    let stats = server.stats();
    assert!(stats.batches < stats.writes + stats.zeroes + 20, "{stats:?}");
}

#[test]
fn qemu_img_and_qemu_io_use_the_export_as_a_disk() {
    if !has("qemu-img") || !has("qemu-io") {
        return;
    }
    let place = SocketDirectory::new();
    let (_server, device) = serve(&place, 64 * MIB);
    let target = uri(&place);
    let told = succeed("qemu-img", &["info", "--output=json", &target]);
    assert!(told.contains("\"virtual-size\": 67108864"), "{told}");
    let commands = [
        "write -P 0x5a 0 1M",
        "write -f -P 0x33 1M 64k",
        "write -z -u 2M 1M",
        "write -z 3M 64k",
        "discard 512k 64k",
        "flush",
        "read -P 0x5a 0 512k",
        "read -P 0 512k 64k",
        "read -P 0x33 1M 64k",
        "read -P 0 2M 1M",
    ];
    let mut arguments = vec!["-f", "raw"];
    for command in commands {
        arguments.extend(["-c", command]);
    }
    arguments.push(&target);
    let told = succeed("qemu-io", &arguments);
    assert!(!told.contains("verification failed"), "{told}");
    assert!(device.flushes() >= 2, "FUA and flush arrived");

    let image = place.path("image.qcow2");
    let path = image.to_str().unwrap();
    succeed(
        "qemu-img",
        &["convert", "-f", "raw", "-O", "qcow2", &target, path],
    );
    succeed(
        "qemu-img",
        &["compare", "-f", "raw", "-F", "qcow2", &target, path],
    );
    succeed(
        "qemu-img",
        &["convert", "-n", "-f", "qcow2", "-O", "raw", path, &target],
    );
    succeed(
        "qemu-img",
        &["compare", "-f", "raw", "-F", "qcow2", &target, path],
    );
}

#[test]
fn fio_verifies_what_it_wrote() {
    if !has("fio") {
        return;
    }
    let place = SocketDirectory::new();
    let (_server, device) = serve(&place, 16 * MIB);
    let help = String::from_utf8_lossy(&run("fio", &["--enghelp"]).stdout).into_owned();
    if !help.contains("nbd") {
        return eprintln!("skipped: this fio has no nbd engine");
    }
    let target = format!("--uri={}", uri(&place));
    succeed(
        "fio",
        &[
            "--name=verify",
            "--ioengine=nbd",
            &target,
            "--rw=randwrite",
            "--bsrange=512-128k",
            "--ba=512",
            "--size=16m",
            "--iodepth=16",
            "--fsync=32",
            "--verify=crc32c",
            // Otherwise fio would leave a file in the working directory.
            "--verify_state_save=0",
            "--randseed=7",
        ],
    );
    assert!(device.flushes() > 0);
}

#[test]
fn a_read_only_export_is_read_only_to_clients() {
    let Some(python) = nbd_python() else { return };
    let place = SocketDirectory::new();
    let (server, device) = serve(&place, MIB);
    drop(server);
    let mut config = config(&place, device);
    config.exports[0].read_only = true;
    config.listen.push("tcp://127.0.0.1:0".parse().unwrap());
    assert!(matches!(config.tls, TlsMode::Off));
    let server = NbdServer::start(config).unwrap();
    let tcp = server.addresses()[1].to_string().replace("tcp://", "nbd://");
    let script = format!(
        "h.connect_uri('{tcp}')\nassert h.is_read_only() and not h.can_trim() and not h.can_zero()\n\
         assert h.can_multi_conn()\nassert h.pread(512, 0) == bytes(512)\nh.shutdown()"
    );
    succeed(python, &["-m", "nbd", "-c", &script]);
    assert_eq!(server.stop(), 0);
}
