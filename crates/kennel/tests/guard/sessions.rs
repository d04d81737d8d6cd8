//! Rule 3: somebody who is connected keeps the server, and a gap shorter than the grace is no end.

use std::net::{TcpListener, TcpStream};
use std::time::{Duration, Instant};

use kennel_sys::net;
use kennel_testkit::{DEADLINE, Scope, wait_for};

use crate::stage::{GRACE, Guarded, LOCALHOST, Visitor, free_port, kill, listing, owner, pause};

/// Longer than it takes to notice anything.
const LONG: Duration = Duration::from_millis(1800);

/// A round with each way to see connections.
const SOURCES: [&str; 2] = ["", "sock-diag"];

#[test]
fn rule_3_a_connection_outlives_the_owner_and_keeps_the_server() {
    for off in SOURCES {
        let scope = &Scope::new("sessions");
        let mut owner = owner(scope);
        let options = ["--owner-pid", &owner.id().to_string()];
        let mut guarded = Guarded::with(scope, &options, &["127.0.0.1:0"], |command| {
            command.env("KENNEL_FEATURES_OFF", off);
        });
        let mut visitor = guarded.connect();
        let server = visitor.server();
        kill(&mut owner);
        guarded.stays_for(LONG);
        assert_eq!(visitor.server().pid(), server.pid(), "the very same");
        let shown = &listing(scope)[0];
        assert_eq!(shown["state"], "owner gone, ends after its last connection");
        assert_eq!(shown["guarded"]["connections"], 1);
        let closed = Instant::now();
        drop(visitor);
        assert_eq!(guarded.ends(), Some(0));
        assert!(closed.elapsed() >= GRACE, "its end begins the grace anew");
        scope.nothing_left_within("the last session closed", DEADLINE);
    }
}

#[test]
fn lesson_26_a_reconnect_within_the_grace_keeps_the_server() {
    let scope = Scope::new("reconnect");
    let mut owner = owner(&scope);
    let options = ["--grace", "2500ms", "--owner-pid", &owner.id().to_string()];
    let mut guarded = Guarded::start(&scope, &options);
    let mut visitor = guarded.connect();
    let server = visitor.server();
    kill(&mut owner);
    // For longer than the grace altogether, with gaps that are shorter, and that are seen.
    for _ in 0..3 {
        drop(visitor);
        guarded.stays_for(Duration::from_millis(1300));
        visitor = guarded.connect();
        assert_eq!(visitor.server().pid(), server.pid());
    }
    drop(visitor);
    assert_eq!(guarded.ends(), Some(0));
}

#[test]
fn connections_too_short_to_be_seen_keep_the_server_as_well() {
    let scope = Scope::new("short");
    let mut owner = owner(&scope);
    let options = ["--grace", "1500ms", "--owner-pid", &owner.id().to_string()];
    let mut guarded = Guarded::start(&scope, &options);
    kill(&mut owner);
    let until = Instant::now() + Duration::from_millis(4500);
    while Instant::now() < until {
        drop(TcpStream::connect((LOCALHOST, guarded.port)).expect("it is there"));
        pause(Duration::from_millis(130));
        assert_eq!(guarded.child.try_wait().unwrap(), None, "it is used");
    }
    assert_eq!(guarded.ends(), Some(0));
}

#[test]
fn a_second_owner_that_connected_adopts_the_server_and_takes_it_along() {
    let scope = Scope::new("adoption");
    let mut first = owner(&scope);
    let mut guarded = Guarded::start(&scope, &["--owner-pid", &first.id().to_string()]);
    // The second one is a process with a connection of its own, and nothing else.
    let line = format!(
        "exec 3<>/dev/tcp/127.0.0.1/{}; exec sleep 1000",
        guarded.port
    );
    let mut second = scope.command("bash").args(["-c", &line]).spawn().unwrap();
    wait_for("the second owner's connection", || {
        let shown = listing(&scope);
        (shown[0]["guarded"]["connections"] == 1).then_some(())
    });
    kill(&mut first);
    guarded.stays_for(LONG);
    kill(&mut second);
    assert_eq!(guarded.ends(), Some(0));
}

