//! Tests of the rules: each mistake is planted in a world, and only its rule must report it.

use std::collections::BTreeMap;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use kennel_sys::Signal;
use kennel_testkit::{Client, Rng, wait_for};

use crate::app::{ANSWERS, App, BYTES, Kind, STDOUT, Wrapping};
use crate::guarded::Guarded;
use crate::jobs::JobProcess;
use crate::processes::Processes;
use crate::rules::wrong;
use crate::settle::{left, oversized_process, unanswered, unreachable_daemon, waking_process};
use crate::world::World;

/// The rules that are broken at this moment, by their numbers or first words.
fn broken(world: &mut World, processes: &Processes) -> Vec<&'static str> {
    let mut names: Vec<&str> = wrong(world, processes)
        .iter()
        .map(|(rule, _)| rule.name)
        .collect();
    names.dedup();
    names
}

#[track_caller]
fn breaks(world: &mut World, rule: &str) {
    let label = format!("{rule} is reported");
    let names = wait_for(&label, || {
        world.handle_lines(Duration::ZERO).unwrap();
        let processes = world.look();
        let names = broken(world, &processes);
        (!names.is_empty()).then_some(names)
    });
    assert_eq!(names.len(), 1, "{names:?}");
    assert!(names[0].starts_with(rule), "{names:?}");
}

/// A process that is killed and reaped with the test.
struct FakeProcess(Child);

impl Drop for FakeProcess {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// A process that `/proc` shows as `sh NAME`, and that runs the script.
fn start_fake(world: &World, name: &str, script: &str) -> FakeProcess {
    pretend_in(world, "sh", name, script)
}

fn pretend_in(world: &World, language: &str, name: &str, script: &str) -> FakeProcess {
    let path = world.scope.path(name);
    std::fs::write(&path, script).unwrap();
    let mut command = world.scope.command(language);
    command.current_dir(world.scope.dir()).arg(name);
    FakeProcess(command.stdin(Stdio::piped()).spawn().unwrap())
}

fn key(world: &World, name: &str) -> PathBuf {
    let key = world.scope.runtime_dir().join("daemons").join(name);
    std::fs::create_dir_all(&key).unwrap();
    for dir in key.ancestors().take(3) {
        mode(dir, 0o700);
    }
    key
}

fn mode(path: &Path, mode: u32) {
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).unwrap();
}

/// An app whose session is this command.
fn app(world: &mut World, command: Command) -> &mut App {
    let number = world.apps.len();
    let sender = world.line_sender();
    let what = (true, Kind::Many, Wrapping::Nothing);
    let app = App::start(number, what, command, Path::new("/nowhere"), sender).unwrap();
    world.apps.push(app);
    &mut world.apps[number]
}

fn waits(world: &World) -> Command {
    let mut command = world.scope.command("sleep");
    command.arg("1000");
    command
}

#[test]
fn a_new_world_breaks_no_rule() {
    let mut world = World::begin("").unwrap();
    let processes = world.look();
    assert_eq!(broken(&mut world, &processes), [""; 0]);
    assert_eq!(unanswered(&world), None);
    assert_eq!(left(&processes), None);
}

#[test]
fn rule_1_two_daemons_of_one_key_are_reported() {
    let mut world = World::begin("").unwrap();
    let command = waits(&world);
    app(&mut world, command);
    let lock = key(&world, "k").join("daemon.lock");
    let script = format!("umask 077; exec 9>>{}; read x", lock.display());
    let _daemons = [
        start_fake(&world, "daemon", &script),
        start_fake(&world, "daemon", &script),
    ];
    breaks(&mut world, "1 one daemon per key");
    assert_eq!(unreachable_daemon(&world.look()), None);
    std::fs::remove_file(&lock).unwrap();
    assert!(unreachable_daemon(&world.look()).is_some());
}

#[test]
fn rule_2_a_session_without_its_app_is_reported() {
    let mut world = World::begin("").unwrap();
    let command = waits(&world);
    app(&mut world, command).leave();
    breaks(&mut world, "2 no orphan: a session");
}

