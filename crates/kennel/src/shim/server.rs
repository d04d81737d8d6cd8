//! The dedicated server of a session, under its warden.

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

/// Minimum time between two checks of the server's files.
const CHECK_INTERVAL: Duration = Duration::from_secs(1);

/// The server of a session, and how to run it.
#[derive(Debug, Clone)]
pub(crate) struct SessionSpec {
    pub(crate) command: Vec<OsString>,
    pub(crate) cwd: Option<PathBuf>,
    pub(crate) ladder: Ladder,
    /// The detached services that outlive the server.
    pub(crate) detached: Detached,
    /// The requests that are replayed to the next server.
    pub(crate) replay: Replay,
    /// Whether to replace a server whose files changed.
    pub(crate) replace: bool,
    /// Maximum bytes of a line.
    pub(crate) max_line: usize,
    /// The key under which the server's era is stored.
    pub(crate) key: String,
    /// Hibernate after this time without a request.
    pub(crate) hibernate: Option<Duration>,
    /// Why the session is dedicated, if that was decided before it began.
    pub(crate) why_solo: Option<String>,
}

impl SessionSpec {
    /// The files the server is started from.
    fn sources(&self) -> Sources {
        let cwd = self.cwd.clone().or_else(|| std::env::current_dir().ok());
        let variable = |name: &str| std::env::var_os(name);
        Sources::of(&self.command, &cwd.unwrap_or_default(), variable)
    }

    /// The session's record for `kennel ps`. It does not contain the environment.
    pub(super) fn entry(
        &self,
        server: Option<(u32, Sources)>,
        why: Option<String>,
        app: Option<App>,
        stats: &SessionStats,
    ) -> Option<Entry> {
        let text = |argument: &OsString| argument.to_string_lossy().into_owned();
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

/// A running server, with its input and output.
#[derive(Debug)]
pub(crate) struct Server {
    pub(super) tree: Source<Tree>,
    /// `None` once its input was ended.
    pub(super) stdin: Option<Source<PipeWriter>>,
    /// `None` once it was closed.
    pub(super) stdout: Option<Source<PipeReader>>,
    stdin_buffer: BufferSize,
    stdout_buffer: BufferSize,
    pub(super) stderr: Option<Source<PipeReader>>,
    pub(crate) from: Inbox,
    pub(crate) to: Outbox,
    /// Bytes the server had not read when its stdin was closed.
    discarded: usize,
    /// When its stdin was closed because the app closed ours.
    pub(super) input_ended: Option<Moment>,
    /// How its first process ended.
    pub(super) exit: Option<Exit>,
    /// Reports of its warden that are not handled yet.
    pub(super) reports: VecDeque<Report>,
    stderr_lines: Inbox,
    pub(crate) stderr_tail: StderrTail,
    /// The files that it was started from.
    pub(super) sources: Sources,
    /// When those were last checked; `None` if a change would not replace the server.
    checked_at: Option<Instant>,
}

impl Server {
    pub(super) fn start(
        spec: &SessionSpec,
        records: Option<&RuntimeDir>,
        reactor: &Reactor,
    ) -> io::Result<Server> {
        // Before the start, so that a change during the start is noticed.
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

    /// Whether to replace the server because its files changed. Checks at most once each [`CHECK_INTERVAL`].
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

    /// Writes queued bytes until the write would block. A closed stdin is not an error here: its stdout shows the end.
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
            // It reads nothing any more: a request to it would wait for ever.
            self.close_stdin();
            let _ = self.tree.stop();
        }
    }

    /// Sends the beginning of a long request before its end was read, so that the server reads it meanwhile. If the line turns
    /// out invalid, the server gets a malformed line. Responses to server requests are not sent ahead: they may need another
    /// id. The last byte is sent only with the newline: a server may act on the line without waiting for its newline.
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

    /// Closes its stdin because all input was sent.
    pub(super) fn end_input(&mut self, now: Moment) {
        if self.stdin.take().is_some() {
            self.input_ended = Some(now);
        }
    }

    /// Closes the stdin of a server that is ending, and counts the bytes that it has not read.
    pub(crate) fn close_stdin(&mut self) {
        if let Some(stdin) = self.stdin.take() {
            // The bytes sent ahead are not a complete line yet.
            self.discarded += unread_bytes_of(&stdin).saturating_sub(self.to.ahead());
        }
        self.discard_queued();
    }

    /// Number of the last bytes for the server that it certainly did not read; 0 if that is unknown. Call it after
    /// [`close_stdin`](Self::close_stdin).
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

    /// Reads its output once; `false` once its stdout is closed.
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

    /// Whether its stdout is readable now, perhaps at its end.
    pub(crate) fn has_output(&self) -> bool {
        let stdout = self.stdout.as_ref();
        stdout.is_some_and(|stdout| is_readable_within(stdout, Duration::ZERO))
    }

    /// Whether no process can read its stdin any more.
    pub(super) fn stdin_is_closed(&self) -> bool {
        let stdin = self.stdin.as_ref();
        stdin.is_some_and(|stdin| reader_is_gone_within(stdin, Duration::ZERO))
    }

    /// Reads its stderr once, and calls `each` with every whole line.
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

    /// The next report of its warden, if there is one. Call it only when [`Tree`] is ready: else it blocks.
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

    /// How its first process ended, if that is reported soon. Its stdout is closed, so it should be.
    pub(crate) fn await_exit(&mut self) -> Option<Exit> {
        const MAX_WAIT: Duration = Duration::from_millis(200);
        let until = Instant::now() + MAX_WAIT;
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

    /// Whether a report that is not handled yet says that it could not be started.
    pub(super) fn was_refused(&self) -> bool {
        let mut reports = self.reports.iter();
        reports.any(|report| matches!(report, Report::Refused(_)))
    }

    fn has_report_within(&self, within: Duration) -> bool {
        is_readable_within(&self.tree, within)
    }
}

/// Number of bytes in a pipe that has no reader any more; 0 while it has one. A process that ends closes its stdout before
/// its stdin, and on a busy machine not at the same moment.
fn unread_bytes_of(pipe: &Source<PipeWriter>) -> usize {
    const MAX_WAIT: Duration = Duration::from_millis(200);
    match reader_is_gone_within(pipe, MAX_WAIT) {
        true => unread_bytes(pipe),
        false => 0,
    }
}
