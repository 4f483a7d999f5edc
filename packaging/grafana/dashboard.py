"""Prints the dashboard netram.json, made with Grafana's own types: `make grafana`."""

import json

from grafana_foundation_sdk.builders import common, dashboard, prometheus, stat, table, timeseries
from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.models import common as common_models
from grafana_foundation_sdk.models import dashboard as models
from grafana_foundation_sdk.models import prometheus as prometheus_models

SOURCE = models.DataSourceRef(type_val="prometheus", uid="${source}")
# The dashboard's own choices.
JOURNALS = 'journal=~"$journal"'
LENDERS = 'lender=~"$lender"'
RATE = "$__rate_interval"


def query(expr, legend, ref, instant=False):
    """Returns a query of a panel."""
    made = prometheus.Dataquery().expr(expr).legend_format(legend).ref_id(ref).datasource(SOURCE)
    return made.instant().format(prometheus_models.PromQueryFormat.TABLE) if instant else made.range()


def lines(title, description, unit, *queries, stacked=False, least=0):
    """Returns a panel of lines over time; each query is an expression and its legend."""
    panel = (
        timeseries.Panel()
        .title(title)
        .description(description)
        .datasource(SOURCE)
        .unit(unit)
        .min(least)
        .height(8)
        .span(12)
        .line_width(1)
        .fill_opacity(30 if stacked else 0)
        .show_points(common_models.VisibilityMode.NEVER)
        .legend(
            common.VizLegendOptions()
            .display_mode(common_models.LegendDisplayMode.LIST)
            .placement(common_models.LegendPlacement.BOTTOM)
            .show_legend(True)
        )
        .tooltip(common.VizTooltipOptions().mode(common_models.TooltipDisplayMode.MULTI))
    )
    if stacked:
        panel = panel.stacking(common.StackingConfig().mode(common_models.StackingMode.NORMAL))
    for index, (expr, legend) in enumerate(queries):
        panel = panel.with_target(query(expr, legend, chr(ord("A") + index)))
    return panel


def number(title, description, unit, expr, bad_from):
    """Returns a panel of one number, which is red from `bad_from` on."""
    steps = [models.Threshold(value=None, color="green"), models.Threshold(value=bad_from, color="red")]
    return (
        stat.Panel()
        .title(title)
        .description(description)
        .datasource(SOURCE)
        .unit(unit)
        .height(4)
        .span(6)
        .reduce_options(common.ReduceDataOptions().calcs(["lastNotNull"]))
        .thresholds(dashboard.ThresholdsConfig().mode(models.ThresholdsMode.ABSOLUTE).steps(steps))
        .with_target(prometheus.Dataquery().expr(expr).ref_id("A").datasource(SOURCE).instant())
    )


def quantile(q, selector):
    """Returns the quantile of commit latency for one kind of completion."""
    rate = f'rate(netram_commit_duration_seconds_bucket{{{JOURNALS},by="{selector}"}}[{RATE}])'
    return f"histogram_quantile({q}, sum by (le) ({rate}))"


def commits(by):
    """Returns the commits a second, of one completion or of all."""
    chosen = f',by="{by}"' if by else ""
    return f"sum(rate(netram_commit_duration_seconds_count{{{JOURNALS}{chosen}}}[{RATE}]))"


def attention():
    """Returns the panels on what needs a person."""
    alerts = 'ALERTS{alertname=~"Netram.*",alertstate="firing"}'
    listed = (
        table.Panel()
        .title("Needs a person")
        .description(
            "Alerts that fire now. What to do about each: docs/guide/operations/alerts.md. Empty is well."
        )
        .datasource(SOURCE)
        .no_value("nothing")
        .show_header(True)
        .height(8)
        .span(12)
        .with_target(
            query(
                f"sum by (alertname, severity, instance, journal, lender, volume) ({alerts})", "", "A", True
            )
        )
    )
    one = f'netram_at_risk_bytes{{{JOURNALS},lost="this machine"}}'
    return [
        listed,
        number(
            "Pages that fire",
            "Alerts with severity page.",
            "short",
            'count(ALERTS{alertname=~"Netram.*",alertstate="firing",severity="page"}) or vector(0)',
            1,
        ),
        number(
            "At risk on one machine",
            "Acknowledged bytes that only one machine's memory has.",
            "bytes",
            f"sum({one}) or vector(0)",
            1,
        ),
        number(
            "Journals that wait for the disk",
            "Too few lenders count: nothing is lost, but commits are slow.",
            "short",
            f"sum(netram_journal_degraded{{{JOURNALS}}}) or vector(0)",
            1,
        ),
        number(
            "Journals that failed",
            "Their disk failed, or another writer took over.",
            "short",
            f"sum(netram_journal_failed{{{JOURNALS}}} + netram_journal_fenced{{{JOURNALS}}}) or vector(0)",
            1,
        ),
    ]


