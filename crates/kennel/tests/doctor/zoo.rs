//! Processes that look like orphans and are none: `doctor` does not offer them, and `reap --foreign` spares them.

use std::net::TcpListener;
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::process::Stdio;

use kennel_sys::process::ProcessRef;
use kennel_testkit::{bin, run, tool, wait_for};
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
        "idle_child(stdout=open(base, 'w'))",
        "writes its output to",
    ),
    (
        "launcher of a server, as a build tool",
        "child([sys.executable, '-c', \
        'import signal, socket; s = socket.create_server((\"127.0.0.1\", 0)); print(1, flush=True); signal.pause()'], \
        stdout=-1).stdout.read(1)",
        "network socket",
    ),
    (
        "launcher of a file watcher, as a language server",
        "child([sys.executable, '-c', \
        'import ctypes, signal; ctypes.CDLL(None).inotify_init(); print(1, flush=True); signal.pause()'], \
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
        other('import sys, time; f = open(sys.argv[1]); done(); time.sleep(1000)')",
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
    (
        "partner in a dialogue whose both ends it holds",
        "ours, theirs = keep(socket.socketpair()); \
        other('import time; done(); time.sleep(1000)', pass_fds=[theirs.fileno()])",
        "shares the socket",
    ),
    (
        // As one that waits for a disk: the parent of a `vfork` is in state D until the child runs a program.
        "job in a call that is not interrupted",
        "number = {'x86_64': 56, 'aarch64': 220}[os.uname().machine]; \
        [ready(), signal.pause()] if libc.syscall(number, 0x4011, 0, 0, 0, 0) == 0 else None",
        "for a disk",
    ),
    (
        "job that computes",
        "thread(lambda: [spin(0.02), time.sleep(0.02)])",
        "it computes",
    ),
    (
        "job that writes a file, as a download",
        "f = keep(open(base, 'wb', buffering=0)); thread(lambda: [f.write(b'x'), time.sleep(0.02)])",
        "writes to",
    ),
    (
        "job that opens, writes and closes files",
        "thread(lambda: [write_file(8192), time.sleep(0.02)])",
        "it writes",
    ),
    (
        "job that opens, reads and closes files",
        "write_file(8192); thread(lambda: [open(base, 'rb').read(), time.sleep(0.02)])",
        "it reads",
    ),
    (
        "user of a database that another process uses",
        "keep(open(base, 'w+')); \
        other('import os, sys, time; f = open(sys.argv[1], \"r+\"); done(); time.sleep(1000)')",
        "shares",
    ),
    (
        "user of a database that another process uses by a hard link",
        "keep(open(base, 'w+')); os.link(base, base + '.link'); \
        other('import os, sys, time; f = open(sys.argv[1] + \".link\", \"r+\"); done(); time.sleep(1000)')",
        "shares",
    ),
    (
        "user of named shared memory",
        "f = open(shm, 'w+b'); f.truncate(4096); keep(mmap.mmap(f.fileno(), 4096)); f.close()",
        "shared memory",
    ),
    (
        "user of memory that another process has mapped",
        "keep(mmap.mmap(-1, 4096)); forked()",
        "shares memory",
    ),
    (
        // Removed at once, and gone with its last user.
        "user of a System V segment",
        "i = libc.shmget(os.getpid(), 4096, 0o1600); libc.shmat(i, None, 0); libc.shmctl(i, 0, None)",
        "shared memory",
    ),
    (
        "user of a System V semaphore",
        "i = libc.semget(0, 1, 0o1600); made('-s', i); libc.semop(i, struct.pack('HhH', 0, 1, 0), 1)",
        "System V semaphore",
    ),
    (
        "waiter at a System V semaphore",
        "i = libc.semget(0, 1, 0o1600); made('-s', i); \
        blocked(lambda: libc.semop(i, struct.pack('HhH', 0, -1, 0), 1))",
        "System V semaphore",
    ),
    (
        "sender to a System V message queue",
        "i = libc.msgget(0, 0o1600); made('-q', i); libc.msgsnd(i, struct.pack('q8s', 1, b'x'), 8, 0)",
        "System V message queue",
    ),
    (
        "user of a POSIX message queue",
        "name = ('/' + os.path.basename(shm)).encode(); \
        assert libc.mq_open(name, os.O_CREAT | os.O_RDWR, 0o600, None) > 2; libc.mq_unlink(name)",
        "message queue",
    ),
    (
        "job that waits for a lock",
        "other('import fcntl, sys, time; f = open(sys.argv[1], \"w\"); fcntl.flock(f, 2); done(); time.sleep(1000)'); \
        f = open(base); thread(lambda: fcntl.flock(f, 2))",
        "waits for a lock",
    ),
    (
        "inetd-style server whose client only sends",
        "ours, theirs = socket.socketpair(); theirs.shutdown(socket.SHUT_RD); \
        other('import time; done(); time.sleep(1000)', pass_fds=[theirs.fileno()]); \
        theirs.close(); as_stdio(ours)",
        "is connected through a Unix socket",
    ),
    (
        "supervisor",
        "keep(os.pidfd_open(os.getppid())); pid = int(other('import time; done(); time.sleep(1000)')); \
        keep(os.pidfd_open(pid))",
        "as a supervisor does",
    ),
    (
        // A process whose first thread has ended shows no environment, by which a test finds it: it ends with its parent.
        "launcher of a server whose first thread has ended",
        "child([sys.executable, '-c', \
        'import ctypes, os, socket, threading; s = socket.create_server((\"127.0.0.1\", 0)); \
        threading.Thread(target=lambda: [ctypes.CDLL(None).prctl(1, 9), print(1, flush=True), s.accept()]).start(); \
        ctypes.CDLL(None).syscall({\"x86_64\": 60, \"aarch64\": 93}[os.uname().machine], 0)'], stdout=-1).stdout.read(1)",
        "network socket",
    ),
    (
        "server in a thread with descriptors of its own",
        "e = threading.Event(); threading.Thread(daemon=True, target=lambda: [libc.unshare(0x400), \
        keep(socket.create_server(('127.0.0.1', 0))), e.set(), threading.Event().wait()]).start(); \
        e.wait()",
        "network socket",
    ),
    (
        "server on io_uring",
        "r = libc.syscall(425, 4, ctypes.create_string_buffer(120)); assert r > 2; \
        s = socket.create_server(('127.0.0.1', 0)); \
        assert libc.syscall(427, r, 2, ctypes.byref(ctypes.c_int(s.fileno())), 1) == 0; s.close()",
        "keeps files in an io_uring",
    ),
    (
        "filter with unread input on a socket",
        "ours, theirs = socket.socketpair(); theirs.send(b'x'); theirs.close(); as_stdio(ours)",
        "has not read all",
    ),
    (
        "job with unread input on descriptor 3",
        "r, w = os.pipe(); os.write(w, b'x'); os.close(w)",
        "has not read all",
    ),
    (
        "tracer of a living process, as strace",
        "pid = int(other('import ctypes, time; ctypes.CDLL(None).prctl(0x59616d61, ctypes.c_ulong(-1)); \
        done(); time.sleep(1000)')); assert libc.ptrace(0x4206, pid, None, None) == 0",
        "traces pid",
    ),
    (
        "writer of a mapped file that another process maps to read",
        "f = open(base, 'w+b'); f.truncate(4096); libc.mmap(None, 4096, 3, 1, f.fileno(), ctypes.c_long(0)); f.close(); \
        other('import mmap, sys, time; f = open(sys.argv[1]); m = mmap.mmap(f.fileno(), 4096, prot=1); done(); time.sleep(1000)')",
        "shares memory",
    ),
    (
        "worker that another process wakes through an eventfd",
        "other('import time; done(); time.sleep(1000)', pass_fds=[libc.eventfd(0, 0)])",
        "shares an eventfd",
    ),
    ("job that sleeps", "ready(); time.sleep(1000)", "sleeps"),
    (
        "job that sleeps in a shell, as of at",
        "child(['sh', '-c', 'sleep 1000; :'], stdout=-1)",
        "sleeps",
    ),
    (
        "job that sleeps in poll",
        "ready(); libc.poll(None, 0, 1000000)",
        "sleeps",
    ),
    (
        "job that waits for events for a time",
        "import select; ready(); select.epoll().poll(1000)",
        "sleeps",
    ),
    (
        "job that waits for a lock for a time",
        "ready(); threading.Event().wait(1000)",
        "sleeps",
    ),
    (
        "job that waits for a signal for a time",
        "ready(); signal.sigtimedwait([signal.SIGUSR1], 1000)",
        "sleeps",
    ),
    (
        "job that a timerfd wakes",
        "libc.timerfd_settime(libc.timerfd_create(1, 0), 0, (ctypes.c_long * 4)(0, 0, 1000, 0), None)",
        "has a timer",
    ),
    (
        "job that a POSIX timer wakes",
        "assert libc.timer_create(1, None, ctypes.byref(ctypes.c_void_p())) == 0",
        "has a timer",
    ),
    (
        "holder of a lease",
        "open(base, 'w').close(); fcntl.fcntl(keep(open(base)), fcntl.F_SETLEASE, fcntl.F_RDLCK)",
        "lease",
    ),
];

