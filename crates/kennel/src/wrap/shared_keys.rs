//! Tests that servers which `wrap` calls shared are shared: its entries have one key in all apps.

use std::ffi::OsString;
use std::path::{Path, PathBuf};

use serde_json::json;

use super::clients::Shape;
use super::places::FoundConfig;
use super::plan::{self, Proposal, Setting};
use super::shapes::Root;
use super::splice;
use crate::key::variables::tests::apps;
use crate::key::{self, KeyInput};
use crate::sharing::launcher::Registry;
use crate::sharing::table::{ROWS, Row};
use crate::sharing::{Rule, ServersToml};

/// The command of an entry for this server as `wrap` writes it.
fn wrapped(row: &Row, project: bool, env: &[&str]) -> Vec<String> {
    let (registry, name) = row.package.expect("shared servers come from a registry");
    let (command, args) = match registry {
        Registry::PyPi => ("uvx", vec![name]),
        Registry::Npm | Registry::Elsewhere => ("npx", vec!["-y", name]),
    };
    let env: serde_json::Map<_, _> = env
        .iter()
        .map(|name| ((*name).to_owned(), json!("x")))
        .collect();
    let text =
        json!({"mcpServers": {"it": {"command": command, "args": args, "env": env}}}).to_string();
    let shape = Shape::Json(Root::McpServers);
    let found = FoundConfig {
        client: None,
        path: "/home/ada/.cursor/mcp.json".into(),
        shape: Some(shape),
        project,
    };
    let setting = Setting {
        program: "/usr/bin/kennel",
        home: Path::new("/home/ada"),
        config: &ServersToml::default(),
    };
    let plan = plan::of(&text, shape, &found, setting).unwrap();
    let shared = matches!(row.rule, Rule::Always | Rule::InTurn);
    let proposal = if shared {
        Proposal::Shared
    } else {
        Proposal::Solo
    };
    assert_eq!(plan.rows[0].proposal, proposal, "{name}");
    shape.entries(&plan.result).unwrap()[0].command().unwrap()
}

/// The key of a session with this command, by the code of `kennel run`.
fn key_of(command: &[String], cwd: &str, env: &[(OsString, OsString)]) -> String {
    let behind = splice::kennel_prefix(command).expect("it runs through kennel");
    let options = &command[2..behind.server - 1];
    let option = |name: &str| {
        let at = options.iter().position(|word| word == name)?;
        options.get(at + 1)
    };
    let chosen = option("--cwd").map(PathBuf::from);
    let env_key: Option<Vec<OsString>> =
        option("--env-key").map(|names| names.split(',').map(OsString::from).collect());
    let server: Vec<OsString> = command[behind.server..]
        .iter()
        .map(OsString::from)
        .collect();
    let names = crate::run::key_variables(&server, env_key.as_deref(), chosen.is_some(), env);
    let what = KeyInput {
        command: &server,
        cwd: chosen.as_deref().unwrap_or(Path::new(cwd)),
        env,
        names: &names,
        env_key: env_key.as_deref(),
        cache: true,
    };
    key::of(&what, None)
}

#[test]
fn every_server_that_wrap_calls_shared_has_one_key_in_all_apps() {
    let mut rows = 0;
    for row in ROWS.iter().filter(|row| row.rule != Rule::Never) {
        rows += 1;
        for project in [false, true] {
            let command = wrapped(row, project, &[]);
            let keys: Vec<_> = apps()
                .iter()
                .map(|(app, env)| (*app, key_of(&command, "/home/ada/one", env)))
                .collect();
            assert!(keys.len() >= 12);
            for (app, key) in &keys {
                assert_eq!(*key, keys[0].1, "{app} and {}: {command:?}", keys[0].0);
            }
        }
    }
    assert!(rows >= 25, "{rows}");
}

#[test]
fn another_account_or_another_value_of_what_a_server_reads_is_another_key() {
    for row in ROWS.iter().filter(|row| row.rule != Rule::Never) {
        let reads = row.reads.unwrap().iter().map(|name| name.replace('*', "X"));
        let mut names: Vec<String> = reads.collect();
        let registry = match row.package {
            Some((Registry::PyPi, _)) => "UV_DEFAULT_INDEX",
            _ => "npm_config_registry",
        };
        names.extend(["HTTPS_PROXY", "GITHUB_TOKEN", registry].map(str::to_owned));
        for declared in [&["LOG_FORMAT"][..], &[]] {
            let command = wrapped(row, false, declared);
            for name in &names {
                let key = |value: &str| key_of(&command, "/", &[(name.into(), value.into())]);
                assert_ne!(key("1"), key("2"), "{name}: {command:?}");
            }
        }
    }
}

#[test]
fn a_declared_variable_that_the_server_reads_needs_no_option() {
    let memory = |row: &&Row| {
        row.package
            .is_some_and(|(_, name)| name.ends_with("server-memory"))
    };
    let row = ROWS.iter().find(memory).unwrap();
    let plain = wrapped(row, false, &[]);
    assert!(!plain.contains(&"--env-key".to_owned()), "{plain:?}");
    assert_eq!(wrapped(row, false, &["MEMORY_FILE_PATH", "A_TOKEN"]), plain);
    let declared = wrapped(row, false, &["LOG_FORMAT"]);
    assert!(declared.contains(&"--env-key".to_owned()), "{declared:?}");
}
