//! With defaults, as an app would start it: who shares is decided by what is known of the server.

use std::process::Command;

use kennel_testkit::Scope;
use serde_json::{Value, json};

use crate::person::Person;
use crate::stage::{Line, bed, clients_per_server_are, dual, listing, memory, through, why_solo};

/// An app that starts server-memory as its documentation says.
fn app(scope: &Scope, options: &[&str], line: &Line, change: impl Fn(&mut Command)) -> Person {
    let mut command = through(scope, options, line);
    command.env("MEMORY_FILE_PATH", scope.path("memory.jsonl"));
    change(&mut command);
    Person::legacy("app", &mut command, &json!({}))
}

fn unchanged(_: &mut Command) {}

fn entity(name: &str) -> Value {
    let entity = json!({"name": name, "entityType": "dog", "observations": ["barks"]});
    json!({"entities": [entity]})
}

#[test]
#[ignore = "needs installed servers: cargo xtask test"]
fn needs_testbed_two_clients_in_one_project_share_a_server_that_is_known_to_be_safe() {
    let program = vec![bed().join("npm/node_modules/.bin/mcp-server-memory").into()];
    for line in [memory(), program] {
        let scope = Scope::new("memory");
        let mut one = app(&scope, &[], &line, unchanged);
        let mut two = app(&scope, &[], &line, unchanged);
        clients_per_server_are(&scope, &[2]);
        let listed = listing(&scope);
        assert_eq!(listed.len(), 1, "{listed:?}");
        assert_eq!(listed[0]["mode"], "shared");
        one.call("create_entities", entity("Rex"));
        assert!(two.call("read_graph", json!({})).contains("Rex"));
    }
}

#[test]
#[ignore = "needs installed servers: cargo xtask test"]
fn needs_testbed_two_projects_share_if_they_say_the_same_directory() {
    let scope = Scope::new("projects");
    let project = |name: &str| {
        let dir = scope.path(name);
        std::fs::create_dir(&dir).unwrap();
        dir
    };
    let (here, there) = (project("here"), project("there"));
    let common = scope.dir().to_str().unwrap();
    let in_dir = |dir, options: &[&str]| {
        app(&scope, options, &memory(), |command| {
            command.current_dir(dir);
        })
    };
    let _same = [&here, &there].map(|dir| in_dir(dir, &["--cwd", common]));
    clients_per_server_are(&scope, &[2]);
    let _different = [&here, &there].map(|dir| in_dir(dir, &[]));
    clients_per_server_are(&scope, &[2, 1, 1]);
}

#[test]
#[ignore = "needs installed servers: cargo xtask test"]
fn needs_testbed_what_differs_from_terminal_to_terminal_is_shared_and_a_token_is_not() {
    let scope = Scope::new("environments");
    let with = |pairs: &[(&str, &str)]| {
        app(&scope, &[], &memory(), |command| {
            command.envs(pairs.iter().copied());
        })
    };
    let terminal = |number: &'static str| {
        let names = [
            "TERM",
            "COLUMNS",
            "SHLVL",
            "WINDOWID",
            "SSH_TTY",
            "VSCODE_PID",
        ];
        names.map(|name| (name, number))
    };
    let _terminals = [with(&terminal("1")), with(&terminal("2"))];
    clients_per_server_are(&scope, &[2]);
    let _tokens = [with(&[("API_TOKEN", "a")]), with(&[("API_TOKEN", "b")])];
    clients_per_server_are(&scope, &[2, 1, 1]);
}

#[test]
#[ignore = "needs installed servers: cargo xtask test"]
fn needs_testbed_a_server_nobody_knows_goes_solo_and_says_why() {
    let scope = Scope::new("unknown");
    let mut person = Person::legacy("app", &mut through(&scope, &[], &dual(&scope)), &json!({}));
    assert!(person.call("pid", json!({})).parse::<u32>().is_ok());
    let why = why_solo(&scope);
    assert!(why.contains("unknown server"), "{why}");
    assert_eq!(listing(&scope).len(), 1);
}

/// Of two writes at the same moment it loses one, by itself. Here its calls take turns.
#[test]
#[ignore = "needs installed servers: cargo xtask test"]
fn needs_testbed_ten_clients_that_write_at_once_lose_nothing() {
    const CLIENTS: usize = 10;
    const WRITES: usize = 20;
    let scope = Scope::new("writes");
    let mut people: Vec<Person> = (0..CLIENTS)
        .map(|_| app(&scope, &[], &memory(), unchanged))
        .collect();
    clients_per_server_are(&scope, &[CLIENTS as u64]);
    let mut begun = Vec::new();
    for number in 0..WRITES {
        for (who, person) in people.iter_mut().enumerate() {
            let write = entity(&format!("dog {number} of {who}"));
            begun.push((who, person.begin_call("create_entities", write)));
        }
    }
    for (who, id) in begun {
        let told = people[who].result_of(&id);
        assert!(told.contains(&format!(" of {who}\"")), "{told}");
    }
    let file = std::fs::read_to_string(scope.path("memory.jsonl")).unwrap();
    let names: std::collections::BTreeSet<String> = file
        .lines()
        .map(|line| serde_json::from_str::<Value>(line).unwrap()["name"].to_string())
        .collect();
    assert_eq!(names.len(), CLIENTS * WRITES);
}
