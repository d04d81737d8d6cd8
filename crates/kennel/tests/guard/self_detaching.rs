//! What becomes of detached processes when a guarded server ends.

use std::process::Stdio;

use kennel_sys::Signal;
use kennel_sys::process::ProcessRef;
use kennel_testkit::{Scope, bin, wait_for};

/// A server that detaches itself, as old daemons do, is the server: its port must become free, whoever is connected.
#[test]
fn a_guarded_server_that_detaches_itself_ends_though_it_is_used() {
    let scope = Scope::new("detaches");
    let place = scope.path("backend.sock");
    let line = format!(
        "{} back {} {} </dev/null & exit 0",
        bin("tk-backend").display(),
        place.display(),
        scope.roll().display()
    );
    let mut guard = scope
        .command(env!("CARGO_BIN_EXE_kennel"))
        .args(["guard", "--stop-after", "50ms", "--", "sh", "-c", &line])
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .spawn()
        .unwrap();
    let server = wait_for("the server", || scope.signed().first().copied());
    let mut user = scope
        .command(bin("tk-backend"))
        .arg("use")
        .arg(&place)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut told = std::io::BufReader::new(user.stdout.take().unwrap());
    std::io::BufRead::read_line(&mut told, &mut String::new()).unwrap();
    // It may end by itself by now: a server without a port is done when its direct process is.
    if let Ok(process) = ProcessRef::open(guard.id()) {
        process.signal(Signal::TERM).unwrap();
    }
    guard.wait().unwrap();
    assert!(
        ProcessRef::find(&server).unwrap().is_none(),
        "it outlived its guard"
    );
    user.kill().unwrap();
    user.wait().unwrap();
}
