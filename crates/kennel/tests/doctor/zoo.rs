//! Processes that look like orphans and are none: `doctor` does not offer them, and `reap --foreign` spares them.

use std::net::TcpListener;
use std::os::unix::net::UnixListener;
use std::process::{Child, Stdio};

use kennel_sys::process::ProcessRef;
use kennel_testkit::{Rng, count, tool, wait_for};
use serde_json::Value;

use crate::stage::{Family, Ward};

/// Innocent shapes that keep nothing of their starter but one thing others may need: name, what it does, and words of
/// the doubt that spares it. Each is started by an app with pipes as stdin and stdout, and the app is killed. `base` is
/// a path of its own, `port` and `sock` where the test listens.
const ABANDONED: &[(&str, &str, &str)] = &[
    (
        "tcp server",
        "keep(socket.create_server(('127.0.0.1', 0)))",
        "network socket",
    ),
    (
        "tcp6 server",
        "s = keep(socket.socket(socket.AF_INET6)); s.bind(('::', 0)); s.listen()",
        "network socket",
    ),
    (
        "tcp server with a client",
        "s = keep(socket.create_server(('127.0.0.1', 0))); \
        keep(socket.create_connection(s.getsockname())); keep(s.accept()[0]); s.close()",
        "network socket",
    ),
    (
        "tcp client, as ssh -f",
        "keep(socket.create_connection(('127.0.0.1', port)))",
        "network socket",
    ),
    (
        "udp server",
        "s = keep(socket.socket(type=socket.SOCK_DGRAM)); s.bind(('127.0.0.1', 0))",
        "network socket",
    ),
    (
        "netlink listener",
        "s = keep(socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 0)); s.bind((0, 1))",
        "network socket",
    ),
    (
        "unix server, as ssh-agent",
        "unix_server(base)",
        "listens on a Unix socket",
    ),
    (
        "abstract unix server, as a message bus",
        "unix_server('\\0' + base)",
        "listens on a Unix socket",
    ),
    (
        "unix datagram receiver, as syslog",
        "s = keep(socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)); s.bind(base)",
        "receives on a Unix socket",
    ),
    (
        "unix client, as a session of tmux",
        "s = keep(socket.socket(socket.AF_UNIX)); s.connect(sock)",
        "connected through",
    ),
    (
        "relay, as socat",
        "unix_server(base); keep(socket.create_connection(('127.0.0.1', port)))",
        "listens on",
    ),
    (
        "file watcher",
        "libc.inotify_add_watch(libc.inotify_init(), b'/', 0x100)",
        "watches files",
    ),
    (
        "reader of a named pipe",
        "os.mkfifo(base); os.open(base, os.O_RDONLY | os.O_NONBLOCK)",
        "named pipe",
    ),
    (
        "writer of a named pipe",
        "os.mkfifo(base); os.open(base, os.O_RDWR)",
        "named pipe",
    ),
    (
        "owner of a terminal, as script, screen or dtach",
        "os.open('/dev/ptmx', os.O_RDWR | os.O_NOCTTY)",
        "device",
    ),
    (
        "program on a terminal of its own",
        "os.setsid(); m, s = os.openpty(); fcntl.ioctl(s, 0x540E, 0)",
        "terminal",
    ),
    (
        "program stopped by its person",
        "ready(); os.kill(os.getpid(), 19)",
        "is stopped",
    ),
    (
        "launcher of a job that writes a file",
        "child(['sleep', '1000'], stdout=open(base, 'w'))",
        "writes its output to",
    ),
    (
        "launcher of a server, as a build tool",
        "child([sys.executable, '-c', \
        'import socket, time; s = socket.create_server((\"127.0.0.1\", 0)); print(1, flush=True); time.sleep(1000)'], \
        stdout=-1).stdout.read(1)",
        "network socket",
    ),
    (
        "launcher of a file watcher, as a language server",
        "child([sys.executable, '-c', \
        'import ctypes, time; ctypes.CDLL(None).inotify_init(); print(1, flush=True); time.sleep(1000)'], \
        stdout=-1).stdout.read(1)",
        "watches files",
    ),
    (
        "holder of a lock with a waiter",
        "f = keep(open(base, 'w')); fcntl.flock(f, 2); \
        other('import fcntl, sys; fcntl.flock(open(sys.argv[1]), 2)')",
        "waits for",
    ),
    (
        "database with a waiter for its lock",
        "f = keep(open(base, 'w')); fcntl.lockf(f, 2); \
        other('import fcntl, sys; fcntl.lockf(open(sys.argv[1], \"r+\"), 2)')",
        "waits for",
    ),
    (
        "writer of a file that is followed",
        "keep(open(base, 'w')); \
        other('import sys, time; f = open(sys.argv[1]); time.sleep(1000)')",
        "reads",
    ),
    (
        "job whose pipe on descriptor 3 is read",
        "r, w = os.pipe(); other('import time; time.sleep(1000)', pass_fds=[r]); \
        os.close(r)",
        "is still read through",
    ),
    (
        "job whose pipe on descriptor 3 is written to, as of a jobserver",
        "r, w = os.pipe(); \
        other('import time; time.sleep(1000)', pass_fds=[r, w])",
        "shares the pipe",
    ),
];

