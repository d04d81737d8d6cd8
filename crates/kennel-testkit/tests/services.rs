//! The exception of rule 2: a detached service that a process outside its tree uses outlives the tree, on record. Every
//! other detached process goes.
#![expect(clippy::unwrap_used, reason = "in a test, a panic is the report")]

use std::io::{BufRead, BufReader, Write};
use std::os::fd::AsFd;
use std::process::{Child, Command, Stdio};

use kennel_sys::Signal;
use kennel_sys::process::{Identity, ProcessRef};
use kennel_sys::tree::{self, Reason};
use kennel_testkit::{Scope, bin, on_each_kernel, wait_for};

/// A served process whose server has started a detached backend.
struct Served {
    scope: Scope,
    place: String,
    child: Child,
    lines: std::io::Lines<BufReader<std::process::ChildStdout>>,
    warden: ProcessRef,
    backend: Identity,
}

/// A place on a Unix socket, and one on a free port.
fn places(scope: &Scope) -> [String; 2] {
    let port = kennel_testkit::free_port();
    let socket = scope.path("backend.sock");
    [socket.to_str().unwrap().to_owned(), format!("tcp:{port}")]
}

impl Served {
    fn start(scope: Scope, place: &str, more: &[&str], set: impl Fn(&mut Command)) -> Served {
        Served::start_with(scope, ["50", "50"], place, more, set)
    }

    /// The same, with these milliseconds between EOF, SIGTERM and SIGKILL.
    fn start_with(
        scope: Scope,
        ladder: [&str; 2],
        place: &str,
        more: &[&str],
        set: impl Fn(&mut Command),
    ) -> Served {
        let records = scope.path("trees");
        std::fs::create_dir_all(&records).unwrap();
        let mut command = scope.command(bin("tk-tree"));
        command
            .arg("serve")
            .arg(records)
            .args(ladder)
            .arg("--")
            .arg(bin("tk-backend"))
            .args(["serve", place])
            .arg(scope.roll())
            .args(more)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped());
        set(&mut command);
        let mut child = command.spawn().unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let warden = lines.find_map(|line| {
            let identity = line.unwrap();
            ProcessRef::find(&identity.strip_prefix("warden ")?.parse().ok()?).unwrap()
        });
        let backend = wait_for("the backend", || scope.signed().first().copied());
        Served {
            place: place.to_owned(),
            warden: warden.unwrap(),
            child,
            lines,
            backend,
            scope,
        }
    }

    /// Connects to the backend from outside the tree.
    fn user(&self) -> Child {
        let mut user = self
            .scope
            .command(bin("tk-backend"))
            .args(["use", &self.place])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut line = String::new();
        let mut stdout = BufReader::new(user.stdout.take().unwrap());
        stdout.read_line(&mut line).unwrap();
        assert_eq!(line.trim(), self.backend.pid().to_string());
        user
    }

    /// Stops the tree and waits for its end. What was told.
    fn stop(&mut self) -> Vec<String> {
        let stdin = self.child.stdin.as_mut().unwrap();
        stdin.write_all(b"stop\n").unwrap();
        self.told()
    }

    fn told(&mut self) -> Vec<String> {
        let told = self.lines.by_ref().map(Result::unwrap).collect();
        assert!(self.child.wait().unwrap().success());
        told
    }

    /// Kills the warden; the served process ends its strays.
    fn lose_warden(&mut self) {
        self.warden.signal(Signal::KILL).unwrap();
        let told = self.told();
        assert!(
            told.iter().any(|line| line.starts_with("strays ")),
            "{told:?}"
        );
    }

    fn kill_both(&mut self) {
        self.child.kill().unwrap();
        self.warden.signal(Signal::KILL).unwrap();
        self.child.wait().unwrap();
        wait_for("the warden to end", || {
            (!self.warden.is_alive()).then_some(())
        });
    }

    fn next_start(&self) {
        let status = self
            .scope
            .command(bin("tk-tree"))
            .arg("next-start")
            .arg(self.scope.path("trees"))
            .arg("50")
            .stdout(Stdio::null())
            .status();
        assert!(status.unwrap().success());
    }

    fn backend_lives(&self) -> bool {
        ProcessRef::find(&self.backend).unwrap().is_some()
    }

    /// Why the backend was kept; nobody else may be on record.
    fn kept(&self) -> Option<Reason> {
        let dir = std::fs::File::open(self.scope.path("trees")).unwrap();
        let kept = tree::kept(dir.as_fd()).unwrap();
        assert!(kept.len() <= 1, "{kept:?}");
        let kept = kept.first()?;
        assert!(kept.identity.same_process(&self.backend), "{kept:?}");
        Some(kept.reason)
    }

    fn records(&self) -> usize {
        std::fs::read_dir(self.scope.path("trees")).unwrap().count()
    }
}

