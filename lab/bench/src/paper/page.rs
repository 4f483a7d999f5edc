//! One page with everything: figures as inline SVG, tables, the paper's values beside the measured ones, and
//! claims. It is a single file that loads nothing.

use std::fmt::Write;

use super::claims::{ClaimSource, Tr190Claim};
use super::facts::Tr190Facts;
use super::output::RunInfo;
use super::plot::x_label;
use super::system::{FloorKind, MemberLink, Tr190Series, Tr190System};
use super::{Tr190Axis, Tr190Figure, Tr190Point, Tr190Report, commentary, oo7, plot};
use crate::plot::{escaped as escape, thousands};

const STYLE: &str = ":root{--page:#fff;--ink:#1b1f24;--muted:#5a636e;--rule:#d9dde2;--stated:#6b3f12;--band:#f3f6fa;\
    --yes:#11772d;--no:#b3261e}\
    @media (prefers-color-scheme:dark){:root{--page:#16191d;--ink:#e8eaed;--muted:#a4adb8;--rule:#343b43;--stated:#e0b98c;\
    --band:#20262d;--yes:#5fd07f;--no:#ff8a80}}\
    body{font:15px/1.5 sans-serif;max-width:1080px;margin:2em auto;padding:0 1em;color:var(--ink);background:var(--page)}\
    h1{font-size:1.5em}h2{font-size:1.2em;margin-top:2.5em}\
    table{border-collapse:collapse;margin:1em 0;font-size:13px}\
    th,td{padding:2px 9px;text-align:right;border-bottom:1px solid var(--rule);white-space:nowrap}\
    th:first-child,td:first-child{text-align:left}td.wrap{white-space:normal;text-align:left}\
    tr.paper td{color:var(--stated)}tr.floor td{color:var(--muted)}tr.ratio td{background:var(--band)}\
    tr.head td{font-weight:bold;border-bottom:none;padding-top:9px;text-align:left}\
    .yes{color:var(--yes);font-weight:bold}.no{color:var(--no);font-weight:bold}\
    svg{max-width:100%;height:auto}details{margin:1em 0}.note{color:var(--muted)}code{background:var(--band)}";

/// The page as HTML.
pub fn page(report: &Tr190Report, facts: &Tr190Facts, run: &RunInfo) -> String {
    let mut html = String::from("<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n");
    html += "<title>The experiments of TR-190 on netram</title>\n";
    html += &format!("<style>{STYLE}</style>\n</head>\n<body>\n");
    introduction(&mut html, report, facts, run);
    summary(&mut html, &report.claims);
    for figure in &report.figures {
        section(&mut html, report, facts, figure);
    }
    if let Some(measured) = &report.oo7 {
        oo7::section(&mut html, measured, facts);
    }
    no_flush(&mut html, report, facts);
    html += "</body>\n</html>\n";
    html
}

fn introduction(html: &mut String, report: &Tr190Report, facts: &Tr190Facts, run: &RunInfo) {
    let (machine, effort) = (&report.machine, report.effort);
    *html += "<h1>The experiments of TR-190 on netram</h1>\n";
    *html += "<p>Ioannidis, Markatos and Sevaslidou, <i>On using Network Memory to Improve the Performance of \
              Transaction-Based Systems</i>, ICS-FORTH TR-190: RVM commits wait for a disk, RRVM commits for another \
              machine's memory. Below is each of its figures 1 to 12 that was asked for, measured anew.</p>\n<table>\n";
    let rows = [
        (
            "machine",
            format!(
                "{}, {} cores, Linux {}",
                machine.processor, machine.cores, machine.kernel
            ),
        ),
        ("load at the start", format!("{:.2}", machine.load)),
        ("files on", run.disk.clone()),
        ("date", run.began.clone()),
        ("command", run.command.clone()),
        (
            "effort",
            format!(
                "{}; a cell ends after {} transactions of each client or {} s, whichever is first (the tables of \
                 latencies and the CSV files have the counts)",
                match effort.rounds {
                    1 => "one round".to_owned(),
                    several => format!("medians of {several} rounds"),
                },
                thousands(effort.transactions as f64),
                effort.cap.as_secs_f64()
            ),
        ),
        ("the paper's machines", facts.hardware.clone()),
    ];
    for (name, value) in rows {
        *html += &format!(
            "<tr><td>{name}</td><td class=\"wrap\">{}</td></tr>\n",
            escape(&value)
        );
    }
    *html += "</table>\n";
    if effort.quick {
        *html += "<p class=\"no\">A quick run: one short round at few places. It shows that things work, not how fast they \
                  are.</p>\n";
    }
    if effort.small {
        *html +=
            "<p class=\"no\">With small data files and banks: no figure here is one of the paper's.</p>\n";
    }
    for skipped in &report.skipped {
        *html += &format!("<p class=\"no\">Not measured: {}</p>\n", escape(skipped));
    }
    *html += &format!("<p class=\"note\">{}</p>\n", escape(commentary::SETUP));
}

