//! `kennel run` with a server of its own: what the app hears, and what is left when somebody dies.

use std::io::{BufRead, BufReader, Write};
use std::os::unix::fs::PermissionsExt as _;
use std::process::Stdio;
use std::time::Duration;

use kennel_sys::Signal;
use kennel_sys::process::ProcessRef;
use kennel_testkit::{Client, DEADLINE, Rng, Scope, bin, count, on_each_kernel, run, wait_for};
use serde_json::json;

use crate::stage::{kennel, server_of, solo, warden_of};

#[test]
fn a_session_goes_on_when_its_server_dies() {
    let scope = Scope::new("crash");
    let mut client = Client::begin(&mut solo(&scope));
    for round in 0..3 {
        let server = server_of(&mut client);
        let begun = format!("round {round} has begun");
        let lost = client.send("slow", json!({"ms": 600_000, "stderr": begun}));
        // What had not reached the server would wait for the next one, and not be lost.
        wait_for(&begun, || {
            client.stderr_so_far().contains(&begun).then_some(())
        });
        server.signal(Signal::KILL).unwrap();
        let answer = client.answer(lost);
        let data = &answer["error"]["data"];
        assert_eq!(answer["error"]["code"], -32603, "{answer}");
        assert_eq!(data["reason"], "server_restarted");
        assert_eq!(data["outcome"], "unknown");
        assert_eq!(data["replayed"], false);
        let echo = client.request("echo", json!({"round": round}));
        assert_eq!(echo["result"], json!({"round": round}));
        assert_ne!(server_of(&mut client).pid(), server.pid());
    }
    client.close();
    assert_eq!(client.wait().code(), Some(0));
}

#[test]
fn a_long_request_is_heard_while_it_comes_and_one_that_is_no_good_is_no_line() {
    let scope = Scope::new("ahead");
    let text = "x".repeat(300_000);
    for is_good in [true, false] {
        let heard = scope.path(format!("heard-{is_good}"));
        let heard_so_far = || std::fs::read(&heard).unwrap_or_default();
        let mut command = kennel(&scope);
        command.args(["run", "--share", "never", "--", "sh", "-c", "cat >$HEARD"]);
        let mut client = Client::start(command.env("HEARD", &heard));
        let begun =
            format!("{{\"jsonrpc\":\"2.0\",\"method\":\"notifications/x\",\"params\":[\"{text}");
        client.say(&begun);
        wait_for("the server hears the beginning", || {
            (heard_so_far().len() > text.len() / 2).then_some(())
        });
        let end = if is_good { "\"]}\n" } else { "\n" };
        let next = "{\"jsonrpc\":\"2.0\",\"method\":\"notifications/y\"}\n";
        client.say(end);
        client.say(next);
        client.close();
        assert_eq!(client.wait().code(), Some(0));
        let heard = String::from_utf8(heard_so_far()).unwrap();
        if is_good {
            assert!(heard == format!("{begun}{end}{next}"));
        } else {
            let (bad, rest) = heard.split_once("\u{18}\n").unwrap();
            assert!(begun.starts_with(bad));
            assert_eq!(rest, next);
        }
    }
}

#[test]
fn what_the_session_says_to_a_server_comes_between_lines_and_not_into_one() {
    let scope = Scope::new("between");
    let heard = scope.path("heard");
    let asks = r#"{"jsonrpc":"2.0","id":null,"method":"roots/list"}"#;
    let tells = r#"{"jsonrpc":"2.0","method":"notifications/asked"}"#;
    let script = format!("head -c 70000 >$HEARD; echo '{asks}'; echo '{tells}'; cat >>$HEARD");
    let mut command = kennel(&scope);
    command.args(["run", "--share", "never", "--", "sh", "-c", &script]);
    let mut client = Client::start(command.env("HEARD", &heard));
    let text = "x".repeat(300_000);
    let begun =
        format!("{{\"jsonrpc\":\"2.0\",\"method\":\"notifications/x\",\"params\":[\"{text}");
    client.say(&begun);
    assert_eq!(client.line().as_deref(), Some(tells));
    client.say("\"]}\n");
    client.close();
    assert_eq!(client.wait().code(), Some(0));
    let heard = std::fs::read_to_string(heard).unwrap();
    let (line, refusal) = heard.split_once('\n').unwrap();
    assert!(line == format!("{begun}\"]}}"));
    assert!(refusal.contains("-32600"), "{refusal}");
}

