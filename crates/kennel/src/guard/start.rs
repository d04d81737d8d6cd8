//! Before a start: finds the servers that hold the ports or the state, and whether they may be replaced. Starts
//! nothing.

use std::ffi::OsString;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use kennel_guard::Held;
use kennel_sys::lock::{Lock, LockError, Mode, legacy};
use kennel_sys::process::ProcessRef;
use kennel_sys::runtime_dir::{DirError, Hold, RuntimeDir};
use kennel_sys::{Signal, events, tree};

use super::Args;
use super::answer::{Answer, Status};
use super::launch::Ready;
use super::port::{self, Decision, Holder, HolderKind};
use super::record::{self, Record};
use super::startable;

/// How long leftovers of a tree without guard and warden have to end after SIGTERM.
const LEFTOVER_TERM: Duration = Duration::from_secs(1);
/// Maximum time that a warden takes to end its tree after its guard was killed.
const WARDEN_TIMEOUT: Duration = Duration::from_secs(3);
/// How long an incumbent may take to end, beyond its own stop ladder.
const INCUMBENT_TIMEOUT: Duration = Duration::from_secs(60);
/// Time between two attempts where the kernel offers no event (rule 10 names a contended lock).
const RETRY_INTERVAL: Duration = Duration::from_millis(20);

/// How often the runtime directory may be removed during a start before it fails.
const MAX_REMOVALS: usize = 3;

/// The user's runtime directory, if it can be used.
pub(super) struct RuntimeDirs {
    pub(super) user: RuntimeDir,
    pub(super) trees: RuntimeDir,
    _hold: Hold,
}

impl RuntimeDirs {
    /// Opens the runtime directory; if it is removed meanwhile, the next one.
    fn open() -> Result<RuntimeDirs, DirError> {
        let mut tries = MAX_REMOVALS;
        loop {
            let user = RuntimeDir::of_user()?;
            tries -= 1;
            match (user.subdir("trees"), user.hold()) {
                (Ok(trees), Ok(_hold)) => return Ok(RuntimeDirs { user, trees, _hold }),
                (Err(error), _) | (_, Err(error)) if tries == 0 || user.is_at_its_path() => {
                    return Err(error);
                }
                _ => {}
            }
        }
    }

    /// Ends what an earlier start left behind, and waits for trees that are ending: they may hold the port.
    fn clean_up(&self) {
        let _ = tree::end_leftovers(&self.trees, LEFTOVER_TERM);
        let _ = tree::await_orphaned_wardens(&self.trees, WARDEN_TIMEOUT);
    }
}

/// The runtime directory for a start. Without one, `kennel ps` does not show the server, and it has no log.
fn dirs_for(args: &Args) -> Result<Option<RuntimeDirs>, Answer> {
    match RuntimeDirs::open() {
        Ok(dirs) => Ok(Some(dirs)),
        Err(error) if args.detach => Err(Answer::failed(1, error.to_string())),
        Err(error) => {
            crate::warn(&format!("the runtime directory cannot be used: {error}"));
            Ok(None)
        }
    }
}

/// A start that is being prepared.
pub(super) struct Start<'a> {
    args: &'a Args,
    dirs: Option<RuntimeDirs>,
    name: String,
    cwd: PathBuf,
    command_hash: String,
}

