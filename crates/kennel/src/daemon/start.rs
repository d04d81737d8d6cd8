//! The way from a started process to a daemon that is ready.

use std::ffi::OsStr;
use std::fmt::Display;
use std::fs::File;
use std::io::{self, Write};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::{UnixListener as StdListener, UnixStream};
use std::path::Path;
use std::process::ExitCode;
use std::rc::Rc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use kennel_core::engine::daemon::{Daemon, Settings};
use kennel_core::lifetime::Owner;
use kennel_core::time::Moment;
use kennel_sys::detach::{self, Kind};
use kennel_sys::lock::{Lock, Mode, Record};
use kennel_sys::passing;
use kennel_sys::process::ProcessRef;
use kennel_sys::runtime_dir::{DirError, Hold, RuntimeDir};
use kennel_sys::signals::Signals;
use kennel_sys::tree;
use rustix::fs::{FileType, FlockOperation, OFlags};
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};

use super::carried::Carried;
use super::daemon_state::DaemonState;
use super::life;
use super::log::Log;
use super::memory::MAX_ODD_LINE;
use super::orders::Orders;
use super::stream::ClientStream;
use super::tasks::{self, Descriptor};
use super::watchdog::Watchdog;
use super::{accept, resume, state, upgrade, watch};
use crate::meeting::{DAEMON_LOCK, DaemonRecord, Meeting};
use crate::random_word::random_word;
use crate::shim::lines;
use crate::shim::lines::max_line;

/// Nobody is refused for coming at the same time as a thousand others.
const BACKLOG: i32 = 4096;
/// How long what an earlier daemon left behind has to end by itself.
const LEFTOVERS: Duration = Duration::from_secs(1);

/// How long the wardens of a killed daemon are waited for: two short rungs, and some.
const WARDENS: Duration = Duration::from_millis(2500);

/// Becomes the daemon, and is it to its end.
pub(super) fn run(orders: Orders) -> ExitCode {
    // Nobody's directory is kept busy by us.
    let _ = std::env::set_current_dir("/");
    // Two for each client, and five for each server.
    kennel_sys::limits::raise_descriptors();
    let handed = match Handed::take(&orders) {
        Ok(handed) => handed,
        Err(error) => return crate::fail(&format!("the daemon was handed nothing: {error}")),
    };
    match prepare(orders, handed) {
        Ok(prepared) => prepared.serve(),
        Err(()) => ExitCode::FAILURE,
    }
}

/// What the election handed over.
#[derive(Default)]
pub(super) struct Handed {
    spawn: Option<OwnedFd>,
    ready: Option<File>,
    first: Option<UnixStream>,
}

impl Handed {
    fn take(orders: &Orders) -> io::Result<Handed> {
        let adopt = |fd: Option<_>, kind| fd.map(|fd| detach::adopt(fd, kind)).transpose();
        Ok(Handed {
            spawn: adopt(orders.spawn, Kind::File)?,
            ready: adopt(orders.ready, Kind::Pipe)?.map(File::from),
            first: adopt(orders.first, Kind::Socket)?.map(UnixStream::from),
        })
    }

    fn say(&mut self, line: impl Display) {
        if let Some(mut ready) = self.ready.take() {
            // Whoever started us may be gone; others come.
            let _ = ready.write_all(format!("{line}\n").as_bytes());
        }
    }
}

fn prepare(orders: Orders, mut handed: Handed) -> Result<Prepared, ()> {
    lines::set_max_line(orders.max_line);
    lines::set_max_odd_line(MAX_ODD_LINE);
    let fail = |handed: &mut Handed, log: Option<&Log>, why: String| {
        if let Some(log) = log {
            log.line(format_args!("failed to start: {why}"));
        }
        handed.say(format_args!("failed {}", why.replace('\n', " ")));
    };
    let opened = Meeting::ensure(&orders.key)
        .and_then(|meeting| Log::open(meeting.dir()).map(|log| (meeting, log)));
    let (meeting, log) = match opened {
        Ok(opened) => opened,
        Err(error) => {
            fail(&mut handed, None, error.to_string());
            return Err(());
        }
    };
    // First of all: it is what a daemon is known by, should it be stopped before it is ready.
    let hold = meeting.hold();
    let alarm = armed(&log, orders.alarm);
    tell_panics(&log);
    match Made::make(&orders, &meeting, &log) {
        Ok(made) => Ok(Prepared {
            orders,
            handed,
            meeting,
            hold,
            log,
            made,
            alarm,
            carried: None,
        }),
        Err(error) => {
            fail(&mut handed, Some(&log), error.to_string());
            Err(())
        }
    }
}

/// Ends the process if it is not ready by then.
pub(super) fn armed(log: &Log, patience: Duration) -> Watchdog {
    let aside = log.aside();
    Watchdog::arm(patience, move || {
        if let Some(log) = aside {
            log.line(format_args!(
                "not ready after {} s: ended",
                patience.as_secs_f32()
            ));
        }
    })
}