#[test]
fn a_long_line_without_its_newline_is_said_once() {
    let scope = Scope::new("last");
    let mut client = Client::start(&mut solo(&scope));
    let text = "x".repeat(300_000);
    client.say(&format!(
        "{{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"echo\",\"params\":[\"{text}\"]}}"
    ));
    client.close();
    // The server would end on a line that is none.
    assert!(client.answer(1)["result"] == json!([text]));
    assert_eq!(client.wait().code(), Some(0));
}

#[test]
fn a_request_of_a_dead_server_is_cancelled_and_its_late_answer_goes_nowhere() {
    let scope = Scope::new("reverse");
    let mut client = Client::begin(&mut solo(&scope));
    client.say("{\"jsonrpc\":\"2.0\",\"id\":50,\"method\":\"ask\"}\n");
    assert!(client.line().unwrap().contains("roots/list"));
    assert!(client.line().unwrap().contains("asked"));
    client.say("{\"jsonrpc\":\"2.0\",\"id\":51,\"method\":\"die\"}\n");
    let heard = [client.line().unwrap(), client.line().unwrap()];
    assert!(
        heard
            .iter()
            .any(|line| line.contains("notifications/cancelled") && line.contains('7')),
        "{heard:?}"
    );
    client.say("{\"jsonrpc\":\"2.0\",\"id\":7,\"result\":{\"roots\":[]}}\n");
    // The new server would end on a line it did not ask for, were it to hear it.
    assert_eq!(client.request("echo", json!([1]))["result"], json!([1]));
}

#[test]
fn a_server_that_dies_in_its_handshake_is_answered_for_with_its_last_words() {
    let scope = Scope::new("broken");
    let mut command = kennel(&scope);
    command.args([
        "run",
        "--",
        "sh",
        "-c",
        "read line; echo 'no API key' >&2; exit 5",
    ]);
    let mut client = Client::start(&mut command);
    let id = client.ask_to_initialize();
    let answer = client.answer(id);
    assert_eq!(answer["error"]["data"]["reason"], "server_unavailable");
    assert!(
        answer["error"]["data"]["detail"]
            .as_str()
            .unwrap()
            .contains("no API key"),
        "{answer}"
    );
    wait_for("its stderr on ours", || {
        client.stderr_so_far().contains("no API key").then_some(())
    });
}

#[test]
fn a_variable_that_says_nothing_is_ignored_with_a_warning_and_a_flag_is_refused() {
    let scope = Scope::new("odd-values");
    let said = |name: &str, value: &str| {
        let mut command = kennel(&scope);
        command
            .env(name, value)
            .args(["run", "--share", "never", "--"]);
        let ended = run(command.arg("cat"));
        assert_eq!(ended.code(), Some(0), "{name}={value}: {}", ended.stderr);
        ended.stderr
    };
    for (name, odd) in [
        ("KENNEL_OFF", "garbage"),
        ("KENNEL_PARENT_WATCH", "maybe"),
        ("KENNEL_HIBERNATE", "0"),
        ("KENNEL_LINGER", "soon"),
        ("KENNEL_REPLAY", "some"),
    ] {
        let words = format!("kennel: warning: {name} is ignored");
        let told = said(name, odd);
        assert!(told.starts_with(&words) && told.contains(odd), "{told}");
        assert_eq!(told.lines().count(), 1, "{told}");
    }
    for (name, value) in [
        ("KENNEL_OFF", "true"),
        ("KENNEL_OFF", "no"),
        ("KENNEL_OFF", ""),
        ("KENNEL_PARENT_WATCH", "yes"),
        ("KENNEL_LINGER", "1.5s"),
        ("KENNEL_LINGER", ""),
        ("KENNEL_HIBERNATE", "never"),
    ] {
        assert_eq!(said(name, value), "", "{name}={value}");
    }
    for (flag, odd, words) in [
        ("--env-key", "A B", "separate names by commas"),
        ("--env-key", "A,,B", "separate names by commas"),
        ("--hibernate", "0", "write never, or a duration such as 10m"),
        ("--linger", "1,5s", "1.5s"),
    ] {
        let ended = run(kennel(&scope).args(["run", flag, odd, "--", "true"]));
        assert_eq!(ended.code(), Some(2), "{flag} {odd}: {}", ended.stderr);
        assert!(ended.stderr.contains(flag), "{}", ended.stderr);
        assert!(ended.stderr.contains(words), "{}", ended.stderr);
    }
}

