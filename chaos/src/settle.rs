//! The end of a world: all faults are removed, and then all rules must hold.

use std::collections::BTreeSet;
use std::process::Stdio;
use std::time::{Duration, Instant};

use kennel_sys::Signal;
use kennel_sys::events;
use kennel_testkit::Rng;
use serde_json::Value;

use crate::app::{ANSWERS, App};
use crate::processes::{Processes, Role, files_of};
use crate::rules::{Broken, Judge, entries, walk};
use crate::services;
use crate::steps::continue_all;
use crate::world::World;

/// Maximum time until all requests are answered, and until nothing is left. Only a bug reaches it.
const DEADLINE: Duration = Duration::from_secs(180);
/// Interval for checking the world.
const INTERVAL: Duration = Duration::from_millis(200);
/// Time for which idle processes are watched, and how often they may wake in that time.
const WATCH_TIME: Duration = Duration::from_millis(500);
const WAKES: u64 = 25;

const COMMANDS_END: &str = "a command ends";
const IS_SERVED: &str = "3 no false reap: a session that lives is served";
const NOTHING_LEFT: &str = "2 no orphan: nothing is left when all are gone";
const IDLE_SLEEPS: &str = "10 no polling: an idle process sleeps";
const BOUNDED: &str = "memory and descriptors are bounded";
const IS_REACHABLE: &str = "1 one daemon per key: every daemon can be found";
const PS_IS_RIGHT: &str = "kennel ps is correct";
const CLEAN: &str = "7 decide, then write: unused files can be removed";

pub(crate) fn settle(world: &mut World, judge: &mut Judge) -> Result<(), Broken> {
    mend(world);
    all_is_answered(world, judge)?;
    every_command_ends(world, judge)?;
    every_session_is_served(world, judge)?;
    all_have_met(world, judge)?;
    ps_tells_the_truth(world, judge)?;
    quiet_ones_sleep(world, judge)?;
    check_sizes(world, judge)?;
    all_go(world);
    nothing_is_left(world, judge)?;
    all_is_clean(world)
}

fn mend(world: &mut World) {
    world.free_disk();
    world.restore_dir();
    world.lift_limits();
    continue_all(&world.look());
}

/// Waits until `done`, and checks the rules meanwhile.
fn wait(
    world: &mut World,
    judge: &mut Judge,
    rule: &'static str,
    mut done: impl FnMut(&mut World, &Processes) -> Result<(), String>,
) -> Result<(), Broken> {
    let start = Instant::now();
    loop {
        world.handle_lines(INTERVAL)?;
        let processes = world.look();
        judge.look(world, &processes)?;
        let Err(why) = done(world, &processes) else {
            return Ok(());
        };
        if start.elapsed() > DEADLINE {
            let why = format!("{why} (for {DEADLINE:?})");
            return Err(Broken { rule, why });
        }
    }
}

fn all_is_answered(world: &mut World, judge: &mut Judge) -> Result<(), Broken> {
    wait(world, judge, ANSWERS, |world, processes| {
        // A process that was stopped during `thaw` may have been started by one that was stopped before.
        continue_all(processes);
        unanswered(world).map_or(Ok(()), Err)
    })
}

/// An app that waits for an answer. A session that may end may have ended with its requests.
pub(crate) fn unanswered(world: &World) -> Option<String> {
    let apps = world.apps.iter();
    let mut waiting = apps.filter(|app| !app.over && app.may_end.is_none() && !app.open.is_empty());
    waiting.next().map(|app| {
        let open: Vec<&String> = app.open.keys().collect();
        format!("app {} has no answer to {open:?}", app.number)
    })
}

