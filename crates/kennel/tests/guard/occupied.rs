//! Every branch of a port that is taken: who is replaced, who stays, and who is never touched.

use std::net::TcpListener;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::process::Command;

use kennel_sys::process::ProcessRef;
use kennel_testkit::{DEADLINE, Scope, bin, count, tool, wait_for};

use crate::stage::{
    LOCALHOST, Visitor, ends_with, free_port, guard, json_of, kennel, kill, listens, listing, owner,
};

/// A port, and what is to be said there.
struct Place {
    scope: Scope,
    port: u16,
}

impl Place {
    fn new(label: &str) -> Place {
        Place {
            scope: Scope::new(label),
            port: free_port(),
        }
    }

    /// A detached guard of this port.
    fn guard(&self, options: &[&str], server: &[&str]) -> Command {
        let (port, address) = (self.port.to_string(), format!("127.0.0.1:{}", self.port));
        let options = [&["--detach", "--port", &port], options].concat();
        guard(&self.scope, &options, &[server, &[&address]].concat())
    }

    #[track_caller]
    fn starts(&self, options: &[&str]) -> ProcessRef {
        ends_with(0, &mut self.guard(options, &[]));
        self.visit().server()
    }

    fn visit(&self) -> Visitor {
        Visitor::to(LOCALHOST, self.port)
    }

    /// The process that serves now, without a session of ours.
    fn server(&self) -> ProcessRef {
        let listeners = kennel_sys::net::listeners().unwrap();
        let ours = listeners.iter().find(|it| it.address.port() == self.port);
        let holders = kennel_sys::net::holders(&[ours.expect("somebody listens").inode]);
        holders.unwrap().remove(0)
    }

    /// Until it is seen that the visit is over.
    fn nobody_is_connected(&self) {
        wait_for("nobody to be connected", || {
            let open = kennel_sys::net::connections(&[self.port]).unwrap();
            open.is_empty().then_some(())
        });
    }
}

#[test]
fn an_orphan_of_the_same_command_is_replaced() {
    for _ in 0..count(20) {
        let place = Place::new("orphan");
        let mut first = owner(&place.scope);
        let before = place.starts(&["--grace", "1h", "--owner-pid", &first.id().to_string()]);
        kill(&mut first);
        place.nobody_is_connected();
        let mut second = owner(&place.scope);
        let options = ["--json", "--owner-pid", &second.id().to_string()];
        let (stdout, _) = ends_with(0, &mut place.guard(&options, &[]));
        let facts = json_of(&stdout);
        assert_eq!(facts["status"], "started");
        assert!(facts["replaced"].is_number(), "{facts}");
        assert!(!before.is_alive(), "the orphan is gone");
        assert_eq!(facts["pid"], place.server().pid());
        assert_eq!(listing(&place.scope).len(), 1);
        kill(&mut second);
        wait_for("the port to be free", || {
            (!listens(place.port)).then_some(())
        });
    }
}

#[test]
fn never_means_that_even_an_orphan_stays() {
    let place = Place::new("never");
    let mut first = owner(&place.scope);
    let before = place.starts(&["--grace", "1h", "--owner-pid", &first.id().to_string()]);
    kill(&mut first);
    place.nobody_is_connected();
    let (_, stderr) = ends_with(98, &mut place.guard(&["--takeover", "never"], &[]));
    assert!(stderr.contains("its owner is gone"), "{stderr}");
    assert!(before.is_alive());
}

