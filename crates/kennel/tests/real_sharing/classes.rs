//! Who is of one class, and what each is shown.

use kennel_testkit::Scope;
use serde_json::{Value, json};

use crate::person::{LEGACY, Person, able};
use crate::stage::{always, clients_per_server_are, direct, everything, shared_servers};

fn session(scope: &Scope, version: &str, capabilities: &Value) -> Person {
    let mut person = Person::new("one", &mut always(scope, &everything()));
    person.shake_hands(version, capabilities);
    person
}

#[test]
#[ignore = "needs installed servers: cargo xtask test"]
fn needs_testbed_ten_clients_have_one_server_and_each_class_sees_its_own_tools() {
    let scope = Scope::new("tools");
    let shown = |capabilities| {
        let mut person = Person::legacy("one", &mut direct(&scope, &everything()), capabilities);
        person.tools()
    };
    let (few, all) = (shown(&json!({})), shown(&able()));
    assert!(few.len() < all.len(), "{} and {}", few.len(), all.len());

    let mut people: Vec<Person> = (0..10)
        .map(|_| session(&scope, LEGACY, &json!({})))
        .collect();
    clients_per_server_are(&scope, &[10]);
    let mut others = [
        session(&scope, LEGACY, &able()),
        session(&scope, LEGACY, &able()),
    ];
    clients_per_server_are(&scope, &[10, 2]);
    for person in &mut people {
        assert_eq!(person.tools(), few);
    }
    for person in &mut others {
        assert_eq!(person.tools(), all);
    }
    assert_eq!(shared_servers(&scope).len(), 2);
}

#[test]
#[ignore = "needs installed servers: cargo xtask test"]
fn needs_testbed_another_version_is_another_server_and_is_spoken_with_each() {
    let scope = Scope::new("versions");
    let mut people = Vec::new();
    for version in ["2025-06-18", "2025-03-26", "2025-06-18"] {
        let mut person = Person::new("one", &mut always(&scope, &everything()));
        let answer = person.shake_hands(version, &json!({}));
        assert_eq!(answer["protocolVersion"], version);
        people.push(person);
    }
    clients_per_server_are(&scope, &[2, 1]);
}
