//! Which processes belong to a tree on record that nobody is in charge of, as the kernel confirms it.
//!
//! Any process of the user can write a record, and a record can name any process. So a process is a member only if
//! - its environment has the tree's own cookie, and it is not at a terminal: a server's session has none, and a copied
//!   environment has the cookie too; or
//! - its environment has no cookie, and it is in the session that the tree's server led, holds one of the server's
//!   pipes or sockets, and started after the server and not before the record was written; or
//! - it is below one of these.
//!
//! Never a member: a process with the cookie of another tree, and a process below a living warden.

use std::collections::{HashMap, HashSet};
use std::io;
use std::time::{Duration, SystemTime};

use super::daemons::{is_daemon, is_warden};
use super::record::Record;
use super::{COOKIE, descendants};
use crate::linux as os;
use crate::process::ProcessRef;

/// Most ancestors that are looked at.
const MOST_ANCESTORS: usize = 64;

/// How long after the start of a server its record may be written, on a busy machine.
const RECORD_DELAY: Duration = Duration::from_secs(10);

/// What the environment of a process says about the tree it was started in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Mark {
    This,
    Another,
    /// It has none, or it cannot be read.
    None,
}

impl Mark {
    fn of(pid: u32, cookie: &str) -> Mark {
        match os::environ_value(pid, COOKIE) {
            Ok(Some(value)) if value == cookie.as_bytes() => Mark::This,
            Ok(Some(_)) => Mark::Another,
            Ok(None) | Err(_) => Mark::None,
        }
    }
}

/// The living members of a tree.
pub(super) fn living(cookie: &str, record: &Record) -> io::Result<Vec<ProcessRef>> {
    let spared = our_own_line()?;
    let table = Table::now(cookie, record)?;
    let mut members: Vec<ProcessRef> = Vec::new();
    for pid in os::processes()? {
        if !spared.contains(&pid) && table.belongs(pid) {
            // Asked again behind the reference: now the answer is about this very process (rule 6).
            let found = ProcessRef::open(pid).ok();
            members.extend(found.filter(|process| table.belongs(pid) && process.is_alive()));
        }
    }
    let mut known: HashSet<u32> = members.iter().map(ProcessRef::pid).collect();
    let mut next = 0;
    while next < members.len() {
        let parent = members[next].pid();
        for &pid in table.children.get(&parent).into_iter().flatten() {
            let spared = spared.contains(&pid) || is_daemon(pid);
            if spared || !known.insert(pid) {
                continue;
            }
            let Ok(process) = ProcessRef::open(pid) else {
                continue;
            };
            let is_child = os::stat(pid).is_ok_and(|stat| stat.parent == parent)
                && Mark::of(pid, cookie) != Mark::Another;
            if is_child && process.is_alive() && members[next].is_alive() {
                members.push(process);
            }
        }
        next += 1;
    }
    Ok(members)
}

/// Processes with the tree's cookie that are at a terminal: shown, and left alone.
pub(super) fn at_terminals(cookie: &str, record: &Record) -> io::Result<Vec<u32>> {
    let table = Table::now(cookie, record)?;
    let mut found = os::processes()?;
    found.retain(|&pid| Mark::of(pid, cookie) == Mark::This && table.is_at_a_terminal(pid));
    Ok(found)
}

/// The process table at one moment, and the tree that is looked for in it.
struct Table<'a> {
    cookie: &'a str,
    record: &'a Record,
    children: HashMap<u32, Vec<u32>>,
    parents: HashMap<u32, u32>,
    /// The session on record was led by a server, as far as the kernel can still say.
    session_fits: bool,
}