impl<'a> Start<'a> {
    pub(super) fn new(args: &'a Args) -> Result<Start<'a>, Answer> {
        let cwd = std::env::current_dir().map_err(|error| {
            Answer::failed(1, format!("cannot find the working directory: {error}"))
        })?;
        let dirs = dirs_for(args)?;
        let text = |word: &OsString| word.to_string_lossy().into_owned();
        let words: Vec<String> = args.command.iter().map(text).collect();
        let name = args.name.clone();
        Ok(Start {
            dirs,
            name: name.unwrap_or_else(|| crate::sharing::launcher::name_of(&words)),
            command_hash: record::command_hash(&args.command, &cwd),
            cwd,
            args,
        })
    }

    /// Makes sure that the ports and the state are free.
    pub(super) fn prepare(mut self) -> Result<Ready, Answer> {
        if let Some(dirs) = &self.dirs {
            dirs.clean_up();
        }
        let starting = self.take_turns()?;
        let replaced = self.settle_ports()?;
        let (held, legacy) = self.hold_state()?;
        Ok(Ready {
            dirs: self.dirs,
            name: self.name,
            cwd: self.cwd,
            command_hash: self.command_hash,
            starting,
            held,
            legacy,
            replaced,
        })
    }

    /// Takes the lock of each port. Of several starts for the same port, one wins and the others see its server. If the
    /// runtime directory is removed meanwhile, they all use the next one.
    fn take_turns(&mut self) -> Result<Vec<Lock>, Answer> {
        for _ in 0..MAX_REMOVALS {
            match self.lock_start() {
                Err(_) if !self.has_dirs() => self.dirs = dirs_for(self.args)?,
                turns => return turns,
            }
        }
        self.lock_start()
    }

    fn has_dirs(&self) -> bool {
        let dirs = self.dirs.as_ref();
        dirs.is_none_or(|dirs| dirs.user.is_at_its_path())
    }

    fn lock_start(&self) -> Result<Vec<Lock>, Answer> {
        let Some(dirs) = &self.dirs else {
            return Ok(Vec::new());
        };
        let dir = dirs.user.subdir("starting");
        let dir = dir.map_err(|error| Answer::failed(1, error.to_string()))?;
        let mut ports = self.args.ports.clone();
        // In the same order everywhere, or two starts would wait for each other.
        ports.sort_unstable();
        ports.dedup();
        let deadline = Instant::now() + self.args.ready_timeout;
        let mut locks = Vec::new();
        for port in ports {
            loop {
                match Lock::acquire(&dir, format!("port-{port}"), Mode::Exclusive) {
                    Ok(lock) => break locks.push(lock),
                    Err(LockError::Held { .. }) if Instant::now() < deadline => {
                        let _ = events::sleep(&[], &[], Some(RETRY_INTERVAL));
                    }
                    Err(error) => {
                        let words =
                            format!("another server is being started for port {port}: {error}");
                        return Err(Answer::failed(1, words));
                    }
                }
            }
        }
        Ok(locks)
    }

    /// Finds who holds the ports, and replaces servers that may be replaced.
    fn settle_ports(&self) -> Result<Option<u32>, Answer> {
        let json = self.args.json;
        let holders = self.inspect()?;
        let decided = |holder: &Holder| port::decide(holder.state, self.args.takeover);
        let Some(gravest) = holders.iter().max_by_key(|holder| decided(holder)) else {
            return Ok(None);
        };
        match (decided(gravest), &gravest.who) {
            (Decision::AlreadyRunning, HolderKind::Guarded { entry, .. }) => {
                Err(Answer::running(entry, Status::AlreadyRunning, json))
            }
            (Decision::TakeOver, HolderKind::Guarded { .. }) => {
                let incumbents = holders.iter().filter_map(|holder| match &holder.who {
                    HolderKind::Guarded { record, .. } => Some(&**record),
                    HolderKind::Foreign(_) => None,
                });
                let incumbents: Vec<&Record> = incumbents.collect();
                self.check_successor(&incumbents)?;
                // That took time: a client that connected meanwhile counts (lesson 13).
                let now = self.inspect()?;
                if let Some(holder) = now.iter().find(|it| decided(it) != Decision::TakeOver) {
                    return Err(Answer::held(holder, json));
                }
                self.replace(&incumbents).map(Some)
            }
            _ => Err(Answer::held(gravest, json)),
        }
    }

    fn inspect(&self) -> Result<Vec<Holder>, Answer> {
        let living = match &self.dirs {
            Some(dirs) => record::living(&dirs.user),
            None => Vec::new(),
        };
        port::inspect(&self.args.ports, &living, &self.command_hash).map_err(|error| {
            Answer::failed(
                1,
                format!("cannot find the process that has the port: {error}"),
            )
        })
    }

    /// Stops no server for a successor that cannot start, or whose state is in use (lesson 34).
    fn check_successor(&self, incumbents: &[&Record]) -> Result<(), Answer> {
        let serves_on = |words: &str| format!("{words}; the running server goes on");
        startable::check(&self.args.command)
            .map_err(|error| Answer::failed(error.code, serves_on(&error.words)))?;
        let of_incumbent = |process: &ProcessRef| {
            let mut theirs = incumbents.iter().filter_map(|record| record.process());
            theirs.any(|incumbent| incumbent.identity().same_process(process.identity()))
        };
        for path in &self.args.state {
            let held = kennel_guard::probe_store(path)
                .map_err(|error| Answer::failed(1, serves_on(&error.to_string())))?;
            let by_others = held.iter().find(|held| {
                let holder = held.holder.as_ref();
                !holder.is_some_and(|holder| of_incumbent(&holder.process))
            });
            if let Some(held) = by_others {
                return Err(Answer::failed(1, serves_on(&format!("in use: {held}"))));
            }
        }
        Ok(())
    }

    /// Stops the incumbents, and waits until their ports are free. Returns the pid of the first.
    fn replace(&self, incumbents: &[&Record]) -> Result<u32, Answer> {
        let mut asked = Vec::new();
        for record in incumbents {
            // It ended since the search.
            let Some(guard) = record.process() else {
                continue;
            };
            let heard = guard.signal(Signal::TERM);
            // A server stopped by SIGSTOP would not see the signal.
            let _ = guard.signal(Signal::CONT);
            asked.push((record, guard, heard));
        }
        let replaced = asked.first().map(|(_, guard, _)| guard.pid());
        let deadline = Instant::now() + INCUMBENT_TIMEOUT;
        for (record, guard, heard) in asked {
            let left = deadline.saturating_duration_since(Instant::now());
            let ended = heard.and_then(|_| guard.wait(Some(left)));
            if !ended.unwrap_or(false) {
                let key = &record.entry.key;
                let words = format!(
                    "{} ({key}) does not end; see `kennel ps`",
                    record.entry.name
                );
                return Err(Answer::failed(1, words));
            }
        }
        match self.inspect()?.into_iter().next() {
            Some(holder) => Err(Answer::held(&holder, self.args.json)),
            None => Ok(replaced.unwrap_or_default()),
        }
    }

    fn hold_state(&self) -> Result<(Vec<Held>, Vec<Lock>), Answer> {
        let mut held = Vec::new();
        for path in &self.args.state {
            let store = kennel_guard::hold_store(path, &self.name)
                .map_err(|error| Answer::failed(1, error.to_string()))?;
            match crate::purge::more_than_state(store.path()) {
                // For `kennel purge`, which removes only what is declared; a failure is not fatal.
                None => drop(store.declare(&self.name)),
                Some(why) => crate::warn(&format!(
                    "--state {} is locked, but does not count as the server's state, so `kennel purge` will keep it: \
                     {why}; give a directory that contains nothing else",
                    path.display()
                )),
            }
            held.push(store);
        }
        let mut locks = Vec::new();
        for path in &self.args.legacy_lock {
            let lock = legacy::hold(path).map_err(|error| match error {
                LockError::Held { .. } => Answer::failed(
                    1,
                    format!("an earlier release of the server runs: {error}; stop that one first"),
                ),
                other => Answer::failed(1, other.to_string()),
            });
            locks.extend(lock?);
        }
        Ok((held, locks))
    }
}
