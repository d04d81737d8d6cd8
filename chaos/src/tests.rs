//! Every rule can be broken: each mistake is planted in a world, and must be seen, and nothing else.

use std::collections::BTreeMap;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use kennel_sys::Signal;
use kennel_testkit::{Client, Rng, wait_for};

use crate::app::{ANSWERS, App, Around, BYTES, Kind, STDOUT};
use crate::cast::Cast;
use crate::guarded::Guarded;
use crate::jobs::JobProcess;
use crate::rules::wrong;
use crate::settle::{grown, left, lonely, restless, unanswered};
use crate::world::World;

/// The rules that are broken at this moment, by their numbers or first words.
fn broken(world: &mut World, cast: &Cast) -> Vec<&'static str> {
    let mut names: Vec<&str> = wrong(world, cast)
        .iter()
        .map(|(rule, _)| rule.name)
        .collect();
    names.dedup();
    names
}

#[track_caller]
fn breaks(world: &mut World, rule: &str) {
    let label = format!("{rule} is seen to be broken");
    let names = wait_for(&label, || {
        world.hear(Duration::ZERO).unwrap();
        let cast = world.look();
        let names = broken(world, &cast);
        (!names.is_empty()).then_some(names)
    });
    assert_eq!(names.len(), 1, "{names:?}");
    assert!(names[0].starts_with(rule), "{names:?}");
}

/// Ended and reaped with the test.
struct Pretender(Child);

