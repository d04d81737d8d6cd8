//! Who holds a lock: by the record where it is true, else by what the kernel says, never by a pid alone.

use std::io::{BufRead, BufReader};
use std::path::PathBuf;
use std::process::{Child, ChildStdin, Stdio};

use kennel_sys::lock::{self, Holder, Lock, LockError, Mode, Probe, Record};
use kennel_sys::runtime_dir::RuntimeDir;
use kennel_testkit::{Scope, bin, on_each_kernel};

/// A directory with the lock `lock`, and processes that take it.
struct Stage {
    scope: Scope,
    dir: RuntimeDir,
}

impl Stage {
    fn new(label: &str) -> Stage {
        let scope = Scope::new(label);
        let dir = RuntimeDir::ensure(scope.runtime_dir()).expect("a directory of ours");
        Stage { scope, dir }
    }

    fn path(&self) -> PathBuf {
        self.dir.path().join("lock")
    }

    fn write(&self, content: &[u8]) {
        std::fs::write(self.path(), content).expect("our own file");
    }

    /// Another process that holds the lock until it is told to let go.
    fn other(&self, options: &[&str]) -> Other {
        let mut child = self
            .scope
            .command(bin("tk-lock"))
            .arg("hold")
            .arg(self.dir.path())
            .arg("lock")
            .args(options)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("another process");
        assert_eq!(line(&mut child), "held");
        let _stdin = child.stdin.take().expect("a pipe");
        Other { child, _stdin }
    }

    /// Who a probe and a refused acquire say it is.
    fn holder(&self) -> Option<Holder> {
        let error = Lock::acquire(&self.dir, "lock", Mode::Exclusive).expect_err("it is held");
        let LockError::Held { holder: told, .. } = error else {
            panic!("{error}");
        };
        let Probe::Held { by } = lock::probe(&self.dir, "lock") else {
            panic!("it is held");
        };
        let Probe::Held { by: by_path } = lock::probe_path(self.path()) else {
            panic!("it is held");
        };
        let pid = |holder: &Holder| holder.process.pid();
        assert_eq!(told.as_deref().map(pid), by.as_ref().map(pid));
        assert_eq!(by_path.as_ref().map(pid), by.as_ref().map(pid));
        by
    }

    fn is_free(&self) -> bool {
        matches!(lock::probe(&self.dir, "lock"), Probe::Free)
    }
}

struct Other {
    child: Child,
    _stdin: ChildStdin,
}

impl Other {
    fn pid(&self) -> u32 {
        self.child.id()
    }

    fn kill(mut self) -> u32 {
        self.child.kill().expect("our own child");
        self.child.wait().expect("our own child");
        self.child.id()
    }
}

fn line(child: &mut Child) -> String {
    let mut line = String::new();
    let stdout = child.stdout.take().expect("a pipe");
    BufReader::new(stdout).read_line(&mut line).expect("a line");
    line.trim_end().to_owned()
}

#[test]
fn a_holder_is_known_by_its_record() {
    on_each_kernel(|| {
        let stage = Stage::new("recorded");
        let other = stage.other(&["--record", "notes"]);
        let holder = stage.holder().unwrap();
        assert_eq!(holder.process.pid(), other.pid());
        assert_eq!(holder.name.as_deref(), Some("notes"));
        other.kill();
        assert!(stage.is_free(), "the record of the dead holds nothing");
    });
}

#[test]
fn lesson_5_without_a_true_record_the_kernel_still_knows() {
    on_each_kernel(|| {
        let stage = Stage::new("garbage");
        let other = stage.other(&["--record", "notes"]);
        let whole = std::fs::read(stage.path()).unwrap();
        let cut = &whole[..whole.len() / 2];
        let contents: [&[u8]; 6] = [
            b"",
            cut,
            b"4711\n",
            b"1",
            b"\0\xff garbage",
            &[b'x'; 100_000],
        ];
        for content in contents {
            stage.write(content);
            let holder = stage.holder().expect("/proc/locks names it");
            assert_eq!(holder.process.pid(), other.pid());
            assert_eq!((holder.name, holder.since), (None, None));
            assert_eq!(
                std::fs::read(stage.path()).unwrap(),
                content,
                "left as it is"
            );
        }
        other.kill();
    });
}

#[test]
fn one_of_several_shared_holders_is_named() {
    let stage = Stage::new("shared");
    let (one, two) = (stage.other(&["--shared"]), stage.other(&["--shared"]));
    let first = stage.holder().unwrap().process.pid();
    assert!([one.pid(), two.pid()].contains(&first));
    one.kill();
    assert_eq!(stage.holder().unwrap().process.pid(), two.pid());
    two.kill();
    assert!(stage.is_free());
}

