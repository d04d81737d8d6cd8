//! Rule 6: identity is not a number.
#![expect(clippy::unwrap_used, reason = "in a test, a panic is the report")]

use std::io::{BufRead, BufReader};
use std::process::Stdio;
use std::rc::Rc;
use std::time::Duration;

use kennel_sys::Signal;
use kennel_sys::io::{Exit, is_readable_within};
use kennel_sys::process::{Identity, ProcessRef};
use kennel_testkit::{
    Scope, bin, count, on_each_kernel, on_each_kernel_alone, tool, wait_for, with_pid,
};

/// Connects to a socket, and stays.
const CONNECT: &str = "import socket,sys,time\n\
    s=socket.socket(socket.AF_UNIX);s.connect(sys.argv[1]);time.sleep(1000)";

fn sleeper(scope: &Scope) -> std::process::Child {
    scope.command("sleep").arg("1000").spawn().unwrap()
}

#[test]
fn a_process_is_itself_and_nobody_else() {
    on_each_kernel(|| {
        let scope = Scope::new("self");
        let mut one = sleeper(&scope);
        let mut two = sleeper(&scope);
        let first = ProcessRef::open(one.id()).unwrap();
        let again = ProcessRef::open(one.id()).unwrap();
        let second = ProcessRef::open(two.id()).unwrap();
        assert!(first.identity().same_process(again.identity()));
        assert!(!first.identity().same_process(second.identity()));
        let written: Identity = first.identity().to_string().parse().unwrap();
        assert!(ProcessRef::find(&written).unwrap().is_some());
        one.kill().unwrap();
        one.wait().unwrap();
        assert!(ProcessRef::find(&written).unwrap().is_none());
        assert!(!first.is_alive());
        assert!(
            !first.signal(Signal::TERM).unwrap(),
            "nobody there to get it"
        );
        two.kill().unwrap();
        two.wait().unwrap();
    });
}

#[test]
fn lesson_2_a_zombie_is_dead() {
    on_each_kernel(|| {
        let scope = Scope::new("zombie");
        let mut child = sleeper(&scope);
        let process = ProcessRef::open(child.id()).unwrap();
        assert!(process.is_alive());
        child.kill().unwrap();
        assert!(process.wait(Some(Duration::from_secs(60))).unwrap());
        // Not reaped: its pid still answers to signal 0, and it is dead.
        assert!(!process.is_alive());
        assert_eq!(
            ProcessRef::open(child.id()).unwrap_err().kind(),
            std::io::ErrorKind::NotFound
        );
        assert!(ProcessRef::find(process.identity()).unwrap().is_none());
        child.wait().unwrap();
    });
}

#[test]
fn a_wait_that_is_over_says_so_and_the_exit_event_fits_a_poll() {
    on_each_kernel(|| {
        let scope = Scope::new("wait");
        let mut child = sleeper(&scope);
        let process = Rc::new(ProcessRef::open(child.id()).unwrap());
        assert!(!process.wait(Some(Duration::from_millis(20))).unwrap());
        let exit = Exit::of(&process);
        assert_eq!(exit.is_some(), kennel_sys::kernel::features().pidfd);
        assert_eq!(process.has_exit_event(), exit.is_some());
        child.kill().unwrap();
        if let Some(exit) = exit {
            kennel_sys::events::sleep(&[&exit], &[], None).unwrap();
            assert!(is_readable_within(&exit, Duration::ZERO));
        }
        assert!(process.wait(None).unwrap());
        child.wait().unwrap();
    });
}

#[test]
fn numbers_that_mean_groups_or_nobody_are_no_process() {
    on_each_kernel(|| {
        for pid in [0, u32::MAX, i32::MAX as u32, 1 << 31] {
            let error = ProcessRef::open(pid).unwrap_err();
            assert_eq!(error.kind(), std::io::ErrorKind::NotFound, "{pid}: {error}");
        }
    });
}

#[test]
fn a_process_of_another_user_is_alive_though_it_may_not_be_signalled() {
    on_each_kernel(|| {
        // As root nobody is out of reach; as anybody else pid 1 is.
        let init = ProcessRef::open(1).unwrap();
        assert!(init.is_alive());
        if !rustix::process::geteuid().is_root() {
            // One it would ignore; and not SIGCONT, which anybody in init's session may send.
            let error = init.signal(Signal::URG).unwrap_err();
            assert_eq!(error.kind(), std::io::ErrorKind::PermissionDenied);
            assert!(init.is_alive());
        }
    });
}

#[test]
fn the_parent_and_its_parent_are_who_they_are() {
    on_each_kernel(|| {
        let parent = ProcessRef::parent().unwrap().expect("a test has a parent");
        let me = ProcessRef::me().unwrap();
        let again = ProcessRef::parent_of(&me).unwrap().unwrap();
        assert!(parent.identity().same_process(again.identity()));
    });
}

