//! Named clients at a lender: what each may have, how its keys change, and what stays when it is gone.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::common::owner::{OwnerSession, PAGE};
use crate::common::{
    PATIENCE, ReceivedFrame, TestWriter, WINDOW, config, memory_dir, receive, send, status_over, until,
};
use netram_clients::{ClientLimits, ClientRegistry, ClientResource, ClientsFile, change_file};
use netram_lender::{ClientReport, Lender, LenderConfig};
use netram_proto::wire::{Flag, FrameHeader, FrameKind, RefusalReason};
use netram_transport::{ClusterKey, ConnectError, Link, Security, connect};
use tempfile::TempDir;

/// A lender with a file of clients.
struct NamedLender {
    dir: TempDir,
    lender: Option<Lender>,
}

/// A client of the file, with its newest key.
struct NamedClient(Security);

impl NamedLender {
    fn start() -> NamedLender {
        let dir = memory_dir();
        change_file(&file_in(dir.path()), |file| Ok(file.clone())).unwrap();
        let mut lender = NamedLender { dir, lender: None };
        lender.restart();
        lender
    }

    fn file(&self) -> PathBuf {
        file_in(self.dir.path())
    }

    fn lender(&self) -> &Lender {
        self.lender.as_ref().unwrap()
    }

    /// Ends the lender at once, as a kill would, and starts the next one.
    fn restart(&mut self) {
        self.lender = None;
        let clients = ClientRegistry::read(&self.file()).unwrap();
        let config = LenderConfig {
            clients: Some(Arc::new(clients)),
            ..config(&self.dir)
        };
        self.lender = Some(Lender::start(config).unwrap());
    }

    fn change(&self, change: impl FnOnce(&ClientsFile, &ClusterKey) -> ClientsFile) -> NamedClient {
        let mut made = None;
        change_file(&self.file(), |file| {
            let key = file.new_key();
            let changed = change(file, &key);
            made = Some(key);
            Ok(changed)
        })
        .unwrap();
        self.lender().reload_clients().unwrap();
        NamedClient(Security::Key(made.unwrap()))
    }

    fn add(&self, name: &str, limits: &[(ClientResource, u64)]) -> NamedClient {
        let mut given = ClientLimits::default();
        for (resource, limit) in limits {
            given.set(*resource, Some(*limit));
        }
        self.change(|file, key| file.add(name, key, &given).unwrap())
    }

    fn rotate(&self, name: &str) -> NamedClient {
        self.change(|file, key| file.add_key(name, key).unwrap())
    }

    fn remove(&self, name: &str) {
        self.change(|file, _| file.remove(name).unwrap());
    }

    fn try_dial(&self, client: &NamedClient) -> Result<Link, ConnectError> {
        connect(&self.lender().addresses()[0], &client.0, PATIENCE)
    }

    fn dial(&self, client: &NamedClient) -> Link {
        self.try_dial(client).unwrap()
    }

    /// A writer that has bound and fenced its journal.
    fn writer(&self, client: &NamedClient, journal: u128, epoch: u32) -> TestWriter {
        let mut writer = TestWriter::over(self.dial(client), journal, epoch);
        assert_eq!(writer.ask_to_bind().header.kind, FrameKind::Bound);
        assert_eq!(writer.fence().header.kind, FrameKind::Fenced);
        writer
    }

    /// A writer that has joined a window.
    fn joined(&self, client: &NamedClient, journal: u128, epoch: u32) -> TestWriter {
        let mut writer = self.writer(client, journal, epoch);
        assert_eq!(writer.join_window(WINDOW, 1).header.kind, FrameKind::Ack);
        writer
    }

    fn report(&self, name: &str) -> ClientReport {
        let clients = self.lender().report().clients;
        let found = clients.into_iter().find(|client| client.name == name);
        found.unwrap_or_default()
    }
}

fn file_in(dir: &Path) -> PathBuf {
    dir.join("clients")
}

/// The resource and the limit of a refusal.
fn over(answer: &ReceivedFrame) -> Option<(ClientResource, u64)> {
    (answer.refusal() == Some(RefusalReason::OverClientLimit)).then(|| {
        let resource = ClientResource::from_number(answer.header.lsn.0);
        (resource.unwrap(), answer.header.stable.0)
    })
}

fn ask_status(link: &mut Link) -> ReceivedFrame {
    send(link, FrameHeader::new(FrameKind::Status), &[]);
    receive(link).unwrap()
}

