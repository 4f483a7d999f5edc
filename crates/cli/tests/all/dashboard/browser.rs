//! A browser that tests drive, by the DevTools protocol.

use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::common::{skipped, start};

/// A bound on failures only.
const PATIENCE: Duration = Duration::from_secs(120);
/// Variable that names a directory for pictures, for whoever wants to look at the pages.
const PICTURES: &str = "NETRAM_TEST_PICTURES";

/// A browser with one page. It ends when it is dropped.
pub(super) struct Browser {
    bridge: Child,
    calls: Option<ChildStdin>,
    results: BufReader<ChildStdout>,
    _profile: tempfile::TempDir,
}

impl Browser {
    /// Starts Debian's browser; `None`, with a word, if there is none.
    pub(super) fn start() -> Option<Browser> {
        let has = |program: &str| Command::new(program).arg("--version").output().is_ok();
        if !has("chromium") || !has("python3") {
            skipped("there is no chromium or python3: apt-get install chromium python3");
            return None;
        }
        let profile = tempfile::tempdir().unwrap();
        let mut command = Command::new("python3");
        command.arg("-c").arg(include_str!("browser.py"));
        command.arg("chromium").arg(profile.path());
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut bridge = start(&mut command);
        Some(Browser {
            calls: bridge.stdin.take(),
            results: BufReader::new(bridge.stdout.take().unwrap()),
            bridge,
            _profile: profile,
        })
    }

    fn send(&mut self, call: &Value) -> Value {
        let calls = self.calls.as_mut().unwrap();
        writeln!(calls, "{call}").unwrap();
        let mut line = String::new();
        self.results.read_line(&mut line).unwrap();
        let result: Value = serde_json::from_str(&line).unwrap_or_else(|_| panic!("{call}: {line}"));
        assert!(result.get("error").is_none(), "{call}: {result}");
        result
    }

    fn call(&mut self, method: &str, params: Value) -> Value {
        self.send(&json!({"method": method, "params": params}))
    }

    /// Opens a page.
    pub(super) fn open(&mut self, address: &str) {
        self.call("Page.navigate", json!({"url": address}));
    }

    /// The value of a JavaScript expression.
    pub(super) fn value(&mut self, expression: &str) -> Value {
        let asked = json!({"expression": expression, "returnByValue": true, "awaitPromise": true});
        self.call("Runtime.evaluate", asked)["result"]["value"].clone()
    }

    /// Waits until an expression is true.
    pub(super) fn wait_for(&mut self, expression: &str) {
        let begun = Instant::now();
        while self.value(expression) != true {
            let text = || "document.documentElement.innerText";
            assert!(begun.elapsed() < PATIENCE, "{expression}\n{}", self.value(text()));
            std::thread::sleep(Duration::from_millis(50));
        }
    }

    /// Waits until the page shows a text.
    pub(super) fn wait_for_text(&mut self, text: &str) {
        self.wait_for(&format!(
            "!!document.body && document.body.innerText.includes({})",
            json!(text)
        ));
    }

    /// Gives the page a size.
    pub(super) fn resize(&mut self, width: u32, height: u32, is_phone: bool) {
        let size = json!({"width": width, "height": height, "deviceScaleFactor": 1, "mobile": is_phone});
        self.call("Emulation.setDeviceMetricsOverride", size);
    }

    /// Chooses the system's theme.
    pub(super) fn prefer(&mut self, theme: &str) {
        let features = json!([{"name": "prefers-color-scheme", "value": theme}]);
        self.call("Emulation.setEmulatedMedia", json!({"features": features}));
    }

    /// Presses a key.
    pub(super) fn press(&mut self, key: &str) {
        let (code, text) = match key {
            "Tab" => (9, ""),
            "Enter" => (13, "\r"),
            "/" => (191, "/"),
            other => panic!("{other} is not known"),
        };
        for kind in ["keyDown", "keyUp"] {
            let mut event = json!({"type": kind, "key": key, "code": key, "windowsVirtualKeyCode": code});
            if kind == "keyDown" && !text.is_empty() {
                event["text"] = json!(text);
            }
            self.call("Input.dispatchKeyEvent", event);
        }
    }

    /// Types a text where the focus is.
    pub(super) fn write(&mut self, text: &str) {
        self.call("Input.insertText", json!({"text": text}));
    }

    /// Takes a picture, if somebody wants to look at it.
    pub(super) fn picture(&mut self, name: &str, whole: bool) {
        if let Some(directory) = std::env::var_os(PICTURES) {
            let file = Path::new(&directory).join(name);
            self.send(&json!({"method": "picture", "file": file, "whole": whole}));
        }
    }

    /// Asserts that no script failed, and that the page's policy refused nothing.
    pub(super) fn assert_no_problem(&mut self) {
        let problems = self.send(&json!({"method": "problems"}));
        assert_eq!(problems, json!({"problems": []}));
    }
}

impl Drop for Browser {
    fn drop(&mut self) {
        // The end of its input ends the bridge, which ends the browser.
        drop(self.calls.take());
        let _ = self.bridge.wait();
    }
}
