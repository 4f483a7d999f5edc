//! Encrypted connections, with certificates created for each test, driven by libnbd.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::sync::Arc;

use crate::common::*;
use netram_nbd::{MemoryDevice, NbdServer, NbdStartError, TlsError, TlsFiles, TlsKeys, TlsMode};
use rcgen::{
    BasicConstraints, CertificateParams, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair, KeyUsagePurpose,
};

/// Creates an authority, and certificates that it signed for a server and a client, in the files that libnbd
/// and nbdkit expect.
fn make_certificates(directory: &Path) {
    fs::create_dir_all(directory).unwrap();
    let write = |name: &str, text: String| {
        fs::write(directory.join(name), text).unwrap();
        fs::set_permissions(directory.join(name), fs::Permissions::from_mode(0o600)).unwrap();
    };
    let mut params = CertificateParams::new(vec![]).unwrap();
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::DigitalSignature];
    let key = KeyPair::generate().unwrap();
    write("ca-cert.pem", params.self_signed(&key).unwrap().pem());
    let authority = Issuer::new(params, key);
    for (name, usage) in [
        ("server", ExtendedKeyUsagePurpose::ServerAuth),
        ("client", ExtendedKeyUsagePurpose::ClientAuth),
    ] {
        let key = KeyPair::generate().unwrap();
        let mut params = CertificateParams::new(vec!["localhost".into(), "127.0.0.1".into()]).unwrap();
        params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        params.extended_key_usages = vec![usage];
        write(
            &format!("{name}-cert.pem"),
            params.signed_by(&key, &authority).unwrap().pem(),
        );
        write(&format!("{name}-key.pem"), key.serialize_pem());
    }
}

fn keys(directory: &Path) -> TlsKeys {
    make_certificates(directory);
    TlsKeys::load(&TlsFiles::in_directory(directory)).unwrap()
}

fn serve_with(place: &SocketDirectory, tls: TlsMode) -> NbdServer {
    let mut config = config(place, Arc::new(MemoryDevice::new(8 << 20)));
    config.tls = tls;
    NbdServer::start(config).unwrap()
}

#[test]
fn a_server_that_requires_tls_refuses_everything_unencrypted() {
    let place = SocketDirectory::new();
    let server = serve_with(&place, TlsMode::Require(keys(&place.path("pki"))));
    let mut client = Client::connect(&place.socket());
    client.send(&3_u32.to_be_bytes());
    client.send(&option(3, b""));
    let reply = client.take(20);
    assert_eq!(reply[12..16], 0x8000_0005_u32.to_be_bytes());
    let mut old = Client::connect(&place.socket());
    old.send(&3_u32.to_be_bytes());
    old.send(&option(1, b""));
    assert!(old.is_closed());
    drop((client, old));
    assert_eq!(server.stop(), 0);
}

#[test]
fn unencrypted_bytes_behind_starttls_end_the_connection() {
    let place = SocketDirectory::new();
    let _server = serve_with(&place, TlsMode::On(keys(&place.path("pki"))));
    let mut client = Client::connect(&place.socket());
    let mut bytes = 3_u32.to_be_bytes().to_vec();
    bytes.extend(option(5, b""));
    bytes.extend(option(7, b"\0\0\0\0\0\0"));
    client.send(&bytes);
    assert!(client.is_closed());
}

#[test]
fn bytes_that_are_not_tls_after_starttls_end_the_connection() {
    let place = SocketDirectory::new();
    let server = serve_with(&place, TlsMode::On(keys(&place.path("pki"))));
    let mut client = Client::connect(&place.socket());
    client.send(&3_u32.to_be_bytes());
    client.send(&option(5, b""));
    client.take(20);
    client.send(&pattern(1, 500));
    wait_until("the client is refused", || server.stats().rejected == 1);
}