#[test]
fn rule_2_a_server_without_a_served_process_is_reported() {
    let mut world = World::begin("").unwrap();
    let orphan = Client::start(&mut world.scope.command(world.stash.path("tk-shared")));
    breaks(&mut world, "2 no orphan: a server");
    assert!(left(&world.look()).is_some());
    drop(orphan);
}

#[test]
fn rule_2_a_guard_without_owner_and_visitor_is_reported() {
    let mut world = World::begin("").unwrap();
    let owner = waits(&world).spawn().unwrap();
    let mut guarded = Guarded::start(owner, waits(&world)).unwrap();
    guarded.end_owner();
    world.guards.push(guarded);
    breaks(&mut world, "2 no orphan: a guarded");
}

#[test]
fn rule_3_a_session_that_ends_too_early_is_reported() {
    let mut world = World::begin("").unwrap();
    // It ends when it gets a request.
    let mut command = world.scope.command("sh");
    command.args(["-c", "read line"]);
    app(&mut world, command);
    breaks(&mut world, "3 no false reap: a session");
}

#[test]
fn rule_3_a_session_killed_before_it_was_known_is_not_reported() {
    let mut world = World::begin("").unwrap();
    let mut command = world.scope.command("sh");
    // The pid of the session is not written to the file.
    command.args(["-c", "exec 3<&0; sleep 1000 <&3 3<&- & exec 3<&-; wait"]);
    app(&mut world, command).wrapping = Wrapping::Launcher;
    let processes = wait_for("the session", || {
        let processes = world.look();
        let there = processes
            .members
            .iter()
            .any(|member| is_session(&member.line));
        there.then_some(processes)
    });
    let session = processes
        .members
        .iter()
        .find(|member| is_session(&member.line));
    world.signal(session.unwrap(), Signal::KILL);
    wait_for("its end", || {
        world.handle_lines(Duration::ZERO).unwrap();
        world.apps[0].over.then_some(())
    });
    let processes = world.look();
    assert_eq!(broken(&mut world, &processes), [""; 0]);
}

fn is_session(line: &str) -> bool {
    line == "sleep 1000"
}

#[test]
fn a_stranger_with_the_pid_of_a_session_is_not_mistaken_for_it() {
    let world = World::begin("").unwrap();
    let output = world.stash.path("output");
    std::fs::write(&output, world.bystanders[0].id().to_string()).unwrap();
    let (command, line_sender) = (waits(&world), world.line_sender());
    let what = (true, Kind::Many, Wrapping::Launcher);
    let mut app = App::start(0, what, command, &output, line_sender).unwrap();
    assert!(app.shim().is_none());
    std::fs::write(&output, app.starter.pid().to_string()).unwrap();
    assert!(app.shim().is_some());
}

#[test]
fn rule_3_a_guarded_server_that_ends_too_early_is_reported() {
    let mut world = World::begin("").unwrap();
    let owner = waits(&world).spawn().unwrap();
    let mut command = world.scope.command("sleep");
    command.arg("0.3");
    let guarded = Guarded::start(owner, command).unwrap();
    world.guards.push(guarded);
    breaks(&mut world, "3 no false reap: a guarded");
}

#[test]
fn rule_3_a_service_that_ends_too_early_is_reported() {
    let mut world = World::begin("").unwrap();
    let mut service = waits(&world).spawn().unwrap();
    world.used.push(crate::services::Used {
        service: kennel_sys::process::ProcessRef::open(service.id()).unwrap(),
        _connection: std::os::unix::net::UnixStream::pair().unwrap().0,
        may_end: false,
    });
    service.kill().unwrap();
    service.wait().unwrap();
    breaks(&mut world, "3 no false reap: a service");
}

