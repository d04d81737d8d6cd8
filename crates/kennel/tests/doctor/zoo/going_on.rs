//! Processes that work, or may go on by themselves or when somebody continues them.

use super::Shape;

pub(super) const SHAPES: &[Shape] = &[
    (
        "program stopped by its person",
        "ready(); os.kill(os.getpid(), 19)",
        "is stopped",
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
        // The kernel notes who used it last, and that is another process.
        "waiter at a System V semaphore that another process used last",
        "i = libc.semget(0, 1, 0o1600); made('-s', i); \
        other('import ctypes, struct, time; libc = ctypes.CDLL(None); \
        [libc.semop(%d, struct.pack(\"HhH\", 0, step, 0), 1) for step in (1, -1)]; done(); time.sleep(1000)' % i); \
        blocked(lambda: libc.semop(i, struct.pack('HhH', 0, -1, 0), 1))",
        "waits at a System V semaphore",
    ),
    (
        "waiter at a System V semaphore",
        "i = libc.semget(0, 1, 0o1600); made('-s', i); \
        blocked(lambda: libc.semop(i, struct.pack('HhH', 0, -1, 0), 1))",
        "System V semaphore",
    ),
    (
        "job that waits for a lock",
        "other('import fcntl, sys, time; f = open(sys.argv[1], \"w\"); fcntl.flock(f, 2); done(); time.sleep(1000)'); \
        f = open(base); thread(lambda: fcntl.flock(f, 2))",
        "waits for a lock",
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
];
