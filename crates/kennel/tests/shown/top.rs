//! `kennel top`, on a terminal.

use kennel_sys::Signal;
use kennel_testkit::{Scope, Terminal, run, wait_for};

use crate::stage::{in_terminal, kennel, listing, server_of, session, shared, terminal_command};

const ENTER: &str = "\x1b[?1049h";
const LEAVE_SCREEN: &str = "\x1b[?1049l";
const SHOW_CURSOR: &str = "\x1b[?25h";

/// Waits until its last line is in the last row, and nothing is beyond the last column.
#[track_caller]
fn fills(terminal: &Terminal, columns: u16, rows: u16) {
    wait_for(&format!("it fills {columns}x{rows}"), || {
        let screen = terminal.screen_with_margin();
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
    assert!(at(LEAVE_SCREEN) > at(ENTER), "{said:?}");
    assert!(at(SHOW_CURSOR) > at(ENTER), "{said:?}");
    assert!(at(SHOW_CURSOR) > said.rfind("\x1b[?25l").unwrap_or(0));
}

#[test]
fn it_draws_large_and_small_follows_the_window_and_gives_the_terminal_back() {
    let scope = Scope::new("top");
    let _clients = [shared(&scope), shared(&scope)];
    let signals = [Signal::TERM, Signal::HUP, Signal::INT, Signal::QUIT];
    for (signal, size) in signals.into_iter().zip([(120, 40), (60, 20)].repeat(2)) {
        let terminal = in_terminal(&scope, &["top"], size.0, size.1);
        for words in ["tk-server", "serving", "last events", "attached"] {
            terminal.shows(words);
        }
        fills(&terminal, size.0, size.1);
        for (columns, rows) in [(180 - size.0, 60 - size.1), (7, 2), (60, 20), (100, 30)] {
            terminal.resize(columns, rows);
            if columns > 7 {
                fills(&terminal, columns, rows);
            }
        }
        // It may have been small for a moment that nobody saw, and what did not fit is gone.
        let before = terminal.written().len();
        terminal.signal(Signal::WINCH);
        wait_for("all of it is drawn anew", || {
            let anew = terminal.written();
            (anew[before..].contains("NAME") && anew[before..].contains("help")).then_some(())
        });
        terminal.signal(signal);
        let (code, said) = terminal.finish();
        assert_eq!(code, Some(128 + signal.as_raw()));
        is_restored(&said);
    }
}

#[test]
fn a_terminal_that_claims_a_huge_size_is_filled_only_in_part() {
    let scope = Scope::new("top-huge");
    let mut terminal = in_terminal(&scope, &["top"], 65535, 65535);
    fills(&terminal, 1000, 500);
    terminal.types("q");
    let (code, said) = terminal.finish();
    assert_eq!(code, Some(0));
    is_restored(&said);
}

#[test]
fn it_gives_the_terminal_back_while_it_is_stopped() {
    let scope = Scope::new("top-stopped");
    let mut terminal = in_terminal(&scope, &["top"], 80, 24);
    fills(&terminal, 80, 24);
    terminal.signal(Signal::TSTP);
    wait_for("it gives the terminal back", || {
        let said = terminal.written();
        (said.rfind(LEAVE_SCREEN) > said.rfind(ENTER)).then_some(())
    });
    wait_for("it is drawn anew", || {
        // It may not have stopped yet.
        terminal.signal(Signal::CONT);
        let said = terminal.written();
        let anew = said
            .rfind(ENTER)
            .filter(|&at| Some(at) > said.rfind(LEAVE_SCREEN));
        said[anew?..].contains("help").then_some(())
    });
    terminal.types("q");
    let (code, said) = terminal.finish();
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
        let kennel = kennel(&scope);
        let mut shell = scope.command("sh");
        shell.args(["-c", "trap '' HUP; exec \"$@\"", "sh"]);
        shell.arg(kennel.get_program()).args(words);
        let terminal = Terminal::start(shell.env("TERM", "xterm-256color"), 80, 24);
        terminal.shows("serving");
        assert_eq!(terminal.close(), Some(code), "{words:?}");
    }
    let terminal = in_terminal(&scope, &["top"], 80, 24);
    terminal.shows("serving");
    assert_eq!(terminal.close(), Some(hangup));
}

#[test]
fn signals_end_it_though_nobody_reads_its_terminal() {
    let scope = Scope::new("top-unread");
    let _client = shared(&scope);
    for words in [&["top"][..], &["ps", "--watch"]] {
        for signal in [Signal::TERM, Signal::INT, Signal::HUP] {
            let mut terminal = in_terminal(&scope, words, 200, 60);
            terminal.shows("serving");
            terminal.stop_reading();
            terminal.fill();
            // It draws all of it anew, and cannot.
            terminal.signal(Signal::WINCH);
            terminal.signal(signal);
            assert!(terminal.exit_code().is_some(), "{words:?}: {signal:?}");
        }
    }
}

#[test]
fn on_a_terminal_without_a_cursor_it_says_what_to_use() {
    let scope = Scope::new("top-dumb");
    for words in [&["top"][..], &["ps", "--watch"]] {
        let mut command = terminal_command(&scope);
        let terminal = Terminal::start(command.args(words).env("TERM", "dumb"), 80, 24);
        let (code, said) = terminal.finish();
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
    let mut terminal = in_terminal(&scope, &["top"], 100, 30);
    terminal.shows("q quit");
    terminal.types("?");
    terminal.shows("stop it (asks)");
    terminal.types("q/shared-nobody");
    terminal.shows("no server matches the filter");
    terminal.types("\x1b");
    terminal.shows(&format!("server {server}"));
    terminal.types("l");
    terminal.shows("log of tk-server");
    terminal.types("q");
    terminal.types("s");
    terminal.shows("for all its sessions? [y/N]");
    terminal.types("n");
    terminal.shows("q quit");
    let key = |entry: &serde_json::Value| entry["mode"].as_str().map(str::to_owned);
    assert_eq!(listing(&scope).iter().filter_map(key).count(), 2);
    terminal.types("s");
    terminal.types("y");
    terminal.shows("was asked to stop");
    wait_for("one is left", || (listing(&scope).len() == 1).then_some(()));
    terminal.types("q");
    let (code, said) = terminal.finish();
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
        let mut command = terminal_command(&scope);
        command.arg("top").envs(variables.iter().copied());
        let mut terminal = Terminal::start(&command, 100, 30);
        terminal.shows("serving");
        terminal.types("q");
        let (_, said) = terminal.finish();
        let codes = said.split("\x1b[").filter_map(|part| part.split_once('m'));
        let is_hue = |code: &str| code.starts_with("38;5") || code.starts_with('3');
        let mut hues = codes.filter(|(code, _)| is_hue(code) && *code != "39");
        hues.next().is_some()
    };
    assert!(coloured(&[]));
    assert!(!coloured(&[("NO_COLOR", "1")]));
}
