//! Starts a daemon: from the new process to a daemon that is ready.

use std::fmt::Display;
use std::fs::File;
use std::io::{self, Write};
use std::process::ExitCode;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use kennel_core::engine::daemon::{Daemon, Settings};
use kennel_core::lifetime::Owner;
use kennel_core::time::Moment;
use kennel_sys::detach::{self, Kind};
use kennel_sys::io::{Interest, Listener, Reactor, Source, Stream};
use kennel_sys::lock::{Lock, Mode, Record};
use kennel_sys::process::ProcessRef;
use kennel_sys::runtime_dir::{DirError, Hold};
use kennel_sys::signals::Signals;
use kennel_sys::tree;

use super::args::DaemonArgs;
use super::daemon_state::{DaemonState, Inputs};
use super::life;
use super::log::Log;
use super::memory::MAX_ODD_LINE;
use super::origin::Origin;
use super::snapshot::Snapshot;
use super::watchdog::Watchdog;
use super::{accept, event_loop, restore};
use crate::key_dir::{DAEMON_LOCK, DaemonRecord, KeyDir};

use crate::lines;
use crate::lines::max_line;

/// How often processes are checked whose exit the kernel does not report (rule 10), unless `KENNEL_SWEEP` says otherwise.
const DEFAULT_SWEEP: Duration = Duration::from_secs(30);
/// How long leftovers of an earlier daemon have to end by themselves.
const LEFTOVERS_TIMEOUT: Duration = Duration::from_secs(1);

/// How long to wait for the wardens of a killed daemon: two short rungs of the ladder, and some.
const WARDENS_TIMEOUT: Duration = Duration::from_millis(2500);

/// Runs a daemon from its start to its end.
pub(super) fn run(args: DaemonArgs) -> ExitCode {
    // A working directory would keep a file system busy.
    let _ = std::env::set_current_dir("/");
    // Two descriptors for each client, and five for each server.
    kennel_sys::limits::raise_descriptors();
    let handed = match HandedOver::take(&args) {
        Ok(handed) => handed,
        Err(error) => {
            return crate::fail(&format!("the daemon did not get its descriptors: {error}"));
        }
    };
    match prepare(args, handed) {
        Ok(prepared) => prepared.serve(),
        Err(()) => ExitCode::FAILURE,
    }
}

/// The descriptors that the election passed.
#[derive(Default)]
pub(super) struct HandedOver {
    spawn: Option<File>,
    ready: Option<File>,
    first: Option<Stream>,
}

impl HandedOver {
    fn take(args: &DaemonArgs) -> io::Result<HandedOver> {
        let adopt = |fd: Option<_>, kind| fd.map(|fd| detach::adopt(fd, kind)).transpose();
        Ok(HandedOver {
            spawn: adopt(args.spawn, Kind::File)?.map(File::from),
            ready: adopt(args.ready, Kind::Pipe)?.map(File::from),
            first: adopt(args.first, Kind::Socket)?
                .map(Stream::new)
                .transpose()?,
        })
    }

    fn report(&mut self, line: impl Display) {
        if let Some(mut ready) = self.ready.take() {
            // The shim that started this daemon may be gone; others come.
            let _ = ready.write_all(format!("{line}\n").as_bytes());
        }
    }
}

