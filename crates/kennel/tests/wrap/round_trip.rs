//! Wrapped, wrapped again, used, unwrapped: byte for byte the original.

use std::path::{Path, PathBuf};

use kennel_testkit::{Client, Rng, full, run};
use serde_json::{Value, json};

use crate::fixtures::{FIXTURES, Fixture};
use crate::stage::{Person, server};

#[test]
fn every_configuration_of_every_app_gets_back_every_byte() {
    let server = server();
    let mut rng = Rng::seeded("wrap, and use");
    let ways = FIXTURES.iter().map(|fixture| fixture.texts(&server).len());
    for way in 0..ways.max().unwrap() {
        let person = Person::new();
        let texts: Vec<String> = FIXTURES
            .iter()
            .map(|fixture| {
                let mut texts = fixture.texts(&server);
                texts.remove(way % texts.len())
            })
            .collect();
        for (fixture, text) in FIXTURES.iter().zip(&texts) {
            person.write(fixture.path, text);
        }

        let ended = person.kennel(&["wrap", "--yes", "--json"]);
        assert_eq!(ended.code(), Some(0), "{}", ended.stderr);
        let told: Vec<Value> = serde_json::from_str(&ended.stdout).unwrap();
        assert_eq!(told.len(), FIXTURES.len());
        for (fixture, text) in FIXTURES.iter().zip(&texts) {
            is_wrapped(&person, fixture, text, &told);
        }
        let read = |fixture: &Fixture| person.read(fixture.path);
        let once: Vec<String> = FIXTURES.iter().map(read).collect();

        person.wraps();
        let twice: Vec<String> = FIXTURES.iter().map(read).collect();
        assert_eq!(once, twice, "a second time changes nothing");

        if way == 0 {
            let used = |_: &&Fixture| full() || rng.below(3) == 0;
            for fixture in FIXTURES.iter().filter(used) {
                use_it(&person, fixture.path);
            }
        }

        person.unwraps();
        for (fixture, text) in FIXTURES.iter().zip(&texts) {
            assert_eq!(&read(fixture), text, "{}", fixture.path);
            let file = person.file(fixture.path);
            assert_eq!(beside(&file), 1, "nothing is left beside {}", fixture.path);
        }
        assert_eq!(person.kept(), Vec::<PathBuf>::new());
        person.unwraps();
        for (fixture, text) in FIXTURES.iter().zip(&texts) {
            assert_eq!(&read(fixture), text, "{}", fixture.path);
        }
    }
}

#[track_caller]
fn is_wrapped(person: &Person, fixture: &Fixture, text: &str, told: &[Value]) {
    let path = person.file(fixture.path);
    let tale = told
        .iter()
        .find(|tale| tale["path"] == path.to_str().unwrap());
    let tale = tale.unwrap_or_else(|| panic!("{} is not found", fixture.path));
    assert_eq!(tale["client"], fixture.client);
    assert_eq!(tale["written"], true, "{tale:#}");
    let servers = tale["servers"].as_array().unwrap();
    let wrapped = servers.iter().filter(|server| server["proposal"] != "skip");
    assert_eq!(wrapped.count(), fixture.servers, "{tale:#}");
    assert_ne!(person.read(fixture.path), text);
}

/// How many files are called like this one.
fn beside(file: &Path) -> usize {
    let name = file.file_name().unwrap().to_str().unwrap();
    let entries = std::fs::read_dir(file.parent().unwrap()).unwrap();
    let names = entries.map(|entry| entry.unwrap().file_name());
    names
        .filter(|other| other.to_str().unwrap().contains(name))
        .count()
}

/// Starts the wrapped server as the app would, and talks to it.
fn use_it(person: &Person, path: &str) {
    let text = person.read(path);
    let words = command_of(&text, path);
    assert_eq!(words[0], person.program.to_str().unwrap());
    let mut command = person.scope.command(&words[0]);
    command.args(&words[1..]).current_dir(person.home());
    let mut client = Client::begin(&mut command);
    let seen = client.call("seen", json!({}));
    assert!(seen.to_string().contains("pid"), "{seen}");
    client.close();
    assert_eq!(client.wait().code(), Some(0));
}

/// The command of the server that is called `used`, by readers that share nothing with Kennel's.
fn command_of(text: &str, path: &str) -> Vec<String> {
    let text = text.trim_start_matches('\u{feff}');
    if path.ends_with(".toml") {
        let document: toml::Table = text.parse().unwrap();
        let used = &document["mcp_servers"]["used"];
        let args = used["args"].as_array().unwrap();
        let mut words = vec![used["command"].as_str().unwrap().to_owned()];
        words.extend(args.iter().map(|word| word.as_str().unwrap().to_owned()));
        return words;
    }
    // JSON and YAML, by Python: comments go first, and JSON with trailing commas is YAML.
    let script = include_str!("used.py");
    let scope = kennel_testkit::Scope::new("used");
    let (script_file, config) = (scope.path("used.py"), scope.path("config"));
    std::fs::write(&script_file, script).unwrap();
    std::fs::write(&config, text).unwrap();
    let kind = if path.ends_with("yaml") {
        "yaml"
    } else {
        "json"
    };
    let ended = run(scope
        .command("python3")
        .arg(&script_file)
        .arg(kind)
        .arg(&config));
    assert_eq!(ended.code(), Some(0), "{}", ended.stderr);
    serde_json::from_str(&ended.stdout).unwrap()
}
