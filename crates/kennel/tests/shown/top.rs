//! `kennel top`, on a terminal.

use kennel_sys::Signal;
use kennel_testkit::{Scope, run, wait_for};

use crate::pty::Pty;
use crate::stage::{kennel, listing, server_of, session, shared};

const ENTER: &str = "\x1b[?1049h";
const LEAVE: &str = "\x1b[?1049l";
const SHOW_CURSOR: &str = "\x1b[?25h";

/// Waits until its last line is in the last row, and nothing is beyond the last column.
#[track_caller]
fn fills(pty: &Pty, columns: u16, rows: u16) {
    wait_for(&format!("it fills {columns}x{rows}"), || {
        let screen = pty.screen();
        let fits = screen
            .iter()
            .all(|row| row.chars().count() <= usize::from(columns));
        let full = screen.len() == usize::from(rows);
        (fits && full && screen.last()?.contains("? help")).then_some(())
    });
}

#[track_caller]
fn is_restored(said: &str) {
    let at = |words: &str| {
        said.rfind(words)
            .unwrap_or_else(|| panic!("{words:?}: {said:?}"))
    };
    assert!(at(LEAVE) > at(ENTER), "{said:?}");
    assert!(at(SHOW_CURSOR) > at(ENTER), "{said:?}");
    assert!(at(SHOW_CURSOR) > said.rfind("\x1b[?25l").unwrap_or(0));
}

#[test]
fn it_draws_large_and_small_follows_the_window_and_gives_the_terminal_back() {
    let scope = Scope::new("top");
    let _clients = [shared(&scope), shared(&scope)];
    let signals = [Signal::TERM, Signal::HUP, Signal::INT, Signal::QUIT];
    for (signal, size) in signals.into_iter().zip([(120, 40), (60, 20)].repeat(2)) {
        let Some(pty) = Pty::start(&scope, &["top"], size.0, size.1) else {
            return;
        };
        for words in ["tk-server", "serving", "last events", "attached"] {
            pty.shows(words);
        }
        fills(&pty, size.0, size.1);
        for (columns, rows) in [(180 - size.0, 60 - size.1), (7, 2), (60, 20), (100, 30)] {
            pty.resize(columns, rows);
            if columns > 7 {
                fills(&pty, columns, rows);
            }
        }
        // It may have been small for a moment that nobody saw, and what did not fit is gone.
        let before = pty.said().len();
        pty.signal(Signal::WINCH);
        wait_for("all of it is drawn anew", || {
            let anew = pty.said();
            (anew[before..].contains("NAME") && anew[before..].contains("help")).then_some(())
        });
        pty.signal(signal);
        let (code, said) = pty.ended();
        assert_eq!(code, Some(128 + signal.as_raw()));
        is_restored(&said);
    }
}

#[test]
fn a_terminal_that_claims_a_huge_size_is_filled_only_in_part() {
    let scope = Scope::new("top-huge");
    let Some(mut pty) = Pty::start(&scope, &["top"], 65535, 65535) else {
        return;
    };
    fills(&pty, 1000, 500);
    pty.types("q");
    let (code, said) = pty.ended();
    assert_eq!(code, Some(0));
    is_restored(&said);
}

#[test]
fn it_gives_the_terminal_back_while_it_is_stopped() {
    let scope = Scope::new("top-stopped");
    let Some(mut pty) = Pty::start(&scope, &["top"], 80, 24) else {
        return;
    };
    fills(&pty, 80, 24);
    pty.signal(Signal::TSTP);
    wait_for("it gives the terminal back", || {
        let said = pty.said();
        (said.rfind(LEAVE) > said.rfind(ENTER)).then_some(())
    });
    wait_for("it is drawn anew", || {
        // It may not have stopped yet.
        pty.signal(Signal::CONT);
        let said = pty.said();
        let anew = said.rfind(ENTER).filter(|&at| Some(at) > said.rfind(LEAVE));
        said[anew?..].contains("help").then_some(())
    });
    pty.types("q");
    let (code, said) = pty.ended();
    assert_eq!(code, Some(0));
    is_restored(&said);
}

