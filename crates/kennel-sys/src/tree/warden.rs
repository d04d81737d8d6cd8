//! The warden: starts one command, holds its whole tree, and ends it when the one it serves is gone.
//!
//! One thread, which never ends early: so the child's death signal (`PR_SET_PDEATHSIG`, bound to the
//! thread that forked) means the warden's death and nothing else (lesson 23).

use std::ffi::{CString, OsStr, OsString};
use std::fmt;
use std::io;
use std::os::fd::{AsFd, OwnedFd, RawFd};
use std::os::unix::process::CommandExt;
use std::process::Command;
use std::time::{Duration, Instant};

use rustix::net::{RecvFlags, SendFlags};
use rustix::process::{Pid, Signal, WaitOptions, WaitStatus};

use super::kept::Kept;
use super::mark::{Terms, TreeMark};
use super::record::Record;
use super::search::Search;
use super::services::{self, Rules, Source};
use super::start::{Exit, Report, STOP_AFTER_EOF};
use super::{COOKIE, Ladder, descendants};
use crate::detach::{Kind, adopt};
use crate::detached::Detached;
use crate::events;
use crate::os;
use crate::process::{Identity, ProcessRef};
use crate::signals::{Signals, default_dispositions, survive_file_size_limit};

/// Runs the warden: `arguments` are what followed its own name, as [`Launch`](super::Launch) put them there.
///
/// Returns the process's exit code: 0 when the tree is empty, 126 or 127 when the server could not be
/// started, 2 when the arguments were not made by [`Launch`](super::Launch).
pub fn main(arguments: impl IntoIterator<Item = OsString>) -> u8 {
    let mut arguments = arguments.into_iter();
    let orders = arguments.next().and_then(|text| Orders::parse(&text));
    let separator = arguments.next();
    let server: Vec<OsString> = arguments.collect();
    match (orders, separator) {
        (Some(orders), Some(dashes)) if dashes == "--" && !server.is_empty() => {
            Warden::serve(&orders, &server).unwrap_or(1)
        }
        _ => 2,
    }
}

/// What the served process wants of its warden, as one word on the warden's command line.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Orders {
    pub(super) control: RawFd,
    pub(super) served: Identity,
    pub(super) ladder: Ladder,
    pub(super) detached: Detached,
    pub(super) place: Place,
    pub(super) recording: Recording,
}

/// Whether a server may run whose record cannot be written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Recording {
    /// It may: a session's server without a record is better than none.
    BestEffort,
    /// It may not: nobody would find what outlives its starter.
    Required,
}

/// The tree's name, and where its record is kept.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Place {
    pub(super) cookie: String,
    records: Option<RawFd>,
}

impl Place {
    pub(super) fn new(records: Option<RawFd>) -> io::Result<Place> {
        let cookie = crate::random::word()?;
        Ok(Place { cookie, records })
    }
}

impl fmt::Display for Orders {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Orders {
            control,
            served,
            ladder,
            detached,
            place,
            recording,
        } = self;
        let (eof, term) = (ladder.after_eof.as_millis(), ladder.after_term.as_millis());
        let records = place.records.unwrap_or(-1);
        write!(
            f,
            "for={served},control={control},ladder={eof}/{term},detached={detached},tree={},records={records}",
            place.cookie
        )?;
        match recording {
            Recording::BestEffort => Ok(()),
            Recording::Required => f.write_str(",recording=required"),
        }
    }
}

impl Orders {
    pub(super) fn parse(text: &OsStr) -> Option<Orders> {
        let text = text.to_str()?;
        let field = |name: &str| {
            text.split(',')
                .find_map(|pair| pair.strip_prefix(name)?.strip_prefix('='))
        };
        let (eof, term) = field("ladder")?.split_once('/')?;
        let records: RawFd = field("records")?.parse().ok()?;
        Some(Orders {
            control: field("control")?.parse().ok()?,
            served: field("for")?.parse().ok()?,
            ladder: Ladder {
                after_eof: Duration::from_millis(eof.parse().ok()?),
                after_term: Duration::from_millis(term.parse().ok()?),
            },
            detached: field("detached")?.parse().ok()?,
            place: Place {
                cookie: field("tree")?.to_owned(),
                records: (records >= 0).then_some(records),
            },
            recording: match field("recording") {
                Some("required") => Recording::Required,
                _ => Recording::BestEffort,
            },
        })
    }
}

