//! Text that a server prints on stdout, where only messages belong.

use kennel_testkit::{Client, Scope, bin, wait_for};

use crate::stage::{kennel, says, server_of};

/// A server that prints before it speaks: a line for people, with a colour, and a log line in JSON.
fn chatty(scope: &Scope, share: &str) -> Client {
    let line = format!(
        "printf '\\033[32mServer ready\\033[0m\\n'; echo '{{\"level\": 30, \"msg\": \"listening\"}}'; exec {}",
        bin("tk-server").display()
    );
    let mut command = kennel(scope);
    command.args(["run", "--stop-after", "50ms,50ms", "--share", share]);
    command.args(["--", "sh", "-c", &line]);
    command.env("TESTKIT_ROLL", scope.roll());
    Client::begin(&mut command)
}

#[test]
fn of_a_dedicated_session_it_is_told_on_stderr() {
    let scope = Scope::new("printed");
    let mut client = chatty(&scope, "never");
    server_of(&mut client);
    let told = wait_for("both lines are told", || {
        let told = client.stderr_so_far();
        (told.matches("on stdout").count() == 2).then_some(told)
    });
    assert!(
        told.contains("printed text on stdout (only messages belong there; the app does not see it): \\u{1b}[32mServer ready"),
        "{told}"
    );
    assert!(told.contains("on stdout: {\"level\": 30"), "{told}");
    assert!(!told.contains('\u{1b}'), "{told}");
}

#[test]
fn of_a_shared_server_it_is_in_the_log() {
    let scope = Scope::new("printed-shared");
    let mut client = chatty(&scope, "always");
    server_of(&mut client);
    let listed = wait_for("it is listed", || crate::stage::listing(&scope).pop());
    let key = listed["key"].as_str().unwrap().to_owned();
    let log = wait_for("both lines are in the log", || {
        let log = says(&scope, &["logs", &key]);
        (log.matches("(on stdout)").count() == 2).then_some(log)
    });
    assert!(
        log.contains(" server  (on stdout) \\u{1b}[32mServer ready"),
        "{log}"
    );
    assert!(log.contains(" server  (on stdout) {\"level\": 30"), "{log}");
}
