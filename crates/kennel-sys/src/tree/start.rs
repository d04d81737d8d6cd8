//! The served process: starting a server under a warden, and reading the warden's reports.

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
use super::warden_args::{RecordPlace, Recording, WardenArgs};
use crate::detached::Detached;
use crate::io::Handle;
use crate::os;
use crate::process::{Identity, ProcessRef};
use crate::signals::reap_children_ourselves;
use crate::stdio::Stdio;

/// A command and the settings for its start.
#[derive(Debug)]
pub struct Launch<'a> {
    /// The server: program and arguments. The program is searched for on the PATH, as a shell does.
    pub server: Vec<OsString>,
    /// The program that becomes the warden, with the arguments before its settings. It must call
    /// [`warden_main`](super::warden_main) with the arguments that follow. `[/proc/self/exe, warden]` for a program that
    /// can be its own warden.
    pub warden: Vec<OsString>,
    /// The server's stdin, stdout and stderr. Only the server keeps a copy.
    pub stdio: Stdio,
    /// The environment; `None` for ours. The server never gets `KENNEL_…` variables.
    pub env: Option<Vec<(OsString, OsString)>>,
    /// The working directory; `None` for ours.
    pub cwd: Option<PathBuf>,
    /// The durations of the stop ladder.
    pub ladder: Ladder,
    /// The policy for detached services.
    pub detached: Detached,
    /// The directory for the tree's record, which a later start reads; `None` if there is no directory.
    pub records: Option<BorrowedFd<'a>>,
}