fn job_process(command: &mut Command, is_orphan: bool) -> (FakeProcess, JobProcess) {
    let child = FakeProcess(command.spawn().unwrap());
    let process = kennel_sys::process::ProcessRef::open(child.0.id()).unwrap();
    let line = "sleep 1000".to_owned();
    let job = JobProcess {
        process: process.into(),
        line,
        is_orphan,
    };
    (child, job)
}

#[test]
fn rule_2_an_orphan_that_reap_foreign_spares_is_reported() {
    let mut world = World::begin("").unwrap();
    let (mut orphan, job) = job_process(&mut waits(&world), true);
    world.jobs.push(job);
    breaks(&mut world, "2 no orphan: reap --foreign");
    orphan.0.kill().unwrap();
    orphan.0.wait().unwrap();
    let processes = world.look();
    assert_eq!(broken(&mut world, &processes), [""; 0]);
}

#[test]
fn rule_3_an_innocent_job_that_is_ended_is_reported() {
    let mut world = World::begin("").unwrap();
    let (mut innocent, job) = job_process(&mut waits(&world), false);
    world.jobs.push(job);
    let processes = world.look();
    assert_eq!(broken(&mut world, &processes), [""; 0]);
    innocent.0.kill().unwrap();
    breaks(&mut world, "3 no false reap: a background job");
}

#[test]
fn random_jobs_start_and_reap_foreign_ends_exactly_the_orphans_among_them() {
    let mut world = World::begin("").unwrap();
    let mut chance = Rng::seeded("jobs");
    let (mut innocents, mut orphans) = (0, 0);
    while innocents < 20 || orphans < 3 {
        world.jobs.clear();
        crate::jobs::start_and_reap(&mut world, chance.next_u64()).unwrap();
        orphans += world.jobs.iter().filter(|it| it.is_orphan).count();
        innocents += world.jobs.iter().filter(|it| !it.is_orphan).count();
        wait_for("the end of reap", || {
            world.commands[0].has_ended().then_some(())
        });
        let processes = world.look();
        assert_eq!(broken(&mut world, &processes), [""; 0]);
        assert!(world.jobs.iter().all(|it| !it.is_orphan));
    }
}

