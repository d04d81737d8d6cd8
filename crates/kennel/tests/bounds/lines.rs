//! Lines that are too long, from the app and from the server.

use kennel_testkit::{Client, Scope};
use serde_json::json;

use crate::stage::{
    FAR_TOO_LONG, MAX_LINE, is_modest, is_too_long, peak, say_long, serves, session, the_daemon,
};

/// Says a request of this many bytes as one text; returns its id.
fn ask_long(client: &mut Client, id: u64, bytes: usize, id_last: bool) -> u64 {
    let mut text = Vec::with_capacity(bytes + 200);
    say_long(&mut text, id, bytes, id_last).unwrap();
    client.say(std::str::from_utf8(&text).unwrap());
    id
}

#[test]
fn a_line_that_is_just_not_too_long_passes_in_both_directions() {
    let scope = Scope::new("bounds-fits");
    for share in ["never", "always"] {
        let mut client = Client::begin(&mut session(&scope, share));
        let text = "x".repeat(MAX_LINE - 1000);
        let echo = client.request("echo", json!({ "text": text }));
        assert!(echo["result"]["text"] == text, "{share}");
        is_modest("the shim", client.pid());
        if share == "always" {
            is_modest("the daemon", the_daemon(&scope).pid());
        }
    }
}

#[test]
fn an_answer_that_is_too_long_is_an_error_and_the_session_goes_on() {
    let scope = Scope::new("bounds-answer");
    for share in ["never", "always"] {
        let mut client = Client::begin(&mut session(&scope, share));
        let mut other = Client::begin(&mut session(&scope, share));
        for id_last in [false, true] {
            let params = json!({ "bytes": FAR_TOO_LONG, "id_last": id_last });
            let answer = client.request("long", params);
            is_too_long(&answer, -32603);
            serves(&mut client);
            serves(&mut other);
        }
        is_modest("the shim", client.pid());
        if share == "always" {
            is_modest("the daemon", the_daemon(&scope).pid());
        }
    }
}

#[test]
fn a_request_that_is_too_long_is_refused_and_the_session_goes_on() {
    let scope = Scope::new("bounds-request");
    for share in ["never", "always"] {
        let mut client = Client::begin(&mut session(&scope, share));
        let mut other = Client::begin(&mut session(&scope, share));
        for (id, id_last) in [(1000, false), (1001, true)] {
            let id = ask_long(&mut client, id, FAR_TOO_LONG, id_last);
            is_too_long(&client.answer(id), -32600);
            serves(&mut other);
        }
        // What was sent ahead of it was not said.
        if share == "always" {
            serves(&mut client);
            is_modest("the daemon", the_daemon(&scope).pid());
        }
        is_modest("the shim", client.pid());
    }
}

#[test]
fn a_line_for_which_there_is_no_memory_ends_no_session() {
    let scope = Scope::new("bounds-memory");
    let server = kennel_testkit::bin("tk-server");
    let mut command = scope.command("sh");
    let script = r#"ulimit -v 150000; exec "$@""#;
    command
        .args(["-c", script, "sh", env!("CARGO_BIN_EXE_kennel")])
        .args(["run", "--share", "always", "--stop-after", "50ms,50ms"])
        .args(["--max-line", "1G", "--start-timeout", "60s", "--"])
        .arg(&server);
    let mut client = Client::begin(&mut command);
    let id = ask_long(&mut client, 1000, 200 << 20, false);
    let answer = client.answer(id);
    assert_eq!(
        answer["error"]["data"]["reason"], "line_too_long",
        "{answer}"
    );
    serves(&mut client);
    assert!(peak(client.pid()) < 150_000 * 1024);
}

#[test]
fn a_size_that_is_none_is_refused() {
    let scope = Scope::new("bounds-size");
    for (size, words) in [("8X", "is not a size"), ("1K", "the minimum is 256K")] {
        let mut command = scope.command(env!("CARGO_BIN_EXE_kennel"));
        let ended = kennel_testkit::run(command.args(["run", "--max-line", size, "--", "true"]));
        assert_eq!(ended.code(), Some(2));
        assert!(ended.stderr.contains(words), "{}", ended.stderr);
    }
}
