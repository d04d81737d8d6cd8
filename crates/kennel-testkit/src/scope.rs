//! The scope of one test: its own directories, and a mark on every process that it starts, so that nothing survives the
//! test, even if it fails.

use std::ffi::OsStr;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use kennel_sys::Signal;
use kennel_sys::process::{Identity, ProcessRef};

use crate::canary::{self, CANARY, Canary};
use crate::wait::{skipped, wait_until};

/// The variable that marks processes of a scope. Not a `KENNEL_…` one, because those are removed on the way.
const MARK: &str = "TESTKIT_SCOPE";

/// The directories and processes of one test. Dropping it ends the processes and removes the directories. The test fails if
/// the canary is found there.
#[derive(Debug)]
pub struct Scope {
    dir: PathBuf,
    mark: String,
}

impl Scope {
    /// Creates a scope; `label` is part of the directory's name.
    pub fn new(label: &str) -> Scope {
        let nonce = std::hash::BuildHasher::hash_one(&std::hash::RandomState::new(), label);
        let mark = format!("{label}-{}-{nonce:016x}", std::process::id());
        let dir = std::env::temp_dir().join(format!("kt-{nonce:08x}"));
        std::fs::create_dir(&dir).expect("a fresh directory for the test");
        std::fs::set_permissions(&dir, std::fs::Permissions::from_mode(0o700))
            .expect("own directory");
        let dir = dir.canonicalize().expect("the directory just made");
        std::fs::create_dir(dir.join("home")).expect("a home for the test");
        Scope { dir, mark }
    }

    /// The scope's directory: 0700, removed at the end.
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// `name` inside the scope's directory.
    pub fn path(&self, name: impl AsRef<Path>) -> PathBuf {
        self.dir.join(name)
    }

    /// The runtime directory that commands of this scope use. Not created here.
    pub fn runtime_dir(&self) -> PathBuf {
        self.dir.join("run")
    }

    /// Removes the runtime directory, even while processes write to it.
    #[track_caller]
    pub fn remove_runtime_dir(&self) {
        crate::wait_for("the runtime directory to be gone", || {
            std::fs::remove_dir_all(self.runtime_dir()).ok()
        });
    }

    /// A command with the scope's mark, home, temporary and runtime directory, the [`CANARY`], and none of the caller's XDG
    /// or Kennel variables.
    pub fn command(&self, program: impl AsRef<OsStr>) -> Command {
        let mut command = Command::new(program);
        for (name, _) in std::env::vars_os() {
            let text = name.to_string_lossy();
            let kept = ["KENNEL_FULL", "KENNEL_SEED", "KENNEL_FEATURES_OFF"].contains(&&*text);
            if (text.starts_with("KENNEL_") && !kept) || text.starts_with("XDG_") {
                command.env_remove(&name);
            }
        }
        command
            .env(MARK, &self.mark)
            .env(CANARY, Canary::of_run().value())
            .env("HOME", self.dir.join("home"))
            .env("TMPDIR", &self.dir)
            .env("KENNEL_RUNTIME_DIR", self.runtime_dir());
        command
    }

    /// The file to which processes append their identity that may lose the scope's mark (see `tk-stubborn`).
    pub fn roll(&self) -> PathBuf {
        self.dir.join("roll")
    }

    /// The identities in the roll.
    pub fn signed(&self) -> Vec<Identity> {
        let text = std::fs::read_to_string(self.roll()).unwrap_or_default();
        let whole = text
            .split_inclusive('\n')
            .filter(|line| line.ends_with('\n'));
        whole
            .map(|line| line.trim_end().parse().expect("a signature is an identity"))
            .collect()
    }

    /// The living processes with this scope's mark or in its roll. Zombies are dead.
    pub fn survivors(&self) -> Vec<ProcessRef> {
        let mut survivors = self.marked();
        let marked: Vec<u32> = survivors.iter().map(ProcessRef::pid).collect();
        let signed = self.signed().into_iter();
        survivors.extend(
            signed
                .filter(|identity| !marked.contains(&identity.pid()))
                .filter_map(|identity| ProcessRef::find(&identity).ok().flatten()),
        );
        survivors
    }

