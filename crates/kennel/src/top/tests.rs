//! Tests of the model and the view, without a terminal.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use ratatui::Terminal;
use ratatui::backend::TestBackend;
use ratatui::layout::Rect;

use super::history::rate;
use super::keys::Key;
use super::model::{Action, Mode, Model, Sort};
use super::view;
use crate::listing::Entry;
use crate::logs::timeline::LogFormat;
use crate::ps::tests::entry;

fn named(name: &str, key: &str, apps: &[&str]) -> Entry {
    let mut entry = entry(name, apps);
    entry.key = key.to_owned();
    entry
}

fn model() -> Model {
    let mut model = Model::new(String::new(), true);
    model.update(three(), 1_000_000, Instant::now());
    model
}

fn three() -> Vec<Entry> {
    vec![
        named("memory", "aaaa", &["claude", "cursor"]),
        named("files", "bbbb", &["zed"]),
        named("browser", "cccc", &["claude", "claude", "claude"]),
    ]
}

fn press(model: &mut Model, key: Key) -> Action {
    model.key(key)
}

fn types(model: &mut Model, keys: &str) {
    for char in keys.chars() {
        press(model, Key::Char(char));
    }
}

fn names(model: &Model) -> Vec<&str> {
    model
        .visible_entries()
        .iter()
        .map(|entry| entry.name.as_str())
        .collect()
}

fn screen(model: &Model, columns: u16, rows: u16) -> Vec<String> {
    let mut terminal = Terminal::new(TestBackend::new(columns, rows)).unwrap();
    terminal.draw(|frame| view::draw(frame, model)).unwrap();
    let buffer = terminal.backend().buffer().clone();
    let cell = |x, y| buffer[(x, y)].symbol().to_owned();
    let row = |y| (0..columns).map(|x| cell(x, y)).collect::<String>();
    (0..rows).map(row).collect()
}

#[test]
fn it_sorts_by_what_is_asked_for() {
    let mut model = model();
    assert_eq!(names(&model), ["memory", "files", "browser"]);
    press(&mut model, Key::Char('o'));
    assert_eq!(
        (model.sort, names(&model)),
        (Sort::Name, vec!["browser", "files", "memory"])
    );
    types(&mut model, "oo");
    assert_eq!(
        (model.sort, names(&model)),
        (Sort::Clients, vec!["browser", "memory", "files"])
    );
    types(&mut model, "oo");
    assert_eq!(model.sort, Sort::Age);
}

#[test]
fn it_filters_while_it_is_typed_by_name_and_app() {
    let mut model = model();
    types(&mut model, "/CLAU");
    assert_eq!(names(&model), ["memory", "browser"]);
    press(&mut model, Key::Enter);
    press(&mut model, Key::Char('?'));
    assert_eq!(model.mode, Mode::Help);
    press(&mut model, Key::Char('q'));
    assert_eq!(names(&model).len(), 2, "the key closed the help alone");
    press(&mut model, Key::Esc);
    assert_eq!(names(&model).len(), 3);
    assert_eq!(press(&mut model, Key::Char('q')), Action::Quit);
}

#[test]
fn an_entry_is_stopped_only_after_a_yes_and_never_instead_of_another() {
    let mut model = model();
    press(&mut model, Key::Down);
    for no in [Key::Char('n'), Key::Enter, Key::Esc, Key::Char('s')] {
        press(&mut model, Key::Char('s'));
        assert_eq!(model.mode, Mode::Ask);
        assert_eq!(press(&mut model, no), Action::None);
    }
    press(&mut model, Key::Char('s'));
    assert_eq!(press(&mut model, Key::Char('y')), Action::Stop);
    assert_eq!(model.selected().unwrap().name, "files");
    // It ends while the user is asked.
    press(&mut model, Key::Char('s'));
    let mut others = three();
    others.remove(1);
    model.update(others, 1_000_001, Instant::now());
    assert_eq!(model.mode, Mode::Browse);
    assert_eq!(model.selected().unwrap().name, "browser", "its neighbour");
    assert_eq!(press(&mut model, Key::Char('y')), Action::None);
    // A hibernating session has nothing to stop.
    let mut resting = three();
    resting[0].state = "hibernating".to_owned();
    model.update(resting, 1_000_002, Instant::now());
    press(&mut model, Key::Home);
    press(&mut model, Key::Char('s'));
    assert_eq!(model.mode, Mode::Browse);
    assert!(model.message.is_some());
}

#[test]
fn the_selection_stays_on_an_entry_when_others_come_and_go() {
    let mut model = model();
    press(&mut model, Key::End);
    assert_eq!(model.selected().unwrap().name, "browser");
    let mut more = three();
    more.insert(0, named("another", "dddd", &[]));
    model.update(more, 1_000_001, Instant::now());
    assert_eq!(model.selected().unwrap().name, "browser");
    model.update(Vec::new(), 1_000_002, Instant::now());
    assert!(model.selected().is_none());
    press(&mut model, Key::Down);
    press(&mut model, Key::Char('l'));
    assert_eq!(model.mode, Mode::Browse);
}

#[test]
fn a_rate_counts_new_requests_and_is_not_negative_for_a_new_server() {
    let counts = |counts: &[(u32, u64)]| -> BTreeMap<u32, u64> { counts.iter().copied().collect() };
    let second = Duration::from_secs(1);
    let before = counts(&[(1, 100)]);
    assert_eq!(rate(&before, &counts(&[(1, 105)]), second), 50);
    assert_eq!(rate(&before, &counts(&[(1, 101)]), 2 * second), 5);
    assert_eq!(rate(&before, &counts(&[(2, 7)]), second), 70);
    assert_eq!(rate(&before, &counts(&[(1, 3)]), second), 0);
    assert_eq!(rate(&before, &counts(&[]), Duration::ZERO), 0);
}

