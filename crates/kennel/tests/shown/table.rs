//! `kennel ps`.

use kennel_sys::Signal;
use kennel_sys::process::ProcessRef;
use kennel_testkit::{Client, Scope, bin, wait_for};

use crate::stage::{in_terminal, kennel, listing, lose_server, says, server_of, session, shared};

#[test]
fn a_restart_is_told_with_its_reason_and_its_time() {
    let scope = Scope::new("ps-restart");
    let mut client = shared(&scope);
    let old = server_of(&mut client);
    let said = says(&scope, &["ps"]);
    assert!(!said.contains("restarted"), "{said}");
    lose_server(&mut client);
    let entry = wait_for("the reason is known", || {
        let entry = listing(&scope).remove(0);
        (entry["last_restart"]["reason"] == "it was ended by signal 9").then_some(entry)
    });
    assert_eq!(entry["restarts"], 1);
    assert_eq!(entry["last_restart"]["server"], old);
    let told = format!("server {old}: it was ended by signal 9");
    let said = says(&scope, &["ps"]);
    assert!(
        said.contains("restarted once, last ") && said.contains(&told),
        "{said}"
    );
}

#[test]
fn a_stopped_server_is_shown_as_stopped_until_it_is_continued() {
    let scope = Scope::new("ps-stopped");
    let (mut shared, mut solo) = (shared(&scope), session(&scope, &["--share", "never"]));
    let servers =
        [&mut shared, &mut solo].map(|client| ProcessRef::open(server_of(client)).unwrap());
    let shown = || {
        let entries = listing(&scope);
        let stopped = entries
            .iter()
            .map(|entry| entry["servers"][0]["stopped"]["pid"].as_u64());
        let stopped: Vec<u64> = stopped.collect::<Option<_>>()?;
        (stopped.len() == servers.len()).then_some(stopped)
    };
    wait_for("both are listed", || {
        let serving = says(&scope, &["ps"]).matches(" serving ").count();
        (serving == 2).then_some(())
    });
    assert_eq!(shown(), None);
    for server in &servers {
        server.signal(Signal::STOP).unwrap();
    }
    let stopped = wait_for("both are shown as stopped", shown);
    let said = says(&scope, &["ps"]);
    assert_eq!(said.matches(" stopped ").count(), 4, "{said}");
    for server in &servers {
        let pid = server.pid();
        assert!(stopped.contains(&u64::from(pid)), "{pid}: {stopped:?}");
        let fix = format!("continue it with: kill -CONT {pid}\n");
        assert!(said.contains(&fix), "{said}");
        server.signal(Signal::CONT).unwrap();
    }
    wait_for("both are shown as serving", || {
        let said = says(&scope, &["ps"]);
        (said.matches(" serving ").count() == 2 && !said.contains("stopped")).then_some(())
    });
    assert_eq!(shown(), None);
}

#[test]
fn requests_are_counted_though_nobody_comes_or_goes() {
    let scope = Scope::new("ps-requests");
    let mut client = shared(&scope);
    let asked = || listing(&scope)[0]["servers"][0]["requests"].as_u64();
    wait_for("it is listed", asked);
    for round in 1..=2 {
        for _ in 0..20 {
            server_of(&mut client);
        }
        wait_for("all of them", || (asked()? >= round * 20).then_some(()));
    }
}

#[test]
fn the_table_fits_80_columns_and_wide_has_the_rest() {
    let scope = Scope::new("ps-table");
    let (mut one, mut two) = (shared(&scope), shared(&scope));
    let mut alone = session(&scope, &["--share", "never"]);
    let servers = [server_of(&mut one), server_of(&mut alone)];
    assert_eq!(server_of(&mut two), servers[0]);
    let said = wait_for("both are shown", || {
        let said = says(&scope, &["ps"]);
        (said.lines().count() == 3 && said.contains("  2 ")).then_some(said)
    });
    assert!(
        said.lines().all(|line| line.chars().count() <= 80),
        "{said}"
    );
    assert!(!said.contains('\x1b'), "no colour in a pipe: {said}");
    // Its app is who started it, this test, and calls itself by another name, which its record has a moment later.
    let name = std::fs::read_to_string("/proc/self/comm").unwrap();
    let told = format!("of testkit ({} ", name.trim());
    let wide = wait_for("all three clients are shown by the name they say", || {
        let wide = says(&scope, &["ps", "--wide"]);
        (wide.matches(&told).count() == 3).then_some(wide)
    });
    for server in servers {
        assert!(wide.contains(&format!("server {server}")), "{wide}");
    }
    assert!(wide.contains("dedicated: "), "{wide}");
    assert!(said.contains(" testkit"), "{said}");
}

