//! What is said on a connection, and how it arrives.

use std::net::Shutdown;
use std::os::unix::ffi::OsStrExt;
use std::sync::Arc;

use kennel_core::hello::Control;
use kennel_testkit::bin;
use serde_json::json;

use crate::stage::{Cast, Daemon, INITIALIZE, hello, spawn};

#[test]
fn whoever_starts_a_daemon_is_its_first_client() {
    let (daemon, mut first) = Daemon::with_first("first", Cast::default());
    let answer = first.greet(&daemon.hello());
    assert_eq!(answer.generation, daemon.generation);
    assert_eq!(first.ask("echo", json!({"a": 1})), json!({"a": 1}));
    let record = crate::stage::read_json(&daemon.dir().join("daemon.json"));
    assert_eq!(record["name"], "tk-server");
    daemon.stop();
}

#[test]
fn a_second_daemon_of_a_key_does_not_start_and_says_why() {
    let daemon = Daemon::start("second");
    let (report, _) = spawn(&daemon.scope, &Cast::default());
    let pid = daemon.process.pid();
    assert!(report.starts_with("failed "), "{report}");
    assert!(report.contains(&pid.to_string()), "{report}");
    assert_eq!(daemon.client().ask("echo", json!(1)), 1);
    daemon.stop();
}

#[test]
fn hello_and_first_request_in_one_write_are_the_same_wherever_they_are_cut() {
    let daemon = Daemon::start("cut");
    let mut hello = daemon.hello();
    // Credentials count: they stay.
    Arc::make_mut(&mut hello.env).retain(|(name, _)| name.as_bytes().ends_with(b"TOKEN"));
    let request = "{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"echo\",\"params\":[\"a€😀z\"]}\n";
    let whole = [&hello.line()[..], b"\n", request.as_bytes()].concat();
    let around_the_request = whole.len() - request.len() - 4..whole.len();
    let cuts = (0..whole.len())
        .filter(|at| kennel_testkit::full() || around_the_request.contains(at) || at % 97 == 0);
    for cut in cuts {
        let mut client = daemon.connect();
        client.write(&whole[..cut]);
        client.write(&whole[cut..]);
        client.daemon_hello();
        let answer = client.said().unwrap();
        let expected = "{\"jsonrpc\":\"2.0\",\"id\":1,\"result\":[\"a€😀z\"]}";
        assert_eq!(answer, expected, "cut at {cut}");
    }
    daemon.stop();
}

