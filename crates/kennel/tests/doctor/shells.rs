//! Pipelines and jobs that a shell left in the background: only members with both ends abandoned are orphans.

use std::process::{Child, Stdio};

use kennel_testkit::{Rng, Subject, count, tool, wait_for};

use crate::stage::Ward;
use crate::zoo::offered;

/// Innocent shapes as a shell makes them: a line of bash that puts something in the background and exits, and the names
/// of the processes that stay, sorted. `$D` is a directory of its own. The tools that are used must be installed.
const SHELL: &[(&str, &str, &str)] = &[
    (
        "pipeline whose producer has finished",
        "true | tk-idle 1000 | cat >$D/out &",
        "cat tk-idle",
    ),
    (
        "filter of a finished producer",
        "echo x | (tk-idle 1000; cat) | cat >$D/out &",
        "bash cat tk-idle",
    ),
    (
        "filter that has not read its input, and whose reader has finished",
        "echo x | tk-idle 1000 | true &",
        "tk-idle",
    ),
    (
        "pipeline whose reader has finished",
        "tk-idle 1000 | tk-idle 1000 | true &",
        "tk-idle tk-idle",
    ),
    (
        "job with a process substitution for its errors",
        "true | tk-idle 1000 2> >(cat >$D/err) | true &",
        "cat tk-idle",
    ),
    (
        "job with a process substitution to write to",
        "true | tk-idle 1000 3> >(cat >$D/out) | true &",
        "cat tk-idle",
    ),
    (
        "job with a process substitution to read from",
        "true | tk-idle 1000 3< <(tk-idle 1000) >$D/out &",
        "tk-idle tk-idle",
    ),
    (
        "job that two substitutions feed",
        "cat <(tk-idle 1000) <(tk-idle 1000) >$D/out &",
        "cat tk-idle tk-idle",
    ),
    (
        "tail and grep",
        "touch $D/log; tail -f $D/log | grep x | cat >$D/out &",
        "cat grep tail",
    ),
    (
        "tee to a file and a reader",
        "tk-idle 1000 | tee $D/copy | cat >$D/out &",
        "cat tee tk-idle",
    ),
    (
        "nohup job",
        "nohup tk-idle 1000 >$D/nohup.out 2>&1 &",
        "tk-idle",
    ),
    (
        "disowned job",
        "true | tk-idle 1000 >$D/out & disown",
        "tk-idle",
    ),
    (
        "daemon without stdio, as cron",
        "setsid tk-idle 1000 </dev/null >/dev/null 2>&1 &",
        "tk-idle",
    ),
    (
        "job whose stdout is closed",
        "true | tk-idle 1000 >&- &",
        "tk-idle",
    ),
    (
        "job whose stdin is closed",
        "tk-idle 1000 <&- | true &",
        "tk-idle",
    ),
    (
        "coprocess",
        "coproc cat; exec 3>&${COPROC[1]}; tk-idle 1000 >&3 &",
        "cat tk-idle",
    ),
    (
        "reader and writer of a named pipe",
        "mkfifo $D/p; cat <$D/p >$D/out & tk-idle 1000 >$D/p &",
        "cat tk-idle",
    ),
    (
        "filter between named pipes",
        "mkfifo $D/q $D/r; tk-idle 1000 <>$D/q >$D/r & cat <$D/r >$D/out &",
        "cat tk-idle",
    ),
    (
        "xargs",
        "echo 1000 | xargs tk-idle | cat >$D/out &",
        "cat tk-idle xargs",
    ),
    (
        "jobs of make",
        "printf 'all: a b\\na b:\\n\\ttk-idle 1000\\n' >$D/Makefile; make -s -j2 -C $D | cat >$D/out &",
        "cat make tk-idle tk-idle",
    ),
    (
        "holder of a lock and a waiter",
        "true | flock $D/lock tk-idle 1000 >$D/out & \
        while flock -n $D/lock true; do :; done; flock $D/lock true &",
        "flock flock tk-idle",
    ),
    (
        "script with a terminal",
        "script -qc 'exec tk-idle 1000' $D/typescript </dev/null >/dev/null 2>&1 &",
        "script tk-idle",
    ),
    (
        "server of tmux",
        "SHELL=/bin/sh TMUX_TMPDIR=$D tmux -f /dev/null new-session -d 'exec tk-idle 1000'",
        "tk-idle tmux:",
    ),
    (
        "sqlite3 that is fed",
        "tk-idle 1000 | sqlite3 $D/db >$D/out &",
        "sqlite3 tk-idle",
    ),
    (
        "subshell with a loop, as of at",
        "true | (while :; do tk-idle 1000; done) >$D/out 2>&1 &",
        "bash tk-idle",
    ),
    (
        "group that is read",
        "true | { tk-idle 1000; echo; } | cat >$D/out &",
        "bash cat tk-idle",
    ),
];