/// Where on the ladder the tree stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Rung {
    /// Nobody wants it stopped.
    Serving,
    /// Its stdin was closed.
    Eof { until: Instant },
    /// Everyone in it was sent SIGTERM.
    Term { until: Instant },
    /// Its members are killed and reaped until none is left; between two looks we nap, ever longer while
    /// a kill reaches nobody new.
    Kill { nap: Duration },
}

/// The longest rung once the process that was served is gone.
const ABANDONED: Duration = Duration::from_secs(1);

/// The first nap, and the longest. A child that ends wakes us from any.
const FIRST_NAP: Duration = Duration::from_millis(5);
const LONGEST_NAP: Duration = Duration::from_secs(1);
/// The longest nap where pids have to be tried, which costs more.
const LONGEST_SEARCH_NAP: Duration = Duration::from_secs(60);

struct Warden {
    /// `None` once the served process has closed its end.
    control: Option<OwnedFd>,
    served: ProcessRef,
    signals: Signals,
    ladder: Ladder,
    rung: Rung,
    server: Pid,
    server_reaped: bool,
    /// Whom the last kill reached.
    killed: Vec<u32>,
    /// Who is below us, where `/proc` does not say so.
    search: Search,
    detached: Detached,
    cookie: String,
    /// Where kept services are written down.
    records: Option<OwnedFd>,
    /// Detached services that outlive the tree: decided before its first rung.
    kept: Vec<Identity>,
}

impl Warden {
    fn serve(orders: &Orders, server: &[OsString]) -> io::Result<u8> {
        // Started as `/proc/self/exe`, it would go by the name of "exe".
        os::set_process_name(c"kennel-warden");
        survive_file_size_limit();
        let control = adopt(orders.control, Kind::Socket)?;
        let records = orders.place.records;
        let records = records.map(|fd| adopt(fd, Kind::Directory)).transpose()?;
        // It is our parent, as long as it lives: one with another pid adopted us.
        let served = match ProcessRef::parent()? {
            Some(parent) if parent.pid() == orders.served.pid() => parent,
            // Killed while we were being started: there is nobody to start anything for.
            _ => return Ok(0),
        };
        os::set_subreaper(true)?;
        let signals = Signals::catch(&[Signal::CHILD, Signal::TERM, Signal::INT, Signal::HUP])?;

        let cookie = &orders.place.cookie;
        let mut record = Record::new(
            orders.served,
            *ProcessRef::me()?.identity(),
            orders.detached,
        );
        let keep = |record: &Record| match &records {
            Some(dir) => record.write(dir.as_fd(), cookie),
            None => Ok(()),
        };
        let required = orders.recording == Recording::Required;
        // Before the start: whatever happens from here on, the cookie is on record.
        if let Err(error) = keep(&record)
            && required
        {
            forget(records.as_ref(), cookie);
            tell(&control, &not_recorded(&error));
            tell(&control, &Report::Empty);
            return Ok(1);
        }
        let null = std::fs::File::options()
            .read(true)
            .write(true)
            .open("/dev/null")?;
        let started = start(server, cookie, orders.detached);
        let child = match started {
            Ok(child) => child,
            Err(error) => {
                forget(records.as_ref(), cookie);
                let errno = refusal(&server[0], &error);
                tell(&control, &Report::Refused(errno));
                return Ok(if errno == libc::ENOENT { 127 } else { 126 });
            }
        };
        let_go_of_stdio(&null)?;
        let identity = ProcessRef::open(child)
            .ok()
            .map(|process| *process.identity());
        record.server = identity;
        record.session = child;
        let started = Report::Started {
            pid: child,
            identity,
        };
        // Who requires a record hears first whether there is one; others do not wait for a file.
        let kept = match required {
            true => keep(&record),
            false => {
                tell(&control, &started);
                let _ = keep(&record);
                Ok(())
            }
        };

        let mut warden = Warden {
            control: Some(control),
            served,
            signals,
            ladder: orders.ladder,
            rung: Rung::Serving,
            server: os::pid_of(child)?,
            server_reaped: false,
            killed: Vec::new(),
            search: Search::default(),
            detached: orders.detached,
            cookie: cookie.clone(),
            records,
            kept: Vec::new(),
        };
        if let Err(error) = kept {
            warden.report(&not_recorded(&error));
            warden.rung = Rung::Eof {
                until: Instant::now() + warden.ladder.after_eof,
            };
        }
        if required {
            warden.report(&started);
        }
        while !warden.reap_finds_nobody()? {
            // Where the system does not let us sleep (no memory), a rest is better than to spin or to go.
            if warden.sleep().is_err() {
                let _ = events::sleep(&[], &[], Some(FIRST_NAP));
            }
            warden.climb();
        }
        forget(warden.records.as_ref(), cookie);
        warden.report(&Report::Empty);
        Ok(0)
    }

