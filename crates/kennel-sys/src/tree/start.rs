//! The served side: starting a server under a warden, and hearing from it.

use std::ffi::OsString;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};

use rustix::net::{RecvFlags, SendFlags};
use rustix::process::{Signal, WaitOptions};

use super::Ladder;
use super::strays::Awaited;
use super::warden::{Orders, Place, Recording};
use crate::detached::Detached;
use crate::os;
use crate::process::{Identity, ProcessRef};
use crate::signals::reap_children_ourselves;

/// What to start, and how.
#[derive(Debug)]
pub struct Launch<'a> {
    /// The server: program and arguments. The program is looked for as a shell would.
    pub server: Vec<OsString>,
    /// The program that becomes the warden, with the arguments that make it one: it must end up in
    /// [`warden_main`](super::warden_main) with what follows them. `[/proc/self/exe, warden]` for a program that can be its own.
    pub warden: Vec<OsString>,
    /// The server's stdin, stdout and stderr. Handed through; nobody else keeps a copy.
    pub stdio: [OwnedFd; 3],
    /// The environment, or ours. Either way the server gets none of the `KENNEL_…` variables in it.
    pub env: Option<Vec<(OsString, OsString)>>,
    /// The working directory, or ours.
    pub cwd: Option<PathBuf>,
    /// How the tree is ended.
    pub ladder: Ladder,
    /// Which detached services outlive the tree.
    pub detached: Detached,
    /// The directory for the tree's record, which a later start reads; `None` where there is none to be had.
    pub records: Option<BorrowedFd<'a>>,
}

impl Launch<'_> {
    /// Starts the warden, which starts the server; [`Tree::next_report`] tells how that went. A record that cannot
    /// be written (a full disk) does not keep the server from starting.
    pub fn start(self) -> io::Result<Tree> {
        self.start_with(Recording::BestEffort)
    }

    /// The same, but a server whose record cannot be written is not started, or is ended again:
    /// [`Report::NotRecorded`] says so.
    pub fn start_recorded(self) -> io::Result<Tree> {
        match self.records {
            Some(_) => self.start_with(Recording::Required),
            None => Err(io::Error::new(
                io::ErrorKind::InvalidInput,
                "no directory for the record of its process tree",
            )),
        }
    }

    fn start_with(self, recording: Recording) -> io::Result<Tree> {
        let (ours, theirs) = os::message_channel()?;
        let orders = Orders {
            control: theirs.as_raw_fd(),
            served: *ProcessRef::me()?.identity(),
            ladder: self.ladder,
            detached: self.detached,
            place: Place::new(self.records.map(|dir| dir.as_raw_fd()))?,
            recording,
        };
        let mut handed = vec![theirs.as_raw_fd()];
        handed.extend(self.records.map(|dir| dir.as_raw_fd()));

        let (program, first_args) = self
            .warden
            .split_first()
            .ok_or(io::ErrorKind::InvalidInput)?;
        let mut command = Command::new(program);
        // What `ps` shows: the name of a program, not the path it was started by.
        command
            .arg0("kennel")
            .args(first_args)
            .arg(orders.to_string())
            .arg("--")
            .args(&self.server);
        if let Some(env) = self.env {
            command.env_clear().envs(env);
        }
        if let Some(cwd) = self.cwd {
            command.current_dir(cwd);
        }
        let [stdin, stdout, stderr] = self.stdio;
        command.stdin(stdin).stdout(stdout).stderr(stderr);
        // SAFETY: between fork and exec only system calls are made, on descriptors that are open in
        // the parent until `spawn` returns.
        unsafe {
            command.pre_exec(move || {
                reap_children_ourselves();
                crate::limits::restore_descriptors();
                // Out of our group: what ends us by group or terminal must leave the warden to its work.
                rustix::process::setsid()?;
                for &fd in &handed {
                    let fd = BorrowedFd::borrow_raw(fd);
                    rustix::io::fcntl_setfd(fd, rustix::io::FdFlags::empty())?;
                }
                Ok(())
            });
        }
        let (mut child, awaited) = Awaited::spawn(&mut command)?;
        let warden = match ProcessRef::of_child(child.id()) {
            Ok(warden) => warden,
            Err(error) => {
                // Its control socket closes with ours: it ends what it started, and is not left a zombie.
                drop(ours);
                child.wait()?;
                return Err(error);
            }
        };
        Ok(Tree {
            control: ours,
            warden,
            reaped: AtomicBool::new(false),
            _awaited: awaited,
        })
    }
}

/// A server under its warden. Dropping it asks for the ladder, as [`stop`](Tree::stop) does.
#[derive(Debug)]
pub struct Tree {
    control: OwnedFd,
    /// Our child: until it is reaped, its pid is its own.
    warden: ProcessRef,
    reaped: AtomicBool,
    _awaited: Awaited,
}

/// What a warden reports.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Report {
    /// The server runs. No identity: it had ended before it could be looked at.
    Started {
        /// The direct child: the server, or its launcher.
        pid: u32,
        /// Who that is.
        identity: Option<Identity>,
    },
    /// The server could not be started: the system's error.
    Refused(i32),
    /// The record could not be written, with the system's error, and was required
    /// ([`Launch::start_recorded`]). Nothing was started, or what was started is being ended; [`Report::Empty`]
    /// follows.
    NotRecorded(i32),
    /// The direct child ended. Its tree may live on: a launcher may start a server and go.
    Exited(Exit),
    /// Nothing is left of the tree; the warden ends now.
    Empty,
}

/// How the direct child ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Exit {
    /// With this code.
    Code(i32),
    /// By this signal.
    Signal(i32),
}

