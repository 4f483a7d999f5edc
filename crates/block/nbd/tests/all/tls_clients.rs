//! Which clients a server with TLS serves: by their names, and by what their authority has revoked, also
//! while they have a session.

use std::fs;
use std::io::{Read, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use netram_nbd::{MemoryDevice, NbdExport, NbdServer, NbdStartError, TlsError, TlsFiles, TlsKeys, TlsMode};
use rcgen::{
    BasicConstraints, CertificateParams, CertificateRevocationListParams, DnType, ExtendedKeyUsagePurpose,
    IsCa, Issuer, KeyIdMethod, KeyPair, KeyUsagePurpose, RevokedCertParams, SerialNumber,
};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::{ClientConfig, ClientConnection, RootCertStore, StreamOwned};

use crate::common::*;

const EXPORTS: [&str; 2] = ["db", "logs"];
const OPTION_EXPORT_NAME: u32 = 1;
const OPTION_LIST: u32 = 3;
const OPTION_STARTTLS: u32 = 5;

/// An authority, with the directory of the server's files and the clients' certificates.
struct Authority {
    issuer: Issuer<'static, KeyPair>,
    pki: PathBuf,
}

impl Authority {
    fn new(pki: PathBuf) -> Authority {
        fs::create_dir_all(&pki).unwrap();
        let mut params = CertificateParams::new(vec![]).unwrap();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
        let key = KeyPair::generate().unwrap();
        fs::write(pki.join("ca-cert.pem"), params.self_signed(&key).unwrap().pem()).unwrap();
        let authority = Authority {
            issuer: Issuer::new(params, key),
            pki,
        };
        authority.sign("server", 1, &["localhost"], None);
        authority
    }

    /// Signs a certificate with this serial number, these DNS names and this common name.
    fn sign(&self, file: &str, serial: u64, names: &[&str], common: Option<&str>) {
        let names: Vec<String> = names.iter().map(|name| (*name).to_owned()).collect();
        let mut params = CertificateParams::new(names).unwrap();
        params.serial_number = Some(SerialNumber::from(serial));
        params.distinguished_name = rcgen::DistinguishedName::new();
        if let Some(common) = common {
            params.distinguished_name.push(DnType::CommonName, common);
        }
        params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        let server = ExtendedKeyUsagePurpose::ServerAuth;
        params.extended_key_usages = vec![server, ExtendedKeyUsagePurpose::ClientAuth];
        let key = KeyPair::generate().unwrap();
        let certificate = params.signed_by(&key, &self.issuer).unwrap();
        let path = |end: &str| self.pki.join(format!("{file}-{end}.pem"));
        fs::write(path("cert"), certificate.pem()).unwrap();
        fs::write(path("key"), key.serialize_pem()).unwrap();
        fs::set_permissions(path("key"), fs::Permissions::from_mode(0o600)).unwrap();
    }

    /// Writes the list of revoked certificates.
    fn revoke(&self, serials: &[u64]) {
        let day = |day| rcgen::date_time_ymd(2024, 1, day);
        let revoked = serials.iter().map(|serial| RevokedCertParams {
            serial_number: SerialNumber::from(*serial),
            revocation_time: day(1),
            reason_code: None,
            invalidity_date: None,
        });
        let list = CertificateRevocationListParams {
            this_update: day(2),
            next_update: rcgen::date_time_ymd(2124, 1, 1),
            crl_number: SerialNumber::from(1_u64),
            issuing_distribution_point: None,
            revoked_certs: revoked.collect(),
            key_identifier_method: KeyIdMethod::Sha256,
        };
        let list = list.signed_by(&self.issuer).unwrap();
        fs::write(self.files().revoked, list.pem().unwrap()).unwrap();
    }

    fn allow(&self, text: &str) {
        fs::write(self.pki.join("clients"), text).unwrap();
    }

    fn files(&self) -> TlsFiles {
        let clients = self.pki.join("clients");
        TlsFiles {
            clients: clients.exists().then_some(clients),
            ..TlsFiles::in_directory(&self.pki)
        }
    }

    fn keys(&self) -> TlsKeys {
        TlsKeys::load(&self.files()).unwrap()
    }

    /// A server of two exports.
    fn serve(&self, place: &SocketDirectory) -> NbdServer {
        let mut config = config(place, Arc::new(MemoryDevice::new(4096)));
        config.exports = EXPORTS
            .map(|name| NbdExport {
                name: name.to_owned(),
                description: String::new(),
                device: Arc::new(MemoryDevice::new(1 << 20)),
                read_only: false,
            })
            .into();
        config.tls = TlsMode::Require(self.keys());
        NbdServer::start(config).unwrap()
    }

    /// A client with the certificate in this file, behind the TLS handshake; `None` if the server ends it.
    fn connect(&self, file: &str, socket: &Path) -> Option<TlsClient> {
        let mut roots = RootCertStore::empty();
        roots
            .add(CertificateDer::from_pem_file(self.pki.join("ca-cert.pem")).unwrap())
            .unwrap();
        let certificate = CertificateDer::from_pem_file(self.pki.join(format!("{file}-cert.pem"))).unwrap();
        let key = PrivateKeyDer::from_pem_file(self.pki.join(format!("{file}-key.pem"))).unwrap();
        let config = ClientConfig::builder()
            .with_root_certificates(roots)
            .with_client_auth_cert(vec![certificate], key)
            .unwrap();
        let mut client = Client::connect(socket);
        client.send(&3_u32.to_be_bytes());
        client.send(&option(OPTION_STARTTLS, b""));
        assert_eq!(
            client.take(20)[12..16],
            1_u32.to_be_bytes(),
            "the server has certificates"
        );
        let name = ServerName::try_from("localhost").unwrap();
        let tls = ClientConnection::new(Arc::new(config), name).unwrap();
        let mut client = TlsClient(StreamOwned::new(tls, client.stream));
        // In TLS 1.3 a refused client learns it with the first answer.
        client.list().map(|_| client)
    }
}

struct TlsClient(StreamOwned<ClientConnection, std::os::unix::net::UnixStream>);

impl TlsClient {
    fn take<const N: usize>(&mut self) -> Option<[u8; N]> {
        let mut bytes = [0; N];
        self.0.read_exact(&mut bytes).ok()?;
        Some(bytes)
    }

    /// Names of the exports that exist for the client.
    fn list(&mut self) -> Option<Vec<String>> {
        self.0.write_all(&option(OPTION_LIST, b"")).ok()?;
        let mut names = Vec::new();
        loop {
            let head: [u8; 20] = self.take()?;
            let length = u32::from_be_bytes(head[16..].try_into().unwrap());
            let mut data = vec![0; length as usize];
            self.0.read_exact(&mut data).ok()?;
            match u32::from_be_bytes(head[12..16].try_into().unwrap()) {
                1 => return Some(names),
                2 => names.push(String::from_utf8(data[4..].to_vec()).unwrap()),
                other => panic!("reply {other:#x}"),
            }
        }
    }

    /// Chooses an export; whether the server agrees.
    fn choose(&mut self, export: &str) -> bool {
        let sent = self.0.write_all(&option(OPTION_EXPORT_NAME, export.as_bytes()));
        sent.is_ok() && self.take::<10>().is_some()
    }

    /// Whether a read is answered.
    fn reads(&mut self) -> bool {
        let sent = self.0.write_all(&request(0, 0, 7, 0, 512));
        sent.is_ok() && self.take::<{ 16 + 512 }>().is_some()
    }

    fn is_ended(&mut self) -> bool {
        self.take::<1>().is_none()
    }
}

#[test]
fn a_certificate_opens_only_the_exports_of_its_names() {
    let place = SocketDirectory::new();
    let authority = Authority::new(place.path("pki"));
    authority.sign("by-dns", 2, &["db1.example.org"], Some("somebody"));
    authority.sign("by-common-name", 3, &["elsewhere.example.org"], Some("backup"));
    authority.sign("unknown", 4, &["db2.example.org"], Some("db"));
    let server = authority.serve(&place);
    let opened = |file: &str| {
        let listed = authority.connect(file, &place.socket()).unwrap().list().unwrap();
        for export in EXPORTS {
            let mut client = authority.connect(file, &place.socket()).unwrap();
            let is_listed = listed.iter().any(|name| name == export);
            assert_eq!(
                client.choose(export) && client.reads(),
                is_listed,
                "{file} {export}"
            );
        }
        listed
    };
    assert_eq!(
        opened("unknown"),
        EXPORTS,
        "without a list of names every certificate opens all"
    );
    assert_eq!(server.stop(), 0);
    authority.allow("db1.example.org db\nbackup logs\n");
    let server = authority.serve(&place);
    assert_eq!(opened("by-dns"), ["db"]);
    assert_eq!(opened("by-common-name"), ["logs"]);
    assert_eq!(opened("unknown"), [""; 0]);
    // The empty name is the first export that the client may open.
    let mut client = authority.connect("by-common-name", &place.socket()).unwrap();
    assert!(client.choose("") && client.reads());
    let mut client = authority.connect("unknown", &place.socket()).unwrap();
    assert!(!client.choose(""));
    drop(client);
    assert_eq!(server.stop(), 0);
}

#[test]
fn a_reload_ends_the_sessions_of_revoked_clients_and_no_others() {
    let place = SocketDirectory::new();
    let authority = Authority::new(place.path("pki"));
    for (serial, name) in [(2, "one"), (3, "two"), (4, "three")] {
        authority.sign(name, serial, &[&format!("{name}.example.org")], None);
    }
    authority.allow("one.example.org db\ntwo.example.org db\nthree.example.org db logs\n");
    let server = authority.serve(&place);
    let [mut one, mut two, mut three] = ["one", "two", "three"].map(|name| {
        let mut client = authority.connect(name, &place.socket()).unwrap();
        assert!(client.choose("db") && client.reads(), "{name}");
        client
    });
    // Another certificate of the server's, too.
    authority.sign("server", 9, &["localhost"], None);
    assert_eq!(server.reload(authority.keys()).unwrap(), 0);
    assert!(one.reads() && two.reads() && three.reads());
    authority.revoke(&[2]);
    authority.allow("one.example.org db\ntwo.example.org db\nthree.example.org logs\n");
    assert_eq!(server.reload(authority.keys()).unwrap(), 2);
    assert!(one.is_ended(), "its certificate is revoked");
    assert!(three.is_ended(), "its certificate opens another export");
    assert!(two.reads(), "it is as valid as it was");
    assert!(authority.connect("one", &place.socket()).is_none());
    let mut again = authority.connect("three", &place.socket()).unwrap();
    assert!(!again.choose("db"));
    assert!(
        authority
            .connect("three", &place.socket())
            .unwrap()
            .choose("logs")
    );
    drop((two, again));
    assert_eq!(server.stop(), 0);
}

#[test]
fn libnbd_opens_only_the_export_of_its_certificate_and_nothing_once_that_is_revoked() {
    let Some(python) = nbd_python() else { return };
    let place = SocketDirectory::new();
    let authority = Authority::new(place.path("pki"));
    authority.sign("client", 2, &["db1.example.org"], None);
    authority.allow("db1.example.org logs\n");
    let server = authority.serve(&place);
    let open = |export: &str| {
        let script = format!(
            "h.set_tls(nbd.TLS_REQUIRE)\nh.set_tls_certificates('{}')\nh.set_export_name('{export}')\nh.connect_unix('{}')\nh.pread(512, 0)\nh.shutdown()",
            authority.pki.display(),
            place.socket().display(),
        );
        run(python, &["-m", "nbd", "-c", &script])
    };
    let opened = open("logs");
    assert!(
        opened.status.success(),
        "{}",
        String::from_utf8_lossy(&opened.stderr)
    );
    assert!(!open("db").status.success(), "another export was opened");
    authority.revoke(&[2]);
    server.reload(authority.keys()).unwrap();
    assert!(!open("logs").status.success(), "a revoked certificate was taken");
    assert_eq!(server.stop(), 0);
}

/// A file that is being replaced, or was deleted by mistake, must not bring every revoked client back.
#[test]
fn a_reload_that_would_forget_revocations_is_refused() {
    let place = SocketDirectory::new();
    let authority = Authority::new(place.path("pki"));
    authority.sign("one", 2, &["one.example.org"], None);
    authority.revoke(&[2]);
    let server = authority.serve(&place);
    let list = authority.files().revoked;
    fs::remove_file(&list).unwrap();
    let refused = server.reload(authority.keys()).unwrap_err();
    assert!(
        matches!(&refused, TlsError::NotRevoked { path } if *path == list),
        "{refused}"
    );
    fs::write(&list, "").unwrap();
    let refused = TlsKeys::load(&authority.files()).unwrap_err();
    assert!(matches!(&refused, TlsError::NotRevoked { .. }), "{refused}");
    assert!(authority.connect("one", &place.socket()).is_none());
    authority.revoke(&[]);
    assert_eq!(server.reload(authority.keys()).unwrap(), 0);
    assert!(authority.connect("one", &place.socket()).is_some());
    assert_eq!(server.stop(), 0);
}

#[test]
fn a_list_of_names_that_others_can_change_or_that_unencrypted_clients_pass_is_refused() {
    let place = SocketDirectory::new();
    let authority = Authority::new(place.path("pki"));
    authority.allow("one.example.org db\n");
    let mut config = config(&place, Arc::new(MemoryDevice::new(4096)));
    config.tls = TlsMode::On(authority.keys());
    let refused = NbdServer::start(config).err().expect("refused");
    assert!(matches!(&refused, NbdStartError::Config(why) if why.contains("require TLS")));
    let clients = authority.files().clients.unwrap();
    fs::set_permissions(&clients, fs::Permissions::from_mode(0o666)).unwrap();
    let refused = TlsKeys::load(&authority.files()).unwrap_err();
    assert!(refused.to_string().contains("mode 0666"), "{refused}");
}
