//! Two apps with configurations of their own, started as they start servers: one shared server.

use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use kennel_testkit::{Client, tool, wait_for};
use serde_json::{Value, json};

use crate::stage::{Person, server};

/// Cursor passes everything on.
fn as_cursor(person: &Person, name: &str, cwd: &Path) -> Command {
    let document: Value = serde_json::from_str(&person.read("home/.cursor/mcp.json")).unwrap();
    let entry = &document["mcpServers"][name];
    let mut command = person.scope.command(entry["command"].as_str().unwrap());
    for word in entry["args"].as_array().unwrap() {
        command.arg(word.as_str().unwrap());
    }
    for (name, value) in entry["env"].as_object().into_iter().flatten() {
        command.env(name, value.as_str().unwrap());
    }
    command.env("EDITOR", "vim").env("SOME_TOOLCHAIN", "/opt/x");
    // Where this machine gets packages from, and whom it trusts on the network and what is loaded into it counts; the other app is not told.
    let counts = ["PIP_", "UV_", "NPM_CONFIG_", "NODE_", "SSL_CERT_", "LD_"];
    for (name, _) in std::env::vars_os() {
        let text = name.to_string_lossy().to_uppercase();
        if counts.iter().any(|it| text.starts_with(it)) || text.ends_with("_PROXY") {
            command.env_remove(name);
        }
    }
    command.current_dir(cwd);
    command
}

/// Codex clears the environment, and its servers are in a process group of their own.
fn as_codex(person: &Person, name: &str, cwd: &Path) -> Command {
    let text = person.read("home/.codex/config.toml");
    let document: toml::Table = text.parse().unwrap();
    let entry = &document["mcp_servers"][name];
    let mut command = Command::new(entry["command"].as_str().unwrap());
    let args = entry["args"].as_array().unwrap();
    command.args(args.iter().map(|word| word.as_str().unwrap()));
    // What marks the processes of this test, and keeps them together, goes along.
    let marks: Vec<_> = person
        .scope
        .command("x")
        .get_envs()
        .map(|(name, value)| (name.to_owned(), value.map(ToOwned::to_owned)))
        .collect();
    command.env_clear();
    for (name, value) in marks {
        if let Some(value) = value {
            command.env(name, value);
        }
    }
    command.env("PATH", std::env::var_os("PATH").unwrap());
    command.env("LOGNAME", "somebody");
    if let Some(env) = entry.get("env").and_then(toml::Value::as_table) {
        for (name, value) in env {
            command.env(name, value.as_str().unwrap());
        }
    }
    command.process_group(0).current_dir(cwd);
    command
}

/// How many daemons and servers run, and for how many clients.
fn crowd(person: &Person) -> (usize, usize, usize) {
    let ended = person.kennel(&["ps", "--json"]);
    let entries: Vec<Value> = serde_json::from_str(&ended.stdout).unwrap();
    let count = |key: &str| {
        entries
            .iter()
            .map(|entry| entry[key].as_array().unwrap().len())
            .sum()
    };
    (entries.len(), count("servers"), count("clients"))
}

/// What a daemon says of itself is a moment behind.
#[track_caller]
fn comes_to(person: &Person, wanted: (usize, usize, usize)) {
    wait_for(&format!("{wanted:?} daemons, servers and clients"), || {
        (crowd(person) == wanted).then_some(())
    });
}

fn write_both(person: &Person, command: &[&str], env: Option<&str>) {
    let (program, args) = command.split_first().unwrap();
    let mut entry = json!({"command": program, "args": args});
    if let Some(token) = env {
        entry["env"] = json!({"TOKEN": token});
    }
    person.write(
        "home/.cursor/mcp.json",
        &json!({"mcpServers": {"it": entry}}).to_string(),
    );
    let mut toml = format!("[mcp_servers.it]\ncommand = {program:?}\nargs = {args:?}\n");
    if let Some(token) = env {
        toml += &format!("[mcp_servers.it.env]\nTOKEN = {token:?}\n");
    }
    person.write("home/.codex/config.toml", &toml);
}

#[test]
fn a_wrapped_cursor_and_a_wrapped_codex_share_one_server() {
    let person = Person::new();
    let rule = format!("[[server]]\nmatch = {:?}\nshare = \"always\"\n", server());
    person.write("home/.config/kennel/servers.toml", &rule);
    write_both(&person, &[&server()], Some("t"));
    person.wraps();

    let project = person.file("project");
    let mut cursor = Client::begin(&mut as_cursor(&person, "it", &project));
    let mut codex = Client::begin(&mut as_codex(&person, "it", &project));
    for client in [&mut cursor, &mut codex] {
        let seen = client.call("seen", json!({}));
        assert!(seen.to_string().contains("pid"), "{seen}");
    }
    comes_to(&person, (1, 1, 2));

    // Another token is another account: not shared.
    let mut other = as_codex(&person, "it", &project);
    let mut other = Client::begin(other.env("TOKEN", "another"));
    other.call("seen", json!({}));
    comes_to(&person, (2, 2, 3));
}

#[test]
#[ignore = "needs installed servers: cargo xtask test"]
fn needs_testbed_two_apps_in_two_projects_share_a_real_server_without_any_rule() {
    let person = Person::new();
    let bed = PathBuf::from(std::env::var_os("TESTKIT_BED").expect("the testbed"));
    let script = bed.join("npm/node_modules/@modelcontextprotocol/server-memory/dist/index.js");
    let node = tool("node").unwrap();
    write_both(
        &person,
        &[node.to_str().unwrap(), script.to_str().unwrap()],
        None,
    );
    person.wraps();

    let mut cursor = as_cursor(&person, "it", &person.file("project"));
    let mut codex = as_codex(&person, "it", &person.home());
    let memory = person.file("memory.json");
    let mut cursor = Client::begin(cursor.env("MEMORY_FILE_PATH", &memory));
    let mut codex = Client::begin(codex.env("MEMORY_FILE_PATH", &memory));
    let entity = json!({"entities": [{"name": "Ada", "entityType": "person", "observations": []}]});
    cursor.call("create_entities", entity);
    let graph = codex.call("read_graph", json!({}));
    assert!(graph.to_string().contains("Ada"), "{graph}");
    comes_to(&person, (1, 1, 2));
}