/// What the shapes are made of. `other` starts a process outside: adopted by init, and with nothing on its stdio.
const PRELUDE: &str = "
import ctypes, fcntl, os, socket, subprocess, sys, time
base, port, sock = sys.argv[1], int(sys.argv[2]), sys.argv[3]
libc = ctypes.CDLL(None)
kept = []
def keep(it):
    kept.append(it)
    return it
def ready():
    open(base + '.ready', 'w').close()
def child(words, **options):
    return keep(subprocess.Popen(words, stdin=subprocess.DEVNULL, **options))
def unix_server(name):
    s = keep(socket.socket(socket.AF_UNIX))
    s.bind(name)
    s.listen()
def other(code, pass_fds=()):
    null = subprocess.DEVNULL
    code = 'import os\\nif os.fork(): os._exit(0)\\nos.setsid()\\n' + code
    subprocess.run([sys.executable, '-c', code, base], pass_fds=pass_fds, stdin=null, stdout=null, stderr=null)
";

/// A server like any other: what it has open leads to itself, to its child or to nobody.
const ORDINARY: &str = "
import select, sqlite3
keep(os.pipe()); keep(socket.socketpair()); keep(select.epoll()); keep(open('/dev/urandom')); keep(open('/dev/null'))
keep(open(base, 'w')); fcntl.flock(kept[-1], 2)
keep(sqlite3.connect(base + '.db')).execute('create table a(b)')
keep(os.eventfd(0)) if hasattr(os, 'eventfd') else None
child(['sleep', '1000'], stdout=-1, stderr=-1)
";

struct Zoo {
    ward: Ward,
    tcp: TcpListener,
    _unix: UnixListener,
}

impl Zoo {
    fn new() -> Zoo {
        let ward = Ward::new();
        Zoo {
            tcp: TcpListener::bind("127.0.0.1:0").unwrap(),
            _unix: UnixListener::bind(ward.scope.path("sock")).unwrap(),
            ward,
        }
    }

    /// Starts a shape; its file says when it is ready.
    fn start(&self, number: usize, code: &str) -> Family {
        let path = |name: &str| self.ward.scope.path(name).to_str().unwrap().to_owned();
        let code = format!("{PRELUDE}\n{code}\nready()\ntime.sleep(1000)\n");
        let python = tool("python3").expect("python3 is installed");
        let port = self.tcp.local_addr().unwrap().port().to_string();
        let base = path(&format!("shape-{number}"));
        let words = [
            python.to_str().unwrap(),
            "-c",
            &code,
            &base,
            &port,
            &path("sock"),
        ];
        self.ward.family(&[], &words)
    }

    fn is_ready(&self, number: usize) {
        let file = self.ward.scope.path(format!("shape-{number}.ready"));
        wait_for(&format!("shape {number} is ready"), || {
            file.exists().then_some(())
        });
    }
}

