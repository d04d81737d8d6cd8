//! Identity of a file behind a link of `/proc`, such as `/proc/<pid>/fd/3`, without a request to its file system.
//!
//! The other process chooses its files. One may be on a file system that never answers: a FUSE mount whose server does not
//! reply, or a network mount whose server is gone. A plain `stat` blocks on it, in part beyond SIGKILL. So the kernel is
//! asked only for the metadata in its memory (`AT_STATX_DONT_SYNC`), on a descriptor that only names the file (`O_PATH`). A
//! few file systems ignore the flag, such as 9p without a cache.

use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};

use rustix::fs::{AtFlags, CWD, FileType, Mode, OFlags, StatxFlags, makedev, openat, statx};
use rustix::path::Arg;

/// Metadata of a file as the kernel has it in memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct CachedStat {
    pub(crate) dev: u64,
    pub(crate) ino: u64,
    /// Number of the mount through which it was reached; 0 before Linux 5.8.
    pub(crate) mount: u64,
    mode: u32,
    pub(crate) owner: u32,
    /// Major and minor number, of a device.
    pub(crate) device: (u32, u32),
    pub(crate) size: u64,
    /// Last change of its content: seconds and nanoseconds.
    pub(crate) changed: (i64, u32),
}

impl CachedStat {
    /// Metadata of the file that a link of `/proc` leads to.
    pub(crate) fn behind(link: impl Arg) -> io::Result<CachedStat> {
        Self::of_link_in(CWD, link)
    }

    /// The same, for a link in `dir`.
    pub(crate) fn of_link_in(dir: impl AsFd, link: impl Arg) -> io::Result<CachedStat> {
        Self::of(&open_path(dir, link)?)
    }

    fn of(file: &OwnedFd) -> io::Result<CachedStat> {
        let flags = AtFlags::EMPTY_PATH | AtFlags::STATX_DONT_SYNC | AtFlags::NO_AUTOMOUNT;
        let wanted = StatxFlags::TYPE
            | StatxFlags::INO
            | StatxFlags::MNT_ID
            | StatxFlags::UID
            | StatxFlags::SIZE
            | StatxFlags::MTIME;
        let stat = statx(file, "", flags, wanted)?;
        Ok(CachedStat {
            dev: makedev(stat.stx_dev_major, stat.stx_dev_minor),
            ino: stat.stx_ino,
            mount: stat.stx_mnt_id,
            mode: u32::from(stat.stx_mode),
            owner: stat.stx_uid,
            device: (stat.stx_rdev_major, stat.stx_rdev_minor),
            size: stat.stx_size,
            changed: (stat.stx_mtime.tv_sec, stat.stx_mtime.tv_nsec),
        })
    }

    pub(crate) fn identity(&self) -> (u64, u64) {
        (self.dev, self.ino)
    }

    pub(crate) fn file_type(&self) -> FileType {
        FileType::from_raw_mode(self.mode)
    }

    /// Whether it is a kernel object, such as an epoll instance: only those have no file type.
    pub(crate) fn has_no_type(&self) -> bool {
        self.mode & libc::S_IFMT == 0
    }
}

/// A descriptor that names the file behind a link without opening it.
fn open_path(dir: impl AsFd, link: impl Arg) -> io::Result<OwnedFd> {
    let flags = OFlags::PATH | OFlags::CLOEXEC;
    Ok(openat(dir, link, flags, Mode::empty())?)
}

