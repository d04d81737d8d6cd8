//! A server of the shim's own, under its warden.

use std::collections::VecDeque;
use std::ffi::OsString;
use std::io::{self, PipeReader, PipeWriter, Write};
use std::path::PathBuf;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use kennel_core::hello::App;
use kennel_core::session::Replay;
use kennel_core::time::Moment;
use kennel_sys::io::{BufferSize, Reactor, Source};
use kennel_sys::io::{is_readable_within, reader_is_gone_within, unread_bytes};
use kennel_sys::process::ProcessRef;
use kennel_sys::runtime_dir::RuntimeDir;
use kennel_sys::tree::{Detached, Exit, Ladder, Report, Tree};

use super::event_source::EventSource;
use super::listed::SessionStats;
use crate::daemon::{ClientState, ServerState};
use crate::lines::{Inbox, Outbox};
use crate::listing::{self, Entry, Mode};
use crate::server_process::{MAX_STDERR_LINE, PIPE_SIZE, ServerLaunch, StderrTail, is_still_open};
use crate::sources::{FileChange, Sources};

/// How often its files are checked_at at, while it is used.
const CHECK_INTERVAL: Duration = Duration::from_secs(1);

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
        stats: &SessionStats,
    ) -> Option<Entry> {
        let text = |word: &OsString| word.to_string_lossy().into_owned();
        let command: Vec<String> = self.command.iter().map(text).collect();
        let since = SystemTime::now().duration_since(UNIX_EPOCH).ok()?.as_secs();
        let cwd = self.cwd.clone().or_else(|| std::env::current_dir().ok())?;
        let state = |(pid, sources)| ServerState {
            pid,
            class: None,
            since,
            requests: stats.requests,
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
            since: stats.since,
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
                client: stats.client.clone(),
                since: stats.since,
            }],
            saved_bytes: 0,
            restarts: stats.restarts,
            last_restart: stats.last_restart.clone(),
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
    pub(super) tree: Source<Tree>,
    /// `None` once it was told that no more will come.
    pub(super) stdin: Option<Source<PipeWriter>>,
    /// `None` once it was closed.
    pub(super) stdout: Option<Source<PipeReader>>,
    stdin_buffer: BufferSize,
    stdout_buffer: BufferSize,
    pub(super) stderr: Option<Source<PipeReader>>,
    pub(crate) from: Inbox,
    pub(crate) to: Outbox,
    /// How much was for it that it did not hear, when it heard no more.
    discarded: usize,
    /// When its stdin was closed because the app has said all.
    pub(super) input_ended: Option<Moment>,
    /// How its first process ended.
    pub(super) exit: Option<Exit>,
    /// What its warden reported and nobody has dealt with.
    pub(super) reports: VecDeque<Report>,
    stderr_lines: Inbox,
    pub(crate) stderr_tail: StderrTail,
    /// What it was started from.
    pub(super) sources: Sources,
    /// When that was last checked_at at; nobody does where it would not be replaced for it.
    checked_at: Option<Instant>,
}

impl Server {
    pub(super) fn start(
        spec: &Spec,
        records: Option<&RuntimeDir>,
        reactor: &Reactor,
    ) -> io::Result<Server> {
        // Before the start: what changes meanwhile has changed.
        let sources = spec.sources();
        let launch = ServerLaunch {
            command: spec.command.clone(),
            env: None,
            cwd: spec.cwd.clone(),
            ladder: spec.ladder,
            detached: spec.detached,
            records,
            stdin_size: PIPE_SIZE,
        };
        let (tree, pipes) = launch.start()?;
        let stdin = Source::new(reactor, pipes.stdin, EventSource::ServerStdin.token());
        let stdout = Source::new(reactor, pipes.stdout, EventSource::ServerStdout.token());
        let stderr = Source::new(reactor, pipes.stderr, EventSource::ServerStderr.token());
        Ok(Server {
            tree: Source::new(reactor, tree, EventSource::Reports.token()),
            stdin: Some(stdin),
            stdout: Some(stdout),
            stderr: Some(stderr),
            stdin_buffer: BufferSize::default(),
            stdout_buffer: BufferSize::default(),
            from: Inbox::default(),
            to: Outbox::default(),
            discarded: 0,
            input_ended: None,
            exit: None,
            reports: VecDeque::new(),
            stderr_lines: Inbox::default(),
            stderr_tail: StderrTail::default(),
            sources,
            checked_at: spec.replace.then(Instant::now),
        })
    }

    /// Whether it is to be replaced: its files are not what it was started from.
    pub(crate) fn is_outdated(&mut self) -> bool {
        if self
            .checked_at
            .is_none_or(|checked_at| checked_at.elapsed() < CHECK_INTERVAL)
        {
            return false;
        }
        self.checked_at = Some(Instant::now());
        self.sources.check() == FileChange::Changed
    }

