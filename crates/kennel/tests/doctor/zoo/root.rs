//! Shapes that only root can make.

use std::path::{Path, PathBuf};
use std::process::Stdio;

use kennel_sys::process::ProcessRef;
use kennel_testkit::{bin, run, wait_for};
use serde_json::Value;

use super::{Zoo, offered};
use crate::stage::{Family, wait_until_blocked};

#[test]
#[ignore = "needs root: cargo xtask test"]
fn needs_root_a_frozen_process_is_in_doubt() {
    let zoo = Zoo::new();
    let mut family = zoo.ward.family(&[], &["tk-idle"]);
    family.kill_app();
    let pid = family.child.pid();
    assert_eq!(zoo.ward.orphans(), [pid]);
    let group = Frozen::new(pid);
    let report = zoo.ward.doctor();
    assert_eq!(offered(&report), [0; 0], "{report:#}");
    let doubts = report["in_doubt"][0]["doubts"].to_string();
    assert!(doubts.contains("is frozen"), "{report:#}");
    drop(group);
    assert_eq!(zoo.ward.orphans(), [pid]);
}

#[test]
#[ignore = "needs root: cargo xtask test"]
fn needs_root_a_database_of_a_user_whose_processes_are_hidden_is_a_doubt() {
    use std::os::unix::fs::PermissionsExt;
    let zoo = Zoo::new();
    let open_to = |path: &Path, mode: u32| {
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).unwrap();
    };
    let database = zoo.ward.scope.path("database");
    std::fs::write(&database, "").unwrap();
    open_to(&database, 0o666);
    let [idle, app] = ["tk-idle", "tk-parent"].map(|name| zoo.ward.copied_for_all(&bin(name)));
    let kennel = zoo
        .ward
        .copied_for_all(Path::new(env!("CARGO_BIN_EXE_kennel")));
    const AS_NOBODY: [&str; 3] = ["--reuid=65534", "--regid=65534", "--clear-groups"];
    let mut command = zoo.ward.command("setpriv");
    command.args(AS_NOBODY).args([&app, "--", "sh", "-c"]);
    command
        .args(["exec \"$0\" 3<>\"$1\"", &idle])
        .arg(&database);
    let mut family = Family::start(&mut command);
    wait_for("it has the database open", || {
        let words = family.child.command_line()?;
        (words == [idle.as_str()]).then_some(())
    });
    family.kill_app();
    let mut command = zoo.ward.restricted("setpriv");
    let ended = run(command.args(AS_NOBODY).args([&kennel, "doctor", "--json"]));
    let report: Value = serde_json::from_str(&ended.stdout).unwrap();
    assert_eq!(offered(&report), [0; 0], "{report:#}");
    let doubts = report["in_doubt"][0]["doubts"].to_string();
    assert!(doubts.contains("hides its open files"), "{report:#}");
    assert_eq!(zoo.ward.orphans(), [family.child.pid()], "root sees all");
}

/// A control group with one process, frozen until this is dropped.
struct Frozen {
    group: PathBuf,
    parent: PathBuf,
}

impl Frozen {
    fn new(pid: u32) -> Frozen {
        let roots = ["/sys/fs/cgroup", "/sys/fs/cgroup/unified"].map(PathBuf::from);
        let mut roots = roots.into_iter();
        let parent = roots.find(|root| root.join("cgroup.procs").exists());
        let parent = parent.expect("control groups of version 2");
        let group = parent.join(format!("kennel-zoo-{pid}"));
        std::fs::create_dir(&group).unwrap();
        let frozen = Frozen { group, parent };
        std::fs::write(frozen.group.join("cgroup.procs"), pid.to_string()).unwrap();
        std::fs::write(frozen.group.join("cgroup.freeze"), "1").unwrap();
        wait_for("it is frozen", || {
            let events = std::fs::read_to_string(frozen.group.join("cgroup.events")).unwrap();
            events.contains("frozen 1").then_some(())
        });
        frozen
    }
}

impl Drop for Frozen {
    fn drop(&mut self) {
        let _ = std::fs::write(self.group.join("cgroup.freeze"), "0");
        let pids = std::fs::read_to_string(self.group.join("cgroup.procs")).unwrap_or_default();
        for pid in pids.lines() {
            let _ = std::fs::write(self.parent.join("cgroup.procs"), pid);
        }
        let _ = std::fs::remove_dir(&self.group);
    }
}