#[test]
fn a_command_that_is_not_there_is_said_as_a_shell_would() {
    let scope = Scope::new("refused");
    let plain = scope.path("plain");
    std::fs::write(&plain, "").unwrap();
    for (program, code, words) in [
        (
            "no-such-command",
            127,
            "kennel: no-such-command: command not found",
        ),
        (plain.to_str().unwrap(), 126, "permission denied"),
    ] {
        let ended = run(kennel(&scope).args(["run", "--", program]));
        assert_eq!(ended.code(), Some(code), "{}", ended.stderr);
        assert!(ended.stderr.contains(words), "{}", ended.stderr);
        assert_eq!(ended.stdout, "");
    }
    let script = scope.path("script");
    std::fs::write(&script, "#!/no/such/python\n").unwrap();
    std::fs::set_permissions(&script, std::fs::Permissions::from_mode(0o755)).unwrap();
    for off in ["0", "1"] {
        let script = script.to_str().unwrap();
        let mut command = kennel(&scope);
        command.env("KENNEL_OFF", off);
        let ended = run(command.args(["run", "--", script]));
        assert_eq!(ended.code(), Some(126), "{}", ended.stderr);
        let words =
            format!("script {script} needs interpreter /no/such/python, which does not exist");
        assert_eq!(ended.stderr, format!("kennel: {words}\n"));
    }
    assert_eq!(run(kennel(&scope).arg("run")).code(), Some(2));
    let ended = run(kennel(&scope).args(["run", "--stop-after", "soon", "--", "true"]));
    assert_eq!(ended.code(), Some(2));
    assert!(ended.stderr.contains("500ms, 30s, 5m"), "{}", ended.stderr);
}

#[test]
fn the_servers_own_exit_code_is_ours_after_eof_and_switched_off_kennel_is_not_there() {
    let scope = Scope::new("codes");
    assert_eq!(
        run(kennel(&scope).args(["run", "--", "sh", "-c", "exit 7"])).code(),
        Some(7)
    );
    let mut off = kennel(&scope);
    off.args(["run", "--", "sh", "-c", "echo $PPID; exit 9"])
        .env("KENNEL_OFF", "1");
    let ended = run(&mut off);
    assert_eq!(ended.code(), Some(9));
    assert_eq!(
        ended.stdout.trim(),
        std::process::id().to_string(),
        "no process in between"
    );
}

#[test]
fn without_a_runtime_directory_it_works_with_one_line_of_warning() {
    let scope = Scope::new("no-dir");
    std::fs::write(scope.path("file"), "").unwrap();
    let mut command = solo(&scope);
    let mut client = Client::begin(command.env("KENNEL_RUNTIME_DIR", scope.path("file")));
    assert_eq!(client.request("echo", json!([1]))["result"], json!([1]));
    client.close();
    let ended = client.wait();
    assert_eq!(ended.stderr.lines().count(), 1, "{}", ended.stderr);
    assert!(ended.stderr.starts_with("kennel: warning: "));
}

