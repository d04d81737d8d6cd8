//! What server-everything asks reaches the one who called, or nobody.

use std::time::Instant;

use kennel_testkit::{DEADLINE, Rng, Scope, count, wait_for};
use serde_json::{Value, json};

use crate::person::{Person, able};
use crate::stage::{always, clients_per_server_are, everything, why_solo};

/// One that has told its roots: who does not listen when it is asked for them would go solo after a while.
fn person(scope: &Scope, name: &str) -> Person {
    let mut person = Person::legacy(name, &mut always(scope, &everything()), &able());
    person.is_asked("roots/list");
    person
}

/// What it was asked, roots aside: those are everybody's.
fn questions(person: &Person) -> Vec<&Value> {
    let asked = person.asked.iter();
    asked.filter(|it| it["method"] != "roots/list").collect()
}

#[test]
#[ignore = "needs installed servers: cargo xtask test"]
fn needs_testbed_sampling_and_elicitation_are_answered_by_the_one_who_called() {
    let scope = Scope::new("asked");
    let mut people = ["Ada", "Bo"].map(|name| person(&scope, name));
    clients_per_server_are(&scope, &[2]);
    for round in 0..10 {
        let (caller, name) = (round % 2, ["Ada", "Bo"][round % 2]);
        let prompt = format!("round {round} for {name}");
        let sampled = people[caller].call("trigger-sampling-request", json!({"prompt": prompt}));
        assert!(
            sampled.contains(&format!("\"model\": \"{name}\"")),
            "{sampled}"
        );
        let elicited = people[caller].call("trigger-elicitation-request", json!({}));
        assert!(elicited.contains(name), "{elicited}");
        let asked = questions(&people[caller]);
        let [.., sampling, elicitation] = asked[..] else {
            panic!("{asked:?}");
        };
        assert!(sampling.to_string().contains(&prompt), "{sampling}");
        assert_eq!(elicitation["method"], "elicitation/create");
    }
    // Whoever did not call would hear it before the answer to this.
    for person in &mut people {
        person.call("echo", json!({"message": "fence"}));
        assert_eq!(questions(person).len(), 10);
    }
    clients_per_server_are(&scope, &[2]);
}

#[test]
#[ignore = "needs installed servers: cargo xtask test"]
fn needs_testbed_where_two_have_called_nobody_is_asked_and_newcomers_go_solo() {
    let scope = Scope::new("whose");
    let (mut busy, mut caller) = (person(&scope, "Ada"), person(&scope, "Bo"));
    clients_per_server_are(&scope, &[2]);
    let long = json!({"name": "trigger-long-running-operation",
        "arguments": {"duration": 600, "steps": 6000}, "_meta": {"progressToken": "far"}});
    busy.client.send("tools/call", long);
    busy.is_told(|it| it["params"]["progressToken"] == "far");
    let refused = caller.call("trigger-sampling-request", json!({"prompt": "whose?"}));
    assert!(refused.contains("client"), "{refused}");
    assert!(
        !refused.contains("Bo") && !refused.contains("Ada"),
        "{refused}"
    );

    let mut newcomer = person(&scope, "Cy");
    let sampled = newcomer.call("trigger-sampling-request", json!({"prompt": "mine"}));
    assert!(sampled.contains("\"model\": \"Cy\""), "{sampled}");
    assert!(
        why_solo(&scope).contains("sampling"),
        "{}",
        why_solo(&scope)
    );
    for person in [&mut busy, &mut caller] {
        person.call("echo", json!({"message": "fence"}));
        assert_eq!(questions(person), Vec::<&Value>::new());
    }
}

/// Each is asked about its own calls only, however they fall together.
#[test]
#[ignore = "needs installed servers: cargo xtask test"]
fn needs_testbed_in_random_schedules_nobody_is_asked_for_another() {
    let scope = Scope::new("schedules");
    let mut chance = Rng::seeded("schedules");
    let mut people = ["Ada", "Bo"].map(|name| person(&scope, name));
    clients_per_server_are(&scope, &[2]);
    let (mut answered, mut refused) = (0, 0);
    let started = Instant::now();
    let mut round = 0;
    // On a busy machine it may take longer until they fall together.
    while round < count(1_000) || (refused == 0 && started.elapsed() < DEADLINE) {
        round += 1;
        let mut begun = Vec::new();
        for _ in 0..=chance.below(2) {
            let who = usize::try_from(chance.below(2)).unwrap();
            let prompt = format!("{round} of {}", ["Ada", "Bo"][who]);
            let arguments = json!({"prompt": prompt});
            begun.push((
                who,
                people[who].begin_call("trigger-sampling-request", arguments),
            ));
        }
        for (who, id) in begun {
            let text = people[who].result_of(&id);
            let (name, other) = [("Ada", "Bo"), ("Bo", "Ada")][who];
            assert!(!text.contains(other), "{text}");
            match text.contains(&format!("\"model\": \"{name}\"")) {
                true => answered += 1,
                false => refused += 1,
            }
        }
    }
    for (person, name) in people.iter().zip(["Ada", "Bo"]) {
        for question in questions(person) {
            assert!(
                question.to_string().contains(&format!(" of {name}\"")),
                "{question}"
            );
        }
    }
    assert!(
        answered > 0 && refused > 0,
        "{answered} answered, {refused} refused"
    );
}

#[test]
#[ignore = "needs installed servers: cargo xtask test"]
fn needs_testbed_whose_roots_differ_goes_solo_and_the_server_knows_its_own() {
    let scope = Scope::new("roots");
    let begin = |name, uri: &str| {
        let mut person = Person::new(name, &mut always(&scope, &everything())).with_roots(uri);
        person.shake_hands(crate::person::LEGACY, &able());
        person
    };
    let (mut one, mut same) = (begin("Ada", "file:///a"), begin("Bo", "file:///a"));
    // What was on its way when one had to go is answered with an error.
    let roots = |person: &mut Person| {
        let call = json!({"name": "get-roots-list", "arguments": {}});
        person.request("tools/call", call).to_string()
    };
    for person in [&mut one, &mut same] {
        wait_for("the server knows the roots", || {
            roots(person).contains("file:///a").then_some(())
        });
    }
    clients_per_server_are(&scope, &[2]);
    let mut other = begin("Cy", "file:///c");
    wait_for("it has a server of its own", || {
        roots(&mut other).contains("file:///c").then_some(())
    });
    assert!(why_solo(&scope).contains("roots"), "{}", why_solo(&scope));
    assert!(roots(&mut one).contains("file:///a"));
    clients_per_server_are(&scope, &[2]);
}