#[test]
fn who_is_idle_says_for_how_long() {
    let scope = Scope::new("ps-idle");
    let client = session(&scope, &["--share", "always", "--linger", "1h"]);
    drop(client);
    wait_for("it is idle for a while", || {
        let said = says(&scope, &["ps"]);
        let (_, idle) = said.split_once(" idle ")?;
        let (seconds, _) = idle.split_once("s ")?;
        (seconds.parse::<u32>().ok()? > 0).then_some(())
    });
}

#[test]
fn watch_wants_a_terminal_redraws_what_changes_and_ends_with_its_cursor() {
    let scope = Scope::new("ps-watch");
    let refused = kennel_testkit::run(kennel(&scope).args(["ps", "--watch"]));
    assert_eq!(refused.code(), Some(2), "{}", refused.stdout);
    assert!(refused.stderr.contains("--json"), "{}", refused.stderr);
    let mut terminal = in_terminal(&scope, &["ps", "--watch"], 100, 30);
    terminal.shows("nothing runs");
    let _client = shared(&scope);
    terminal.shows("tk-server");
    terminal.resize(60, 20);
    terminal.shows("tk-server");
    terminal.types("\x03");
    let (code, said) = terminal.finish();
    assert_eq!(code, Some(0), "{said}");
    assert!(said.contains("\x1b[?25h"), "{said:?}");
}

#[test]
fn a_session_on_its_own_counts_its_requests_and_restarts_too() {
    let scope = Scope::new("ps-solo");
    let mut client = session(&scope, &["--share", "never"]);
    let old = server_of(&mut client);
    for _ in 0..20 {
        server_of(&mut client);
    }
    let requests = || listing(&scope).first()?["servers"][0]["requests"].as_u64();
    wait_for("all of them", || (requests()? >= 21).then_some(()));
    let since = listing(&scope)[0]["since"].clone();
    let new = lose_server(&mut client);
    let entry = wait_for("the restart is told", || {
        let entry = listing(&scope).remove(0);
        (entry["restarts"] == 1 && entry["servers"][0]["pid"] == new).then_some(entry)
    });
    assert_eq!(entry["last_restart"]["reason"], "it was ended by signal 9");
    assert_eq!(entry["last_restart"]["server"], old);
    assert_eq!(entry["since"], since, "it is the same session");
    assert_eq!(entry["mode"], "solo");
    let said = says(&scope, &["ps"]);
    assert!(said.contains("restarted once, last "), "{said}");
}

#[test]
fn sessions_whose_shared_server_hibernates_are_one_line_and_shared() {
    let scope = Scope::new("ps-resting");
    let options = ["--share", "always", "--hibernate", "200ms"];
    let mut clients: Vec<_> = (0..3).map(|_| session(&scope, &options)).collect();
    for client in &mut clients {
        server_of(client);
    }
    let entry = wait_for("all of them rest", || {
        let listing = listing(&scope);
        let resting = listing.len() == 1 && listing[0]["state"] == "hibernating";
        let all = listing.first()?["clients"].as_array()?.len() == 3;
        (resting && all).then(|| listing[0].clone())
    });
    assert_eq!(entry["mode"], "shared", "{entry}");
    assert!(entry.get("why").is_none(), "{entry}");
    let key = entry["key"].as_str().unwrap();
    let said = says(&scope, &["stop", &key[..8]]);
    assert!(said.contains("there is nothing to stop"), "{said}");
    server_of(&mut clients[0]);
}

