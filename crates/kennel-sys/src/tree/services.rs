//! Which detached descendants are services for others, and so outlive their tree (the exception of rule 2).
//!
//! The unit is a session other than the server's: a launcher that detached itself and the server it waits for are one
//! service. A session is kept if one of its processes is a known service, or has a listening socket with a
//! connection from outside the tree, or has one where connections cannot be seen.

use std::collections::{HashMap, HashSet};

use super::descendants;
use super::mark::{Terms, TreeMark};
use crate::detached::{Detached, Reason};
use crate::os::{self, Connections};
use crate::process::{Identity, ProcessRef};

/// Names of programs that serve everyone of their user, whoever started them.
const KNOWN_NAMES: &[&str] = &[
    "gpg-agent",
    "ssh-agent",
    "keyboxd",
    "dirmngr",
    "scdaemon",
    "adb",
    "sccache",
    "watchman",
    "buckd",
    "buck2d",
    "buck2-daemon",
    "bazel",
    "VBCSCompiler",
    "codegraph",
    "godot-ai",
];

/// Words of a command line that name such a service behind an interpreter: whole words, or the last part of a path.
const KNOWN_WORDS: &[&str] = &[
    "org.gradle.launcher.daemon.bootstrap.GradleDaemon",
    "org.jetbrains.kotlin.daemon.KotlinCompileDaemon",
    "com.facebook.buck.cli.bootstrapper.ClassLoaderBootstrapper",
    "VBCSCompiler.dll",
    "codegraph",
    "codegraph.js",
    "godot-ai",
    "godot_ai",
];

/// How much of a command line is looked through for a known word: the program's name is not behind hundreds of them.
const MOST_WORDS: usize = 256;

/// Which processes of a tree are kept.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Rules {
    /// Which detached processes.
    pub(super) policy: Detached,
    /// The sessions that servers lead: a process in another one is detached.
    pub(super) sessions: Vec<u32>,
    pub(super) source: Source,
}

/// Where rules come from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Source {
    /// The orders of the warden itself: what its processes say counts for nothing.
    Orders,
    /// A record. Any process of the user can write one, so the environment of a process that tells it overrides this.
    Record,
}

impl Rules {
    /// The rules for one process.
    pub(super) fn for_process(&self, pid: u32) -> Rules {
        let told = || TreeMark::of(pid)?.terms;
        match self.source {
            Source::Orders => self.clone(),
            Source::Record => told().map_or_else(|| self.clone(), Rules::from),
        }
    }
}

impl From<Terms> for Rules {
    fn from(Terms { policy, session }: Terms) -> Rules {
        Rules {
            policy,
            sessions: vec![session],
            source: Source::Record,
        }
    }
}

/// The first processes of each detached session that is kept, with why. `members` are all processes of the tree;
/// `server_gone` says whether the direct process of the server has ended.
pub(super) fn kept_among(
    members: &[Identity],
    rules: &Rules,
    server_gone: bool,
) -> Vec<(Identity, Reason)> {
    let mut by_session: HashMap<u32, Vec<Candidate>> = HashMap::new();
    for &identity in members {
        let Rules {
            policy, sessions, ..
        } = rules.for_process(identity.pid());
        // A process that ended while it was looked at is nobody's service.
        if let Ok(stat) = os::stat(identity.pid())
            && policy != Detached::End
            && !sessions.contains(&stat.session)
        {
            by_session.entry(stat.session).or_default().push(Candidate {
                identity,
                parent: stat.parent,
                policy,
            });
        }
    }
    if by_session.is_empty() {
        return Vec::new();
    }
    let tree = Sockets::of(members);
    let mut kept = Vec::new();
    for unit in by_session.values() {
        let mut reasons = unit.iter().filter_map(|it| match it.policy {
            Detached::Keep => Some(Reason::Asked),
            Detached::AutoGuard if server_gone => {
                is_known(it.identity.pid()).then_some(Reason::Known)
            }
            _ => reason_to_keep(it.identity.pid(), &tree),
        });
        let Some(reason) = reasons.next() else {
            continue;
        };
        let inside = |pid: u32| unit.iter().any(|it| it.identity.pid() == pid);
        let first = unit.iter().filter(|it| !inside(it.parent));
        // Asked again: now the answers were about these very processes (rule 6).
        let alive =
            first.filter(|it| ProcessRef::find(&it.identity).is_ok_and(|found| found.is_some()));
        kept.extend(alive.map(|it| (it.identity, reason)));
    }
    kept
}

/// A detached process of a tree.
struct Candidate {
    identity: Identity,
    parent: u32,
    policy: Detached,
}

/// The sockets of a tree, and all connections there are, as far as they can be seen.
struct Sockets {
    of: HashMap<u32, Vec<u64>>,
    all: HashSet<u64>,
    connections: Option<Connections>,
    namespace: Option<u64>,
}

impl Sockets {
    fn of(members: &[Identity]) -> Sockets {
        let held = |it: &Identity| Some((it.pid(), os::sockets_of(it.pid()).ok()?));
        let of: HashMap<u32, Vec<u64>> = members.iter().filter_map(held).collect();
        Sockets {
            all: of.values().flatten().copied().collect(),
            of,
            connections: Connections::now().ok(),
            namespace: os::network_namespace_of("self").ok(),
        }
    }
}