fn prepare(args: DaemonArgs, mut handed: HandedOver) -> Result<Prepared, ()> {
    lines::set_max_line(args.max_line);
    lines::set_max_odd_line(MAX_ODD_LINE);
    let fail = |handed: &mut HandedOver, log: Option<&Log>, why: String| {
        if let Some(log) = log {
            log.line(format_args!("failed to start: {why}"));
        }
        handed.report(format_args!("failed {}", why.replace('\n', " ")));
    };
    let opened = KeyDir::ensure(&args.key)
        .and_then(|key_dir| Log::open(key_dir.dir()).map(|log| (key_dir, log)));
    let (key_dir, log) = match opened {
        Ok(opened) => opened,
        Err(error) => {
            fail(&mut handed, None, error.to_string());
            return Err(());
        }
    };
    // First: a daemon that is stopped before it is ready is identified by it.
    let hold = key_dir.hold();
    let alarm = arm_start_timeout(&log, args.alarm);
    log_panics(&log);
    match Claimed::make(&args, &key_dir, &log) {
        Ok(claimed) => Ok(Prepared {
            args,
            handed,
            key_dir,
            hold,
            log,
            claimed,
            alarm,
            snapshot: None,
        }),
        Err(error) => {
            fail(&mut handed, Some(&log), error.to_string());
            Err(())
        }
    }
}

/// Ends the process if it is not ready after this time.
pub(super) fn arm_start_timeout(log: &Log, timeout: Duration) -> Watchdog {
    let handle = log.handle();
    Watchdog::arm(timeout, move || {
        if let Some(log) = handle {
            log.line(format_args!(
                "not ready after {} s: ended",
                timeout.as_secs_f32()
            ));
        }
    })
}

/// Logs panics, because the daemon's stderr is `/dev/null`.
pub(super) fn log_panics(log: &Log) {
    if let Some(log) = log.handle() {
        std::panic::set_hook(Box::new(move |panic| log.line(panic)));
    }
}

/// A daemon that is ready: all that can fail has worked.
pub(super) struct Prepared {
    pub(super) args: DaemonArgs,
    pub(super) handed: HandedOver,
    pub(super) key_dir: KeyDir,
    /// Keeps programs that clean temporary directories away.
    pub(super) hold: Result<Hold, DirError>,
    pub(super) log: Log,
    pub(super) claimed: Claimed,
    pub(super) alarm: Watchdog,
    /// The snapshot that it continues with, after an upgrade.
    pub(super) snapshot: Option<Snapshot>,
}

/// The locks and records that make a process the daemon of its key.
pub(super) struct Claimed {
    pub(super) lock: Lock,
    pub(super) listener: Listener,
    pub(super) generation: String,
    pub(super) signals: Signals,
}

impl Claimed {
    fn make(
        args: &DaemonArgs,
        key_dir: &KeyDir,
        log: &Log,
    ) -> Result<Claimed, Box<dyn std::error::Error>> {
        let signals = life::catch_signals()?;
        let lock = Lock::acquire(key_dir.dir(), DAEMON_LOCK, Mode::Exclusive)?;
        lock.write_record(&Record::of_this_process("kennel daemon")?)?;
        // After the lock: what an earlier daemon left is this daemon's to remove (rule 7).
        for name in key_dir.dir().entries()? {
            if name.as_encoded_bytes().ends_with(b".sock") {
                key_dir.dir().unlink(&name)?;
            }
        }
        tree::become_subreaper()?;
        let trees = key_dir.trees()?;
        // No server has two owners: the wardens of a killed daemon end its servers first.
        tree::await_orphaned_wardens(&trees, WARDENS_TIMEOUT)?;
        let ended = tree::end_leftovers(&trees, LEFTOVERS_TIMEOUT)?;
        if ended.processes > 0 {
            log.line(format_args!(
                "ended {} processes that an earlier daemon left",
                ended.processes
            ));
        }
        for skipped in &ended.skipped {
            log.line(format_args!(
                "skipped while cleaning up process trees: {skipped}"
            ));
        }
        let mut generation = kennel_sys::random::hex_id()?;
        // Part of the socket's path, which must be short.
        generation.truncate(16);
        let path = key_dir.socket_path(&generation)?;
        let listener = Listener::bind(key_dir.dir(), &path)
            .map_err(|error| format!("cannot listen at {}: {error}", path.display()))?;
        key_dir.write_record(&DaemonRecord {
            identity: ProcessRef::me()?.identity().to_string(),
            generation: generation.clone(),
            version: crate::this_build::version(),
            build: crate::this_build::text(),
            lock: Some(lock.descriptor()),
            since: now(),
            // Until a client has told the command.
            name: args.key.clone(),
            command: Vec::new(),
            cwd: String::new(),
        })?;
        Ok(Claimed {
            lock,
            listener,
            generation,
            signals,
        })
    }
}

