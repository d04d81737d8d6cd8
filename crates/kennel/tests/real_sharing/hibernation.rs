//! Ten sessions whose server is not there while nobody needs it.

use std::time::Instant;

use kennel_testkit::{Scope, wait_for};
use serde_json::json;

use crate::person::Person;
use crate::stage::{clients_per_server_are, everything, listing, through};

const ONE: &str = "demo://resource/dynamic/text/1";

#[test]
#[ignore = "needs installed servers: cargo xtask test"]
fn needs_testbed_ten_sessions_on_server_everything_hibernate_and_wake() {
    let scope = Scope::new("hibernation");
    // Long enough for ten starts of node on a busy machine.
    let options = ["--share", "always", "--hibernate", "5s", "--linger", "0s"];
    let begin = |number: usize| {
        let mut command = through(&scope, &options, &everything());
        Person::legacy(&format!("person {number}"), &mut command, &json!({}))
    };
    let mut people: Vec<Person> = (0..10).map(begin).collect();
    clients_per_server_are(&scope, &[10]);
    let subscribed = people[4].request("resources/subscribe", json!({"uri": ONE}));
    assert_eq!(subscribed["result"], json!({}), "{subscribed}");

    wait_for("shims only", || {
        // A survivor is a shim: its command is `kennel run`.
        let is_shim = |pid: u32| {
            let line = std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
            line.split(|&byte| byte == 0).nth(1) == Some(b"run")
        };
        let alive = scope.survivors();
        (alive.len() == 10 && alive.iter().all(|process| is_shim(process.pid()))).then_some(())
    });
    let states = listing(&scope);
    assert!(
        states.len() == 1 && states[0]["state"] == "hibernating",
        "{states:?}"
    );
    assert_eq!(states[0]["clients"].as_array().map(Vec::len), Some(10));

    let asked = Instant::now();
    let echo = people[0].call("echo", json!({"message": "good morning"}));
    println!(
        "the first call after hibernation took {:?}",
        asked.elapsed()
    );
    assert!(echo.contains("good morning"), "{echo}");
    for person in &mut people {
        person.call("echo", json!({"message": "awake"}));
    }
    clients_per_server_are(&scope, &[10]);
    people[7].call("toggle-subscriber-updates", json!({}));
    people[4].is_told(|it| it["params"]["uri"] == ONE);
    for (number, person) in people.iter().enumerate() {
        let updates = person.told.iter().filter(|it| it["params"]["uri"] == ONE);
        assert_eq!(updates.count() > 0, number == 4, "person {number}");
    }
}