def journals():
    """Returns the panels on commits and what they depend on."""
    return [
        lines(
            "At risk",
            "Acknowledged bytes that would be gone if this failed now: the machine, a power domain, or all. Milliseconds above 0 are usual.",
            "bytes",
            (f"max by (journal, lost) (netram_at_risk_bytes{{{JOURNALS}}})", "{{journal}}: {{lost}}"),
        ),
        lines(
            "Age of what is at risk",
            "Time since the oldest of these bytes was acknowledged. Above a few seconds the disk does not follow.",
            "s",
            (f"max by (journal, lost) (netram_at_risk_age_seconds{{{JOURNALS}}})", "{{journal}}: {{lost}}"),
        ),
        lines(
            "Commit latency by lenders",
            "Commits that members completed.",
            "s",
            *[(quantile(q, "members"), name) for q, name in QUANTILES],
        ),
        lines(
            "Commit latency by the disk",
            "Commits that the disk completed: too few lenders counted, or it was sooner.",
            "s",
            *[(quantile(q, "disk"), name) for q, name in QUANTILES],
        ),
        lines(
            "Commits a second",
            "By who completed them.",
            "ops",
            *[(commits(by), by) for by in ["members", "disk", "both"]],
            stacked=True,
        ),
        lines(
            "Share completed by the disk",
            "Lenders are for keeping this at 0.",
            "percentunit",
            (f"{commits('disk')} / {commits('')}", "by the disk"),
        ),
        lines(
            "Members",
            "Lenders that hold the window, and those that should.",
            "short",
            (f"netram_journal_members{{{JOURNALS}}}", "{{journal}}"),
            (f"netram_journal_members_wanted{{{JOURNALS}}}", "{{journal}} wanted"),
        ),
        lines(
            "Lenders that cannot be reached",
            "By journal and address.",
            "short",
            (f"netram_journal_lender_up{{{JOURNALS}}} == 0", "{{journal}}: {{lender}}"),
        ),
        lines(
            "Disk sync latency",
            "Commits that need the disk are no faster than this.",
            "s",
            *[
                (
                    f"histogram_quantile({q}, sum by (le) (rate(netram_disk_sync_duration_seconds_bucket{{{JOURNALS}}}[{RATE}])))",
                    name,
                )
                for q, name in QUANTILES
            ],
        ),
        lines(
            "Log in use",
            "Appends are refused at 1.",
            "percentunit",
            (
                f"netram_journal_log_used_bytes{{{JOURNALS}}} / netram_journal_log_capacity_bytes{{{JOURNALS}}}",
                "{{journal}}",
            ),
        ),
        lines(
            "Recovery",
            "Time that the recovery took which opened the journal.",
            "s",
            (f"netram_recovery_duration_seconds{{{JOURNALS}}}", "{{journal}}"),
        ),
        lines(
            "Records recovered from lenders",
            "The local disk did not have them.",
            "short",
            (f"netram_recovery_member_records{{{JOURNALS}}}", "{{journal}}"),
        ),
    ]


def lenders():
    """Returns the panels on lenders."""
    return [
        lines(
            "Lent, offered, reserved",
            "Near what is offered, clients are refused; less offered than reserved: the machine is short of memory.",
            "bytes",
            (f"netram_lender_lent_bytes{{{LENDERS}}}", "{{lender}} lent"),
            (f"netram_lender_offered_bytes{{{LENDERS}}}", "{{lender}} offered"),
            (f"netram_lender_reserved_bytes{{{LENDERS}}}", "{{lender}} reserved"),
        ),
        lines(
            "Free",
            "What further journals can have.",
            "bytes",
            (
                f"netram_lender_offered_bytes{{{LENDERS}}} - netram_lender_lent_bytes{{{LENDERS}}}",
                "{{lender}}",
            ),
        ),
        lines(
            "Held for clients",
            "Bytes that clients' disks may not have yet.",
            "bytes",
            (f"netram_lender_held_bytes{{{LENDERS}}}", "{{lender}}"),
        ),
        lines(
            "Refusals and failed handshakes a second",
            "By cause. Worry about wrong_key.",
            "ops",
            (f"rate(netram_lender_refusals_total{{{LENDERS}}}[{RATE}]) > 0", "{{lender}}: {{cause}}"),
            (
                f"rate(netram_lender_handshakes_failed_total{{{LENDERS}}}[{RATE}]) > 0",
                "{{lender}}: handshake, {{cause}}",
            ),
        ),
    ]


QUANTILES = [(0.5, "half"), (0.99, "99 of 100"), (0.999, "999 of 1000")]
ROWS = [("Needs a person", attention), ("Journals", journals), ("Lenders", lenders)]


def variable(name, label, values):
    """Returns a choice of the dashboard, with all values as the first."""
    return (
        dashboard.QueryVariable(name)
        .label(label)
        .datasource(SOURCE)
        .query(values)
        .refresh(models.VariableRefresh.ON_TIME_RANGE_CHANGED)
        .multi(True)
        .include_all(True)
        .all_value(".*")
    )


def build():
    """Returns the dashboard."""
    made = (
        dashboard.Dashboard("netram")
        .uid("netram")
        .description(
            "What is at risk, how fast commits are, and what lenders have left. Made by `make grafana`."
        )
        .tags(["netram"])
        .time("now-1h", "now")
        .refresh("10s")
        .tooltip(models.DashboardCursorSync.CROSSHAIR)
        .readonly()
        .with_variable(dashboard.DatasourceVariable("source").label("Prometheus").type("prometheus"))
        .with_variable(variable("journal", "Journal", "label_values(netram_journal_members, journal)"))
        .with_variable(variable("lender", "Lender", "label_values(netram_lender_reserved_bytes, lender)"))
    )
    for title, panels in ROWS:
        made = made.with_row(dashboard.Row(title))
        for panel in panels():
            made = made.with_panel(panel)
    return made.build()


if __name__ == "__main__":
    document = json.loads(json.dumps(build(), cls=JSONEncoder))
    for index, panel in enumerate(document["panels"]):
        panel["id"] = index + 1
    print(json.dumps(document, indent=2, sort_keys=True))
