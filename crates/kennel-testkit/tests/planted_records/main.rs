//! Records that no warden wrote. Any process of the user can write into `trees/`: a record alone ends nobody, spares
//! nobody and stops no start.
#![expect(clippy::unwrap_used, reason = "in a test, a panic is the report")]

mod copied_cookie;
mod kept;

use std::hash::{BuildHasher, RandomState};
use std::io::{BufRead, BufReader, Write};
use std::os::fd::AsFd;
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::LazyLock;
use std::time::{Duration, Instant};

use kennel_sys::Signal;
use kennel_sys::process::{Identity, ProcessRef};
use kennel_sys::tree;
use kennel_testkit::{DEADLINE, Scope, bin, on_each_kernel, wait_for};

/// A tree's cookie. Another one in each process: members of a tree are looked for among all processes, so tests that run at the
/// same time would end each other's.
fn cookie() -> &'static str {
    static COOKIE: LazyLock<String> = LazyLock::new(|| {
        let random = RandomState::new().hash_one(std::process::id());
        format!("{random:032x}")
    });
    &COOKIE
}

/// The identity of a process that has ended.
fn dead(scope: &Scope) -> Identity {
    let mut gone = scope.command("sleep").arg("1000").spawn().unwrap();
    let identity = *ProcessRef::open(gone.id()).unwrap().identity();
    gone.kill().unwrap();
    gone.wait().unwrap();
    identity
}

fn identity_of(child: &Child) -> Identity {
    *ProcessRef::open(child.id()).unwrap().identity()
}

fn trees(scope: &Scope) -> PathBuf {
    let trees = scope.path("trees");
    std::fs::create_dir_all(&trees).unwrap();
    trees
}

/// Writes the record of a tree whose warden and served process are gone.
fn plant(scope: &Scope, cookie: &str, rest: &str) {
    let dead = dead(scope);
    let text = format!("kennel-tree 1\nserved {dead}\nwarden {dead}\n{rest}");
    std::fs::write(trees(scope).join(cookie), text).unwrap();
}

/// What the next start said.
fn next_start(scope: &Scope) -> String {
    let output = scope
        .command(bin("tk-tree"))
        .arg("next-start")
        .arg(trees(scope))
        .arg("50")
        .output()
        .unwrap();
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{stderr}");
    String::from_utf8(output.stdout).unwrap()
}

/// A process in a session of its own, with a pipe for its stdin.
fn innocent(scope: &Scope, set: impl Fn(&mut Command)) -> Child {
    let mut command = scope.command("setsid");
    command.args(["sleep", "1000"]).stdin(Stdio::piped());
    set(&mut command);
    let child = command.spawn().unwrap();
    wait_for("its own session", || {
        // `setsid` becomes `sleep` once it leads a session.
        let name = std::fs::read_to_string(format!("/proc/{}/comm", child.id()));
        name.is_ok_and(|name| name == "sleep\n").then_some(())
    });
    child
}

/// What a planted record says of a process: all that can be seen of it from outside.
fn described(child: &Child) -> String {
    let pipe = std::fs::metadata(format!("/proc/{}/fd/0", child.id())).unwrap();
    format!(
        "session {}\nserver {}\npipe {}:{}\n",
        child.id(),
        identity_of(child),
        pipe.dev(),
        pipe.ino()
    )
}

fn end(mut child: Child) {
    child.kill().unwrap();
    child.wait().unwrap();
}

#[test]
fn rule_6_a_planted_record_does_not_end_the_process_it_names() {
    on_each_kernel(|| {
        let scope = Scope::new("planted");
        let mut plain = innocent(&scope, |_| {});
        let mut of_another_tree = innocent(&scope, |command| {
            command.env("KENNEL_TREE", "f".repeat(32));
        });
        for child in [&mut plain, &mut of_another_tree] {
            plant(
                &scope,
                cookie(),
                &format!("session 0\nserver {}\n", identity_of(child)),
            );
            next_start(&scope);
            assert_eq!(child.try_wait().unwrap(), None, "named as the server");
            plant(&scope, cookie(), &described(child));
            next_start(&scope);
            assert_eq!(child.try_wait().unwrap(), None, "session and pipe");
        }
        end(plain);
        end(of_another_tree);
    });
}

