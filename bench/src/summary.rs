//! The whole report of a run, as files: JSON for programs, Markdown for people.

use std::fs;
use std::io;
use std::path::Path;

use serde_json::{Value, json};

use crate::options::Options;

const REPORT: &str = "report.json";

/// Writes what was measured, and what was not.
pub(crate) fn write(dir: &Path, options: &Options, seconds: u64) -> io::Result<()> {
    let (told, skipped) = options.take();
    fs::create_dir_all(dir)?;
    let report = json!({
        "machine": machine(),
        "quick": options.quick,
        "seconds": seconds,
        "peers": peers(),
        "benchmarks": told,
        "skipped": skipped,
    });
    fs::write(dir.join(REPORT), format!("{report:#}\n"))?;
    draw(dir, &report)
}

/// The same once more, from the report that is there.
pub(crate) fn redraw(dir: &Path) -> io::Result<()> {
    let report = fs::read_to_string(dir.join(REPORT))?;
    draw(dir, &serde_json::from_str(&report)?)
}

fn draw(dir: &Path, report: &Value) -> io::Result<()> {
    fs::write(dir.join("report.md"), markdown(report))?;
    #[cfg(target_os = "linux")]
    fs::write(dir.join("readme.md"), crate::readme::table(report))?;
    crate::plots::write(dir, report)
}

/// What is installed of others, as their installers wrote it down.
fn peers() -> Vec<String> {
    let dir = std::env::var_os("BENCH_PEERS").unwrap_or_default();
    let parts = fs::read_dir(dir).into_iter().flatten().flatten();
    let lists = parts.filter_map(|part| fs::read_to_string(part.path().join("installed")).ok());
    let mut peers: Vec<String> = lists
        .flat_map(|list| list.lines().map(str::to_owned).collect::<Vec<_>>())
        .map(|peer| peer.replace("==", " ").replace('@', " "))
        .collect();
    peers.sort();
    peers
}

/// What the numbers depend on.
fn machine() -> Value {
    let read = |path: &str| fs::read_to_string(path).unwrap_or_default();
    let kernel = read("/proc/sys/kernel/osrelease");
    let processors = std::thread::available_parallelism().map_or(0, usize::from);
    let info = read("/proc/cpuinfo");
    let model = info
        .lines()
        .find_map(|line| line.strip_prefix("model name"));
    let model = model.map(|model| model.trim_matches([' ', '\t', ':']));
    let memory = read("/proc/meminfo");
    let kilobytes = memory.lines().next().and_then(|line| {
        let words = line.split_whitespace().nth(1)?;
        words.parse::<f64>().ok()
    });
    json!({
        "processors": processors,
        "model": model,
        "kernel": kernel.trim(),
        "memory_gb": kilobytes.map(|kilobytes| (kilobytes / 1048576.0).round()),
    })
}

fn markdown(report: &Value) -> String {
    let mut text = String::from("# Kennel, measured\n\n");
    let machine = &report["machine"];
    text.push_str(&format!(
        "One run of {} s{} on {} processors ({}), Linux {}. Ratios mean more than times: what is compared took turns.\n",
        report["seconds"],
        if report["quick"] == true { ", too short to judge by," } else { "" },
        machine["processors"],
        machine["model"].as_str().unwrap_or("unknown"),
        machine["kernel"].as_str().unwrap_or("unknown"),
    ));
    for skipped in report["skipped"].as_array().into_iter().flatten() {
        text.push_str(&format!("\nSkipped: {}\n", skipped.as_str().unwrap_or("?")));
    }
    for benchmark in report["benchmarks"].as_array().into_iter().flatten() {
        text.push_str(&section(benchmark));
    }
    text
}

fn section(benchmark: &Value) -> String {
    let name = benchmark["benchmark"].as_str().unwrap_or("?");
    let mut text = format!("\n## {name}\n");
    let Some(columns) = benchmark["columns"].as_array() else {
        // Of those that have no table: what they say of themselves.
        let mut bare = benchmark.clone();
        if let Some(object) = bare.as_object_mut() {
            object.remove("batches");
            object.remove("benchmark");
        }
        text.push_str(&format!("\n`{bare}`\n"));
        return text;
    };
    let columns: Vec<&str> = columns.iter().filter_map(Value::as_str).collect();
    let about = benchmark["about"].as_str().unwrap_or_default();
    text.push_str(&format!("\n{about}\n\n| |"));
    for column in &columns {
        text.push_str(&format!(" {} |", column.replace('_', " ")));
    }
    text.push_str(&format!("\n|---|{}\n", "---|".repeat(columns.len())));
    let rows: Vec<&Value> = benchmark["rows"].as_array().into_iter().flatten().collect();
    let ours = rows.iter().find(|row| row["name"] == "kennel");
    for row in &rows {
        text.push_str(&format!("| {} |", row["name"].as_str().unwrap_or("?")));
        for column in &columns {
            let value = &row[*column];
            let ratio = ours.and_then(|ours| Some(value.as_f64()? / ours[*column].as_f64()?));
            // Of nothing there is no multiple.
            let ratio = ratio.filter(|ratio| ratio.is_finite());
            text.push_str(&match ratio {
                Some(ratio) => format!(" {} ({}x) |", cell(value), rounded(ratio)),
                None => format!(" {} |", cell(value)),
            });
        }
        text.push('\n');
    }
    if ours.is_some() {
        text.push_str("\nIn brackets: times what `kennel` has.\n");
    }
    let bounds: Vec<&Value> = benchmark["bounds"]
        .as_array()
        .into_iter()
        .flatten()
        .collect();
    if !bounds.is_empty() {
        text.push_str("\n| | ratio | at most | |\n|---|---|---|---|\n");
    }
    for bound in bounds {
        let words = |name: &str| bound[name].as_str().unwrap_or_default().to_owned();
        text.push_str(&format!(
            "| {} … {} | {} | {} | {} |\n",
            words("what"),
            words("unit"),
            cell(&bound["value"]),
            cell(&bound["at_most"]),
            if bound["pass"] == true {
                "pass"
            } else {
                "FAIL"
            },
        ));
    }
    text
}

/// A number as people read it; what never happened; or nothing.
pub(crate) fn cell(value: &Value) -> String {
    match value {
        Value::String(words) => words.clone(),
        value => value.as_f64().map_or("–".to_owned(), rounded),
    }
}

/// Three digits that matter.
pub(crate) fn rounded(number: f64) -> String {
    match number.abs() {
        large if large >= 100.0 => format!("{number:.0}"),
        middle if middle >= 10.0 => format!("{number:.1}"),
        _ => format!("{number:.2}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_table_holds_ratios_to_our_own_row_and_what_never_happened() {
        let benchmark = json!({
            "benchmark": "trial", "about": "what it is", "columns": ["p50_us", "gone_ms"],
            "rows": [
                {"name": "kennel", "p50_us": 200.0, "gone_ms": 3.0},
                {"name": "other", "p50_us": 500.0, "gone_ms": "never"},
                {"name": "none", "p50_us": null, "gone_ms": 1.5},
            ],
            "bounds": [{"what": "a call takes", "unit": "x of other", "value": 0.4, "at_most": 1.0, "pass": true}],
        });
        let text = section(&benchmark);
        assert!(text.contains("| other | 500 (2.50x) | never |"), "{text}");
        assert!(text.contains("| none | – | 1.50 (0.50x) |"), "{text}");
        assert!(text.contains("| a call takes … x of other | 0.40 | 1.00 | pass |"));
    }
}