fn let_go(mut user: Child) {
    drop(user.stdin.take());
    user.wait().unwrap();
}

#[test]
fn a_service_that_others_use_outlives_its_tree_until_it_is_ended() {
    on_each_kernel(|| {
        for which in 0..2 {
            let scope = Scope::new("kept");
            let place = places(&scope)[which].clone();
            let mut served = Served::start(scope, &place, &[], |_| {});
            let user = served.user();
            served.stop();
            assert!(served.backend_lives(), "{place}: its user lost it");
            assert_eq!(served.kept(), Some(Reason::Used), "{place}");
            assert!(!served.warden.is_alive(), "nobody waits for it");
            served.next_start();
            assert!(served.backend_lives(), "{place}: taken for a leftover");
            let_go(user);

            let dir = std::fs::File::open(served.scope.path("trees")).unwrap();
            let kept = tree::kept(dir.as_fd()).unwrap().remove(0);
            let soon = std::time::Duration::from_millis(50);
            assert!(tree::end_kept(dir.as_fd(), &kept, soon).unwrap());
            assert!(!served.backend_lives());
            assert_eq!(served.records(), 0, "its record goes with it");
        }
    });
}

/// The direct process of a served server.
fn server_of(warden: &ProcessRef) -> ProcessRef {
    let pid = warden.pid();
    let children = std::fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).unwrap();
    ProcessRef::open(children.trim().parse().unwrap()).unwrap()
}

#[test]
fn a_service_whose_server_is_still_being_stopped_is_left_alone_for_that_reason() {
    let scope = Scope::new("still-stopping");
    let place = places(&scope)[0].clone();
    let an_hour = ["3600000", "3600000"];
    let mut served = Served::start_with(scope, an_hour, &place, &[], |_| {});
    let user = served.user();
    // The server does not notice the end of its input.
    let server = server_of(&served.warden);
    server.signal(Signal::STOP).unwrap();
    let stdin = served.child.stdin.as_mut().unwrap();
    stdin.write_all(b"stop\n").unwrap();
    wait_for("the service is on record", || served.kept());
    let dir = std::fs::File::open(served.scope.path("trees")).unwrap();
    let kept = tree::kept(dir.as_fd()).unwrap().remove(0);
    let soon = std::time::Duration::from_millis(50);
    let error = tree::end_kept(dir.as_fd(), &kept, soon).unwrap_err();
    assert_eq!(error.kind(), std::io::ErrorKind::PermissionDenied);
    let (error, warden) = (error.to_string(), served.warden.pid());
    let words = format!("its server is still being stopped (warden: pid {warden}); try again");
    assert!(error.contains(&words), "{error}");
    assert!(served.backend_lives());

    server.signal(Signal::KILL).unwrap();
    served.told();
    assert!(tree::end_kept(dir.as_fd(), &kept, soon).unwrap());
    assert!(!served.backend_lives());
    let_go(user);
}