    /// Writes what it takes now. A server that reads no more is not an error: its stdout tells.
    pub(crate) fn flush(&mut self) {
        let Some(stdin) = &self.stdin else {
            return self.discard_queued();
        };
        let buffer = &self.stdin_buffer;
        let written = self.to.flush(|bytes| {
            buffer.fit(stdin, bytes.len());
            (&**stdin).write(bytes)
        });
        if written.is_err() {
            // It hears nothing any more: whoever asks it something would wait for ever.
            self.close_stdin();
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
        let buffer = &self.stdin_buffer;
        self.to.send_ahead(from_app, |bytes| {
            buffer.fit(stdin, from_app.len());
            (&**stdin).write(bytes)
        });
    }

    /// Closes its stdin: the app has said all.
    pub(super) fn end_input(&mut self, now: Moment) {
        if self.stdin.take().is_some() {
            self.input_ended = Some(now);
        }
    }

    /// Says nothing more to one that is going, and sees what it has not heard.
    pub(crate) fn close_stdin(&mut self) {
        if let Some(stdin) = self.stdin.take() {
            // What was sent ahead has not been said yet.
            self.discarded += bytes_left_in(&stdin).saturating_sub(self.to.ahead());
        }
        self.discard_queued();
    }

    /// How many of the last bytes that were for it, it is known not to have heard. Once it was hung up on.
    pub(crate) fn unread_bytes(&self) -> usize {
        match self.to.matches_queued_lines() {
            true => self.discarded,
            false => 0,
        }
    }

    fn discard_queued(&mut self) {
        self.discarded += self.to.len();
        self.to.clear();
    }

    /// Reads what it said; `false` once its stdout is closed.
    pub(crate) fn read(&mut self) -> bool {
        let Some(stdout) = &self.stdout else {
            return false;
        };
        let read = self.from.read(stdout);
        self.stdout_buffer.fit(stdout, self.from.len());
        let open = is_still_open(&read);
        if !open {
            self.stdout = None;
            self.from.end_server_output();
        }
        open
    }

    /// Whether there is something to read now, be it the end.
    pub(crate) fn has_output(&self) -> bool {
        let stdout = self.stdout.as_ref();
        stdout.is_some_and(|stdout| is_readable_within(stdout, Duration::ZERO))
    }

    /// Whether no process could read its stdin any more.
    pub(super) fn stdin_is_closed(&self) -> bool {
        let stdin = self.stdin.as_ref();
        stdin.is_some_and(|stdin| reader_is_gone_within(stdin, Duration::ZERO))
    }

    /// Reads what it said on stderr, and hands over every whole line.
    pub(crate) fn read_stderr(&mut self, mut each: impl FnMut(&[u8])) {
        let Some(stderr) = &self.stderr else {
            return;
        };
        let read = self.stderr_lines.read(stderr);
        while let Some(line) = self.stderr_lines.next_line() {
            each(line);
            self.stderr_tail.push(line);
        }
        let open = is_still_open(&read);
        if !open {
            self.stderr = None;
        }
        if (!open || self.stderr_lines.len() > MAX_STDERR_LINE)
            && let Some(rest) = self.stderr_lines.rest()
        {
            each(&rest);
            self.stderr_tail.push(&rest);
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
    pub(crate) fn has_report(&self) -> bool {
        !self.reports.is_empty() || self.has_report_within(Duration::ZERO)
    }

    /// How its first process ended, if that is known soon. Its output has ended, so it will be.
    pub(crate) fn await_exit(&mut self) -> Option<Exit> {
        const SOON: Duration = Duration::from_millis(200);
        let until = Instant::now() + SOON;
        while self.has_report_within(until.saturating_duration_since(Instant::now()))
            && let Some(report) = self.tree.next_report().ok().flatten()
        {
            self.reports.push_back(report);
            if let Some(Report::Exited(exit)) = self.reports.back() {
                return Some(*exit);
            }
        }
        None
    }

    /// Whether a report that nobody has dealt with says that it could not be started.
    pub(super) fn was_refused(&self) -> bool {
        let mut reports = self.reports.iter();
        reports.any(|report| matches!(report, Report::Refused(_)))
    }

    fn has_report_within(&self, within: Duration) -> bool {
        is_readable_within(&self.tree, within)
    }
}

/// How much is in a pipe that nobody will ever read: nobody is left who could. A process that ends lets go of its stdout
/// before its stdin, and on a busy machine not in the same moment.
fn bytes_left_in(pipe: &Source<PipeWriter>) -> usize {
    const CLOSE_TIME: Duration = Duration::from_millis(200);
    match reader_is_gone_within(pipe, CLOSE_TIME) {
        true => unread_bytes(pipe),
        false => 0,
    }
}