#[test]
fn rules_4_11_and_12_wrong_lines_to_an_app_are_reported() {
    let mut world = World::begin("").unwrap();
    let command = waits(&world);
    let app = app(&mut world, command);
    app.handle_lines(r#"{"jsonrpc":"2.0","id":1,"result":{}}"#)
        .unwrap();
    assert!(app.ready);
    let mut handles = |line: &str| app.handle_lines(line).map_err(|broken| broken.rule);
    assert_eq!(
        handles(r#"{"jsonrpc":"2.0","id":1,"result":{}}"#),
        Err(ANSWERS)
    );
    assert_eq!(
        handles(r#"{"jsonrpc":"2.0","id":77,"result":{}}"#),
        Err(ANSWERS)
    );
    assert_eq!(
        handles(r#"{"jsonrpc":"2.0","id":2,"error":"no"}"#),
        Err(ANSWERS)
    );
    let progress =
        r#"{"jsonrpc":"2.0","method":"notifications/progress","params":{"progressToken":"a9r1"}}"#;
    assert_eq!(handles(progress), Err(ANSWERS));
    assert_eq!(handles("!pong"), Err(STDOUT));
    assert_eq!(handles("kennel: a message"), Err(STDOUT));

    app.kind = Kind::Plain;
    let mut chance = Rng::of(3, "tests");
    while app.ask(&mut chance, 1) != Some("echo") {}
    let (id, _) = app.open.last_key_value().unwrap();
    let line = format!(r#"{{"jsonrpc":"2.0","id":{id},"result":{{"z":1}}}}"#);
    assert_eq!(
        app.handle_lines(&line).map_err(|broken| broken.rule),
        Err(BYTES)
    );
    app.ask(&mut chance, 1);
    assert!(unanswered(&world).is_some());
}

#[test]
fn rule_5_a_side_effect_that_happens_twice_or_is_lost_is_reported() {
    for (acknowledged, tally) in [(true, ""), (false, "work a\nwork a\n")] {
        let mut world = World::begin("").unwrap();
        let command = waits(&world);
        let effects = BTreeMap::from([("a".to_owned(), acknowledged)]);
        app(&mut world, command).effects = effects;
        let processes = world.look();
        std::fs::write(world.stash.path("tally"), "work a\n").unwrap();
        assert_eq!(broken(&mut world, &processes), [""; 0]);
        std::fs::write(world.stash.path("tally"), tally).unwrap();
        breaks(&mut world, "5 nothing acknowledged");
    }
}

#[test]
fn rule_6_a_bystander_that_is_ended_is_reported() {
    let mut world = World::begin("").unwrap();
    world.bystanders[1].kill().unwrap();
    breaks(&mut world, "6 identity");
}

#[test]
fn a_command_that_ran_for_a_confined_process_is_reported() {
    let mut world = World::begin("").unwrap();
    std::fs::write(crate::intruders::mark(&world), "NoNewPrivs:\t0").unwrap();
    breaks(&mut world, "a confined process");
}

#[test]
fn rule_7_a_replaced_lock_file_is_reported() {
    let mut world = World::begin("").unwrap();
    let command = waits(&world);
    app(&mut world, command);
    let lock = key(&world, "k").join("spawn.lock");
    std::fs::write(&lock, "").unwrap();
    mode(&lock, 0o600);
    let processes = world.look();
    assert_eq!(broken(&mut world, &processes), [""; 0]);
    let other = lock.with_extension("other");
    std::fs::write(&other, "").unwrap();
    mode(&other, 0o600);
    std::fs::rename(&other, &lock).unwrap();
    breaks(&mut world, "7 decide, then write");
}

#[test]
fn rule_8_too_many_keys_are_reported() {
    let mut world = World::begin("").unwrap();
    key(&world, "k");
    breaks(&mut world, "8 the runtime directory");
}

#[test]
fn rule_9_a_file_that_others_can_read_is_reported() {
    let mut world = World::begin("").unwrap();
    let dir = world.scope.runtime_dir();
    std::fs::create_dir(&dir).unwrap();
    mode(&dir, 0o700);
    std::fs::write(dir.join("record"), "").unwrap();
    mode(&dir.join("record"), 0o640);
    breaks(&mut world, "9 only this user");
}

#[test]
fn rule_10_a_process_that_polls_is_reported() {
    let world = World::begin("").unwrap();
    let calm = start_fake(&world, "warden", "read x");
    wait_for("an idle process", || left(&world.look()).map(drop));
    assert_eq!(waking_process(&world), None);
    drop(calm);
    let _polls = start_fake(&world, "warden", "while :; do /bin/true; done");
    wait_for("a process that wakes up", || waking_process(&world));
}

#[test]
fn a_process_with_too_many_files_is_reported() {
    let world = World::begin("").unwrap();
    let script = "files = [open('/dev/null') for _ in range(50)]; input()";
    let _hoarder = pretend_in(&world, "python3", "warden", script);
    wait_for("it is seen", || oversized_process(&world, &world.look()));
}

#[test]
fn a_command_that_does_not_end_is_reported() {
    let mut world = World::begin("").unwrap();
    std::fs::write(
        world.stash.path("kennel.new"),
        "#!/bin/sh\nexec sleep 1000\n",
    )
    .unwrap();
    mode(&world.stash.path("kennel.new"), 0o755);
    std::fs::rename(world.stash.path("kennel.new"), world.stash.path("kennel")).unwrap();
    world.run(&["ps"]).unwrap();
    breaks(&mut world, "a command ends");
}

#[test]
fn a_file_written_outside_is_reported() {
    let mut world = World::begin("").unwrap();
    let outside = world.stash.path("outside");
    world.outside.insert(outside.clone(), None);
    let processes = world.look();
    assert_eq!(broken(&mut world, &processes), [""; 0]);
    std::fs::create_dir(outside).unwrap();
    breaks(&mut world, "no file outside");
}
