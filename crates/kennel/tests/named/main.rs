//! `kennel run NAME`: servers with a name in servers.toml.
#![expect(clippy::unwrap_used, reason = "in a test, a panic is the report")]

use std::os::unix::fs::PermissionsExt;
use std::process::Command;

use kennel_testkit::{Client, Scope, bin, run, wait_for};
use serde_json::{Value, json};

fn kennel(scope: &Scope, words: &[&str]) -> Command {
    let mut command = scope.command(env!("CARGO_BIN_EXE_kennel"));
    command.args(words).current_dir(scope.path("home"));
    command
}

fn servers_toml(scope: &Scope, text: &str) {
    let file = scope.path("home/.config/kennel/servers.toml");
    std::fs::create_dir_all(file.parent().unwrap()).unwrap();
    std::fs::write(file, text).unwrap();
}

fn of_the_server(scope: &Scope) -> String {
    let server = bin("tk-server");
    let cwd = scope.path("project");
    std::fs::create_dir(&cwd).unwrap();
    format!(
        "[defaults]\nlinger = \"0s\"\nstop_after = \"50ms\"\n[[server]]\nname = \"it\"\ncommand = [{server:?}]\ncwd = {cwd:?}\nenv_key = [\"A\"]\nshare = \"always\"\n"
    )
}

fn listing(scope: &Scope) -> Vec<Value> {
    serde_json::from_str(&run(&mut kennel(scope, &["ps", "--json"])).stdout).unwrap()
}

#[test]
fn a_name_runs_what_servers_toml_says_where_it_says_and_for_as_long() {
    let scope = Scope::new("named");
    servers_toml(&scope, &of_the_server(&scope));
    let mut client = Client::begin(&mut kennel(&scope, &["run", "it"]));
    assert_eq!(client.request("echo", json!([1]))["result"], json!([1]));
    // The same by its command, with another variable that does not count: one server.
    let mut other = kennel(&scope, &["run", "--env-key", "A", "--cwd"]);
    other
        .arg(scope.path("project"))
        .arg("--")
        .arg(bin("tk-server"));
    let mut other = Client::begin(other.env("B", "1"));
    let pid = |client: &mut Client| client.request("pid", json!({}))["result"].as_u64();
    assert_eq!(pid(&mut client), pid(&mut other));
    let entries = listing(&scope);
    assert_eq!(entries.len(), 1, "{entries:?}");
    assert_eq!(entries[0]["cwd"], scope.path("project").to_str().unwrap());
    for mut client in [client, other] {
        client.close();
        client.wait();
    }
    wait_for("it does not linger", || {
        scope.survivors().is_empty().then_some(())
    });
}

#[test]
fn a_name_nobody_gave_is_told_with_those_there_are() {
    let scope = Scope::new("named");
    let ended = run(&mut kennel(&scope, &["run", "it"]));
    assert_eq!(ended.code(), Some(3));
    assert!(
        ended.stderr.contains("kennel run -- it"),
        "{}",
        ended.stderr
    );
    servers_toml(&scope, &of_the_server(&scope));
    let ended = run(&mut kennel(&scope, &["run", "that"]));
    assert_eq!(ended.code(), Some(3));
    assert!(
        ended.stderr.contains("the names are it"),
        "{}",
        ended.stderr
    );
    assert_eq!(run(&mut kennel(&scope, &["run"])).code(), Some(2));
    assert_eq!(
        run(&mut kennel(&scope, &["run", "it", "--", "x"])).code(),
        Some(2)
    );
}

#[test]
fn a_mistake_in_the_file_is_told_with_its_place_and_the_rest_works() {
    let scope = Scope::new("named");
    let text = of_the_server(&scope) + "liner = \"1s\"\n";
    servers_toml(&scope, &text);
    let mut client = Client::begin(&mut kennel(&scope, &["run", "it"]));
    assert_eq!(client.request("echo", json!([1]))["result"], json!([1]));
    client.close();
    let ended = client.wait();
    assert!(
        ended
            .stderr
            .contains("servers.toml, line 10, column 1: unknown: liner"),
        "{}",
        ended.stderr
    );
}

