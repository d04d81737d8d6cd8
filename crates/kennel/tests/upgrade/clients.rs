//! The official clients, while their daemon becomes another build and their server is replaced: nothing but answers
//! reaches them.

use std::path::PathBuf;

use kennel_testkit::{Client, Scope, bin, tool, wait_for};
use serde_json::{Value, json};

use crate::stage::{build, daemon_when, server_of, this};

fn bed() -> PathBuf {
    let bed = std::env::var_os("TESTKIT_BED").map(PathBuf::from);
    bed.expect("the testbed: run these tests with `cargo xtask test`")
}

/// A copy of the server for many, which may change on disk.
fn server(scope: &Scope) -> PathBuf {
    let path = scope.path("tk-copied");
    std::fs::copy(bin("tk-shared"), &path).unwrap();
    path
}

#[track_caller]
fn round_goes_well(client: &mut Client) {
    client.say("0\n");
    let said = client.line().unwrap_or_else(|| client.stderr_so_far());
    let said: Value = serde_json::from_str(&said).unwrap_or_else(|_| panic!("{said}"));
    assert_eq!(said["text"], "0", "{said}");
    // Each client says in its own way that it was done.
    assert!(said["work"] == "done" || said["work"] == "0", "{said}");
    assert_eq!(said["odd"], json!([]), "{said}");
}

fn notices_no_upgrade(program: PathBuf, name: &str, script: &str) {
    let scope = Scope::new("official");
    let file = scope.path(name);
    std::fs::write(&file, script).unwrap();
    // Its packages are looked for beside it.
    let packages = bed().join("npm/node_modules");
    std::os::unix::fs::symlink(packages, scope.path("node_modules")).unwrap();
    let server = server(&scope);
    let mut command = scope.command(program);
    command
        .arg(file)
        .arg(this())
        .args(["run", "--share", "always", "--stop-after", "1s,50ms", "--"])
        .arg(&server)
        .env("TESTKIT_ROLL", scope.roll());
    let mut client = Client::start(&mut command);
    round_goes_well(&mut client);

    // Of the same key, so that they meet.
    let newer = build(&scope, "99.1.0");
    let mut newcomer = scope.command(&newer);
    newcomer
        .args(["run", "--share", "always", "--stop-after", "1s,50ms", "--"])
        .arg(&server)
        .env("TESTKIT_ROLL", scope.roll());
    let mut newcomer = Client::begin(&mut newcomer);
    daemon_when(&scope, "99.1.0");
    round_goes_well(&mut client);

    let before = server_of(&mut newcomer);
    let copy = scope.path("another");
    std::fs::copy(&server, &copy).unwrap();
    std::fs::rename(&copy, &server).unwrap();
    wait_for("the server is replaced", || {
        round_goes_well(&mut client);
        (server_of(&mut newcomer) != before).then_some(())
    });
    round_goes_well(&mut client);
    client.close();
    let ended = client.wait();
    assert!(ended.status.success(), "{}", ended.stderr);
}

#[test]
#[ignore = "needs installed servers: cargo xtask test"]
fn needs_testbed_the_official_typescript_client_notices_no_upgrade() {
    let script = include_str!("../survival/official.mjs");
    notices_no_upgrade(tool("node").unwrap(), "client.mjs", script);
}

#[test]
#[ignore = "needs installed servers: cargo xtask test"]
fn needs_testbed_the_official_python_client_notices_no_upgrade() {
    let script = include_str!("../survival/official.py");
    notices_no_upgrade(bed().join("python/bin/python"), "client.py", script);
}