impl Launch<'_> {
    /// Starts the warden, which starts the server; [`Tree::next_report`] returns the result. The server starts even if its
    /// record cannot be written (a full disk).
    pub fn start(self) -> io::Result<Tree> {
        self.start_with(Recording::BestEffort)
    }

    /// The same, but the server is not started, or is ended again, if its record cannot be written: then there is a
    /// [`Report::NotRecorded`].
    pub fn start_recorded(self) -> io::Result<Tree> {
        match self.records {
            Some(_) => self.start_with(Recording::Required),
            None => Err(io::Error::new(
                io::ErrorKind::InvalidInput,
                "cannot open the directory for the record of its process tree",
            )),
        }
    }

    fn start_with(self, recording: Recording) -> io::Result<Tree> {
        let (ours, theirs) = os::message_channel()?;
        let warden_args = WardenArgs {
            control: theirs.as_raw_fd(),
            served: *ProcessRef::me()?.identity(),
            ladder: self.ladder,
            detached: self.detached,
            place: RecordPlace::new(self.records.map(|dir| dir.as_raw_fd()))?,
            recording,
        };
        let mut handed = vec![theirs.as_raw_fd()];
        handed.extend(self.records.map(|dir| dir.as_raw_fd()));

        let (program, first_args) = self
            .warden
            .split_first()
            .ok_or(io::ErrorKind::InvalidInput)?;
        let mut command = Command::new(program);
        // `ps` shows the name of the program, not the path that it was started by.
        command
            .arg0("kennel")
            .args(first_args)
            .arg(warden_args.to_string())
            .arg("--")
            .args(&self.server);
        if let Some(env) = self.env {
            command.env_clear().envs(env);
        }
        if let Some(cwd) = self.cwd {
            command.current_dir(cwd);
        }
        let [stdin, stdout, stderr] = self.stdio.map(Handle::into_inner);
        command.stdin(stdin).stdout(stdout).stderr(stderr);
        // No record names the child before it is a warden. So it dies with us, even if it is stopped (SIGSTOP) until then.
        // Another thread than the first one may end while we live, and the signal is of the thread.
        let dies_with_us = os::is_first_thread();
        // SAFETY: between fork and exec only system calls are made, on descriptors that are open in
        // the parent until `spawn` returns.
        unsafe {
            command.pre_exec(move || {
                if dies_with_us {
                    os::die_with_parent()?;
                }
                reap_children_ourselves();
                crate::limits::restore_descriptors();
                // In a session of its own, so that a signal to our group or terminal does not end the warden.
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
                // Its control socket closes with ours, so it ends what it started. It is reaped here.
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

/// A server under its warden. Dropping it stops the server, as [`stop`](Tree::stop) does.
#[derive(Debug)]
pub struct Tree {
    control: OwnedFd,
    /// Our child: until it is reaped, its pid is its own.
    warden: ProcessRef,
    reaped: AtomicBool,
    _awaited: Awaited,
}

/// A report of a warden.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Report {
    /// The server runs. There is no identity if it ended before the identity was read.
    Started {
        /// The direct child: the server, or its launcher.
        pid: u32,
        /// The identity of that process.
        identity: Option<Identity>,
    },
    /// The server could not be started: the system's error number.
    Refused(i32),
    /// The record was required ([`Launch::start_recorded`]) and could not be written: the system's error number. The server
    /// was not started, or is being ended; [`Report::Empty`] follows.
    NotRecorded(i32),
    /// The direct child ended. Its tree may live on: a launcher may start a server and exit.
    Exited(Exit),
    /// The tree has no processes any more; the warden exits now.
    Empty,
}

/// How the direct child ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Exit {
    /// It exited with this code.
    Code(i32),
    /// It was killed by this signal.
    Signal(i32),
}

impl Tree {
    /// A tree that this process started before it executed another program: its control socket ([`AsFd`]), and its warden,
    /// an unreaped child.
    pub fn taken_over(control: Handle, warden: u32) -> io::Result<Tree> {
        Ok(Tree {
            control: control.into_inner(),
            warden: ProcessRef::of_child(warden)?,
            reaped: AtomicBool::new(false),
            _awaited: Awaited::taken_over(warden),
        })
    }

    /// The warden. When it exits, the tree is empty, or [`end_strays`](super::end_strays) must be called.
    pub fn warden(&self) -> &ProcessRef {
        &self.warden
    }

    /// Starts the stop ladder, and continues the warden if it was stopped (SIGSTOP). The caller must also close the
    /// server's stdin: that is the first step.
    pub fn stop(&self) -> io::Result<()> {
        self.request(STOP)
    }

    /// The same if the server's stdin was already closed for the duration of the first step: the ladder starts with
    /// SIGTERM.
    pub fn stop_after_eof(&self) -> io::Result<()> {
        self.request(STOP_AFTER_EOF)
    }

    fn request(&self, word: &[u8]) -> io::Result<()> {
        let asked = match os::send(self.control.as_fd(), word, SendFlags::empty()) {
            // The warden is gone: there is nothing to stop.
            Ok(_) | Err(rustix::io::Errno::PIPE | rustix::io::Errno::CONNRESET) => Ok(()),
            Err(errno) => Err(errno.into()),
        };
        // SIGCONT has no effect on a running process.
        let _ = self.warden.signal(Signal::CONT);
        asked
    }

    /// The next report, or `None` if the warden sends no more. Blocks; poll [`AsFd`] to avoid that.
    pub fn next_report(&self) -> io::Result<Option<Report>> {
        let mut buffer = [0u8; 256];
        loop {
            return match rustix::net::recv(&self.control, &mut buffer, RecvFlags::empty()) {
                Ok((0, _)) => Ok(None),
                Ok((length, _)) => Report::parse(&buffer[..length])
                    .map(Some)
                    .ok_or_else(|| io::ErrorKind::InvalidData.into()),
                // The warden exited without reading our last message. This error comes once, before its own last reports.
                Err(rustix::io::Errno::INTR | rustix::io::Errno::CONNRESET) => continue,
                Err(errno) => Err(errno.into()),
            };
        }
    }

    /// Blocks until the warden has ended, and reaps it.
    pub fn wait(&mut self) -> io::Result<()> {
        self.reap()
    }

    /// The same, for a tree that is shared.
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

/// The messages of the served process to its warden. Any other message means the same as `stop`.
pub(super) const STOP: &[u8] = b"stop";
pub(super) const STOP_AFTER_EOF: &[u8] = b"stop after eof";

impl Drop for Tree {
    fn drop(&mut self) {
        let _ = self.stop();
    }
}

impl AsFd for Tree {
    /// Readable when there is a report, or when there will be no more.
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