/// Servers as inetd starts them: one connected socket is stdin and stdout. The app that started them is killed, the client
/// stays: name, and what it does. As long as somebody may read its output, none is even suspected.
const CONNECTED: &[(&str, &str)] = &[
    (
        "inetd-style server on TCP",
        "as_stdio(socket.create_connection(('127.0.0.1', port)))",
    ),
    (
        "inetd-style server on a Unix socket",
        "s = socket.socket(socket.AF_UNIX); s.connect(sock); as_stdio(s)",
    ),
];

/// The same after its client hung up.
const HUNG_UP: &str = "
ours, theirs = socket.socketpair()
theirs.close()
as_stdio(ours)
";

/// What the shapes are made of. `other` starts a process outside: adopted by init, and with nothing on its stdio.
const PRELUDE: &str = "
import ctypes, fcntl, mmap, os, signal, socket, struct, subprocess, sys, threading, time
base, port, sock = sys.argv[1], int(sys.argv[2]), sys.argv[3]
shm = '/dev/shm/' + os.path.basename(os.path.dirname(base))
libc = ctypes.CDLL(None)
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
    return child([sys.executable, '-c', 'import signal; signal.pause()'], **options)
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
import multiprocessing, select, sqlite3
keep(os.pipe()); keep(socket.socketpair()); keep(select.epoll()); keep(open('/dev/urandom')); keep(open('/dev/null'))
keep(open(base, 'w')); fcntl.flock(kept[-1], 2)
db = keep(sqlite3.connect(base + '.db'))
db.execute('pragma journal_mode=wal'); db.execute('create table a(b)'); db.execute('select * from a').fetchall()
keep(open(base + '.log', 'a')).write('started'); kept[-1].flush()
keep(mmap.mmap(-1, 4096))
keep(multiprocessing.Lock())
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