#[test]
fn an_empty_name_is_refused_wherever_one_is_given() {
    let scope = Scope::new("named");
    for words in [
        &["run", ""][..],
        &["stop", ""],
        &["logs", ""],
        &["purge", ""],
        &["guard", "--name", "", "--", "true"],
    ] {
        let refused = run(&mut kennel(&scope, words));
        assert_eq!(refused.code(), Some(2), "{words:?}: {}", refused.stderr);
    }
}

#[test]
fn without_kennel_a_name_is_still_its_server() {
    let scope = Scope::new("named");
    servers_toml(&scope, &of_the_server(&scope));
    let mut command = kennel(&scope, &["run", "it"]);
    let mut client = Client::begin(command.env("KENNEL_OFF", "1"));
    let pid = client.request("pid", json!({}))["result"].as_u64();
    assert_eq!(pid, Some(u64::from(client.pid())));
}

#[test]
fn stop_and_logs_know_it_by_its_name_there_also_when_it_has_ended() {
    let scope = Scope::new("named");
    servers_toml(&scope, &of_the_server(&scope));
    let mut client = Client::begin(&mut kennel(&scope, &["run", "it"]));
    assert_eq!(client.request("echo", json!([1]))["result"], json!([1]));
    let logs = || run(&mut kennel(&scope, &["logs", "it"]));
    let living = logs();
    assert_eq!(living.code(), Some(0), "{}", living.stderr);
    assert!(
        living.stdout.contains("serves tk-server"),
        "{}",
        living.stdout
    );
    let stopped = run(&mut kennel(&scope, &["stop", "it"]));
    assert_eq!(stopped.code(), Some(0), "{}", stopped.stderr);
    assert!(
        stopped.stdout.contains("stopped tk-server"),
        "{}",
        stopped.stdout
    );
    client.close();
    client.wait();
    wait_for("nothing runs", || {
        scope.survivors().is_empty().then_some(())
    });
    let ended = logs();
    assert_eq!(ended.code(), Some(0), "{}", ended.stderr);
    assert!(
        ended.stdout.contains("serves tk-server"),
        "{}",
        ended.stdout
    );
    assert_eq!(run(&mut kennel(&scope, &["logs", "them"])).code(), Some(3));
}

#[test]
fn the_key_of_a_session_of_its_own_is_named_in_full() {
    let scope = Scope::new("named");
    let mut command = kennel(
        &scope,
        &["run", "--share", "never", "--stop-after", "50ms", "--"],
    );
    let client = Client::begin(command.arg(bin("tk-server")));
    let key = wait_for("it is listed", || {
        Some(listing(&scope).first()?["key"].as_str()?.to_owned())
    });
    let short = &key[..key.len() - 1];
    for command in ["logs", "stop"] {
        let refused = run(&mut kennel(&scope, &[command, short]));
        assert_ne!(refused.code(), Some(0), "{}", refused.stdout);
    }
    let logs = run(&mut kennel(&scope, &["logs", &key]));
    assert!(logs.stderr.contains("goes to its app"), "{}", logs.stderr);
    let stopped = run(&mut kennel(&scope, &["stop", &key]));
    assert!(
        stopped.stdout.contains(&key),
        "{}{}",
        stopped.stdout,
        stopped.stderr
    );
    client.wait();
}

#[test]
fn a_command_without_dashes_is_told_the_line_that_was_meant() {
    let scope = Scope::new("named");
    for (words, meant) in [
        (&["run", "npx", "foo"][..], "kennel run -- npx foo"),
        (&["run", "npx", "-y", "a b"], "kennel run -- npx -y 'a b'"),
        (
            &["run", "--share", "always", "--no-cache", "npx", "-y"],
            "kennel run --share always --no-cache -- npx -y",
        ),
        (
            &["guard", "--port", "80", "--grace=1s", "python3", "-m", "x"],
            "kennel guard --port 80 '--grace=1s' -- python3 -m x",
        ),
        (
            &["guard", "--port", "80", "srv"],
            "kennel guard --port 80 -- srv",
        ),
    ] {
        let ended = run(&mut kennel(&scope, words));
        assert_eq!(ended.code(), Some(2), "{words:?}: {}", ended.stderr);
        let last = ended.stderr.lines().last().unwrap().trim();
        assert_eq!(last, meant, "{words:?}: {}", ended.stderr);
    }
    let ended = run(&mut kennel(&scope, &["run"]));
    assert_eq!(ended.code(), Some(2));
    assert!(
        ended.stderr.contains("kennel run -- COMMAND"),
        "{}",
        ended.stderr
    );
    // What is wrong otherwise is told as ever.
    let ended = run(&mut kennel(&scope, &["run", "--no-such-flag", "--", "x"]));
    assert_eq!(ended.code(), Some(2));
    assert!(ended.stderr.contains("--no-such-flag"), "{}", ended.stderr);
}