#[test]
fn it_ends_with_its_terminal_though_no_signal_says_so() {
    let scope = Scope::new("top-closed");
    let _client = shared(&scope);
    let hangup = 128 + Signal::HUP.as_raw();
    for (words, code) in [(&["top"][..], hangup), (&["ps", "--watch"], 0)] {
        // A shell that ignores the hangup passes that on, as `nohup` does.
        let Some(pty) = Pty::start_ignoring_hangup(&scope, words, 80, 24) else {
            return;
        };
        pty.shows("serving");
        assert_eq!(pty.closed(), Some(code), "{words:?}");
    }
    let Some(pty) = Pty::start(&scope, &["top"], 80, 24) else {
        return;
    };
    pty.shows("serving");
    assert_eq!(pty.closed(), Some(hangup));
}

#[test]
fn signals_end_it_though_nobody_reads_its_terminal() {
    let scope = Scope::new("top-unread");
    let _client = shared(&scope);
    for words in [&["top"][..], &["ps", "--watch"]] {
        for signal in [Signal::TERM, Signal::INT, Signal::HUP] {
            let Some(mut pty) = Pty::start(&scope, words, 200, 60) else {
                return;
            };
            pty.shows("serving");
            pty.is_left_unread();
            pty.fill();
            // It draws all of it anew, and cannot.
            pty.signal(Signal::WINCH);
            pty.signal(signal);
            assert!(pty.ends().is_some(), "{words:?}: {signal:?}");
        }
    }
}

#[test]
fn on_a_terminal_without_a_cursor_it_says_what_to_use() {
    let scope = Scope::new("top-dumb");
    for words in [&["top"][..], &["ps", "--watch"]] {
        let Some(pty) = Pty::start_with(&scope, words, 80, 24, &[("TERM", "dumb")]) else {
            return;
        };
        let (code, said) = pty.ended();
        assert_eq!(code, Some(2), "{said}");
        assert!(
            said.contains("kennel ps") && !said.contains('\x1b'),
            "{said:?}"
        );
    }
}

#[test]
fn its_keys_find_stop_and_leave() {
    let scope = Scope::new("top-keys");
    let mut client = shared(&scope);
    let server = server_of(&mut client);
    let _alone = session(&scope, &["--share", "never"]);
    wait_for("both are listed", || {
        (listing(&scope).len() == 2).then_some(())
    });
    let Some(mut pty) = Pty::start(&scope, &["top"], 100, 30) else {
        return;
    };
    pty.shows("q quit");
    pty.types("?");
    pty.shows("stop it (asks)");
    pty.types("q/shared-nobody");
    pty.shows("nothing passes the filter");
    pty.types("\x1b");
    pty.shows(&format!("server {server}"));
    pty.types("l");
    pty.shows("log of tk-server");
    pty.types("q");
    pty.types("s");
    pty.shows("for all its sessions? [y/N]");
    pty.types("n");
    pty.shows("q quit");
    let key = |entry: &serde_json::Value| entry["mode"].as_str().map(str::to_owned);
    assert_eq!(listing(&scope).iter().filter_map(key).count(), 2);
    pty.types("s");
    pty.types("y");
    pty.shows("was asked to stop");
    wait_for("one is left", || (listing(&scope).len() == 1).then_some(()));
    pty.types("q");
    let (code, said) = pty.ended();
    assert_eq!(code, Some(0));
    is_restored(&said);
}

#[test]
fn without_a_terminal_it_says_what_to_use_and_without_colour_it_has_none() {
    let scope = Scope::new("top-plain");
    let refused = run(kennel(&scope).arg("top"));
    assert_eq!(refused.code(), Some(2));
    assert!(refused.stderr.contains("kennel ps"), "{}", refused.stderr);
    assert_eq!(refused.stdout, "");
    let _client = shared(&scope);
    let coloured = |variables: &[(&str, &str)]| {
        let mut pty = Pty::start_with(&scope, &["top"], 100, 30, variables)?;
        pty.shows("serving");
        pty.types("q");
        let (_, said) = pty.ended();
        let codes = said.split("\x1b[").filter_map(|part| part.split_once('m'));
        let is_hue = |code: &str| code.starts_with("38;5") || code.starts_with('3');
        let mut hues = codes.filter(|(code, _)| is_hue(code) && *code != "39");
        Some(hues.next().is_some())
    };
    if let Some(some) = coloured(&[]) {
        assert!(some);
        assert_eq!(coloured(&[("NO_COLOR", "1")]), Some(false));
    }
}
