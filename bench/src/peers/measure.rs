//! What is measured of every way.

/// A column.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Measure {
    Cold,
    Attach,
    P50,
    P99,
    Calls,
    Calls1,
    Calls10,
    Calls50,
    Calls100,
    Pss1,
    Pss10,
    Pss50,
    Pss100,
    Gone,
    GoneHeld,
    ServerKilled,
    BrokerKilled,
    Wakes,
}

/// About a column, for tables and sentences.
#[derive(Debug)]
pub(crate) struct Column {
    pub(crate) measure: Measure,
    /// In a report, unit last.
    pub(crate) name: &'static str,
    /// At the head of a table in a document.
    pub(crate) title: &'static str,
    /// As the subject of a sentence; none: it is shown and not judged.
    pub(crate) what: Option<&'static str>,
    pub(crate) more_is_better: bool,
}

const fn column(measure: Measure, name: &'static str, title: &'static str) -> Column {
    Column {
        measure,
        name,
        title,
        what: None,
        more_is_better: false,
    }
}

const fn judged(column: Column, what: &'static str) -> Column {
    Column {
        what: Some(what),
        ..column
    }
}

const fn more(column: Column) -> Column {
    Column {
        more_is_better: true,
        ..column
    }
}

/// Calls, taking turns.
pub(crate) const CALLS: &[Column] = &[
    column(Measure::Cold, "cold_ms", "cold attach, ms"),
    judged(
        column(Measure::Attach, "attach_ms", "warm attach, ms"),
        "a warm attach of kennel's takes",
    ),
    judged(
        column(Measure::P50, "p50_us", "call p50, µs"),
        "a call with kennel takes, at p50,",
    ),
    judged(
        column(Measure::P99, "p99_us", "call p99, µs"),
        "a call with kennel takes, at p99,",
    ),
    judged(
        more(column(Measure::Calls, "calls_per_s", "calls a second")),
        "many clients with kennel need for a call",
    ),
];

/// One way after the other, with ever more clients.
pub(crate) const CROWD: &[Column] = &[
    column(Measure::Pss1, "pss_1_mb", "1 client, MB"),
    judged(
        column(Measure::Pss10, "pss_10_mb", "10 clients, MB"),
        "ten clients with kennel hold",
    ),
    column(Measure::Pss50, "pss_50_mb", "50 clients, MB"),
    column(Measure::Pss100, "pss_100_mb", "100 clients, MB"),
    more(column(Measure::Calls1, "calls_1", "1 client, calls/s")),
    more(column(Measure::Calls10, "calls_10", "10 clients, calls/s")),
    more(column(Measure::Calls50, "calls_50", "50 clients, calls/s")),
    more(column(
        Measure::Calls100,
        "calls_100",
        "100 clients, calls/s",
    )),
];

/// Ends, and what there is after them.
pub(crate) const ENDS: &[Column] = &[
    column(Measure::Gone, "gone_ms", "app killed: gone after, ms"),
    column(
        Measure::GoneHeld,
        "gone_held_ms",
        "app killed, its pipe held open: gone after, ms",
    ),
    column(
        Measure::ServerKilled,
        "server_ms",
        "server killed: next answer, ms",
    ),
    column(
        Measure::BrokerKilled,
        "broker_ms",
        "broker killed: next answer, ms",
    ),
    column(Measure::Wakes, "wakes_per_min", "idle, wake-ups a minute"),
];

/// All of them.
pub(crate) fn columns() -> impl Iterator<Item = &'static Column> {
    CALLS.iter().chain(CROWD).chain(ENDS)
}

/// What does not happen before its deadline.
pub(crate) const NEVER: f64 = f64::INFINITY;
