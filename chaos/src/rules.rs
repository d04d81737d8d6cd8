//! The rules that must hold after every step, checked from outside. A rule is broken when the same problem lasts longer
//! than its time limit.

use std::collections::BTreeMap;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::Path;
use std::time::{Duration, Instant};

use crate::intruders;
use crate::jobs;
use crate::processes::{Member, Processes, Role, files_of};
use crate::services;
use crate::world::World;

/// A broken rule, with the problem.
#[derive(Debug)]
pub(crate) struct Broken {
    pub(crate) rule: &'static str,
    pub(crate) why: String,
}

/// A rule, and the function that checks it.
pub(crate) struct Rule {
    pub(crate) name: &'static str,
    /// Maximum duration of a problem on a busy machine.
    limit: Duration,
    /// Lists the problems; the same problem has the same text.
    look: fn(&mut World, &Processes) -> Vec<String>,
}

const AT_ONCE: Duration = Duration::ZERO;
/// The stop ladder in these worlds takes a second; an election retries for twenty.
const LIMIT: Duration = Duration::from_secs(60);
/// A command waits for the processes that it stops.
const COMMAND_LIMIT: Duration = Duration::from_secs(150);

const RULES: &[Rule] = &[
    Rule {
        name: "1 one daemon per key",
        limit: LIMIT,
        look: one_daemon_per_key,
    },
    Rule {
        name: "2 no orphan: a session ends with its app",
        limit: LIMIT,
        look: no_session_without_app,
    },
    Rule {
        name: "2 no orphan: a server has a served process",
        limit: LIMIT,
        look: no_server_without_served,
    },
    Rule {
        name: "2 no orphan: a guarded server ends with its owner",
        limit: LIMIT,
        look: no_guard_without_reason,
    },
    Rule {
        name: "2 no orphan: reap --foreign ends unreachable servers",
        limit: AT_ONCE,
        look: no_orphan_spared,
    },
    Rule {
        name: "3 no false reap: a session continues",
        limit: AT_ONCE,
        look: no_session_cut,
    },
    Rule {
        name: "3 no false reap: a guarded server continues",
        limit: AT_ONCE,
        look: no_guard_cut,
    },
    Rule {
        name: "3 no false reap: a service that others use continues",
        limit: AT_ONCE,
        look: no_service_cut,
    },
    Rule {
        name: "3 no false reap: a background job continues",
        limit: AT_ONCE,
        look: no_job_cut,
    },
    Rule {
        name: "5 nothing acknowledged is lost, nothing unknown is repeated",
        limit: AT_ONCE,
        look: once_at_most,
    },
    Rule {
        name: "6 identity is not a number: no other process is signalled",
        limit: AT_ONCE,
        look: no_bystander_touched,
    },
    Rule {
        name: "a confined process runs no command outside its confinement",
        limit: AT_ONCE,
        look: no_intruder_served,
    },
    Rule {
        name: "7 decide, then write: a lock's file stays",
        limit: AT_ONCE,
        look: no_lock_replaced,
    },
    Rule {
        name: "8 the runtime directory does not depend on the environment",
        limit: AT_ONCE,
        look: no_second_place,
    },
    Rule {
        name: "9 only this user",
        limit: AT_ONCE,
        look: nothing_open_to_others,
    },
    Rule {
        name: "a command ends",
        limit: COMMAND_LIMIT,
        look: no_command_hangs,
    },
    Rule {
        name: "no file outside the world is written",
        limit: AT_ONCE,
        look: nothing_outside,
    },
];

