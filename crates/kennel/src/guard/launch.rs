//! Starts the server under its warden, with the stdio of this process or with a log.

use std::io;
use std::path::PathBuf;
use std::time::Duration;

use kennel_guard::{Held, Owner};
use kennel_sys::lock::Lock;
use kennel_sys::process::ProcessRef;
use kennel_sys::signals::Signals;
use kennel_sys::stdio::{self, Stdio};
use kennel_sys::tree::{self, Detached, Ladder, Launch, Tree};

use super::Args;
use super::answer::{Answer, AnswerTo};
use super::life::Life;
use super::output::Output;
use super::record::{self, Record, RecordFile};
use super::sessions::Sessions;
use super::start::RuntimeDirs;
use super::watch::{Await, CAUGHT_SIGNALS, Stage, Watch};
use crate::sources::Sources;
use crate::timers;

/// The locks that a start needs: no other server holds the ports or the state, or can take them before this one listens.
pub(super) struct Ready {
    pub(super) dirs: Option<RuntimeDirs>,
    pub(super) name: String,
    pub(super) cwd: PathBuf,
    pub(super) command_hash: String,
    pub(super) starting: Vec<Lock>,
    pub(super) held: Vec<Held>,
    pub(super) legacy: Vec<Lock>,
    pub(super) replaced: Option<u32>,
}

impl Ready {
    /// Starts the server under its warden.
    pub(super) fn launch(
        self,
        args: Args,
        owner: Option<Owner>,
        answer_to: &mut AnswerTo,
    ) -> Result<Watch, Answer> {
        let failed = |what: &str, error: io::Error| Answer::failed(1, format!("{what}: {error}"));
        let detached = matches!(answer_to, AnswerTo::Pipe(_));
        let record = self.record(&args, owner.as_ref(), detached);
        let (output, stdio) = self.stdio(detached)?;
        let kept = self.keep(record, detached)?;
        tree::become_subreaper().map_err(|error| failed("cannot set up a process tree", error))?;
        let signals = Signals::catch(&CAUGHT_SIGNALS)
            .map_err(|error| failed("cannot catch signals", error))?;
        let life = Life::new(owner, args.grace);
        let tree = self.start(&args, stdio, detached);
        let tree = match tree {
            Ok(tree) => tree,
            Err(error) => {
                if let Some(kept) = kept {
                    kept.ended(&format!("not started: {error}"));
                }
                return Err(failed("the server cannot be started", error));
            }
        };
        let awaited = (detached || !args.ports.is_empty()).then(Await::begin);
        Ok(Watch {
            tree,
            signals,
            answer_to: std::mem::replace(answer_to, AnswerTo::Stdio),
            output,
            kept,
            json: args.json,
            name: self.name,
            sessions: Sessions::on(&args.ports),
            named: args.ports,
            stop_after: args.stop_after,
            ready_timeout: args.ready_timeout,
            replaced: self.replaced,
            starting: self.starting,
            dirs: self.dirs,
            _held: self.held,
            _legacy: self.legacy,
            life,
            server: None,
            pending_signals: Some(Vec::new()),
            exit: None,
            stage: Stage::Serving,
            awaited,
            listened: false,
            unrecorded: None,
        })
    }

    /// Writes the guard's record before anything is started. Without a record, `kennel ps` and `kennel stop` do not see
    /// a detached server, and nothing else could end it: it is not started. A server in the foreground can be ended by
    /// the process that started it; it is started with a warning.
    fn keep(&self, record: Record, detached: bool) -> Result<Option<RecordFile>, Answer> {
        let Some(dirs) = &self.dirs else {
            return Ok(None);
        };
        if detached && record.entry.identity.is_none() {
            let error = ProcessRef::me()
                .err()
                .unwrap_or_else(io::Error::last_os_error);
            return Err(not_recorded(&self.name, "was not started", &error));
        }
        match RecordFile::keep(&dirs.user, record) {
            Ok(kept) => Ok(Some(kept)),
            Err(error) if detached => {
                record::discard(&dirs.user);
                Err(not_recorded(&self.name, "was not started", &error))
            }
            Err(error) => {
                crate::warn(&format!("`kennel ps` will not show it: {error}"));
                Ok(None)
            }
        }
    }

    fn start(&self, args: &Args, stdio: Stdio, detached: bool) -> io::Result<Tree> {
        let launch = Launch {
            server: args.command.clone(),
            warden: vec![crate::this_build::itself().into(), "warden".into()],
            stdio,
            env: None,
            cwd: None,
            // Its stdin belongs to another process, so the stop ladder begins with SIGTERM.
            ladder: Ladder {
                after_eof: Duration::ZERO,
                after_term: args.stop_after,
            },
            detached: detached_policy(args),
            records: self.dirs.as_ref().map(|dirs| dirs.trees.handle()),
        };
        match detached {
            true => launch.start_recorded(),
            false => launch.start(),
        }
    }

    fn record(&self, args: &Args, owner: Option<&Owner>, detached: bool) -> Record {
        let (identity, gone) = match owner {
            Some(Owner::Alive(process)) => (Some(*process.identity()), false),
            Some(Owner::Gone) => (None, true),
            None => (None, false),
        };
        let pid = identity.map(|identity| identity.pid());
        Record {
            entry: record::entry(&self.name, &args.command, &self.cwd, pid),
            command_hash: self.command_hash.clone(),
            owner: identity.map(|identity| identity.to_string()),
            owner_was_gone: gone,
            ports: args.ports.clone(),
            grace_ms: u64::try_from(args.grace.as_millis()).unwrap_or(u64::MAX),
            sources: Sources::of(&args.command, &self.cwd, |name| std::env::var_os(name)),
            detached,
            ending: false,
            ended: None,
        }
    }

    /// The stdio of this process, or of a detached server: no input, and a pipe to the log.
    fn stdio(&self, detached: bool) -> Result<(Option<Output>, Stdio), Answer> {
        let failed = |error: io::Error| {
            Answer::failed(1, format!("cannot set up stdio for the server: {error}"))
        };
        if !detached {
            return Ok((None, stdio::inherited().map_err(failed)?));
        }
        let dirs = self.dirs.as_ref().ok_or_else(|| {
            Answer::failed(1, "--detach needs a runtime directory for the server's log")
        })?;
        let dir =
            record::place(&dirs.user).map_err(|error| Answer::failed(1, error.to_string()))?;
        record::clear(&dir);
        let (output, [stdout, stderr]) =
            Output::new(&dir).map_err(|words| Answer::failed(1, words))?;
        let stdin = stdio::nothing().map_err(failed)?;
        Ok((Some(output), [stdin, stdout.into(), stderr.into()]))
    }
}

/// The result for a detached server whose record cannot be written; `what` happened to it.
pub(super) fn not_recorded(name: &str, what: &str, why: &dyn std::fmt::Display) -> Answer {
    Answer::failed(
        1,
        format!(
            "{name} {what}: its record cannot be written, so that `kennel ps` and `kennel stop` would not find it: \
             {why}; make room there, or run it in the foreground, without --detach"
        ),
    )
}

/// The detached processes to keep after the server. The server itself may be detached.
fn detached_policy(args: &Args) -> Detached {
    let variable = || timers::value("detached", &None, timers::detached).unwrap_or_default();
    match args.detached.or_else(variable) {
        None | Some(Detached::Auto) => Detached::AutoGuard,
        Some(chosen) => chosen,
    }
}