#[test]
fn a_name_cannot_move_the_cursor_wherever_it_is_shown() {
    let scope = Scope::new("ps-odd");
    let odd = scope.path("odd\x1b[2J\nname\u{202e}");
    std::os::unix::fs::symlink(bin("tk-server"), &odd).unwrap();
    let start = |share: &str| {
        let mut command = kennel(&scope);
        command.args(["run", "--stop-after", "50ms,50ms", "--share", share, "--"]);
        Client::begin(command.arg(&odd))
    };
    let _clients = [start("always"), start("never")];
    wait_for("both are listed", || {
        (listing(&scope).len() == 2).then_some(())
    });
    let config = scope.path("home/.cursor/mcp.json");
    std::fs::create_dir_all(config.parent().unwrap()).unwrap();
    let text = r#"{"mcpServers": {"odd\u001b[2J\nname\u202e": {"command": "/no/such/thing"}}}"#;
    std::fs::write(&config, text).unwrap();
    let name = "odd\x1b[2J\nname\u{202e}";
    let shown = |words: &[&str]| {
        let ended = kennel_testkit::run(kennel(&scope).args(words));
        let said = format!("{}{}", ended.stdout, ended.stderr);
        assert!(said.contains("odd\\u{1b}[2J"), "{words:?}: {said:?}");
        assert!(!said.contains(['\x1b', '\u{202e}']), "{words:?}: {said:?}");
        assert!(
            !said.lines().any(|line| line.starts_with("name")),
            "{said:?}"
        );
    };
    shown(&["ps"]);
    shown(&["ps", "--wide"]);
    shown(&["doctor"]);
    shown(&["purge", "--dry-run"]);
    shown(&["unwrap", "--dry-run"]);
    shown(&["logs", &format!("{name}?")]);
    shown(&["stop", &format!("{name}?")]);
    shown(&["stop", name]);
}

#[test]
fn what_a_launcher_started_is_what_the_server_holds() {
    let scope = Scope::new("ps-launcher");
    let mut command = kennel(&scope);
    command.args(["run", "--share", "always", "--", "sh", "-c", "\"$0\"; true"]);
    let mut client = Client::begin(command.arg(bin("tk-server")));
    let server = server_of(&mut client);
    let status = std::fs::read_to_string(format!("/proc/{server}/status")).unwrap();
    let line = status.lines().find_map(|it| it.strip_prefix("VmRSS:"));
    let kilobytes: u64 = line
        .unwrap()
        .trim_matches([' ', '\t', 'k', 'B'])
        .parse()
        .unwrap();
    let shown = wait_for("it is listed", || {
        listing(&scope)[0]["servers"][0]["rss_bytes"].as_u64()
    });
    // The launcher itself is in it, too.
    assert!(shown > kilobytes * 1024, "{shown}: {kilobytes} kB");
}

#[test]
fn a_server_whose_launcher_is_gone_is_shown_in_its_place_with_its_memory() {
    for share in ["never", "always"] {
        let scope = Scope::new("launcher");
        // What a shell starts in the background has no stdin of its own accord.
        let line = format!(
            "exec 3<&0; {} <&3 & echo $$ >&2; exit 0",
            bin("tk-server").display()
        );
        let mut command = kennel(&scope);
        command.args(["run", "--stop-after", "50ms,50ms", "--share", share]);
        command.args(["--", "sh", "-c", &line]);
        command.env("TESTKIT_ROLL", scope.roll());
        let mut client = Client::begin(&mut command);
        let server = server_of(&mut client);
        let shown = wait_for("the server is shown", || {
            let entry = listing(&scope).pop()?;
            let shown = &entry["servers"][0];
            (shown["pid"] == server).then(|| shown.clone())
        });
        let memory = shown["rss_bytes"].as_u64();
        assert!(
            memory.is_some_and(|bytes| bytes > 100_000),
            "{share}: {shown}"
        );
    }
}