/// Waits for all commands, so that none disturbs the checks below.
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
    wait(world, judge, IS_SERVED, |world, _| {
        let mut unserved = None;
        for &(number, answers) in &before {
            let app = &mut world.apps[number];
            if app.answers > answers || !app.is_open() || app.may_end.is_some() {
                continue;
            }
            unserved = Some(format!(
                "app {number} gets no result; its stderr: {}",
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
    wait(world, judge, IS_REACHABLE, |world, processes| {
        let Some(unreachable_daemon) = unreachable_daemon(processes) else {
            return Ok(());
        };
        // It checks its directory when a message arrives, but not at every one. All its clients may be sessions that may
        // end.
        let apps = world.apps.iter_mut();
        for app in apps.filter(|app| app.open.is_empty()) {
            app.ask(&mut chance, 1);
        }
        Err(unreachable_daemon)
    })?;
    all_is_answered(world, judge)
}

/// A daemon that new clients cannot find.
pub(crate) fn unreachable_daemon(processes: &Processes) -> Option<String> {
    processes.of(Role::Daemon).find_map(|daemon| {
        let pid = daemon.process.pid();
        let files = files_of(pid);
        let lost_services = files.iter().find(|file| {
            let name = file.to_string_lossy();
            name.contains("daemon.lock") && name.ends_with("(deleted)")
        });
        lost_services.map(|file| format!("daemon {pid} has {}", file.display()))
    })
}

fn ps_tells_the_truth(world: &mut World, judge: &mut Judge) -> Result<(), Broken> {
    wait(world, judge, PS_IS_RIGHT, |world, processes| {
        let output = world
            .kennel(&["ps", "--json"])
            .stdout(Stdio::piped())
            .output();
        let output = output.map_err(|error| error.to_string())?;
        let listed: Value = serde_json::from_slice(&output.stdout)
            .map_err(|error| format!("kennel ps: {}: {error}", output.status))?;
        let listed = listed.as_array().into_iter().flatten();
        let listed: BTreeSet<u64> = listed.filter_map(|it| it["daemon_pid"].as_u64()).collect();
        let there = processes
            .of(Role::Daemon)
            .map(|it| u64::from(it.process.pid()));
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
    wait(world, judge, IDLE_SLEEPS, |world, _| {
        waking_process(world).map_or(Ok(()), Err)
    })
}

/// A process that wakes up though there are no requests.
pub(crate) fn waking_process(world: &World) -> Option<String> {
    let before = wakes(&world.look());
    let _ = events::sleep(&[], &[], Some(WATCH_TIME));
    let after = wakes(&world.look());
    after.iter().find_map(|(who, wakes)| {
        let (_, before) = before.iter().find(|(other, _)| other == who)?;
        let woke = wakes.saturating_sub(*before);
        (woke > WAKES).then(|| format!("{who} woke {woke} times in {WATCH_TIME:?}"))
    })
}

/// How often each of Kennel's processes has blocked.
fn wakes(processes: &Processes) -> Vec<(String, u64)> {
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
    processes
        .kennel()
        .map(|it| {
            let pid = it.process.pid();
            (format!("{:?} {pid}", it.role), count(pid))
        })
        .collect()
}

fn check_sizes(world: &mut World, judge: &mut Judge) -> Result<(), Broken> {
    wait(world, judge, BOUNDED, |world, processes| {
        oversized_process(world, processes).map_or(Ok(()), Err)
    })
}

/// A process with more files or memory than it can need.
pub(crate) fn oversized_process(world: &World, processes: &Processes) -> Option<String> {
    let apps = world.apps.iter().filter(|app| !app.over).count();
    processes.kennel().find_map(|member| {
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

/// The private memory of a process.
fn megabytes(pid: u32) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let mut lines = status.lines();
    let line = lines.find_map(|line| line.strip_prefix("RssAnon:"));
    let kilobytes = line.and_then(|line| line.trim().split(' ').next()?.parse::<u64>().ok());
    kilobytes.unwrap_or(0) / 1024
}

/// Half of the apps close their side, the others and all owners are killed; then nothing must be left.
fn all_go(world: &mut World) {
    let processes = world.look();
    for number in 0..world.apps.len() {
        let starter = &world.apps[number].starter;
        let starter = processes.find(starter.pid()).filter(|_| starter.is_alive());
        match starter.filter(|it| it.role == Role::App && number % 2 == 0) {
            Some(starter) => drop(world.signal(starter, Signal::KILL)),
            None => world.apps[number].leave(),
        }
    }
    world.guards.iter_mut().for_each(|guard| guard.end_owner());
}

fn nothing_is_left(world: &mut World, judge: &mut Judge) -> Result<(), Broken> {
    let mut reaped = false;
    wait(world, judge, NOTHING_LEFT, |world, processes| {
        let Some(left) = left(processes) else {
            return Ok(());
        };
        if processes.kennel().next().is_some() {
            return Err(left);
        }
        // A tree that lost its warden and its served process is ended by the next start, or by this.
        if !reaped {
            reaped = true;
            let _ = world.kennel(&["reap"]).stdout(Stdio::null()).status();
            // A service that was kept because we used it stays until it is stopped.
            if services::any_was_used(world, processes) {
                world.used.clear();
                let mut stop = world.kennel(&["stop", "--all"]);
                let _ = stop.stdout(Stdio::null()).status();
            }
        } else if world.unrecorded {
            let servers = processes.of(Role::Server);
            let servers =
                servers.filter(|server| world.is_excused(server) && !world.is_recorded(server));
            let services = processes.of(Role::Service);
            servers
                .chain(services)
                .for_each(|it| drop(it.process.signal(Signal::KILL)));
        }
        Err(left)
    })
}

/// A process of Kennel or a server that is left.
pub(crate) fn left(processes: &Processes) -> Option<String> {
    let one = processes
        .kennel()
        .next()
        .or_else(|| processes.of(Role::Server).next())
        .or_else(|| processes.of(Role::Service).next())?;
    Some(format!(
        "{:?} {}: {}",
        one.role,
        one.process.pid(),
        one.line
    ))
}

/// The commands that check and clean up find no problem any more.
fn all_is_clean(world: &mut World) -> Result<(), Broken> {
    // A killed process leaves records.
    finds_nothing(world, &["reap"], &[0])?;
    finds_nothing(world, &["doctor"], &[0])?;
    // 3: there was nothing to remove.
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
