//! A crowd with the same ids and the same tokens: everybody hears what is theirs, once.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use kennel_testkit::{Client, Rng, Scope, count};
use serde_json::{Value, json};

use crate::stage::{seen, servers, session};

/// What one client asked for, and what it has heard of it.
#[derive(Default)]
struct Asked {
    fails: bool,
    steps: u64,
    heard: u64,
    cancelled: bool,
    answered: bool,
}

#[test]
fn rule_4_ten_clients_with_the_same_ids_and_tokens_hear_each_their_own_once() {
    let scope = Scope::new("crowd");
    let requests = count(10_000) / 10;
    let mut clients: Vec<Client> = (0..10).map(|_| session(&scope)).collect();
    std::thread::scope(|threads| {
        for (number, client) in clients.iter_mut().enumerate() {
            threads.spawn(move || {
                let mut chance = Rng::seeded(&format!("client {number}"));
                converse(client, number, requests, &mut chance);
            });
        }
    });
    let told = seen(&mut clients[0]);
    assert_eq!(told["initialize"], 1);
    assert_eq!(servers(&scope).len(), 1);
}

fn converse(client: &mut Client, number: usize, requests: u32, chance: &mut Rng) {
    let mut asked: BTreeMap<u64, Asked> = BTreeMap::new();
    let mut open: BTreeSet<u64> = BTreeSet::new();
    let mut next = 100;
    let last = 100 + u64::from(requests);
    while next < last || !open.is_empty() {
        while next < last && open.len() < 8 {
            let work = Asked {
                fails: chance.below(5) == 0,
                steps: chance.below(3),
                ..Asked::default()
            };
            let line = json!({
                "jsonrpc": "2.0", "id": next, "method": "tools/call",
                "params": {
                    "name": "work",
                    "_meta": {"progressToken": next},
                    "arguments": {
                        "tag": format!("{number}/{next}"), "ms": chance.below(20),
                        "steps": work.steps, "fail": work.fails,
                    },
                },
            });
            client.say(&format!("{line}\n"));
            open.insert(next);
            asked.insert(next, work);
            next += 1;
            if chance.below(8) == 0 {
                let id = next - 1;
                let params = json!({"requestId": id});
                let line = json!({"jsonrpc": "2.0", "method": "notifications/cancelled", "params": params});
                client.say(&format!("{line}\n"));
                asked.get_mut(&id).unwrap().cancelled = true;
                open.remove(&id);
            }
        }
        if open.is_empty() {
            continue;
        }
        let line: Value = serde_json::from_str(&client.line().unwrap()).unwrap();
        let is_progress = line["method"] == "notifications/progress";
        let id = match is_progress {
            true => &line["params"]["progressToken"],
            false => &line["id"],
        };
        let id = id.as_u64().unwrap_or_else(|| panic!("not ours: {line}"));
        let work = asked.get_mut(&id).unwrap();
        let tag = format!("{number}/{id}");
        assert!(
            line.to_string().contains(&format!("\"{tag}\"")),
            "{tag}: {line}"
        );
        assert!(!work.answered, "after its answer: {line}");
        if is_progress {
            work.heard += 1;
            continue;
        }
        assert_eq!(line["error"].is_object(), work.fails, "{line}");
        // One that was answered before its cancellation arrived is answered all the same.
        if !work.cancelled {
            assert_eq!(work.heard, work.steps, "{line}");
        }
        work.answered = true;
        open.remove(&id);
    }
}

#[test]
fn a_flood_of_one_does_not_starve_another() {
    let scope = Scope::new("flood");
    let (mut flooding, mut other) = (session(&scope), session(&scope));
    let flood = format!(
        "{}\n",
        json!({
            "jsonrpc": "2.0", "method": "notifications/unheard", "params": {"text": "x".repeat(900)},
        })
    )
    .repeat(1000);
    std::thread::scope(|threads| {
        let flooding = threads.spawn(move || {
            for _ in 0..30 {
                flooding.say(&flood);
            }
        });
        let mut trips = 0;
        let mut slowest = Duration::ZERO;
        while !flooding.is_finished() {
            let asked = Instant::now();
            seen(&mut other);
            slowest = slowest.max(asked.elapsed());
            trips += 1;
        }
        // It was served all along, and not behind all of the flood.
        assert!(trips >= 5, "{trips} trips, the slowest {slowest:?}");
    });
}
