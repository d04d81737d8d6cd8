//! Detached services that outlived their server, as `ps` lists and `stop` ends them.

use std::io;
use std::time::Duration;

use kennel_sys::process::{Identity, ProcessRef};
use kennel_sys::runtime_dir::RuntimeDir;
use kennel_sys::tree::{self, Kept, Reason};

use crate::daemon::ServerState;
use crate::listing::{Entry, Mode, Server};
use crate::sources::Sources;

/// How long a service has to end after SIGTERM.
const AFTER_TERM: Duration = Duration::from_secs(5);

/// All that live. Looking changes nothing.
pub(crate) fn entries(user: &RuntimeDir) -> Vec<Entry> {
    living(user).iter().map(entry).collect()
}

pub(crate) fn living(user: &RuntimeDir) -> Vec<Kept> {
    let trees = user.existing_subdir("trees").ok().flatten();
    let kept = trees.map(|trees| tree::kept(&trees).unwrap_or_default());
    kept.unwrap_or_default()
}

/// The service that an entry lists, to be ended; `None` if it is gone. An error where it is left alone.
pub(crate) fn process_to_end(entry: &Entry) -> io::Result<Option<ProcessRef>> {
    match on_record(entry) {
        Some((_, service)) => service.process_to_end(),
        None => Ok(None),
    }
}

/// Ends the service that an entry lists, with everything below it. Whether it is gone, or why it is left alone.
pub(crate) fn end(entry: &Entry) -> Result<bool, String> {
    let Some((user, service)) = on_record(entry) else {
        return Ok(true);
    };
    match user.existing_subdir("trees") {
        Ok(Some(trees)) => match tree::end_kept(&trees, &service, AFTER_TERM) {
            Err(error) if error.kind() == io::ErrorKind::PermissionDenied => Err(error.to_string()),
            ended => Ok(ended.unwrap_or(false)),
        },
        _ => Ok(false),
    }
}

fn on_record(entry: &Entry) -> Option<(RuntimeDir, Kept)> {
    let identity: Identity = entry.identity.as_deref()?.parse().ok()?;
    let user = RuntimeDir::find_of_user().ok().flatten()?;
    let mut services = living(&user).into_iter();
    let service = services.find(|it| it.identity == identity)?;
    Some((user, service))
}

fn entry(kept: &Kept) -> Entry {
    let pid = kept.identity.pid();
    let name = match kept.command.is_empty() {
        true => pid.to_string(),
        false => kept.command.clone(),
    };
    Entry {
        key: format!("kept-{pid}"),
        name,
        command: vec![kept.command.clone()],
        cwd: String::new(),
        mode: Mode::Kept,
        daemon_pid: None,
        version: env!("CARGO_PKG_VERSION").to_owned(),
        since: kept.since,
        state: "kept".to_owned(),
        why: Some(why(kept.reason).to_owned()),
        dedicated_for_now: false,
        owner: None,
        servers: vec![Server {
            state: ServerState {
                pid,
                class: None,
                since: kept.since,
                requests: 0,
                latency_us: None,
                clients: 0,
                sources: Sources::default(),
            },
            rss_bytes: None,
            stale: false,
            stopped: None,
        }],
        clients: Vec::new(),
        saved_bytes: 0,
        restarts: 0,
        last_restart: None,
        idle_since: None,
        guarded: None,
        stopped: None,
        identity: Some(kept.identity.to_string()),
    }
}

fn why(reason: Reason) -> &'static str {
    match reason {
        Reason::Used => "a process outside its server's tree was connected to it",
        Reason::Known => "it is a service that is known to be shared",
        Reason::Unseen => "it listens, and who is connected cannot be seen",
        Reason::Asked => "--detached keep",
    }
}
