//! A process that shows the drawing, live: a page on this machine, and the terminal.

use std::fmt::Write as _;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::time::{Duration, Instant};

use crate::demo_directory::{DemoDirectory, wait_for_end_of_input};
use crate::drawing::{SIZE, VisibleStroke, count, layers, snapshot};

/// Prefix of the line with the page's address.
pub(crate) const SHOWN_PREFIX: &str = "shown at ";
/// Interval between two pictures.
const FRAME_INTERVAL: Duration = Duration::from_millis(200);
/// Time after which a silent browser is no longer waited for.
const PATIENCE: Duration = Duration::from_secs(1);
/// Maximum bytes that are read of a request.
const REQUEST_BYTES_MAX: u64 = 4096;
/// Width and height of the terminal's picture in characters.
const TERMINAL: (usize, usize) = (78, 26);

const COLOURS: [&str; 6] = ["#c0392b", "#2471a3", "#1e8449", "#b9770e", "#7d3c98", "#117a65"];

const PAGE: &str = r#"<!doctype html><meta charset="utf-8"><title>One drawing, several processes</title>
<style>body { margin: 0; text-align: center; font-family: sans-serif } svg { height: 94vh; border: 1px solid #ccc }</style>
<div id="picture"></div>
<script>
const next = () => fetch("/picture.svg").then(got => got.text()).then(svg => { picture.innerHTML = svg })
  .catch(() => {}).finally(() => setTimeout(next, 200));
next();
</script>
"#;

/// Shows the drawing until the input ends.
pub(crate) fn run(place: &DemoDirectory, listen: &str, terminal: bool) -> anyhow::Result<()> {
    let told = std::thread::spawn(wait_for_end_of_input);
    let page = TcpListener::bind(listen)?;
    page.set_nonblocking(true)?;
    writeln!(std::io::stdout(), "{SHOWN_PREFIX}http://{}", page.local_addr()?)?;
    while !told.is_finished() {
        let node = place.join("viewer")?;
        let layers = layers(&node)?;
        let picture = || snapshot(&node, &layers);
        let mut shown = None;
        while !told.is_finished() && node.gone().is_none() {
            let due = shown.is_none_or(|shown: Instant| shown.elapsed() >= FRAME_INTERVAL);
            if terminal
                && due
                && let Ok(seen) = picture()
            {
                write!(std::io::stderr(), "\x1b[H\x1b[J{}", letters(&seen))?;
                shown = Some(Instant::now());
            }
            let mut callers = page.incoming();
            while let Some(Ok(caller)) = callers.next() {
                // A browser that leaves in the middle misses this picture.
                let _ = answer(caller, &picture);
            }
            std::thread::sleep(FRAME_INTERVAL / 10);
        }
        if node.gone().is_none() {
            node.leave()?;
        }
    }
    Ok(())
}

/// Answers one request.
fn answer(
    mut caller: TcpStream,
    picture: &dyn Fn() -> anyhow::Result<Vec<VisibleStroke>>,
) -> anyhow::Result<()> {
    caller.set_nonblocking(false)?;
    caller.set_read_timeout(Some(PATIENCE))?;
    caller.set_write_timeout(Some(PATIENCE))?;
    let mut request = String::new();
    let mut lines = BufReader::new((&caller).take(REQUEST_BYTES_MAX));
    lines.read_line(&mut request)?;
    // The rest of the request is read before the answer, or the browser might miss it.
    let mut line = String::new();
    while lines.read_line(&mut line)? > 2 {
        line.clear();
    }
    let (kind, text) = match request.split(' ').nth(1) {
        Some("/") => ("200 OK\r\nContent-Type: text/html", PAGE.to_owned()),
        Some("/picture.svg") => ("200 OK\r\nContent-Type: image/svg+xml", svg(&picture()?)),
        _ => (
            "404 Not Found\r\nContent-Type: text/plain",
            "not here\n".to_owned(),
        ),
    };
    write!(
        caller,
        "HTTP/1.1 {kind}\r\nContent-Length: {}\r\nConnection: close\r\n\r\n{text}",
        text.len()
    )?;
    Ok(())
}

fn svg(seen: &[VisibleStroke]) -> String {
    let mut text =
        format!(r#"<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {SIZE} {SIZE}" fill="none">"#);
    for stroke in seen.iter().rev() {
        let colour = COLOURS[stroke.author as usize % COLOURS.len()];
        let _ = write!(text, r#"<polyline stroke="{colour}" points=""#);
        for point in &stroke.points {
            let _ = write!(text, "{},{} ", point.x, point.y);
        }
        text.push_str("\"/>");
    }
    text.push_str("</svg>\n");
    text
}

/// The drawing in characters, one for each author.
fn letters(seen: &[VisibleStroke]) -> String {
    let (width, height) = TERMINAL;
    let mut rows = vec![vec![' '; width]; height];
    for stroke in seen.iter().rev() {
        for point in &stroke.points {
            let place = |at: i16, cells: usize| usize::try_from(at).ok().map(|at| at * cells / SIZE as usize);
            let cell = place(point.x, width).zip(place(point.y, height));
            let cell = cell.and_then(|(x, y)| rows.get_mut(y)?.get_mut(x));
            if let Some(cell) = cell {
                *cell = char::from(b'a' + (stroke.author % 26) as u8 - 1);
            }
        }
    }
    let rows: Vec<String> = rows.into_iter().map(String::from_iter).collect();
    format!("{}\nstrokes of each editor: {:?}\n", rows.join("\n"), count(seen))
}
