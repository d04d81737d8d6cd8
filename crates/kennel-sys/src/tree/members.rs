//! The members of an abandoned tree, as the kernel confirms them.
//!
//! Any process of the user can write a record, and a record can name any process. So a process is a member only if
//! - its environment has the cookie of the tree, and the cookie was not copied to a process outside the tree (`atd` copies
//!   the environment of its jobs). It was copied if the process is at a terminal, because the session of a server has none,
//!   or if its parent lives, is not in the tree, and adopts no processes; or
//! - its environment has no cookie, and the living leader of its session has the cookie of the tree: only descendants of
//!   the leader can be in its session; or
//! - it is the child of the tree's warden that was to become the server, by its name and by the arguments of the warden; or
//! - it is a descendant of a member.
//!
//! Session, pipes and start times in a record prove nothing: an attacker can read them of any process, and can fill in a
//! file without changing its times, through a memory mapping.
//!
//! Never a member: a process with the cookie of another tree, and a descendant of a living warden.

use std::collections::{HashMap, HashSet};
use std::time::Duration;
use std::{fmt, io};

use super::daemons::{is_daemon, is_warden, tree_to_start};
use super::mark::TreeMark;
use super::process_table::{ProcessTable, Step};
use crate::events;
use crate::os;
use crate::process::ProcessRef;

/// Maximum number of ancestors to search.
const MAX_ANCESTORS: usize = 64;

/// The tree that the environment of a process names.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Mark {
    This,
    Another,
    /// The environment has no cookie or cannot be read.
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

/// How often a process shows no command line before it counts as ending: while it executes a program, it shows none either.
const LOOKS_AT_PARENT: u32 = 5;
/// Time between these looks: most programs are executed in less.
const BETWEEN_LOOKS: Duration = Duration::from_millis(3);

/// Whether a process shows no command line. Waits if so.
fn shows_nothing(pid: u32) -> bool {
    let shows_nothing = os::command_line(pid).is_none();
    if shows_nothing {
        // Without the wait, this is one more look.
        let _ = events::sleep(&[], &[], Some(BETWEEN_LOOKS));
    }
    shows_nothing
}

/// The living members of a tree whose warden is dead.
pub(super) fn living(cookie: &str) -> io::Result<Vec<ProcessRef>> {
    let table = Table::now(cookie)?;
    let spared = &table.own_pids;
    let mut members: Vec<ProcessRef> = Vec::new();
    for pid in os::processes()? {
        if !spared.contains(&pid) && table.is_member(pid) {
            // Checked again after the process was opened, so the answer is about this process (rule 6).
            let found = ProcessRef::open(pid).ok();
            members.extend(found.filter(|process| table.is_member(pid) && process.is_alive()));
        }
    }
    let mut known: HashSet<u32> = members.iter().map(ProcessRef::pid).collect();
    let mut judge = |process: &ProcessRef, _: &ProcessRef| {
        let pid = process.pid();
        let is_member = !spared.contains(&pid)
            && !is_daemon(pid)
            && Mark::of(pid, cookie) != Mark::Another
            && known.insert(pid);
        if is_member { Step::Collect } else { Step::Skip }
    };
    let below: Vec<ProcessRef> = members
        .iter()
        .flat_map(|member| table.processes.descendants(member, &mut judge))
        .collect();
    members.extend(below);
    Ok(members)
}

/// A process that was born just now.
pub(super) enum Newborn {
    /// A member of the tree.
    Member(ProcessRef),
    /// It had the cookie of the tree, and ended before the rest could be checked.
    Gone,
    /// No member of the tree.
    Other,
}

/// Judges processes that were born just now, which may end at any moment.
pub(super) struct Newborns<'a>(Table<'a>);

