//! `open` and `create`: from Python's arguments to an open log.

use std::path::{Path, PathBuf};
use std::sync::{Mutex, mpsc};
use std::time::Duration;

use bytesize::ByteSize;
use netram_store::{JournalLayout, OpenStore, Store, StoreSettings};
use netram_transport::{ClusterKey, KeyError, Security};
use pyo3::exceptions::{PyTypeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::{PyInt, PyString};

use crate::error;
use crate::locks::lock;
use crate::open_log::StoreLog;
use crate::report::Recovered;
use crate::store::PyStore;

/// Bytes of a new log when nobody says how many: truncation then runs about every 32 MiB of commits.
const LOG_BYTES_DEFAULT: u64 = 64 << 20;
/// How often an opening that waits for lenders looks for Ctrl-C.
const SIGNALS_EVERY: Duration = Duration::from_millis(50);

/// A size from Python: a number of bytes, or text as "64MiB".
#[derive(Clone, Copy, Debug)]
pub(crate) struct SizeArgument(pub(crate) u64);

impl<'py> FromPyObject<'_, 'py> for SizeArgument {
    type Error = PyErr;

    fn extract(value: Borrowed<'_, 'py, PyAny>) -> PyResult<SizeArgument> {
        if let Ok(text) = value.cast::<PyString>() {
            let text = text.to_str()?;
            return match text.parse::<ByteSize>() {
                Ok(size) => Ok(SizeArgument(size.as_u64())),
                Err(_) => Err(PyValueError::new_err(format!(
                    "{text:?} is no size; write it as \"64MiB\", \"1.5GiB\" or 4096"
                ))),
            };
        }
        if !value.is_instance_of::<PyInt>() {
            return Err(PyTypeError::new_err(
                "a size is a number of bytes, or text as \"64MiB\"",
            ));
        }
        match value.extract() {
            Ok(bytes) => Ok(SizeArgument(bytes)),
            Err(_) => Err(PyValueError::new_err(format!(
                "{} is no number of bytes",
                &*value
            ))),
        }
    }
}

impl<'py> IntoPyObject<'py> for SizeArgument {
    type Target = PyInt;
    type Output = Bound<'py, PyInt>;
    type Error = std::convert::Infallible;

    fn into_pyobject(self, py: Python<'py>) -> Result<Self::Output, Self::Error> {
        self.0.into_pyobject(py)
    }
}

/// What the caller gives instead of the settings file and the environment.
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

/// A word or a number, as text: rule=1 and rule="all" are both what a person would write.
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
    /// The settings, with what was given over them.
    fn over(self, mut settings: StoreSettings) -> PyResult<StoreSettings> {
        if let Some(lenders) = self.lenders {
            let addresses = lenders.iter().map(|lender| parse("lenders", lender));
            settings.lenders = addresses.collect::<PyResult<_>>()?;
        }
        match (self.key_file, self.insecure) {
            (Some(_), Some(true)) => {
                return Err(PyValueError::new_err(
                    "insecure=True contradicts key_file; drop one of them",
                ));
            }
            // One given here stands against the other from elsewhere.
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
        settings.domain = self.domain.or(settings.domain);
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

/// The key of a cluster, or that there is none. `refused` makes the exception of a key that cannot be read.
pub(crate) fn security(
    key_file: Option<PathBuf>,
    insecure: bool,
    refused: impl FnOnce(KeyError) -> PyErr,
) -> PyResult<Security> {
    match (key_file, insecure) {
        (Some(file), false) => ClusterKey::load(&file).map(Security::Key).map_err(refused),
        (None, true) => Ok(Security::Insecure),
        (None, false) => Err(PyValueError::new_err(
            "name the cluster's key in key_file, or say insecure=True on this machine alone",
        )),
        (Some(_), true) => Err(PyValueError::new_err(
            "insecure=True contradicts key_file; drop one of them",
        )),
    }
}

/// Open the log at path, recover it, and apply what is committed to its segments.
///
/// path is a log file, with its companions beside it, or a directory that has them all. create=True makes the
/// log when there is none (log_size bytes). What is not given here is taken from the environment
/// (NETRAM_LENDERS and so on), then from the settings file beside the log, then from the defaults:
/// docs/python.md has the table.
///
/// Without lenders every commit waits for the local disk. Until lenders have joined, some milliseconds after
/// the opening, commits wait for it too; Store.wait_for_lenders waits for them.
///
/// Raises OpenError; InUse, when another process has the log; RecoveryRefused, when lenders that may hold
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
    let mut home = Store::at(&path);
    match (home.exists(), create) {
        (true, _) => {}
        (false, true) => {
            let layout = match path.is_dir() {
                true => JournalLayout::Directory,
                false => JournalLayout::Beside,
            };
            home = make(py, path.clone(), layout, log_size)?;
        }
        (false, false) => {
            let path = path.display();
            let sentence =
                format!("there is no log at {path}; make one with netram.create, or with create=True");
            return Err(error::open_error(py, sentence));
        }
    }
    let settings = given.over(home.settings().map_err(|cause| error::home(py, &cause))?)?;
    let opened = interruptibly(py, move || home.open(&settings))?;
    let OpenStore { memory, recovered } = opened.map_err(|cause| error::home(py, &cause))?;
    let recovered = Recovered::of(&memory, recovered);
    // What a program later takes for its working directory must not change what an error names.
    let path = std::path::absolute(&path).unwrap_or(path);
    Ok(PyStore::new(StoreLog::new(path, memory), recovered))
}

/// Make a new log of log_size bytes at path, 64 MiB unless chosen otherwise. Open it with open.
///
/// The log is a file with its companions (view, key, lock, segment table) beside it; with directory=True,
/// path becomes a directory that has them all. Raises OpenError when there is a log already.
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
    made.map_err(|cause| error::home(py, &cause))
}

/// Opens, or joins, on a thread of its own, so that Ctrl-C ends the waiting for lenders or a server that do
/// not answer. An opening that succeeds after that is closed again at once.
pub(crate) fn interruptibly<T: Send + 'static>(
    py: Python<'_>,
    open: impl FnOnce() -> T + Send + 'static,
) -> PyResult<T> {
    let (sender, receiver) = mpsc::sync_channel(1);
    // A receiver cannot be shared between threads, and what runs detached counts as another.
    let receiver = Mutex::new(receiver);
    let thread = std::thread::Builder::new().name("netram-open".to_owned());
    let thread = thread.spawn(move || drop(sender.send(open())));
    thread.map_err(|cause| error::open_error(py, format_args!("starting a thread: {cause}")))?;
    loop {
        let heard = py.detach(|| lock(&receiver).recv_timeout(SIGNALS_EVERY));
        match heard {
            Ok(opened) => return Ok(opened),
            Err(mpsc::RecvTimeoutError::Timeout) => py.check_signals()?,
            Err(mpsc::RecvTimeoutError::Disconnected) => {
                return Err(error::open_error(
                    py,
                    "the opening failed in a way that it should not; see its message",
                ));
            }
        }
    }
}