#[test]
fn one_that_is_wanted_is_already_running() {
    let place = Place::new("wanted");
    let mut first = owner(&place.scope);
    let before = place.starts(&["--grace", "1h", "--owner-pid", &first.id().to_string()]);
    for takeover in ["orphan", "older", "never"] {
        let (stdout, stderr) = ends_with(0, &mut place.guard(&["--takeover", takeover], &[]));
        assert!(
            stdout.starts_with("already running: tk-ports (guard-"),
            "{stdout}"
        );
        assert!(
            stdout.contains(&format!("pid {}, port {}", before.pid(), place.port)),
            "{stdout}"
        );
        assert_eq!(stderr, "");
    }
    // In the foreground it is the same, and nothing is started.
    let mut foreground = guard(
        &place.scope,
        &["--json", "--port", &place.port.to_string()],
        &[&format!("127.0.0.1:{}", place.port)],
    );
    let facts = json_of(&ends_with(0, &mut foreground).0);
    assert_eq!(facts["status"], "already running");
    assert_eq!(facts["pid"], before.pid());
    assert_eq!(facts["ports"][0], place.port);
    assert_eq!(facts["owner"], first.id());
    assert_eq!(facts["owner_alive"], true);
    // Its owner gone, but somebody connected: it is wanted all the same.
    let visitor = place.visit();
    kill(&mut first);
    let facts = json_of(&ends_with(0, &mut place.guard(&["--json"], &[])).0);
    assert_eq!(facts["status"], "already running");
    assert_eq!(facts["owner_alive"], false);
    assert_eq!(facts["connections"], 1);
    drop(visitor);
    assert!(before.is_alive());
}

#[test]
fn one_without_an_owner_is_wanted() {
    let place = Place::new("unowned");
    let before = place.starts(&[]);
    let (stdout, _) = ends_with(0, &mut place.guard(&[], &[]));
    assert!(stdout.starts_with("already running"), "{stdout}");
    assert!(before.is_alive());
}

#[test]
fn another_command_is_never_replaced_though_it_is_guarded() {
    let place = Place::new("another");
    let mut first = owner(&place.scope);
    let before = place.starts(&["--grace", "1h", "--owner-pid", &first.id().to_string()]);
    kill(&mut first);
    place.nobody_is_connected();
    for takeover in ["orphan", "older", "never"] {
        let options = ["--json", "--takeover", takeover];
        let (stdout, stderr) = ends_with(98, &mut place.guard(&options, &["say=other"]));
        let facts = json_of(&stdout);
        assert_eq!(facts["status"], "refused");
        assert_eq!(facts["holder"]["guarded"], true);
        assert_eq!(facts["holder"]["pid"], before.pid());
        assert!(
            stderr.contains(&format!("port {} is held by tk-ports", place.port)),
            "{stderr}"
        );
        assert!(stderr.contains("kennel stop guard-"), "{stderr}");
    }
    // The same words in another directory are another command.
    let (_, stderr) = ends_with(98, place.guard(&[], &[]).current_dir(place.scope.dir()));
    assert!(stderr.contains("which kennel guards"), "{stderr}");
    assert!(before.is_alive());
}

#[test]
fn a_foreign_holder_is_named_and_left_alone() {
    let place = Place::new("foreign");
    // Ours, and so not guarded: this very process.
    let listener = TcpListener::bind((LOCALHOST, place.port)).unwrap();
    for takeover in ["orphan", "older", "never"] {
        let options = ["--json", "--takeover", takeover];
        let (stdout, stderr) = ends_with(98, &mut place.guard(&options, &[]));
        let facts = json_of(&stdout);
        assert_eq!(facts["port"], place.port);
        assert_eq!(facts["holder"]["guarded"], false);
        assert_eq!(facts["holder"]["pid"], std::process::id());
        let named = format!(
            "port {} is held by pid {} (",
            place.port,
            std::process::id()
        );
        assert!(stderr.contains(&named), "{stderr}");
        assert!(
            stderr.contains("which kennel does not guard and leaves alone"),
            "{stderr}"
        );
    }
    // In the foreground, and with another address that has the port.
    drop(listener);
    let _other = TcpListener::bind(("::1", place.port)).unwrap();
    let port = place.port.to_string();
    ends_with(98, &mut guard(&place.scope, &["--port", &port], &[]));
    assert!(listing(&place.scope).is_empty());
}

