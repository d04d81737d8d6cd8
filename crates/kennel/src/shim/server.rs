//! A server of the shim's own, under its warden.

use std::collections::VecDeque;
use std::ffi::OsString;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::PathBuf;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use kennel_core::hello::App;
use kennel_core::session::Replay;
use kennel_core::time::Moment;
use kennel_sys::process::ProcessRef;
use kennel_sys::tree::{Detached, Exit, Ladder, Launch, Report, Tree};
use rustix::io::Errno;
use rustix::pipe::PipeFlags;

use super::lines::{Inbox, Outbox};
use super::listed::Tally;
use super::watch::{Watch, Watched, Who};
use super::width::Width;
use crate::daemon::{ClientState, ServerState};
use crate::listing::{self, Entry, Mode};
use crate::sources::{Look, Sources};

/// What a pipe holds: large lines need fewer turns.
const PIPE_SIZE: usize = 256 * 1024;
/// A longer line on stderr is passed on in parts: one that never ends must not fill our memory.
const LONGEST_COMPLAINT: usize = 64 * 1024;
/// How much of what the server said on stderr is kept for an error.
const TAIL_LINES: usize = 20;
const TAIL_LINE_BYTES: usize = 500;

/// How often its files are looked at, while it is used.
const LOOK: Duration = Duration::from_secs(1);

/// What to start.
#[derive(Debug, Clone)]
pub(crate) struct Spec {
    pub(crate) command: Vec<OsString>,
    pub(crate) cwd: Option<PathBuf>,
    pub(crate) ladder: Ladder,
    /// Which detached services outlive the server.
    pub(crate) detached: Detached,
    /// What is sent again to the next server.
    pub(crate) replay: Replay,
    /// Whether a server whose files changed is replaced by another.
    pub(crate) replace: bool,
    /// The longest line that is taken, in bytes.
    pub(crate) max_line: usize,
    /// Under which its era is remembered.
    pub(crate) key: String,
    /// How long it may be of no use before it is stopped until it is.
    pub(crate) hibernate: Option<Duration>,
    /// Why the session has a server of its own, if it was decided before.
    pub(crate) why_solo: Option<String>,
}

impl Spec {
    /// The files the server is started from.
    fn sources(&self) -> Sources {
        let cwd = self.cwd.clone().or_else(|| std::env::current_dir().ok());
        let variable = |name: &str| std::env::var_os(name);
        Sources::of(&self.command, &cwd.unwrap_or_default(), variable)
    }

    /// This session, as `kennel ps` lists it. Its environment is no part of it.
    pub(super) fn entry(
        &self,
        server: Option<(u32, Sources)>,
        why: Option<String>,
        app: Option<App>,
        tally: &Tally,
    ) -> Option<Entry> {
        let text = |word: &OsString| word.to_string_lossy().into_owned();
        let command: Vec<String> = self.command.iter().map(text).collect();
        let since = SystemTime::now().duration_since(UNIX_EPOCH).ok()?.as_secs();
        let cwd = self.cwd.clone().or_else(|| std::env::current_dir().ok())?;
        let state = |(pid, sources)| ServerState {
            pid,
            class: None,
            since,
            requests: tally.requests,
            latency_us: None,
            clients: 1,
            sources,
        };
        Some(Entry {
            key: format!("solo-{}", std::process::id()),
            name: crate::sharing::launcher::name_of(&command),
            command,
            cwd: cwd.display().to_string(),
            mode: Mode::Solo,
            daemon_pid: None,
            version: crate::this_build::version(),
            since: tally.since,
            state: "serving".to_owned(),
            why,
            dedicated_for_now: false,
            owner: None,
            servers: server
                .map(|running| listing::Server {
                    state: state(running),
                    rss_bytes: None,
                    stale: false,
                    stopped: None,
                })
                .into_iter()
                .collect(),
            clients: vec![ClientState {
                pid: std::process::id(),
                app_pid: app.as_ref().map(|app| app.pid),
                app: app.map(|app| app.name),
                client: tally.client.clone(),
                since: tally.since,
            }],
            saved_bytes: 0,
            restarts: tally.restarts,
            last_restart: tally.last_restart.clone(),
            idle_since: None,
            guarded: None,
            stopped: None,
            identity: Some(ProcessRef::me().ok()?.identity().to_string()),
        })
    }
}

/// A running server, and what is on its way to and from it.
#[derive(Debug)]
pub(crate) struct Server {
    pub(super) tree: Watched<Tree>,
    /// `None` once it was told that no more will come.
    pub(super) stdin: Option<Watched<OwnedFd>>,
    /// `None` once it was closed.
    pub(super) stdout: Option<Watched<OwnedFd>>,
    widths: [Width; 2],
    pub(super) stderr: Option<Watched<OwnedFd>>,
    pub(crate) from: Inbox,
    pub(crate) to: Outbox,
    /// How much was for it that it did not hear, when it heard no more.
    thrown_away: usize,
    /// When its stdin was closed because the app has said all.
    pub(super) input_ended: Option<Moment>,
    /// How its first process ended.
    pub(super) exit: Option<Exit>,
    /// What its warden reported and nobody has dealt with.
    pub(super) reports: VecDeque<Report>,
    pub(crate) said: Tail,
    /// What it was started from.
    pub(super) sources: Sources,
    /// When that was last looked at; nobody does where it would not be replaced for it.
    looked: Option<Instant>,
}

