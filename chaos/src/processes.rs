//! The processes of a world, as `/proc` shows them from outside.

use std::collections::BTreeMap;
use std::path::PathBuf;

use kennel_sys::process::ProcessRef;
use kennel_testkit::Scope;

/// The role of a process.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Role {
    App,
    Shim,
    Daemon,
    Warden,
    Server,
    /// A detached process of a server, which others use.
    Service,
    Owner,
    Guard,
    /// A process that Kennel did not start and must not touch.
    Bystander,
    /// A command of Kennel, a shell, or a process during an exec.
    Other,
}

/// One process.
#[derive(Debug)]
pub(crate) struct Member {
    pub(crate) process: ProcessRef,
    pub(crate) role: Role,
    pub(crate) parent: u32,
    pub(crate) stopped: bool,
    pub(crate) line: String,
}

/// All processes of a world at one moment.
#[derive(Debug, Default)]
pub(crate) struct Processes {
    pub(crate) members: Vec<Member>,
    place: BTreeMap<u32, usize>,
}

impl Processes {
    /// Reads all processes; `known` has the roles that a command line does not show.
    pub(crate) fn look(scope: &Scope, known: &BTreeMap<u32, Role>) -> Processes {
        let mut processes = Processes::default();
        for process in scope.survivors() {
            let Some((parent, stopped)) = stat(process.pid()) else {
                continue;
            };
            let words = process.command_line().unwrap_or_default();
            let role = known.get(&process.pid()).copied();
            // It may have executed another program meanwhile, but it is the same process.
            if !process.is_alive() {
                continue;
            }
            processes.members.push(Member {
                role: role.unwrap_or_else(|| role_of(&words)),
                parent,
                stopped,
                line: words.join(" "),
                process,
            });
        }
        // In the order of their start, approximately: the same number then selects the same process.
        processes.members.sort_by_key(|member| member.process.pid());
        processes.place = processes
            .members
            .iter()
            .enumerate()
            .map(|(place, member)| (member.process.pid(), place))
            .collect();
        processes
    }

    pub(crate) fn of(&self, role: Role) -> impl Iterator<Item = &Member> {
        self.members
            .iter()
            .filter(move |member| member.role == role)
    }

    /// The processes of Kennel itself.
    pub(crate) fn kennel(&self) -> impl Iterator<Item = &Member> {
        let kennel = [Role::Shim, Role::Daemon, Role::Warden, Role::Guard];
        let members = self.members.iter();
        members.filter(move |member| kennel.contains(&member.role))
    }

    /// A process with this role, selected by a random number.
    pub(crate) fn pick(&self, role: Role, target: u64) -> Option<&Member> {
        let those: Vec<&Member> = self.of(role).collect();
        let place = usize::try_from(target % 1_000_003).ok()?;
        those.get(place.checked_rem(those.len())?).copied()
    }

    pub(crate) fn find(&self, pid: u32) -> Option<&Member> {
        self.place.get(&pid).map(|&place| &self.members[place])
    }

    /// The ancestors of a process within the world, nearest first.
    pub(crate) fn above<'a>(&'a self, member: &Member) -> impl Iterator<Item = &'a Member> {
        let mut next = self.find(member.parent);
        let mut steps = 0;
        std::iter::from_fn(move || {
            let found = next?;
            steps += 1;
            // A snapshot of a changing table may contain a cycle.
            next = self.find(found.parent).filter(|_| steps < 64);
            Some(found)
        })
    }

    pub(crate) fn any_stopped(&self) -> bool {
        self.members.iter().any(|member| member.stopped)
    }
}

/// The links of the open files of a process.
pub(crate) fn files_of(pid: u32) -> Vec<PathBuf> {
    let files = std::fs::read_dir(format!("/proc/{pid}/fd"));
    let files = files.into_iter().flatten().flatten();
    files
        .filter_map(|file| std::fs::read_link(file.path()).ok())
        .collect()
}

fn role_of(words: &[String]) -> Role {
    let program = words
        .first()
        .map_or("", |program| program.rsplit('/').next().unwrap_or_default());
    let first = words.get(1).map_or("", String::as_str);
    match (program, first) {
        ("exe" | "tk-backend", "back") => Role::Service,
        ("tk-shared" | "tk-server" | "tk-ports" | "tk-stubborn" | "tk-backend", _) => Role::Server,
        (_, "detach" | "stay" | "family") => Role::Server,
        ("sleep", _) => Role::Other,
        (_, "daemon") => Role::Daemon,
        (_, "warden") => Role::Warden,
        ("kennel", "run") => Role::Shim,
        ("kennel", "guard") => Role::Guard,
        _ if words.iter().any(|word| word.ends_with("/roll")) => Role::Server,
        _ => Role::Other,
    }
}

/// Its parent, and whether it is stopped.
fn stat(pid: u32) -> Option<(u32, bool)> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    let mut words = stat[stat.rfind(") ")? + 2..].split(' ');
    let stopped = words.next()? == "T";
    Some((words.next()?.parse().ok()?, stopped))
}
