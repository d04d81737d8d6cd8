//! The texts of an entry for `ps` and `top`. Pure: `now` is an argument, in seconds since 1970.

use std::collections::BTreeMap;

use unicode_width::{UnicodeWidthChar as _, UnicodeWidthStr as _};

use crate::guard::record::Guarded;
use crate::listing::{Entry, Mode};
pub(crate) use kennel_sys::escape::{printable, printable_lines};

/// How good a state is; decides its colour.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Health {
    Good,
    Inactive,
    Warning,
}

/// The state of an entry, short enough for a column.
pub(crate) fn state(entry: &Entry, now: u64) -> (String, Health) {
    let stale = entry.servers.iter().any(|server| server.stale);
    let server_stopped = entry.servers.iter().any(|server| server.stopped.is_some());
    let serverless = entry.servers.is_empty() && !entry.clients.is_empty();
    let (word, health) = match entry.state.as_str() {
        _ if entry.stopped.is_some() => ("stopped", Health::Warning),
        "serving" | "idle" | "idle, owner gone" if server_stopped => ("stopped", Health::Warning),
        "serving" if stale => ("stale", Health::Warning),
        "serving" if entry.mode == Mode::Shared && serverless => match entry.restarts {
            0 => ("starting", Health::Inactive),
            _ => ("restarting", Health::Warning),
        },
        "serving" => ("serving", Health::Good),
        "idle" | "idle, owner gone" => {
            let word = match entry.idle_since {
                Some(since) => format!("idle {}", age(since, now)),
                None => "idle".to_owned(),
            };
            return (word, Health::Inactive);
        }
        "hibernating" => ("hibernating", Health::Inactive),
        "server down" | "server down, owner gone" => ("restarting", Health::Warning),
        "ended" | "ending" => ("ending", Health::Warning),
        other if other.contains("owner gone") => ("owner gone", Health::Warning),
        other => return (printable(other), Health::Inactive),
    };
    (word.to_owned(), health)
}

/// `3 claude, 1 cursor`: the most frequent first. The apps of a guarded server are unknown.
pub(crate) fn clients(entry: &Entry) -> String {
    if let Some(guarded) = &entry.guarded {
        return match guarded.connections {
            0 => "-".to_owned(),
            open => format!("{open} connected"),
        };
    }
    let mut apps: BTreeMap<&str, usize> = BTreeMap::new();
    for client in &entry.clients {
        *apps.entry(client.name()).or_default() += 1;
    }
    let mut apps: Vec<(&str, usize)> = apps.into_iter().collect();
    apps.sort_by_key(|&(_, count)| std::cmp::Reverse(count));
    if apps.is_empty() {
        return "-".to_owned();
    }
    let words = apps
        .iter()
        .map(|(app, count)| format!("{count} {}", printable(app)));
    words.collect::<Vec<_>>().join(", ")
}

/// The memory that its servers use.
pub(crate) fn memory(entry: &Entry) -> u64 {
    let held = entry.servers.iter().filter_map(|server| server.rss_bytes);
    held.sum()
}

/// Number of requests to its servers. `None` if they are not counted: requests to ports, or without a server.
pub(crate) fn requests(entry: &Entry) -> Option<u64> {
    let asked = entry.servers.iter().map(|server| server.state.requests);
    let counted = !matches!(entry.mode, Mode::Guard | Mode::Kept);
    (counted && !entry.is_hibernating()).then(|| asked.sum())
}

/// How long an answer takes; of several servers, the slowest. Only a daemon measures it.
pub(crate) fn latency(entry: &Entry) -> Option<u64> {
    let servers = entry.servers.iter();
    servers.filter_map(|server| server.state.latency_us).max()
}

/// Formats microseconds: `0.4ms`, `12ms`, `1.5s`, `240s`, `27h`. At most 6 characters.
pub(crate) fn format_latency(micros: u64) -> String {
    let (millis, tenths) = (micros / 1_000, micros / 100 % 10);
    match millis {
        0..10 => format!("{millis}.{tenths}ms"),
        10..1_000 => format!("{millis}ms"),
        1_000..100_000 => format!("{}.{}s", millis / 1_000, millis / 100 % 10),
        100_000..100_000_000 => format!("{}s", millis / 1_000),
        100_000_000..100_000_000_000 => format!("{}h", millis / 3_600_000),
        // More than a year: the clock was set.
        _ => match millis / 31_557_600_000 {
            years @ 0..1_000 => format!("{years}y"),
            _ => ">999y".to_owned(),
        },
    }
}

/// Formats a size: `812K`, `63M`, `1.2G`, `1.2T`. At most 6 characters for sizes of today's machines.
pub(crate) fn bytes(bytes: u64) -> String {
    match bytes >> 10 {
        0..1024 => format!("{}K", bytes >> 10),
        1024..0x10_0000 => format!("{}M", bytes >> 20),
        kilobytes => {
            let (unit, shift) = match kilobytes {
                ..0x3e80_0000 => ('G', 30),
                0x3e80_0000..0xfa_0000_0000 => ('T', 40),
                _ => ('P', 50),
            };
            let tenths = (u128::from(bytes) * 10) >> shift;
            format!("{}.{}{unit}", tenths / 10, tenths % 10)
        }
    }
}