#[test]
fn a_planted_record_that_calls_a_process_a_warden_delays_no_start_and_continues_nobody() {
    let scope = Scope::new("planted-warden");
    let dead = dead(&scope);
    let plant = |child: &Child| {
        let warden = identity_of(child);
        let text = format!("kennel-tree 1\nserved {dead}\nwarden {warden}\nsession 0\n");
        std::fs::write(trees(&scope).join(cookie()), text).unwrap();
    };
    let running = innocent(&scope, |_| {});
    plant(&running);
    let records = std::fs::File::open(trees(&scope)).unwrap();
    let start = Instant::now();
    tree::await_orphaned_wardens(records.as_fd(), DEADLINE).unwrap();
    assert!(start.elapsed() < DEADLINE / 2, "{:?}", start.elapsed());
    end(running);

    // A stopped warden is continued; this process is none, whatever its record says.
    let stopped = innocent(&scope, |_| {});
    let process = ProcessRef::open(stopped.id()).unwrap();
    process.signal(Signal::STOP).unwrap();
    let is_stopped = || {
        let stat = std::fs::read_to_string(format!("/proc/{}/stat", stopped.id())).unwrap();
        stat.contains(") T ")
    };
    wait_for("it is stopped", || is_stopped().then_some(()));
    plant(&stopped);
    assert!(tree::find_leftovers(records.as_fd()).unwrap().is_empty());
    next_start(&scope);
    assert!(is_stopped());
    end(stopped);
}

#[test]
fn a_process_with_the_cookie_of_an_abandoned_tree_is_ended() {
    let scope = Scope::new("cookie");
    let mut member = innocent(&scope, |command| {
        command.env("KENNEL_TREE", cookie());
    });
    plant(&scope, cookie(), "session 0\n");
    next_start(&scope);
    assert!(!member.wait().unwrap().success());
    assert_eq!(std::fs::read_dir(trees(&scope)).unwrap().count(), 0);
}

#[test]
fn a_planted_record_does_not_end_a_daemon_whose_stdio_is_dev_null() {
    let scope = Scope::new("null");
    let output = scope
        .command("setsid")
        .args([
            "sh",
            "-c",
            "sleep 1000 </dev/null >/dev/null 2>&1 & echo $$ $!",
        ])
        .output()
        .unwrap();
    let pids = String::from_utf8(output.stdout).unwrap();
    let (session, pid) = pids.trim().split_once(' ').unwrap();
    let daemon = ProcessRef::open(pid.parse().unwrap()).unwrap();
    let null = std::fs::metadata("/dev/null").unwrap();
    // The leader of its session is gone; a record can name any start for it.
    let gone = dead(&scope).to_string();
    let fields: Vec<&str> = gone.split(':').collect();
    let leader = format!("{session}:-:{}:1:{}", fields[2], fields[4]);
    let pipe = format!("pipe {}:{}", null.dev(), null.ino());
    plant(
        &scope,
        cookie(),
        &format!("session {session}\nserver {leader}\n{pipe}\n"),
    );
    next_start(&scope);
    assert!(daemon.is_alive());
    daemon.signal(Signal::KILL).unwrap();
}

#[test]
fn a_record_is_readable_under_any_umask() {
    let scope = Scope::new("umask");
    let line = format!(
        "umask 0777; exec {} serve {} 50 50 -- sh -c 'read word'",
        bin("tk-tree").display(),
        trees(&scope).display()
    );
    let mut served = scope
        .command("sh")
        .args(["-c", &line])
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .spawn()
        .unwrap();
    let record = wait_for("a record", || {
        let mut entries = std::fs::read_dir(trees(&scope)).unwrap();
        let names = |name: &std::ffi::OsStr| !name.to_string_lossy().starts_with('.');
        entries.find_map(|entry| {
            let entry = entry.unwrap();
            names(&entry.file_name()).then(|| entry.metadata().unwrap())
        })
    });
    assert_eq!(record.mode() & 0o777, 0o600);
    served.stdin.as_mut().unwrap().write_all(b"stop\n").unwrap();
    served.wait().unwrap();
}

/// A tree whose warden lives, and whose server has two processes: one without the tree's cookie.
struct Served {
    child: Child,
    warden: ProcessRef,
    members: Vec<Identity>,
}

impl Served {
    fn start(scope: &Scope) -> Served {
        let (stubborn, roll) = (bin("tk-stubborn"), scope.roll());
        let (stubborn, roll) = (stubborn.display(), roll.display());
        let script = format!("env -i {stubborn} {roll} stay & {stubborn} {roll} stay");
        Served::start_script(scope, &script)
    }

    /// A tree whose server is a shell with this script, which starts two processes that sign the roll.
    fn start_script(scope: &Scope, script: &str) -> Served {
        let mut child = scope
            .command(bin("tk-tree"))
            .arg("serve")
            .arg(trees(scope))
            .args(["3600000", "3600000", "--", "sh", "-c", script])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let warden = lines.find_map(|line| {
            let identity = line.unwrap().strip_prefix("warden ")?.parse().ok()?;
            ProcessRef::find(&identity).unwrap()
        });
        let members = wait_for("both processes of the server", || {
            let signed = scope.signed();
            (signed.len() == 2).then_some(signed)
        });
        Served {
            child,
            warden: warden.unwrap(),
            members,
        }
    }

