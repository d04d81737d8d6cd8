//! The table of the README, from one report: Kennel beside others, and a sentence for each of them that says who is ahead.

use serde_json::Value;

use crate::peers::measure::{Column, Measure, columns};
use crate::summary::cell;

/// What a reader wants to know first.
const SHOWN: [Measure; 9] = [
    Measure::Attach,
    Measure::P50,
    Measure::P99,
    Measure::Calls,
    Measure::Pss10,
    Measure::GoneHeld,
    Measure::ServerKilled,
    Measure::BrokerKilled,
    Measure::Wakes,
];
/// The parts of a report that it is made of.
const PARTS: [&str; 3] = ["calls", "crowds", "ends"];
/// Less than this is the same: a run is not more exact.
const LEVEL: f64 = 1.05;

/// Empty, if nothing of it was measured.
pub(crate) fn table(report: &Value) -> String {
    let ways = ways(report);
    let Some(ours) = ways.iter().find(|way| way.name == "kennel") else {
        return String::new();
    };
    let shown: Vec<&Column> = SHOWN
        .iter()
        .filter_map(|measure| columns().find(|column| column.measure == *measure))
        .collect();
    let mut text = format!(
        "`cargo xtask bench`, one run of {} s: clients of `@modelcontextprotocol/server-everything`, a server for each and one\n\
         behind each broker; medians, on a machine with {} processors. Small is good, but for calls.\n\n| |",
        report["seconds"], report["machine"]["processors"]
    );
    for column in &shown {
        text.push_str(&format!(" {} |", column.title));
    }
    text.push_str(&format!("\n|---|{}\n", "---|".repeat(shown.len())));
    for way in &ways {
        let name = match &*way.name {
            "direct" => "a server for each client",
            "kennel, solo" => "the same behind Kennel",
            "kennel" => "**Kennel**, shared",
            name => name,
        };
        text.push_str(&format!("| {name} |"));
        for column in &shown {
            let is_best = way.is_broker()
                && ways
                    .iter()
                    .filter(|other| other.is_broker())
                    .all(|other| !other.is_ahead_of(way, column, 1.0));
            let words = cell(&way.value(column));
            text.push_str(&match is_best && way.number(column).is_some() {
                true => format!(" **{words}** |"),
                false => format!(" {words} |"),
            });
        }
        text.push('\n');
    }
    text.push('\n');
    for way in ways.iter().filter(|way| way.is_peer()) {
        text.push_str(&sentence(ours, way, &shown));
    }
    let peers = report["peers"].as_array().into_iter().flatten();
    let peers: Vec<_> = peers.filter_map(Value::as_str).collect();
    text.push_str(&format!("\nVersions: {}.\n", peers.join(", ")));
    text
}

fn sentence(ours: &Way<'_>, peer: &Way<'_>, shown: &[&Column]) -> String {
    let titles = |is_so: &dyn Fn(&Column) -> bool| {
        let columns = shown.iter().filter(|column| is_so(column));
        let titles: Vec<_> = columns.map(|column| column.title).collect();
        titles.join("; ")
    };
    let behind = titles(&|column| peer.is_ahead_of(ours, column, LEVEL));
    let level = titles(&|column| {
        let both = ours.number(column).is_some() && peer.number(column).is_some();
        let someone =
            peer.is_ahead_of(ours, column, LEVEL) || ours.is_ahead_of(peer, column, LEVEL);
        both && !someone
    });
    let astray = match peer.astray {
        Some(astray) => format!(" ({astray})"),
        None => String::new(),
    };
    let name = format!("{}{astray}", peer.name);
    let level = match &*level {
        "" => String::new(),
        level => format!(", level in: {level}"),
    };
    match &*behind {
        "" => format!("Of {name}, Kennel is behind in nothing{level}.\n"),
        behind => format!("Of {name}, Kennel is behind in: {behind}{level}.\n"),
    }
}

/// One row of every part.
struct Way<'a> {
    name: String,
    /// How many answers were another's, if any.
    astray: Option<&'a str>,
    rows: Vec<&'a Value>,
}

fn ways(report: &Value) -> Vec<Way<'_>> {
    let benchmarks = || report["benchmarks"].as_array().into_iter().flatten();
    let parts = PARTS.map(|part| {
        let name = format!("peers, everything, {part}");
        benchmarks().find(|benchmark| benchmark["benchmark"] == name)
    });
    let mut ways: Vec<Way<'_>> = Vec::new();
    for part in parts.into_iter().flatten() {
        for row in part["rows"].as_array().into_iter().flatten() {
            let full = row["name"].as_str().unwrap_or_default();
            let (name, remark) = full.split_once(" (").unwrap_or((full, ""));
            let place = ways.iter().position(|way| way.name == name);
            let place = place.unwrap_or_else(|| {
                ways.push(Way {
                    name: name.to_owned(),
                    astray: None,
                    rows: Vec::new(),
                });
                ways.len() - 1
            });
            let way = &mut ways[place];
            way.rows.push(row);
            if remark.contains("astray") {
                way.astray = Some(remark.trim_end_matches(')'));
            }
        }
    }
    ways
}

impl Way<'_> {
    fn is_broker(&self) -> bool {
        self.is_peer() || self.name == "kennel"
    }

    fn is_peer(&self) -> bool {
        !["direct", "kennel, solo", "kennel"].contains(&&*self.name)
    }

    fn value(&self, column: &Column) -> Value {
        let mut values = self.rows.iter().map(|row| &row[column.name]);
        let value = values.find(|value| !value.is_null());
        value.cloned().unwrap_or_default()
    }

    /// What never happened takes for ever; none, if it was not measured.
    fn number(&self, column: &Column) -> Option<f64> {
        match self.value(column) {
            Value::String(_) => Some(f64::INFINITY),
            value => value.as_f64(),
        }
    }

    /// By so many times, and measured both.
    fn is_ahead_of(&self, other: &Way<'_>, column: &Column, times: f64) -> bool {
        let pair = self.number(column).zip(other.number(column));
        pair.is_some_and(|(own, theirs)| match column.more_is_better {
            true => own > theirs * times,
            false => own * times < theirs,
        })
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn who_is_ahead_is_said_whoever_it_is() {
        let rows = |rows: Value| json!({"benchmark": "peers, everything, calls", "rows": rows});
        let report = json!({
            "seconds": 5, "machine": {"processors": 2}, "peers": ["fast@1"],
            "benchmarks": [rows(json!([
                {"name": "direct", "attach_ms": 1.0, "calls_per_s": 10.0},
                {"name": "kennel", "attach_ms": 4.0, "calls_per_s": 9.0, "p50_us": 100.0},
                {"name": "fast", "attach_ms": 2.0, "calls_per_s": 5.0, "p50_us": 101.0},
                {"name": "odd (3 of 5 answers astray)", "attach_ms": "never"},
            ]))],
        });
        let text = table(&report);
        let row = "| fast | **2.00** | 101 | – | 5.00 |";
        assert!(text.contains(row), "{text}");
        assert!(text.contains("| **Kennel**, shared | 4.00 | **100** | – | **9.00** |"));
        assert!(text.contains("| odd | never |"));
        let said = "Of fast, Kennel is behind in: warm attach, ms, level in: call p50, µs.";
        assert!(text.contains(said), "{text}");
        let said = "Of odd (3 of 5 answers astray), Kennel is behind in nothing.";
        assert!(text.contains(said), "{text}");
    }
}
