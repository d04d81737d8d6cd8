//! `tk-hung daemon MOUNTPOINT [LOCK]…`: a process with a file, open and locked, on a FUSE file system that does not answer
//! any more. It also locks the given files, prints `ready`, reads its stdin to the end and stays. `tk-hung visit MOUNTPOINT
//! SOCKET`: the root of the process is that file system. It connects to SOCKET, sends its stdin, and prints the output
//! until the connection is closed.
//!
//! Run it with `unshare --mount`: the mount ends with the process, and so does every pending request, because no other
//! process has the descriptor of the file system. Without FUSE it prints `no FUSE: ` and the reason.
#![expect(clippy::print_stdout, reason = "the test that started it reads it")]

use std::ffi::CString;
use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use rustix::fs::{FileType, FlockOperation, Mode, OFlags, flock};
use rustix::mount::{MountFlags, mount};

/// Maximum lifetime of the process.
const LONGEST: Duration = Duration::from_secs(240);

/// Requests of the protocol, by their numbers in `linux/fuse.h`.
const GETATTR: u32 = 3;
const INIT: u32 = 26;
const OPENDIR: u32 = 27;
const ACCESS: u32 = 34;
/// "Not implemented".
const ENOSYS: i32 = -38;

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [verb, mountpoint, paths @ ..] = &arguments[..] else {
        panic!("usage: tk-hung daemon|visit MOUNTPOINT PATH…");
    };
    let fuse = match mounted(Path::new(mountpoint)) {
        Ok(fuse) => fuse,
        Err(error) => return println!("no FUSE: {error}"),
    };
    let hangs = Arc::new(AtomicBool::new(false));
    let seen = Arc::clone(&hangs);
    std::thread::spawn(move || answer(fuse, &seen));
    // Limits the time that a process can block on this file system, even if the test fails.
    std::thread::spawn(|| {
        let end = Instant::now() + LONGEST;
        while let left @ 1.. = end.saturating_duration_since(Instant::now()).as_millis() {
            std::thread::park_timeout(Duration::from_millis(left as u64));
        }
        std::process::exit(1);
    });

    let open = File::open(mountpoint).expect("it answers still");
    flock(&open, FlockOperation::LockExclusive).expect("nobody else has it");
    match &verb[..] {
        "daemon" => {
            let locks: Vec<File> = paths.iter().map(|path| locked(path)).collect();
            hangs.store(true, Ordering::SeqCst);
            println!("ready");
            std::io::copy(&mut std::io::stdin(), &mut std::io::sink()).expect("it can be read");
            loop {
                rustix::event::pause();
                std::hint::black_box(&locks);
            }
        }
        "visit" => {
            let socket = Path::new(&paths[0]);
            let name = socket.file_name().expect("a name");
            // The working directory stays outside of the root.
            std::env::set_current_dir(socket.parent().expect("a directory")).expect("it is there");
            rustix::process::chroot(mountpoint).expect("root");
            hangs.store(true, Ordering::SeqCst);
            let mut said = Vec::new();
            std::io::stdin().read_to_end(&mut said).expect("words");
            let mut socket = UnixStream::connect(name).expect("a daemon");
            socket.write_all(&said).expect("it listens");
            // A reset also ends the output.
            let _ = std::io::copy(&mut socket, &mut std::io::stdout());
        }
        other => panic!("what is {other}?"),
    }
}

fn locked(path: &str) -> File {
    let file = File::options().write(true).open(path).expect("a lock");
    flock(&file, FlockOperation::NonBlockingLockExclusive).expect("nobody else has it");
    file
}

/// Mounts a file system for which this process answers.
fn mounted(at: &Path) -> rustix::io::Result<OwnedFd> {
    let open = |path: &Path| rustix::fs::open(path, OFlags::RDWR | OFlags::CLOEXEC, Mode::empty());
    let fuse = open(Path::new("/dev/fuse")).or_else(|_| {
        let node = at.with_extension("node");
        let device = rustix::fs::makedev(10, 229);
        let mode = Mode::RUSR | Mode::WUSR;
        rustix::fs::mknodat(
            rustix::fs::CWD,
            &node,
            FileType::CharacterDevice,
            mode,
            device,
        )?;
        open(&node)
    })?;
    let options = format!(
        "fd={},rootmode=40000,user_id=0,group_id=0",
        fuse.as_raw_fd()
    );
    let options = CString::new(options).expect("no NUL");
    let flags = MountFlags::NOSUID | MountFlags::NODEV;
    mount("kennel-test", at, "fuse", flags, &*options)?;
    Ok(fuse)
}

/// Answers the requests to open and enter the file system, until `hangs` is set.
fn answer(fuse: OwnedFd, hangs: &AtomicBool) {
    let mut request = vec![0; 1 << 20];
    // An error means that it was unmounted.
    while let Ok(length) = rustix::io::read(&fuse, &mut request[..]) {
        let number = |at: usize| u32::from_ne_bytes(request[at..at + 4].try_into().expect("four"));
        assert!(length >= 40, "a request has a header");
        let (operation, unique) = (number(4), &request[8..16]);
        if hangs.load(Ordering::SeqCst) && operation != INIT {
            continue;
        }
        let words = |words: &[u32]| -> Vec<u8> {
            words.iter().flat_map(|word| word.to_ne_bytes()).collect()
        };
        let (error, body) = match operation {
            // Version 7.31, and the rest of `struct fuse_init_out`.
            INIT => (
                0,
                words(&[7, 31, 0, 0, 0x0009_000c, 4096, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0]),
            ),
            // Valid for no time; `struct fuse_attr` of a directory: inode 1, its mode after three times, and two names.
            GETATTR => {
                let mut attributes = [0; 26];
                attributes[4] = 1;
                attributes[19] = 0o040_755;
                attributes[20] = 2;
                attributes[24] = 4096;
                (0, words(&attributes))
            }
            OPENDIR => (0, words(&[1, 0, 0, 0])),
            ACCESS => (0, Vec::new()),
            _ => (ENOSYS, Vec::new()),
        };
        let size = u32::try_from(16 + body.len()).expect("short");
        let header = [&size.to_ne_bytes()[..], &i32::to_ne_bytes(error), unique].concat();
        if rustix::io::write(&fuse, &[header, body].concat()).is_err() {
            break;
        }
    }
}
