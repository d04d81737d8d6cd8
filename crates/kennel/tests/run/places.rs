//! The runtime directory: the same for all, and what happens when it goes.

use kennel_testkit::{Client, Scope, wait_for};
use serde_json::json;

use crate::stage::{daemons, listing, serves, shared, the_daemon};

#[test]
fn sessions_go_on_when_the_runtime_directory_is_removed_and_meet_again_at_one_daemon() {
    let scope = Scope::new("removed");
    let mut clients: Vec<Client> = (0..3).map(|_| Client::begin(&mut shared(&scope))).collect();
    clients.iter_mut().for_each(serves);
    let before = the_daemon(&scope);
    scope.remove_runtime_dir();
    // Whoever comes now finds nobody, and all the others follow.
    let mut newcomer = Client::begin(&mut shared(&scope));
    serves(&mut newcomer);
    wait_for("the old daemon to have no reason left", || {
        for (round, client) in clients.iter_mut().enumerate() {
            let answer = client.request("echo", json!({ "round": round }));
            assert_eq!(answer["result"]["round"], round, "{answer}");
        }
        (!before.is_alive()).then_some(())
    });
    clients.iter_mut().for_each(serves);
    assert_eq!(daemons(&scope).len(), 1);
    wait_for("all are its clients", || {
        let entries = listing(&scope);
        let clients = entries.first()?["clients"].as_array()?.len();
        (clients == 4).then_some(())
    });
    assert_eq!(listing(&scope).len(), 1);
}

#[test]
fn rule_8_apps_that_pass_xdg_runtime_dir_on_meet_those_that_do_not() {
    let scope = Scope::new("xdg");
    let xdg = scope.path("xdg");
    std::fs::create_dir(&xdg).unwrap();
    let mut clients = [
        Client::begin(&mut shared(&scope)),
        Client::begin(shared(&scope).env("XDG_RUNTIME_DIR", &xdg)),
        Client::begin(shared(&scope).env("XDG_RUNTIME_DIR", scope.path("nowhere"))),
        Client::begin(shared(&scope).env("XDG_RUNTIME_DIR", "")),
    ];
    clients.iter_mut().for_each(serves);
    the_daemon(&scope);
    assert_eq!(std::fs::read_dir(&xdg).unwrap().count(), 0);
}
