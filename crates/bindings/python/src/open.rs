//! `open` and `create`: from Python's arguments to an open log.

use std::path::{Path, PathBuf};
use std::sync::{Mutex, mpsc};
use std::time::Duration;

use netram_store::{JournalLayout, OpenStore, Store, StoreSettings};
use netram_transport::{KeyError, Security, SecurityError};
use pyo3::exceptions::{PyTypeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::{PyInt, PyString};

use crate::error;
use crate::locks::lock;
use crate::open_log::StoreLog;
use crate::report::Recovered;
use crate::size::SizeArgument;
use crate::store::PyStore;

/// Default length of a new log: truncation then runs about every 32 MiB of commits.
const LOG_BYTES_DEFAULT: u64 = 64 << 20;
/// Interval at which an opening that waits for lenders checks for Ctrl-C.
const SIGNALS_EVERY: Duration = Duration::from_millis(50);

/// Settings given by the caller instead of the settings file and the environment.
#[derive(Default)]
struct OpenArguments {
    lenders: Option<Vec<String>>,
    key_file: Option<PathBuf>,
    insecure: Option<bool>,
    members: Option<usize>,
    members_min: Option<usize>,
    rule: Option<String>,
    domain: Option<String>,
    one_domain: Option<bool>,
    wait: Option<String>,
    window: Option<SizeArgument>,
    truncation_threshold: Option<u8>,
    spool: Option<SizeArgument>,
    accept_loss: Option<bool>,
    adopt_segments: Option<bool>,
}

/// A commit rule from Python, as text: users write both rule=1 and rule="all".
pub(crate) struct RuleArgument(String);

impl<'py> FromPyObject<'_, 'py> for RuleArgument {
    type Error = PyErr;

    fn extract(value: Borrowed<'_, 'py, PyAny>) -> PyResult<RuleArgument> {
        match value.is_instance_of::<PyInt>() || value.is_instance_of::<PyString>() {
            true => Ok(RuleArgument(value.str()?.to_str()?.to_owned())),
            false => Err(PyTypeError::new_err(
                "a commit rule is \"all\", \"any\" or a number of copies",
            )),
        }
    }
}

impl OpenArguments {
    /// The settings, overridden by the arguments.
    fn over(self, mut settings: StoreSettings) -> PyResult<StoreSettings> {
        if let Some(lenders) = self.lenders {
            let addresses = lenders.iter().map(|lender| parse("lenders", lender));
            settings.lenders = addresses.collect::<PyResult<_>>()?;
        }
        match (self.key_file, self.insecure) {
            (Some(_), Some(true)) => {
                return Err(PyValueError::new_err(
                    "insecure=True contradicts key_file; pass only one of them",
                ));
            }
            // An argument overrides both settings from elsewhere.
            (Some(file), _) => (settings.key_file, settings.insecure) = (Some(file), false),
            (None, Some(true)) => (settings.key_file, settings.insecure) = (None, true),
            (None, Some(false)) => settings.insecure = false,
            (None, None) => {}
        }
        settings.members = self.members.or(settings.members);
        settings.members_min = self.members_min.or(settings.members_min);
        if let Some(rule) = self.rule {
            settings.rule = Some(parse("rule", &rule)?);
        }
        if self.domain.is_some() {
            settings.domain = self.domain;
        }
        settings.one_domain = self.one_domain.unwrap_or(settings.one_domain);
        if let Some(wait) = self.wait {
            settings.wait = Some(parse("wait", &wait)?);
        }
        settings.window_bytes = self.window.map(|size| size.0).or(settings.window_bytes);
        let percent = settings.truncation_threshold_percent;
        settings.truncation_threshold_percent = self.truncation_threshold.or(percent);
        if let Some(SizeArgument(bytes)) = self.spool {
            let bytes = usize::try_from(bytes);
            settings.spool_bytes = Some(bytes.map_err(|_| PyValueError::new_err("the spool is too large"))?);
        }
        settings.accept_loss = self.accept_loss.unwrap_or(settings.accept_loss);
        settings.adopt_segments = self.adopt_segments.unwrap_or(settings.adopt_segments);
        Ok(settings)
    }
}

pub(crate) fn parse<T: std::str::FromStr<Err: std::fmt::Display>>(name: &str, text: &str) -> PyResult<T> {
    text.parse()
        .map_err(|reason| PyValueError::new_err(format!("{name} {text:?}: {reason}")))
}

/// The cluster key, or that there is none. `refused` makes the exception for a key that cannot be read.
pub(crate) fn security(
    key_file: Option<PathBuf>,
    insecure: bool,
    refused: impl FnOnce(KeyError) -> PyErr,
) -> PyResult<Security> {
    Security::choose(key_file, insecure).map_err(|error| match error {
        SecurityError::Key { source, .. } => refused(source),
        SecurityError::NoKey(file) => PyValueError::new_err(format!(
            "pass the cluster key's file as key_file, or copy it to {}, or pass insecure=True for lenders on this machine \
             only",
            file.display()
        )),
        other => PyValueError::new_err(other.to_string()),
    })
}

