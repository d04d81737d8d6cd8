//! The end of a world: all faults are mended, and everything that may need a moment must have become true.

use std::collections::BTreeSet;
use std::process::Stdio;
use std::time::{Duration, Instant};

use kennel_sys::Signal;
use kennel_sys::events;
use kennel_testkit::Rng;
use serde_json::Value;

use crate::app::{ANSWERS, App};
use crate::cast::{Cast, Role, files_of};
use crate::rules::{Broken, Judge, entries, walk};
use crate::services;
use crate::steps::thaw;
use crate::world::World;

/// Until all is answered, and until nothing is left. Generous: only a bug reaches it.
const DEADLINE: Duration = Duration::from_secs(180);
/// How often the world is looked at meanwhile.
const LOOK: Duration = Duration::from_millis(200);
/// How long the quiet ones are watched, and how often they may wake in that time.
const QUIET: Duration = Duration::from_millis(500);
const WAKES: u64 = 25;

const COMMANDS_END: &str = "a command ends";
const GOES_ON: &str = "3 no false reap: a session that lives is served";
const NOTHING_LEFT: &str = "2 no orphan: nothing is left when all are gone";
const QUIETLY: &str = "10 no polling: whoever has nothing to do sleeps";
const BOUNDED: &str = "memory and descriptors are bounded";
const MET: &str = "1 one daemon per key: nobody stays where it cannot be found";
const TRUTH: &str = "kennel ps tells the truth";
const CLEAN: &str = "7 decide, then write: what nobody uses can be removed";

pub(crate) fn settle(world: &mut World, judge: &mut Judge) -> Result<(), Broken> {
    mend(world);
    all_is_answered(world, judge)?;
    every_command_ends(world, judge)?;
    every_session_is_served(world, judge)?;
    all_have_met(world, judge)?;
    ps_tells_the_truth(world, judge)?;
    quiet_ones_sleep(world, judge)?;
    nobody_has_grown(world, judge)?;
    all_go(world);
    nothing_is_left(world, judge)?;
    all_is_clean(world)
}

fn mend(world: &mut World) {
    world.free_disk();
    world.mend_dir();
    world.lift_limits();
    thaw(&world.look());
}

/// Until `done`, with everything checked meanwhile.
fn wait(
    world: &mut World,
    judge: &mut Judge,
    rule: &'static str,
    mut done: impl FnMut(&mut World, &Cast) -> Result<(), String>,
) -> Result<(), Broken> {
    let start = Instant::now();
    loop {
        world.hear(LOOK)?;
        let cast = world.look();
        judge.look(world, &cast)?;
        let Err(why) = done(world, &cast) else {
            return Ok(());
        };
        if start.elapsed() > DEADLINE {
            let why = format!("{why} (for {DEADLINE:?})");
            return Err(Broken { rule, why });
        }
    }
}

fn all_is_answered(world: &mut World, judge: &mut Judge) -> Result<(), Broken> {
    wait(world, judge, ANSWERS, |world, cast| {
        // One that was stopped while we thawed may have been started by one that was stopped before.
        thaw(cast);
        unanswered(world).map_or(Ok(()), Err)
    })
}

/// An app that waits. Whoever may end may have gone with what it was asked.
pub(crate) fn unanswered(world: &World) -> Option<String> {
    let apps = world.apps.iter();
    let mut waiting = apps.filter(|app| !app.over && app.may_end.is_none() && !app.open.is_empty());
    waiting.next().map(|app| {
        let open: Vec<&String> = app.open.keys().collect();
        format!("app {} has no answer to {open:?}", app.number)
    })
}

/// Waits for all commands, so that none changes what the checks below look at.
fn every_command_ends(world: &mut World, judge: &mut Judge) -> Result<(), Broken> {
    wait(world, judge, COMMANDS_END, |world, _| {
        // The judge has removed those that have ended.
        let running = world.commands.first().map(|it| it.name.clone());
        running.map_or(Ok(()), Err)
    })
}

fn every_session_is_served(world: &mut World, judge: &mut Judge) -> Result<(), Broken> {
    let mut chance = Rng::of(1, "settle");
    let living = |app: &&App| app.ready && app.is_open() && app.may_end.is_none();
    let before = world.apps.iter().filter(living);
    let before: Vec<(usize, u64)> = before.map(|app| (app.number, app.answers)).collect();
    wait(world, judge, GOES_ON, |world, _| {
        let mut unserved = None;
        for &(number, answers) in &before {
            let app = &mut world.apps[number];
            if app.answers > answers || !app.is_open() || app.may_end.is_some() {
                continue;
            }
            unserved = Some(format!(
                "app {number} gets no result; it said: {}",
                app.said()
            ));
            // A server that died too often is started again by the next request.
            if app.open.is_empty() {
                app.ask(&mut chance, 1);
            }
        }
        unserved.map_or(Ok(()), Err)
    })?;
    all_is_answered(world, judge)
}

