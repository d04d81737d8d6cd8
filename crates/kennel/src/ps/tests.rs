//! Tests of the table, without running servers.

use unicode_width::UnicodeWidthStr as _;

use super::table::{TableStyle, lines};
use super::words;
use crate::daemon::{ClientState, Restart, ServerState};
use crate::listing::{Entry, Mode, Server};
use crate::stopped::StoppedProcess;

const NOW: u64 = 1_000_000;

pub(crate) fn entry(name: &str, apps: &[&str]) -> Entry {
    let client = |app: &&str| ClientState {
        pid: 7,
        app_pid: Some(6),
        app: Some((*app).to_owned()),
        client: None,
        since: NOW,
    };
    let state = ServerState {
        pid: 4711,
        class: Some("legacy 2025-06-18".to_owned()),
        since: NOW,
        requests: 12_345,
        latency_us: Some(12_300),
        clients: apps.len(),
        sources: Default::default(),
    };
    Entry {
        key: "0123456789abcdef".to_owned(),
        name: name.to_owned(),
        command: vec![name.to_owned()],
        cwd: "/x".to_owned(),
        mode: Mode::Shared,
        daemon_pid: Some(5),
        version: "1.2.3".to_owned(),
        since: NOW - 300,
        state: "serving".to_owned(),
        why: None,
        dedicated_for_now: false,
        owner: None,
        servers: vec![Server {
            state,
            rss_bytes: Some(60 << 20),
            stale: false,
            stopped: None,
        }],
        clients: apps.iter().map(client).collect(),
        saved_bytes: 120 << 20,
        restarts: 0,
        last_restart: None,
        idle_since: None,
        guarded: None,
        stopped: None,
        identity: None,
    }
}

fn shown(entries: &[Entry], columns: usize, wide: bool) -> Vec<String> {
    let look = TableStyle {
        columns,
        wide,
        colour: false,
        now: NOW,
    };
    lines(entries, look)
}

#[test]
fn a_line_has_everything_and_fits_80_columns_however_long_the_names_are() {
    let apps = ["claude", "cursor", "claude"];
    let short = shown(&[entry("memory", &apps)], 80, false);
    for word in [
        "memory",
        "serving",
        "2 claude, 1 cursor",
        "60M",
        "120M",
        "12k",
        "5m",
    ] {
        assert!(short[1].contains(word), "{word}: {short:?}");
    }
    let apps = [
        "an-app-of-a-long-name",
        "another-one-that-is-longer",
        "third",
    ];
    let mut long = entry(&"a-very-long-name-".repeat(8), &apps);
    long.restarts = 3;
    long.last_restart = Some(Restart {
        at: NOW - 10,
        reason: "its reason is told at length ".repeat(9),
        server: 9,
    });
    for columns in [80, 72, 100] {
        let lines = shown(&[long.clone(), entry("b", &[])], columns, false);
        for line in &lines {
            assert!(line.width() <= columns, "{columns}: {line}");
        }
        assert!(lines[1].contains('…'), "{lines:?}");
        let ages = lines.iter().filter(|line| line.ends_with("5m"));
        assert_eq!(ages.count(), 2, "{lines:?}");
    }
}

#[test]
fn wide_characters_take_two_columns_and_the_next_column_stays_in_line() {
    assert_eq!(words::truncate("メモリ", 6), "メモリ");
    assert_eq!(words::truncate("メモリ", 5), "メモ…");
    assert_eq!(words::truncate("メモリ", 4), "メ…");
    let lines = shown(
        &[entry("メモリ", &["app"]), entry("memory", &["app"])],
        80,
        false,
    );
    let columns_before = |line: &str| {
        let state = line.find("serving").expect("a state");
        line[..state].width()
    };
    assert_eq!(columns_before(&lines[1]), columns_before(&lines[2]));
}

#[test]
fn restarts_are_shown_with_reason_and_time_of_the_last() {
    let mut crashed = entry("memory", &["claude"]);
    crashed.restarts = 2;
    crashed.last_restart = Some(Restart {
        at: NOW - 30,
        reason: "it was ended by signal 9".to_owned(),
        server: 4710,
    });
    let lines = shown(&[crashed], 80, false);
    let told = "  restarted 2 times, last 30s ago: server 4710: it was ended by signal 9";
    assert_eq!(lines[2], told);
}

#[test]
fn a_state_is_a_word_or_two() {
    let of = |change: fn(&mut Entry)| {
        let mut entry = entry("x", &["a"]);
        change(&mut entry);
        words::state(&entry, NOW).0
    };
    assert_eq!(of(|_| {}), "serving");
    assert_eq!(of(|it| it.servers[0].stale = true), "stale");
    let stopped = StoppedProcess {
        pid: 4711,
        debugger: None,
    };
    for state in ["serving", "idle"] {
        let mut entry = entry("x", &["a"]);
        entry.state = state.to_owned();
        entry.servers[0].stale = true;
        entry.servers[0].stopped = Some(stopped);
        assert_eq!(words::state(&entry, NOW).0, "stopped");
        let notes = words::notes(&entry, NOW).join("\n");
        assert!(
            notes.contains("continue it with: kill -CONT 4711"),
            "{notes}"
        );
    }
    assert_eq!(of(|it| it.servers.clear()), "starting");
    assert_eq!(
        of(|it| {
            it.servers.clear();
            it.restarts = 1;
        }),
        "restarting"
    );
    assert_eq!(of(|it| it.state = "hibernating".to_owned()), "hibernating");
    assert_eq!(
        of(|it| {
            it.state = "idle".to_owned();
            it.idle_since = Some(NOW - 12);
        }),
        "idle 12s"
    );
    assert_eq!(
        of(|it| it.state = "owner gone, ends after its last connection".to_owned()),
        "owner gone"
    );
}

#[test]
fn wide_shows_key_version_pids_class_and_why_it_is_dedicated() {
    let mut alone = entry("memory", &["claude"]);
    alone.why = Some("not known to be safe".to_owned());
    let text = shown(&[alone], 80, true).join("\n");
    for word in [
        "0123456789abcdef",
        "1.2.3",
        "server 4711 (legacy 2025-06-18)",
        "client 7 of claude 6",
        "dedicated: not known to be safe",
    ] {
        assert!(text.contains(word), "{word}: {text}");
    }
}

#[test]
fn a_name_cannot_move_the_cursor_and_colour_is_used_only_if_wanted() {
    let rogue = entry("a\x1b[2Jb", &["c\nd"]);
    let plain = shown(std::slice::from_ref(&rogue), 80, true);
    assert!(
        plain.iter().all(|line| !line.contains(char::is_control)),
        "{plain:?}"
    );
    let look = TableStyle {
        columns: 80,
        wide: false,
        colour: true,
        now: NOW,
    };
    assert!(lines(&[rogue], look)[1].contains("\x1b[32mserving"));
}

#[test]
fn sizes_and_counts_are_short() {
    assert_eq!(words::bytes(5 << 10), "5K");
    assert_eq!(words::bytes((1 << 30) + (1 << 29)), "1.5G");
    assert_eq!(words::count(9_999), "9999");
    assert_eq!(words::count(12_000_000), "12m");
}