fn summary(html: &mut String, claims: &[Tr190Claim]) {
    if claims.is_empty() {
        return;
    }
    *html += "<h2>What is claimed, and what was measured</h2>\n<table>\n";
    *html += "<tr><th>of what</th><th>theirs</th><th>measured</th><th>to hold</th><th>met</th></tr>\n";
    for (by, title) in [
        (ClaimSource::Netram, "What netram holds itself to"),
        (ClaimSource::Paper, "What TR-190 found"),
        (
            ClaimSource::Original,
            "What the original RVM did when built anew on a machine of today",
        ),
    ] {
        let mut rows = claims.iter().filter(|claim| claim.by == by).peekable();
        if rows.peek().is_some() {
            *html += &format!("<tr class=\"head\"><td colspan=\"5\">{title}</td></tr>\n");
        }
        for claim in rows {
            let met = match claim.met {
                Some(true) => "<span class=\"yes\">yes</span>",
                Some(false) => "<span class=\"no\">NO</span>",
                None => "",
            };
            *html += &format!(
                "<tr><td class=\"wrap\">{}</td><td class=\"wrap\">{}</td><td>{} {}</td><td>{}</td><td>{met}</td></tr>\n",
                escape(&claim.what),
                escape(&claim.theirs),
                number(claim.value),
                claim.unit,
                escape(&claim.hold.map(|hold| hold.to_string()).unwrap_or_default()),
            );
        }
    }
    *html += "</table>\n";
}

fn section(html: &mut String, report: &Tr190Report, facts: &Tr190Facts, figure: &Tr190Figure) {
    let number = figure.number;
    *html += &format!(
        "<h2 id=\"fig{number}\">Figure {number}: {}</h2>\n",
        escape(figure.title)
    );
    *html += &plot::picture(figure, facts).svg();
    for said in facts.remarks(number) {
        *html += &format!("<p><b>The paper:</b> {}.</p>\n", escape(said));
    }
    for range in facts.ranges(number) {
        let [least, most] = range.tps;
        let tps = if least < most {
            format!("{least} to {most}")
        } else {
            format!("{most}")
        };
        *html += &format!(
            "<p><b>The paper, over figures 7 and 8:</b> {}: {tps} a second.</p>\n",
            escape(&range.name)
        );
    }
    let differs = commentary::differs(report, figure);
    *html += &format!(
        "<p><b>What differs, and why:</b> {}</p>\n",
        escape(&differs.join(" "))
    );
    throughputs(html, facts, figure);
    // With growing blocks truncation writes most, and commits that wait for it show in the maxima.
    if figure.axis == Tr190Axis::BlockBytes {
        by_x(html, figure, "99 of 100 commits took at most, us", |point| {
            point.p99_us
        });
        by_x(html, figure, "the longest commit, us", |point| point.max_us);
    }
    latencies(html, figure);
}