#[test]
fn rule_2_a_service_that_only_its_own_tree_uses_goes_with_it() {
    on_each_kernel(|| {
        for which in 0..2 {
            let scope = Scope::new("own");
            let place = places(&scope)[which].clone();
            let mut served = Served::start(scope, &place, &[], |_| {});
            // One that was used from outside, and is not any more.
            let_go(served.user());
            served.stop();
            assert!(!served.backend_lives(), "{place}");
            assert_eq!(served.records(), 0);
        }
    });
}

#[test]
fn a_service_is_kept_though_the_served_process_was_killed() {
    let scope = Scope::new("killed");
    let place = places(&scope)[0].clone();
    let mut served = Served::start(scope, &place, &["alone"], |_| {});
    let user = served.user();
    served.child.kill().unwrap();
    served.child.wait().unwrap();
    wait_for("the warden to end", || {
        (!served.warden.is_alive()).then_some(())
    });
    assert!(served.backend_lives());
    assert_eq!(served.kept(), Some(Reason::Used));
    let_go(user);
}

#[test]
fn the_next_start_decides_as_the_warden_would_have() {
    on_each_kernel(|| {
        for used in [true, false] {
            let scope = Scope::new("both-killed");
            let place = places(&scope)[0].clone();
            let mut served = Served::start(scope, &place, &[], |_| {});
            let user = used.then(|| served.user());
            served.kill_both();
            assert!(served.backend_lives(), "else this would show nothing");
            served.next_start();
            assert_eq!(served.backend_lives(), used);
            assert_eq!(served.kept(), used.then_some(Reason::Used));
            assert_eq!(served.records(), usize::from(used));
            served.next_start();
            assert_eq!(served.backend_lives(), used);
            user.into_iter().for_each(let_go);
        }
    });
}

#[test]
fn a_killed_wardens_services_are_no_strays_if_others_use_them() {
    for used in [true, false] {
        let scope = Scope::new("strays");
        let place = places(&scope)[0].clone();
        let mut served = Served::start(scope, &place, &[], |_| {});
        let user = used.then(|| served.user());
        served.lose_warden();
        assert_eq!(served.backend_lives(), used);
        served.next_start();
        assert_eq!(served.backend_lives(), used);
        user.into_iter().for_each(let_go);
    }
}

/// On a full disk, no tree is on record.
#[test]
fn a_killed_wardens_services_are_spared_without_a_record_of_its_tree() {
    for used in [true, false] {
        let scope = Scope::new("unrecorded");
        let place = places(&scope)[0].clone();
        let mut served = Served::start(scope, &place, &[], |_| {});
        let user = used.then(|| served.user());
        for record in std::fs::read_dir(served.scope.path("trees")).unwrap() {
            std::fs::remove_file(record.unwrap().path()).unwrap();
        }
        served.lose_warden();
        assert_eq!(served.backend_lives(), used);
        user.into_iter().for_each(let_go);
    }
}

#[test]
fn where_connections_cannot_be_seen_what_listens_is_kept() {
    for which in 0..2 {
        let scope = Scope::new("unseen");
        let place = places(&scope)[which].clone();
        let mut served = Served::start(scope, &place, &[], |command| {
            command.env("KENNEL_FEATURES_OFF", "sock-diag");
        });
        served.stop();
        assert!(served.backend_lives(), "{place}");
        assert_eq!(served.kept(), Some(Reason::Unseen));
    }
}

