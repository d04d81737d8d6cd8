//! `kennel top` in a terminal, while sessions come and go.

use std::time::{Duration, Instant};

use kennel_testkit::{Client, Scope, Terminal, full, run, wait_for};

use crate::stage::{kennel, server_of, session, shared};

/// `kennel top` below a shell, and then what it leaves.
fn top_in_a_shell(scope: &Scope, columns: u16, rows: u16) -> Terminal {
    let line = "\"$0\" top; echo \"ended with $?\"; stty -a; echo 'all was told'; exec cat";
    let kennel = kennel(scope);
    let mut shell = scope.command("sh");
    shell
        .args(["-c", line])
        .arg(kennel.get_program())
        .env("TERM", "xterm-256color")
        .env("LC_ALL", "C.UTF-8");
    Terminal::start(&shell, columns, rows)
}

/// Ends `kennel top`, the only child of the shell.
#[track_caller]
fn terminate_top(scope: &Scope, terminal: &Terminal) {
    let pid = terminal.pid();
    let children = std::fs::read_to_string(format!("/proc/{pid}/task/{pid}/children"));
    let children = children.unwrap();
    let sent = run(scope.command("kill").args(["-TERM", children.trim()]));
    assert_eq!(sent.code(), Some(0), "{}", sent.stderr);
}

/// Each head with the column where it ends or begins: what must not move.
fn heads(screen: &[String]) -> Option<String> {
    screen.iter().find(|row| row.starts_with("NAME ")).cloned()
}

/// All that is fixed stands where it stood, and no row is cut in two.
///
/// A terminal hands a picture over in pieces, so one look may fall between two of them; a picture that is wrong is
/// still wrong at the next look.
#[track_caller]
fn stands(terminal: &Terminal, heads_before: &str, columns: usize, rows: usize) {
    /// A picture stands for a second.
    const FRAME_BUFFER_SIZE: Duration = Duration::from_millis(800);
    let begun = Instant::now();
    loop {
        let screen = terminal.screen();
        match moved(&screen, heads_before, columns, rows) {
            None => return,
            Some(what) if begun.elapsed() > FRAME_BUFFER_SIZE => {
                panic!("{what}:\n{}", screen.join("\n"))
            }
            Some(_) => {}
        }
    }
}

/// What is not where it stood.
fn moved(
    screen: &[String],
    heads_before: &str,
    columns: usize,
    rows: usize,
) -> Option<&'static str> {
    let list = (rows - 2) * 2 / 5;
    let row = |at: usize| screen.get(at).map_or("", String::as_str);
    let fixed = [
        ("as many rows", screen.len() == rows),
        ("its head", row(0).starts_with("kennel  ")),
        ("the heads of the list", row(1) == heads_before),
        ("its foot", row(rows - 1).starts_with("? help")),
        (
            "what fits",
            screen.iter().all(|row| row.chars().count() <= columns),
        ),
        (
            "the chosen one's line",
            row(1 + list).contains(" · shared · "),
        ),
        ("last events", row(1 + list + 7).contains("last events")),
        ("some of them", row(1 + list + 8).contains("kennel")),
    ];
    let gone = fixed.into_iter().find(|(_, stands)| !stands);
    gone.map(|(what, _)| what)
}

#[test]
fn nothing_moves_while_twenty_clients_come_and_go_and_a_kill_gives_the_terminal_back() {
    let lasts = Duration::from_secs(if full() { 60 } else { 4 });
    for (columns, rows) in [(120, 40), (60, 20)] {
        let scope = Scope::new("top-crowd");
        let mut stays = shared(&scope);
        let _alone = session(&scope, &["--share", "never"]);
        let terminal = top_in_a_shell(&scope, columns, rows);
        terminal.shows("serving");
        terminal.shows("attached");
        let before = heads(&terminal.screen()).unwrap();
        let (width, height) = (usize::from(columns), usize::from(rows));
        let mut crowd: Vec<Client> = Vec::new();
        let (until, mut came) = (Instant::now() + lasts, 0);
        while Instant::now() < until || came < 20 {
            let mut client = shared(&scope);
            server_of(&mut client);
            server_of(&mut stays);
            crowd.push(client);
            came += 1;
            if crowd.len() > 10 {
                // The oldest half goes at once.
                crowd.drain(..5);
            }
            stands(&terminal, &before, width, height);
        }
        terminal.shows("ms");
        if std::env::var_os("SHOW_SCREENS").is_some() {
            println!("{}", terminal.screen().join("\n"));
        }
        for (columns, rows) in [(180 - columns, 60 - rows), (20, 5), (1, 1), (columns, rows)] {
            terminal.resize(columns, rows);
        }
        wait_for("it is as it was", || {
            let screen = terminal.screen();
            let whole = screen.last().is_some_and(|row| row.starts_with("? help"));
            (whole && screen.len() == height && screen[1] == before).then_some(())
        });
        stands(&terminal, &before, width, height);
        terminate_top(&scope, &terminal);
        terminal.shows("ended with 143");
        terminal.shows("all was told");
        let left = terminal.screen().join("\n");
        assert!(
            !left.contains("NAME ") && !left.contains("? help"),
            "{left}"
        );
        for mode in ["icanon", "echo", "opost", "isig"] {
            assert!(
                left.split_whitespace().any(|it| it == mode),
                "{mode}: {left}"
            );
        }
        assert_eq!(
            terminal.cursor_and_alternate_screen(),
            (true, false),
            "its cursor is seen, on the screen that was there"
        );
    }
}
