//! Doubts: reasons to spare a process that looks like an orphan. A process may still use it, or wait for it, in another way
//! than through its stdin and stdout. A fact that cannot be seen is a doubt too.

use std::cell::OnceCell;
use std::collections::{HashMap, HashSet};
use std::io;

use super::bonds::Bonds;
use super::shared::SharedObjects;
use super::state::{StateDoubts, unknown_fact};
use super::work::{OtherWriters, Work};
use crate::os::{self, Descriptor, FarEnd, FileKind, OpenFile, Sockets};
use crate::process::ProcessRef;

/// `/dev/null`, `zero`, `full`, `random` and `urandom`: devices that connect to no process.
const HARMLESS_DEVICES: [(u32, u32); 5] = [(1, 3), (1, 5), (1, 7), (1, 8), (1, 9)];
/// Kernel objects that only their holder uses.
const HARMLESS_OBJECTS: [&str; 2] = ["timerfd", "signalfd"];
/// The doubt about a process with unread input, whose sender may be gone.
const UNREAD: &str = "has not read all of its input";
/// The doubt about a process with an io_uring. Equal counts of submissions and completions would not prove it idle: one
/// submission can have many completions, and the kernel does not list timeouts in flight.
pub(super) const RING: &str = "has an io_uring, whose operations cannot be seen";
const STDIN: u32 = 0;
const STDOUT: u32 = 1;
const STDERR: u32 = 2;

/// State of the machine at one moment, to judge any number of processes.
pub(super) struct Snapshot {
    pub(super) sockets: Sockets,
    blocked: io::Result<HashMap<String, Vec<u32>>>,
    tables: OnceCell<Tables>,
    shared: SharedObjects,
    bonds: Bonds,
    watches: OnceCell<HashMap<u64, Vec<u32>>>,
    events: OnceCell<HashMap<u64, Vec<u32>>>,
    inodes: OnceCell<HashMap<u64, Vec<(u32, Descriptor)>>>,
    /// The pids of suspects and their descendants. If only these have a file or memory open too, that is no doubt.
    pub(super) suspects: HashSet<u32>,
}

/// The result of judging a process tree.
pub(super) struct Judgement {
    /// Reasons to spare it, as text. Empty if no process can use it in any known way.
    pub(super) doubts: Vec<String>,
    /// Whether one of the doubts is that this user may not read something.
    pub(super) hidden: bool,
    /// Its work so far.
    pub(super) work: Work,
}

/// Open files of every process that shows them.
#[derive(Default)]
struct Tables {
    /// Holders of each file, by pid.
    holders: HashMap<String, Vec<(u32, Descriptor)>>,
    /// Processes with hidden open files, and their sessions.
    hidden: Vec<(u32, u32)>,
}

impl Snapshot {
    pub(super) fn take(suspects: HashSet<u32>) -> Snapshot {
        Snapshot {
            sockets: Sockets::all(),
            blocked: os::blocked_locks(),
            tables: OnceCell::new(),
            shared: SharedObjects::default(),
            bonds: Bonds::default(),
            watches: OnceCell::new(),
            events: OnceCell::new(),
            inodes: OnceCell::new(),
            suspects,
        }
    }