impl Server {
    pub(super) fn start(
        spec: &Spec,
        records: Option<BorrowedFd<'_>>,
        watch: &Watch,
    ) -> io::Result<Server> {
        // Before the start: what changes meanwhile has changed.
        let sources = spec.sources();
        let (stdin, to_server) = pipe()?;
        let (from_server, stdout) = pipe()?;
        let (errors, stderr) = pipe()?;
        for ours in [&to_server, &from_server, &errors] {
            rustix::fs::fcntl_setfl(ours, rustix::fs::OFlags::NONBLOCK)?;
        }
        for pipe in [&to_server, &from_server] {
            // Smaller pipes only cost turns: an unprivileged user may have used up its share of larger ones.
            let _ = rustix::pipe::fcntl_setpipe_size(pipe, PIPE_SIZE);
        }
        let tree = Launch {
            server: spec.command.clone(),
            warden: vec![crate::this_build::itself().into(), "warden".into()],
            stdio: [stdin, stdout, stderr],
            env: None,
            cwd: spec.cwd.clone(),
            ladder: spec.ladder,
            detached: spec.detached,
            records,
        }
        .start()?;
        Ok(Server {
            tree: watch.over(tree, Who::Warden),
            stdin: Some(watch.over(to_server, Who::ServerIn)),
            stdout: Some(watch.over(from_server, Who::ServerOut)),
            widths: Default::default(),
            stderr: Some(watch.over(errors, Who::ServerErr)),
            from: Inbox::default(),
            to: Outbox::default(),
            thrown_away: 0,
            input_ended: None,
            exit: None,
            reports: VecDeque::new(),
            said: Tail::default(),
            sources,
            looked: spec.replace.then(Instant::now),
        })
    }

    /// Whether it is to be replaced: its files are not what it was started from.
    pub(crate) fn is_outdated(&mut self) -> bool {
        if self.looked.is_none_or(|looked| looked.elapsed() < LOOK) {
            return false;
        }
        self.looked = Some(Instant::now());
        self.sources.look() == Look::Changed
    }

    /// Writes what it takes now. A server that reads no more is not an error: its stdout tells.
    pub(crate) fn flush(&mut self) {
        let Some(stdin) = &self.stdin else {
            return self.throw_away();
        };
        let [width, _] = &self.widths;
        let written = self.to.flush(|bytes| {
            width.suit(stdin, bytes.len());
            Ok(rustix::io::write(stdin, bytes)?)
        });
        if written.is_err() {
            // It hears nothing any more: whoever asks it something would wait for ever.
            self.hang_up();
            let _ = self.tree.stop();
        }
    }

    /// Sends the beginning of a long request, before all of it has come: the server reads it while it comes. Should it be
    /// no good after all, the server hears a line that is none. Answers to the server's own questions wait for their
    /// end: they may have to have another id. So does what lacks only its newline: a server may not wait for that, and
    /// would do what nobody has said yet.
    pub(crate) fn send_ahead(&mut self, from_app: &Inbox) {
        let Some(stdin) = self.stdin.as_ref().filter(|_| from_app.begins_a_call()) else {
            return;
        };
        let [width, _] = &self.widths;
        self.to.send_ahead(from_app, |bytes| {
            width.suit(stdin, from_app.len());
            Ok(rustix::io::write(stdin, bytes)?)
        });
    }

    /// Closes its stdin: the app has said all.
    pub(super) fn end_input(&mut self, now: Moment) {
        if self.stdin.take().is_some() {
            self.input_ended = Some(now);
        }
    }

    /// Says nothing more to one that is going, and sees what it has not heard.
    pub(crate) fn hang_up(&mut self) {
        if let Some(stdin) = self.stdin.take() {
            // What was sent ahead has not been said yet.
            self.thrown_away += unread(&stdin).saturating_sub(self.to.ahead());
        }
        self.throw_away();
    }

    /// How many of the last bytes that were for it, it is known not to have heard. Once it was hung up on.
    pub(crate) fn unheard(&self) -> usize {
        match self.to.is_counted() {
            true => self.thrown_away,
            false => 0,
        }
    }

    fn throw_away(&mut self) {
        self.thrown_away += self.to.len();
        self.to.clear();
    }

    /// Reads what it said; `false` once its stdout is closed.
    pub(crate) fn read(&mut self) -> bool {
        let Some(stdout) = &self.stdout else {
            return false;
        };
        let read = self.from.read(stdout);
        let [_, width] = &self.widths;
        width.suit(stdout, self.from.len());
        stdout.was_read(&read);
        let open = still_open(&read);
        if !open {
            self.stdout = None;
            self.from.end_of_server();
        }
        open
    }