    fn marked(&self) -> Vec<ProcessRef> {
        // A daemon has no variable of a client in its environment, but the runtime directory.
        let place = format!("KENNEL_RUNTIME_DIR={}", self.runtime_dir().display());
        let wanted = [format!("{MARK}={}", self.mark), place];
        processes()
            .filter(|&pid| pid != std::process::id())
            .filter(|&pid| environment_has(pid, &wanted))
            .filter_map(|pid| ProcessRef::open(pid).ok())
            // Checked again after the process was opened: the pid may have been reused (rule 6).
            .filter(|process| environment_has(process.pid(), &wanted) && process.is_alive())
            .collect()
    }

    /// Panics, with their names, if processes of this scope still live after `deadline`.
    #[track_caller]
    pub fn nothing_left_within(&self, label: &str, deadline: Duration) {
        wait_until(&format!("{label}: no survivor"), deadline, || {
            self.survivors().is_empty().then_some(())
        });
    }

    fn end_survivors(&self) {
        // A process may fork before it is killed, and shows no environment during an exec: repeat until no process is found
        // twice in a row.
        let mut clean = 0;
        for _ in 0..100 {
            let survivors = self.survivors();
            match survivors.is_empty() && !processes().any(is_becoming_a_program) {
                true if clean > 0 => return,
                true => clean += 1,
                false => clean = 0,
            }
            if survivors.is_empty() {
                let _ = kennel_sys::events::sleep(&[], &[], Some(Duration::from_millis(2)));
            }
            for process in &survivors {
                // A process that is gone needs no signal.
                let _ = process.signal(Signal::KILL);
            }
            for process in &survivors {
                let _ = process.wait(Some(Duration::from_secs(5)));
            }
        }
    }
}

impl Drop for Scope {
    fn drop(&mut self) {
        // The files that exist now, and those that processes write when they end.
        Canary::of_run().look_at_arguments();
        Canary::of_run().look_below([&self.dir].into_iter());
        self.end_survivors();
        Canary::of_run().look_below([&self.dir].into_iter());
        let found = canary::seen();
        if let Err(error) = std::fs::remove_dir_all(&self.dir) {
            eprintln!("testkit: cannot remove {}: {error}", self.dir.display());
        }
        if !found.is_empty() {
            let told = format!("the value of {CANARY} is in {}", found.join(", in "));
            match std::thread::panicking() {
                true => eprintln!("testkit: {told}"),
                false => panic!("{told}"),
            }
        }
    }
}

/// The path of a program built in this workspace, beside the running test.
#[track_caller]
pub fn bin(name: &str) -> PathBuf {
    let test = std::env::current_exe().expect("the running test has a path");
    test.ancestors()
        .skip(1)
        .take(2)
        .map(|dir| dir.join(name))
        .find(|path| path.is_file())
        .unwrap_or_else(|| {
            panic!(
                "{name} is not built: `cargo build --workspace --bins`, or run `cargo xtask test`"
            )
        })
}

/// The path of an external tool (node, npm, python3, unshare…), or `None` if it is missing. `cargo xtask test` lists the
/// missing ones, and fails if `CI=true`.
pub fn tool(name: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH")?;
    let found = std::env::split_paths(&path)
        .map(|dir| dir.join(name))
        .find(|candidate| {
            candidate
                .metadata()
                .is_ok_and(|meta| meta.is_file() && meta.permissions().mode() & 0o111 != 0)
        });
    if found.is_none() {
        skipped(&format!("{name} is missing"));
    }
    found
}

fn processes() -> impl Iterator<Item = u32> {
    std::fs::read_dir("/proc")
        .expect("/proc is mounted")
        .filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok())
}

/// Whether a process is in the middle of an exec: for a moment its environment cannot be read.
fn is_becoming_a_program(pid: u32) -> bool {
    let dir = format!("/proc/{pid}");
    let has_none = || std::fs::read(format!("{dir}/environ")).is_ok_and(|it| it.is_empty());
    // A zombie has no environment either, and a kernel thread never has one.
    let runs = || std::fs::read_link(format!("{dir}/exe")).is_ok();
    let young = || ProcessRef::open(pid).ok()?.age();
    has_none() && runs() && young().is_some_and(|age| age < Duration::from_secs(2))
}

fn environment_has(pid: u32, wanted: &[String]) -> bool {
    std::fs::read(format!("/proc/{pid}/environ")).is_ok_and(|environ| {
        let mut pairs = environ.split(|&byte| byte == 0);
        pairs.any(|pair| wanted.iter().any(|wanted| pair == wanted.as_bytes()))
    })
}
