//! Servers of every kind: which ports are theirs, and who is connected, with either way to see it.

use std::net::IpAddr;
use std::time::Duration;

use kennel_testkit::{DEADLINE, Scope, wait_for};

use crate::stage::{
    Guarded, LOCALHOST, Visitor, free_port, guard, kill, listens, listing, owner,
    wait_until_it_listens,
};

const SOURCES: [&str; 2] = ["", "sock-diag"];
/// Longer than the grace, and than it takes to notice anything.
const LONG: Duration = Duration::from_millis(1000);

/// The server stays while a visitor from `from` is there, and goes with it.
#[track_caller]
fn is_kept_by_a_visitor(server: &str, from: &str) {
    let from: IpAddr = from.parse().unwrap();
    for off in SOURCES {
        let scope = Scope::new("kinds");
        let mut owner = owner(&scope);
        let options = ["--owner-pid", &owner.id().to_string()];
        let mut guarded = Guarded::with(&scope, &options, &[server], |command| {
            command.env("KENNEL_FEATURES_OFF", off);
        });
        let visitor = Visitor::to(from, guarded.port);
        kill(&mut owner);
        guarded.stays_for(LONG);
        drop(visitor);
        assert_eq!(
            guarded.ends(),
            Some(0),
            "{server} from {from} without {off:?}"
        );
        scope.nothing_left_within("the visitor is gone", DEADLINE);
    }
}

#[test]
fn ipv6_counts() {
    is_kept_by_a_visitor("[::1]:0", "::1");
}

#[test]
fn ipv4_through_a_socket_of_ipv6_counts() {
    is_kept_by_a_visitor("[::]:0", "127.0.0.1");
}

#[test]
fn workers_that_share_a_port_are_one_server() {
    for off in SOURCES {
        let scope = Scope::new("workers");
        let mut owner = owner(&scope);
        let port = free_port();
        let address = format!("127.0.0.1:{port}");
        let options = ["--owner-pid", &owner.id().to_string()];
        let mut command = guard(&scope, &options, &["workers=3", &address]);
        let mut child = command
            .env("KENNEL_FEATURES_OFF", off)
            .stdout(std::process::Stdio::null())
            .spawn()
            .unwrap();
        wait_for("three workers", || {
            let listeners = kennel_sys::net::listeners().unwrap();
            let of_port = listeners
                .iter()
                .filter(|it| it.address.port() == port)
                .count();
            (of_port == 3).then_some(())
        });
        // Whichever worker has it, one connection is enough.
        let mut visitors: Vec<Visitor> = (0..6).map(|_| Visitor::to(LOCALHOST, port)).collect();
        visitors
            .iter_mut()
            .for_each(|visitor| drop(visitor.server()));
        kill(&mut owner);
        while let Some(visitor) = visitors.pop() {
            crate::stage::pause(Duration::from_millis(300));
            assert!(child.try_wait().unwrap().is_none(), "it is used");
            drop(visitor);
        }
        let status = wait_for("the guard to end", || child.try_wait().unwrap());
        assert!(status.success());
        assert!(!listens(port));
        scope.nothing_left_within("the workers", DEADLINE);
    }
}

#[test]
fn a_server_that_opens_its_port_late_is_waited_for_and_counted() {
    let scope = Scope::new("late");
    let mut owner = owner(&scope);
    let port = free_port();
    let (named, address) = (port.to_string(), format!("127.0.0.1:{port}"));
    let options = ["--owner-pid", &owner.id().to_string(), "--grace", "1500ms"];
    // Not named: whatever its tree listens on, from whenever on.
    let mut child = guard(&scope, &options, &["late=500", &address])
        .stdout(std::process::Stdio::null())
        .spawn()
        .unwrap();
    wait_for("the guard to be listed", || {
        (!listing(&scope).is_empty()).then_some(())
    });
    assert!(!listens(port));
    kill(&mut owner);
    let visitor = Visitor::to(LOCALHOST, port);
    crate::stage::pause(Duration::from_millis(2200));
    assert!(child.try_wait().unwrap().is_none(), "it is used");
    drop(visitor);
    assert!(wait_for("the guard to end", || child.try_wait().unwrap()).success());

    // Named, and detached: it is ready when it listens.
    let (stdout, _) = crate::stage::ends_with(
        0,
        &mut guard(
            &scope,
            &["--detach", "--port", &named],
            &["late=500", &address],
        ),
    );
    assert!(stdout.contains(&format!("port {port}")), "{stdout}");
    wait_until_it_listens(port);
}

