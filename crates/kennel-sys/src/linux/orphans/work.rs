//! The work of a suspect between two examinations. A process that computes, reads, writes or starts others may be a job
//! that needs no reader or writer at its stdin and stdout, such as `make >log &` in a terminal that was closed.

use std::collections::HashMap;
use std::io;
use std::time::{Duration, Instant};

use super::state;
use crate::os::{self, FileStamp};
use crate::process::{Identity, ProcessRef};

/// CPU time that an idle server may use between two looks. Timers and garbage collection stay below it.
const IDLE_CPU: Duration = Duration::from_millis(10);
/// The same as a fraction of the elapsed time: 1/50 is 2% of a core.
const IDLE_CPU_PART: u32 = 50;
/// Bytes that an idle server may read, and may write, between two looks: wake-ups through an eventfd, a log line.
const IDLE_BYTES: u64 = 4096;

/// Work of a process tree so far.
#[derive(Debug)]
pub(super) struct Work {
    at: Instant,
    members: Vec<(Identity, Progress)>,
    files: HashMap<WrittenFile, (FileStamp, OtherWriters)>,
    /// Processes whose work cannot be seen, as text.
    unseen: Vec<String>,
}

/// Work of one process so far.
#[derive(Debug, Clone, Copy, Default)]
struct Progress {
    cpu: Duration,
    read: u64,
    written: u64,
}

/// A file that is open for writing: the pid, the descriptor, and the name.
type WrittenFile = (u32, u32, String);

/// Whether processes outside the tree have a file open for writing too.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum OtherWriters {
    None,
    Some,
}

impl Progress {
    fn of(pid: u32) -> io::Result<Progress> {
        let (read, written) = os::transferred_bytes(pid)?;
        let cpu = os::cpu_time(pid)?;
        Ok(Progress { cpu, read, written })
    }
}

impl Work {
    pub(super) fn of(members: &[&ProcessRef]) -> Work {
        let mut unseen = Vec::new();
        let progress = |member: &&ProcessRef| {
            let pid = member.pid();
            let progress = Progress::of(pid).unwrap_or_else(|error| {
                let what = format!("whether pid {pid} works");
                let hides = member.is_alive();
                unseen.extend(hides.then(|| state::unknown_fact(&what, &error)));
                Progress::default()
            });
            (*member.identity(), progress)
        };
        Work {
            at: Instant::now(),
            members: members.iter().map(progress).collect(),
            files: HashMap::new(),
            unseen,
        }
    }

    /// Processes whose work cannot be seen, as text.
    pub(super) fn unknown_work(&self) -> impl Iterator<Item = String> {
        self.unseen.iter().cloned()
    }

    /// Remembers a regular file that a member has open for writing.
    pub(super) fn add_file(&mut self, file: WrittenFile, stamp: FileStamp, others: OtherWriters) {
        self.files.insert(file, (stamp, others));
    }

    /// Work since an earlier look, as text.
    pub(super) fn difference(&self, before: &Work) -> Vec<String> {
        let passed = self.at.saturating_duration_since(before.at);
        let mut doubts = Vec::new();
        let (mut cpu, mut read, mut written) = (Duration::ZERO, 0, 0);
        for (member, progress) in &self.members {
            let pid = member.pid();
            let known = before.members.iter();
            let mut known = known.filter(|(other, _)| other.same_process(member));
            let Some((_, earlier)) = known.next() else {
                doubts.push(format!("it starts processes: pid {pid} is new"));
                continue;
            };
            cpu += progress.cpu.saturating_sub(earlier.cpu);
            read += progress.read.saturating_sub(earlier.read);
            written += progress.written.saturating_sub(earlier.written);
        }
        if cpu > IDLE_CPU.max(passed / IDLE_CPU_PART) {
            let (cpu, passed) = (cpu.as_millis(), passed.as_millis());
            doubts.push(format!("it computes: {cpu} ms of CPU time in {passed} ms"));
        }
        for (does, bytes) in [("reads", read), ("writes", written)] {
            if bytes > IDLE_BYTES.max(IDLE_BYTES * 2 * passed.as_secs()) {
                let passed = passed.as_millis();
                doubts.push(format!("it {does}: {bytes} bytes in {passed} ms"));
            }
        }
        for ((pid, fd, name), (now, others)) in &self.files {
            let earlier = before.files.get(&(*pid, *fd, name.clone()));
            if earlier.is_some_and(|(earlier, _)| changed(earlier, now, *others)) {
                doubts.push(format!("pid {pid} writes to {name}"));
            }
        }
        doubts
    }
}

/// Whether the holder of a descriptor changed its file. If other processes write to it too, as to a common log, only the
/// position of the descriptor shows that.
fn changed(before: &FileStamp, now: &FileStamp, others: OtherWriters) -> bool {
    let moved = before.position != now.position;
    let differs = (before.size, before.changed) != (now.size, now.changed);
    match others {
        OtherWriters::None => differs,
        OtherWriters::Some => differs && moved,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const STAMP: FileStamp = FileStamp {
        size: 10,
        changed: (1, 2),
        position: 10,
    };

    #[test]
    fn a_file_with_other_writers_counts_as_work_only_if_the_position_moved() {
        let grown = FileStamp { size: 11, ..STAMP };
        let moved = FileStamp {
            position: 11,
            ..grown
        };
        let rewritten = FileStamp {
            changed: (1, 3),
            ..STAMP
        };
        assert!(!changed(&STAMP, &STAMP, OtherWriters::None));
        for now in [grown, moved, rewritten] {
            assert!(changed(&STAMP, &now, OtherWriters::None), "{now:?}");
        }
        assert!(!changed(&STAMP, &grown, OtherWriters::Some));
        assert!(!changed(&STAMP, &rewritten, OtherWriters::Some));
        assert!(changed(&STAMP, &moved, OtherWriters::Some));
    }

    #[test]
    fn an_idle_process_does_no_work_and_a_busy_one_does() {
        let me = ProcessRef::me().expect("this process");
        let members = [&me];
        let before = Work::of(&members);
        let mut later = Work::of(&members);
        later.at = before.at + Duration::from_millis(500);
        later.members[0].1 = before.members[0].1;
        assert_eq!(later.difference(&before), Vec::<String>::new());
        later.members[0].1.cpu += IDLE_CPU * 2;
        later.members[0].1.read += IDLE_BYTES * 2;
        later.members[0].1.written += IDLE_BYTES * 2;
        let doubts = later.difference(&before).join("; ");
        for words in ["computes", "it reads", "it writes"] {
            assert!(doubts.contains(words), "{words}: {doubts}");
        }
        let mut parent = Work::of(&members);
        parent.members.clear();
        let doubts = later.difference(&parent).join("; ");
        assert!(doubts.contains("starts processes"), "{doubts}");
        later.at = before.at + Duration::from_secs(60);
        assert_eq!(
            later.difference(&before),
            Vec::<String>::new(),
            "within the limit for a minute"
        );
    }
}
