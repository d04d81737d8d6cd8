//! Which processes belong to a tree on record that nobody is in charge of, as the kernel confirms it.
//!
//! Any process of the user can write a record, and a record can name any process. So a process is a member only if
//! - its environment has the tree's own cookie, and was not copied to a process outside the tree (`atd` copies that of
//!   its jobs). It was where the process is at a terminal, for a server's session has none, or where its parent lives and
//!   is neither of the tree nor a process that adopts others; or
//! - its environment has no cookie, and the living leader of its session has the tree's own: only descendants of a leader
//!   can be in its session; or
//! - it is below one of these.
//!
//! Session, pipes and start times that a record names confirm nobody: a planter can read them of any process, and can
//! fill in a file without changing its times, through a memory mapping.
//!
//! Never a member: a process with the cookie of another tree, and a process below a living warden.

use std::collections::{HashMap, HashSet};
use std::{fmt, io};

use super::daemons::{is_daemon, is_warden};
use super::mark::TreeMark;
use super::walk::children_by_parent;
use crate::os;
use crate::process::{ProcessRef, is_reaper};

/// Most ancestors that are looked at.
const MOST_ANCESTORS: usize = 64;

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
        match TreeMark::of(pid) {
            Some(mark) if mark.cookie == cookie => Mark::This,
            Some(_) => Mark::Another,
            None => Mark::None,
        }
    }
}

/// The living members of a tree.
pub(super) fn living(cookie: &str) -> io::Result<Vec<ProcessRef>> {
    let table = Table::now(cookie)?;
    let spared = &table.our_line;
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

/// Processes with a copy of the tree's cookie: shown, and left alone.
pub(super) fn copies(cookie: &str) -> io::Result<Vec<(u32, Copied)>> {
    let table = Table::now(cookie)?;
    let copy = |pid: u32| {
        let marked = !table.our_line.contains(&pid) && Mark::of(pid, cookie) == Mark::This;
        Some((pid, marked.then(|| table.copied(pid)).flatten()?))
    };
    Ok(os::processes()?.into_iter().filter_map(copy).collect())
}

/// Why the cookie of a process is taken for a copy.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Copied {
    /// It, or a process with the cookie above it, has a controlling terminal.
    Terminal,
    /// Its parent, or that of a process with the cookie above it, lives outside the tree.
    ParentOutside(u32),
}

impl fmt::Display for Copied {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Copied::Terminal => f.write_str("a terminal"),
            Copied::ParentOutside(pid) => write!(f, "a parent outside of it: process {pid}"),
        }
    }
}

/// The process table at one moment, and the tree that is looked for in it.
struct Table<'a> {
    cookie: &'a str,
    children: HashMap<u32, Vec<u32>>,
    parents: HashMap<u32, u32>,
    our_line: HashSet<u32>,
}

