//! Kept services: detached services that outlived their server, as `ps` lists and `stop` ends them.

use std::io;
use std::time::Duration;

use kennel_sys::process::{Identity, ProcessRef};
use kennel_sys::runtime_dir::RuntimeDir;
use kennel_sys::tree::{self, Kept, Reason};

use crate::listing::{Entry, Mode, Server, TREES};

/// How long a service has to end after SIGTERM.
const AFTER_TERM: Duration = Duration::from_secs(5);

/// All running kept services. Creates and changes nothing.
pub(crate) fn entries(user: &RuntimeDir) -> Vec<Entry> {
    living(user).iter().map(entry).collect()
}

pub(crate) fn living(user: &RuntimeDir) -> Vec<Kept> {
    let trees = user.existing_subdir(TREES).ok().flatten();
    let kept = trees.map(|trees| tree::kept(&trees).unwrap_or_default());
    kept.unwrap_or_default()
}

/// The process of a listed service, to be ended; `None` if it has exited. An error if it must not be ended.
pub(crate) fn process_to_end(entry: &Entry) -> io::Result<Option<ProcessRef>> {
    match on_record(entry) {
        Some((_, service)) => service.process_to_end(),
        None => Ok(None),
    }
}

/// Ends a listed service with its descendants. Returns whether it has ended, or why it was not touched.
pub(crate) fn end(entry: &Entry) -> Result<bool, String> {
    let Some((user, service)) = on_record(entry) else {
        return Ok(true);
    };
    match user.existing_subdir(TREES) {
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
        command: vec![kept.command.clone()],
        state: "kept".to_owned(),
        why: Some(why(kept.reason).to_owned()),
        servers: vec![Server::new(pid, kept.since)],
        identity: Some(kept.identity.to_string()),
        ..Entry::new(Mode::Kept, pid, name, kept.since)
    }
}

fn why(reason: Reason) -> &'static str {
    match reason {
        Reason::Used => "a process outside its server's tree was connected to it",
        Reason::Known => "it is a service that is known to be shared",
        Reason::Unseen => "it listens, and its connections cannot be seen",
        Reason::Asked => "--detached keep",
    }
}