/// stderr is nobody's: a panic that is not in the log never happened.
pub(super) fn tell_panics(log: &Log) {
    if let Some(log) = log.aside() {
        std::panic::set_hook(Box::new(move |panic| log.line(panic)));
    }
}

/// All that can fail has worked.
pub(super) struct Prepared {
    pub(super) orders: Orders,
    pub(super) handed: Handed,
    pub(super) meeting: Meeting,
    /// Keeps cleaners of temporary files away.
    pub(super) hold: Result<Hold, DirError>,
    pub(super) log: Log,
    pub(super) made: Made,
    pub(super) alarm: Watchdog,
    /// What it goes on with, if it was another program before.
    pub(super) carried: Option<Carried>,
}

/// What makes a process the daemon of its key.
pub(super) struct Made {
    pub(super) lock: Lock,
    pub(super) listener: StdListener,
    pub(super) generation: String,
    pub(super) signals: Signals,
}

impl Made {
    fn make(
        orders: &Orders,
        meeting: &Meeting,
        log: &Log,
    ) -> Result<Made, Box<dyn std::error::Error>> {
        let signals = life::catch_signals()?;
        let lock = Lock::acquire(meeting.dir(), DAEMON_LOCK, Mode::Exclusive)?;
        lock.write_record(&Record::of_me("kennel daemon")?)?;
        // Only now: what an earlier daemon left behind is ours to clear (rule 7).
        for name in meeting.dir().entries()? {
            if name.as_encoded_bytes().ends_with(b".sock") {
                meeting.dir().unlink(&name)?;
            }
        }
        tree::become_subreaper()?;
        let trees = meeting.trees()?;
        // No server has two owners: those of a killed daemon are ended by their wardens first.
        tree::await_orphaned_wardens(trees.as_fd(), WARDENS)?;
        let ended = tree::end_leftovers(trees.as_fd(), LEFTOVERS)?;
        if ended.processes > 0 {
            log.line(format_args!(
                "ended {} processes that were left behind",
                ended.processes
            ));
        }
        for skipped in &ended.skipped {
            log.line(format_args!(
                "left alone among the records of process trees: {skipped}"
            ));
        }
        let mut generation = random_word()?;
        // It is part of the socket's path, which must be short.
        generation.truncate(16);
        let path = meeting.socket_path(&generation)?;
        let listener = listen_at(meeting.dir(), &path)
            .map_err(|error| format!("cannot listen at {}: {error}", path.display()))?;
        meeting.write_record(&DaemonRecord {
            identity: ProcessRef::me()?.identity().to_string(),
            generation: generation.clone(),
            version: crate::this_build::version(),
            build: crate::this_build::text(),
            lock: Some(lock.descriptor()),
            since: now(),
            // Until a client has said what to run.
            name: orders.key.clone(),
            command: Vec::new(),
            cwd: String::new(),
        })?;
        Ok(Made {
            lock,
            listener,
            generation,
            signals,
        })
    }
}

/// Listens at this path in this directory. Sessions compare the path that the kernel tells them with the directory, so it is
/// bound by its path; whether that led here is seen in the directory itself.
fn listen_at(dir: &RuntimeDir, path: &Path) -> io::Result<StdListener> {
    let listener = StdListener::from(bound_at(path)?);
    make_ours_alone(dir, path.file_name().unwrap_or_default())?;
    rustix::net::listen(&listener, BACKLOG)?;
    listener.set_nonblocking(true)?;
    Ok(listener)
}

/// Gives a socket's owner what a wild umask has taken, and follows no link.
fn make_ours_alone(dir: &RuntimeDir, name: &OsStr) -> io::Result<()> {
    let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let file = rustix::fs::openat(dir, name, flags, rustix::fs::Mode::empty())?;
    if !FileType::from_raw_mode(rustix::fs::fstat(&file)?.st_mode).is_socket() {
        return Err(io::Error::other("it is no socket"));
    }
    let path = format!("/proc/self/fd/{}", file.as_raw_fd());
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o600))
}

/// A socket whose file is closed to others from its first moment on: it gets the mode of the socket itself.
fn bound_at(path: &Path) -> io::Result<OwnedFd> {
    let flags = SocketFlags::CLOEXEC;
    let socket = rustix::net::socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
    // Before it is connected to: those who are accepted have this of it.
    passing::refuse(&socket);
    rustix::fs::fchmod(&socket, rustix::fs::Mode::RUSR | rustix::fs::Mode::WUSR)?;
    rustix::net::bind(&socket, &SocketAddrUnix::new(path)?)?;
    Ok(socket)
}