    /// Reaps whoever ended; `true` when no child is left, and so no descendant either.
    fn reap_finds_nobody(&mut self) -> io::Result<bool> {
        loop {
            match rustix::process::wait(WaitOptions::NOHANG) {
                Ok(Some((pid, status))) if pid == self.server => {
                    self.server_reaped = true;
                    self.report(&exit_report(status));
                }
                Ok(Some(_)) => {}
                Ok(None) => {
                    // Where nobody is kept, `wait` tells the end of the first rungs.
                    let ending = match self.rung {
                        Rung::Serving => false,
                        Rung::Eof { .. } | Rung::Term { .. } => !self.kept.is_empty(),
                        Rung::Kill { .. } => true,
                    };
                    return Ok(ending && descendants::only_spared_left(&self.kept));
                }
                Err(rustix::io::Errno::CHILD) => return Ok(true),
                Err(rustix::io::Errno::INTR) => {}
                Err(errno) => return Err(errno.into()),
            }
        }
    }

    /// Sleeps until something happens: a child ended, a signal, a word or the end of the served process, a rung is over.
    fn sleep(&self) -> io::Result<()> {
        let mut fds = vec![self.signals.as_fd()];
        let mut processes = Vec::new();
        // Once the ladder is under way, nobody's word or death changes anything.
        if self.rung == Rung::Serving {
            fds.extend(self.control.as_ref().map(AsFd::as_fd));
            processes.push(&self.served);
        }
        events::sleep(&fds, &processes, self.timeout())
    }

    fn timeout(&self) -> Option<Duration> {
        match self.rung {
            Rung::Serving => None,
            Rung::Eof { until } | Rung::Term { until } => {
                Some(until.saturating_duration_since(Instant::now()))
            }
            Rung::Kill { nap } => Some(nap),
        }
    }

    /// Takes the next rung if it is time.
    fn climb(&mut self) {
        let now = Instant::now();
        let asked = self.stop_signalled() | self.stop_spoken();
        // Decided before the first rung. Asked again before each: a service whose parent ended at the moment of a look may
        // have been missed, and whoever uses it is still there.
        let next_rung = match self.rung {
            Rung::Serving => asked || !self.served.is_alive(),
            Rung::Eof { until } | Rung::Term { until } => now >= until,
            Rung::Kill { .. } => false,
        };
        if next_rung {
            self.decide_who_is_kept();
        }
        self.rung = match self.rung {
            Rung::Serving if asked => Rung::Eof {
                until: now + self.ladder.after_eof,
            },
            Rung::Serving if !self.served.is_alive() => {
                self.hurry();
                Rung::Eof {
                    until: now + self.ladder.after_eof,
                }
            }
            Rung::Eof { until } if now >= until => {
                // Whom this misses, the next rung finds.
                if descendants::signal_all(Signal::TERM, &self.kept).is_err() {
                    self.signal_without_a_list(Signal::TERM);
                }
                Rung::Term {
                    until: now + self.ladder.after_term,
                }
            }
            Rung::Term { until } if now >= until => Rung::Kill { nap: FIRST_NAP },
            stay => stay,
        };
        if let Rung::Kill { nap } = self.rung {
            let nap = match os::children_of_this_process() {
                Ok(mut children) => {
                    children.retain(|&pid| !descendants::is_spared(pid, &self.kept));
                    let killed = descendants::kill_children(children);
                    let same = killed == self.killed;
                    self.killed = killed;
                    match same {
                        true => (nap * 2).min(LONGEST_NAP),
                        false => FIRST_NAP,
                    }
                }
                Err(_) => match self.signal_without_a_list(Signal::KILL) {
                    true => (nap * 2).min(LONGEST_SEARCH_NAP),
                    false => FIRST_NAP,
                },
            };
            self.rung = Rung::Kill { nap };
        }
    }