/// The current problems, and since when.
#[derive(Debug, Default)]
pub(crate) struct Judge {
    since: BTreeMap<(&'static str, String), Instant>,
}

impl Judge {
    /// Checks every rule.
    pub(crate) fn look(&mut self, world: &mut World, processes: &Processes) -> Result<(), Broken> {
        let now = Instant::now();
        let mut since = BTreeMap::new();
        for (rule, wrong) in wrong(world, processes) {
            let began = self.since.get(&(rule.name, wrong.clone()));
            let began = began.copied().unwrap_or(now);
            if now - began >= rule.limit {
                let lasted = (now - began).as_secs_f32();
                return Err(Broken {
                    rule: rule.name,
                    why: format!("{wrong} (for {lasted:.1} s)"),
                });
            }
            since.insert((rule.name, wrong), began);
        }
        self.since = since;
        Ok(())
    }
}

/// All problems at this moment.
pub(crate) fn wrong(world: &mut World, processes: &Processes) -> Vec<(&'static Rule, String)> {
    let mut all = Vec::new();
    for rule in RULES {
        let wrong = (rule.look)(world, processes).into_iter();
        all.extend(wrong.map(|wrong| (rule, wrong)));
    }
    all
}

fn one_daemon_per_key(_: &mut World, processes: &Processes) -> Vec<String> {
    let mut keys: BTreeMap<String, Vec<u32>> = BTreeMap::new();
    for daemon in processes.of(Role::Daemon) {
        let files = files_of(daemon.process.pid());
        // A daemon whose directory was removed is about to end, as its clients elect another one.
        let lock = files.iter().find(|file| file.ends_with("daemon.lock"));
        if let Some(key) = lock.and_then(|lock| lock.parent()) {
            let key = key.display().to_string();
            keys.entry(key).or_default().push(daemon.process.pid());
        }
    }
    let several = keys.into_iter().filter(|(_, daemons)| daemons.len() > 1);
    several
        .map(|(key, daemons)| format!("{key} has {daemons:?}"))
        .collect()
}

fn no_session_without_app(world: &mut World, processes: &Processes) -> Vec<String> {
    let mut wrong = Vec::new();
    for app in &mut world.apps {
        if app.may_end.is_none() {
            continue;
        }
        let left = app.has_left() || !app.starter.is_alive();
        let number = app.number;
        let why = app.may_end.clone().unwrap_or_default();
        // The answers after the last request may take as long as they were asked to.
        if let Some(shim) = app.shim()
            && let Some(member) = processes.find(shim.pid())
            && shim.is_alive()
            && left
            && !may_wait_for_stopped(processes, member)
        {
            wrong.push(format!("app {number}'s session {} ({why})", shim.pid()));
        }
    }
    wrong
}

/// Whether a process that it may be waiting for is stopped.
fn may_wait_for_stopped(processes: &Processes, member: &Member) -> bool {
    let stopped = |role| processes.of(role).any(|member| member.stopped);
    member.stopped || stopped(Role::Warden) || stopped(Role::Server) || stopped(Role::Daemon)
}

fn no_server_without_served(world: &mut World, processes: &Processes) -> Vec<String> {
    let mut wrong = Vec::new();
    for server in processes.of(Role::Server) {
        let above: Vec<&Member> = processes.above(server).collect();
        let warden = above.iter().find(|member| member.role == Role::Warden);
        let served = above
            .iter()
            .find(|member| matches!(member.role, Role::Shim | Role::Daemon | Role::Guard));
        match (warden, served) {
            (Some(warden), Some(served)) => {
                let chain = (*warden.process.identity(), *served.process.identity());
                world.chains.insert(server.process.pid(), chain);
            }
            _ if server.stopped || above.iter().any(|member| member.stopped) => {}
            _ if world.is_excused(server) => {}
            _ => wrong.push(format!("{} {}", server.process.pid(), server.line)),
        }
    }
    wrong
}

fn no_guard_without_reason(world: &mut World, processes: &Processes) -> Vec<String> {
    let guards = world.guards.iter().filter(|guard| !guard.has_ended());
    let wrong = guards.filter_map(|guard| {
        let member = processes.find(guard.pid())?;
        let needed = guard.is_needed() || may_wait_for_stopped(processes, member);
        (!needed).then(|| format!("guard {} has neither owner nor visitor", guard.pid()))
    });
    wrong.collect()
}

fn no_session_cut(world: &mut World, _: &Processes) -> Vec<String> {
    let mut wrong = Vec::new();
    for app in &mut world.apps {
        if app.may_end.is_some() {
            continue;
        }
        let number = app.number;
        let ended = app.over || app.shim().is_some_and(|shim| !shim.is_alive());
        if ended {
            wrong.push(format!(
                "app {number}'s session has ended; its stderr: {}",
                app.said()
            ));
        }
    }
    wrong
}

fn no_guard_cut(world: &mut World, _: &Processes) -> Vec<String> {
    let cut = world.guards.iter().filter(|guard| guard.ended_too_early());
    cut.map(|guard| format!("guard {} has ended; it said: {}", guard.pid(), guard.said()))
        .collect()
}

fn no_service_cut(world: &mut World, _: &Processes) -> Vec<String> {
    services::lost_services(world)
}

fn no_job_cut(world: &mut World, _: &Processes) -> Vec<String> {
    jobs::ended_innocents(world)
}

fn no_orphan_spared(world: &mut World, _: &Processes) -> Vec<String> {
    jobs::missed_orphans(world)
}

fn once_at_most(world: &mut World, _: &Processes) -> Vec<String> {
    let tally = world.tally();
    let mut wrong = Vec::new();
    for app in &world.apps {
        for (tag, &acknowledged) in &app.effects {
            match tally.get(tag).copied().unwrap_or(0) {
                0 if acknowledged => wrong.push(format!("{tag} was acknowledged, and not done")),
                0 | 1 => {}
                times => wrong.push(format!("{tag} was done {times} times")),
            }
        }
    }
    wrong
}

fn no_bystander_touched(world: &mut World, _: &Processes) -> Vec<String> {
    let mut wrong = Vec::new();
    for bystander in &mut world.bystanders {
        if let Ok(Some(status)) = bystander.try_wait() {
            wrong.push(format!("{}: {status}", bystander.id()));
        }
    }
    wrong
}

fn no_intruder_served(world: &mut World, _: &Processes) -> Vec<String> {
    world
        .intruders
        .retain_mut(|it| !matches!(it.try_wait(), Ok(Some(_))));
    let mark = intruders::mark(world);
    let status = std::fs::read_to_string(mark).ok();
    status
        .map(|status| format!("its command ran: {status}"))
        .into_iter()
        .collect()
}

fn no_lock_replaced(world: &mut World, _: &Processes) -> Vec<String> {
    // `purge` may replace locks while it holds them.
    if world.commands.iter().any(|command| command.removes) {
        world.locks.clear();
        return Vec::new();
    }
    let mut wrong = Vec::new();
    for key in entries(&world.scope.runtime_dir().join("daemons")) {
        for lock in ["daemon.lock", "spawn.lock"] {
            let path = key.join(lock);
            let Ok(meta) = path.symlink_metadata() else {
                continue;
            };
            let before = *world.locks.entry(path.clone()).or_insert(meta.ino());
            if before != meta.ino() {
                wrong.push(format!(
                    "{} was {before}, is {}",
                    path.display(),
                    meta.ino()
                ));
            }
            world.locks.insert(path, meta.ino());
        }
    }
    wrong
}

fn no_second_place(world: &mut World, _: &Processes) -> Vec<String> {
    let keys = entries(&world.scope.runtime_dir().join("daemons"));
    let most = world.keys_wanted();
    match keys.len() > most {
        true => vec![format!(
            "{} keys, but {most} servers are wanted",
            keys.len()
        )],
        false => Vec::new(),
    }
}

fn nothing_open_to_others(world: &mut World, _: &Processes) -> Vec<String> {
    if world.dir_is_loose {
        return Vec::new();
    }
    let uid = rustix::process::geteuid().as_raw();
    let mut wrong = Vec::new();
    walk(&world.scope.runtime_dir(), &mut |path| {
        let Ok(meta) = path.symlink_metadata() else {
            return;
        };
        if meta.uid() != uid || meta.permissions().mode() & 0o077 != 0 {
            let mode = meta.permissions().mode() & 0o7777;
            wrong.push(format!(
                "{}: uid {}, mode {mode:o}",
                path.display(),
                meta.uid()
            ));
        }
    });
    wrong
}

fn no_command_hangs(world: &mut World, processes: &Processes) -> Vec<String> {
    world.commands.retain_mut(|command| !command.has_ended());
    // The process that it waits for may be stopped.
    if processes.any_stopped() {
        return Vec::new();
    }
    let commands = world.commands.iter();
    commands.map(|command| command.name.clone()).collect()
}

fn nothing_outside(world: &mut World, _: &Processes) -> Vec<String> {
    let changed = world
        .outside
        .iter()
        .filter(|(path, before)| stamp(path) != **before);
    changed
        .map(|(path, _)| format!("{} has changed", path.display()))
        .collect()
}

/// Metadata that shows whether a directory was changed.
pub(crate) fn stamp(path: &Path) -> Option<(u64, i64, i64)> {
    let meta = path.symlink_metadata().ok()?;
    Some((meta.ino(), meta.mtime(), meta.mtime_nsec()))
}

pub(crate) fn entries(dir: &Path) -> Vec<std::path::PathBuf> {
    let entries = std::fs::read_dir(dir).into_iter().flatten().flatten();
    entries.map(|entry| entry.path()).collect()
}

pub(crate) fn walk(dir: &Path, see: &mut impl FnMut(&Path)) {
    see(dir);
    for path in entries(dir) {
        match path.symlink_metadata().is_ok_and(|meta| meta.is_dir()) {
            true => walk(&path, see),
            false => see(&path),
        }
    }
}