#[test]
#[ignore = "needs root: cargo xtask test"]
fn needs_root_a_holder_of_another_user_is_told_by_its_uid_or_name() {
    let place = Place::new("other-uid");
    let mut other = place.scope.command("setpriv");
    other.args(["--reuid=65533", "--regid=65533", "--clear-groups"]);
    other
        .arg(bin("tk-ports"))
        .arg(format!("127.0.0.1:{}", place.port));
    let Ok(mut other) = other.stdout(std::process::Stdio::null()).spawn() else {
        return;
    };
    crate::stage::wait_until_it_listens(place.port);
    let (_, stderr) = ends_with(98, &mut place.guard(&["--takeover", "older"], &[]));
    assert!(stderr.contains("is held by"), "{stderr}");
    assert!(other.try_wait().unwrap().is_none());
    kill(&mut other);
}

/// It says that somebody guards our port, and who that is: believed, it would keep us from it.
/// Writes a record that says that a process is a guard that has the port. The file.
fn plant_guard(place: &Place, process: &ProcessRef) -> PathBuf {
    let record = serde_json::json!({
        "entry": {
            "key": "guard-1", "name": "it", "command": ["it"], "cwd": "/", "mode": "guard",
            "daemon_pid": null, "version": "0", "since": 0, "state": "serving", "owner": null,
            "servers": [], "clients": [], "identity": process.identity().to_string(),
        },
        "sameness": "", "owner": null, "owner_was_gone": true, "ports": [place.port],
        "grace_ms": 0, "program": [], "detached": true, "ended": null,
    });
    let guards = place.scope.runtime_dir().join("guards");
    let dir = guards.join(process.pid().to_string());
    let mut builder = std::fs::DirBuilder::new();
    let private = std::os::unix::fs::DirBuilderExt::mode(&mut builder, 0o700);
    private.recursive(true).create(&dir).unwrap();
    let file = dir.join("record.json");
    std::fs::write(&file, record.to_string()).unwrap();
    file
}

#[test]
fn a_record_of_a_process_that_is_no_guard_takes_no_port_and_ends_nobody() {
    let place = Place::new("planted-record");
    let mut bystander = owner(&place.scope);
    plant_guard(&place, &ProcessRef::open(bystander.id()).unwrap());
    place.starts(&["--takeover", "older"]);
    assert_eq!(bystander.try_wait().unwrap(), None, "on a record's word");
    kill(&mut bystander);
}

#[test]
#[ignore = "needs root: cargo xtask test"]
fn needs_root_rule_9_a_record_of_another_user_does_not_take_a_port() {
    let place = Place::new("foreign-record");
    let mut bystander = owner(&place.scope);
    let file = plant_guard(&place, &ProcessRef::open(bystander.id()).unwrap());
    std::os::unix::fs::chown(&file, Some(65534), Some(65534)).unwrap();
    place.starts(&["--takeover", "older"]);
    assert_eq!(bystander.try_wait().unwrap(), None, "on a stranger's word");
    kill(&mut bystander);
}

/// A script that serves, and can be changed.
fn script(place: &Place, text: &str) -> PathBuf {
    let path = place.scope.path("server");
    let aside = place.scope.path("aside");
    std::fs::write(&aside, text).unwrap();
    std::fs::set_permissions(&aside, std::fs::Permissions::from_mode(0o755)).unwrap();
    std::fs::rename(aside, &path).unwrap();
    path
}

fn serving(place: &Place, word: &str) -> String {
    let server = bin("tk-ports");
    format!(
        "#!/bin/sh\nexec {} say={word} 127.0.0.1:{}\n",
        server.display(),
        place.port
    )
}

fn of_script(place: &Place, options: &[&str]) -> Command {
    let mut command = kennel(&place.scope);
    command.args([
        "guard",
        "--detach",
        "--stop-after",
        "300ms",
        "--port",
        &place.port.to_string(),
    ]);
    command
        .args(options)
        .arg("--")
        .arg(place.scope.path("server"));
    command
}

