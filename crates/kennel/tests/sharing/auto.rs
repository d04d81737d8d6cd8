//! What `--share auto` makes of a server that nobody vouches for.

use kennel_testkit::{Client, Scope, bin, wait_for};
use serde_json::{Value, json};

use crate::stage::{kennel, listing, server_of, shake_hands};

pub(crate) const VERSION: &str = "io.modelcontextprotocol/protocolVersion";
pub(crate) const CAPABILITIES: &str = "io.modelcontextprotocol/clientCapabilities";

/// As an app would start it, with nothing said about sharing.
fn auto(scope: &Scope) -> Client {
    let mut command = kennel(scope);
    command.args(["run", "--linger", "100ms", "--"]);
    command.arg(bin("tk-shared"));
    Client::start(&mut command)
}

/// A request of the stateless protocol.
fn modern(client: &mut Client, method: &str, mut params: Value) -> Value {
    params["_meta"] = json!({VERSION: "2026-07-28", CAPABILITIES: {}});
    client.request(method, params)["result"].clone()
}

fn pid_of(client: &mut Client) -> Value {
    let seen = modern(client, "tools/call", json!({"name": "seen"}));
    let seen: Value = serde_json::from_str(seen["content"][0]["text"].as_str().unwrap()).unwrap();
    seen["pid"].clone()
}

#[test]
fn an_unknown_server_is_each_sessions_own_and_the_listing_says_why() {
    let scope = Scope::new("auto-unknown");
    let (mut one, mut two) = (auto(&scope), auto(&scope));
    for client in [&mut one, &mut two] {
        shake_hands(client, "2025-06-18", json!({}));
    }
    assert_ne!(server_of(&mut one), server_of(&mut two));
    let listed = wait_for("both are listed", || {
        let listing = listing(&scope);
        (listing.len() == 2).then_some(listing)
    });
    for entry in listed {
        assert_eq!(entry["mode"], "solo");
        let why = entry["why"].as_str().unwrap();
        assert!(why.contains("unknown server"), "{why}");
    }
}

#[test]
fn once_a_server_was_seen_to_be_stateless_its_modern_sessions_share_and_older_ones_do_not() {
    let scope = Scope::new("auto-modern");
    let mut first = auto(&scope);
    assert!(modern(&mut first, "server/discover", json!({})).is_object());
    pid_of(&mut first);
    // The session may answer before it has heard from its warden.
    let listed = wait_for("it is listed", || listing(&scope).into_iter().next());
    assert_eq!(listed["mode"], "solo", "nobody knew");

    let (mut one, mut two, mut old) = (auto(&scope), auto(&scope), auto(&scope));
    assert_eq!(pid_of(&mut one), pid_of(&mut two));
    assert_ne!(pid_of(&mut one), pid_of(&mut first));
    shake_hands(&mut old, "2025-06-18", json!({}));
    assert_ne!(json!(server_of(&mut old)), pid_of(&mut one));
}

/// As `context7`: an ordinary session got a server of its own and a daemon around it, which nobody shared.
#[test]
fn an_older_session_of_a_server_that_only_modern_ones_share_has_no_daemon() {
    let scope = Scope::new("auto-older");
    let rules = scope.path("home/.config/kennel/servers.toml");
    std::fs::create_dir_all(rules.parent().unwrap()).unwrap();
    let rule = format!(
        "[[server]]\nmatch = {:?}\nshare = \"modern\"\nwhy = \"asks to sign in\"\n",
        bin("tk-shared")
    );
    std::fs::write(rules, rule).unwrap();
    let mut old = auto(&scope);
    shake_hands(&mut old, "2025-06-18", json!({}));
    server_of(&mut old);
    let listed = wait_for("it is listed", || {
        let listing = listing(&scope);
        (listing.len() == 1).then_some(listing)
    });
    assert_eq!(listed[0]["mode"], "solo", "{listed:?}");
    assert_eq!(listed[0]["why"], "asks to sign in", "{listed:?}");
    assert!(!scope.runtime_dir().join("daemons").exists());

    let (mut one, mut two) = (auto(&scope), auto(&scope));
    assert_eq!(pid_of(&mut one), pid_of(&mut two));
    // A session that says nothing ends with its input.
    let mut silent = auto(&scope);
    silent.close();
    let silent = silent.wait();
    assert_eq!(silent.code(), Some(0), "{}", silent.stderr);
}
