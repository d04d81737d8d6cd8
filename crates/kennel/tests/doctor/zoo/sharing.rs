//! Processes that share something with others: locks, files, memory, System V objects, or that watch them.

use super::Shape;

pub(super) const SHAPES: &[Shape] = &[
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
        "supervisor",
        "keep(os.pidfd_open(os.getppid())); pid = int(other('import time; done(); time.sleep(1000)')); \
        keep(os.pidfd_open(pid))",
        "as a supervisor does",
    ),
    (
        "worker that another process signals by its pidfd",
        "other('import os, time; f = os.pidfd_open(%d); done(); time.sleep(1000)' % os.getpid())",
        "which has a pidfd of it",
    ),
    (
        "launcher of a worker that another process waits for by its pidfd",
        "other('import os, time; f = os.pidfd_open(%d); done(); time.sleep(1000)' % idle_child(stdout=-1).pid)",
        "which has a pidfd of it",
    ),
    (
        "worker that another process signals by its directory in /proc",
        "other('import os, time; f = os.open(\"/proc/%d\", os.O_RDONLY); done(); time.sleep(1000)' % os.getpid())",
        "may be used by pid",
    ),
    (
        "worker whose memory another process writes",
        "other('import os, time; f = os.open(\"/proc/%d/mem\", os.O_RDWR); done(); time.sleep(1000)' % os.getpid())",
        "may be used by pid",
    ),
    (
        "writer of a file whose end another process awaits",
        "keep(open(base, 'w')); other('import ctypes, sys, time; libc = ctypes.CDLL(None); \
        watch = libc.inotify_add_watch(libc.inotify_init1(0), sys.argv[1].encode(), 8); \
        assert watch > 0; done(); time.sleep(1000)')",
        "watches",
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
        "reader of a mapped file that another process writes to",
        "f = open(base, 'w+b'); f.truncate(4096); f.close(); \
        other('import mmap, sys, time; f = open(sys.argv[1], \"r+b\"); m = mmap.mmap(f.fileno(), 4096); done(); time.sleep(1000)'); \
        f = open(base, 'rb'); libc.mmap(None, 4096, 1, 1, f.fileno(), ctypes.c_long(0)); f.close()",
        "shares memory",
    ),
    (
        "reader of named shared memory",
        "f = open(shm + '.read', 'w+b'); f.truncate(4096); f.close(); f = open(shm + '.read', 'rb'); \
        libc.mmap(None, 4096, 1, 1, f.fileno(), ctypes.c_long(0)); f.close()",
        "shared memory",
    ),
    (
        "user of asynchronous I/O",
        "context = ctypes.c_ulong(0); setup = 206 if os.uname().machine == 'x86_64' else 0; \
        assert libc.syscall(setup, 8, ctypes.byref(context)) == 0",
        "asynchronous I/O",
    ),
    (
        "worker that another process wakes through an eventfd",
        "other('import time; done(); time.sleep(1000)', pass_fds=[libc.eventfd(0, 0)])",
        "shares an eventfd",
    ),
    (
        "holder of a lease",
        "open(base, 'w').close(); fcntl.fcntl(keep(open(base)), fcntl.F_SETLEASE, fcntl.F_RDLCK)",
        "lease",
    ),
];