impl Drop for Pretender {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// A process that `/proc` shows as `sh NAME`, and that does what the script says.
fn pretend(world: &World, name: &str, script: &str) -> Pretender {
    pretend_in(world, "sh", name, script)
}

fn pretend_in(world: &World, language: &str, name: &str, script: &str) -> Pretender {
    let path = world.scope.path(name);
    std::fs::write(&path, script).unwrap();
    let mut command = world.scope.command(language);
    command.current_dir(world.scope.dir()).arg(name);
    Pretender(command.stdin(Stdio::piped()).spawn().unwrap())
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
    let sender = world.ear();
    let what = (true, Kind::Many, Around::Nothing);
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
fn a_world_in_which_nothing_has_happened_breaks_no_rule() {
    let mut world = World::begin("").unwrap();
    let cast = world.look();
    assert_eq!(broken(&mut world, &cast), [""; 0]);
    assert_eq!(unanswered(&world), None);
    assert_eq!(left(&cast), None);
}

#[test]
fn rule_1_two_daemons_of_one_key_are_seen() {
    let mut world = World::begin("").unwrap();
    let command = waits(&world);
    app(&mut world, command);
    let lock = key(&world, "k").join("daemon.lock");
    let script = format!("umask 077; exec 9>>{}; read x", lock.display());
    let _daemons = [
        pretend(&world, "daemon", &script),
        pretend(&world, "daemon", &script),
    ];
    breaks(&mut world, "1 one daemon per key");
    assert_eq!(lonely(&world.look()), None);
    std::fs::remove_file(&lock).unwrap();
    assert!(lonely(&world.look()).is_some());
}

#[test]
fn rule_2_a_session_without_its_app_is_seen() {
    let mut world = World::begin("").unwrap();
    let command = waits(&world);
    app(&mut world, command).leave();
    breaks(&mut world, "2 no orphan: a session");
}

#[test]
fn rule_2_a_server_that_serves_nobody_is_seen() {
    let mut world = World::begin("").unwrap();
    let orphan = Client::start(&mut world.scope.command(world.stash.path("tk-shared")));
    breaks(&mut world, "2 no orphan: a server");
    assert!(left(&world.look()).is_some());
    drop(orphan);
}

#[test]
fn rule_2_a_guard_without_owner_and_visitor_is_seen() {
    let mut world = World::begin("").unwrap();
    let owner = waits(&world).spawn().unwrap();
    let mut guarded = Guarded::start(owner, waits(&world)).unwrap();
    guarded.end_owner();
    world.guards.push(guarded);
    breaks(&mut world, "2 no orphan: a guarded");
}

#[test]
fn rule_3_a_session_that_is_cut_is_seen() {
    let mut world = World::begin("").unwrap();
    // It ends when it is spoken to.
    let mut command = world.scope.command("sh");
    command.args(["-c", "read line"]);
    app(&mut world, command);
    breaks(&mut world, "3 no false reap: a session");
}

#[test]
fn rule_3_whom_we_killed_before_we_knew_it_was_not_cut() {
    let mut world = World::begin("").unwrap();
    let mut command = world.scope.command("sh");
    // Nobody is told which process the session is.
    command.args(["-c", "exec 3<&0; sleep 1000 <&3 3<&- & exec 3<&-; wait"]);
    app(&mut world, command).around = Around::Launcher;
    let cast = wait_for("the session", || {
        let cast = world.look();
        let there = cast.members.iter().any(|member| is_session(&member.line));
        there.then_some(cast)
    });
    let session = cast.members.iter().find(|member| is_session(&member.line));
    world.signal(session.unwrap(), Signal::KILL);
    wait_for("its end", || {
        world.hear(Duration::ZERO).unwrap();
        world.apps[0].over.then_some(())
    });
    let cast = world.look();
    assert_eq!(broken(&mut world, &cast), [""; 0]);
}

fn is_session(line: &str) -> bool {
    line == "sleep 1000"
}

#[test]
fn a_stranger_with_the_pid_of_a_session_is_not_taken_for_it() {
    let world = World::begin("").unwrap();
    let told = world.stash.path("told");
    std::fs::write(&told, world.bystanders[0].id().to_string()).unwrap();
    let (command, ear) = (waits(&world), world.ear());
    let what = (true, Kind::Many, Around::Launcher);
    let mut app = App::start(0, what, command, &told, ear).unwrap();
    assert!(app.shim().is_none());
    std::fs::write(&told, app.starter.pid().to_string()).unwrap();
    assert!(app.shim().is_some());
}

#[test]
fn rule_3_a_guarded_server_that_is_cut_is_seen() {
    let mut world = World::begin("").unwrap();
    let owner = waits(&world).spawn().unwrap();
    let mut command = world.scope.command("sleep");
    command.arg("0.3");
    let guarded = Guarded::start(owner, command).unwrap();
    world.guards.push(guarded);
    breaks(&mut world, "3 no false reap: a guarded");
}

#[test]
fn rule_3_a_service_that_is_cut_is_seen() {
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

fn job_process(command: &mut Command, is_orphan: bool) -> (Pretender, JobProcess) {
    let child = Pretender(command.spawn().unwrap());
    let process = kennel_sys::process::ProcessRef::open(child.0.id()).unwrap();
    let line = "sleep 1000".to_owned();
    let job = JobProcess {
        process,
        line,
        is_orphan,
    };
    (child, job)
}

#[test]
fn rule_2_an_orphan_that_reap_foreign_spares_is_seen() {
    let mut world = World::begin("").unwrap();
    let (mut orphan, job) = job_process(&mut waits(&world), true);
    world.jobs.push(job);
    breaks(&mut world, "2 no orphan: reap --foreign");
    orphan.0.kill().unwrap();
    orphan.0.wait().unwrap();
    let cast = world.look();
    assert_eq!(broken(&mut world, &cast), [""; 0]);
}

#[test]
fn rule_3_an_innocent_job_that_is_ended_is_seen() {
    let mut world = World::begin("").unwrap();
    let (mut innocent, job) = job_process(&mut waits(&world), false);
    world.jobs.push(job);
    let cast = world.look();
    assert_eq!(broken(&mut world, &cast), [""; 0]);
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
        let cast = world.look();
        assert_eq!(broken(&mut world, &cast), [""; 0]);
        assert!(world.jobs.iter().all(|it| !it.is_orphan));
    }
}

#[test]
fn rules_4_11_and_12_what_an_app_must_not_hear_is_seen() {
    let mut world = World::begin("").unwrap();
    let command = waits(&world);
    let app = app(&mut world, command);
    app.hear(r#"{"jsonrpc":"2.0","id":1,"result":{}}"#).unwrap();
    assert!(app.ready);
    let mut hears = |line: &str| app.hear(line).map_err(|broken| broken.rule);
    assert_eq!(
        hears(r#"{"jsonrpc":"2.0","id":1,"result":{}}"#),
        Err(ANSWERS)
    );
    assert_eq!(
        hears(r#"{"jsonrpc":"2.0","id":77,"result":{}}"#),
        Err(ANSWERS)
    );
    assert_eq!(
        hears(r#"{"jsonrpc":"2.0","id":2,"error":"no"}"#),
        Err(ANSWERS)
    );
    let progress =
        r#"{"jsonrpc":"2.0","method":"notifications/progress","params":{"progressToken":"a9r1"}}"#;
    assert_eq!(hears(progress), Err(ANSWERS));
    assert_eq!(hears("!pong"), Err(STDOUT));
    assert_eq!(hears("kennel: a word of its own"), Err(STDOUT));

    app.kind = Kind::Plain;
    let mut chance = Rng::of(3, "tests");
    while app.ask(&mut chance, 1) != Some("echo") {}
    let (id, _) = app.open.last_key_value().unwrap();
    let line = format!(r#"{{"jsonrpc":"2.0","id":{id},"result":{{"z":1}}}}"#);
    assert_eq!(app.hear(&line).map_err(|broken| broken.rule), Err(BYTES));
    app.ask(&mut chance, 1);
    assert!(unanswered(&world).is_some());
}

#[test]
fn rule_5_what_is_done_twice_or_lost_is_seen() {
    for (acknowledged, tally) in [(true, ""), (false, "work a\nwork a\n")] {
        let mut world = World::begin("").unwrap();
        let command = waits(&world);
        let effects = BTreeMap::from([("a".to_owned(), acknowledged)]);
        app(&mut world, command).effects = effects;
        let cast = world.look();
        std::fs::write(world.stash.path("tally"), "work a\n").unwrap();
        assert_eq!(broken(&mut world, &cast), [""; 0]);
        std::fs::write(world.stash.path("tally"), tally).unwrap();
        breaks(&mut world, "5 nothing acknowledged");
    }
}

#[test]
fn rule_6_a_bystander_that_is_ended_is_seen() {
    let mut world = World::begin("").unwrap();
    world.bystanders[1].kill().unwrap();
    breaks(&mut world, "6 identity");
}

#[test]
fn a_command_that_ran_for_a_confined_process_is_seen() {
    let mut world = World::begin("").unwrap();
    std::fs::write(crate::intruders::mark(&world), "NoNewPrivs:\t0").unwrap();
    breaks(&mut world, "a confined process");
}

#[test]
fn rule_7_a_lock_that_is_another_file_is_seen() {
    let mut world = World::begin("").unwrap();
    let command = waits(&world);
    app(&mut world, command);
    let lock = key(&world, "k").join("spawn.lock");
    std::fs::write(&lock, "").unwrap();
    mode(&lock, 0o600);
    let cast = world.look();
    assert_eq!(broken(&mut world, &cast), [""; 0]);
    let other = lock.with_extension("other");
    std::fs::write(&other, "").unwrap();
    mode(&other, 0o600);
    std::fs::rename(&other, &lock).unwrap();
    breaks(&mut world, "7 decide, then write");
}

#[test]
fn rule_8_a_key_too_many_is_seen() {
    let mut world = World::begin("").unwrap();
    key(&world, "k");
    breaks(&mut world, "8 the meeting place");
}

#[test]
fn rule_9_what_others_could_read_is_seen() {
    let mut world = World::begin("").unwrap();
    let dir = world.scope.runtime_dir();
    std::fs::create_dir(&dir).unwrap();
    mode(&dir, 0o700);
    std::fs::write(dir.join("record"), "").unwrap();
    mode(&dir.join("record"), 0o640);
    breaks(&mut world, "9 only this user");
}

#[test]
fn rule_10_one_that_polls_is_seen() {
    let world = World::begin("").unwrap();
    let calm = pretend(&world, "warden", "read x");
    wait_for("the calm one", || left(&world.look()).map(drop));
    assert_eq!(restless(&world), None);
    drop(calm);
    let _polls = pretend(&world, "warden", "while :; do /bin/true; done");
    wait_for("a restless one", || restless(&world));
}

#[test]
fn one_that_has_too_many_files_is_seen() {
    let world = World::begin("").unwrap();
    let script = "files = [open('/dev/null') for _ in range(50)]; input()";
    let _hoarder = pretend_in(&world, "python3", "warden", script);
    wait_for("it is seen", || grown(&world, &world.look()));
}

#[test]
fn a_command_that_does_not_end_is_seen() {
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
fn what_is_written_outside_is_seen() {
    let mut world = World::begin("").unwrap();
    let outside = world.stash.path("outside");
    world.outside.insert(outside.clone(), None);
    let cast = world.look();
    assert_eq!(broken(&mut world, &cast), [""; 0]);
    std::fs::create_dir(outside).unwrap();
    breaks(&mut world, "nothing outside");
}