#[test]
fn a_directory_that_is_not_there_is_told_with_what_to_do() {
    let scope = Scope::new("named");
    for share in ["never", "always"] {
        let mut command = kennel(&scope, &["run", "--share", share, "--cwd", "/no/such/dir"]);
        let ended = run(command.arg("--").arg(bin("tk-server")));
        assert_eq!(ended.code(), Some(126), "{}", ended.stderr);
        let told = "/no/such/dir is not a directory: create it, or give another one with --cwd";
        assert!(ended.stderr.contains(told), "{}", ended.stderr);
    }
}

/// Whoever writes servers.toml says what is run.
#[test]
#[ignore = "needs root: cargo xtask test"]
fn needs_root_rule_9_a_servers_toml_of_another_user_or_open_to_all_is_not_believed() {
    let scope = Scope::new("named-foreign");
    servers_toml(&scope, &of_the_server(&scope));
    let file = scope.path("home/.config/kennel/servers.toml");
    let mode = |mode| std::fs::set_permissions(&file, PermissionsExt::from_mode(mode)).unwrap();
    std::os::unix::fs::chown(&file, Some(65534), Some(65534)).unwrap();
    refused(&scope, "belongs to uid 65534, not to you");
    std::os::unix::fs::chown(&file, Some(0), Some(0)).unwrap();
    mode(0o646);
    refused(&scope, "everyone can write it");
    mode(0o664);
    std::os::unix::fs::chown(&file, Some(0), Some(65534)).unwrap();
    refused(&scope, "group 65534 can write it: `chmod go-w '");
    // A group of the user's own has nobody else in it.
    std::os::unix::fs::chown(&file, Some(0), Some(0)).unwrap();
    let mut client = Client::begin(&mut kennel(&scope, &["run", "it"]));
    assert_eq!(client.request("echo", json!([1]))["result"], json!([1]));
}

#[test]
fn words_behind_a_name_are_refused_with_what_to_do_instead() {
    let scope = Scope::new("named-extra");
    servers_toml(&scope, &of_the_server(&scope));
    let server = bin("tk-server");
    for words in [
        &["run", "it", "extra"][..],
        &["run", "--linger", "5s", "it", "extra"],
    ] {
        let ended = run(&mut kennel(&scope, words));
        assert_eq!(ended.code(), Some(2), "{}", ended.stderr);
        let line = format!("kennel run -- {} extra", server.display());
        assert!(ended.stderr.contains(&line), "{}", ended.stderr);
        assert!(ended.stderr.contains("servers.toml"), "{}", ended.stderr);
    }
    // An option that is misspelled is no word for the server.
    let ended = run(&mut kennel(&scope, &["run", "it", "--lingr", "5s"]));
    assert_eq!(ended.code(), Some(2));
    assert!(ended.stderr.contains("--linger"), "{}", ended.stderr);
    // What is no name is a program.
    let ended = run(&mut kennel(&scope, &["run", "npx", "extra"]));
    assert!(
        ended.stderr.contains("kennel run -- npx extra"),
        "{}",
        ended.stderr
    );
}

#[track_caller]
fn refused(scope: &Scope, why: &str) {
    let ended = run(&mut kennel(scope, &["run", "it"]));
    assert_eq!(ended.code(), Some(3), "{}", ended.stderr);
    let ended = run(&mut kennel(scope, &["doctor"]));
    let said = ended.stdout + &ended.stderr;
    assert!(said.contains(why), "{said}");
}
