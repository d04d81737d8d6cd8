//! Processes that wait for something else than a server without work does, or of which one thread does.

use super::Shape;

pub(super) const SHAPES: &[Shape] = &[
    (
        "job that sleeps in a thread",
        "thread(lambda: time.sleep(1000))",
        "sleeps",
    ),
    (
        "job that waits for a thread that sleeps",
        "t = threading.Thread(target=time.sleep, args=[1000]); t.start(); ready(); t.join()",
        "sleeps",
    ),
    (
        "job with a timer in a thread",
        "threading.Timer(1000, print).start()",
        "sleeps",
    ),
    (
        "job in a pool of threads",
        "import concurrent.futures; pool = keep(concurrent.futures.ThreadPoolExecutor()); \
        job = pool.submit(time.sleep, 1000); ready(); job.result()",
        "sleeps",
    ),
    (
        "worker that waits for a queue for a time",
        "import queue; q = queue.Queue(); thread(lambda: q.get(timeout=1000))",
        "sleeps",
    ),
    (
        "reader that waits until a named pipe is opened",
        "os.mkfifo(base); ready(); os.open(base, os.O_RDONLY)",
        "to be opened",
    ),
    (
        "writer that waits in a thread until a named pipe is opened",
        "os.mkfifo(base); thread(lambda: os.open(base, os.O_WRONLY))",
        "to be opened",
    ),
    (
        "worker of a shell that waits until a named pipe is opened",
        "os.mkfifo(base); child(['sh', '-c', 'while read x <\"$0\"; do :; done', base], stdout=-1)",
        "to be opened",
    ),
    (
        // The kernel does not list waiters for these by their pid.
        "job that waits for a lock of an open file description",
        "lock = struct.pack('hhqqi', fcntl.F_WRLCK, 0, 0, 0, 0); \
        other('import fcntl, os, sys, time; f = os.open(sys.argv[1], os.O_RDWR | os.O_CREAT); \
        fcntl.fcntl(f, 37, ' + repr(lock) + '); done(); time.sleep(1000)'); \
        f = keep(open(base, 'rb')); lock = struct.pack('hhqqi', fcntl.F_RDLCK, 0, 0, 0, 0); \
        thread(lambda: fcntl.fcntl(f, 38, lock))",
        "waits for a lock",
    ),
    (
        "watcher of the mount table",
        "f = keep(open('/proc/self/mounts')); p = select.poll(); p.register(f, select.POLLPRI); ready(); p.poll()",
        "a file of the kernel that it may watch",
    ),
    (
        "watcher of the mount table by epoll",
        "f = keep(open('/proc/self/mounts')); p = select.epoll(); p.register(f, select.EPOLLPRI); ready(); p.poll()",
        "a file of the kernel that it may watch",
    ),
    (
        "job that waits for a signal",
        "ready(); signal.pause()",
        "waits for a signal",
    ),
    (
        "job that waits for a signal in a thread",
        "thread(lambda: signal.sigwait([signal.SIGUSR1]))",
        "waits for a signal",
    ),
    (
        "job that an alarm wakes",
        "signal.signal(signal.SIGALRM, lambda *_: None); signal.alarm(1000)",
        "catches SIGALRM",
    ),
    (
        "job that an alarm wakes through a signalfd",
        "signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGALRM]); mask = ctypes.c_ulong(1 << 13); \
        assert libc.signalfd(-1, ctypes.byref(mask), 0) > 2; signal.alarm(1000)",
        "has a timer",
    ),
    (
        // IORING_ENTER_GETEVENTS | IORING_ENTER_EXT_ARG
        "job that waits for an io_uring for a time",
        "time_limit = (ctypes.c_long * 2)(1000, 0); \
        argument = (ctypes.c_ulong * 3)(0, 8, ctypes.addressof(time_limit)); \
        r = ring()[0]; thread(lambda: libc.syscall(426, r, 0, 1, 9, argument, ctypes.c_long(24)))",
        "waits for an io_uring",
    ),
    (
        // IORING_OP_TIMEOUT
        "job that a timer of an io_uring wakes",
        "r, p = ring(); kept.append(time_limit := (ctypes.c_long * 2)(1000, 0)); \
        offset = lambda at: struct.unpack_from('I', p, at)[0]; \
        queue = keep(mmap.mmap(r, 4096)); entries = keep(mmap.mmap(r, 4096, offset=0x10000000)); \
        struct.pack_into('BBHiQQI', entries, 0, 11, 0, 0, -1, 0, ctypes.addressof(time_limit), 1); \
        struct.pack_into('I', queue, offset(64), 0); struct.pack_into('I', queue, offset(44), 1); \
        assert libc.syscall(426, r, 1, 0, 0, None, 0) == 1",
        "has an io_uring",
    ),
    (
        // Nothing shows whether operations are in flight: one submission can have many completions.
        "job with an io_uring",
        "ring()",
        "has an io_uring",
    ),
    (
        "job with an io_uring whose descriptor is closed",
        "r = ring()[0]; assert libc.mmap(None, 4096, 3, 1, r, ctypes.c_long(0)) != -1; os.close(r)",
        "has an io_uring",
    ),
    (
        "reader of a socket with a time limit",
        "ours, theirs = keep(socket.socketpair()); \
        ours.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, struct.pack('ll', 1000, 0)); \
        ready(); os.read(ours.fileno(), 1)",
        "sleeps",
    ),
    (
        "writer whose own reader does not read",
        "r, w = os.pipe(); ready(); os.write(w, bytes(1 << 20))",
        "in which servers do not wait",
    ),
    (
        // Whoever has a job maps the file for a moment.
        "worker that waits for jobs at a futex in a mapped file",
        "f = open(base, 'w+b'); f.truncate(4096); m = keep(mmap.mmap(f.fileno(), 4096)); f.close(); ready(); futex(m)",
        "at a futex in shared memory",
    ),
    (
        "worker that waits in a thread at a futex in a mapped file that it may only read",
        "f = open(base, 'w+b'); f.truncate(4096); f.close(); f = open(base, 'rb'); \
        libc.mmap.restype = ctypes.c_void_p; at = libc.mmap(None, 4096, 1, 1, f.fileno(), ctypes.c_long(0)); \
        f.close(); thread(lambda: futex_at(at))",
        "at a futex in shared memory",
    ),
    (
        "job that waits at a futex in shared memory without a name, as of a lock of its workers",
        "m = keep(mmap.mmap(-1, 4096)); thread(lambda: futex(m))",
        "at a futex in shared memory",
    ),
];
