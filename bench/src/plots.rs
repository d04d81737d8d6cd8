//! The plots of a report: what of the peers is seen at a glance.

use std::fs;
use std::io;
use std::path::Path;

use serde_json::Value;

use crate::svg::{self, Series};

/// Over counts of clients: file, title, unit, and a column for each count.
const OVER_CLIENTS: [(&str, &str, &str, [&str; 4]); 2] = [
    (
        "memory.svg",
        "Memory of all processes, by clients (less is better)",
        "MB (PSS)",
        ["pss_1_mb", "pss_10_mb", "pss_50_mb", "pss_100_mb"],
    ),
    (
        "throughput.svg",
        "Calls a second of all clients (more is better)",
        "calls/s",
        ["calls_1", "calls_10", "calls_50", "calls_100"],
    ),
];
const COUNTS: [f64; 4] = [1.0, 10.0, 50.0, 100.0];
/// One number for each: file, title, part of the report, column.
const DOTS: [(&str, &str, &str, &str); 4] = [
    (
        "attach.svg",
        "A client attaches to a broker that is up",
        "calls",
        "attach_ms",
    ),
    (
        "app-death.svg",
        "An app is killed, its pipe is held open: until all that was started for it is gone",
        "ends",
        "gone_held_ms",
    ),
    (
        "recovery-server.svg",
        "The server is killed: until the next answer in the same session",
        "ends",
        "server_ms",
    ),
    (
        "recovery-broker.svg",
        "The broker is killed: until the next answer in the same session",
        "ends",
        "broker_ms",
    ),
];

/// Draws what was measured; a plot of nothing is not drawn.
pub(crate) fn write(dir: &Path, report: &Value) -> io::Result<()> {
    for (file, title, unit, columns) in OVER_CLIENTS {
        let series = series(report, "crowds", &columns);
        save(dir, file, &svg::lines(title, unit, &COUNTS, &series))?;
    }
    for (file, title, part, column) in DOTS {
        let series = series(report, part, &[column]);
        let unit = "ms, in steps of ten (less is better)";
        save(dir, file, &svg::dots(title, unit, &series))?;
    }
    Ok(())
}

fn save(dir: &Path, file: &str, svg: &str) -> io::Result<()> {
    match svg {
        "" => Ok(()),
        svg => fs::write(dir.join(file), svg),
    }
}

fn series(report: &Value, part: &str, columns: &[&str]) -> Vec<Series> {
    let name = format!("peers, everything, {part}");
    let mut benchmarks = report["benchmarks"].as_array().into_iter().flatten();
    let rows = benchmarks
        .find(|benchmark| benchmark["benchmark"] == name)
        .and_then(|benchmark| benchmark["rows"].as_array());
    let rows = rows.into_iter().flatten().enumerate();
    let all = rows.map(|(place, row)| {
        let full = row["name"].as_str().unwrap_or_default();
        let value = |column: &&str| match &row[*column] {
            Value::String(_) => Some(f64::INFINITY),
            value => value.as_f64(),
        };
        Series {
            name: match full.split_once(" (").map_or(full, |(name, _)| name) {
                "kennel" => "kennel, shared".to_owned(),
                "direct" => "a server for each".to_owned(),
                name => name.to_owned(),
            },
            place,
            values: columns.iter().map(value).collect(),
        }
    });
    all.filter(|one| one.values.iter().any(Option::is_some))
        .collect()
}