fn throughputs(html: &mut String, facts: &Tr190Facts, figure: &Tr190Figure) {
    let mut places = figure.x_values();
    places.extend(
        facts
            .series(figure.number)
            .flat_map(|series| series.points().map(|(x, _)| x)),
    );
    places.sort_unstable();
    places.dedup();
    *html += &format!(
        "<table>\n<tr><th>transactions a second; {}</th>",
        figure.axis.name()
    );
    for &place in &places {
        *html += &format!("<th>{}</th>", x_label(figure.axis, place));
    }
    *html += "</tr>\n";
    let mut row = |class: &str, name: &str, at: &dyn Fn(u64) -> Option<String>| {
        let _ = write!(html, "<tr class=\"{class}\"><td>{}</td>", escape(name));
        for &place in &places {
            let _ = write!(html, "<td>{}</td>", at(place).unwrap_or_default());
        }
        html.push_str("</tr>\n");
    };
    for series in figure.series() {
        let class = if matches!(series, Tr190Series::Floor(_)) {
            "floor"
        } else {
            ""
        };
        row(class, &series.label(), &|x| {
            Some(number(figure.at(series, x)?.tps))
        });
    }
    for stated in facts.series(figure.number) {
        let name = format!("TR-190: {}", stated.name);
        row("paper", &name, &|x| {
            let (_, tps) = stated.points().find(|(at, _)| *at == x)?;
            Some(number(tps))
        });
    }
    for (above, below, name) in ratios(figure) {
        row("ratio", &name, &|x| {
            let ratio = figure.at(above, x)?.tps / figure.at(below, x)?.tps;
            Some(format!("{} x", number(ratio)))
        });
    }
    *html += "</table>\n";
}

/// A table with one number for each point.
fn by_x(html: &mut String, figure: &Tr190Figure, title: &str, value: impl Fn(&Tr190Point) -> f64) {
    let places = figure.x_values();
    *html += &format!("<table>\n<tr><th>{title}</th>");
    for &place in &places {
        *html += &format!("<th>{}</th>", x_label(figure.axis, place));
    }
    *html += "</tr>\n";
    for series in figure.series() {
        let class = if matches!(series, Tr190Series::Floor(_)) {
            "floor"
        } else {
            ""
        };
        *html += &format!("<tr class=\"{class}\"><td>{}</td>", escape(&series.label()));
        for &place in &places {
            let text = figure.at(series, place).map(|point| number(value(point)));
            *html += &format!("<td>{}</td>", text.unwrap_or_default());
        }
        *html += "</tr>\n";
    }
    *html += "</table>\n";
}

/// Pairs of curves to divide: RRVM by RVM on the same disk, and systems by their floors.
fn ratios(figure: &Tr190Figure) -> Vec<(Tr190Series, Tr190Series, String)> {
    let series = figure.series();
    let mut found = Vec::new();
    for &above in &series {
        let Tr190Series::System(system) = above else {
            continue;
        };
        let rvm = Tr190Series::System(Tr190System::RVM.on(system.disk));
        if system.link != MemberLink::Disk && series.contains(&rvm) {
            found.push((above, rvm, format!("{} / {}", above.label(), rvm.label())));
        }
        let floor = Tr190Series::Floor(match system.link {
            MemberLink::Disk => FloorKind::Sync,
            MemberLink::Tcp | MemberLink::Namespaces => FloorKind::Exchange,
            MemberLink::Unix | MemberLink::Longer(_) => continue,
        });
        if system.sync_delay().is_zero() && series.contains(&floor) {
            found.push((above, floor, format!("{} / {}", above.label(), floor.label())));
        }
    }
    found
}

fn latencies(html: &mut String, figure: &Tr190Figure) {
    *html += "<details><summary>Latencies, transactions measured, full logs</summary>\n<table>\n<tr><th>system</th>\
              <th>at</th><th>transactions</th><th>p50 us</th><th>p99 us</th><th>longest us</th><th>floor us</th>\
              <th>p50 / floor</th><th>met a full log</th></tr>\n";
    for point in &figure.points {
        let (floor, over) = point.floor_us.map_or_else(Default::default, |floor| {
            (number(floor), number(point.p50_us / floor))
        });
        *html += &format!(
            "<tr><td>{}</td><td>{}</td><td>{}</td><td>{}</td><td>{}</td><td>{}</td><td>{floor}</td><td>{over}</td>\
             <td>{}</td></tr>\n",
            escape(&point.series.label()),
            x_label(figure.axis, point.x),
            thousands(point.transactions as f64),
            number(point.p50_us),
            number(point.p99_us),
            number(point.max_us),
            thousands(point.full_stalls as f64),
        );
    }
    *html += "</table></details>\n";
}