    /// Judges a process tree.
    pub(super) fn judge(&self, members: &[&ProcessRef]) -> Judgement {
        let mut doubts = Vec::new();
        let mut hidden = false;
        let mut work = Work::of(members);
        doubts.extend(work.unknown_work());
        if let Err(error) = &self.blocked {
            doubts.push(unknown_fact("which processes wait for locks", error));
        }
        let mut files: Vec<(u32, OpenFile)> = Vec::new();
        let pids: HashSet<u32> = members.iter().map(|member| member.pid()).collect();
        for member in members {
            let pid = member.pid();
            let state = StateDoubts::of(member);
            doubts.extend(state.doubts);
            hidden |= state.hidden;
            let is_living = |other: u32| !pids.contains(&other) && !self.suspects.contains(&other);
            let bonds = self.bonds.of(pid, &self.tables().holders, is_living);
            doubts.extend(bonds.into_iter().map(|why| format!("pid {pid} {why}")));
            match self.shared.doubts(pid, &pids, &self.suspects) {
                Ok(shared) => doubts.extend(shared.iter().map(|why| format!("pid {pid} {why}"))),
                Err(_) if !member.is_alive() => {}
                Err(error) => {
                    doubts.push(unknown_fact(
                        &format!("the memory that pid {pid} shares"),
                        &error,
                    ));
                }
            }
            match os::open_files(pid) {
                Ok(open) if open.is_empty() && member.is_alive() => {
                    doubts.push(format!("pid {pid} shows no open files"));
                }
                Ok(open) => files.extend(open.into_iter().map(|file| (pid, file))),
                Err(_) if !member.is_alive() => {}
                Err(error) => {
                    doubts.push(format!("the open files of pid {pid} are hidden ({error})"));
                }
            }
        }
        let tree = Tree {
            snapshot: self,
            pids,
            files: &files,
        };
        let of_files = files.iter().filter_map(|(pid, file)| {
            let why = tree.doubt(*pid, file)?;
            Some(format!("pid {pid} {why}"))
        });
        doubts.extend(of_files);
        for (pid, file) in &files {
            if let Some(stamp) = file.stamp.filter(|_| tree.is_own_output(file)) {
                let name = (*pid, file.fd, file.link.clone());
                work.add_file(name, stamp, tree.other_writers(file));
            }
        }
        // An io_uring is seen by its descriptor and by its memory.
        let mut known = HashSet::new();
        doubts.retain(|doubt| known.insert(doubt.clone()));
        Judgement {
            doubts,
            hidden,
            work,
        }
    }

    /// Processes that watch a file by inotify, by the number of the file.
    fn watches(&self) -> &HashMap<u64, Vec<u32>> {
        self.watches.get_or_init(|| {
            let mut watches: HashMap<u64, Vec<u32>> = HashMap::new();
            let holders = self.tables().holders.get("anon_inode:inotify");
            for &(pid, at) in holders.into_iter().flatten() {
                for inode in os::watched_inodes(at) {
                    watches.entry(inode).or_default().push(pid);
                }
            }
            watches
        })
    }

    /// Holders of each eventfd, by its number.
    fn events(&self) -> &HashMap<u64, Vec<u32>> {
        self.events.get_or_init(|| {
            let mut events: HashMap<u64, Vec<u32>> = HashMap::new();
            let holders = self.tables().holders.get("anon_inode:[eventfd]");
            for &(pid, at) in holders.into_iter().flatten() {
                if let Some(number) = os::event_number(at) {
                    events.entry(number).or_default().push(pid);
                }
            }
            events
        })
    }

    /// Whether this process has the same file open.
    fn is_open_here(&self, file: &OpenFile) -> bool {
        let me = std::process::id();
        self.holders(file).any(|(pid, _)| pid == me)
    }

    /// Holders of the same file, also by a hard link or through another mount.
    fn holders(&self, file: &OpenFile) -> impl Iterator<Item = (u32, Descriptor)> {
        let by_name = self.tables().holders.get(&file.link);
        let inode = file.inode.filter(|_| file.kind == FileKind::Regular);
        let by_inode = inode.and_then(|inode| self.inodes().get(&inode));
        // File systems use the same inode numbers: devices are compared only if numbers agree, because that may wait for a
        // disk.
        let identity = |at: Descriptor| os::fd_identity(at.task, at.fd).ok();
        let own = by_inode.and_then(|_| identity(file.descriptor));
        let by_inode = by_inode.into_iter().flatten().copied();
        let by_inode = by_inode.filter(move |&(_, at)| own.is_some() && identity(at) == own);
        by_name.into_iter().flatten().copied().chain(by_inode)
    }