    /// Signals the server and its group, and the children that the next step of the search finds. `true` if there was no new
    /// one, and all pids were tried.
    fn signal_without_a_list(&mut self, signal: Signal) -> bool {
        let server = self.server;
        // Where `/proc` is ours and could not be read now, it will tell kept services and daemons from the rest. Where it is
        // not, nobody knows who left the server's session: then none is ended if all of them are to be kept.
        let searches = !os::has_own_proc() && self.detached != Detached::Keep;
        let mut children = match searches {
            true => self.search.step(),
            false => Vec::new(),
        };
        let is_kept = |pid: u32| self.kept.iter().any(|kept| kept.pid() == pid);
        children.retain(|&pid| pid != server.as_raw_pid() as u32 && !is_kept(pid));
        #[expect(
            clippy::disallowed_methods,
            reason = "unreaped children of ours, and the group that one leads: their numbers were not given away"
        )]
        {
            if !self.server_reaped {
                // It left its group if there is no such group.
                if rustix::process::kill_process_group(server, signal).is_err() {
                    let _ = rustix::process::kill_process(server, signal);
                }
            }
            for pid in children.into_iter().filter_map(|pid| os::pid_of(pid).ok()) {
                let _ = rustix::process::kill_process(pid, signal);
            }
        }
        !searches || self.search.is_complete()
    }

    /// Finds the detached services that others use, and writes them down before anybody of the tree is ended.
    fn decide_who_is_kept(&mut self) {
        if self.detached == Detached::End {
            return;
        }
        // Where the process table cannot be read, nobody can be told from anybody.
        let Ok(members) = descendants::all(&self.kept) else {
            return;
        };
        let session = self.server.as_raw_pid() as u32;
        let rules = Rules {
            policy: self.detached,
            sessions: vec![session],
            source: Source::Orders,
        };
        let services = services::kept_among(&members, &rules, self.server_reaped);
        for (identity, reason) in services {
            self.kept.push(identity);
            if let Some(dir) = &self.records {
                // Without a record it is kept by us, but not by whoever comes later.
                let _ = Kept::now(identity, reason, &self.cookie).write(dir.as_fd());
            }
        }
    }

    fn stop_signalled(&self) -> bool {
        let mut asked = false;
        while let Some(signal) = self.signals.next() {
            asked |= signal != Signal::CHILD;
        }
        asked
    }

    /// Nobody is left to be patient for, and a successor may be waiting for the store.
    fn hurry(&mut self) {
        self.ladder.after_eof = self.ladder.after_eof.min(ABANDONED);
        self.ladder.after_term = self.ladder.after_term.min(ABANDONED);
    }

    /// The served process said `stop`; or its end closed without that word, which is what a kill does, and
    /// earlier than its death can be seen.
    fn stop_spoken(&mut self) -> bool {
        let Some(control) = &self.control else {
            return false;
        };
        let mut word = [0u8; 16];
        match rustix::net::recv(control, &mut word, RecvFlags::DONTWAIT) {
            Ok((0, _)) | Err(rustix::io::Errno::CONNRESET) => {
                self.control = None;
                if self.rung == Rung::Serving {
                    self.hurry();
                }
                true
            }
            Ok((length, _)) => {
                if word[..length].starts_with(STOP_AFTER_EOF) {
                    self.ladder.after_eof = Duration::ZERO;
                }
                true
            }
            Err(_) => false,
        }
    }

    fn report(&self, report: &Report) {
        if let Some(control) = &self.control {
            tell(control, report);
        }
    }
}