#[test]
fn a_process_that_others_may_need_is_shown_with_the_reason_and_neither_offered_nor_ended() {
    let zoo = Zoo::new();
    let mut innocents: Vec<Family> = ABANDONED
        .iter()
        .enumerate()
        .map(|(number, (_, code, _))| zoo.start(number, code))
        .collect();
    let mut guilty = [
        zoo.start(ABANDONED.len(), ORDINARY),
        zoo.ward.family(&[], &["sleep", "1000"]),
    ];
    (0..=ABANDONED.len()).for_each(|number| zoo.is_ready(number));
    wait_for("two processes wait for locks", || {
        let locks = std::fs::read_to_string("/proc/locks").unwrap();
        (locks.lines().filter(|line| line.contains("->")).count() >= 2).then_some(())
    });
    innocents
        .iter_mut()
        .chain(&mut guilty)
        .for_each(Family::kill_app);
    let everyone = zoo.ward.scope.survivors();

    let report = zoo.ward.doctor();
    let mut expected: Vec<u32> = guilty.iter().map(|family| family.child.pid()).collect();
    expected.sort_unstable();
    assert_eq!(
        offered(&report),
        expected,
        "exactly the orphans: {report:#}"
    );
    let shown = report["in_doubt"].as_array().unwrap();
    for (family, (name, _, words)) in innocents.iter().zip(ABANDONED) {
        let pid = family.child.pid();
        let shown = shown.iter().find(|shown| shown["pid"] == pid);
        let shown = shown.unwrap_or_else(|| panic!("{name} is shown: {report:#}"));
        let doubts = shown["doubts"].to_string();
        assert!(doubts.contains(words), "{name}: {doubts}");
        assert!(
            shown["evidence"].to_string().contains("read its stdout"),
            "{name}"
        );
    }

    let ended = zoo.ward.kennel(&["reap", "--foreign", "--yes", "--json"]);
    assert_eq!(ended.code(), Some(0), "{}", ended.stderr);
    let done: Value = serde_json::from_str(&ended.stdout).unwrap();
    assert_eq!(done["foreign"].as_array().unwrap().len(), guilty.len());
    assert_eq!(done["in_doubt"].as_array().unwrap().len(), ABANDONED.len());
    for (family, (name, ..)) in innocents.iter().zip(ABANDONED) {
        assert!(family.child.is_alive(), "{name} was ended");
    }
    assert!(guilty.iter().all(|family| !family.child.is_alive()));
    // The guilty, and the child of one of them.
    let left = everyone.iter().filter(|process| process.is_alive()).count();
    assert_eq!(
        left,
        everyone.len() - 3,
        "whoever was started beside them lives"
    );
}

/// Innocent shapes as a shell makes them: a line of bash that puts something in the background and exits, and how many
/// processes stay. `$D` is a directory of its own. The tools that are used must be installed.
const SHELL: &[(&str, &str, usize)] = &[
    (
        "pipeline whose producer has finished",
        "true | sleep 1000 | cat >$D/out &",
        2,
    ),
    (
        "filter of a finished producer",
        "echo x | (sleep 1000; cat) | cat >$D/out &",
        3,
    ),
    (
        "filter that has not read its input, and whose reader has finished",
        "echo x | sleep 1000 | true &",
        1,
    ),
    (
        "pipeline whose reader has finished",
        "sleep 1000 | sleep 1000 | true &",
        2,
    ),
    (
        "job with a process substitution for its errors",
        "true | sleep 1000 2> >(cat >$D/err) | true &",
        2,
    ),
    (
        "job with a process substitution to write to",
        "true | sleep 1000 3> >(cat >$D/out) | true &",
        2,
    ),
    (
        "job with a process substitution to read from",
        "true | sleep 1000 3< <(sleep 1000) >$D/out &",
        2,
    ),
    (
        "job that two substitutions feed",
        "cat <(sleep 1000) <(sleep 1000) >$D/out &",
        3,
    ),
    (
        "tail and grep",
        "touch $D/log; tail -f $D/log | grep x | cat >$D/out &",
        3,
    ),
    (
        "tee to a file and a reader",
        "sleep 1000 | tee $D/copy | cat >$D/out &",
        3,
    ),
    ("nohup job", "nohup sleep 1000 >$D/nohup.out 2>&1 &", 1),
    ("disowned job", "true | sleep 1000 >$D/out & disown", 1),
    (
        "daemon without stdio, as cron",
        "setsid sleep 1000 </dev/null >/dev/null 2>&1 &",
        1,
    ),
    ("job whose stdout is closed", "true | sleep 1000 >&- &", 1),
    ("job whose stdin is closed", "sleep 1000 <&- | true &", 1),
    (
        "coprocess",
        "coproc cat; exec 3>&${COPROC[1]}; sleep 1000 >&3 &",
        2,
    ),
    (
        "reader and writer of a named pipe",
        "mkfifo $D/p; cat <$D/p >$D/out & sleep 1000 >$D/p &",
        2,
    ),
    (
        "filter between named pipes",
        "mkfifo $D/q $D/r; sleep 1000 <>$D/q >$D/r & cat <$D/r >$D/out &",
        2,
    ),
    ("xargs", "echo 1000 | xargs sleep | cat >$D/out &", 3),
    (
        "jobs of make",
        "printf 'all: a b\\na b:\\n\\tsleep 1000\\n' >$D/Makefile; make -s -j2 -C $D | cat >$D/out &",
        4,
    ),
    (
        "holder of a lock and a waiter",
        "true | flock $D/lock sleep 1000 >$D/out & \
        while flock -n $D/lock true; do :; done; flock $D/lock true &",
        3,
    ),
    (
        "script with a terminal",
        "script -qc 'exec sleep 1000' $D/typescript </dev/null >/dev/null 2>&1 &",
        2,
    ),
    (
        "server of tmux",
        "SHELL=/bin/sh TMUX_TMPDIR=$D tmux -f /dev/null new-session -d 'exec sleep 1000'",
        2,
    ),
    (
        "sqlite3 that is fed",
        "sleep 1000 | sqlite3 $D/db >$D/out &",
        2,
    ),
    (
        "subshell with a loop, as of at",
        "true | (while :; do sleep 1000; done) >$D/out 2>&1 &",
        2,
    ),
    (
        "group that is read",
        "true | { sleep 1000; echo; } | cat >$D/out &",
        3,
    ),
];