#[test]
fn each_client_has_its_rights_and_no_others() {
    use ClientResource::{Connections, Data, Journals, Memory, Pages, Sessions, Status};
    let lender = NamedLender::start();
    let usual = lender.add("usual", &[]);
    let mut link = lender.dial(&usual);
    assert_eq!(ask_status(&mut link).header.kind, FrameKind::Report);
    drop(lender.joined(&usual, 1, 1));

    let bind = |client: &NamedClient| {
        let mut writer = TestWriter::over(lender.dial(client), 5, 1);
        writer.ask_to_bind()
    };
    let no_journals = lender.add("no-journals", &[(Journals, 0)]);
    assert_eq!(over(&bind(&no_journals)), Some((Journals, 0)));
    let no_status = lender.add("no-status", &[(Status, 0)]);
    assert_eq!(over(&ask_status(&mut lender.dial(&no_status))), Some((Status, 0)));
    let mut bound = lender.joined(&no_status, 6, 1);
    assert_eq!(
        over(&ask_status(&mut bound.link)),
        Some((Status, 0)),
        "nor when bound"
    );
    bound.append(b"and its session goes on");
    bound.acked();
    let no_pages = lender.add("no-pages", &[(Pages, 0)]);
    let refused = OwnerSession::over(lender.dial(&no_pages), 7, 1).err().unwrap();
    assert_eq!(over(&refused), Some((Pages, 0)));
    let no_memory = lender.add("no-memory", &[(Memory, 0)]);
    let mut fenced = lender.writer(&no_memory, 8, 1);
    assert_eq!(over(&fenced.join_window(WINDOW, 1)), Some((Memory, 0)));
    // Copies are for those whom the file gives some.
    let inquire = |client: &NamedClient| {
        let mut link = lender.dial(client);
        send(&mut link, FrameHeader::new(FrameKind::Inquire), &[]);
        receive(&mut link).unwrap()
    };
    assert_eq!(over(&inquire(&usual)), Some((Data, 0)));
    let backup = lender.add("backup", &[(Data, 1 << 30)]);
    assert_eq!(
        inquire(&backup).refusal(),
        Some(RefusalReason::NoReplica),
        "this lender has none"
    );

    let one_session = lender.add("one-session", &[(Sessions, 1)]);
    let first = lender.writer(&one_session, 9, 1);
    assert_eq!(over(&bind(&one_session)), Some((Sessions, 1)));
    let mut asks = lender.dial(&one_session);
    assert_eq!(ask_status(&mut asks).header.kind, FrameKind::Report, "no session");
    drop(first);
    until("the session is given back", || {
        bind(&one_session).header.kind == FrameKind::Bound
    });

    let one_connection = lender.add("one-connection", &[(Connections, 1)]);
    let first = lender.writer(&one_connection, 10, 1);
    assert_eq!(over(&bind(&one_connection)), Some((Connections, 1)));
    drop(first);
    until("the connection is given back", || {
        bind(&one_connection).header.kind == FrameKind::Bound
    });
}

#[test]
fn memory_and_journals_count_by_name_and_do_so_after_a_restart() {
    let mut lender = NamedLender::start();
    let limits = [
        (ClientResource::Memory, 2 * WINDOW),
        (ClientResource::Journals, 3),
    ];
    let greedy = lender.add("greedy", &limits);
    let other = lender.add("other", &[]);
    let first = lender.joined(&greedy, 1, 1);
    let _second = lender.joined(&greedy, 2, 1);
    let mut third = lender.writer(&greedy, 3, 1);
    let refused = third.join_window(WINDOW, 1);
    assert_eq!(over(&refused), Some((ClientResource::Memory, 2 * WINDOW)));
    let mut fourth = TestWriter::over(lender.dial(&greedy), 4, 1);
    assert_eq!(over(&fourth.ask_to_bind()), Some((ClientResource::Journals, 3)));
    let _others = lender.joined(&other, 5, 1);
    let report = lender.report("greedy");
    assert_eq!(
        (report.memory.used, report.memory.limit),
        (2 * WINDOW, Some(2 * WINDOW))
    );
    assert_eq!((report.journals.used, report.sessions.used), (3, 3));

    lender.restart();
    let kept = lender.report("greedy");
    assert_eq!(
        (kept.memory.used, kept.journals.used),
        (2 * WINDOW, 2),
        "after a restart; the third never had a window, and makes room"
    );
    assert_eq!((kept.sessions.used, kept.connections.used), (0, 0));
    let names = lender.lender().report().journals;
    assert!(names.iter().any(|journal| journal.client == "other"));
    let mut third = lender.writer(&greedy, 3, 2);
    assert!(over(&third.join_window(WINDOW, 1)).is_some());
    // A window that is released makes room.
    let mut first = TestWriter {
        link: lender.dial(&greedy),
        ..first
    };
    assert_eq!(first.ask_to_bind().header.kind, FrameKind::Bound);
    let mut leave = first.header(FrameKind::Leave);
    leave.flags = Flag::CLOSED_CLEAN;
    (leave.lsn.0, leave.mark) = (1, 1);
    assert_eq!(first.ask(leave, &[]).header.kind, FrameKind::LeaveAck);
    assert_eq!(third.join_window(WINDOW, 1).header.kind, FrameKind::Ack);
}

