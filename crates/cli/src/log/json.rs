//! Log lines as JSON: each is an object with the same five fields, for programs that collect logs.
//!
//! | field | what |
//! |---|---|
//! | `time` | when, in UTC, RFC 3339 with microseconds |
//! | `level` | `ERROR`, `WARN`, `INFO`, `DEBUG` or `TRACE` |
//! | `target` | the part of netram that wrote the line |
//! | `message` | the event's name, a sentence without values |
//! | `fields` | an object with the event's values |

use std::fmt;
use std::time::SystemTime;

use serde::Serialize;
use serde_json::{Map, Value};
use tracing::field::{Field, Visit};
use tracing::{Event, Subscriber};
use tracing_subscriber::fmt::FmtContext;
use tracing_subscriber::fmt::format::{FormatEvent, FormatFields, Writer};
use tracing_subscriber::registry::LookupSpan;

/// Target of lines that are no events of a part: errors and remarks of the command itself.
const OWN: &str = "netram";
/// The field that names an event.
const MESSAGE: &str = "message";

/// One line. The order of the fields is theirs in the line.
#[derive(Serialize)]
struct JsonLine<'a> {
    time: String,
    level: &'a str,
    target: &'a str,
    message: String,
    fields: Map<String, Value>,
}

impl JsonLine<'_> {
    fn text(&self) -> String {
        // Strings and numbers are always JSON.
        serde_json::to_string(self).unwrap_or_default()
    }
}

/// Returns the line for a sentence of the command itself.
pub(super) fn sentence(level: tracing::Level, message: &str) -> String {
    with_fields(level, message, Map::new())
}

/// Returns the line, with its line feed, that says how many others were dropped.
pub(super) fn dropped(lost: u64) -> String {
    let message = "log lines were dropped: standard error did not take them";
    let fields = Map::from_iter([("dropped".to_owned(), lost.into())]);
    format!("{}\n", with_fields(tracing::Level::WARN, message, fields))
}

fn with_fields(level: tracing::Level, message: &str, fields: Map<String, Value>) -> String {
    JsonLine {
        time: now(),
        level: level.as_str(),
        target: OWN,
        message: message.to_owned(),
        fields,
    }
    .text()
}

/// Returns the sentence of a line that [`sentence`] made.
pub(super) fn said(line: &str) -> Option<String> {
    let line: Map<String, Value> = serde_json::from_str(line).ok()?;
    let is_own = line.get("target")? == OWN;
    is_own.then(|| line.get(MESSAGE)?.as_str().map(str::to_owned))?
}

fn now() -> String {
    humantime::format_rfc3339_micros(SystemTime::now()).to_string()
}

/// Writes events as lines.
pub(super) struct JsonEvents;

impl<S, N> FormatEvent<S, N> for JsonEvents
where
    S: Subscriber + for<'a> LookupSpan<'a>,
    N: for<'a> FormatFields<'a> + 'static,
{
    fn format_event(
        &self,
        _: &FmtContext<'_, S, N>,
        mut writer: Writer<'_>,
        event: &Event<'_>,
    ) -> fmt::Result {
        let mut values = EventValues::default();
        event.record(&mut values);
        let line = JsonLine {
            time: now(),
            level: event.metadata().level().as_str(),
            target: event.metadata().target(),
            message: values.message,
            fields: values.fields,
        };
        writeln!(writer, "{}", line.text())
    }
}

/// The values of an event.
#[derive(Default)]
struct EventValues {
    message: String,
    fields: Map<String, Value>,
}

impl EventValues {
    fn put(&mut self, field: &Field, value: impl Into<Value>) {
        self.fields.insert(field.name().to_owned(), value.into());
    }

    fn put_text(&mut self, field: &Field, text: String) {
        match field.name() {
            MESSAGE => self.message = text,
            _ => self.put(field, text),
        }
    }
}

impl Visit for EventValues {
    fn record_f64(&mut self, field: &Field, value: f64) {
        self.put(field, value);
    }

    fn record_i64(&mut self, field: &Field, value: i64) {
        self.put(field, value);
    }

    fn record_u64(&mut self, field: &Field, value: u64) {
        self.put(field, value);
    }

    fn record_bool(&mut self, field: &Field, value: bool) {
        self.put(field, value);
    }

    fn record_str(&mut self, field: &Field, value: &str) {
        self.put_text(field, value.to_owned());
    }

    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        self.put_text(field, format!("{value:?}"));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sentence_is_a_line_that_gives_it_back() {
        let line = sentence(tracing::Level::ERROR, "no \"key\"\nhere");
        assert!(!line.contains('\n'), "{line}");
        assert_eq!(said(&line).as_deref(), Some("no \"key\"\nhere"));
        assert_eq!(said("netram: no key"), None);
        let value: Value = serde_json::from_str(dropped(7).trim_end()).unwrap();
        assert_eq!(value["fields"]["dropped"], 7);
    }
}