#[test]
#[ignore = "needs root: cargo xtask test"]
fn needs_root_a_service_in_another_network_namespace_is_kept() {
    let scope = Scope::new("netns");
    let records = scope.path("trees");
    std::fs::create_dir_all(&records).unwrap();
    let place = places(&scope)[0].clone();
    let back = format!(
        "unshare --net {0} back {place} {1} & while [ ! -s {1} ]; do sleep 0.01; done; cat",
        bin("tk-backend").display(),
        scope.roll().display()
    );
    let mut child = scope
        .command(bin("tk-tree"))
        .arg("serve")
        .arg(&records)
        .args(["50", "50", "--", "sh", "-c", &back])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let backend = wait_for("the backend", || scope.signed().first().copied());
    child.stdin.as_mut().unwrap().write_all(b"stop\n").unwrap();
    assert!(child.wait().unwrap().success());
    assert!(ProcessRef::find(&backend).unwrap().is_some());
    let dir = std::fs::File::open(&records).unwrap();
    let kept = tree::kept(dir.as_fd()).unwrap();
    assert_eq!(kept.len(), 1);
    assert_eq!(kept[0].reason, Reason::Unseen);
}

#[test]
fn the_setting_ends_what_is_used_and_keeps_what_is_not() {
    for (setting, used, lives) in [("end", true, false), ("keep", false, true)] {
        let scope = Scope::new("setting");
        let place = places(&scope)[0].clone();
        let mut served = Served::start(scope, &place, &[], |command| {
            command.env("TK_DETACHED", setting);
        });
        let user = used.then(|| served.user());
        served.stop();
        assert_eq!(served.backend_lives(), lives, "{setting}");
        user.into_iter().for_each(let_go);
    }
}

#[test]
fn a_known_service_is_kept_without_a_user() {
    let scope = Scope::new("known");
    let known = scope.path("adb");
    std::fs::copy(bin("tk-stubborn"), &known).unwrap();
    let records = scope.path("trees");
    std::fs::create_dir_all(&records).unwrap();
    // Two processes that detach themselves: one is a service that everybody knows.
    let both = format!(
        "{0} {2} session & {1} {2} session & \
         until [ -s {2} ] && [ $(wc -l <{2}) = 2 ]; do sleep 0.01; done; cat",
        known.display(),
        bin("tk-stubborn").display(),
        scope.roll().display()
    );
    let mut child = scope
        .command(bin("tk-tree"))
        .arg("serve")
        .arg(&records)
        .args(["50", "50", "--", "sh", "-c", &both])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    wait_for("both", || (scope.signed().len() == 2).then_some(()));
    child.stdin.as_mut().unwrap().write_all(b"stop\n").unwrap();
    assert!(child.wait().unwrap().success());
    let alive = scope.signed().into_iter();
    let alive: Vec<Identity> = alive
        .filter(|it| ProcessRef::find(it).unwrap().is_some())
        .collect();
    let dir = std::fs::File::open(&records).unwrap();
    let kept = tree::kept(dir.as_fd()).unwrap();
    assert_eq!(kept.len(), 1);
    assert_eq!(alive.len(), 1);
    assert!(alive[0].same_process(&kept[0].identity));
    assert_eq!(kept[0].reason, Reason::Known);
}

#[test]
#[ignore = "needs root: cargo xtask test"]
fn needs_root_rule_9_a_record_of_another_user_keeps_nobody() {
    for theirs in [true, false] {
        let scope = Scope::new("foreign-kept");
        let place = places(&scope)[0].clone();
        let mut served = Served::start(scope, &place, &[], |_| {});
        let record = served.scope.path("trees").join("kept-1-1");
        let cookie = std::fs::read_dir(served.scope.path("trees")).unwrap();
        let mut cookie = cookie.map(|it| it.unwrap().file_name().into_string().unwrap());
        let cookie = cookie.find(|name| name.len() == 32).unwrap();
        let text = format!(
            "kennel-kept 1\nprocess {}\nreason used\nsince 1\ncommand x\ntree {cookie}\n",
            served.backend
        );
        std::fs::write(&record, text).unwrap();
        let owner = if theirs { 65534 } else { 0 };
        std::os::unix::fs::chown(&record, Some(owner), Some(owner)).unwrap();
        served.kill_both();
        served.next_start();
        assert_eq!(served.backend_lives(), !theirs, "theirs: {theirs}");
    }
}