impl Table<'_> {
    fn now<'a>(cookie: &'a str, record: &'a Record) -> io::Result<Table<'a>> {
        let children = descendants::children_by_parent()?;
        let parents = children
            .iter()
            .flat_map(|(&parent, children)| children.iter().map(move |&child| (child, parent)))
            .collect();
        Ok(Table {
            cookie,
            record,
            children,
            parents,
            session_fits: session_fits(cookie, record),
        })
    }

    fn belongs(&self, pid: u32) -> bool {
        let confirmed = match Mark::of(pid, self.cookie) {
            Mark::This => !self.is_at_a_terminal(pid),
            Mark::Another => false,
            Mark::None => self.session_fits && self.is_in_session(pid),
        };
        confirmed && !is_daemon(pid) && !self.is_below_a_warden(pid)
    }

    /// Whether a process has a controlling terminal, or is below one with the cookie that has. A server's own terminals
    /// end with it: the kernel hangs them up, and then they are nobody's.
    fn is_at_a_terminal(&self, pid: u32) -> bool {
        let mut current = pid;
        for _ in 0..MOST_ANCESTORS {
            match os::stat(current) {
                Ok(stat) if stat.terminal => return true,
                Ok(stat) if Mark::of(stat.parent, self.cookie) == Mark::This => {
                    current = stat.parent;
                }
                _ => return false,
            }
        }
        false
    }

    /// Whether a process is in the server's session, with one of the pipes that the server was handed. A server's
    /// session has no terminal, and nobody in it is older than the server.
    fn is_in_session(&self, pid: u32) -> bool {
        let server_start = self.record.server.and_then(|server| server.start);
        let fits = |stat: os::ProcessStat| {
            stat.session == self.record.session
                && !stat.terminal
                && server_start.is_some_and(|start| start <= stat.start)
                && self.is_younger_than_the_record(stat.start)
        };
        os::stat(pid).is_ok_and(fits) && os::holds_stream(pid, &self.record.pipes).unwrap_or(false)
    }

    /// Whether a process with this start, in ticks, started after the record was written, as far as the clock can tell. A
    /// warden writes it when it starts the server; one that somebody else wrote later is about processes that were there.
    fn is_younger_than_the_record(&self, start: u64) -> bool {
        let ticks = os::now_in_ticks().saturating_sub(start);
        let age = ticks / rustix::param::clock_ticks_per_second().max(1);
        let started = SystemTime::now().checked_sub(Duration::from_secs(age));
        match (self.record.written, started) {
            (Some(written), Some(started)) => written <= started + RECORD_DELAY,
            _ => false,
        }
    }

    /// Whether a living warden is in charge of a process, whatever the record says. A warden that is itself a member of
    /// this tree is not: it belongs to a tree inside it.
    fn is_below_a_warden(&self, pid: u32) -> bool {
        let mut current = pid;
        for _ in 0..MOST_ANCESTORS {
            // A process that started after the table was read is not in it.
            let known = self.parents.get(&current).copied();
            let parent = known.or_else(|| os::stat(current).ok().map(|stat| stat.parent));
            let Some(parent) = parent else {
                return false;
            };
            if is_warden(parent) && Mark::of(parent, self.cookie) != Mark::This {
                return true;
            }
            current = parent;
        }
        false
    }
}

/// Whether the session on record is one that a warden made: its server led it, and is gone, as it is after its warden's
/// end; or it lives, and has the tree's cookie.
fn session_fits(cookie: &str, record: &Record) -> bool {
    let Some(server) = record.server else {
        return false;
    };
    if record.session == 0 || server.pid() != record.session {
        return false;
    }
    match ProcessRef::open(record.session) {
        Ok(leader) => {
            leader.identity().same_process(&server)
                && Mark::of(leader.pid(), cookie) == Mark::This
                && leader.is_alive()
        }
        Err(error) => error.kind() == io::ErrorKind::NotFound,
    }
}

/// We may ourselves have been started from inside such a tree: neither we nor our ancestors are members.
fn our_own_line() -> io::Result<HashSet<u32>> {
    let mut line = HashSet::from([std::process::id()]);
    let mut ancestor = ProcessRef::parent()?;
    while let Some(process) = ancestor {
        line.insert(process.pid());
        ancestor = ProcessRef::parent_of(&process).unwrap_or(None);
    }
    Ok(line)
}

#[cfg(test)]
mod tests {
    use std::io::{BufRead, BufReader, Write};
    use std::process::{Child, Stdio};

    use kennel_testkit::{Scope, wait_for};

    use super::*;
    use crate::detached::Detached;
    use crate::tree::Ladder;
    use crate::tree::warden::{Orders, Place, Recording};

    const TREE: &str = "6666666666666666666666666666666a";

