//! `kennel top` where people have it: in tmux, while sessions come and go.

use std::path::PathBuf;
use std::process::Command;
use std::time::{Duration, Instant};

use kennel_testkit::{Client, Scope, full, run, tool, wait_for};

use crate::stage::{server_of, session, shared};

/// A terminal of tmux's, with a server of its own. What it starts is the scope's.
struct Tmux<'s> {
    scope: &'s Scope,
    tmux: PathBuf,
}

impl Tmux<'_> {
    /// `kennel top`, and then a look at what it leaves. `None` where there is no tmux.
    fn start(scope: &Scope, columns: u16, rows: u16) -> Option<Tmux<'_>> {
        let tmux = tool("tmux")?;
        let it = Tmux { scope, tmux };
        let line = format!(
            "'{}' top; echo \"ended with $?\"; stty -a; echo 'all was told'; exec cat",
            env!("CARGO_BIN_EXE_kennel")
        );
        let (columns, rows) = (columns.to_string(), rows.to_string());
        it.says(&[
            "new-session",
            "-d",
            "-x",
            &columns,
            "-y",
            &rows,
            "sh",
            "-c",
            &line,
        ]);
        Some(it)
    }

    fn command(&self) -> Command {
        let mut command = self.scope.command(&self.tmux);
        command
            .arg("-S")
            .arg(self.scope.path("tmux"))
            .args(["-f", "/dev/null"]);
        command.env_remove("TMUX").env("LC_ALL", "C.UTF-8");
        command
    }

    #[track_caller]
    fn says(&self, words: &[&str]) -> String {
        let ended = run(self.command().args(words));
        assert_eq!(ended.code(), Some(0), "{words:?}: {}", ended.stderr);
        ended.stdout
    }

    fn screen(&self) -> Vec<String> {
        let screen = self.says(&["capture-pane", "-p"]);
        screen.lines().map(str::to_owned).collect()
    }

    #[track_caller]
    fn shows(&self, words: &str) {
        wait_for(&format!("tmux shows {words:?}"), || {
            let screen = self.screen();
            screen.iter().any(|row| row.contains(words)).then_some(())
        });
    }

    fn resize(&self, columns: u16, rows: u16) {
        let (columns, rows) = (columns.to_string(), rows.to_string());
        self.says(&["resize-window", "-x", &columns, "-y", &rows]);
    }

    /// The process that is in front: `sh`, and `kennel` below it.
    fn top(&self) -> String {
        let pid = self.says(&["display-message", "-p", "#{pane_pid}"]);
        let pid = pid.trim();
        let children = std::fs::read_to_string(format!("/proc/{pid}/task/{pid}/children"));
        children.unwrap().trim().to_owned()
    }

    #[track_caller]
    fn signals_top(&self, signal: &str) {
        let sent = run(self.scope.command("kill").args([signal, &self.top()]));
        assert_eq!(sent.code(), Some(0), "{}", sent.stderr);
    }
}

impl Drop for Tmux<'_> {
    fn drop(&mut self) {
        let _ = self.command().arg("kill-server").output();
    }
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
fn stands(tmux: &Tmux<'_>, heads_before: &str, columns: usize, rows: usize) {
    /// A picture stands for a second.
    const PICTURE: Duration = Duration::from_millis(800);
    let begun = Instant::now();
    loop {
        let screen = tmux.screen();
        match moved(&screen, heads_before, columns, rows) {
            None => return,
            Some(what) if begun.elapsed() > PICTURE => panic!("{what}:\n{}", screen.join("\n")),
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
        let scope = Scope::new("top-tmux");
        let mut stays = shared(&scope);
        let _alone = session(&scope, &["--share", "never"]);
        let Some(tmux) = Tmux::start(&scope, columns, rows) else {
            return;
        };
        tmux.shows("serving");
        tmux.shows("attached");
        let before = heads(&tmux.screen()).unwrap();
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
            stands(&tmux, &before, width, height);
        }
        tmux.shows("ms");
        if std::env::var_os("SHOW_SCREENS").is_some() {
            println!("{}", tmux.screen().join("\n"));
        }
        for (columns, rows) in [(180 - columns, 60 - rows), (20, 5), (1, 1), (columns, rows)] {
            tmux.resize(columns, rows);
        }
        wait_for("it is as it was", || {
            let screen = tmux.screen();
            let whole = screen.last().is_some_and(|row| row.starts_with("? help"));
            (whole && screen.len() == height && screen[1] == before).then_some(())
        });
        stands(&tmux, &before, width, height);
        tmux.signals_top("-TERM");
        tmux.shows("ended with 143");
        tmux.shows("all was told");
        let left = tmux.screen().join("\n");
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
        let cursor = tmux.says(&["display-message", "-p", "#{cursor_flag}#{alternate_on}"]);
        assert_eq!(
            cursor.trim(),
            "10",
            "its cursor is seen, on the screen that was there"
        );
    }
}
