//! A session with a real server goes on when that server dies.

use kennel_sys::Signal;
use kennel_sys::process::ProcessRef;
use kennel_testkit::{Client, Scope, wait_for};
use serde_json::json;

use crate::servers::everything;
use crate::ways::Way;

#[test]
#[ignore = "needs installed servers: cargo xtask test"]
fn needs_testbed_a_session_of_server_everything_survives_its_server() {
    for way in [Way::Solo, Way::Daemon] {
        let scope = Scope::new("everything-killed");
        let mut client = Client::begin(&mut way.to(&everything(), &scope));
        let echo = |client: &mut Client, text: &str| client.call("echo", json!({"message": text}));
        assert!(echo(&mut client, "one").to_string().contains("one"));
        let is_node = |process: &&ProcessRef| {
            let name = std::fs::read_to_string(format!("/proc/{}/comm", process.pid()));
            name.is_ok_and(|name| name.starts_with("node") || name.starts_with("MainThread"))
        };
        let survivors = scope.survivors();
        let server = survivors.iter().find(is_node).expect("the server");
        server.signal(Signal::KILL).unwrap();
        server.wait(None).unwrap();
        // What was on its way when the loss was noticed is answered with an error.
        wait_for("it is served again", || {
            let answer = echo(&mut client, "two");
            answer.to_string().contains("two").then_some(())
        });
    }
}