    /// Holders of files with a path, by the number of the file.
    fn inodes(&self) -> &HashMap<u64, Vec<(u32, Descriptor)>> {
        self.inodes.get_or_init(|| {
            let mut inodes: HashMap<u64, Vec<(u32, Descriptor)>> = HashMap::new();
            let files = self.tables().holders.iter();
            let files = files.filter(|(link, _)| link.starts_with('/'));
            for &(pid, at) in files.flat_map(|(_, holders)| holders) {
                if let Some(inode) = os::inode_number(at) {
                    inodes.entry(inode).or_default().push((pid, at));
                }
            }
            inodes
        })
    }

    fn tables(&self) -> &Tables {
        self.tables.get_or_init(|| {
            let mut tables = Tables::default();
            for pid in os::processes().unwrap_or_default() {
                match links(pid) {
                    Ok(links) => {
                        for (descriptor, link) in links {
                            let holders = tables.holders.entry(link).or_default();
                            holders.push((pid, descriptor));
                        }
                    }
                    Err(_) => {
                        let session = os::stat(pid).map(|stat| stat.session);
                        tables.hidden.extend(session.ok().map(|id| (pid, id)));
                    }
                }
            }
            tables
        })
    }
}

/// Descriptors of a process with their links, and the files in its io_urings.
fn links(pid: u32) -> io::Result<Vec<(Descriptor, String)>> {
    let mut links = os::open_links(pid)?;
    let rings = links.iter().filter(|(_, link)| link == os::IO_URING);
    let rings: Vec<Descriptor> = rings.map(|(ring, _)| *ring).collect();
    for ring in rings {
        let files = os::registered_files(ring)?.into_iter();
        links.extend(files.map(|file| (ring, file)));
    }
    Ok(links)
}

/// A process tree that is judged, with its open files.
struct Tree<'a> {
    snapshot: &'a Snapshot,
    pids: HashSet<u32>,
    files: &'a [(u32, OpenFile)],
}