    /// Whether there is something to read now, be it the end.
    pub(crate) fn has_said_more(&self) -> bool {
        use rustix::event::{PollFd, PollFlags, Timespec, poll};
        self.stdout.as_ref().is_some_and(|stdout| {
            let mut fds = [PollFd::new(stdout, PollFlags::IN)];
            poll(&mut fds, Some(&Timespec::default())).is_ok_and(|ready| ready > 0)
        })
    }

    /// Whether no process could read its stdin any more.
    pub(super) fn stdin_is_closed(&self) -> bool {
        self.stdin.as_ref().is_some_and(lacks_reader)
    }

    /// Reads what it said on stderr, and hands over every whole line.
    pub(crate) fn read_errors(&mut self, mut each: impl FnMut(&[u8])) {
        let Some(stderr) = &self.stderr else {
            return;
        };
        let read = self.said.lines.read(stderr);
        while let Some(line) = self.said.lines.next_line() {
            each(line);
            remember(&mut self.said.last, line);
        }
        let open = still_open(&read);
        if !open {
            self.stderr = None;
        }
        // One that never ends its lines (a progress bar) must not fill our memory.
        if (!open || self.said.lines.len() > LONGEST_COMPLAINT)
            && let Some(rest) = self.said.lines.rest()
        {
            each(&rest);
            remember(&mut self.said.last, &rest);
        }
    }

    /// What its warden reported, if it did. Only when [`Tree`] is ready: else it blocks.
    pub(crate) fn report(&mut self) -> Option<Report> {
        match self.reports.pop_front() {
            Some(report) => Some(report),
            None => self.tree.next_report().ok().flatten(),
        }
    }

    /// Whether [`report`](Self::report) would not block.
    pub(crate) fn report_is_there(&self) -> bool {
        !self.reports.is_empty() || self.tree_reports(Duration::ZERO)
    }

    /// How its first process ended, if that is known soon. Its output has ended, so it will be.
    pub(crate) fn await_exit(&mut self) -> Option<Exit> {
        const SOON: Duration = Duration::from_millis(200);
        let until = Instant::now() + SOON;
        while self.tree_reports(until.saturating_duration_since(Instant::now()))
            && let Some(report) = self.tree.next_report().ok().flatten()
        {
            self.reports.push_back(report);
            if let Some(Report::Exited(exit)) = self.reports.back() {
                return Some(*exit);
            }
        }
        None
    }

    fn tree_reports(&self, within: Duration) -> bool {
        use rustix::event::{PollFd, PollFlags, Timespec, poll};
        let mut fds = [PollFd::new(&*self.tree, PollFlags::IN)];
        let within = Timespec::try_from(within).unwrap_or_default();
        poll(&mut fds, Some(&within)).is_ok_and(|ready| ready > 0)
    }
}

/// The last lines of stderr.
#[derive(Debug, Default)]
pub(crate) struct Tail {
    lines: Inbox,
    last: VecDeque<String>,
}

impl Tail {
    pub(crate) fn text(&self) -> String {
        let lines: Vec<&str> = self.last.iter().map(String::as_str).collect();
        lines.join("\n")
    }
}

fn remember(last: &mut VecDeque<String>, line: &[u8]) {
    if last.len() == TAIL_LINES {
        last.pop_front();
    }
    let line = &line[..line.len().min(TAIL_LINE_BYTES)];
    last.push_back(String::from_utf8_lossy(line).into_owned());
}

/// Whether nobody has the other end of a pipe that is written to.
pub(crate) fn lacks_reader(pipe: impl AsFd) -> bool {
    use rustix::event::{PollFd, PollFlags, Timespec, poll};
    let mut fds = [PollFd::from_borrowed_fd(pipe.as_fd(), PollFlags::empty())];
    let polled = poll(&mut fds, Some(&Timespec::default()));
    polled.is_ok() && fds[0].revents().contains(PollFlags::ERR)
}

/// How much is in a pipe that nobody will ever read: nobody is left who could. A process that ends lets go of its stdout
/// before its stdin, and on a busy machine not in the same moment.
fn unread(pipe: &OwnedFd) -> usize {
    use rustix::event::{PollFd, PollFlags, Timespec, poll};
    const LETS_GO: Timespec = Timespec {
        tv_sec: 0,
        tv_nsec: 200_000_000,
    };
    let mut fds = [PollFd::new(pipe, PollFlags::empty())];
    let polled = poll(&mut fds, Some(&LETS_GO));
    if polled.is_err() || !fds[0].revents().contains(PollFlags::ERR) {
        return 0;
    }
    let unread = rustix::io::ioctl_fionread(pipe).unwrap_or(0);
    usize::try_from(unread).unwrap_or(0)
}

fn still_open(read: &io::Result<usize>) -> bool {
    match read {
        Ok(0) => false,
        Ok(_) => true,
        Err(error) => matches!(
            error.kind(),
            io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted
        ),
    }
}

fn pipe() -> Result<(OwnedFd, OwnedFd), Errno> {
    rustix::pipe::pipe_with(PipeFlags::CLOEXEC)
}
