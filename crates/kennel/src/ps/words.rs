//! An entry in a few words, for `ps` and `top`. Pure: `now` is handed in, in seconds since 1970.

use std::collections::BTreeMap;

use unicode_width::{UnicodeWidthChar as _, UnicodeWidthStr as _};

use crate::guard::record::Guarded;
use crate::listing::{Entry, Mode};
pub(crate) use kennel_sys::escape::{printable, printable_lines};

/// How good a state is, for its colour.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Mood {
    Well,
    Quiet,
    Odd,
}

/// Where it stands, as short as a column wants it.
pub(crate) fn state(entry: &Entry, now: u64) -> (String, Mood) {
    let stale = entry.servers.iter().any(|server| server.stale);
    let server_stopped = entry.servers.iter().any(|server| server.stopped.is_some());
    let serverless = entry.servers.is_empty() && !entry.clients.is_empty();
    let (word, mood) = match entry.state.as_str() {
        _ if entry.stopped.is_some() => ("stopped", Mood::Odd),
        "serving" | "idle" | "idle, owner gone" if server_stopped => ("stopped", Mood::Odd),
        "serving" if stale => ("stale", Mood::Odd),
        "serving" if entry.mode == Mode::Shared && serverless => match entry.restarts {
            0 => ("starting", Mood::Quiet),
            _ => ("restarting", Mood::Odd),
        },
        "serving" => ("serving", Mood::Well),
        "idle" | "idle, owner gone" => {
            let word = match entry.idle_since {
                Some(since) => format!("idle {}", age(since, now)),
                None => "idle".to_owned(),
            };
            return (word, Mood::Quiet);
        }
        "hibernating" => ("hibernating", Mood::Quiet),
        "server down" | "server down, owner gone" => ("restarting", Mood::Odd),
        "ended" | "ending" => ("ending", Mood::Odd),
        other if other.contains("owner gone") => ("owner gone", Mood::Odd),
        other => return (printable(other), Mood::Quiet),
    };
    (word.to_owned(), mood)
}

/// `3 claude, 1 cursor`: the most first. Of a guarded server nobody knows who is connected.
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

/// What its servers hold in memory.
pub(crate) fn memory(entry: &Entry) -> u64 {
    let held = entry.servers.iter().filter_map(|server| server.rss_bytes);
    held.sum()
}

/// How often its servers were asked something. Nobody counts what goes to ports, or to a server that is not there.
pub(crate) fn requests(entry: &Entry) -> Option<u64> {
    let asked = entry.servers.iter().map(|server| server.state.requests);
    let counted = !matches!(entry.mode, Mode::Guard | Mode::Kept);
    (counted && !entry.is_at_rest()).then(|| asked.sum())
}

/// How long it takes for an answer; of several servers, the slowest. Only a daemon measures.
pub(crate) fn latency(entry: &Entry) -> Option<u64> {
    let servers = entry.servers.iter();
    servers.filter_map(|server| server.state.latency_us).max()
}

/// `0.4ms`, `12ms`, `1.5s`, `240s`, `27h`, of microseconds. At most 6 characters.
pub(crate) fn took(micros: u64) -> String {
    let (millis, tenths) = (micros / 1_000, micros / 100 % 10);
    match millis {
        0..10 => format!("{millis}.{tenths}ms"),
        10..1_000 => format!("{millis}ms"),
        1_000..100_000 => format!("{}.{}s", millis / 1_000, millis / 100 % 10),
        100_000..100_000_000 => format!("{}s", millis / 1_000),
        100_000_000..100_000_000_000 => format!("{}h", millis / 3_600_000),
        // Nobody waits that long: a clock was set.
        _ => match millis / 31_557_600_000 {
            years @ 0..1_000 => format!("{years}y"),
            _ => ">999y".to_owned(),
        },
    }
}

pub(crate) fn mode(mode: Mode) -> &'static str {
    match mode {
        Mode::Solo => "solo",
        Mode::Shared => "shared",
        Mode::Guard => "guard",
        Mode::Kept => "kept",
    }
}

/// `812K`, `63M`, `1.2G`, `1.2T`. At most 6 characters for what a machine can hold.
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

/// The same, where nothing is not worth a number.
pub(crate) fn held(held: u64) -> String {
    match held {
        0 => "-".to_owned(),
        held => bytes(held),
    }
}

/// `999`, `12k`, `3m`, `3g`, `3t`: a column is narrow. At most 6 characters for what anybody can count to.
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

/// `999`, `12k`: a count in at most 3 characters, as long as it is below a hundred thousand.
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

/// How long ago that was.
pub(crate) fn age(since: u64, now: u64) -> String {
    match now.saturating_sub(since) {
        seconds @ ..120 => format!("{seconds}s"),
        seconds @ ..7_200 => format!("{}m", seconds / 60),
        seconds @ ..172_800 => format!("{}h", seconds / 3_600),
        seconds @ ..86_400_000 => format!("{}d", seconds / 86_400),
        // Nobody has a server that long: a clock was set.
        seconds => match seconds / 31_557_600 {
            years @ ..1_000 => format!("{years}y"),
            _ => "long".to_owned(),
        },
    }
}

/// What is not as usual, in whole sentences: who may wonder, and why.
pub(crate) fn notes(entry: &Entry, now: u64) -> Vec<String> {
    let stopped = entry.servers.iter().filter_map(|server| server.stopped);
    let mut notes: Vec<String> = stopped.map(|stopped| stopped.report()).collect();
    notes.extend(
        entry
            .stopped
            .map(|stopped| stopped.report_of(entry.keeper())),
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

/// Shortens a text to this many columns of a terminal; the last one is `…` if some are missing.
pub(crate) fn cut(text: &str, width: usize) -> String {
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

/// Fills a text with spaces behind it up to this many columns of a terminal.
pub(crate) fn pad_right(text: &str, width: usize) -> String {
    let missing = width.saturating_sub(text.width());
    format!("{text}{:missing$}", "")
}

/// The same with spaces before it.
pub(crate) fn pad_left(text: &str, width: usize) -> String {
    let missing = width.saturating_sub(text.width());
    format!("{:missing$}{text}", "")
}