impl Tree<'_> {
    /// Why a process outside may need a descriptor of a member. The text completes "pid 4711 …".
    fn doubt(&self, pid: u32, file: &OpenFile) -> Option<String> {
        let OpenFile { fd, link, .. } = file;
        if let Some(waiter) = self.waiter(file) {
            return Some(format!(
                "holds a lock on {link} that pid {waiter} waits for"
            ));
        }
        if file.lease {
            return Some(format!("has a lease on {link}"));
        }
        let why = match &file.kind {
            FileKind::Pipe(inode) => return self.pipe(pid, file, *inode),
            FileKind::Socket(inode) => return self.socket(pid, file, *inode),
            FileKind::Regular => return self.regular(file),
            FileKind::KernelFile => {
                format!("has {link} open, a file of the kernel that it may watch")
            }
            FileKind::Directory => return None,
            FileKind::Device(major, minor) if HARMLESS_DEVICES.contains(&(*major, *minor)) => {
                return None;
            }
            FileKind::Kernel(_) if file.armed => {
                "has a timer, and may wake up by itself".to_owned()
            }
            FileKind::Kernel(_) if link == os::IO_URING => RING.to_owned(),
            FileKind::Kernel(name) if name == "eventfd" => return self.event(file),
            FileKind::Kernel(name) if name == "eventpoll" => return self.epoll(file),
            FileKind::Kernel(name) if HARMLESS_OBJECTS.contains(&name.as_str()) => return None,
            FileKind::Kernel(name) if name == "pidfd" => return self.supervised(file),
            FileKind::Kernel(name) if name == "inotify" || name == "fanotify" => {
                "watches files and may act on their changes".to_owned()
            }
            FileKind::MessageQueue => format!("has the message queue {link} open"),
            FileKind::NamedPipe => format!("has the named pipe {link} open"),
            FileKind::Device(..) => format!("has the device {link} open"),
            FileKind::Kernel(_) | FileKind::Unknown => {
                format!("has {link} open as descriptor {fd}")
            }
        };
        Some(why)
    }

    /// A process outside that waits for a lock on this file.
    fn waiter(&self, file: &OpenFile) -> Option<u32> {
        let blocked = self.snapshot.blocked.as_ref().ok()?;
        let blocked = |lock| blocked.get(lock).into_iter().flatten();
        let mut waiters = file.locks.iter().flat_map(blocked);
        waiters.find(|&pid| !self.pids.contains(pid)).copied()
    }

    fn pipe(&self, pid: u32, file: &OpenFile, inode: u64) -> Option<String> {
        let same = |(_, other): &&(u32, OpenFile)| other.link == file.link;
        let ours = || self.files.iter().filter(same).map(|(_, other)| other);
        let within = ours().any(|other| other.reads) && ours().any(|other| other.writes);
        if within {
            return self.shared_channel(pid, file, "pipe");
        }
        if os::pipe_far_end(file.descriptor, inode, file.reads) == FarEnd::Abandoned {
            let unread = file.reads && os::has_unread_input(file.descriptor, inode);
            return unread.then(|| UNREAD.to_owned());
        }
        if file.fd == STDERR && self.is_common_stderr(file) {
            return None;
        }
        // If this process inherited the same output, it leads to a common ancestor, not to a partner.
        if file.fd > STDERR && !file.reads && self.snapshot.is_open_here(file) {
            return None;
        }
        Some(match (file.fd, file.reads) {
            (STDIN, _) => "can still be written to: another process has its stdin open".to_owned(),
            (STDOUT, _) => "is still read: another process has its stdout open".to_owned(),
            (STDERR, _) => "is still read: another process has its stderr open".to_owned(),
            (fd, true) => format!("can still be written to through descriptor {fd}"),
            (fd, false) => format!("is still read through descriptor {fd}"),
        })
    }

    /// A pipe or socket pair with both ends in the tree: harmless if no other process has an end.
    fn shared_channel(&self, pid: u32, file: &OpenFile, kind: &str) -> Option<String> {
        if let Some((other, _)) = self.outside(file).next() {
            return Some(format!(
                "shares the {kind} of descriptor {} with pid {other}",
                file.fd
            ));
        }
        // A process that inherited an end is in the same session, or left it: in the first case it can be found.
        let session = os::stat(pid).map(|stat| stat.session).ok();
        let mut hidden = self.snapshot.tables().hidden.iter();
        let hidden = hidden
            .find(|(other, theirs)| Some(*theirs) == session && !self.pids.contains(other))?;
        Some(format!(
            "may share a {kind} with pid {}, whose open files are hidden",
            hidden.0
        ))
    }

    fn socket(&self, pid: u32, file: &OpenFile, inode: u64) -> Option<String> {
        let Some(socket) = self.snapshot.sockets.get(inode) else {
            return Some("has a network socket open, or one whose state is hidden".to_owned());
        };
        if socket.listening {
            return Some("listens on a Unix socket".to_owned());
        }
        if socket.closed() {
            return socket.unread.then(|| UNREAD.to_owned());
        }
        match socket.peer {
            Some(peer) if self.has_open(&format!("socket:[{peer}]")) => {
                self.shared_channel(pid, file, "socket")
            }
            Some(_) if file.fd == STDERR && self.is_common_stderr(file) => None,
            Some(_) => Some("is connected through a Unix socket".to_owned()),
            None if socket.named => Some("receives on a Unix socket".to_owned()),
            None => None,
        }
    }

    /// A pidfd of a living process outside the tree: a supervisor has one.
    fn supervised(&self, file: &OpenFile) -> Option<String> {
        let watched = file.watched.filter(|pid| !self.pids.contains(pid))?;
        Some(format!("watches pid {watched}, as a supervisor does"))
    }

    /// An eventfd that another process has too: they use it to wake each other.
    fn event(&self, file: &OpenFile) -> Option<String> {
        let holders = self.snapshot.events().get(&file.event?)?;
        let is_living = |pid: &&u32| self.is_living(**pid);
        // If this process inherited it too, it comes from a common ancestor.
        let mut living = holders
            .iter()
            .filter(|_| !holders.contains(&std::process::id()));
        let other = living.find(is_living)?;
        Some(format!("shares an eventfd with pid {other}"))
    }

    /// An epoll instance. It accepts only files that report changes, such as generated ones, but no regular files.
    fn epoll(&self, file: &OpenFile) -> Option<String> {
        let task = file.descriptor.task;
        file.polled.iter().find_map(|fd| {
            let target = Descriptor { task, fd: *fd };
            let mut files = self.files.iter().map(|(_, file)| file);
            let Some(target) = files.find(|file| file.descriptor == target) else {
                return Some(format!("watches descriptor {fd}, which it has closed"));
            };
            match target.kind {
                FileKind::Regular | FileKind::Directory => Some(format!("watches {}", target.link)),
                _ => None,
            }
        })
    }

    /// Whether a process is outside the tree and not a suspect.
    fn is_living(&self, pid: u32) -> bool {
        !self.pids.contains(&pid) && !self.snapshot.suspects.contains(&pid)
    }

    fn regular(&self, file: &OpenFile) -> Option<String> {
        if file.fd == STDOUT && file.writes {
            return Some(format!("writes its output to {}", file.link));
        }
        if !self.is_own_output(file) {
            return None;
        }
        let link = &file.link;
        let mut outside = self.outside(file);
        if let Some((reader, _)) = outside.find(|&(_, at)| os::reads_only(at)) {
            return Some(format!("writes to {link}, which pid {reader} reads"));
        }
        if let Some(watcher) = self.watcher(file) {
            return Some(format!("writes to {link}, which pid {watcher} watches"));
        }
        // It may be a database, or a queue of jobs in one. Processes that only append to a common log do not wait for each
        // other.
        if self.snapshot.is_open_here(file) {
            return None;
        }
        let mut outside = self.outside(file).filter(|&(pid, _)| self.is_living(pid));
        if let Some((partner, _)) = outside.find(|&(_, at)| os::may_read(at)) {
            return Some(format!("shares {link} with pid {partner}"));
        }
        let owner = file.owner.filter(|_| file.reads)?;
        let hidden = self.hidden_process_of(owner)?;
        Some(format!(
            "may share {link} with pid {hidden}, which belongs to the owner of the file and hides its open files"
        ))
    }

    /// A living process that watches a file by inotify. Devices are not compared: some file systems have another one for a
    /// watch than for `stat`.
    fn watcher(&self, file: &OpenFile) -> Option<u32> {
        let watchers = self.snapshot.watches().get(&file.inode?)?;
        let mut living = watchers.iter().filter(|&&pid| self.is_living(pid));
        living.next().copied()
    }

    /// A process of a user whose open files we may not see. It may have any file of that user open.
    fn hidden_process_of(&self, owner: u32) -> Option<u32> {
        if owner == rustix::process::geteuid().as_raw() {
            return None;
        }
        let mut hidden = self.snapshot.tables().hidden.iter().map(|(pid, _)| *pid);
        hidden.find(|&pid| os::user_of(pid).is_ok_and(|user| user == owner))
    }

    /// Whether a file is open for writing, other than as a stderr that many processes share.
    fn is_own_output(&self, file: &OpenFile) -> bool {
        file.writes && !(file.fd == STDERR && self.is_common_stderr(file))
    }

    fn other_writers(&self, file: &OpenFile) -> OtherWriters {
        let mut outside = self.outside(file);
        match outside.any(|(_, at)| !os::reads_only(at)) {
            true => OtherWriters::Some,
            false => OtherWriters::None,
        }
    }

    fn has_open(&self, link: &str) -> bool {
        self.files.iter().any(|(_, file)| file.link == link)
    }

    /// Holders of the same file outside the tree.
    fn outside(&self, file: &OpenFile) -> impl Iterator<Item = (u32, Descriptor)> {
        let holders = self.snapshot.holders(file);
        holders.filter(|(pid, _)| !self.pids.contains(pid))
    }

    /// Whether other living processes write to the same stderr: then it was inherited, as in a container or under a test
    /// runner, and its reader does not wait for this tree. If only suspects share it, its reader may wait for them.
    fn is_common_stderr(&self, file: &OpenFile) -> bool {
        let mut living = self.outside(file).filter(|&(pid, _)| self.is_living(pid));
        living.any(|(_, at)| !os::reads_only(at))
    }
}