fn no_flush(html: &mut String, report: &Tr190Report, facts: &Tr190Facts) {
    *html += "<h2 id=\"no-flush\">Commits that do not wait</h2>\n<p>Not a figure of the paper: what a transaction of one \
              range of 128 bytes costs when it is committed lazily (the original's no-flush), and the flush after a \
              round. With the spool commits stay in memory and are merged until the flush, or until it is full. In the first pass \
              the first store to a page copies it, because mapping is lazy.</p>\n<table>\n<tr>\
              <th>order</th><th>member</th><th>spool</th><th>ns a transaction</th><th>first pass</th><th>flush, ms</th>\
              <th>transactions of a round</th></tr>\n";
    for row in &report.no_flush {
        *html += &format!(
            "<tr><td>{}</td><td>{}</td><td>{}</td><td>{}</td><td>{}</td><td>{}</td><td>{}</td></tr>\n",
            row.order.name(),
            if row.member { "one" } else { "none" },
            if row.spool_bytes > 0 {
                format!("{} KB", thousands(row.spool_bytes as f64 / 1024.0))
            } else {
                "off".to_owned()
            },
            number(row.transaction_ns),
            number(row.first_pass_ns),
            number(row.flush_ms),
            thousands(row.transactions as f64),
        );
    }
    let [plain, all] = facts.original.no_flush_sequential_per_second;
    *html += &format!(
        "</table>\n<p class=\"note\">The original, sequential: {} a second without optimisation, {} with all of them; its \
         merging searches a list, so a long queue of neighbouring ranges is slower than waiting for the disk each \
         time.</p>\n",
        thousands(plain),
        thousands(all)
    );
}

/// A number with its significant digits.
pub(crate) fn number(value: f64) -> String {
    match value.abs() {
        small if small < 10.0 => format!("{value:.2}"),
        middle if middle < 100.0 => format!("{value:.1}"),
        _ => thousands(value),
    }
}

#[cfg(test)]
mod tests {
    use super::super::claims;
    use super::super::commentary::tests::report;
    use super::*;

    fn made() -> String {
        let facts = Tr190Facts::tr190().unwrap();
        let mut report = report();
        report.claims = claims::judge(&facts, &report.figures, &report.no_flush);
        let run = RunInfo {
            began: "2026-01-01".to_owned(),
            command: "netram-lab bench paper <x>".to_owned(),
            disk: "/var/tmp".to_owned(),
        };
        page(&report, &facts, &run)
    }

    #[test]
    fn the_page_loads_nothing_and_has_every_figure() {
        let html = made();
        for forbidden in ["<script", "<link", "src=", "@import", "url("] {
            assert!(!html.contains(forbidden), "{forbidden}");
        }
        assert_eq!(html.matches("<svg").count(), 12);
        for number in 1..=12 {
            assert!(html.contains(&format!("id=\"fig{number}\"")));
        }
    }

    #[test]
    fn every_element_that_opens_closes() {
        let html = made();
        for element in [
            "table", "tr", "td", "th", "p", "h2", "details", "svg", "body", "html",
        ] {
            let opened =
                html.matches(&format!("<{element}>")).count() + html.matches(&format!("<{element} ")).count();
            assert_eq!(
                opened,
                html.matches(&format!("</{element}>")).count(),
                "{element}"
            );
        }
    }

    #[test]
    fn external_text_is_escaped() {
        let html = made();
        assert!(html.contains("netram-lab bench paper &lt;x&gt;"));
        assert!(html.contains("one thing &amp; another"));
    }

    #[test]
    fn ratio_rows_and_claims_carry_the_numbers() {
        let html = made();
        assert!(html.contains("RRVM, TCP / RVM") && html.contains("8.00 x"));
        assert!(html.contains("TR-190: RRVM, FDDI") && html.contains("44.2"));
        assert!(html.contains("class=\"yes\">yes"), "8 times is at least 5 times");
    }
}