impl Newborns<'_> {
    pub(super) fn of(cookie: &str) -> io::Result<Newborns<'_>> {
        // Nothing is known of them before: their parents are looked up one by one.
        Ok(Newborns(Table {
            cookie,
            parents: HashMap::new(),
            processes: ProcessTable::default(),
            own_pids: own_pids_with_ancestors()?,
        }))
    }

    /// Judges a process, by its own environment alone.
    pub(super) fn judge(&self, pid: u32) -> Newborn {
        let Newborns(table) = self;
        if table.own_pids.contains(&pid) || Mark::of(pid, table.cookie) != Mark::This {
            return Newborn::Other;
        }
        // Checked after the process was opened, so the answer is about this process (rule 6).
        let Ok(process) = ProcessRef::open(pid) else {
            return Newborn::Gone;
        };
        let is_member = Mark::of(pid, table.cookie) == Mark::This && table.is_member(pid);
        match (process.is_alive(), is_member) {
            (true, true) => Newborn::Member(process),
            (true, false) => Newborn::Other,
            (false, _) => Newborn::Gone,
        }
    }
}

/// Processes with a copy of the tree's cookie. They are shown and left alone.
pub(super) fn copies(cookie: &str) -> io::Result<Vec<(u32, CopyReason)>> {
    let table = Table::now(cookie)?;
    let copy = |pid: u32| {
        let marked = !table.own_pids.contains(&pid) && Mark::of(pid, cookie) == Mark::This;
        Some((pid, marked.then(|| table.copy_reason(pid)).flatten()?))
    };
    Ok(os::processes()?.into_iter().filter_map(copy).collect())
}

/// Why the cookie of a process counts as a copy.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum CopyReason {
    /// It, or a process with the cookie above it, has a controlling terminal.
    Terminal,
    /// Its parent, or that of a process with the cookie above it, lives outside the tree.
    ParentOutside(u32),
}

impl fmt::Display for CopyReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            CopyReason::Terminal => f.write_str("a terminal"),
            CopyReason::ParentOutside(pid) => write!(f, "a parent outside of it: process {pid}"),
        }
    }
}

/// The process table at one moment, and the cookie of the tree to search for.
struct Table<'a> {
    cookie: &'a str,
    processes: ProcessTable,
    parents: HashMap<u32, u32>,
    own_pids: HashSet<u32>,
}