#[test]
#[ignore = "needs root: cargo xtask test"]
fn needs_root_the_init_of_a_pid_namespace_with_others_in_it_is_in_doubt() {
    let zoo = Zoo::new();
    let words = ["unshare", "--pid", "--fork", "tk-idle", "1"];
    let mut family = zoo.ward.family(&[], &words);
    let init = wait_for("the init runs its program", || {
        let init = family.grandchild();
        let is_idle = init.command_line()?.first()? == "tk-idle";
        is_idle.then(|| init.pid().to_string())
    });
    let mut inside = zoo.ward.command("nsenter");
    inside.args(["-t", &init, "--pid", "tk-idle", "2"]);
    let mut inside = inside
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .spawn()
        .unwrap();
    wait_for("a process entered the namespace", || {
        let all = zoo.ward.scope.survivors();
        let is_inside = |process: &ProcessRef| {
            process
                .command_line()
                .is_some_and(|it| it == ["tk-idle", "2"])
        };
        all.iter().any(is_inside).then_some(())
    });
    family.kill_app();
    let report = zoo.ward.doctor();
    assert_eq!(offered(&report), [0; 0], "{report:#}");
    let doubts = report["in_doubt"][0]["doubts"].to_string();
    assert!(doubts.contains("is the init of pid"), "{report:#}");
    inside.kill().unwrap();
    inside.wait().unwrap();
}

#[test]
#[ignore = "needs root: cargo xtask test"]
fn needs_root_a_process_in_another_namespace_is_in_doubt() {
    for (option, kind) in [("--net", "network"), ("--mount", "mount"), ("--ipc", "IPC")] {
        let zoo = Zoo::new();
        let mut family = zoo.ward.family(&[], &["unshare", option, "tk-idle"]);
        wait_for("it runs its program", || {
            let words = family.child.command_line()?;
            (words == ["tk-idle"]).then_some(())
        });
        family.kill_app();
        let report = zoo.ward.doctor();
        assert_eq!(offered(&report), [0; 0], "{report:#}");
        let doubts = report["in_doubt"][0]["doubts"].to_string();
        let words = format!("is in another {kind} namespace");
        assert!(doubts.contains(&words), "{doubts}");
    }
}

/// A file system of one file that stalls: no READ is ever answered.
const STALLED_FILES: &str = "
import ctypes, os, stat, struct, sys
directory = sys.argv[1] + '.mnt'
os.mkdir(directory)
device = os.open('/dev/fuse', os.O_RDWR)
options = 'fd=%d,rootmode=40000,user_id=0,group_id=0' % device
assert ctypes.CDLL(None).mount(b'stalled', directory.encode(), b'fuse', 0, options.encode()) == 0
def attributes(node):
    is_root = node == 1
    mode = stat.S_IFDIR | 0o755 if is_root else stat.S_IFREG | 0o644
    return struct.pack('<6Q10I', node, 0 if is_root else 1 << 20, 0, 0, 0, 0, 0, 0, 0, mode, 1, 0, 0, 0, 4096, 0)
done()
while True:
    request = os.read(device, 1 << 20)
    _, operation, unique, node = struct.unpack('<IIQQ', request[:24])
    answers = {
        1: lambda: struct.pack('<4QII', 2, 0, 60, 60, 0, 0) + attributes(2),
        3: lambda: struct.pack('<QII', 60, 0, 0) + attributes(node),
        14: lambda: struct.pack('<QII', 1, 0, 0),
        17: lambda: bytes(80),
        26: lambda: struct.pack('<IIIIHHIIHHI28x', 7, 31, 65536, 0, 12, 10, 65536, 1, 1, 0, 0),
    }
    # FORGET and INTERRUPT have no answer either.
    if operation not in (2, 15, 36, 42):
        answer = answers[operation]() if operation in answers else b''
        error = 0 if operation in answers else -38
        os.write(device, struct.pack('<IiQ', 16 + len(answer), error, unique) + answer)
";

/// A mounted file system, until this is dropped.
struct Mounted(PathBuf);

impl Drop for Mounted {
    fn drop(&mut self) {
        let _ = run(std::process::Command::new("umount").arg("-l").arg(&self.0));
    }
}

#[test]
#[ignore = "needs root: cargo xtask test"]
fn needs_root_a_reader_of_a_file_system_that_stalls_is_in_doubt() {
    let zoo = Zoo::new();
    let server = format!("other('''{STALLED_FILES}''')");
    let _mounter = zoo.start(0, &server);
    let mounted = Mounted(zoo.ward.scope.path("shape-0.mnt"));
    zoo.is_ready(0);
    let file = mounted.0.join("file");
    let mut family = zoo.ward.family(&[], &["cat", file.to_str().unwrap()]);
    wait_for("it reads", || {
        let link = format!("/proc/{}/fd/3", family.child.pid());
        std::fs::read_link(link).ok().filter(|it| *it == file)
    });
    wait_until_blocked(family.child.pid());
    family.kill_app();
    let report = zoo.ward.doctor();
    assert_eq!(offered(&report), [0; 0], "{report:#}");
    let doubts = report["in_doubt"][0]["doubts"].to_string();
    assert!(doubts.contains("waits to read /"), "{report:#}");
}