#[test]
fn rows_are_given_by_the_height_alone_and_the_least_screen_has_a_list() {
    for (columns, rows) in [(120, 40), (60, 20), (60, 14), (60, 13), (20, 3)] {
        let areas = view::areas(Rect::new(0, 0, columns, rows));
        assert!(areas.list.height >= 1, "{rows}");
        assert_eq!(areas.footer.y, rows - 1);
        assert_eq!(areas.selected.is_some(), rows >= 14, "{rows}");
    }
}

#[test]
fn it_is_drawn_large_and_small_and_smaller() {
    let mut model = model();
    let line = "2026-12-31T23:59:59.999Z server says: a complaint";
    model.set_log(vec![LogFormat::Daemon.line(line)], None);
    let large = screen(&model, 120, 40).join("\n");
    for word in [
        "3 claude",
        "SAVED",
        "REQ/S",
        "ANSWER",
        "12ms",
        "server 4711",
        "a complaint",
        "? help",
        "6 clients",
    ] {
        assert!(large.contains(word), "{word}:\n{large}");
    }
    let small = screen(&model, 60, 20).join("\n");
    for word in [
        "memory",
        "serving",
        "browser",
        "12ms",
        "5m",
        "a complaint",
        "q quit",
    ] {
        assert!(small.contains(word), "{word}:\n{small}");
    }
    types(&mut model, "?");
    assert!(screen(&model, 60, 20).join("\n").contains("stop it (asks)"));
    types(&mut model, "ql");
    assert!(screen(&model, 60, 20)[0].contains("log of memory"));
    for (columns, rows) in [(1, 1), (5, 2), (20, 14), (300, 5), (10, 60)] {
        for mode in [
            Mode::Browse,
            Mode::Filter,
            Mode::Ask,
            Mode::Help,
            Mode::Log(9),
        ] {
            model.mode = mode;
            screen(&model, columns, rows);
        }
    }
}

#[test]
fn no_number_loses_a_digit_however_narrow_the_screen_is() {
    let mut large = named("a-server-of-a-long-name", "dddd", &["claude"; 1234]);
    large.since = 0;
    large.saved_bytes = 7_777 << 30;
    large.servers[0].rss_bytes = Some(5_555 << 30);
    large.servers[0].state.requests = u64::MAX;
    large.servers[0].state.latency_us = Some(u64::MAX);
    let mut model = Model::new(String::new(), false);
    model.update(vec![large], 1_800_000_000, Instant::now());
    let allowed = [
        "1234", "1", "1k", "5.4T", "7.5T", "18e", "57y", "0.0", "4711",
    ];
    for columns in 1..=140 {
        let screen = screen(&model, columns, 30);
        for (at, row) in screen.iter().enumerate().take(12) {
            // The first word is a heading or a name; footer and title have no numbers.
            for word in row.split_whitespace() {
                let word = word.trim_end_matches([',', '/', 's']);
                if word.starts_with(|char: char| char.is_ascii_digit()) {
                    assert!(
                        allowed.contains(&word) || word == "1234 claude" || word.ends_with('…'),
                        "{columns} columns, row {at}: {word:?} in {row:?}"
                    );
                }
            }
        }
        let heads = screen[1].split_whitespace().count();
        assert_eq!(heads, view::columns(columns).len(), "{:?}", screen[1]);
    }
    let heads = |columns: u16| -> Vec<&str> {
        let columns = view::columns(columns).into_iter();
        columns.map(|(head, ..)| head).collect()
    };
    assert_eq!(heads(40), ["NAME", "STATE", "CLI", "MEMORY", "AGE"]);
    assert_eq!(heads(20), ["NAME", "MEMORY"]);
    assert_eq!(heads(8), ["NAME"]);
}

#[test]
fn no_column_moves_when_entries_change_and_a_shortened_name_shows_it() {
    let long = "a-server-with-a-name-that-nobody-can-type-in-one-go-and-then-some-more-of-it";
    for columns in [60, 99, 100, 120] {
        let mut model = model();
        let before = screen(&model, columns, 30);
        let mut crowd = three();
        let apps: Vec<&str> = vec!["an-app-of-a-very-long-name"; 40];
        let mut large = named(long, "dddd", &apps);
        large.state = "a state that is unknown to this build".to_owned();
        large.servers[0].rss_bytes = Some(900 << 30);
        large.servers[0].state.requests = u64::MAX;
        large.servers[0].state.latency_us = Some(86_400_000_000);
        crowd.push(large);
        model.update(crowd, 1_000_000, Instant::now() + Duration::from_secs(1));
        let after = screen(&model, columns, 30);
        assert_eq!(before[1], after[1], "the heads");
        let row = &after[5];
        assert!(row.starts_with("a-server"), "{row}");
        assert_eq!(
            row.matches('…').count(),
            1 + usize::from(columns >= 100) + 1,
            "{row}"
        );
        // The gap between two columns is empty.
        let heads: Vec<char> = after[1].chars().collect();
        let widths: &[u16] = match columns {
            100.. => &[columns - 82, 12, 3, 24, 6, 6, 6, 6, 6, 4],
            _ => &[columns - 42, 11, 3, 6, 6, 6, 4],
        };
        let mut end = 0;
        for width in &widths[..widths.len() - 1] {
            end += usize::from(*width);
            for line in &after[1..6] {
                assert_eq!(line.chars().nth(end), Some(' '), "{end}: {line}");
            }
            assert_eq!(heads[end], ' ');
            end += 1;
        }
    }
}