fn reason_to_keep(pid: u32, tree: &Sockets) -> Option<Reason> {
    if is_known(pid) {
        return Some(Reason::Known);
    }
    // One whose descriptors are closed to us cannot be told from one without sockets.
    let sockets = tree.of.get(&pid).filter(|sockets| !sockets.is_empty())?;
    let theirs = os::network_namespace_of(&pid.to_string()).ok();
    match &tree.connections {
        Some(connections) if theirs == tree.namespace => {
            let is_used = |it: &Connections| it.has_peer_outside(sockets, &tree.all);
            // The kernel lists one end of a connection after the other: the end of a process that exits in between is
            // nobody's, and is seen to be so by a second look.
            let again = || Connections::now().map_or(true, |connections| is_used(&connections));
            (is_used(connections) && again()).then_some(Reason::Used)
        }
        _ => {
            let listening = os::listening_in_namespace_of(pid).ok()?;
            let listens = sockets.iter().any(|inode| listening.contains(inode));
            listens.then_some(Reason::Unseen)
        }
    }
}

/// Whether a service that was kept is still what it was kept for: it, or a process of its session below it, is a known
/// service or listens.
pub(super) fn still_serves(process: &ProcessRef) -> bool {
    let session = |pid: u32| os::stat(pid).ok().map(|stat| stat.session);
    let own = session(process.pid());
    let mut family = descendants::below(process).unwrap_or_default();
    family.retain(|it| session(it.pid()) == own);
    let mut pids = family.iter().map(ProcessRef::pid).chain([process.pid()]);
    own.is_some() && pids.any(|pid| is_known(pid) || listens(pid))
}

/// Whether a process has a listening socket, as far as that can be seen.
fn listens(pid: u32) -> bool {
    let sockets = os::sockets_of(pid).unwrap_or_default();
    // No need to read the table of all sockets for a process without any.
    !sockets.is_empty()
        && os::listening_in_namespace_of(pid)
            .is_ok_and(|listening| sockets.iter().any(|inode| listening.contains(inode)))
}

/// Whether a process is a service that is known to be shared: by the name of its program; or by a word of its command
/// line, and then only if it listens. Any process can have any argument.
fn is_known(pid: u32) -> bool {
    let words = os::command_line(pid).unwrap_or_default();
    let words: Vec<&str> = words.iter().take(MOST_WORDS).map(String::as_str).collect();
    is_named_known(os::command_name(pid).as_deref(), &words)
        || (mentions_known(&words) && listens(pid))
}

fn last_part(word: &str) -> &str {
    word.rsplit('/').next().unwrap_or_default()
}

/// Whether the program itself has the name of a known service.
fn is_named_known(name: Option<&str>, words: &[&str]) -> bool {
    let program = words.first().map(|word| last_part(word));
    // Bazel's server calls itself `bazel(workspace)`.
    let program = program.and_then(|program| program.split('(').next());
    let mut known = KNOWN_NAMES.iter();
    known.any(|known| name == Some(*known) || program == Some(*known))
}

/// Whether an argument is the name of a known service: what an interpreter was given to run, or any other word.
fn mentions_known(words: &[&str]) -> bool {
    let mut arguments = words.iter().skip(1);
    arguments.any(|word| KNOWN_WORDS.contains(&last_part(word)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn known_services_are_known_by_the_name_of_their_program() {
        for (name, line) in [
            ("gpg-agent", "gpg-agent --homedir /home/a/.gnupg --daemon"),
            ("adb", "adb -L tcp:5037 fork-server server --reply-fd 4"),
            ("java", "bazel(thing) --add-opens=java.base/java.nio"),
            ("node", "/usr/bin/codegraph serve --mcp"),
        ] {
            let words: Vec<&str> = line.split(' ').collect();
            assert!(is_named_known(Some(name), &words), "{line}");
        }
    }

    #[test]
    fn a_known_service_behind_its_interpreter_must_listen_too() {
        for (name, line) in [
            (
                "java",
                "/opt/java/bin/java -Xmx512m org.gradle.launcher.daemon.bootstrap.GradleDaemon 8.5",
            ),
            ("node", "node /home/a/.npm/bin/codegraph serve --mcp"),
            ("python3", "/usr/bin/python3 -m godot_ai --transport http"),
            ("sleep", "sleep 1000 codegraph"),
        ] {
            let words: Vec<&str> = line.split(' ').collect();
            assert!(mentions_known(&words), "{line}");
            assert!(!is_named_known(Some(name), &words), "{line}");
        }
    }

    #[test]
    fn others_are_not_known_though_they_mention_one() {
        for (name, line) in [
            ("node", "node server.js --agent gpg-agent-like"),
            ("sleep", "sleep 1000"),
            ("sh", "sh -c adb-wrapper"),
            ("chrome", "/opt/chrome --remote-debugging-port=0"),
        ] {
            let words: Vec<&str> = line.split(' ').collect();
            assert!(!is_named_known(Some(name), &words), "{line}");
            assert!(!mentions_known(&words), "{line}");
        }
    }
}