    fn record(scope: &Scope) -> PathBuf {
        wait_for("a whole record", || {
            let entries = std::fs::read_dir(trees(scope)).unwrap();
            let mut paths = entries.map(|entry| entry.unwrap().path());
            paths.find(|path| {
                let text = std::fs::read_to_string(path).unwrap_or_default();
                text.contains("\nserver ")
            })
        })
    }

    fn live(&self) -> usize {
        let lives = |it: &&Identity| ProcessRef::find(it).unwrap().is_some();
        self.members.iter().filter(lives).count()
    }
}

#[test]
fn a_record_that_calls_a_living_warden_dead_does_not_end_its_tree() {
    on_each_kernel(|| {
        let scope = Scope::new("living-warden");
        let mut served = Served::start(&scope);
        let record = Served::record(&scope);
        let text = std::fs::read_to_string(&record).unwrap();
        let rest = text.lines().filter(|line| {
            !["kennel-tree", "served", "warden"]
                .iter()
                .any(|word| line.starts_with(word))
        });
        let rest: String = rest.map(|line| format!("{line}\n")).collect();
        let name = record.file_name().unwrap().to_str().unwrap();
        plant(&scope, name, &rest);
        // The same under another name: then session and server are all that would say whose they are.
        plant(&scope, cookie(), &rest);
        next_start(&scope);
        assert_eq!(served.live(), 2, "ended below a living warden");
        served.child.kill().unwrap();
        served.child.wait().unwrap();
    });
}

#[test]
fn rule_2_a_leftover_without_the_cookie_is_ended_with_the_leader_of_its_session() {
    on_each_kernel(|| {
        let scope = Scope::new("no-cookie");
        let (stubborn, roll) = (bin("tk-stubborn"), scope.roll());
        let (stubborn, roll) = (stubborn.display(), roll.display());
        // The subshell ends at once: the process without the cookie is not below the one that has it.
        let script = format!(
            "setsid sh -c '(env -i {stubborn} {roll} stay &); exec {stubborn} {roll} stay' & wait"
        );
        let mut served = Served::start_script(&scope, &script);
        Served::record(&scope);
        served.child.kill().unwrap();
        served.warden.signal(Signal::KILL).unwrap();
        served.child.wait().unwrap();
        wait_for("the warden to end", || {
            (!served.warden.is_alive()).then_some(())
        });
        assert_eq!(served.live(), 2, "else this would show nothing");
        next_start(&scope);
        assert_eq!(served.live(), 0);
        assert_eq!(std::fs::read_dir(trees(&scope)).unwrap().count(), 0);
    });
}

#[test]
fn a_planted_record_that_names_session_and_pipes_ends_nobody() {
    on_each_kernel(|| {
        let scope = Scope::new("session-and-pipes");
        // As a background job: the leader of its session is gone, and somebody writes to its stdin.
        let mut leader = scope
            .command("setsid")
            .args(["sh", "-c", "exec 3<&0; sleep 1000 <&3 & echo $!"])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut line = String::new();
        let mut told = BufReader::new(leader.stdout.take().unwrap());
        told.read_line(&mut line).unwrap();
        let job = ProcessRef::open(line.trim().parse().unwrap()).unwrap();
        let stdin = leader.stdin.take().unwrap();
        leader.wait().unwrap();
        let gone = dead(&scope).to_string();
        let fields: Vec<&str> = gone.split(':').collect();
        let session = leader.id();
        let pipe = std::fs::metadata(format!("/proc/{}/fd/0", job.pid())).unwrap();
        let leader = format!("{session}:-:{}:1:{}", fields[2], fields[4]);
        let pipe = format!("{}:{}", pipe.dev(), pipe.ino());
        plant(
            &scope,
            cookie(),
            &format!("session {session}\nserver {leader}\npipe {pipe}\n"),
        );
        next_start(&scope);
        assert!(job.is_alive());
        job.signal(Signal::KILL).unwrap();
        drop(stdin);
    });
}