#[test]
fn a_living_process_that_does_not_hold_it_is_not_believed_to() {
    on_each_kernel(|| {
        let stage = Stage::new("not-me");
        let other = stage.other(&[]);
        stage.write(
            Record::of_this_process("an impostor")
                .unwrap()
                .to_string()
                .as_bytes(),
        );
        let holder = stage.holder().unwrap();
        assert_eq!(holder.process.pid(), other.pid());
        assert_eq!(holder.name, None);
        other.kill();
    });
}

#[test]
fn the_record_of_a_killed_holder_is_not_its_successors() {
    let stage = Stage::new("successor");
    stage.other(&["--record", "notes"]).kill();
    assert!(
        !std::fs::read(stage.path()).unwrap().is_empty(),
        "the record is still there"
    );
    let successor = stage.other(&[]);
    let holder = stage.holder().unwrap();
    assert_eq!(holder.process.pid(), successor.pid());
    assert_eq!(holder.name, None);
    successor.kill();
}

/// A process that took the lock, left it to a child and died: the dead one's pid, and the heir's.
fn inherited(stage: &Stage) -> (u32, u32) {
    let mut taker = stage
        .scope
        .command(bin("tk-lock"))
        .arg("bequeath")
        .arg(stage.dir.path())
        .arg("lock")
        .stdout(Stdio::piped())
        .spawn()
        .expect("another process");
    let heir = line(&mut taker).parse().expect("a pid");
    taker.wait().expect("our own child");
    (taker.id(), heir)
}

#[test]
fn an_heir_is_found_when_the_taker_is_dead() {
    on_each_kernel(|| {
        let stage = Stage::new("heir");
        let (_, heir) = inherited(&stage);
        assert_eq!(stage.holder().unwrap().process.pid(), heir);
    });
}

#[test]
fn where_no_pid_can_be_told_the_line_that_finds_it_is() {
    let stage = Stage::new("line");
    // A link is not looked through: held, as far as can be told.
    let path = stage.scope.path("it's a lock");
    std::os::unix::fs::symlink(stage.path(), &path).unwrap();
    let quoted = path.to_str().unwrap().replace('\'', r"'\''");
    let tools = stage.scope.path("tools");
    std::fs::create_dir(&tools).unwrap();
    for program in ["fuser -v", "lsof --"] {
        let name = program.split(' ').next().unwrap();
        std::fs::write(tools.join(name), "").unwrap();
        let output = stage
            .scope
            .command(bin("tk-lock"))
            .arg("probe")
            .arg(&path)
            .env("PATH", &tools)
            .output()
            .unwrap();
        let said = String::from_utf8(output.stdout).unwrap();
        let wanted = format!("another process, pid unknown; to find it: {program} '{quoted}'\n");
        assert_eq!(said, wanted);
    }
}

/// What takes forcing a pid, another user, or a namespace.
mod needs_root {
    use std::os::unix::fs::{PermissionsExt, chown};
    use std::os::unix::process::CommandExt;
    use std::process::Command;

    use kennel_testkit::{on_each_kernel_alone, tool, try_with_pid, with_pid};

    use super::*;

    fn sleeper(scope: &Scope) -> Child {
        let sleeper = scope.command("sleep").arg("1000").spawn();
        sleeper.expect("another process")
    }

    #[test]
    #[ignore = "needs root: cargo xtask test"]
    fn rule_6_a_reused_pid_in_the_record_fools_nobody() {
        on_each_kernel_alone(|| {
            let stage = Stage::new("reused");
            let dead = stage.other(&["--record", "notes"]).kill();
            let mut stranger = with_pid(dead, || sleeper(&stage.scope));
            assert!(stage.is_free(), "held by the dead");
            let other = stage.other(&[]);
            let holder = stage.holder().unwrap();
            assert_eq!(holder.process.pid(), other.pid());
            assert_eq!(holder.name, None);
            other.kill();
            stranger.kill().unwrap();
            stranger.wait().unwrap();
        });
    }