/// The same, with `-` for zero.
pub(crate) fn format_memory(held: u64) -> String {
    match held {
        0 => "-".to_owned(),
        held => bytes(held),
    }
}

/// Formats a count: `999`, `12k`, `3m`, `3g`, `3t`. At most 6 characters.
pub(crate) fn count(count: u64) -> String {
    match count {
        0..10_000 => count.to_string(),
        10_000..10_000_000 => format!("{}k", count / 1_000),
        10_000_000..10_000_000_000 => format!("{}m", count / 1_000_000),
        10_000_000_000..10_000_000_000_000 => format!("{}g", count / 1_000_000_000),
        _ => match count / 1_000_000_000_000 {
            trillions @ 0..100_000 => format!("{trillions}t"),
            trillions => format!("{}e", trillions / 1_000_000),
        },
    }
}

/// Formats a count in at most 3 characters, up to a hundred thousand: `999`, `12k`.
pub(crate) fn few(count: usize) -> String {
    match count {
        0..1_000 => count.to_string(),
        1_000..100_000 => format!("{}k", count / 1_000),
        _ => "lot".to_owned(),
    }
}

/// `1 client`, `2 clients`.
pub(crate) fn counted(count: usize, what: &str) -> String {
    let plural = if count == 1 { "" } else { "s" };
    format!("{count} {what}{plural}")
}

/// Formats a time for a sentence: `30 s`, `12 min`, `3 h`, `4 days`.
pub(crate) fn duration(seconds: u64) -> String {
    match seconds {
        0..120 => format!("{seconds} s"),
        120..7_200 => format!("{} min", seconds / 60),
        7_200..172_800 => format!("{} h", seconds / 3_600),
        _ => format!("{} days", seconds / 86_400),
    }
}

/// How long ago `since` was, for a narrow column.
pub(crate) fn age(since: u64, now: u64) -> String {
    match now.saturating_sub(since) {
        seconds @ ..120 => format!("{seconds}s"),
        seconds @ ..7_200 => format!("{}m", seconds / 60),
        seconds @ ..172_800 => format!("{}h", seconds / 3_600),
        seconds @ ..86_400_000 => format!("{}d", seconds / 86_400),
        // More than a year: the clock was set.
        seconds => match seconds / 31_557_600 {
            years @ ..1_000 => format!("{years}y"),
            _ => "long".to_owned(),
        },
    }
}

/// Anything unusual, as whole sentences.
pub(crate) fn notes(entry: &Entry, now: u64) -> Vec<String> {
    let stopped = entry.servers.iter().filter_map(|server| server.stopped);
    let mut notes: Vec<String> = stopped.map(|stopped| stopped.report()).collect();
    notes.extend(
        entry
            .stopped
            .map(|stopped| stopped.report_of(entry.process_kind())),
    );
    let stale = entry.servers.iter().filter(|server| server.stale);
    notes.extend(stale.map(|server| {
        let pid = server.state.pid;
        format!("server {pid} is stale: its files changed since it was started")
    }));
    notes.extend(restarts(entry, now));
    let guarded = entry.guarded.as_ref();
    notes.extend(guarded.map(|guarded| guard(entry, guarded)));
    if let (Mode::Kept, Some(why)) = (entry.mode, &entry.why) {
        notes.push(format!(
            "outlived its server: {}; `kennel stop {}` ends it",
            printable(why),
            entry.key
        ));
    }
    notes
}

fn restarts(entry: &Entry, now: u64) -> Option<String> {
    let times = match entry.restarts {
        0 => return None,
        1 => "once".to_owned(),
        times => format!("{times} times"),
    };
    Some(match &entry.last_restart {
        Some(last) => {
            let (server, ago) = (last.server, age(last.at, now));
            let reason = printable(&last.reason);
            format!("restarted {times}, last {ago} ago: server {server}: {reason}")
        }
        None => format!("restarted {times}"),
    })
}

fn guard(entry: &Entry, guarded: &Guarded) -> String {
    let ports: Vec<String> = guarded.ports.iter().map(u16::to_string).collect();
    let ports = match &ports[..] {
        [] => "no port".to_owned(),
        [port] => format!("port {port}"),
        several => format!("ports {}", several.join(", ")),
    };
    match (entry.owner, guarded.owner_alive) {
        (Some(owner), Some(true)) => format!("listens on {ports}; its owner is {owner}"),
        (_, Some(_)) => format!("listens on {ports}; {}", entry.state),
        (_, None) => format!("listens on {ports}; without an owner"),
    }
}

/// Shortens a text to this many columns of a terminal; ends with `…` if something is missing.
pub(crate) fn truncate(text: &str, width: usize) -> String {
    if text.width() <= width {
        return text.to_owned();
    }
    let mut cut = String::new();
    let mut used = 0;
    for char in text.chars() {
        used += char.width().unwrap_or(0);
        if used >= width {
            break;
        }
        cut.push(char);
    }
    cut.extend((width > 0).then_some('…'));
    cut
}

/// Appends spaces up to this many columns of a terminal.
pub(crate) fn pad_right(text: &str, width: usize) -> String {
    let missing = width.saturating_sub(text.width());
    format!("{text}{:missing$}", "")
}

/// Prepends spaces up to this many columns of a terminal.
pub(crate) fn pad_left(text: &str, width: usize) -> String {
    let missing = width.saturating_sub(text.width());
    format!("{:missing$}{text}", "")
}
