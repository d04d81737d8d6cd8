//! Modern and legacy clients: each gets its era, and no server hears what it cannot bear.

use std::path::Path;

use kennel_testkit::Scope;
use serde_json::{Value, json};

use crate::person::{MODERN, Person};
use crate::stage::{
    Line, always, clients_per_server_are, dual, everything, listing, node, shared_servers,
};

fn discover(person: &mut Person) -> Value {
    person.modern_request("server/discover", json!({}))
}

fn pid(answer: &Value) -> u64 {
    let pid = answer["result"]["structuredContent"]["result"].as_u64();
    pid.unwrap_or_else(|| panic!("{answer}"))
}

#[test]
#[ignore = "needs installed servers: cargo xtask test"]
fn needs_testbed_both_eras_are_served_by_one_daemon_in_processes_of_their_own() {
    let scope = Scope::new("eras");
    let line = dual(&scope);
    let call = || json!({"name": "pid", "arguments": {}});
    let mut legacy = [(); 2].map(|()| Person::legacy("l", &mut always(&scope, &line), &json!({})));
    let mut modern = [(); 2].map(|()| Person::new("m", &mut always(&scope, &line)));
    for person in &mut modern {
        let answer = discover(person);
        assert_eq!(
            answer["result"]["supportedVersions"],
            json!([MODERN]),
            "{answer}"
        );
    }
    let [old, also_old] = legacy
        .each_mut()
        .map(|it| pid(&it.request("tools/call", call())));
    let [new, also_new] = modern
        .each_mut()
        .map(|it| pid(&it.modern_request("tools/call", call())));
    assert_eq!((old, new), (also_old, also_new));
    assert_ne!(old, new);
    clients_per_server_are(&scope, &[2, 2]);
    assert_eq!(listing(&scope).len(), 1, "one daemon");
    let mut classes: Vec<String> = shared_servers(&scope)
        .iter()
        .map(|server| server["class"].to_string())
        .collect();
    classes.sort();
    assert_eq!(classes, [r#""2025-11-25 {}""#, r#""modern""#]);
}

/// A server behind a copy of all it is told. It is started in place: when it ends, its process does.
fn overheard(copy: &Path, line: &Line) -> Line {
    let script = r#"
copy=$1; pipe=$1.$$; shift
echo started >> "$copy"
mkfifo "$pipe"
exec 3<&0
tee -a "$copy" <&3 >"$pipe" 2>/dev/null &
exec "$@" <"$pipe" 3<&-
"#;
    let mut all: Line = ["sh", "-c", script, "sh"].map(Into::into).to_vec();
    all.push(copy.into());
    all.extend(line.iter().cloned());
    all
}

/// `probes`: how many servers are asked before it is known.
fn legacy_after_a_probe(scope: &Scope, server: &Line, probes: usize) {
    let copy = scope.path("copy");
    let line = overheard(&copy, server);
    let told = |what: &str| {
        let copy = std::fs::read_to_string(&copy).unwrap_or_default();
        copy.lines().filter(|line| line.contains(what)).count()
    };
    let mut people = Vec::new();
    for name in ["first", "second"] {
        let mut person = Person::new(name, &mut always(scope, &line));
        let answer = discover(&mut person);
        assert_eq!(answer["error"]["code"], -32601, "{answer}");
        assert_eq!(told("server/discover"), probes, "no other is asked");
        person.shake_hands("2025-11-25", &json!({}));
        let echoed = person.call("echo", json!({"message": name}));
        assert!(echoed.contains(name), "{echoed}");
        assert_eq!(told("started"), probes + 1);
        people.push(person);
    }
    clients_per_server_are(scope, &[2]);
    assert_eq!(told("\"initialize\""), 1);
    // The process that was asked is not the one that shook hands.
    let copy = std::fs::read_to_string(&copy).unwrap();
    let after = copy.rsplit("server/discover").next().unwrap();
    assert!(after.contains("started"), "{copy}");
}

#[test]
#[ignore = "needs installed servers: cargo xtask test"]
fn needs_testbed_a_legacy_server_is_asked_once_whether_it_is_modern_and_works() {
    let scope = Scope::new("probed");
    legacy_after_a_probe(&scope, &everything(), 1);
}

/// As servers do that end on any request before `initialize`.
const ENDS_ON_DISCOVER: &str = r#"
import { createInterface } from "node:readline";
for await (const line of createInterface({ input: process.stdin })) {
  const { id, method, params } = JSON.parse(line);
  if (method === "server/discover") process.exit(1);
  if (id === undefined) continue;
  const result = method === "initialize"
    ? { protocolVersion: params.protocolVersion, capabilities: { tools: {} }, serverInfo: { name: "old", version: "0" } }
    : { content: [{ type: "text", text: params.arguments?.message ?? "" }] };
  console.log(JSON.stringify({ jsonrpc: "2.0", id, result }));
}
"#;

/// The server above.
pub(crate) fn ends_on_discover(scope: &Scope) -> Line {
    let script = scope.path("old.mjs");
    std::fs::write(&script, ENDS_ON_DISCOVER).unwrap();
    node(&script)
}

#[test]
#[ignore = "needs installed servers: cargo xtask test"]
fn needs_testbed_a_server_that_ends_when_it_is_asked_is_a_legacy_one_and_works() {
    let scope = Scope::new("ends");
    let server = ends_on_discover(&scope);
    // One that exits once may have failed to start.
    legacy_after_a_probe(&scope, &server, 2);
}