#[test]
fn lesson_33_an_outdated_one_is_replaced_if_that_is_asked_for_though_it_is_used() {
    let place = Place::new("older");
    let owner = owner(&place.scope);
    let options = ["--owner-pid", &owner.id().to_string()];
    script(&place, &serving(&place, "one"));
    ends_with(0, &mut of_script(&place, &options));
    let mut visitor = place.visit();
    assert_eq!(visitor.ask("say"), "one");
    // Nothing changed: nothing is replaced.
    let (stdout, _) = ends_with(0, &mut of_script(&place, &["--takeover", "older"]));
    assert!(stdout.starts_with("already running"), "{stdout}");
    script(&place, &serving(&place, "two"));
    let (stdout, _) = ends_with(0, &mut of_script(&place, &[]));
    assert!(
        stdout.starts_with("already running"),
        "not asked for: {stdout}"
    );
    assert_eq!(visitor.ask("say"), "one");
    let (stdout, _) = ends_with(0, &mut of_script(&place, &["--takeover", "older"]));
    assert!(stdout.contains("in place of pid"), "{stdout}");
    assert_eq!(place.visit().ask("say"), "two");
    drop(owner);
}

#[test]
fn a_changed_python_package_started_by_module_name_is_replaced() {
    let Some(python) = tool("python3") else {
        return;
    };
    let place = Place::new("module");
    let package = place.scope.path("thing");
    std::fs::create_dir(&package).unwrap();
    std::fs::write(package.join("__init__.py"), "").unwrap();
    let server = bin("tk-ports");
    let main = format!(
        "import os\nfrom .word import WORD\nserver = {:?}\nos.execv(server, [server, 'say=' + WORD, '127.0.0.1:{}'])\n",
        server.display().to_string(),
        place.port
    );
    std::fs::write(package.join("__main__.py"), main).unwrap();
    let word = |word: &str| std::fs::write(package.join("word.py"), format!("WORD = '{word}'\n"));
    let start = || {
        let mut command = kennel(&place.scope);
        command.args(["guard", "--detach", "--stop-after", "300ms"]);
        command.args(["--port", &place.port.to_string(), "--takeover", "older"]);
        command.arg("--").arg(&python);
        command.args(["-m", "thing"]).current_dir(place.scope.dir());
        command.env("PYTHONDONTWRITEBYTECODE", "1");
        ends_with(0, &mut command).0
    };
    word("one").unwrap();
    start();
    assert_eq!(place.visit().ask("say"), "one");
    let again = start();
    assert!(again.starts_with("already running"), "{again}");
    word("another").unwrap();
    let replaced = start();
    assert!(replaced.contains("in place of pid"), "{replaced}");
    assert_eq!(place.visit().ask("say"), "another");
}

#[test]
fn lesson_34_a_broken_successor_leaves_the_incumbent_serving() {
    let place = Place::new("broken");
    script(&place, &serving(&place, "one"));
    ends_with(0, &mut of_script(&place, &[]));
    let mut visitor = place.visit();
    let before = visitor.server();
    for (text, code, words) in [
        ("#!/no/such/shell\n", 126, "bad interpreter"),
        ("#!/bin/sh\nif true\n", 126, "cannot be parsed"),
        ("", 126, "the file is empty"),
    ] {
        script(&place, text);
        let (_, stderr) = ends_with(code, &mut of_script(&place, &["--takeover", "older"]));
        assert!(stderr.contains(words), "{stderr}");
        assert!(stderr.contains("the running server goes on"), "{stderr}");
        assert_eq!(visitor.server().pid(), before.pid());
    }
    std::fs::remove_file(place.scope.path("server")).unwrap();
    let (_, stderr) = ends_with(127, &mut of_script(&place, &["--takeover", "older"]));
    assert!(stderr.contains("the running server goes on"), "{stderr}");
    // And one whose state somebody else has.
    script(&place, &serving(&place, "two"));
    let state = place.scope.path("state");
    let state = state.to_str().unwrap();
    let mut holder = guard(
        &place.scope,
        &["--detach", "--state", state],
        &["127.0.0.1:0"],
    );
    ends_with(0, &mut holder);
    let options = ["--takeover", "older", "--state", state];
    let (_, stderr) = ends_with(1, &mut of_script(&place, &options));
    assert!(stderr.contains("the running server goes on"), "{stderr}");
    assert_eq!(visitor.server().pid(), before.pid());
    assert_eq!(visitor.ask("say"), "one");
}