/// Opens the pipe behind a link of `/proc`. Fails, without opening anything, if another file is there: the process may
/// replace it at any moment, and to open a file is a request to its file system.
pub(crate) fn open_pipe(link: impl Arg, inode: u64, access: OFlags) -> io::Result<OwnedFd> {
    let pinned = open_path(CWD, link)?;
    let stat = CachedStat::of(&pinned)?;
    if stat.ino != inode || stat.file_type() != FileType::Fifo {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    let same = format!("/proc/self/fd/{}", pinned.as_raw_fd());
    let flags = access | OFlags::NONBLOCK | OFlags::CLOEXEC;
    Ok(openat(CWD, same, flags, Mode::empty())?)
}

#[cfg(test)]
mod tests {
    use std::io::{BufRead, BufReader, Read};
    use std::os::unix::fs::MetadataExt;
    use std::process::{Child, Stdio};
    use std::sync::mpsc;
    use std::time::Duration;

    use kennel_testkit::{Scope, bin, skipped};

    use super::super as os;
    use super::*;
    use crate::backend::AccessMode;
    use crate::confinement::Confinement;
    use crate::lock::{self, Probe};
    use crate::process::ProcessRef;
    use crate::runtime_dir::RuntimeDir;

    /// A process that has a locked file on a file system that does not answer, and holds the lock `a.lock` of this
    /// directory.
    struct Hung {
        child: Child,
        dir: RuntimeDir,
        process: ProcessRef,
        // Last field: dropping it removes the directories, after the process is gone.
        _scope: Scope,
    }

    impl Hung {
        /// `None`, with a message, if FUSE is not available.
        fn start(label: &str) -> Option<Hung> {
            let scope = Scope::new(label);
            let dir = RuntimeDir::ensure(scope.runtime_dir()).expect("a directory");
            let lock = dir.path().join("a.lock");
            std::fs::write(&lock, "").expect("a file");
            std::fs::create_dir(scope.path("hung")).expect("a directory");
            let mut child = scope
                .command("unshare")
                .arg("--mount")
                .arg(bin("tk-hung"))
                .args(["daemon".as_ref(), scope.path("hung").as_os_str()])
                .arg(lock)
                .stdin(Stdio::piped())
                .stdout(Stdio::piped())
                .spawn()
                .expect("unshare");
            let mut said = String::new();
            let stdout = child.stdout.take().expect("a pipe");
            BufReader::new(stdout).read_line(&mut said).expect("a line");
            let process = ProcessRef::open(child.id()).expect("our child");
            let hung = Hung {
                child,
                dir,
                process,
                _scope: scope,
            };
            match said.trim() {
                "ready" => Some(hung),
                other => {
                    skipped(other);
                    None
                }
            }
        }

        /// Calls `look` on a thread; panics if it does not return. The end of the process frees the thread.
        #[track_caller]
        fn answers<T: Send + 'static>(
            &mut self,
            what: &str,
            look: impl FnOnce(u32) -> T + Send + 'static,
        ) -> T {
            let (tell, told) = mpsc::channel();
            let pid = self.process.pid();
            std::thread::spawn(move || tell.send(look(pid)));
            told.recv_timeout(Duration::from_secs(20))
                .unwrap_or_else(|error| panic!("{what} hangs: {error}"))
        }
    }

    impl Drop for Hung {
        fn drop(&mut self) {
            self.child.kill().expect("our child");
            self.child.wait().expect("our child");
        }
    }

    #[test]
    #[ignore = "needs root: cargo xtask test"]
    fn needs_root_files_on_a_file_system_that_does_not_answer_are_identified_without_it() {
        let Some(mut hung) = Hung::start("hung-files") else {
            return;
        };
        let files = hung.answers("the list of open files", os::open_files);
        let files = files.expect("we may look");
        let is_dir = |file: &&os::OpenFile| file.kind == os::FileKind::Directory;
        let at = files.iter().find(is_dir).expect("its directory").fd;
        let seen = hung.answers("an identity", move |pid| {
            CachedStat::behind(format!("/proc/{pid}/fd/{at}"))
        });
        let seen = seen.expect("we may look");
        assert_eq!((seen.ino, seen.file_type()), (1, FileType::Directory));
        let identity = hung.answers("fd_identity", move |pid| os::fd_identity(pid, at));
        assert_eq!(identity.expect("we may look"), seen.identity());
        let stream = hung.answers("stream_identity", move |pid| os::stream_identity(pid, at));
        assert_eq!(stream, None);
        let file = seen.identity();
        let held = hung.answers("holds_file", move |pid| os::holds_file(pid, &[file]));
        assert!(held.expect("we may look"));
        let other = (file.0, file.1 + 1);
        let held = hung.answers("holds_file_with", move |pid| {
            os::holds_file_with(pid, other, AccessMode::Read)
        });
        assert!(!held.expect("we may look"));
        hung.answers("its program", os::is_kennel);
    }

    #[test]
    #[ignore = "needs root: cargo xtask test"]
    fn needs_root_locks_are_seen_beside_one_on_a_file_system_that_does_not_answer() {
        let Some(mut hung) = Hung::start("hung-locks") else {
            return;
        };
        let opened = |hung: &Hung| {
            let dir = RuntimeDir::ensure(hung.dir.path()).expect("a directory");
            (dir, ProcessRef::open(hung.child.id()).expect("it lives"))
        };
        let (dir, process) = opened(&hung);
        assert!(hung.answers("is_held_by", move |_| {
            lock::is_held_by(&dir, "a.lock", &process, None)
        }));
        let (dir, process) = opened(&hung);
        assert!(!hung.answers("is_dir_held_by", move |_| {
            lock::is_dir_held_by(&dir, &process)
        }));
        let (dir, _) = opened(&hung);
        let holders = hung.answers("holders", move |pid| {
            lock::holders(&dir, "a.lock", |other| other == pid)
        });
        assert_eq!(holders.len(), 1);
        let (dir, _) = opened(&hung);
        let probe = hung.answers("probe", move |_| lock::probe(&dir, "a.lock"));
        let Probe::Held { by: Some(holder) } = probe else {
            panic!("{probe:?}");
        };
        assert_eq!(holder.process.pid(), hung.child.id());
        let (dir, process) = opened(&hung);
        assert!(!hung.answers("is_daemon_of", move |_| {
            lock::is_daemon_of(&dir, &process)
        }));
    }

    /// It connects to no daemon: only its root matters here.
    #[test]
    #[ignore = "needs root: cargo xtask test"]
    fn needs_root_a_root_on_a_file_system_that_does_not_answer_is_read_without_it() {
        let scope = Scope::new("hung-root");
        let listener = std::os::unix::net::UnixListener::bind(scope.path("socket"));
        let listener = listener.expect("a socket");
        std::fs::create_dir(scope.path("hung")).expect("a directory");
        let mut child = scope
            .command("unshare")
            .arg("--mount")
            .arg(bin("tk-hung"))
            .args(["visit".as_ref(), scope.path("hung").as_os_str()])
            .arg(scope.path("socket"))
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .spawn()
            .expect("unshare");
        let mut stdout = child.stdout.take().expect("a pipe");
        let (tell, told) = mpsc::channel();
        let accepting = std::thread::spawn(move || tell.send(listener.accept()));
        let Ok(connection) = told.recv_timeout(Duration::from_secs(20)) else {
            let mut said = String::new();
            child.kill().expect("our child");
            stdout.read_to_string(&mut said).expect("text");
            child.wait().expect("our child");
            assert!(said.starts_with("no FUSE"), "{said}");
            return skipped(&said);
        };
        let process = ProcessRef::open(child.id()).expect("our child");
        let ours = Confinement::of_this_process().expect("we can be seen");
        let (tell, told) = mpsc::channel();
        std::thread::spawn(move || {
            let theirs = Confinement::of(&process, &ours).expect("it can be seen");
            assert_ne!(theirs, ours, "it is in another mount namespace");
            // Compared with itself, all facts except the root are equal: so the root is read.
            let whole = Confinement::of(&process, &theirs).expect("it can be seen");
            tell.send((theirs.root, whole.root))
        });
        let roots = told.recv_timeout(Duration::from_secs(20));
        child.kill().expect("our child");
        child.wait().expect("our child");
        drop((connection, accepting.join()));
        let (not_read, read) = roots.expect("the look at its root does not hang");
        assert_eq!(not_read, crate::confinement::UNREAD_ROOT);
        assert_eq!(read.1, 1, "the root of the FUSE file system");
    }

    fn link(file: &impl AsRawFd) -> String {
        format!("/proc/{}/fd/{}", std::process::id(), file.as_raw_fd())
    }

    #[test]
    fn cached_metadata_equals_stat() {
        let scope = kennel_testkit::Scope::new("cached-stat");
        std::fs::write(scope.path("file"), "content").expect("a file");
        let file = std::fs::File::open(scope.path("file")).expect("a file");
        let dir = std::fs::File::open(scope.dir()).expect("a directory");
        let null = std::fs::File::open("/dev/null").expect("it is there");
        for file in [&file, &dir, &null] {
            let (cached, meta) = (
                CachedStat::behind(link(file)).expect("our own"),
                file.metadata().expect("our own"),
            );
            assert_eq!(cached.identity(), (meta.dev(), meta.ino()));
            assert_eq!(cached.owner, meta.uid());
            assert_eq!(cached.size, meta.size());
            assert_eq!(
                (cached.changed.0, i64::from(cached.changed.1)),
                (meta.mtime(), meta.mtime_nsec())
            );
            assert_eq!(
                cached.file_type(),
                FileType::from_raw_mode(meta.mode()),
                "{file:?}"
            );
        }
        let cached = CachedStat::behind(link(&null)).expect("our own");
        assert_eq!(cached.device, (1, 3));
        let gone = CachedStat::behind(format!("/proc/{}/fd/999999", std::process::id()));
        assert_eq!(
            gone.map_err(|error| error.kind()),
            Err(io::ErrorKind::NotFound)
        );
    }

    #[test]
    fn only_the_expected_pipe_is_opened() {
        let (reader, writer) = io::pipe().expect("a pipe");
        let inode = CachedStat::behind(link(&reader)).expect("our own").ino;
        open_pipe(link(&reader), inode, OFlags::RDONLY).expect("it is the one");
        open_pipe(link(&writer), inode + 1, OFlags::WRONLY).expect_err("another pipe");
        let file = std::fs::File::open("/proc/self/stat").expect("it is there");
        let inode = CachedStat::behind(link(&file)).expect("our own").ino;
        open_pipe(link(&file), inode, OFlags::RDONLY).expect_err("no pipe");
    }
}
