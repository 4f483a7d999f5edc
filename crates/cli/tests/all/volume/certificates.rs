//! `netram volume serve --tls`: certificates are read again on SIGHUP, and its memory is hidden.

use std::fs;
use std::io::{BufRead, BufReader};
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown};
use std::path::Path;
use std::process::{Command, Stdio};

use rustix::process::{Pid, Signal, kill_process};

use crate::common::{finish, netram, program, start};
use crate::volume::{Started, VolumeFixture, skipped, tool, until};

/// Makes an authority, and certificates for the server and a client, with this host's openssl.
fn make_certificates(pki: &Path) -> Result<(), String> {
    fs::create_dir(pki).unwrap();
    let script = "
        new='openssl req -newkey rsa:2048 -nodes'
        $new -x509 -subj /CN=authority -days 30 -keyout ca-key.pem -out ca-cert.pem
        for name in server client; do
            $new -subj /CN=$name -keyout $name-key.pem -out $name.csr
            echo 'subjectAltName=DNS:localhost' > $name.ext
            openssl x509 -req -in $name.csr -days 30 -CA ca-cert.pem -CAkey ca-key.pem -CAcreateserial \\
                -extfile $name.ext -out $name-cert.pem
        done
        printf '[ca]\\ndefault_ca=it\\n[it]\\ndatabase=index\\ndefault_md=sha256\\ndefault_crl_days=30\\ncrlnumber=number\\n' > ca.conf
        touch index
        echo 01 > number
        chmod 600 *-key.pem";
    let script = format!("cd {} && {{ {script}\n}}", pki.display());
    tool("sh", &["-euc", &script])
}

/// Revokes the client's certificate.
fn revoke(pki: &Path) {
    let ca = "openssl ca -config ca.conf -cert ca-cert.pem -keyfile ca-key.pem";
    let script = format!(
        "cd {} && {ca} -revoke client-cert.pem && {ca} -gencrl -out ca-crl.pem",
        pki.display()
    );
    tool("sh", &["-euc", &script]).unwrap();
}

#[test]
fn a_revoked_client_is_refused_after_a_hangup_and_the_server_serves_on() {
    const NAME: &str = "a_revoked_client_is_refused_after_a_hangup_and_the_server_serves_on";
    let place = VolumeFixture::new();
    let pki = place.path("pki");
    if let Err(missing) = tool("nbdinfo", &["--version"]).and_then(|()| make_certificates(&pki)) {
        return skipped(NAME, &missing);
    }
    place.json(&["create", "db", "--size", "1MiB", "--journal-size", "4MiB"]);
    let (socket, log) = (place.path("socket"), place.path("log"));
    fs::write(place.path("clients"), "client db\n").unwrap();
    let mut command = netram();
    command.args([
        "volume",
        "serve",
        "db",
        "--tls",
        "pki",
        "--tls-clients",
        "clients",
    ]);
    command.args(["--listen", &format!("unix:{}", socket.display())]);
    command
        .current_dir(place.directory.path())
        .stderr(fs::File::create(&log).unwrap());
    let mut server = Started(start(command.stdout(Stdio::piped())));
    let mut lines = BufReader::new(server.0.stdout.take().unwrap()).lines();
    assert!(
        lines.any(|line| line.unwrap() == "ready"),
        "it ended before it was ready"
    );
    let uri = |export: &str| {
        format!(
            "nbds+unix:///{export}?socket={}&tls-certificates={}",
            socket.display(),
            pki.display()
        )
    };
    let opens = |export: &str| tool("nbdinfo", &["--size", &uri(export)]);
    opens("db").unwrap();
    opens("other").unwrap_err();
    let log_has = |text: &str| fs::read_to_string(&log).unwrap().contains(text);
    let hang_up = || kill_process(Pid::from_child(&server.0), Signal::HUP).unwrap();
    fs::write(place.path("clients"), "client\n").unwrap();
    hang_up();
    until("the list without an export is refused", || {
        log_has("the former ones stay in use")
    });
    opens("db").unwrap();
    fs::write(place.path("clients"), "client db\n").unwrap();
    revoke(&pki);
    hang_up();
    until("the certificates are read again", || opens("db").is_err());
    kill_process(Pid::from_child(&server.0), Signal::TERM).unwrap();
    assert!(server.0.wait().unwrap().success());
}

/// The kernel shows the memory of a process that cannot be dumped as root's, to its own user too.
#[test]
fn the_memory_of_a_users_server_is_not_that_users_to_read() {
    const NAME: &str = "the_memory_of_a_users_server_is_not_that_users_to_read";
    const USER: u32 = 12_345;
    let place = VolumeFixture::new();
    let home = place.path("home");
    fs::set_permissions(place.directory.path(), fs::Permissions::from_mode(0o755)).unwrap();
    fs::create_dir(&home).unwrap();
    let user = USER.to_string();
    let mut as_user = Command::new("setpriv");
    as_user.args([
        "--reuid",
        &user,
        "--regid",
        &user,
        "--clear-groups",
        "--no-new-privs",
    ]);
    if chown(&home, Some(USER), Some(USER)).is_err()
        || finish(as_user.args([program(), "--version"])).code != 0
    {
        return skipped(NAME, "only root can be a user, by setpriv");
    }
    let ran = |words: &[&str]| {
        let mut command = Command::new("setpriv");
        command.args([
            "--reuid",
            &user,
            "--regid",
            &user,
            "--clear-groups",
            program(),
            "volume",
        ]);
        command.args(words).current_dir(&home);
        command
    };
    let created = finish(&mut ran(&[
        "create",
        "db",
        "--size",
        "1MiB",
        "--journal-size",
        "4MiB",
    ]));
    assert_eq!(created.code, 0, "{}", created.err);
    let address = format!("unix:{}", home.join("socket").display());
    let mut server = Started(start(
        ran(&["serve", "db", "--listen", &address]).stdout(Stdio::piped()),
    ));
    let mut lines = BufReader::new(server.0.stdout.take().unwrap()).lines();
    assert!(
        lines.any(|line| line.unwrap() == "ready"),
        "it ended before it was ready"
    );
    let memory = fs::metadata(format!("/proc/{}/mem", server.0.id())).unwrap();
    assert_eq!(memory.uid(), 0);
}