#[test]
fn a_process_whose_first_thread_ended_lives_while_another_does() {
    let Some(python) = tool("python3") else {
        return;
    };
    on_each_kernel(move || {
        let scope = Scope::new("leader");
        // SYS_exit ends the calling thread only: 60 on x86-64, 93 on the others.
        let script = "import ctypes,threading,time,platform\n\
            threading.Thread(target=time.sleep,args=(1000,)).start()\n\
            print('ready',flush=True)\n\
            ctypes.CDLL(None).syscall(60 if platform.machine()=='x86_64' else 93,0)";
        let mut child = scope
            .command(&python)
            .args(["-c", script])
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let stat = format!("/proc/{}/stat", child.id());
        wait_for("the first thread to be a zombie", || {
            std::fs::read_to_string(&stat)
                .unwrap()
                .contains(") Z ")
                .then_some(())
        });
        let process = ProcessRef::open(child.id()).expect("it lives");
        assert!(process.is_alive());
        assert!(!process.wait(Some(Duration::from_millis(50))).unwrap());
        child.kill().unwrap();
        assert!(process.wait(Some(Duration::from_secs(60))).unwrap());
        child.wait().unwrap();
    });
}

#[test]
#[ignore = "needs root: cargo xtask test"]
fn rule_6_needs_root_a_reused_pid_is_another_process_and_gets_no_signal() {
    on_each_kernel_alone(|| {
        let scope = Scope::new("reuse");
        for _ in 0..count(200) {
            let mut first = sleeper(&scope);
            let held = ProcessRef::open(first.id()).unwrap();
            let written: Identity = held.identity().to_string().parse().unwrap();
            first.kill().unwrap();
            first.wait().unwrap();
            let mut second = with_pid(written.pid(), || sleeper(&scope));
            let bearer = ProcessRef::open(second.id()).unwrap();
            assert_eq!(bearer.pid(), written.pid());
            assert!(
                !bearer.identity().same_process(&written),
                "{written} {}",
                bearer.identity()
            );
            assert!(ProcessRef::find(&written).unwrap().is_none());
            assert!(!held.is_alive());
            assert!(!held.signal(Signal::KILL).unwrap());
            assert!(bearer.is_alive(), "the bearer of the pid was signalled");
            second.kill().unwrap();
            second.wait().unwrap();
        }
    });
}

#[test]
fn a_socket_tells_who_is_at_its_other_end() {
    on_each_kernel(|| {
        let scope = Scope::new("peer");
        let path = scope.path("s");
        let listener = std::os::unix::net::UnixListener::bind(&path).unwrap();
        let Some(python) = tool("python3") else {
            return;
        };
        let mut child = scope
            .command(&python)
            .args(["-c", CONNECT])
            .arg(&path)
            .spawn()
            .unwrap();
        let (connection, _) = listener.accept().unwrap();
        let peer = kennel_sys::peer::Peer::of(&connection).unwrap();
        assert_eq!(peer.uid, rustix::process::geteuid().as_raw());
        assert_eq!(peer.pid, child.id());
        let process = peer.process.expect("the peer lives");
        assert_eq!(process.pid(), child.id());
        child.kill().unwrap();
        assert!(process.wait(Some(Duration::from_secs(60))).unwrap());
        child.wait().unwrap();
        let gone = kennel_sys::peer::Peer::of(&connection).unwrap();
        assert!(gone.process.is_none(), "a dead peer is nobody");
    });
}

#[test]
#[ignore = "needs root: cargo xtask test"]
fn needs_root_a_peer_outside_our_pid_namespace_has_no_pid_but_an_end() {
    let (Some(python), Some(unshare)) = (tool("python3"), tool("unshare")) else {
        return;
    };
    let scope = Scope::new("peer-ns");
    let path = scope.path("s");
    let mut inside = scope
        .command(&unshare)
        .args(["--pid", "--fork", "--kill-child"])
        .arg(bin("tk-peer"))
        .arg(&path)
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut told = BufReader::new(inside.stdout.take().unwrap())
        .lines()
        .map(Result::unwrap);
    assert_eq!(told.next().as_deref(), Some("ready"));
    let mut outside = scope
        .command(&python)
        .args(["-c", CONNECT])
        .arg(&path)
        .spawn()
        .unwrap();
    assert_eq!(told.next().as_deref(), Some("pid 0"));
    assert_eq!(told.next().as_deref(), Some("seen"));
    outside.kill().unwrap();
    assert_eq!(told.next().as_deref(), Some("gone"));
    outside.wait().unwrap();
    inside.wait().unwrap();
}