impl Tree {
    /// A tree that this process started before it became another program: its control socket ([`AsFd`]), and its
    /// warden, which is a child that nobody has reaped.
    pub fn taken_over(control: OwnedFd, warden: u32) -> io::Result<Tree> {
        Ok(Tree {
            control,
            warden: ProcessRef::of_child(warden)?,
            reaped: AtomicBool::new(false),
            _awaited: Awaited::taken_over(warden),
        })
    }

    /// The warden: its exit is the end of the tree, or means that [`end_strays`](super::end_strays) is due.
    pub fn warden(&self) -> &ProcessRef {
        &self.warden
    }

    /// Asks for the ladder, and continues the warden if it was stopped (SIGSTOP): a stopped warden ends nobody. Close the
    /// server's stdin too: that is its first rung.
    pub fn stop(&self) -> io::Result<()> {
        self.ask(STOP)
    }

    /// The same where the server's stdin has been closed for the time of the first rung already: the second is next.
    pub fn stop_after_eof(&self) -> io::Result<()> {
        self.ask(STOP_AFTER_EOF)
    }

    fn ask(&self, word: &[u8]) -> io::Result<()> {
        let asked = match os::send(self.control.as_fd(), word, SendFlags::empty()) {
            // Gone already: nothing to stop.
            Ok(_) | Err(rustix::io::Errno::PIPE | rustix::io::Errno::CONNRESET) => Ok(()),
            Err(errno) => Err(errno.into()),
        };
        // To one that runs, SIGCONT does nothing.
        let _ = self.warden.signal(Signal::CONT);
        asked
    }

    /// The next report, or `None` when the warden will send no more. Blocks; poll [`AsFd`] to not.
    pub fn next_report(&self) -> io::Result<Option<Report>> {
        let mut buffer = [0u8; 256];
        loop {
            return match rustix::net::recv(&self.control, &mut buffer, RecvFlags::empty()) {
                Ok((0, _)) => Ok(None),
                Ok((length, _)) => Report::parse(&buffer[..length])
                    .map(Some)
                    .ok_or_else(|| io::ErrorKind::InvalidData.into()),
                // It went without reading our last word. That is said once, and ahead of its own last words.
                Err(rustix::io::Errno::INTR | rustix::io::Errno::CONNRESET) => continue,
                Err(errno) => Err(errno.into()),
            };
        }
    }

    /// Blocks until the warden has ended, and reaps it.
    pub fn wait(&mut self) -> io::Result<()> {
        self.reap()
    }

    /// The same, where others look at the tree as well.
    pub fn reap(&self) -> io::Result<()> {
        self.reap_with(WaitOptions::empty()).map(drop)
    }

    /// Reaps the warden if it has ended; `false` while it runs.
    pub fn ended(&mut self) -> io::Result<bool> {
        self.reap_with(WaitOptions::NOHANG)
    }

    fn reap_with(&self, options: WaitOptions) -> io::Result<bool> {
        let pid = os::pid_of(self.warden.pid())?;
        while !self.reaped.load(Ordering::SeqCst) {
            match rustix::process::waitpid(Some(pid), options) {
                Ok(None) => return Ok(false),
                Ok(Some(_)) => self.reaped.store(true, Ordering::SeqCst),
                Err(rustix::io::Errno::INTR) => {}
                Err(errno) => return Err(errno.into()),
            }
        }
        Ok(true)
    }
}

/// What a warden is told by the process that it serves: any other word means the same as the first.
pub(super) const STOP: &[u8] = b"stop";
pub(super) const STOP_AFTER_EOF: &[u8] = b"stop after eof";

impl Drop for Tree {
    fn drop(&mut self) {
        let _ = self.stop();
    }
}

impl AsFd for Tree {
    /// Readable when a report waits, or when there will be no more.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.control.as_fd()
    }
}

impl Report {
    pub(super) fn text(&self) -> String {
        match self {
            Report::Started {
                pid,
                identity: None,
            } => format!("started {pid} -"),
            Report::Started {
                pid,
                identity: Some(identity),
            } => format!("started {pid} {identity}"),
            Report::Refused(errno) => format!("refused {errno}"),
            Report::NotRecorded(errno) => format!("not-recorded {errno}"),
            Report::Exited(Exit::Code(code)) => format!("exited code {code}"),
            Report::Exited(Exit::Signal(signal)) => format!("exited signal {signal}"),
            Report::Empty => "empty".to_owned(),
        }
    }

    fn parse(bytes: &[u8]) -> Option<Report> {
        let words: Vec<&str> = std::str::from_utf8(bytes).ok()?.split(' ').collect();
        Some(match words[..] {
            ["started", pid, identity] => Report::Started {
                pid: pid.parse().ok()?,
                identity: identity.parse().ok(),
            },
            ["refused", errno] => Report::Refused(errno.parse().ok()?),
            ["not-recorded", errno] => Report::NotRecorded(errno.parse().ok()?),
            ["exited", "code", code] => Report::Exited(Exit::Code(code.parse().ok()?)),
            ["exited", "signal", signal] => Report::Exited(Exit::Signal(signal.parse().ok()?)),
            ["empty"] => Report::Empty,
            _ => return None,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reports_cross_the_control_socket_unchanged() {
        let identity = "7:8:0000000000000000000000000000000f:9:10".parse().ok();
        assert!(identity.is_some());
        for report in [
            Report::Started { pid: 7, identity },
            Report::Started {
                pid: 7,
                identity: None,
            },
            Report::Refused(2),
            Report::NotRecorded(28),
            Report::Exited(Exit::Code(3)),
            Report::Exited(Exit::Signal(9)),
            Report::Empty,
        ] {
            assert_eq!(Report::parse(report.text().as_bytes()), Some(report));
        }
        assert_eq!(Report::parse(b"exited somehow"), None);
    }
}