impl Table<'_> {
    fn now(cookie: &str) -> io::Result<Table<'_>> {
        let processes = ProcessTable::now()?;
        Ok(Table {
            cookie,
            parents: processes.parents(),
            processes,
            own_pids: own_pids_with_ancestors()?,
        })
    }

    fn is_member(&self, pid: u32) -> bool {
        let confirmed = match Mark::of(pid, self.cookie) {
            Mark::This => self.copy_reason(pid).is_none(),
            // It has the environment of the warden.
            _ if tree_to_start(pid).is_some_and(|tree| tree == self.cookie) => true,
            Mark::Another => false,
            Mark::None => self.leader_has_cookie(pid),
        };
        confirmed && !is_daemon(pid) && !self.has_living_warden(pid)
    }

    /// Whether a process with the cookie has a copy of it, and why. The terminals that a server makes end with it: the
    /// kernel then detaches the processes from them.
    fn copy_reason(&self, pid: u32) -> Option<CopyReason> {
        let mut current = pid;
        for _ in 0..MAX_ANCESTORS {
            let stat = os::stat(current).ok()?;
            if stat.terminal {
                return Some(CopyReason::Terminal);
            }
            let parent = stat.parent;
            // The service manager got its variables from a process of the tree.
            if os::started_by_service_manager(current) {
                return Some(CopyReason::ParentOutside(parent));
            }
            if Mark::of(parent, self.cookie) != Mark::This && self.adopts(parent, current, &stat) {
                return None;
            }
            match self.nearest_marked_ancestor(current) {
                Some(marked) => current = marked,
                None => return Some(CopyReason::ParentOutside(parent)),
            }
        }
        None
    }

    /// The nearest ancestor with the cookie.
    fn nearest_marked_ancestor(&self, pid: u32) -> Option<u32> {
        let mut current = pid;
        for _ in 0..MAX_ANCESTORS {
            current = os::stat(current).ok()?.parent;
            if Mark::of(current, self.cookie) == Mark::This {
                return Some(current);
            }
        }
        None
    }

    /// Whether a process without the cookie may have adopted `child`, whose parent it is.
    fn adopts(&self, parent: u32, child: u32, stat: &crate::process::ProcessStat) -> bool {
        // Only `setsid` changes the session, and then the process leads it. So the original parent was in the child's
        // session.
        let from_another_session = || {
            stat.session != child
                && os::session_of(parent).is_some_and(|session| session != stat.session)
        };
        // A process that is ending shows no environment any more. Its children are adopted in a moment.
        let is_ending = || (0..LOOKS_AT_PARENT).all(|_| shows_nothing(parent));
        // The subreaper of an app that was often killed is an ancestor of the app's next start.
        os::is_reaper(parent)
            || os::is_kennel(parent)
            || self.own_pids.contains(&parent)
            || from_another_session()
            || is_ending()
    }

    /// Whether the living leader of a process's session has the cookie. Its pid is not reused while the session exists.
    fn leader_has_cookie(&self, pid: u32) -> bool {
        let is_led = |stat: crate::process::ProcessStat| {
            stat.session != pid
                && !stat.terminal
                && Mark::of(stat.session, self.cookie) == Mark::This
                && self.copy_reason(stat.session).is_none()
        };
        os::stat(pid).is_ok_and(is_led)
    }

    /// Whether a living warden is in charge of a process, whatever the record says. A warden that is itself a member of
    /// this tree does not count: its tree is inside this one.
    fn has_living_warden(&self, pid: u32) -> bool {
        let mut current = pid;
        for _ in 0..MAX_ANCESTORS {
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

/// The pids of this process and its ancestors. We may have been started inside such a tree, and are not members.
fn own_pids_with_ancestors() -> io::Result<HashSet<u32>> {
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
    use crate::tree::warden_args::{RecordPlace, Recording, WardenArgs};
    use crate::tree::{COOKIE, Ladder};

    const TREE: &str = "6666666666666666666666666666666a";

    /// A shell that starts a process with the cookie of [`TREE`] for each line that it reads, and prints its pid.
    const STARTER: &str =
        "while read line; do KENNEL_TREE=$TREE sleep 1000 <&- >&- & echo $!; done; kill $!";

    /// The same, but another process adopts its processes at once.
    const DAEMONIZER: &str =
        "while read line; do (KENNEL_TREE=$TREE sleep 1000 <&- >&- & echo $!); done";

    /// Makes the shell start a process; returns its pid once it runs.
    fn start_process(starter: &mut Child, stdout: &mut impl BufRead) -> u32 {
        let stdin = starter.stdin.as_mut().expect("a pipe");
        stdin.write_all(b"go\n").expect("it reads");
        let mut line = String::new();
        stdout.read_line(&mut line).expect("a pid");
        let pid = line.trim().parse().expect("a pid");
        // Until its exec it is a copy of the shell, with the shell's environment.
        wait_for("it is no copy of the shell any more", || {
            (os::command_name(pid).as_deref() == Some("sleep")).then_some(())
        });
        pid
    }

    #[test]
    fn a_process_started_below_a_living_warden_during_the_search_is_no_member() {
        let scope = Scope::new("members");
        // A warden is known by its name and by its arguments: `kennel warden ORDERS`.
        let shell = std::fs::canonicalize("/bin/sh").expect("a shell");
        std::os::unix::fs::symlink(shell, scope.path("kennel")).expect("a link");
        std::fs::write(scope.path("warden"), STARTER).expect("a script");
        let me = *ProcessRef::me().expect("we are here").identity();
        let warden_args = WardenArgs {
            control: 0,
            served: me,
            ladder: Ladder::default(),
            detached: Detached::default(),
            place: RecordPlace::new(None).expect("a cookie"),
            recording: Recording::BestEffort,
        };
        let start = |words: &[&str]| {
            // Not at the terminal that the tests may have been started at.
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
            let stdout = BufReader::new(starter.stdout.take().expect("a pipe"));
            (starter, stdout)
        };
        let (mut warden, mut warden_stdout) = start(&["warden", &warden_args.to_string()]);
        let (mut other, mut other_stdout) = start(&["-c", DAEMONIZER]);

        let table = Table::now(TREE).expect("the process table");
        let below = start_process(&mut warden, &mut warden_stdout);
        let beside = start_process(&mut other, &mut other_stdout);
        wait_for("it is adopted", || {
            let stat = os::stat(beside).ok()?;
            (os::session_of(stat.parent) != Some(stat.session)).then_some(())
        });
        let found = (table.is_member(below), table.is_member(beside));
        let newborns = Newborns::of(TREE).expect("our ancestors");
        let newborn = |pid| matches!(newborns.judge(pid), Newborn::Member(_));
        let found_as_newborn = (newborn(below), newborn(beside));
        for mut starter in [warden, other] {
            drop(starter.stdin.take());
            starter.wait().expect("our child");
        }
        let left = ProcessRef::open(beside).expect("it runs");
        left.signal(crate::Signal::KILL).expect("it is ours");
        assert_eq!(found, (false, true));
        assert_eq!(found_as_newborn, found);
    }

    #[test]
    fn a_child_that_was_to_become_the_server_of_this_tree_alone_is_a_member() {
        let scope = Scope::new("members");
        let shell = std::fs::canonicalize("/bin/sh").expect("a shell");
        for name in ["kennel-start", "kennel-warden"] {
            std::os::unix::fs::symlink(&shell, scope.path(name)).expect("a link");
        }
        std::fs::write(scope.path("warden"), "echo; read word").expect("a script");
        let start = |name: &str, cookie: &str| {
            let warden_args = WardenArgs {
                control: 0,
                served: *ProcessRef::me().expect("we are here").identity(),
                ladder: Ladder::default(),
                detached: Detached::default(),
                place: RecordPlace {
                    cookie: cookie.to_owned(),
                    records: None,
                },
                recording: Recording::BestEffort,
            };
            let mut copy = scope
                .command("setsid")
                .arg(scope.path(name))
                .args(["warden", &warden_args.to_string()])
                .current_dir(scope.dir())
                // As of a warden inside another tree.
                .env(COOKIE, "7".repeat(32))
                .stdin(Stdio::piped())
                .stdout(Stdio::piped())
                .spawn()
                .expect("a shell");
            let mut stdout = BufReader::new(copy.stdout.take().expect("a pipe"));
            stdout.read_line(&mut String::new()).expect("it runs");
            copy
        };
        let mut copies = [
            start("kennel-start", TREE),
            start("kennel-start", &"8".repeat(32)),
            start("kennel-warden", TREE),
        ];
        let table = Table::now(TREE).expect("the process table");
        let found = copies.each_ref().map(|copy| table.is_member(copy.id()));
        for copy in &mut copies {
            drop(copy.stdin.take());
            copy.wait().expect("our child");
        }
        assert_eq!(found, [true, false, false]);
    }

    #[test]
    fn a_process_without_the_cookie_is_a_member_while_its_session_leader_has_it() {
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
            let mut stdout = BufReader::new(leader.stdout.take().expect("a pipe"));
            let mut line = String::new();
            stdout.read_line(&mut line).expect("a pid");
            let pid: u32 = line.trim().parse().expect("a pid");
            wait_for("it is no copy of the shell any more", || {
                (os::command_name(pid).as_deref() == Some("sleep")).then_some(())
            });
            let belongs = || {
                let table = Table::now(TREE).expect("the process table");
                table.is_member(pid)
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
