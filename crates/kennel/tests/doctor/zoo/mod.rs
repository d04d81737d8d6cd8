//! Processes that look like orphans and are none: `doctor` does not offer them, and `reap --foreign` spares them.

mod going_on;
mod lone;
mod reachable;
mod root;
mod sharing;
mod waiting;

use std::net::TcpListener;
use std::os::unix::net::UnixListener;
use std::path::Path;

use kennel_testkit::{Subject, run, skipped, tool, wait_for};
use serde_json::Value;

use self::reachable::{CONNECTED, HUNG_UP};

use crate::stage::{Family, Ward, wait_until_blocked};

/// An innocent shape that keeps nothing of its starter but one thing others may need: name, what it does, and words of
/// the doubt that spares it. Each is started by an app with pipes as stdin and stdout, and the app is killed. `base` is
/// a path of its own, `port` and `sock` where the test listens.
type Shape = (&'static str, &'static str, &'static str);

fn abandoned() -> Vec<Shape> {
    let all = [
        reachable::SHAPES,
        sharing::SHAPES,
        going_on::SHAPES,
        waiting::SHAPES,
    ];
    all.concat()
}

/// What the shapes are made of. `other` starts a process outside: adopted by init, and with nothing on its stdio.
const PRELUDE: &str = "
import ctypes, fcntl, mmap, os, select, signal, socket, struct, subprocess, sys, threading, time
base, port, sock = sys.argv[1], int(sys.argv[2]), sys.argv[3]
shm = '/dev/shm/' + os.path.basename(os.path.dirname(base))
libc = ctypes.CDLL(None)
# Where Yama is strict, this lets the doctor see what it waits for.
libc.prctl(0x59616d61, ctypes.c_ulong(-1))
kept = []
DONE = '''
def done():
    import os, sys
    open(sys.argv[1] + '.o', 'w').write(str(os.getpid()))
    os.rename(sys.argv[1] + '.o', sys.argv[1] + '.other')
'''
def keep(it):
    kept.append(it)
    return it
def ready():
    open(base + '.ready', 'w').close()
def thread(work):
    def again():
        while True: work()
    threading.Thread(target=again, daemon=True).start()
def spin(seconds):
    end = time.monotonic() + seconds
    while time.monotonic() < end: pass
def write_file(size):
    with open(base, 'wb') as f: f.write(bytes(size))
def made(kind, number):
    with open(base + '.ipc', 'w') as f: f.write('%s %d' % (kind, number))
def blocked(call):
    thread(call)
    # semop and semtimedop, of x86-64 and of AArch64.
    calls = lambda: [open('/proc/self/task/%s/syscall' % task).read().split()[0] for task in os.listdir('/proc/self/task')]
    while not set(calls()) & {'65', '220', '192', '193'}: time.sleep(0.01)
def forked():
    child = os.fork()
    if child == 0:
        if os.fork(): os._exit(0)
        os.setsid()
        null = os.open('/dev/null', os.O_RDWR)
        [os.dup2(null, fd) for fd in range(3)]
        time.sleep(1000)
    os.waitpid(child, 0)
def child(words, **options):
    return keep(subprocess.Popen(words, stdin=subprocess.DEVNULL, **options))
def idle_child(**options):
    code = 'import ctypes, select; ctypes.CDLL(None).prctl(0x59616d61, ctypes.c_ulong(-1)); select.epoll().poll()'
    return child([sys.executable, '-c', code], **options)
def idle():
    # As a server waits for events.
    select.epoll().poll()
def ring():
    parameters = ctypes.create_string_buffer(120)
    ring = libc.syscall(425, 4, parameters)
    assert ring > 2
    return ring, parameters
def futex_at(address):
    # FUTEX_WAIT without FUTEX_PRIVATE_FLAG, on x86-64 and on AArch64.
    call = 202 if os.uname().machine == 'x86_64' else 98
    while True: libc.syscall(call, ctypes.c_void_p(address), 0, 0, None, None, 0)
def futex(memory):
    futex_at(ctypes.addressof(ctypes.c_char.from_buffer(memory)))
def as_stdio(s):
    [os.dup2(s.fileno(), fd) for fd in (0, 1)]
    s.close()
def unix_server(name):
    s = keep(socket.socket(socket.AF_UNIX))
    s.bind(name)
    s.listen()
def other(code, pass_fds=()):
    null = subprocess.DEVNULL
    # `done()` says that it has what it shall have; the caller waits for it, and gets its pid.
    waits = 'done()' in code
    code = 'import os\\nif os.fork(): os._exit(0)\\nos.setsid()\\n' + DONE + code
    subprocess.run([sys.executable, '-c', code, base], pass_fds=pass_fds, stdin=null, stdout=null, stderr=null)
    while waits and not os.path.exists(base + '.other'): time.sleep(0.01)
    return open(base + '.other').read() if waits else None
";

/// A server like any other: what it has open leads to itself, to its child or to nobody.
const ORDINARY: &str = "
import multiprocessing, sqlite3
keep(os.pipe()); keep(socket.socketpair()); keep(select.epoll()); keep(open('/dev/urandom')); keep(open('/dev/null'))
keep(open(base, 'w')); fcntl.flock(kept[-1], 2)
db = keep(sqlite3.connect(base + '.db'))
db.execute('pragma journal_mode=wal'); db.execute('create table a(b)'); db.execute('select * from a').fetchall()
keep(open(base + '.log', 'a')).write('started'); kept[-1].flush()
keep(mmap.mmap(-1, 4096))
keep(multiprocessing.Lock())
own = keep(ctypes.c_int(0))
thread(lambda: futex_at(ctypes.addressof(own)))
keep(os.eventfd(0)) if hasattr(os, 'eventfd') else None
keep(os.pidfd_open(idle_child(stdout=-1, stderr=-1).pid)); keep(os.pidfd_open(os.getppid()))
";

/// Two orphans of one server, which use the same database and log.
const TWIN: &str = "
import sqlite3
db = keep(sqlite3.connect(sock + '.db', timeout=60))
db.execute('pragma journal_mode=wal'); db.execute('create table if not exists a(b)'); db.execute('select * from a').fetchall()
keep(open(sock + '.log', 'a')).write('started'); kept[-1].flush()
";

/// A server that appends to a log to which a living process appends too.
const COMMON_LOG: &str = "
keep(open(base, 'a'))
other('import sys, time; f = open(sys.argv[1], \"a\"); done(); time.sleep(1000)')
";

/// An orphan that another search for orphans has a pidfd of, on a busy machine for long.
const SEARCHED: &str = "
os.mkdir(base + '.d')
with open(base + '.d/doctor', 'w') as f: f.write(f'''
import os, time
if os.fork(): os._exit(0)
os.setsid()
open('/proc/self/comm', 'w').write('kennel')
f = os.pidfd_open({os.getpid()})
open('{base}.other', 'w').close()
time.sleep(1000)
''')
null = subprocess.DEVNULL
subprocess.run(['kennel', 'doctor'], executable=sys.executable, cwd=base + '.d',
    env=dict(os.environ, PYTHONHOME=sys.prefix), stdin=null, stdout=null, stderr=null)
while not os.path.exists(base + '.other'): time.sleep(0.01)
";

struct Zoo {
    ward: Ward,
    tcp: TcpListener,
    _unix: UnixListener,
}

impl Drop for Zoo {
    /// Removes what outlives the processes that made it.
    fn drop(&mut self) {
        let dir = self.ward.scope.dir();
        let shared = Path::new("/dev/shm").join(dir.file_name().unwrap());
        for memory in [shared.clone(), shared.with_added_extension("read")] {
            let _ = std::fs::remove_file(memory);
        }
        for entry in std::fs::read_dir(dir).unwrap().flatten() {
            let path = entry.path();
            if path.extension().is_some_and(|ending| ending == "ipc") {
                let object = std::fs::read_to_string(path).unwrap();
                let _ = run(self.ward.command("ipcrm").args(object.split(' ')));
            }
        }
    }
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
        let code = format!("{PRELUDE}\n{code}\nready()\nidle()\n");
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

    /// Waits until a process waits for a lock on the file of a shape.
    fn has_waiter(&self, number: usize) {
        use std::os::unix::fs::MetadataExt;
        let file = self.ward.scope.path(format!("shape-{number}"));
        let inode = format!(":{}", file.metadata().unwrap().ino());
        wait_for(&format!("a waiter for the lock of shape {number}"), || {
            let locks = std::fs::read_to_string("/proc/locks").unwrap();
            let mut waiters = locks.lines().filter(|line| line.contains("->"));
            let of_file = |line: &str| line.split(' ').any(|word| word.ends_with(&inode));
            waiters.any(of_file).then_some(())
        });
    }
}

#[test]
fn a_process_that_others_may_need_is_shown_with_the_reason_and_neither_offered_nor_ended() {
    if tool("python3").is_none() {
        return skipped("python3 is not installed");
    }
    let zoo = Zoo::new();
    let abandoned = abandoned();
    let mut innocents: Vec<Family> = abandoned
        .iter()
        .enumerate()
        .map(|(number, (_, code, _))| zoo.start(number, code))
        .collect();
    let orphans = [ORDINARY, TWIN, TWIN, COMMON_LOG, HUNG_UP, SEARCHED];
    let started = orphans.iter().enumerate();
    let mut guilty: Vec<Family> = started
        .map(|(number, code)| zoo.start(abandoned.len() + number, code))
        .collect();
    guilty.push(zoo.ward.family(&[], &["tk-idle"]));
    let before = abandoned.len() + orphans.len();
    let started = CONNECTED.iter().enumerate();
    let mut connected: Vec<Family> = started
        .map(|(number, (_, code))| zoo.start(before + number, code))
        .collect();
    (0..before + CONNECTED.len()).for_each(|number| zoo.is_ready(number));
    let waited_for = abandoned.iter().enumerate();
    let waited_for =
        waited_for.filter(|(_, (.., words))| ["waits for", "waits for a lock"].contains(words));
    waited_for.for_each(|(number, _)| zoo.has_waiter(number));
    guilty
        .iter()
        .for_each(|family| wait_until_blocked(family.child.pid()));
    innocents
        .iter_mut()
        .chain(&mut guilty)
        .chain(&mut connected)
        .for_each(Family::kill_app);
    let everyone = zoo.ward.scope.survivors().into_iter();
    let everyone: Vec<Subject> = everyone.map(Subject::from).collect();

    let report = zoo.ward.doctor();
    let mut expected: Vec<u32> = guilty.iter().map(|family| family.child.pid()).collect();
    expected.sort_unstable();
    assert_eq!(
        offered(&report),
        expected,
        "exactly the orphans: {report:#}"
    );
    let shown = report["in_doubt"].as_array().unwrap();
    for (family, (name, _, words)) in innocents.iter().zip(&abandoned) {
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
    for (family, (name, _)) in connected.iter().zip(CONNECTED) {
        let pid = family.child.pid();
        let suspected = shown.iter().any(|shown| shown["pid"] == pid);
        assert!(!suspected, "{name} is suspected: {report:#}");
    }

    let ended = zoo.ward.kennel(&["reap", "--foreign", "--yes", "--json"]);
    assert_eq!(ended.code(), Some(0), "{}", ended.stderr);
    let done: Value = serde_json::from_str(&ended.stdout).unwrap();
    assert_eq!(done["foreign"].as_array().unwrap().len(), guilty.len());
    assert_eq!(done["in_doubt"].as_array().unwrap().len(), abandoned.len());
    for (family, (name, ..)) in innocents.iter().zip(&abandoned) {
        assert!(family.child.is_alive(), "{name} was ended");
    }
    for (family, (name, _)) in connected.iter().zip(CONNECTED) {
        assert!(family.child.is_alive(), "{name} was ended");
    }
    assert!(guilty.iter().all(|family| !family.child.is_alive()));
    // The guilty, and the child of one of them.
    let left = everyone.iter().filter(|process| process.is_alive()).count();
    assert_eq!(
        left,
        everyone.len() - guilty.len() - 1,
        "whoever was started beside them lives"
    );
}

/// Two suspects of one session that share a stderr, which a living process reads.
const TWO_WITH_ONE_STDERR: &str = "
r, w = os.pipe()
other('import time; done(); time.sleep(1000)', pass_fds=[r])
os.close(r)
os.dup2(w, 2)
os.close(w)
child = os.fork()
if child == 0:
    if os.fork(): os._exit(0)
    idle()
os.waitpid(child, 0)
";

#[test]
fn suspects_whose_common_stderr_is_read_are_in_doubt() {
    if tool("python3").is_none() {
        return skipped("python3 is not installed");
    }
    let zoo = Zoo::new();
    let mut family = zoo.start(0, TWO_WITH_ONE_STDERR);
    zoo.is_ready(0);
    family.kill_app();
    let report = zoo.ward.doctor();
    assert_eq!(offered(&report), [0; 0], "{report:#}");
    let shown = report["in_doubt"].as_array().unwrap();
    assert_eq!(shown.len(), 2, "{report:#}");
    for shown in shown {
        let doubts = shown["doubts"].to_string();
        assert!(doubts.contains("has its stderr open"), "{doubts}");
    }
}

/// A parent that starts a worker, which nobody can talk to, and then leaves their session.
const PARENT_IN_A_NEW_SESSION: &str = "
gone, worker = os.pipe()
if os.fork() == 0:
    r, w = os.pipe(); os.dup2(r, 0); os.close(r); os.close(w)
    r, w = os.pipe(); os.dup2(w, 1); os.close(r); os.close(w)
    os.close(gone); os.close(worker); idle()
os.close(worker)
os.setsid()
os.read(gone, 1)
";

#[test]
fn a_process_whose_parent_left_their_session_is_in_doubt() {
    if tool("python3").is_none() {
        return skipped("python3 is not installed");
    }
    let zoo = Zoo::new();
    let family = zoo.start(0, PARENT_IN_A_NEW_SESSION);
    zoo.is_ready(0);
    let report = zoo.ward.doctor();
    assert_eq!(offered(&report), [0; 0], "{report:#}");
    let shown = &report["in_doubt"][0];
    assert_eq!(shown["pid"], family.grandchild().pid(), "{report:#}");
    let doubts = shown["doubts"].to_string();
    assert!(
        doubts.contains("its parent may have started it"),
        "{doubts}"
    );
}

/// Two suspects that share an eventfd, one of which sleeps.
const PARTNER_OF_A_SLEEPER: &str = "
libc.eventfd(0, 0)
child = os.fork()
if child == 0:
    if os.fork(): os._exit(0)
    time.sleep(1000)
os.waitpid(child, 0)
";

#[test]
fn a_partner_of_a_suspect_in_doubt_is_in_doubt() {
    if tool("python3").is_none() {
        return skipped("python3 is not installed");
    }
    let zoo = Zoo::new();
    let mut family = zoo.start(0, PARTNER_OF_A_SLEEPER);
    zoo.is_ready(0);
    family.kill_app();
    let report = zoo.ward.doctor();
    assert_eq!(offered(&report), [0; 0], "{report:#}");
    let shown = report["in_doubt"].as_array().unwrap();
    let pid = family.child.pid();
    let shown = shown.iter().find(|shown| shown["pid"] == pid);
    let doubts = shown.expect("it is shown")["doubts"].to_string();
    assert!(doubts.contains("shares an eventfd"), "{doubts}");
}

/// The pids of orphans that `doctor` would have ended.
pub(crate) fn offered(report: &Value) -> Vec<u32> {
    let findings = report["findings"].as_array().unwrap().iter();
    let findings = findings.filter(|finding| finding["check"] == "orphans");
    let mut pids: Vec<u32> = findings
        .map(|finding| u32::try_from(finding["pid"].as_u64().unwrap()).unwrap())
        .collect();
    pids.sort_unstable();
    pids
}