fn all_have_met(world: &mut World, judge: &mut Judge) -> Result<(), Broken> {
    let mut chance = Rng::of(2, "settle");
    wait(world, judge, MET, |world, cast| {
        let Some(lonely) = lonely(cast) else {
            return Ok(());
        };
        // It looks after its place when somebody speaks, but not at every word. Its clients may all be such as may end.
        let apps = world.apps.iter_mut();
        for app in apps.filter(|app| app.open.is_empty()) {
            app.ask(&mut chance, 1);
        }
        Err(lonely)
    })?;
    all_is_answered(world, judge)
}

/// A daemon where nobody would find it.
pub(crate) fn lonely(cast: &Cast) -> Option<String> {
    cast.of(Role::Daemon).find_map(|daemon| {
        let pid = daemon.process.pid();
        let files = files_of(pid);
        let lost = files.iter().find(|file| {
            let name = file.to_string_lossy();
            name.contains("daemon.lock") && name.ends_with("(deleted)")
        });
        lost.map(|file| format!("daemon {pid} has {}", file.display()))
    })
}

fn ps_tells_the_truth(world: &mut World, judge: &mut Judge) -> Result<(), Broken> {
    wait(world, judge, TRUTH, |world, cast| {
        let output = world
            .kennel(&["ps", "--json"])
            .stdout(Stdio::piped())
            .output();
        let output = output.map_err(|error| error.to_string())?;
        let listed: Value = serde_json::from_slice(&output.stdout)
            .map_err(|error| format!("kennel ps: {}: {error}", output.status))?;
        let listed = listed.as_array().into_iter().flatten();
        let listed: BTreeSet<u64> = listed.filter_map(|it| it["daemon_pid"].as_u64()).collect();
        let there = cast.of(Role::Daemon).map(|it| u64::from(it.process.pid()));
        let there: BTreeSet<u64> = there.collect();
        match listed == there {
            true => Ok(()),
            false => Err(format!(
                "kennel ps lists daemons {listed:?}, there are {there:?}"
            )),
        }
    })
}

fn quiet_ones_sleep(world: &mut World, judge: &mut Judge) -> Result<(), Broken> {
    wait(world, judge, QUIETLY, |world, _| {
        restless(world).map_or(Ok(()), Err)
    })
}

/// One that wakes though nobody asks anything.
pub(crate) fn restless(world: &World) -> Option<String> {
    let before = wakes(&world.look());
    let _ = events::sleep(&[], &[], Some(QUIET));
    let after = wakes(&world.look());
    after.iter().find_map(|(who, wakes)| {
        let (_, before) = before.iter().find(|(other, _)| other == who)?;
        let woke = wakes.saturating_sub(*before);
        (woke > WAKES).then(|| format!("{who} woke {woke} times in {QUIET:?}"))
    })
}

/// How often each of Kennel's processes has gone to sleep.
fn wakes(cast: &Cast) -> Vec<(String, u64)> {
    let count = |pid: u32| -> u64 {
        let tasks = entries(format!("/proc/{pid}/task").as_ref());
        let counts = tasks.iter().filter_map(|task| {
            let status = std::fs::read_to_string(task.join("status")).ok()?;
            let mut lines = status.lines();
            let line = lines.find_map(|line| line.strip_prefix("voluntary_ctxt_switches:"))?;
            line.trim().parse::<u64>().ok()
        });
        counts.sum()
    };
    cast.kennel()
        .map(|it| {
            let pid = it.process.pid();
            (format!("{:?} {pid}", it.role), count(pid))
        })
        .collect()
}

fn nobody_has_grown(world: &mut World, judge: &mut Judge) -> Result<(), Broken> {
    wait(world, judge, BOUNDED, |world, cast| {
        grown(world, cast).map_or(Ok(()), Err)
    })
}