impl Prepared {
    pub(super) fn serve(self) -> ExitCode {
        let mut handed = self.handed;
        let spawn = handed.spawn.take();
        let first = handed.first.take();
        let daemon = match daemon_state(
            self.args,
            self.key_dir,
            self.hold,
            self.log,
            self.claimed,
            self.snapshot.as_ref(),
        ) {
            Ok(daemon) => daemon,
            Err(error) => {
                handed.report(format_args!("failed cannot start the event loop: {error}"));
                return ExitCode::FAILURE;
            }
        };
        if let Some(snapshot) = self.snapshot
            && let Err(error) = restore::restore(&daemon, snapshot)
        {
            daemon.log.line(format_args!("cannot continue: {error}"));
            return ExitCode::FAILURE;
        }
        if let Some(first) = first {
            accept::admit(&daemon, first);
        }
        if let Some(spawn) = spawn {
            // This unlocks the file description that the election locked, whoever has a copy of it.
            let _ = spawn.unlock();
        }
        life::watch_owner(&daemon);
        daemon.state_changed();
        handed.report(format_args!("ready {}", daemon.generation));
        drop(self.alarm);
        event_loop::run(&daemon)
    }
}

/// The state of a daemon without clients.
fn daemon_state(
    args: DaemonArgs,
    key_dir: KeyDir,
    hold: Result<Hold, DirError>,
    log: Log,
    claimed: Claimed,
    snapshot: Option<&Snapshot>,
) -> io::Result<DaemonState> {
    let reactor = Reactor::new()?;
    let token = Origin::Listener.token();
    let listener = Source::with(&reactor, claimed.listener, token, Interest::READ)?;
    let token = Origin::Signals.token();
    let signals = Source::with(&reactor, claimed.signals, token, Interest::READ)?;
    if let Err(error) = &hold {
        log.line(format_args!(
            "cannot hold the runtime directory, so cleaners of temporary files may remove it: {error}"
        ));
    }
    if snapshot.is_none() {
        log.line(format_args!(
            "daemon {} of key {}, pid {}",
            claimed.generation,
            args.key,
            std::process::id()
        ));
    }
    let settings = Settings {
        lifetime: args.policy,
        owner: args.owner.map_or(Owner::None, |_| Owner::Watched),
        max_line: max_line(),
    };
    let now = snapshot.map_or(Moment::START, |it| it.now);
    let engine = Daemon::new(&settings, now);
    let mut daemon = DaemonState::new(
        key_dir,
        claimed.lock,
        log,
        claimed.generation,
        engine,
        Inputs {
            reactor,
            listener,
            signals,
        },
    );
    daemon.owner = args.owner;
    daemon.hold = hold.ok();
    daemon.accepting.keep_reserve();
    if let Some(snapshot) = snapshot {
        daemon.restore(snapshot);
    }
    life::watch_children(&mut daemon);
    Ok(daemon)
}

/// An invalid `KENNEL_SWEEP` is logged, and the default used.
pub(super) fn sweep(log: &Log) -> Duration {
    let Some(value) = std::env::var_os("KENNEL_SWEEP") else {
        return DEFAULT_SWEEP;
    };
    let value = value.to_string_lossy();
    crate::duration::parse(&value).unwrap_or_else(|error| {
        log.line(format_args!("KENNEL_SWEEP is ignored: {error}"));
        DEFAULT_SWEEP
    })
}

/// Seconds since 1970.
pub(super) fn now() -> u64 {
    SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .map_or(0, |since| since.as_secs())
}