#[test]
fn whoever_joins_a_journal_pays_for_it_from_then_on() {
    let lender = NamedLender::start();
    let old = lender.add("old", &[]);
    let new = lender.add("new", &[]);
    let writer = lender.joined(&old, 1, 1);
    assert_eq!(lender.report("old").memory.used, WINDOW);
    let _successor = lender.joined(&new, 1, 2);
    assert_eq!(
        (lender.report("old").memory.used, lender.report("new").memory.used),
        (0, WINDOW)
    );
    assert_eq!(
        (
            lender.report("old").journals.used,
            lender.report("new").journals.used
        ),
        (0, 1)
    );
    drop(writer);
}

#[test]
fn pages_count_by_name() {
    let lender = NamedLender::start();
    let limited = lender.add("limited", &[(ClientResource::Pages, 64 * 1024)]);
    let mut owner = OwnerSession::over(lender.dial(&limited), 1, 1).unwrap();
    let slots = (64 * 1024 / PAGE) as u32;
    let refused = owner.resize(slots + 1);
    assert_eq!(refused.refusal(), Some(RefusalReason::NoRoom));
    assert_eq!(owner.resize(slots).header.kind, FrameKind::DepositAck);
    let mut second = OwnerSession::over(lender.dial(&limited), 2, 1).unwrap();
    assert_eq!(second.resize(1).refusal(), Some(RefusalReason::NoRoom));
    assert_eq!(lender.report("limited").pages.used, 64 * 1024);
    assert_eq!(owner.resize(0).header.kind, FrameKind::DepositAck);
    assert_eq!(second.resize(1).header.kind, FrameKind::DepositAck);
}

#[test]
fn a_revoked_client_is_dropped_its_window_is_kept_and_others_go_on() {
    let lender = NamedLender::start();
    let (bad, good) = (lender.add("bad", &[]), lender.add("good", &[]));
    let mut revoked = lender.joined(&bad, 1, 1);
    let kept = revoked.append(b"committed before");
    revoked.acked();
    let mut deposit = OwnerSession::over(lender.dial(&bad), 2, 1).unwrap();
    let mut idle = lender.dial(&bad);
    ask_status(&mut idle);
    let mut honest = lender.joined(&good, 3, 1);
    lender.remove("bad");
    for link in [&mut revoked.link, &mut deposit.link, &mut idle] {
        until("a revoked client is dropped", || link.receive().is_err());
    }
    let refused = lender.try_dial(&bad);
    assert!(matches!(refused, Err(ConnectError::WrongKey)), "{refused:?}");
    for _ in 0..100 {
        honest.append(b"not interrupted");
        honest.acked();
    }
    // The journal's owner comes back under another name, and finds what was committed.
    let mut owner = lender.writer(&good, 1, 2);
    assert_eq!(owner.read(crate::common::START, kept.len()), kept);
}

#[test]
fn both_keys_of_a_client_are_valid_until_the_old_one_is_removed() {
    let lender = NamedLender::start();
    let old = lender.add("db", &[]);
    let mut before = lender.joined(&old, 1, 1);
    let new = lender.rotate("db");
    let mut after = lender.joined(&new, 2, 1);
    for _ in 0..100 {
        for writer in [&mut before, &mut after] {
            writer.append(b"both are valid");
            writer.acked();
        }
    }
    drop(lender.dial(&old));
    lender.change(|file, _| file.remove_old_key("db").unwrap());
    until("the old key's link ends", || before.link.receive().is_err());
    assert!(matches!(lender.try_dial(&old), Err(ConnectError::WrongKey)));
    after.append(b"the new one goes on");
    after.acked();
    assert_eq!(lender.report("db").journals.used, 2, "its windows stay");
}

#[test]
fn a_file_that_cannot_be_used_changes_nothing() {
    let lender = NamedLender::start();
    let client = lender.add("db", &[]);
    let mut writer = lender.joined(&client, 1, 1);
    let text = std::fs::read_to_string(lender.file()).unwrap();
    for broken in [
        text.replace("key", "kee"),
        format!("{text}{text}"),
        format!("{text}root = yes\n"),
    ] {
        std::fs::write(lender.file(), broken).unwrap();
        lender.lender().reload_clients().unwrap_err();
        writer.append(b"goes on");
        writer.acked();
        drop(lender.dial(&client));
    }
    assert_eq!(status_over(&mut lender.dial(&client)).clients.len(), 1);
}