    #[test]
    #[ignore = "needs root: cargo xtask test"]
    fn rule_6_a_reused_pid_in_proc_locks_fools_nobody() {
        on_each_kernel(|| {
            for _ in 0..50 {
                let stage = Stage::new("reused-taker");
                let (dead, heir) = inherited(&stage);
                // Somebody else was quicker, and has it: another one.
                let Some(mut stranger) = try_with_pid(dead, || sleeper(&stage.scope)) else {
                    continue;
                };
                let locks = std::fs::read_to_string("/proc/locks").unwrap();
                assert!(
                    locks.contains(&format!(" {dead} ")) || !in_the_first_pid_namespace(),
                    "the kernel names the taker: {locks}"
                );
                assert_eq!(stage.holder().unwrap().process.pid(), heir);
                stranger.kill().unwrap();
                stranger.wait().unwrap();
                return;
            }
            panic!("no pid could be had again");
        });
    }

    /// In any other the kernel leaves out whoever took a lock and died.
    fn in_the_first_pid_namespace() -> bool {
        const ITS_INODE: u64 = 0xEFFF_FFFC;
        let meta = std::fs::metadata("/proc/self/ns/pid").expect("our own");
        std::os::unix::fs::MetadataExt::ino(&meta) == ITS_INODE
    }

    /// `tk-lock` as nobody, from a place where nobody may run it.
    fn as_nobody(stage: &Stage, what: &str) -> Command {
        let helper = stage.scope.path("tk-lock");
        if !helper.exists() {
            let open = std::fs::Permissions::from_mode(0o755);
            std::fs::set_permissions(stage.scope.dir(), open).expect("our own");
            // By another process: one of ours that forks meanwhile would keep the copy busy.
            let copied = stage
                .scope
                .command("cp")
                .arg(bin("tk-lock"))
                .arg(&helper)
                .status();
            assert!(copied.expect("cp").success());
        }
        let mut command = stage.scope.command(&helper);
        command.arg(what).uid(65534).gid(65534).current_dir("/");
        command
    }

    fn said(command: &mut Command) -> String {
        let output = command.stderr(Stdio::inherit()).output().expect("it runs");
        String::from_utf8(output.stdout).expect("text")
    }

    #[test]
    #[ignore = "needs root: cargo xtask test"]
    fn a_holder_whose_files_are_hidden_is_named_by_the_kernel() {
        let stage = Stage::new("hidden");
        for options in [&["--record", "notes"][..], &[]] {
            let other = stage.other(options);
            // Nobody looks at a lock that root holds, in a place that everybody may look into.
            for (path, mode) in [(stage.dir.path(), 0o755), (&stage.path(), 0o644)] {
                std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).unwrap();
            }
            let named = said(as_nobody(&stage, "probe").arg(stage.path()));
            let pid = format!("pid {}", other.pid());
            assert!(named.starts_with(&pid), "{named}");
            assert_eq!(named.contains("(notes, "), !options.is_empty(), "{named}");
            other.kill();
            let closed = std::fs::Permissions::from_mode(0o700);
            std::fs::set_permissions(stage.dir.path(), closed).unwrap();
        }
    }

    #[test]
    #[ignore = "needs root: cargo xtask test"]
    fn rule_6_a_hidden_process_with_a_reused_pid_fools_nobody() {
        for _ in 0..50 {
            let stage = Stage::new("hidden-reused");
            chown(stage.dir.path(), Some(65534), Some(65534)).unwrap();
            let mut taker = as_nobody(&stage, "bequeath")
                .arg(stage.dir.path())
                .arg("lock")
                .stdout(Stdio::piped())
                .spawn()
                .unwrap();
            let heir = line(&mut taker);
            taker.wait().unwrap();
            let Some(mut stranger) = try_with_pid(taker.id(), || sleeper(&stage.scope)) else {
                continue;
            };
            let named = said(as_nobody(&stage, "probe").arg(stage.path()));
            assert_eq!(named, format!("pid {heir}\n"));
            stranger.kill().unwrap();
            stranger.wait().unwrap();
            return;
        }
        panic!("no pid could be had again");
    }

    #[test]
    #[ignore = "needs root: cargo xtask test"]
    fn a_holder_in_a_namespace_we_cannot_see_into_is_unknown() {
        let stage = Stage::new("namespace");
        let Some(unshare) = tool("unshare") else {
            return;
        };
        let other = stage.other(&["--record", "notes"]);
        let output = stage
            .scope
            .command(unshare)
            .args(["--pid", "--fork", "--mount-proc"])
            .arg(bin("tk-lock"))
            .arg("probe")
            .arg(stage.path())
            .output()
            .unwrap();
        let said = String::from_utf8(output.stdout).unwrap();
        assert!(
            said.contains("pid unknown; to find it: "),
            "{said}{:?}",
            output.stderr
        );
        other.kill();
    }
}