#[test]
fn a_client_that_is_gone_does_not_count_though_the_server_has_not_hung_up() {
    let scope = Scope::new("half-closed");
    let mut owner = owner(&scope);
    let mut guarded = Guarded::start(&scope, &["--owner-pid", &owner.id().to_string()]);
    let mut visitor = guarded.connect();
    let server = visitor.server();
    // It reads no end of input while it is stopped.
    server.signal(kennel_sys::Signal::STOP).unwrap();
    kill(&mut owner);
    guarded.stays_for(LONG);
    drop(visitor);
    assert_eq!(guarded.ends(), Some(0));
}

#[test]
fn connections_of_the_server_to_itself_and_of_its_children_do_not_count() {
    for off in SOURCES {
        for order in ["call", "child"] {
            let scope = &Scope::new("itself");
            let mut owner = owner(scope);
            let options = ["--owner-pid", &owner.id().to_string()];
            let mut guarded = Guarded::with(scope, &options, &["127.0.0.1:0"], |command| {
                command.env("KENNEL_FEATURES_OFF", off);
            });
            let mut visitor = guarded.connect();
            visitor.ask(order);
            wait_for("its own connection and ours", || {
                let open = net::connections(&[guarded.port]).unwrap();
                (open.len() == 2).then_some(())
            });
            assert_eq!(listing(scope)[0]["guarded"]["connections"], 1, "{order}");
            // Beside its own, ours counts.
            kill(&mut owner);
            guarded.stays_for(LONG);
            drop(visitor);
            assert_eq!(guarded.ends(), Some(0), "{order}");
            scope.nothing_left_within("nobody outside is connected", DEADLINE);
        }
    }
}

#[test]
fn connections_to_another_address_with_the_same_port_do_not_count() {
    for off in SOURCES {
        for named in [false, true] {
            let scope = &Scope::new("address");
            let port = free_port();
            let mut owner = owner(scope);
            let (pid, port) = (owner.id().to_string(), port.to_string());
            let mut options = vec!["--owner-pid", &pid];
            if named {
                options.extend(["--port", &port]);
            }
            let address = format!("127.0.0.1:{port}");
            let mut guarded = Guarded::with(scope, &options, &[&address], |command| {
                command.env("KENNEL_FEATURES_OFF", off);
            });
            let stranger = TcpListener::bind(("127.0.0.2", guarded.port)).unwrap();
            let _client = TcpStream::connect(("127.0.0.2", guarded.port)).unwrap();
            let _accepted = stranger.accept().unwrap();
            assert_eq!(listing(scope)[0]["guarded"]["connections"], 0);
            kill(&mut owner);
            // Nor one that came and went there.
            drop(TcpStream::connect(("127.0.0.2", guarded.port)).unwrap());
            let status = wait_for("the guard to end", || guarded.child.try_wait().unwrap());
            assert_eq!(status.code(), Some(0));
        }
    }
}

#[test]
fn a_listener_at_every_address_counts_connections_of_both_families() {
    for off in SOURCES {
        for address in ["127.0.0.1", "127.0.0.2", "::1"] {
            let scope = &Scope::new("families");
            let mut owner = owner(scope);
            let options = ["--owner-pid", &owner.id().to_string()];
            let mut guarded = Guarded::with(scope, &options, &["[::]:0"], |command| {
                command.env("KENNEL_FEATURES_OFF", off);
            });
            let mut visitor = Visitor::to(address.parse().unwrap(), guarded.port);
            visitor.ask("pid");
            assert_eq!(listing(scope)[0]["guarded"]["connections"], 1, "{address}");
            kill(&mut owner);
            guarded.stays_for(Duration::from_millis(1100));
            drop(visitor);
            assert_eq!(guarded.ends(), Some(0));
        }
    }
}