#[test]
fn of_many_that_start_at_once_one_serves_and_the_others_say_so() {
    for _ in 0..count(20) {
        let place = Place::new("at-once");
        let mut all: Vec<_> = (0..10)
            .map(|_| {
                let mut command = place.guard(&["--json"], &["late=100"]);
                command
                    .stdout(std::process::Stdio::piped())
                    .spawn()
                    .unwrap()
            })
            .collect();
        let mut said: Vec<String> = Vec::new();
        for child in all.drain(..) {
            let output = child.wait_with_output().unwrap();
            assert!(output.status.success());
            let facts = json_of(&String::from_utf8(output.stdout).unwrap());
            said.push(facts["status"].as_str().unwrap().to_owned());
        }
        said.sort();
        assert_eq!(said[..9], vec!["already running"; 9][..]);
        assert_eq!(said[9], "started");
    }
}

#[test]
fn an_orphaned_guard_that_is_stopped_by_a_signal_is_replaced_without_delay() {
    let place = Place::new("stopped");
    let mut first = owner(&place.scope);
    let options = ["--json", "--owner-pid", &first.id().to_string()];
    let facts = json_of(&ends_with(0, &mut place.guard(&options, &[])).0);
    let guard = u32::try_from(facts["guard_pid"].as_u64().unwrap()).unwrap();
    let guard = ProcessRef::open(guard).unwrap();
    guard.signal(kennel_sys::Signal::STOP).unwrap();
    kill(&mut first);
    let mut second = owner(&place.scope);
    let options = ["--json", "--owner-pid", &second.id().to_string()];
    let start = std::time::Instant::now();
    let facts = json_of(&ends_with(0, &mut place.guard(&options, &[])).0);
    // It would wait for 60 s, and fail.
    assert!(start.elapsed().as_secs() < 30);
    assert_eq!(facts["status"], "started", "{facts}");
    assert!(!guard.is_alive());
    kill(&mut second);
}

#[test]
fn one_whose_end_has_begun_is_waited_for_though_its_owner_lives() {
    let place = Place::new("ending");
    let owner = owner(&place.scope);
    let options = ["--owner-pid", &owner.id().to_string()];
    // It takes as long as it may.
    ends_with(0, &mut place.guard(&options, &["stubborn"]));
    let before = place.server();
    let mut stop = kennel(&place.scope);
    let mut stop = stop.args(["stop", "tk-ports"]).spawn().unwrap();
    wait_for("its end to begin", || {
        let shown = listing(&place.scope);
        let state = shown.first().map(|shown| shown["state"].clone());
        (state != Some("serving".into())).then_some(())
    });
    let options = ["--json", "--owner-pid", &owner.id().to_string()];
    let facts = json_of(&ends_with(0, &mut place.guard(&options, &["stubborn"])).0);
    assert_eq!(facts["status"], "started", "{facts}");
    assert!(!before.is_alive());
    assert!(stop.wait().unwrap().success());
    assert!(place.visit().server().is_alive());
    drop(owner);
}

#[test]
fn an_orphan_whose_guard_was_killed_is_ended_by_the_next_start() {
    let place = Place::new("no-guard");
    let before = place.starts(&[]);
    let guard = listing(&place.scope)[0]["key"].as_str().unwrap().to_owned();
    let guard: u32 = guard.strip_prefix("guard-").unwrap().parse().unwrap();
    ProcessRef::open(guard)
        .unwrap()
        .signal(kennel_sys::Signal::KILL)
        .unwrap();
    // At once: its warden may still be at it.
    let after = place.starts(&[]);
    assert!(!before.is_alive());
    assert!(after.is_alive());
    kennel_testkit::wait_until("the new one alone", DEADLINE, || {
        (listing(&place.scope).len() == 1).then_some(())
    });
}