/// One that has more files or memory than what it does can need.
pub(crate) fn grown(world: &World, cast: &Cast) -> Option<String> {
    let apps = world.apps.iter().filter(|app| !app.over).count();
    cast.kennel().find_map(|member| {
        let (files, memory) = match member.role {
            // A client has a connection and a pidfd; a server has pipes, a warden and its process.
            Role::Daemon => (100 + 4 * apps, 64),
            Role::Warden => (16, 16),
            _ => (40, 32),
        };
        let pid = member.process.pid();
        let (has_files, has_memory) = (files_of(pid).len(), megabytes(pid));
        (has_files > files || has_memory > memory).then(|| {
            format!(
                "{:?} {pid} has {has_files} files, {has_memory} MB",
                member.role
            )
        })
    })
}

/// What a process holds for itself alone.
fn megabytes(pid: u32) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let mut lines = status.lines();
    let line = lines.find_map(|line| line.strip_prefix("RssAnon:"));
    let kilobytes = line.and_then(|line| line.trim().split(' ').next()?.parse::<u64>().ok());
    kilobytes.unwrap_or(0) / 1024
}

/// Half of the apps close their side; of the others, and of owners, nothing is left.
fn all_go(world: &mut World) {
    let cast = world.look();
    for number in 0..world.apps.len() {
        let starter = &world.apps[number].starter;
        let starter = cast.find(starter.pid()).filter(|_| starter.is_alive());
        match starter.filter(|it| it.role == Role::App && number % 2 == 0) {
            Some(starter) => drop(world.signal(starter, Signal::KILL)),
            None => world.apps[number].leave(),
        }
    }
    world.guards.iter_mut().for_each(|guard| guard.end_owner());
}

fn nothing_is_left(world: &mut World, judge: &mut Judge) -> Result<(), Broken> {
    let mut reaped = false;
    wait(world, judge, NOTHING_LEFT, |world, cast| {
        let Some(left) = left(cast) else {
            return Ok(());
        };
        if cast.kennel().next().is_some() {
            return Err(left);
        }
        // What lost both its guardians is ended by the next start, or by this.
        if !reaped {
            reaped = true;
            let _ = world.kennel(&["reap"]).stdout(Stdio::null()).status();
            // What was kept because we used it stays until somebody stops it.
            if services::any_was_met(world, cast) {
                world.used.clear();
                let mut stop = world.kennel(&["stop", "--all"]);
                let _ = stop.stdout(Stdio::null()).status();
            }
        } else if world.unrecorded {
            let servers = cast.of(Role::Server);
            let servers =
                servers.filter(|server| world.is_excused(server) && !world.is_recorded(server));
            let services = cast.of(Role::Service);
            servers
                .chain(services)
                .for_each(|it| drop(it.process.signal(Signal::KILL)));
        }
        Err(left)
    })
}

/// Somebody of Kennel's, or a server.
pub(crate) fn left(cast: &Cast) -> Option<String> {
    let one = cast
        .kennel()
        .next()
        .or_else(|| cast.of(Role::Server).next())
        .or_else(|| cast.of(Role::Service).next())?;
    Some(format!(
        "{:?} {}: {}",
        one.role,
        one.process.pid(),
        one.line
    ))
}

/// The commands that look and clean up find nothing left to complain about.
fn all_is_clean(world: &mut World) -> Result<(), Broken> {
    // Who is killed leaves records behind.
    finds_nothing(world, &["reap"], &[0])?;
    finds_nothing(world, &["doctor"], &[0])?;
    // 3: there was nothing to be removed.
    finds_nothing(world, &["purge", "--yes"], &[0, 3])?;
    let mut left = Vec::new();
    walk(&world.scope.runtime_dir(), &mut |path| {
        left.extend(path.is_file().then(|| path.to_owned()));
    });
    match left.is_empty() {
        true => Ok(()),
        false => Err(Broken {
            rule: CLEAN,
            why: format!("purge left {left:?}"),
        }),
    }
}

fn finds_nothing(world: &World, words: &[&str], codes: &[i32]) -> Result<(), Broken> {
    let mut command = world.kennel(words);
    let output = command
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .output();
    let broken = |why| Broken { rule: CLEAN, why };
    let output = output.map_err(|error| broken(error.to_string()))?;
    if output
        .status
        .code()
        .is_some_and(|code| codes.contains(&code))
    {
        return Ok(());
    }
    let said = String::from_utf8_lossy(&output.stdout) + String::from_utf8_lossy(&output.stderr);
    Err(broken(format!(
        "kennel {}: {}: {said}",
        words.join(" "),
        output.status
    )))
}