/// Open the log at path, recover it, and apply its commits to its segments.
///
/// path is a log file with its companions beside it, or a directory that contains them all. create=True
/// creates the log if it does not exist, with log_size bytes. Settings that are not given here come from the
/// environment (NETRAM_LENDERS and so on), then from the settings file beside the log, then from the
/// defaults; docs/guide/recoverable-memory.md lists them.
///
/// Without lenders every commit waits for the local disk. With lenders commits also wait for it until they
/// have joined, some milliseconds after the opening; Store.wait_for_lenders waits for that.
///
/// Raises OpenError; InUse if another process has the log open; RecoveryRefused if lenders that may hold
/// committed data do not answer.
#[pyfunction]
#[pyo3(signature = (path, *, create = false, log_size = None, lenders = None, key_file = None, insecure = None,
    members = None, members_min = None, rule = None, domain = None, one_domain = None, wait = None, window = None,
    truncation_threshold = None, spool = None, accept_loss = None, adopt_segments = None))]
#[allow(
    clippy::too_many_arguments,
    reason = "they are Python's keywords, each optional"
)]
pub(crate) fn open(
    py: Python<'_>,
    path: PathBuf,
    create: bool,
    log_size: Option<SizeArgument>,
    lenders: Option<Vec<String>>,
    key_file: Option<PathBuf>,
    insecure: Option<bool>,
    members: Option<usize>,
    members_min: Option<usize>,
    rule: Option<RuleArgument>,
    domain: Option<String>,
    one_domain: Option<bool>,
    wait: Option<String>,
    window: Option<SizeArgument>,
    truncation_threshold: Option<u8>,
    spool: Option<SizeArgument>,
    accept_loss: Option<bool>,
    adopt_segments: Option<bool>,
) -> PyResult<PyStore> {
    let given = OpenArguments {
        lenders,
        key_file,
        insecure,
        members,
        members_min,
        rule: rule.map(|rule| rule.0),
        domain,
        one_domain,
        wait,
        window,
        truncation_threshold,
        spool,
        accept_loss,
        adopt_segments,
    };
    let mut store = Store::at(&path);
    match (store.exists(), create) {
        (true, _) => {}
        (false, true) => {
            let layout = match path.is_dir() {
                true => JournalLayout::Directory,
                false => JournalLayout::Beside,
            };
            store = make(py, path.clone(), layout, log_size)?;
        }
        (false, false) => {
            let path = path.display();
            let sentence =
                format!("no log exists at {path}; create one with netram.create, or with create=True");
            return Err(error::open_error(py, sentence));
        }
    }
    let settings = given.over(store.settings().map_err(|cause| error::store(py, &cause))?)?;
    let opened = interruptibly(py, move || store.open(&settings))?;
    let OpenStore { memory, recovered } = opened.map_err(|cause| error::store(py, &cause))?;
    let recovered = Recovered::of(&memory, recovered);
    // A later change of the working directory must not change the path in errors.
    let path = std::path::absolute(&path).unwrap_or(path);
    Ok(PyStore::new(StoreLog::new(path, memory), recovered))
}

/// Create a log of log_size bytes at path, by default 64 MiB. Open it with open.
///
/// The log is a file with its companions (view, key, lock, segment table) beside it; with directory=True path
/// becomes a directory that contains them all. Raises OpenError if the log exists.
#[pyfunction]
#[pyo3(signature = (path, log_size = None, *, directory = false))]
pub(crate) fn create(
    py: Python<'_>,
    path: PathBuf,
    log_size: Option<SizeArgument>,
    directory: bool,
) -> PyResult<()> {
    let layout = if directory {
        JournalLayout::Directory
    } else {
        JournalLayout::Beside
    };
    make(py, path, layout, log_size).map(drop)
}

fn make(py: Python<'_>, path: PathBuf, layout: JournalLayout, size: Option<SizeArgument>) -> PyResult<Store> {
    let bytes = size.map_or(LOG_BYTES_DEFAULT, |size| size.0);
    let made = py.detach(|| Store::create(Path::new(&path), layout, bytes));
    made.map_err(|cause| error::store(py, &cause))
}

/// Opens or joins on a separate thread, so that Ctrl-C ends the wait for lenders or a server that do not
/// answer. If the opening succeeds after that, its result is closed at once.
pub(crate) fn interruptibly<T: Send + 'static>(
    py: Python<'_>,
    open: impl FnOnce() -> T + Send + 'static,
) -> PyResult<T> {
    let (sender, receiver) = mpsc::sync_channel(1);
    // A receiver cannot be shared between threads, and detached code counts as another thread.
    let receiver = Mutex::new(receiver);
    let thread = std::thread::Builder::new().name("netram-open".to_owned());
    let thread = thread.spawn(move || drop(sender.send(open())));
    thread.map_err(|cause| error::open_error(py, format_args!("a thread could not be started: {cause}")))?;
    loop {
        let heard = py.detach(|| lock(&receiver).recv_timeout(SIGNALS_EVERY));
        match heard {
            Ok(opened) => return Ok(opened),
            Err(mpsc::RecvTimeoutError::Timeout) => py.check_signals()?,
            Err(mpsc::RecvTimeoutError::Disconnected) => {
                return Err(error::open_error(
                    py,
                    "the opening ended with an internal error; see its message on stderr",
                ));
            }
        }
    }
}