#[test]
fn pipelines_jobs_and_daemons_of_a_shell_are_neither_offered_nor_ended() {
    let mut wards: Vec<(Ward, &str, Vec<ProcessRef>)> = Vec::new();
    for (name, line, stay) in SHELL {
        let ward = Ward::new();
        let missing = ["tmux", "sqlite3", "script", "make"]
            .iter()
            .any(|program| line.contains(&format!("{program} ")) && tool(program).is_none());
        if missing {
            continue;
        }
        shell(&ward, line);
        let mut there = Vec::new();
        wait_for(&format!("{name}: {stay} processes stay"), || {
            there = ward.scope.survivors();
            (there.len() == *stay).then_some(())
        });
        wards.push((ward, name, there));
    }
    assert!(wards.len() >= 20, "most of the tools are installed");
    std::thread::scope(|threads| {
        for part in wards.chunks(wards.len().div_ceil(4)) {
            threads.spawn(move || part.iter().for_each(spared));
        }
    });
}

fn spared((ward, name, there): &(Ward, &str, Vec<ProcessRef>)) {
    let report = ward.doctor();
    assert!(offered(&report).is_empty(), "{name}: {report:#}");
    let ended = ward.kennel(&["reap", "--foreign", "--yes"]);
    assert_eq!(ended.code(), Some(0), "{name}: {}", ended.stderr);
    assert!(
        there.iter().all(ProcessRef::is_alive),
        "{name}: {}",
        ended.stdout
    );
}

/// Runs a line of bash in a session of its own, as a terminal does; bash exits at once.
fn shell(ward: &Ward, line: &str) {
    let mut bash = ward.command("setsid");
    bash.args(["--wait", "bash", "-c", line])
        .env("D", ward.scope.dir())
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null());
    let mut bash: Child = bash.spawn().unwrap();
    bash.wait().unwrap();
}

/// The pids of orphans that `doctor` would have ended.
fn offered(report: &Value) -> Vec<u32> {
    let findings = report["findings"].as_array().unwrap().iter();
    let findings = findings.filter(|finding| finding["check"] == "orphans");
    let mut pids: Vec<u32> = findings
        .map(|finding| u32::try_from(finding["pid"].as_u64().unwrap()).unwrap())
        .collect();
    pids.sort_unstable();
    pids
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
                    format!("sleep {seconds}")
                }
            });
        }
        lines.push_str(&format!("{} >$D/out &\n", words.join(" | ")));
    }
    shell(&ward, &lines);
    let wanted = orphans.len() + innocents.len();
    let mut there: Vec<(String, ProcessRef)> = Vec::new();
    wait_for("whoever stays is there, and nobody else", || {
        let seconds = |process: &ProcessRef| Some(process.command_line()?.get(1)?.clone());
        let survivors = ward.scope.survivors();
        let count = survivors.len();
        let named = survivors.into_iter();
        there = named
            .filter_map(|process| Some((seconds(&process)?, process)))
            .collect();
        (count == wanted && there.len() == wanted).then_some(())
    });
    let ended = ward.kennel(&["reap", "--foreign", "--yes"]);
    assert_eq!(ended.code(), Some(0), "round {round}: {}", ended.stderr);
    for (seconds, process) in &there {
        assert_eq!(
            process.is_alive(),
            !orphans.contains(seconds),
            "round {round}: sleep {seconds} of\n{lines}{}",
            ended.stdout
        );
    }
}