#[test]
fn pipelines_jobs_and_daemons_of_a_shell_are_neither_offered_nor_ended() {
    let mut wards: Vec<(Ward, &str, Vec<Subject>)> = Vec::new();
    for (name, line, stay) in SHELL {
        let ward = Ward::new();
        let missing = ["tmux", "sqlite3", "script", "make"]
            .iter()
            .any(|program| line.contains(&format!("{program} ")) && tool(program).is_none());
        if missing {
            continue;
        }
        let session = shell(&ward, line);
        let there = settled(&ward, session, name, |there| {
            let mut names: Vec<&str> = there.iter().map(|settled| &*settled.name).collect();
            names.sort_unstable();
            names.join(" ") == *stay
        });
        let there = there.into_iter().map(|settled| settled.process).collect();
        wards.push((ward, name, there));
    }
    assert!(wards.len() >= 20, "most of the tools are installed");
    std::thread::scope(|threads| {
        for part in wards.chunks(wards.len().div_ceil(4)) {
            threads.spawn(move || part.iter().for_each(spared));
        }
    });
}

fn spared((ward, name, there): &(Ward, &str, Vec<Subject>)) {
    let report = ward.doctor();
    assert!(offered(&report).is_empty(), "{name}: {report:#}");
    let ended = ward.kennel(&["reap", "--foreign", "--yes"]);
    assert_eq!(ended.code(), Some(0), "{name}: {}", ended.stderr);
    assert!(
        there.iter().all(Subject::is_alive),
        "{name}: {}",
        ended.stdout
    );
}

/// Runs a line of bash in a session of its own, as a terminal does; bash exits at once. Returns the session.
fn shell(ward: &Ward, line: &str) -> u32 {
    let mut bash = ward.command("setsid");
    bash.args(["--wait", "bash", "-c", line])
        .env("D", ward.scope.dir())
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null());
    // `setsid` does not fork: it leads no process group here.
    let mut bash: Child = bash.spawn().unwrap();
    let session = bash.id();
    bash.wait().unwrap();
    session
}

/// A process of a shell's line that runs its own program.
struct Settled {
    process: Subject,
    /// Its program, up to the first blank.
    name: String,
    /// The first argument.
    argument: String,
}

/// Waits until exactly the expected processes of a ward are left, and returns them. A child that bash forked runs bash
/// until it executes its program, so the caller compares names and not a count. A process that exits has no environment
/// any more while its descriptors are still open, so the session is looked at too.
fn settled(
    ward: &Ward,
    session: u32,
    label: &str,
    expected: impl Fn(&[Settled]) -> bool,
) -> Vec<Settled> {
    wait_for(&format!("{label}: the processes that stay"), || {
        let there: Option<Vec<Settled>> = ward
            .scope
            .survivors()
            .into_iter()
            .map(|it| known(it.into()))
            .collect();
        let there = there?;
        let stays = |pid: &u32| there.iter().any(|settled| settled.process.pid() == *pid);
        let others = members(session).into_iter().any(|pid| !stays(&pid));
        (!others && expected(&there)).then_some(there)
    })
}