#[test]
fn the_stdin_it_inherited_keeps_its_flags() {
    let scope = Scope::new("flags");
    let (theirs, ours) = std::io::pipe().unwrap();
    // The same open file: flags set through one are seen through the other.
    let witness = theirs.try_clone().unwrap();
    let (answers, stdout) = std::io::pipe().unwrap();
    let reader = stdout.try_clone().unwrap();
    let mut child = solo(&scope).stdin(theirs).stdout(stdout).spawn().unwrap();
    writeln!(&ours, r#"{{"jsonrpc":"2.0","id":1,"method":"ping"}}"#).unwrap();
    let mut line = String::new();
    BufReader::new(answers).read_line(&mut line).unwrap();
    for (name, fd) in [
        ("stdin", std::os::fd::AsFd::as_fd(&witness)),
        ("stdout", std::os::fd::AsFd::as_fd(&reader)),
    ] {
        let flags = rustix::fs::fcntl_getfl(fd).unwrap();
        assert!(!flags.contains(rustix::fs::OFlags::NONBLOCK), "{name}");
    }
    drop(ours);
    child.wait().unwrap();
}

#[test]
fn lines_of_megabytes_pass_whole() {
    let scope = Scope::new("large");
    let mut client = Client::begin(&mut solo(&scope));
    for megabytes in [1, 8, 32] {
        let text = "x".repeat(megabytes << 20);
        let answer = client.request("echo", json!({ "text": text }));
        assert_eq!(
            answer["result"]["text"].as_str().map(str::len),
            Some(text.len())
        );
    }
}

#[test]
fn an_app_that_does_not_read_is_waited_for_and_still_seen_to_die() {
    let scope = Scope::new("slow-app");
    let mut app = scope.command("sh");
    // Asks for far more than pipes hold, reads nothing, and waits to be killed.
    let ask = r#"{"jsonrpc":"2.0","id":1,"method":"echo","params":"PAYLOAD"}"#
        .replace("PAYLOAD", &"x".repeat(60_000));
    std::fs::write(scope.path("ask"), format!("{ask}\n")).unwrap();
    let line = format!(
        "(while :; do cat {} 2>/dev/null || exit; done) | {} run --stop-after 50ms,50ms -- {} | sleep 1000",
        scope.path("ask").display(),
        env!("CARGO_BIN_EXE_kennel"),
        bin("tk-server").display()
    );
    let mut app = app
        .args(["-c", &line])
        .env("TESTKIT_ROLL", scope.roll())
        .spawn()
        .unwrap();
    wait_for("the server", || (!scope.signed().is_empty()).then_some(()));
    app.kill().unwrap();
    app.wait().unwrap();
    wait_for("the server to be gone", || {
        let gone = |identity| ProcessRef::find(identity).unwrap().is_none();
        scope.signed().iter().all(gone).then_some(())
    });
}

/// A tree that ignores everything, behind the shim.
fn stubborn(scope: &Scope) -> Vec<String> {
    let words = ["run", "--stop-after", "50ms,50ms", "--"].map(str::to_owned);
    let mut line = vec![env!("CARGO_BIN_EXE_kennel").to_owned()];
    line.extend(words);
    line.extend([bin("tk-stubborn"), scope.roll()].map(|path| path.to_str().unwrap().to_owned()));
    line.extend(["family", "2"].map(str::to_owned));
    line
}

fn members(scope: &Scope, n: usize) -> Vec<kennel_sys::process::Identity> {
    wait_for(&format!("{n} members"), || {
        let signed = scope.signed();
        (signed.len() >= n).then_some(signed)
    })
}

fn all_gone(scope: &Scope, members: &[kennel_sys::process::Identity], but: &str) {
    wait_for("the whole tree to be gone", || {
        let gone = |identity| ProcessRef::find(identity).unwrap().is_none();
        members.iter().all(gone).then_some(())
    });
    wait_for(&format!("nobody but {but:?} to be left"), || {
        let name = |process: &ProcessRef| {
            std::fs::read_to_string(format!("/proc/{}/comm", process.pid())).unwrap_or_default()
        };
        scope
            .survivors()
            .iter()
            .all(|process| name(process).trim() == but)
            .then_some(())
    });
}

#[test]
fn rule_2_whoever_is_killed_nothing_is_left_once_nobody_is_there() {
    on_each_kernel(|| {
        for victim in ["app", "shim", "app-and-shim"] {
            for signal in [Signal::KILL, Signal::TERM] {
                let scope = Scope::new("matrix");
                // A stranger holds the pipes open: no EOF will ever come. (An ancestor that holds them would be the app.)
                let (their_input, our_input) = std::io::pipe().unwrap();
                let (our_output, their_output) = std::io::pipe().unwrap();
                let mut keeper = scope
                    .command("sleep")
                    .arg("1000")
                    .stdin(our_output)
                    .stdout(our_input)
                    .spawn()
                    .unwrap();
                let told = scope.path("shim");
                let line = stubborn(&scope).join(" ");
                let line = format!(
                    "exec 3<&0 </dev/null; {line} <&3 & echo $! >{0}.new; mv {0}.new {0}; exec 3<&-; exec sleep 1000",
                    told.display()
                );
                let mut app = scope
                    .command("sh")
                    .args(["-c", &line])
                    .stdin(their_input)
                    .stdout(their_output)
                    .spawn()
                    .unwrap();
                let shim = wait_for("the shim", || std::fs::read_to_string(&told).ok());
                let shim = ProcessRef::open(shim.trim().parse().unwrap()).unwrap();
                let family = members(&scope, 3);
                if victim.contains("app") {
                    ProcessRef::open(app.id()).unwrap().signal(signal).unwrap();
                }
                if victim.contains("shim") {
                    shim.signal(signal).unwrap();
                }
                all_gone(&scope, &family, "sleep");
                for child in [&mut app, &mut keeper] {
                    child.kill().unwrap();
                    child.wait().unwrap();
                }
            }
        }
    });
}

#[test]
fn rule_2_a_killed_warden_is_survived_by_the_session_and_by_nothing_else() {
    let scope = Scope::new("warden");
    let line = stubborn(&scope);
    let mut shim = scope
        .command(&line[0])
        .args(&line[1..])
        .stdin(Stdio::piped())
        .spawn()
        .unwrap();
    let family = members(&scope, 3);
    let warden = warden_of(shim.id());
    warden.signal(Signal::KILL).unwrap();
    wait_for("the whole tree to be gone", || {
        let gone = |identity| ProcessRef::find(identity).unwrap().is_none();
        family.iter().all(gone).then_some(())
    });
    assert!(shim.try_wait().unwrap().is_none(), "the session goes on");
    shim.kill().unwrap();
    shim.wait().unwrap();
    scope.nothing_left_within("the shim killed", Duration::from_secs(60));
}

#[test]
fn rule_2_a_session_whose_app_and_warden_are_killed_together_leaves_nothing() {
    let scope = Scope::new("app-and-warden");
    let line = stubborn(&scope);
    let mut app = scope
        .command("sh")
        .args(["-c", r#""$@"; :"#, "sh"])
        .args(&line)
        .stdin(Stdio::piped())
        .spawn()
        .unwrap();
    let family = members(&scope, 3);
    let shims = format!("/proc/{0}/task/{0}/children", app.id());
    let shim: u32 = std::fs::read_to_string(shims)
        .unwrap()
        .trim()
        .parse()
        .unwrap();
    let shim = ProcessRef::open(shim).unwrap();
    let warden = warden_of(shim.pid());
    // The session sees both when it goes on.
    shim.signal(Signal::STOP).unwrap();
    app.kill().unwrap();
    warden.signal(Signal::KILL).unwrap();
    shim.signal(Signal::CONT).unwrap();
    app.wait().unwrap();
    wait_for("the session ends", || (!shim.is_alive()).then_some(()));
    wait_for("the whole tree to be gone", || {
        let gone = |identity| ProcessRef::find(identity).unwrap().is_none();
        family.iter().all(gone).then_some(())
    });
}

#[test]
fn rule_2_what_outlives_shim_and_warden_is_ended_by_the_next_start() {
    for _ in 0..count(20) {
        let scope = Scope::new("both");
        let line = stubborn(&scope);
        let mut shim = scope
            .command(&line[0])
            .args(&line[1..])
            .stdin(Stdio::piped())
            .spawn()
            .unwrap();
        let family = members(&scope, 3);
        let warden = warden_of(shim.id());
        shim.kill().unwrap();
        warden.signal(Signal::KILL).unwrap();
        shim.wait().unwrap();
        // While it is there, it is in charge.
        assert!(warden.wait(Some(DEADLINE)).unwrap());
        assert!(
            family
                .iter()
                .any(|identity| ProcessRef::find(identity).unwrap().is_some())
        );
        let mut next = Client::begin(&mut solo(&scope));
        assert!(
            family
                .iter()
                .all(|identity| ProcessRef::find(identity).unwrap().is_none())
        );
        next.close();
        next.wait();
    }
}

#[test]
fn lesson_19_killed_within_the_first_moments_it_leaves_nothing() {
    let mut chance = Rng::seeded("solo-early");
    for _ in 0..count(100) {
        let scope = Scope::new("solo-early");
        let line = stubborn(&scope);
        let mut shim = scope
            .command(&line[0])
            .args(&line[1..])
            .stdin(Stdio::piped())
            .spawn()
            .unwrap();
        let moment = chance.duration_below(Duration::from_millis(50));
        ProcessRef::open(shim.id())
            .unwrap()
            .wait(Some(moment))
            .unwrap();
        shim.kill().unwrap();
        scope.nothing_left_within("killed at start", Duration::from_secs(60));
        shim.wait().unwrap();
    }
}
