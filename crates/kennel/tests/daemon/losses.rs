//! What a daemon says of a lost server: what that has never heard (rule 5).

use kennel_core::hello::Control;
use kennel_core::message::Key;
use kennel_sys::Signal;

use crate::stage::{Daemon, INITIALIZE};

#[test]
fn rule_5_a_loss_says_how_much_was_heard_since_the_client_began_or_began_again() {
    let daemon = Daemon::start("heard");
    let mut client = daemon.client();
    // Two requests that are answered, and one that kills.
    let lines = [
        INITIALIZE,
        r#"{"jsonrpc":"2.0","id":1,"method":"echo","params":{}}"#,
        "  no message ",
        r#"{"jsonrpc":"2.0","id":2,"method":"die"}"#,
    ];
    let bytes: usize = lines.iter().map(|line| line.len() + 1).sum();
    for _ in 0..2 {
        for line in lines {
            client.say(line);
            client.say("!ping");
        }
        let lost = loop {
            match client.said().unwrap() {
                line if line.starts_with("!lost ") => {
                    break Control::parse_from_daemon(line.as_bytes());
                }
                _ => {}
            }
        };
        let Some(Control::Lost(lost)) = lost else {
            panic!("a loss")
        };
        assert_eq!(lost.received, Some(bytes as u64));
        assert_eq!(lost.unsent, []);
        // For the lost one: nobody counts it.
        client.say(r#"{"jsonrpc":"2.0","id":3,"method":"echo"}"#);
        client.say("!again");
    }
    daemon.stop();
}

#[test]
fn rule_5_a_loss_names_what_waited_for_the_server() {
    let daemon = Daemon::start("unsent");
    let (mut client, mut other) = (daemon.client(), daemon.client());
    for client in [&mut client, &mut other] {
        client.say(INITIALIZE);
        client.said().unwrap();
    }
    let server = client.server();
    assert_eq!(other.server().pid(), server.pid());
    // It is busy, and takes no more than the pipe holds, which is a megabyte at most.
    client.say(
        r#"{"jsonrpc":"2.0","id":"busy","method":"slow","params":{"ms":600000,"stderr":"busy"}}"#,
    );
    while client.line().unwrap() != r#"!stderr "busy""# {}
    for (id, length) in [(r#""long""#, 1_200_000), (r#""\u0061""#, 1), ("7", 1)] {
        let params = format!(r#"{{"x":"{}"}}"#, "x".repeat(length));
        client.say(&format!(
            r#"{{"jsonrpc":"2.0","id":{id},"method":"echo","params":{params}}}"#
        ));
    }
    // One after the other: what is short would go past a long line that is not there yet.
    client.say("!ping");
    assert_eq!(client.word(), Control::Pong);
    other.say(r#"{"jsonrpc":"2.0","id":7,"method":"echo","params":{}}"#);
    other.say("!ping");
    assert_eq!(other.word(), Control::Pong);
    server.signal(Signal::KILL).unwrap();
    let unsent = client.lost().unsent;
    let named = |key: Key| unsent.contains(&key);
    assert!(
        named(Key::Text("a".into())) && named(Key::Number(7)),
        "{unsent:?}"
    );
    assert!(!named(Key::Text("busy".into())), "that one may be done");
    assert_eq!(other.lost().unsent, [Key::Number(7)], "to each its own");
    daemon.stop();
}