fn known(process: Subject) -> Option<Settled> {
    let name = std::fs::read_to_string(format!("/proc/{}/comm", process.pid())).ok()?;
    let argument = process.command_line()?.get(1).cloned().unwrap_or_default();
    Some(Settled {
        name: name.split_whitespace().next()?.to_owned(),
        argument,
        process,
    })
}

/// The pids of a session, those that are exiting included, zombies not.
fn members(session: u32) -> Vec<u32> {
    let is_member = |pid: &u32| {
        let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
        // 4711 (name) S parent group session …
        let fields = stat.rsplit_once(") ").map(|(_, fields)| fields);
        let fields: Vec<&str> = fields.unwrap_or_default().split(' ').collect();
        let [state, _, _, its_session, ..] = fields[..] else {
            return false;
        };
        !["Z", "X"].contains(&state) && its_session == session.to_string()
    };
    let entries = std::fs::read_dir("/proc").unwrap().flatten();
    let pids = entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    pids.filter(is_member).collect()
}

/// One stage of a random pipeline.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Stage {
    /// Exits and leaves nothing in the pipe.
    Finished,
    /// Exits and leaves a line in the pipe.
    Wrote,
    /// Stays.
    Stays,
}

#[test]
fn of_random_pipelines_exactly_the_members_with_both_ends_abandoned_are_ended() {
    const AT_ONCE: u32 = 4;
    std::thread::scope(|threads| {
        for first in 0..AT_ONCE {
            threads.spawn(move || {
                (first..count(80))
                    .step_by(AT_ONCE as usize)
                    .for_each(pipelines);
            });
        }
    });
}

fn pipelines(round: u32) {
    let mut rng = Rng::seeded(&format!("pipelines {round}"));
    let ward = Ward::new();
    let mut orphans: Vec<String> = Vec::new();
    let mut innocents: Vec<String> = Vec::new();
    let mut lines = String::new();
    for _ in 0..1 + rng.below(4) {
        let stages: Vec<Stage> = (0..2 + rng.below(5))
            .map(|_| [Stage::Finished, Stage::Wrote, Stage::Stays][rng.below(3) as usize])
            .collect();
        let mut words: Vec<String> = Vec::new();
        for (at, stage) in stages.iter().enumerate() {
            words.push(match stage {
                Stage::Finished => "true".to_owned(),
                Stage::Wrote => "echo x 2>/dev/null".to_owned(),
                Stage::Stays => {
                    let seconds = (1000 + orphans.len() + innocents.len()).to_string();
                    let left = at.checked_sub(1).map(|left| stages[left]);
                    let right = stages.get(at + 1).copied();
                    let alone = left == Some(Stage::Finished)
                        && right.is_some_and(|right| right != Stage::Stays);
                    match alone {
                        true => orphans.push(seconds.clone()),
                        false => innocents.push(seconds.clone()),
                    }
                    format!("tk-idle {seconds}")
                }
            });
        }
        lines.push_str(&format!("{} >$D/out &\n", words.join(" | ")));
    }
    let session = shell(&ward, &lines);
    let mut wanted: Vec<&String> = orphans.iter().chain(&innocents).collect();
    wanted.sort_unstable();
    let there = settled(&ward, session, &format!("round {round}"), |there| {
        let mut seconds: Vec<&String> = there.iter().map(|settled| &settled.argument).collect();
        seconds.sort_unstable();
        seconds == wanted
    });
    let ended = ward.kennel(&["reap", "--foreign", "--yes"]);
    assert_eq!(ended.code(), Some(0), "round {round}: {}", ended.stderr);
    for Settled {
        process,
        argument: seconds,
        ..
    } in &there
    {
        assert_eq!(
            process.is_alive(),
            !orphans.contains(seconds),
            "round {round}: tk-idle {seconds} of\n{lines}{}",
            ended.stdout
        );
    }
}