    /// A shell that starts a process with the cookie of [`TREE`] for each line that it reads, and tells its pid.
    const STARTER: &str =
        "while read line; do KENNEL_TREE=$TREE sleep 1000 <&- >&- & echo $!; done; kill $!";

    /// Has it start one; returns its pid, once it runs.
    fn starts_one(starter: &mut Child, told: &mut impl BufRead) -> u32 {
        let stdin = starter.stdin.as_mut().expect("a pipe");
        stdin.write_all(b"go\n").expect("it reads");
        let mut line = String::new();
        told.read_line(&mut line).expect("a pid");
        let pid = line.trim().parse().expect("a pid");
        // Before that it is a copy of the shell, with the shell's environment.
        wait_for("it is no copy of the shell any more", || {
            (os::command_name(pid).as_deref() == Some("sleep")).then_some(())
        });
        pid
    }

    #[test]
    fn a_process_that_starts_below_a_living_warden_while_it_is_looked_for_is_no_member() {
        let scope = Scope::new("members");
        // A warden is known by its name and by its arguments: `kennel warden ORDERS`.
        let shell = std::fs::canonicalize("/bin/sh").expect("a shell");
        std::os::unix::fs::symlink(shell, scope.path("kennel")).expect("a link");
        std::fs::write(scope.path("warden"), STARTER).expect("a script");
        let me = *ProcessRef::me().expect("we are here").identity();
        let orders = Orders {
            control: 0,
            served: me,
            ladder: Ladder::default(),
            detached: Detached::default(),
            place: Place::new(None).expect("a cookie"),
            recording: Recording::BestEffort,
        };
        let start = |words: &[&str]| {
            // Away from the terminal that the tests may have been started at.
            let mut starter = scope
                .command("setsid")
                .arg(scope.path("kennel"))
                .args(words)
                .current_dir(scope.dir())
                .env("TREE", TREE)
                .stdin(Stdio::piped())
                .stdout(Stdio::piped())
                .spawn()
                .expect("a shell");
            let told = BufReader::new(starter.stdout.take().expect("a pipe"));
            (starter, told)
        };
        let (mut warden, mut from_warden) = start(&["warden", &orders.to_string()]);
        let (mut other, mut from_other) = start(&["-c", STARTER]);

        let record = Record::new(me, me, Detached::default());
        let table = Table::now(TREE, &record).expect("the process table");
        let below = starts_one(&mut warden, &mut from_warden);
        let beside = starts_one(&mut other, &mut from_other);
        let found = (table.belongs(below), table.belongs(beside));
        for mut starter in [warden, other] {
            drop(starter.stdin.take());
            starter.wait().expect("our child");
        }
        assert_eq!(found, (false, true));
    }

    #[test]
    fn a_process_that_is_older_than_the_record_is_no_member_by_its_session() {
        let scope = Scope::new("members");
        let mut leader = scope
            .command("setsid")
            .args(["sh", "-c", "exec 3<&0; sleep 1000 <&3 & echo $!; read word"])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("a shell");
        let (session, server) = (leader.id(), ProcessRef::open(leader.id()));
        let server = *server.expect("it waits for a word").identity();
        let mut stdin = leader.stdin.take().expect("a pipe");
        let mut told = BufReader::new(leader.stdout.take().expect("a pipe"));
        let mut line = String::new();
        told.read_line(&mut line).expect("a pid");
        let pid: u32 = line.trim().parse().expect("a pid");
        stdin.write_all(b"go\n").expect("it reads");
        leader.wait().expect("our child");
        let pipe = rustix::fs::fstat(&stdin).expect("a pipe");
        let me = *ProcessRef::me().expect("we are here").identity();
        let now = SystemTime::now();
        let belongs = |written| {
            let record = Record {
                server: Some(server),
                session,
                pipes: vec![(pipe.st_dev, pipe.st_ino)],
                written,
                ..Record::new(me, me, Detached::default())
            };
            let table = Table::now(TREE, &record).expect("the process table");
            table.belongs(pid)
        };
        let later = now + Duration::from_secs(3600);
        let found = [Some(now), Some(later), None].map(belongs);
        let left = ProcessRef::open(pid).expect("it runs");
        left.signal(crate::Signal::KILL).expect("it is ours");
        drop(stdin);
        assert_eq!(found, [true, false, false]);
    }
}