#[test]
fn libnbd_reads_and_writes_through_tls() {
    let Some(python) = nbd_python() else { return };
    let place = SocketDirectory::new();
    let pki = place.path("pki");
    for policy in [TlsMode::On, TlsMode::Require] {
        let server = serve_with(&place, policy(keys(&pki)));
        let script = format!(
            r#"
h.set_tls(nbd.TLS_REQUIRE)
h.set_tls_certificates("{pki}")
h.add_meta_context(nbd.CONTEXT_BASE_ALLOCATION)
h.connect_unix("{socket}")
assert h.get_tls_negotiated() and h.get_structured_replies_negotiated()
data = bytes(range(256)) * 8192
h.pwrite(data, 4096)
h.flush()
assert h.pread(len(data), 4096) == data
for i in range(200):
    h.pwrite(data[:512], i * 512, nbd.CMD_FLAG_FUA)
assert h.pread(512, 199 * 512) == data[:512]
h.shutdown()
"#,
            pki = pki.display(),
            socket = place.socket().display(),
        );
        succeed(python, &["-m", "nbd", "-c", &script]);
        assert_eq!(server.stop(), 0);
    }
}

#[test]
fn a_client_with_a_certificate_of_another_authority_is_refused() {
    let Some(python) = nbd_python() else { return };
    let place = SocketDirectory::new();
    let server = serve_with(&place, TlsMode::Require(keys(&place.path("pki"))));
    // A client of another authority, which trusts our server.
    let other = place.path("other");
    make_certificates(&other);
    fs::copy(place.path("pki").join("ca-cert.pem"), other.join("ca-cert.pem")).unwrap();
    let script = format!(
        "h.set_tls(nbd.TLS_REQUIRE)\nh.set_tls_certificates('{}')\nh.connect_unix('{}')\nh.pread(512, 0)",
        other.display(),
        place.socket().display(),
    );
    let output = run(python, &["-m", "nbd", "-c", &script]);
    assert!(!output.status.success(), "the client was accepted");
    wait_until("the client is refused", || server.stats().rejected == 1);
    assert_eq!(server.stats().sessions, 0);
}

#[test]
fn other_machines_are_served_only_encrypted_or_with_the_insecure_setting() {
    let place = SocketDirectory::new();
    let pki = keys(&place.path("pki"));
    let start = |tls: TlsMode, insecure: bool| {
        let mut config = config(&place, Arc::new(MemoryDevice::new(4096)));
        config.listen = vec!["tcp://0.0.0.0:0".parse().unwrap()];
        config.tls = tls;
        config.insecure = insecure;
        NbdServer::start(config)
    };
    for tls in [TlsMode::Off, TlsMode::On(pki.clone())] {
        let refused = start(tls, false).err().expect("refused");
        assert!(
            matches!(refused, NbdStartError::InsecureRefused { .. }),
            "{refused}"
        );
    }
    assert!(start(TlsMode::Require(pki), false).is_ok());
    assert!(start(TlsMode::Off, true).is_ok());
}

#[test]
fn unusable_certificates_are_named_in_the_error() {
    let place = SocketDirectory::new();
    let pki = place.path("pki");
    make_certificates(&pki);
    let files = TlsFiles::in_directory(&pki);
    fs::write(&files.authority, "").unwrap();
    let refused = TlsKeys::load(&files).expect_err("refused");
    assert!(
        matches!(&refused, TlsError::Empty { path } if *path == files.authority),
        "{refused}"
    );
    make_certificates(&pki);
    fs::remove_file(&files.key).unwrap();
    let refused = TlsKeys::load(&files).expect_err("refused");
    assert!(
        matches!(&refused, TlsError::Unreadable { path, .. } if *path == files.key),
        "{refused}"
    );
    make_certificates(&pki);
    fs::copy(pki.join("client-key.pem"), &files.key).unwrap();
    let refused = TlsKeys::load(&files).expect_err("the key belongs to another certificate");
    assert!(matches!(refused, TlsError::Unusable(_)), "{refused}");
}

#[test]
fn a_private_key_that_others_can_read_is_refused_with_the_remedy() {
    let place = SocketDirectory::new();
    let pki = place.path("pki");
    make_certificates(&pki);
    let files = TlsFiles::in_directory(&pki);
    fs::set_permissions(&files.key, fs::Permissions::from_mode(0o644)).unwrap();
    let refused = TlsKeys::load(&files).expect_err("refused");
    assert!(matches!(&refused, TlsError::Exposed { path, .. } if *path == files.key));
    assert!(refused.to_string().contains("chmod 600"), "{refused}");
}