impl Table<'_> {
    fn now(cookie: &str) -> io::Result<Table<'_>> {
        let children = children_by_parent()?;
        let parents = children
            .iter()
            .flat_map(|(&parent, children)| children.iter().map(move |&child| (child, parent)))
            .collect();
        Ok(Table {
            cookie,
            children,
            parents,
            our_line: our_own_line()?,
        })
    }

    fn belongs(&self, pid: u32) -> bool {
        let confirmed = match Mark::of(pid, self.cookie) {
            Mark::This => self.copied(pid).is_none(),
            Mark::Another => false,
            Mark::None => self.is_led_by_a_member(pid),
        };
        confirmed && !is_daemon(pid) && !self.is_below_a_warden(pid)
    }

    /// Whether a process with the cookie has a copy of it, and why. A server's own terminals end with it: the kernel hangs
    /// them up, and then they are nobody's.
    fn copied(&self, pid: u32) -> Option<Copied> {
        let mut current = pid;
        for _ in 0..MOST_ANCESTORS {
            let stat = os::stat(current).ok()?;
            if stat.terminal {
                return Some(Copied::Terminal);
            }
            let parent = stat.parent;
            // systemd has started it, and not adopted it: the variables of its manager were imported from the tree.
            if os::environ_has(current, &format!("SYSTEMD_EXEC_PID={current}")) {
                return Some(Copied::ParentOutside(parent));
            }
            if Mark::of(parent, self.cookie) != Mark::This && self.adopts(parent, current, &stat) {
                return None;
            }
            match self.marked_above(current) {
                Some(marked) => current = marked,
                None => return Some(Copied::ParentOutside(parent)),
            }
        }
        None
    }

    /// The nearest process with the cookie above a process.
    fn marked_above(&self, pid: u32) -> Option<u32> {
        let mut current = pid;
        for _ in 0..MOST_ANCESTORS {
            current = os::stat(current).ok()?.parent;
            if Mark::of(current, self.cookie) == Mark::This {
                return Some(current);
            }
        }
        None
    }

    /// Whether a process without the cookie may have adopted `child`, whose parent it is.
    fn adopts(&self, parent: u32, child: u32, stat: &crate::process::ProcessStat) -> bool {
        // Only `setsid` leaves a session, and then leads another one: the parent that the child had was in the child's.
        let from_another_session = || {
            stat.session != child
                && os::session_of(parent).is_some_and(|session| session != stat.session)
        };
        // A process that is ending shows no environment any more. Its children are adopted in a moment.
        let is_ending = || os::command_line(parent).is_none();
        // Whoever adopted the processes of an app that was killed often is above the app's next start.
        is_reaper(parent)
            || os::is_kennel(parent)
            || self.our_line.contains(&parent)
            || from_another_session()
            || is_ending()
    }

    /// Whether the living leader of a process's session has the cookie. Its pid is nobody else's while the session is there.
    fn is_led_by_a_member(&self, pid: u32) -> bool {
        let is_led = |stat: crate::process::ProcessStat| {
            stat.session != pid
                && !stat.terminal
                && Mark::of(stat.session, self.cookie) == Mark::This
                && self.copied(stat.session).is_none()
        };
        os::stat(pid).is_ok_and(is_led)
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
    use crate::tree::warden::{Orders, Place, Recording};
    use crate::tree::{COOKIE, Ladder};

    const TREE: &str = "6666666666666666666666666666666a";

    /// A shell that starts a process with the cookie of [`TREE`] for each line that it reads, and tells its pid.
    const STARTER: &str =
        "while read line; do KENNEL_TREE=$TREE sleep 1000 <&- >&- & echo $!; done; kill $!";

    /// The same, but its processes are adopted by somebody else at once.
    const LEAVER: &str =
        "while read line; do (KENNEL_TREE=$TREE sleep 1000 <&- >&- & echo $!); done";

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
        let (mut other, mut from_other) = start(&["-c", LEAVER]);

        let table = Table::now(TREE).expect("the process table");
        let below = starts_one(&mut warden, &mut from_warden);
        let beside = starts_one(&mut other, &mut from_other);
        wait_for("it is adopted", || {
            let stat = os::stat(beside).ok()?;
            (os::session_of(stat.parent) != Some(stat.session)).then_some(())
        });
        let found = (table.belongs(below), table.belongs(beside));
        for mut starter in [warden, other] {
            drop(starter.stdin.take());
            starter.wait().expect("our child");
        }
        let left = ProcessRef::open(beside).expect("it runs");
        left.signal(crate::Signal::KILL).expect("it is ours");
        assert_eq!(found, (false, true));
    }

    #[test]
    fn a_process_without_the_cookie_is_a_member_only_while_the_leader_of_its_session_has_it() {
        for (cookie, expected) in [(TREE, [true, false]), ("f", [false, false])] {
            let scope = Scope::new("members");
            // The subshell ends at once: the process is no child of the leader.
            let script = "exec 3<&0; (env -i sleep 1000 <&3 & echo $!); read word";
            let mut leader = scope
                .command("setsid")
                .args(["sh", "-c", script])
                .env(COOKIE, cookie)
                .stdin(Stdio::piped())
                .stdout(Stdio::piped())
                .spawn()
                .expect("a shell");
            let mut stdin = leader.stdin.take().expect("a pipe");
            let mut told = BufReader::new(leader.stdout.take().expect("a pipe"));
            let mut line = String::new();
            told.read_line(&mut line).expect("a pid");
            let pid: u32 = line.trim().parse().expect("a pid");
            wait_for("it is no copy of the shell any more", || {
                (os::command_name(pid).as_deref() == Some("sleep")).then_some(())
            });
            let belongs = || {
                let table = Table::now(TREE).expect("the process table");
                table.belongs(pid)
            };
            let with_leader = belongs();
            stdin.write_all(b"go\n").expect("it reads");
            leader.wait().expect("our child");
            let found = [with_leader, belongs()];
            let left = ProcessRef::open(pid).expect("it runs");
            left.signal(crate::Signal::KILL).expect("it is ours");
            assert_eq!(found, expected, "{cookie}");
        }
    }
}