/// Starts the server in a session of its own, with our stdio and nothing else of ours.
fn start(server: &[OsString], cookie: &str, policy: Detached) -> io::Result<u32> {
    let mut command = Command::new(&server[0]);
    command.args(&server[1..]);
    let names = std::env::vars_os().map(|(name, _)| name.into_encoded_bytes());
    let ours: Vec<CString> = names
        .filter(|name| name.starts_with(b"KENNEL_"))
        .map(CString::new)
        .collect::<Result<_, _>>()?;
    let (name, cookie) = (CString::new(COOKIE)?, cookie.to_owned());
    let warden = rustix::process::getpid();
    // SAFETY: the warden has one thread, and so has the child: it may use memory, and change its environment, which nobody
    // else reads. `command` has no variables: so the child's are used. The library's `set_var` waits for a lock that
    // `spawn` holds.
    unsafe {
        command.pre_exec(move || {
            for name in &ours {
                libc::unsetenv(name.as_ptr());
            }
            // It leads a session: its pid is the session's.
            let session = rustix::process::getpid().as_raw_pid() as u32;
            let mark = TreeMark {
                cookie: cookie.clone(),
                terms: Some(Terms { policy, session }),
            };
            let mark = CString::new(mark.to_string())?;
            if libc::setenv(name.as_ptr(), mark.as_ptr(), 1) != 0 {
                return Err(io::Error::last_os_error());
            }
            default_dispositions();
            rustix::process::setsid()?;
            os::die_with_parent()?;
            if rustix::process::getppid() != Some(warden) {
                // Killed between our fork and the line above: its death signal was missed.
                return Err(io::ErrorKind::NotFound.into());
            }
            os::close_at_exec_from(3)
        });
    }
    command.spawn().map(|child| child.id())
}

/// Why the server could not be started, as a shell sees it. The system calls a name permission denied
/// as soon as one directory of the PATH is closed to us; to people it is not found unless it is there.
fn refusal(program: &OsStr, error: &io::Error) -> i32 {
    let errno = error.raw_os_error().unwrap_or(libc::ENOENT);
    let bare_name = !program.as_encoded_bytes().contains(&b'/');
    let on_path = || {
        let path = std::env::var_os("PATH").unwrap_or_default();
        std::env::split_paths(&path).any(|dir| dir.join(program).exists())
    };
    if errno == libc::EACCES && bare_name && !on_path() {
        return libc::ENOENT;
    }
    errno
}

/// The server has the stdio now: a copy of ours would keep its pipes open after its end.
fn let_go_of_stdio(null: &std::fs::File) -> io::Result<()> {
    rustix::stdio::dup2_stdin(null)?;
    rustix::stdio::dup2_stdout(null)?;
    rustix::stdio::dup2_stderr(null)?;
    Ok(())
}

fn tell(control: &OwnedFd, report: &Report) {
    // Whoever does not listen any more needs no report.
    let _ = os::send(
        control.as_fd(),
        report.text().as_bytes(),
        SendFlags::DONTWAIT,
    );
}

fn forget(records: Option<&OwnedFd>, cookie: &str) {
    if let Some(dir) = records {
        // One that stays is found empty and removed by the next start.
        let _ = super::record::remove(dir.as_fd(), cookie);
    }
}

fn not_recorded(error: &io::Error) -> Report {
    Report::NotRecorded(error.raw_os_error().unwrap_or(libc::EIO))
}

fn exit_report(status: WaitStatus) -> Report {
    Report::Exited(match (status.exit_status(), status.terminating_signal()) {
        (Some(code), _) => Exit::Code(code),
        (None, Some(signal)) => Exit::Signal(signal),
        (None, None) => Exit::Code(-1),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn orders_are_read_as_they_were_given() {
        let orders = Orders {
            control: 7,
            served: "1:2:0000000000000000000000000000000f:4:5"
                .parse()
                .expect("well-formed"),
            ladder: Ladder::default(),
            detached: Detached::Keep,
            place: Place {
                cookie: "abc".into(),
                records: Some(9),
            },
            recording: Recording::Required,
        };
        assert_eq!(
            Orders::parse(OsStr::new(&orders.to_string())),
            Some(orders.clone())
        );
        let without = Orders {
            place: Place {
                records: None,
                ..orders.place.clone()
            },
            recording: Recording::BestEffort,
            ..orders
        };
        assert_eq!(
            Orders::parse(OsStr::new(&without.to_string())),
            Some(without)
        );
    }

    #[test]
    fn foreign_arguments_start_nothing() {
        assert_eq!(main([]), 2);
        assert_eq!(main(["for=1".into(), "--".into(), "true".into()]), 2);
        assert_eq!(main(["".into(), "--".into()]), 2);
    }
}
