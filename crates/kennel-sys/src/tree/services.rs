//! Detached services: descendants that serve other processes, and so outlive their tree (the exception of rule 2).
//!
//! The unit is a session other than the server's: a detached launcher and the server that it waits for are one service. A
//! session is kept if one of its processes is a known service, or has a listening socket with a connection from outside the
//! tree, or has a listening socket whose connections cannot be seen.

use std::collections::{HashMap, HashSet};

use super::daemons::tree_to_start;
use super::descendants;
use super::mark::{Terms, TreeMark};
use crate::detached::{Detached, Reason};
use crate::os::{self, Connections};
use crate::process::{Identity, ProcessRef};

/// Names of programs that serve all processes of their user.
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

/// Arguments that name such a service run by an interpreter: whole words, or the last part of a path.
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

/// Maximum number of arguments to search for a known word.
const MAX_WORDS: usize = 256;

/// Decides which processes of a tree are kept.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Rules {
    /// The policy for detached processes.
    pub(super) policy: Detached,
    /// The sessions that servers lead: a process in another one is detached.
    pub(super) sessions: Vec<u32>,
    /// The trees, by their cookies: the child of a warden that has not executed the server yet is no service.
    pub(super) trees: Vec<String>,
    pub(super) source: Source,
}

/// The source of the rules.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Source {
    /// The arguments of the warden itself. The environment of a process is ignored.
    WardenArgs,
    /// A record. Any process of the user can write one, so rules in the environment of a process take precedence.
    Record,
}

impl Rules {
    /// The rules for one process.
    pub(super) fn for_process(&self, pid: u32) -> Rules {
        let told = || TreeMark::of(pid)?.terms;
        match self.source {
            Source::WardenArgs => self.clone(),
            Source::Record => told().map_or_else(|| self.clone(), Rules::from),
        }
    }
}

impl From<Terms> for Rules {
    fn from(Terms { policy, session }: Terms) -> Rules {
        Rules {
            policy,
            sessions: vec![session],
            trees: Vec::new(),
            source: Source::Record,
        }
    }
}

/// The topmost processes of each detached session to keep, with the reason. `members` are all processes of the tree;
/// `server_gone` is whether the direct child has ended.
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
        // A process that has ended by now serves nobody.
        if let Ok(stat) = os::stat(identity.pid())
            && policy != Detached::End
            && !sessions.contains(&stat.session)
            && !tree_to_start(identity.pid()).is_some_and(|tree| rules.trees.contains(&tree))
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
        // Checked again, so the facts are about these processes (rule 6).
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

/// The sockets of a tree, and all connections that can be seen.
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
    // A process whose descriptors cannot be read may have no sockets.
    let sockets = tree.of.get(&pid).filter(|sockets| !sockets.is_empty())?;
    let theirs = os::network_namespace_of(&pid.to_string()).ok();
    match &tree.connections {
        Some(connections) if theirs == tree.namespace => {
            let is_used = |it: &Connections| it.has_peer_outside(sockets, &tree.all);
            // The kernel lists the two ends of a connection one after the other. If a process exits in between, its end
            // belongs to no process, and a second look shows that.
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

/// Whether a kept service still has the reason for which it was kept: it, or a descendant in its session, is a known
/// service or listens.
pub(super) fn still_serves(process: &ProcessRef) -> bool {
    let session = |pid: u32| os::stat(pid).ok().map(|stat| stat.session);
    let own = session(process.pid());
    let mut family = descendants::below(process).unwrap_or_default();
    family.retain(|it| session(it.pid()) == own);
    let mut pids = family.iter().map(ProcessRef::pid).chain([process.pid()]);
    own.is_some() && pids.any(|pid| is_known(pid) || listens(pid))
}

/// Whether a process has a listening socket that can be seen.
fn listens(pid: u32) -> bool {
    let sockets = os::sockets_of(pid).unwrap_or_default();
    // Without sockets there is no need to read the table of all sockets.
    !sockets.is_empty()
        && os::listening_in_namespace_of(pid)
            .is_ok_and(|listening| sockets.iter().any(|inode| listening.contains(inode)))
}

/// Whether a process is a known shared service: by the name of its program, or by an argument if it also listens, because
/// any process can have any argument.
fn is_known(pid: u32) -> bool {
    let words = os::command_line(pid).unwrap_or_default();
    let words: Vec<&str> = words.iter().take(MAX_WORDS).map(String::as_str).collect();
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

/// Whether an argument is the name of a known service.
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
    fn programs_that_only_mention_a_known_service_are_not_known() {
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