#[test]
fn links_and_other_odd_files_among_the_records_are_skipped_and_named() {
    let scope = Scope::new("odd-files");
    let mut member = innocent(&scope, |command| {
        command.env("KENNEL_TREE", cookie());
    });
    plant(&scope, cookie(), "session 0\n");
    let (link, socket, directory) = ("0".repeat(32), "1".repeat(32), "2".repeat(32));
    std::os::unix::fs::symlink("/etc/passwd", trees(&scope).join(&link)).unwrap();
    let _socket = std::os::unix::net::UnixListener::bind(trees(&scope).join(&socket)).unwrap();
    std::fs::create_dir(trees(&scope).join(&directory)).unwrap();
    let said = next_start(&scope);
    assert!(said.contains(&link) && said.contains(&socket), "{said}");
    assert!(!member.wait().unwrap().success(), "the start went on");
    assert_eq!(std::fs::read_dir(trees(&scope)).unwrap().count(), 3);
}

#[test]
fn a_hard_link_among_the_records_is_no_record() {
    let scope = Scope::new("hard-link");
    let member = innocent(&scope, |command| {
        command.env("KENNEL_TREE", cookie());
    });
    plant(&scope, cookie(), "session 0\n");
    std::fs::hard_link(trees(&scope).join(cookie()), scope.path("elsewhere")).unwrap();
    next_start(&scope);
    assert!(ProcessRef::find(&identity_of(&member)).unwrap().is_some());
    assert_eq!(std::fs::read_dir(trees(&scope)).unwrap().count(), 1);
    end(member);
}

/// Starts a tree of a shell script, waits for `n` signatures, asks for its end and waits for it.
fn ended_tree(scope: &Scope, script: &str, n: usize, before_the_end: impl FnOnce(&[Identity])) {
    let mut child = scope
        .command(bin("tk-tree"))
        .arg("serve")
        .arg(trees(scope))
        .args(["50", "50", "--", "sh", "-c", script])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let signed = wait_for("the processes of the server", || {
        let signed = scope.signed();
        (signed.len() == n).then_some(signed)
    });
    before_the_end(&signed);
    child.stdin.as_mut().unwrap().write_all(b"stop\n").unwrap();
    let lines = BufReader::new(child.stdout.take().unwrap()).lines();
    let told: Vec<String> = lines.map_while(Result::ok).collect();
    assert!(told.iter().any(|line| line == "report Empty"), "{told:?}");
    assert!(child.wait().unwrap().success());
}

fn lives(identity: &Identity) -> bool {
    ProcessRef::find(identity).unwrap().is_some()
}

#[test]
fn rule_2_a_server_does_not_hide_behind_a_process_that_is_called_a_daemon() {
    let (tree, stubborn) = (bin("tk-tree"), bin("tk-stubborn"));
    for locks in ["nothing", "file", "directory"] {
        let scope = Scope::new("called-a-daemon");
        // The process that is called a daemon was the parent of the other one before that.
        let lock = scope.path("daemon.lock");
        let lock = match locks {
            "nothing" => String::new(),
            "file" => format!("exec 9>{}; flock 9; ", lock.display()),
            _ => format!("mkdir -m 700 {0}; exec 9<{0}; flock 9; ", lock.display()),
        };
        let script = format!(
            "{lock}{1} {2} stay 9>&- & echo $$ >{3}; exec {0} daemon orders",
            tree.display(),
            stubborn.display(),
            scope.roll().display(),
            scope.path("pid").display()
        );
        let mut members = Vec::new();
        ended_tree(&scope, &script, 1, |signed| {
            let called = wait_for("the process that is called a daemon", || {
                let pid = std::fs::read_to_string(scope.path("pid")).ok()?;
                let process = ProcessRef::open(pid.trim().parse().ok()?).ok()?;
                let called = process.name().as_deref() == Some("tk-tree");
                called.then_some(*process.identity())
            });
            members = vec![signed[0], called];
        });
        let left = members.iter().filter(|it| lives(it)).count();
        assert_eq!(left, 0, "locks {locks}");
    }
}

#[test]
fn a_record_that_calls_a_served_process_dead_leaves_its_stopped_warden_alone() {
    let scope = Scope::new("served-lives");
    let mut served = Served::start(&scope);
    let record = Served::record(&scope);
    let text = std::fs::read_to_string(&record).unwrap();
    let dead = dead(&scope);
    let lines = text.lines().map(|line| match line.starts_with("served ") {
        true => format!("served {dead}\n"),
        false => format!("{line}\n"),
    });
    std::fs::write(&record, lines.collect::<String>()).unwrap();
    served.warden.signal(Signal::STOP).unwrap();
    let state = || std::fs::read_to_string(format!("/proc/{}/stat", served.warden.pid())).unwrap();
    wait_for("it is stopped", || state().contains(") T ").then_some(()));
    next_start(&scope);
    assert!(state().contains(") T "), "its served process is in charge");
    assert_eq!(served.live(), 2);
    served.warden.signal(Signal::CONT).unwrap();
    served.child.kill().unwrap();
    served.child.wait().unwrap();
}
