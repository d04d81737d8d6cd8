//! Clients that write lines: one request after the other, and all at once with EOF behind the last.

use std::process::Command;

use kennel_testkit::{Client, Scope};
use serde_json::{Value, json};

use crate::servers::{self, Server};
use crate::ways::{Way, sounds_the_same};

#[test]
fn an_obedient_server_sounds_the_same() {
    let scope = Scope::new("obedient");
    sounds_the_same_to_lines(&scope, &servers::obedient(), BOTH);
}

#[test]
fn a_server_that_guards_itself_sounds_the_same() {
    let scope = Scope::new("notes");
    sounds_the_same_to_lines(&scope, &servers::notes(&scope), BOTH);
}

#[test]
#[ignore = "needs installed servers: cargo xtask test"]
fn needs_testbed_server_everything_sounds_the_same() {
    let scope = Scope::new("everything");
    sounds_the_same_to_lines(&scope, &servers::everything(), BOTH);
}

#[test]
#[ignore = "needs installed servers: cargo xtask test"]
fn needs_testbed_a_python_server_sounds_the_same() {
    let scope = Scope::new("python");
    sounds_the_same_to_lines(&scope, &servers::python(&scope), &[one_after_the_other]);
}

/// Made with an SDK that drops what it works on when its stdin ends. What it leaves unanswered, the session
/// answers (rule 4).
#[test]
#[ignore = "needs installed servers: cargo xtask test"]
fn needs_testbed_all_that_was_piped_into_a_python_server_is_answered() {
    let scope = Scope::new("python-piped");
    let server = servers::python(&scope);
    for way in [Way::Solo, Way::Daemon] {
        all_answered(&server, &all_at_once(way.to(&server, &scope), &server));
    }
}

#[track_caller]
fn sounds_the_same_to_lines(scope: &Scope, server: &Server, manners: &[Manner]) {
    for manner in manners {
        let heard = sounds_the_same(scope, server, |command| manner(command, server));
        assert!(heard.concat().contains(server.said), "{heard:?}");
        all_answered(server, &heard);
    }
}

/// Every request once, the handshake too.
#[track_caller]
fn all_answered(server: &Server, heard: &[String]) {
    let answers = heard.iter().filter(|line| is_answer(line));
    let id = |line: &String| serde_json::from_str::<Value>(line).unwrap()["id"].as_u64();
    let mut ids: Vec<u64> = answers.filter_map(id).collect();
    ids.sort_unstable();
    let all: Vec<u64> = (0..=server.asked.len() as u64).collect();
    assert_eq!(ids, all, "{heard:?}");
}

type Manner = fn(Command, &Server) -> Vec<String>;

const BOTH: &[Manner] = &[one_after_the_other, all_at_once];

fn one_after_the_other(mut command: Command, server: &Server) -> Vec<String> {
    let mut client = Client::start(&mut command);
    let mut heard = Vec::new();
    for line in conversation(server) {
        client.say(&format!("{line}\n"));
        // A notification has no answer.
        while line["id"].is_u64() {
            let heard_now = client.line().expect("an answer");
            let answered = is_answer(&heard_now);
            heard.push(heard_now);
            if answered {
                break;
            }
        }
    }
    client.close();
    heard.extend(rest_of(client));
    heard
}

/// Piped in, and EOF at once: everything is answered, the slow one too.
fn all_at_once(mut command: Command, server: &Server) -> Vec<String> {
    let lines = conversation(server).into_iter();
    let lines: String = lines.map(|line| format!("{line}\n")).collect();
    let mut client = Client::start(&mut command);
    client.say(&lines);
    client.close();
    rest_of(client)
}

fn rest_of(client: Client) -> Vec<String> {
    let ended = client.wait();
    assert!(ended.status.success(), "{}", ended.stderr);
    ended.stdout.lines().map(str::to_owned).collect()
}

fn conversation(server: &Server) -> Vec<Value> {
    let mut lines = vec![
        json!({"jsonrpc": "2.0", "id": 0, "method": "initialize", "params": {
            "protocolVersion": "2025-06-18", "capabilities": {},
            "clientInfo": {"name": "lines", "version": "0"},
        }}),
        json!({"jsonrpc": "2.0", "method": "notifications/initialized"}),
    ];
    lines.extend(server.asked.iter().zip(1..).map(
        |((method, params), id)| json!({"jsonrpc": "2.0", "id": id, "method": method, "params": params}),
    ));
    lines
}

fn is_answer(line: &str) -> bool {
    let message: Value = serde_json::from_str(line).expect("stdout is the protocol (rule 12)");
    message.get("id").is_some() && message.get("method").is_none()
}