struct Zoo {
    ward: Ward,
    tcp: TcpListener,
    _unix: UnixListener,
}

impl Drop for Zoo {
    /// Removes what outlives the processes that made it.
    fn drop(&mut self) {
        let dir = self.ward.scope.dir();
        let _ = std::fs::remove_file(Path::new("/dev/shm").join(dir.file_name().unwrap()));
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
        let code = format!("{PRELUDE}\n{code}\nready()\nsignal.pause()\n");
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
    let zoo = Zoo::new();
    let mut innocents: Vec<Family> = ABANDONED
        .iter()
        .enumerate()
        .map(|(number, (_, code, _))| zoo.start(number, code))
        .collect();
    let orphans = [ORDINARY, TWIN, TWIN, COMMON_LOG, HUNG_UP];
    let started = orphans.iter().enumerate();
    let mut guilty: Vec<Family> = started
        .map(|(number, code)| zoo.start(ABANDONED.len() + number, code))
        .collect();
    guilty.push(zoo.ward.family(&[], &["tk-idle"]));
    let before = ABANDONED.len() + orphans.len();
    let started = CONNECTED.iter().enumerate();
    let mut connected: Vec<Family> = started
        .map(|(number, (_, code))| zoo.start(before + number, code))
        .collect();
    (0..before + CONNECTED.len()).for_each(|number| zoo.is_ready(number));
    let waited_for = ABANDONED.iter().enumerate();
    let waited_for = waited_for.filter(|(_, (.., words))| words.starts_with("waits for"));
    waited_for.for_each(|(number, _)| zoo.has_waiter(number));
    innocents
        .iter_mut()
        .chain(&mut guilty)
        .chain(&mut connected)
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
    for (family, (name, _)) in connected.iter().zip(CONNECTED) {
        let pid = family.child.pid();
        let suspected = shown.iter().any(|shown| shown["pid"] == pid);
        assert!(!suspected, "{name} is suspected: {report:#}");
    }

    let ended = zoo.ward.kennel(&["reap", "--foreign", "--yes", "--json"]);
    assert_eq!(ended.code(), Some(0), "{}", ended.stderr);
    let done: Value = serde_json::from_str(&ended.stdout).unwrap();
    assert_eq!(done["foreign"].as_array().unwrap().len(), guilty.len());
    assert_eq!(done["in_doubt"].as_array().unwrap().len(), ABANDONED.len());
    for (family, (name, ..)) in innocents.iter().zip(ABANDONED) {
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
    signal.pause()
os.waitpid(child, 0)
";

#[test]
fn suspects_whose_common_stderr_is_read_are_in_doubt() {
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
    os.close(gone); os.close(worker); signal.pause()
os.close(worker)
os.setsid()
os.read(gone, 1)
";

#[test]
fn a_process_whose_parent_left_their_session_is_in_doubt() {
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

#[test]
fn needs_root_a_frozen_process_is_in_doubt() {
    let zoo = Zoo::new();
    let mut family = zoo.ward.family(&[], &["tk-idle"]);
    family.kill_app();
    let pid = family.child.pid();
    assert_eq!(zoo.ward.orphans(), [pid]);
    let group = Frozen::new(pid);
    let report = zoo.ward.doctor();
    assert_eq!(offered(&report), [0; 0], "{report:#}");
    let doubts = report["in_doubt"][0]["doubts"].to_string();
    assert!(doubts.contains("is frozen"), "{report:#}");
    drop(group);
    assert_eq!(zoo.ward.orphans(), [pid]);
}

#[test]
fn needs_root_a_database_of_a_user_whose_processes_are_hidden_is_a_doubt() {
    use std::os::unix::fs::PermissionsExt;
    let zoo = Zoo::new();
    let open_to = |path: &Path, mode: u32| {
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).unwrap();
    };
    let database = zoo.ward.scope.path("database");
    std::fs::write(&database, "").unwrap();
    open_to(&database, 0o666);
    let [idle, app] = ["tk-idle", "tk-parent"].map(|name| zoo.ward.copied_for_all(&bin(name)));
    let kennel = zoo
        .ward
        .copied_for_all(Path::new(env!("CARGO_BIN_EXE_kennel")));
    const AS_NOBODY: [&str; 3] = ["--reuid=65534", "--regid=65534", "--clear-groups"];
    let mut command = zoo.ward.command("setpriv");
    command.args(AS_NOBODY).args([&app, "--", "sh", "-c"]);
    command
        .args(["exec \"$0\" 3<>\"$1\"", &idle])
        .arg(&database);
    let mut family = Family::start(&mut command);
    wait_for("it has the database open", || {
        let words = family.child.command_line()?;
        (words == [idle.as_str()]).then_some(())
    });
    family.kill_app();
    let mut command = zoo.ward.restricted("setpriv");
    let ended = run(command.args(AS_NOBODY).args([&kennel, "doctor", "--json"]));
    let report: Value = serde_json::from_str(&ended.stdout).unwrap();
    assert_eq!(offered(&report), [0; 0], "{report:#}");
    let doubts = report["in_doubt"][0]["doubts"].to_string();
    assert!(doubts.contains("hides its open files"), "{report:#}");
    assert_eq!(zoo.ward.orphans(), [family.child.pid()], "root sees all");
}

/// A control group with one process, frozen until this is dropped.
struct Frozen {
    group: PathBuf,
    parent: PathBuf,
}

impl Frozen {
    fn new(pid: u32) -> Frozen {
        let roots = ["/sys/fs/cgroup", "/sys/fs/cgroup/unified"].map(PathBuf::from);
        let mut roots = roots.into_iter();
        let parent = roots.find(|root| root.join("cgroup.procs").exists());
        let parent = parent.expect("control groups of version 2");
        let group = parent.join(format!("kennel-zoo-{pid}"));
        std::fs::create_dir(&group).unwrap();
        let frozen = Frozen { group, parent };
        std::fs::write(frozen.group.join("cgroup.procs"), pid.to_string()).unwrap();
        std::fs::write(frozen.group.join("cgroup.freeze"), "1").unwrap();
        wait_for("it is frozen", || {
            let events = std::fs::read_to_string(frozen.group.join("cgroup.events")).unwrap();
            events.contains("frozen 1").then_some(())
        });
        frozen
    }
}

impl Drop for Frozen {
    fn drop(&mut self) {
        let _ = std::fs::write(self.group.join("cgroup.freeze"), "0");
        let pids = std::fs::read_to_string(self.group.join("cgroup.procs")).unwrap_or_default();
        for pid in pids.lines() {
            let _ = std::fs::write(self.parent.join("cgroup.procs"), pid);
        }
        let _ = std::fs::remove_dir(&self.group);
    }
}

#[test]
fn needs_root_the_init_of_a_pid_namespace_with_others_in_it_is_in_doubt() {
    let zoo = Zoo::new();
    let words = ["unshare", "--pid", "--fork", "tk-idle", "1"];
    let mut family = zoo.ward.family(&[], &words);
    let init = wait_for("the init runs its program", || {
        let init = family.grandchild();
        let is_idle = init.command_line()?.first()? == "tk-idle";
        is_idle.then(|| init.pid().to_string())
    });
    let mut inside = zoo.ward.command("nsenter");
    inside.args(["-t", &init, "--pid", "tk-idle", "2"]);
    let mut inside = inside
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .spawn()
        .unwrap();
    wait_for("a process entered the namespace", || {
        let all = zoo.ward.scope.survivors();
        let is_inside = |process: &ProcessRef| {
            process
                .command_line()
                .is_some_and(|it| it == ["tk-idle", "2"])
        };
        all.iter().any(is_inside).then_some(())
    });
    family.kill_app();
    let report = zoo.ward.doctor();
    assert_eq!(offered(&report), [0; 0], "{report:#}");
    let doubts = report["in_doubt"][0]["doubts"].to_string();
    assert!(doubts.contains("is the init of pid"), "{report:#}");
    inside.kill().unwrap();
    inside.wait().unwrap();
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