#[test]
fn a_server_that_changes_ports_is_counted_at_the_new_ones() {
    for off in SOURCES {
        let scope = Scope::new("moves");
        let mut owner = owner(&scope);
        let options = ["--owner-pid", &owner.id().to_string()];
        let mut guarded = Guarded::with(&scope, &options, &["127.0.0.1:0"], |command| {
            command.env("KENNEL_FEATURES_OFF", off);
        });
        let mut old = guarded.connect();
        kill(&mut owner);
        guarded.stays_for(LONG);
        // After the owner's death, when it is watched already.
        let former = guarded.port;
        guarded.port = old.ask("move").parse().unwrap();
        wait_for("the old port to be closed", || {
            (!listens(former)).then_some(())
        });
        let new = guarded.connect();
        drop(old);
        guarded.stays_for(LONG);
        drop(new);
        assert_eq!(guarded.ends(), Some(0), "without {off:?}");
    }
}

#[test]
fn rule_3_a_session_counts_though_the_server_stopped_listening_where_it_came() {
    let ephemeral = kennel_sys::net::ephemeral_ports();
    let is_free = |port: &u16| std::net::TcpListener::bind((LOCALHOST, *port)).is_ok();
    let mut others = (10_000..30_000).filter(|port| !ephemeral.contains(port));
    let named_by_server = others.find(is_free).expect("a free port");
    // The kernel would not give the one to a client; the guard has seen that the server listens on the other.
    for (port, seen) in [(named_by_server, false), (0, true)] {
        let scope = Scope::new("stopped-listening");
        let mut owner = owner(&scope);
        let options = ["--owner-pid", &owner.id().to_string()];
        let server = format!("127.0.0.1:{port}");
        let mut guarded = Guarded::with(&scope, &options, &[&server], |_| {});
        let mut visitor = guarded.connect();
        let moves = |visitor: &mut Visitor| visitor.ask("move").parse().unwrap();
        match seen {
            true => {
                kill(&mut owner);
                guarded.stays_for(LONG);
                guarded.port = moves(&mut visitor);
            }
            false => {
                guarded.port = moves(&mut visitor);
                kill(&mut owner);
            }
        }
        guarded.stays_for(LONG);
        assert!(visitor.server().is_alive());
        drop(visitor);
        assert_eq!(guarded.ends(), Some(0), "{port}");
    }
}

#[test]
fn only_named_ports_count_where_ports_are_named() {
    let scope = Scope::new("named");
    let mut owner = owner(&scope);
    let (counted, other) = (free_port(), free_port());
    let addresses = [counted, other].map(|port| format!("127.0.0.1:{port}"));
    let options = [
        "--owner-pid",
        &owner.id().to_string(),
        "--port",
        &counted.to_string(),
    ];
    let server = [&addresses[0][..], &addresses[1]];
    let mut guarded = Guarded::with(&scope, &options, &server, |_| {});
    let elsewhere = Visitor::to(LOCALHOST, other);
    kill(&mut owner);
    assert_eq!(guarded.ends(), Some(0), "nobody is at the port that counts");
    drop(elsewhere);
}

#[test]
fn a_launcher_that_is_done_leaves_a_guarded_server() {
    let scope = Scope::new("launcher");
    let mut owner = owner(&scope);
    let options = ["--owner-pid", &owner.id().to_string()];
    let mut guarded = Guarded::with(&scope, &options, &["launcher", "127.0.0.1:0"], |_| {});
    guarded.stays_for(Duration::from_millis(2600));
    let mut visitor = guarded.connect();
    kill(&mut owner);
    guarded.stays_for(LONG);
    assert!(visitor.server().is_alive());
    drop(visitor);
    assert_eq!(guarded.ends(), Some(0));
    scope.nothing_left_within("the server", DEADLINE);
}

#[test]
fn a_server_that_ignores_everything_is_killed() {
    let scope = Scope::new("stubborn");
    let mut owner = owner(&scope);
    let options = ["--owner-pid", &owner.id().to_string()];
    let mut guarded = Guarded::with(&scope, &options, &["stubborn", "127.0.0.1:0"], |_| {});
    kill(&mut owner);
    assert_eq!(guarded.ends(), Some(0));
    scope.nothing_left_within("the stubborn one", DEADLINE);
}
