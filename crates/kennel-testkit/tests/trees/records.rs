//! Records of trees that are not ours, or not readable: they end no process.

use super::*;

#[test]
fn rule_6_a_record_of_another_version_or_that_cannot_be_read_ends_nobody() {
    for change in ["kennel-tree 2", "something else"] {
        let scope = Scope::new("other-version");
        let mut served = Served::family(&scope, SLOW, "family", 1);
        let members = all_signed(&scope, 2);
        let record = std::fs::read_dir(scope.path("trees"))
            .unwrap()
            .next()
            .unwrap()
            .unwrap();
        let text = std::fs::read_to_string(record.path()).unwrap();
        std::fs::write(record.path(), text.replace("kennel-tree 1", change)).unwrap();
        next_start(&scope);
        assert!(
            members
                .iter()
                .all(|member| ProcessRef::find(member).unwrap().is_some())
        );
        served.child.kill().unwrap();
        served.child.wait().unwrap();
    }
}

/// What is written down is what a disaster leaves: both killed, and a server to end. But another user wrote it.
#[test]
#[ignore = "needs root: cargo xtask test"]
fn needs_root_rule_9_a_record_of_another_user_ends_nobody() {
    let scope = Scope::new("foreign-record");
    std::fs::create_dir(scope.path("trees")).unwrap();
    let cookie = "0123456789abcdef".repeat(2);
    let mut bystander = scope
        .command("sleep")
        .arg("1000")
        .env("KENNEL_TREE", &cookie)
        .spawn()
        .unwrap();
    let dead = {
        let mut gone = scope.command("sleep").arg("1000").spawn().unwrap();
        let identity = *ProcessRef::open(gone.id()).unwrap().identity();
        gone.kill().unwrap();
        gone.wait().unwrap();
        identity
    };
    let server = *ProcessRef::open(bystander.id()).unwrap().identity();
    let text = format!("kennel-tree 1\nserved {dead}\nwarden {dead}\nsession 0\nserver {server}\n");
    let record = scope.path("trees").join(cookie);
    std::fs::write(&record, text).unwrap();
    std::os::unix::fs::chown(&record, Some(65534), Some(65534)).unwrap();
    next_start(&scope);
    assert_eq!(
        bystander.try_wait().unwrap(),
        None,
        "ended on a stranger's word"
    );
    assert_eq!(records_left(&scope), 1, "what is not ours is not removed");
    // The same, said by us: it would have been.
    std::os::unix::fs::chown(&record, Some(0), Some(0)).unwrap();
    next_start(&scope);
    assert!(!bystander.wait().unwrap().success());
    assert_eq!(records_left(&scope), 0);
}

#[test]
#[ignore = "needs root: cargo xtask test"]
fn needs_root_a_tree_of_another_pid_namespace_is_left_alone() {
    let scope = Scope::new("namespace");
    let records = scope.path("trees");
    std::fs::create_dir(&records).unwrap();
    let mut inside = scope
        .command("unshare")
        .args(["--pid", "--fork", "--kill-child", "--mount-proc"])
        .arg(bin("tk-tree"))
        .arg("serve")
        .arg(&records)
        .args(SLOW)
        .args(["--", "sh", "-c", "echo up; exec sleep 1000"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(inside.stdout.take().unwrap()).lines();
    assert!(lines.any(|line| line.unwrap() == "up"));
    next_start(&scope);
    assert_eq!(records_left(&scope), 1);
    let asleep = scope.survivors().iter().any(|process| {
        let name = std::fs::read_to_string(format!("/proc/{}/comm", process.pid()));
        name.is_ok_and(|name| name == "sleep\n")
    });
    assert!(asleep, "a living tree was ended from outside its namespace");
    inside.kill().unwrap();
    inside.wait().unwrap();
}
