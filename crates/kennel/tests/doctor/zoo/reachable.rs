//! Processes that others can reach: through sockets, pipes, terminals, or a watch on files.

use super::Shape;

pub(super) const SHAPES: &[Shape] = &[
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
        "socket whose other end was sent and not received yet",
        "ours, theirs = socket.socketpair(); keep(ours); s = socket.socket(socket.AF_UNIX); s.connect(sock); \
        socket.send_fds(s, [b'x'], [theirs.fileno()]); s.close(); theirs.close()",
        "connected through",
    ),
    (
        "writer to a pipe whose reader was sent and not received yet",
        "r, w = os.pipe(); s = socket.socket(socket.AF_UNIX); s.connect(sock); \
        socket.send_fds(s, [b'x'], [r]); s.close(); os.close(r)",
        "is still read through",
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
        "inetd-style server whose client only sends",
        "ours, theirs = socket.socketpair(); theirs.shutdown(socket.SHUT_RD); \
        other('import time; done(); time.sleep(1000)', pass_fds=[theirs.fileno()]); \
        theirs.close(); as_stdio(ours)",
        "is connected through a Unix socket",
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
        "has an io_uring",
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
];

/// Servers as inetd starts them: one connected socket is stdin and stdout. The app that started them is killed, the client
/// stays: name, and what it does. As long as somebody may read its output, none is even suspected.
pub(super) const CONNECTED: &[(&str, &str)] = &[
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
pub(super) const HUNG_UP: &str = "
ours, theirs = socket.socketpair()
theirs.close()
as_stdio(ours)
";