impl Prepared {
    pub(super) fn serve(self) -> ExitCode {
        let (mut handed, made) = (self.handed, self.made);
        let served = tasks::run(async {
            let listener = Descriptor::of_input(made.listener)?;
            let hold = self.hold;
            if let Err(error) = &hold {
                self.log.line(format_args!(
                    "cleaners of temporary files are not kept away: {error}"
                ));
            }
            if self.carried.is_none() {
                self.log.line(format_args!(
                    "daemon {} of key {}, pid {}",
                    made.generation,
                    self.orders.key,
                    std::process::id()
                ));
            }
            let settings = Settings {
                lifetime: self.orders.policy,
                owner: self.orders.owner.map_or(Owner::None, |_| Owner::Watched),
                max_line: max_line(),
            };
            let now = self.carried.as_ref().map_or(Moment::START, |it| it.now);
            let engine = Daemon::new(&settings, now);
            let mut daemon = DaemonState::new(
                self.meeting,
                made.lock,
                self.log,
                made.generation,
                engine,
                listener,
                made.signals,
            );
            daemon.owner = self.orders.owner;
            daemon.hold = hold.ok();
            if let Some(carried) = &self.carried {
                daemon.go_on_with(carried);
            }
            let daemon = daemon.shared();
            if let Some(carried) = self.carried
                && let Err(error) = resume::move_in(&daemon, carried)
            {
                daemon.log.line(format_args!("cannot go on: {error}"));
                return Ok(ExitCode::FAILURE);
            }
            if let Some(first) = handed.first.take() {
                accept::admit(&daemon, ClientStream::new(first));
            }
            tasks::spawn(accept::all(Rc::clone(&daemon)));
            tasks::spawn(state::keep(Rc::clone(&daemon)));
            tasks::spawn(upgrade::attend(Rc::clone(&daemon)));
            tasks::spawn(life::reap_children(Rc::clone(&daemon)));
            if let Some(spawn) = handed.spawn.take() {
                // The very open file the election locked: whoever holds a copy of it, it is free now.
                let _ = rustix::fs::flock(&spawn, FlockOperation::Unlock);
            }
            handed.say(format_args!("ready {}", daemon.generation));
            drop(self.alarm);
            // A task of its own: what is waited for here is looked at for every line of every client.
            let live = async move { life::live(&daemon).await };
            Ok(match tasks::spawn(live).await {
                Some(()) => ExitCode::SUCCESS,
                None => ExitCode::FAILURE,
            })
        });
        served.flatten().unwrap_or_else(|error: io::Error| {
            handed.say(format_args!("failed no event loop: {error}"));
            ExitCode::FAILURE
        })
    }
}

/// A bad value in the environment is a line in the log and the default.
pub(super) fn sweep(log: &Log) -> Duration {
    let Some(value) = std::env::var_os("KENNEL_SWEEP") else {
        return watch::SWEEP;
    };
    let value = value.to_string_lossy();
    crate::duration::parse(&value).unwrap_or_else(|error| {
        log.line(format_args!("KENNEL_SWEEP is ignored: {error}"));
        watch::SWEEP
    })
}

/// Seconds since 1970.
pub(super) fn now() -> u64 {
    SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .map_or(0, |since| since.as_secs())
}

#[cfg(test)]
mod tests {
    use kennel_testkit::Scope;

    use super::*;

    #[test]
    fn rule_9_a_socket_is_closed_to_others_from_its_first_moment_on() {
        let scope = Scope::new("socket");
        rustix::process::umask(rustix::fs::Mode::empty());
        let path = scope.path("socket");
        let _socket = bound_at(&path).unwrap();
        let mode = path.metadata().unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
    }

    #[test]
    fn rule_9_no_socket_is_used_that_is_not_in_the_judged_directory_and_no_link_is_followed() {
        let scope = Scope::new("socket-elsewhere");
        let mode = |path: &Path| path.metadata().unwrap().permissions().mode() & 0o777;
        let dir = RuntimeDir::ensure(scope.path("dir")).unwrap();
        rustix::process::umask(rustix::fs::Mode::from_raw_mode(0o377));
        let path = dir.path().join("good.sock");
        let listens = listen_at(&dir, &path).map(drop);
        rustix::process::umask(rustix::fs::Mode::from_raw_mode(0o022));
        listens.unwrap();
        assert_eq!(mode(&path), 0o600);
        let precious = scope.path("precious");
        std::fs::write(&precious, "").unwrap();
        std::fs::set_permissions(&precious, PermissionsExt::from_mode(0o644)).unwrap();
        std::os::unix::fs::symlink(&precious, dir.path().join("link.sock")).unwrap();
        make_ours_alone(&dir, "link.sock".as_ref()).unwrap_err();
        assert_eq!(mode(&precious), 0o644);
        // Another directory is where this one was.
        std::fs::rename(dir.path(), scope.path("moved")).unwrap();
        std::fs::create_dir(scope.path("dir")).unwrap();
        listen_at(&dir, &dir.path().join("other.sock")).unwrap_err();
    }
}