#[test]
fn a_bare_client_gets_nothing_that_a_credential_may_pay_for() {
    // Every test has a credential in its environment.
    let daemon = Daemon::start("bare-token");
    let mut client = daemon.client();
    let mut bare = daemon.connect();
    bare.say(r#"{"jsonrpc":"2.0","id":"q","method":"echo","params":[1]}"#);
    let answer: serde_json::Value = serde_json::from_str(&bare.line().unwrap()).unwrap();
    assert_eq!(
        (&answer["id"], &answer["result"]),
        (&json!("q"), &json!(null))
    );
    let why = answer["error"]["message"].as_str().unwrap();
    assert!(why.contains("SECRET_CANARY_TOKEN"), "{why}");
    assert_eq!(bare.line(), None);
    daemon.logs("a client without a hello is not served here");
    assert_eq!(client.ask("echo", json!(1)), 1);
    daemon.stop();
}

#[test]
fn a_bare_client_is_served_to_the_byte_with_what_the_first_client_wanted() {
    let daemon = Daemon::for_bare("bare");
    let mut client = daemon.client();
    let mut bare = daemon.connect();
    bare.say(r#"{"jsonrpc":"2.0", "id":1,"method":"echo","params":[ 1.0,"!"]}"#);
    let expected = r#"{"jsonrpc":"2.0","id":1,"result":[ 1.0,"!"]}"#;
    assert_eq!(bare.line().unwrap(), expected);
    bare.say(r#"{"jsonrpc":"2.0","id":2,"method":"say","params":{"stderr":"hush"}}"#);
    assert_eq!(
        bare.line().unwrap(),
        r#"{"jsonrpc":"2.0","id":2,"result":"said"}"#
    );
    assert_eq!(client.ask("echo", json!(1)), 1);
    daemon.stop();
}

#[test]
fn a_bare_client_that_nobody_came_before_is_shown_out() {
    let daemon = Daemon::start("bare-first");
    let mut bare = daemon.connect();
    bare.say(INITIALIZE);
    assert_eq!(bare.line(), None);
    daemon.logs("neither it nor an earlier client sent one");
    daemon.stop();
}

#[test]
fn clients_without_a_handshake_have_each_a_server_of_its_own_and_their_bytes_pass_unchanged() {
    let daemon = Daemon::start("own");
    let (mut one, mut two) = (daemon.client(), daemon.client());
    assert_ne!(one.server().pid(), two.server().pid());
    let odd = r#"{ "jsonrpc":"2.0","id" : "a\/b","method":"echo","params":{"z":1,"a":18446744073709551616,"\u00e9":"\/"}}"#;
    one.say(odd);
    two.say(odd);
    for client in [&mut one, &mut two] {
        assert_eq!(
            client.said().unwrap(),
            r#"{"jsonrpc":"2.0","id":"a\/b","result":{"z":1,"a":18446744073709551616,"\u00e9":"\/"}}"#
        );
    }
    daemon.stop();
}

#[test]
fn a_server_starts_where_its_client_is_and_with_its_environment_without_kennels() {
    let script = r#"read line; printf '{"jsonrpc":"2.0","id":1,"result":{"cwd":"%s","token":"%s","ours":"%s"}}\n' "$PWD" "$TOKEN" "$KENNEL_X""#;
    let text = |bytes: &[u8]| kennel_core::hello::Text::from(bytes);
    let at_home = |scope: &kennel_testkit::Scope| {
        let mut hello = hello(scope, &[b"sh", b"-c", script.as_bytes()]);
        Arc::make_mut(&mut hello.env).push((text(b"TOKEN"), text(b"t")));
        Arc::make_mut(&mut hello.env).push((text(b"KENNEL_X"), text(b"x")));
        hello.spec.cwd = text(scope.path("home").as_os_str().as_bytes());
        hello
    };
    let (daemon, _) = Daemon::for_hello("env", Cast::default(), at_home);
    let home = daemon.scope.path("home");
    let mut client = daemon.client();
    client.say(r#"{"jsonrpc":"2.0","id":"x","method":"go"}"#);
    let expected = format!(
        r#"{{"jsonrpc":"2.0","id":"x","result":{{"cwd":"{}","token":"t","ours":""}}}}"#,
        home.display()
    );
    assert_eq!(client.said().unwrap(), expected);
    daemon.stop();
}

#[test]
fn a_ping_is_answered_while_the_server_is_busy() {
    let daemon = Daemon::start("ping");
    let mut client = daemon.client();
    client.say(r#"{"jsonrpc":"2.0","id":1,"method":"slow","params":{"ms":60000}}"#);
    client.say("!ping");
    client.say("!a-word-of-a-later-version {}");
    client.say("!ping");
    assert_eq!(
        (client.word(), client.word()),
        (Control::Pong, Control::Pong)
    );
    daemon.stop();
}

#[test]
fn what_the_server_says_on_stderr_reaches_its_client_and_the_log() {
    let daemon = Daemon::start("stderr");
    let mut client = daemon.client();
    client.say(r#"{"jsonrpc":"2.0","id":1,"method":"say","params":{"stderr":"oh 😀 no"}}"#);
    let mut lines = [client.line().unwrap(), client.line().unwrap()];
    lines.sort();
    assert_eq!(lines[0], "!stderr \"oh 😀 no\"");
    daemon.logs("oh 😀 no");
    daemon.stop();
}

#[test]
fn a_line_of_the_server_is_not_taken_for_a_word_of_kennels() {
    let script = br#"read line; echo '!moved'; echo '{"jsonrpc":"2.0","id":1,"result":{}}'"#;
    let daemon = Daemon::of("forged", &[b"sh", b"-c", script]);
    let mut client = daemon.client();
    client.say(r#"{"jsonrpc":"2.0","id":"x","method":"go"}"#);
    let answer = r#"{"jsonrpc":"2.0","id":"x","result":{}}"#;
    assert_eq!(client.line().unwrap(), answer);
    daemon.stop();
}

#[test]
fn a_half_close_drains_the_slow_answer_and_then_the_connection_ends() {
    let daemon = Daemon::start("half");
    let mut client = daemon.client();
    client.say(r#"{"jsonrpc":"2.0","id":1,"method":"slow","params":{"ms":300}}"#);
    client.say(r#"{"jsonrpc":"2.0","id":2,"method":"echo","params":[2]}"#);
    client.stream().shutdown(Shutdown::Write).unwrap();
    let all = String::from_utf8(client.rest()).unwrap();
    let expected = "{\"jsonrpc\":\"2.0\",\"id\":1,\"result\":\"slow\"}\n{\"jsonrpc\":\"2.0\",\"id\":2,\"result\":[2]}\n";
    assert_eq!(all, expected);
    daemon.state_when("nobody is left", |state| state["servers"] == json!([]));
    daemon.stop();
}

#[test]
fn a_hello_that_cannot_be_read_or_never_ends_is_refused() {
    let daemon = Daemon::start("bad-hello");
    let mut bad = daemon.connect();
    bad.say("!hello {\"version\":");
    assert_eq!(bad.line(), None);
    let mut endless = daemon.connect();
    endless.write(b"!hello ");
    let chunk = vec![b'x'; 1 << 20];
    let sent = (0..6).all(|_| std::io::Write::write_all(&mut endless.stream(), &chunk).is_ok());
    assert!(!sent || endless.line().is_none());
    daemon.logs("longer than");
    assert_eq!(daemon.client().ask("echo", json!(1)), 1);
    daemon.stop();
}

#[test]
fn no_secret_is_written_down() {
    const CANARY: &str = "c4n4ry-v4lue";
    let text = |bytes: &[u8]| kennel_core::hello::Text::from(bytes);
    let with_secret = |scope: &kennel_testkit::Scope| {
        let mut hello = hello(scope, &[bin("tk-server").as_os_str().as_bytes()]);
        Arc::make_mut(&mut hello.env).push((text(b"API_KEY"), text(CANARY.as_bytes())));
        hello
    };
    let (daemon, _) = Daemon::for_hello("canary", Cast::default(), with_secret);
    let hello = daemon.hello();
    let mut client = daemon.connect();
    client.greet(&hello);
    client.say(&format!(
        r#"{{"jsonrpc":"2.0","id":1,"method":"echo","params":["{CANARY}"]}}"#
    ));
    client.said().unwrap();
    let mut bad = daemon.connect();
    bad.write(&hello.line()[..hello.line().len() - 2]);
    bad.say("");
    assert_eq!(bad.line(), None);
    daemon.state_when("a server", |state| state["servers"][0]["pid"].is_u64());
    client.say(r#"{"jsonrpc":"2.0","id":1,"method":"die"}"#);
    client.lost();
    for entry in walk(&daemon.scope.runtime_dir()) {
        let content = std::fs::read(&entry).unwrap_or_default();
        let text = String::from_utf8_lossy(&content);
        assert!(!text.contains(CANARY), "{}", entry.display());
    }
    daemon.stop();
}

fn walk(dir: &std::path::Path) -> Vec<std::path::PathBuf> {
    let mut files = Vec::new();
    for entry in std::fs::read_dir(dir).expect("a directory").flatten() {
        match entry.file_type().expect("a kind") {
            kind if kind.is_dir() => files.extend(walk(&entry.path())),
            kind if kind.is_file() => files.push(entry.path()),
            _ => {}
        }
    }
    files
}

#[test]
fn a_session_that_attaches_again_has_given_its_former_connection_up() {
    let daemon = Daemon::start("again");
    let hello = daemon.hello();
    let mut former = daemon.connect();
    former.greet(&hello);
    let server = former.server();
    let mut latter = daemon.connect();
    latter.greet(&hello);
    assert_ne!(latter.server().pid(), server.pid());
    assert!(!server.is_alive(), "two servers of one session");
    former.is_closed();
    daemon.stop();
}

#[test]
fn what_a_shim_began_and_did_not_end_was_not_said() {
    let daemon = Daemon::start("begun");
    let mut other = daemon.client();
    let client = daemon.client();
    client.say(INITIALIZE);
    // All but its newline, and then it is gone.
    client.write(br#"{"jsonrpc":"2.0","id":9,"method":"say","params":{"stderr":"done"}}"#);
    drop(client);
    daemon.logs("it closed its connection");
    assert_eq!(other.ask("echo", json!(1)), 1);
    assert!(!daemon.log().contains("done"), "{}", daemon.log());
    daemon.stop();
}
