//! Taking orders: a socket that the maintenance thread looks at, and a thread for each order.

use std::io::{self, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use netram_process::lines::{is_ours, read_line};
use netram_proto::id::WriterId;
use netram_telemetry::{MetricsFormat, MetricsRegistry};

use super::{
    JournalOrder, JournalReport, METRICS_BYTES_MAX, MembershipReport, OrderReply, REQUEST_BYTES_MAX,
    REQUEST_TIMEOUT, socket,
};
use crate::core::JournalState;
use crate::membership::Membership;

/// Interval at which the maintenance thread looks for orders. A look costs one system call.
const LOOK_INTERVAL: Duration = Duration::from_millis(50);
/// Maximum number of orders that are served at once; further connections are closed.
const ORDERS_MAX: usize = 4;

/// The socket at which an open journal takes orders.
#[derive(Debug)]
pub(crate) struct OrderListener {
    listener: UnixListener,
    looked_at: Instant,
    serving: Arc<AtomicUsize>,
}

impl OrderListener {
    /// Listens for orders to the opening by `writer`. A journal without this socket serves as well, and takes
    /// no orders.
    pub(crate) fn bind(writer: WriterId) -> Option<OrderListener> {
        let listening = socket(writer)
            .and_then(|address| UnixListener::bind_addr(&address))
            .and_then(|listener| listener.set_nonblocking(true).map(|()| listener));
        match listening {
            Ok(listener) => Some(OrderListener {
                listener,
                looked_at: Instant::now(),
                serving: Arc::default(),
            }),
            Err(error) => {
                tracing::warn!(%error, "the journal's lenders cannot be changed until it is closed");
                None
            }
        }
    }

    /// Takes an order, if one has come and it is time to look.
    pub(crate) fn serve(&mut self, shared: &Arc<JournalState>) {
        if self.looked_at.elapsed() < LOOK_INTERVAL {
            return;
        }
        self.looked_at = Instant::now();
        let Ok((stream, _)) = self.listener.accept() else {
            return;
        };
        if !is_ours(&stream) || self.serving.load(Ordering::Relaxed) >= ORDERS_MAX {
            return;
        }
        self.serving.fetch_add(1, Ordering::Relaxed);
        let (shared, serving) = (Arc::clone(shared), Arc::clone(&self.serving));
        let spawned = std::thread::Builder::new()
            .name("netram-order".into())
            .spawn(move || {
                if let Err(error) = converse(&shared, stream) {
                    tracing::debug!(%error, "an order was not finished");
                }
                serving.fetch_sub(1, Ordering::Relaxed);
            });
        if spawned.is_err() {
            self.serving.fetch_sub(1, Ordering::Relaxed);
        }
    }
}

fn converse(shared: &JournalState, mut stream: UnixStream) -> io::Result<()> {
    // Whether an accepted socket blocks does not depend on the listener, on Linux.
    stream.set_write_timeout(Some(REQUEST_TIMEOUT))?;
    let line = read_line(&mut stream, &mut Vec::new(), REQUEST_BYTES_MAX, REQUEST_TIMEOUT);
    let line = line.map_err(|error| io::Error::other(error.to_string()))?;
    let reply = match serde_json::from_slice(&line) {
        Ok(order) => answer(shared, &order).unwrap_or_else(OrderReply::Refused),
        Err(error) => OrderReply::Refused(format!("this release does not understand the order: {error}")),
    };
    let mut line = serde_json::to_vec(&reply)?;
    line.push(b'\n');
    stream.write_all(&line)
}

fn answer(shared: &JournalState, order: &JournalOrder) -> Result<OrderReply, String> {
    if *order == JournalOrder::Metrics {
        let text = MetricsRegistry::of_process().text(MetricsFormat::Prometheus);
        return match text.len() < METRICS_BYTES_MAX {
            true => Ok(OrderReply::Metrics(text)),
            false => Err(
                "there are too many metrics for this way: let the process serve them (`metrics` in its \
                settings, or NETRAM_METRICS)"
                    .into(),
            ),
        };
    }
    if let JournalOrder::Change {
        lenders,
        rule,
        members,
        members_min,
        check,
    } = order
    {
        let parsed = lenders.iter().map(|one| one.parse());
        let wish = Membership {
            lenders: parsed
                .collect::<Result<_, _>>()
                .map_err(|error| format!("{error}"))?,
            rule: rule.parse().map_err(|error| format!("{error}"))?,
            members: *members,
            members_min: Some(*members_min),
        };
        shared
            .change_membership(&wish, *check)
            .map_err(|error| error.to_string())?;
    }
    let membership = shared.membership();
    let (status, reasons) = {
        let core = shared.core();
        let status = core.writer.status();
        let reasons = JournalState::reasons(&core, &status);
        (status, reasons)
    };
    let report = MembershipReport::of(&membership, &status, &reasons);
    Ok(match order {
        JournalOrder::Report => OrderReply::Report(Box::new(JournalReport::of(shared, report))),
        _ => OrderReply::Status(Box::new(report)),
    })
}
